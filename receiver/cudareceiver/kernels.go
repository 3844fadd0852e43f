// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"cmp"
	"slices"
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// otherName stands for the kernels without series of their own.
const otherName = "_other"

// work is what one or several kernels did.
type work struct {
	executed, captured uint64
	grid, block        probe.Histogram
}

func (w *work) calls() uint64 { return w.executed + w.captured }

func (w *work) launch(l *probe.Launch) {
	if l.Captured {
		w.captured += l.Calls
		return
	}
	w.executed += l.Calls
	add(&w.grid, &l.Grid)
	add(&w.block, &l.Block)
}

// minus returns what is in w and not in o, which w held at an earlier time.
func (w *work) minus(o *work) work {
	return work{
		executed: less(w.executed, o.executed), captured: less(w.captured, o.captured),
		grid: minus(&w.grid, &o.grid), block: minus(&w.block, &o.block),
	}
}

func add(h, o *probe.Histogram) {
	h.Count += o.Count
	h.Sum += o.Sum
	h.Max = max(h.Max, o.Max)
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}

// minus leaves Max as it is: nobody knows what it was in between.
func minus(h, o *probe.Histogram) probe.Histogram {
	d := probe.Histogram{Count: less(h.Count, o.Count), Sum: less(h.Sum, o.Sum), Max: h.Max}
	for i := range d.Buckets {
		d.Buckets[i] = less(h.Buckets[i], o.Buckets[i])
	}
	return d
}

// less returns a − b, and 0 where a snapshot that was read while calls were being counted has a part
// of one of them only.
func less(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}

// kernels are the kernels of one process by the names that they are shown with.
type kernels struct {
	top   int
	strip bool
	start pcommon.Timestamp
	// shown has the shown name of each kernel that the driver knows, so that each is demangled once.
	shown map[symbol]string
	named map[string]*kernel
	// total is what all of them did, those without a name included. What is in it and in no series is
	// _other.
	total work
}

type symbol struct {
	name   string
	handle uint64
}

// kernel is one name.
type kernel struct {
	name string
	// own says that it has series of its own.
	own bool
	// created is when these began.
	created pcommon.Timestamp
	// total is what it did, before the part of it that its series leave to _other.
	total, before work
}

func newKernels(top int, strip bool, start pcommon.Timestamp) *kernels {
	return &kernels{top: top, strip: strip, shown: map[symbol]string{}, named: map[string]*kernel{}, start: start}
}

// update takes the sums of a snapshot.
func (k *kernels) update(launches []probe.Launch, now pcommon.Timestamp) {
	var total work
	sums := map[string]*work{}
	known := make(map[symbol]string, len(launches))
	for i := range launches {
		l := &launches[i]
		total.launch(l)
		if l.Other {
			continue
		}
		s := symbol{l.Name, l.Handle}
		if l.Name != "" {
			s.handle = 0 // one name is one kernel, wherever it was loaded
		}
		name, ok := k.shown[s]
		if !ok {
			name = k.show(s)
		}
		known[s] = name
		w := sums[name]
		if w == nil {
			w = &work{}
			sums[name] = w
		}
		w.launch(l)
	}
	if total.calls() < k.total.calls() {
		return // a sum that falls would be read as a restart, and all of it counted again
	}
	k.shown, k.total = known, total

	// A kernel whose name was learned or forgotten takes its sum from one name to another, and nobody
	// says which. That is rare; what the process did since the last time then is in _other as a whole, so
	// that no series falls or counts what another has counted.
	moved := false
	for name, n := range k.named {
		moved = moved || sums[name] == nil || sums[name].calls() < n.total.calls()
	}
	for name, n := range k.named {
		w := sums[name]
		switch {
		case w == nil:
			delete(k.named, name)
			continue
		case w.calls() < n.total.calls():
			n.total = *w
			n.fold(now)
			continue
		case moved:
			held := n.total.minus(&n.before)
			n.before = w.minus(&held)
		}
		n.total = *w
	}
	for name, w := range sums {
		if k.named[name] == nil {
			n := &kernel{name: name, created: k.start, total: *w}
			if moved {
				n.fold(now)
			}
			k.named[name] = n
		}
	}
	k.rank(now)
}

// show returns the name that a kernel is shown with.
func (k *kernels) show(s symbol) string {
	if s.name == "" {
		return "unknown@0x" + strconv.FormatUint(s.handle, 16)
	}
	n := gpuevent.NewKernelName(s.name)
	name := n.Full
	if k.strip {
		name = cmp.Or(n.Qualified, n.Full)
	}
	if name == otherName {
		// A kernel may be called anything, but two series must not be one.
		return otherName + "()"
	}
	return name
}

// rank decides which names have series of their own: the top ones by launches. What the others did
// since the last time is added to _other. A name that comes up later begins a series at that moment;
// one that goes down gives all that it had to _other. So every sum is exact, no series ever falls,
// and one that is gone is in _other.
func (k *kernels) rank(now pcommon.Timestamp) {
	var own, rest []*kernel
	for _, n := range k.named {
		if n.own {
			own = append(own, n)
		} else {
			rest = append(rest, n)
		}
	}
	byCalls := func(a, b *kernel) int {
		return cmp.Or(cmp.Compare(b.total.calls(), a.total.calls()), cmp.Compare(a.name, b.name))
	}
	slices.SortFunc(rest, byCalls)
	if room := min(k.top-len(own), len(rest)); room > 0 {
		for _, n := range rest[:room] {
			n.own = true
		}
		own, rest = append(own, rest[:room]...), rest[room:]
	}
	slices.SortFunc(own, byCalls)
	// Twice the launches of the least, so that two names of about the same do not change places for ever.
	for len(rest) > 0 && len(own) > 0 && rest[0].total.calls()/2 > own[len(own)-1].total.calls() {
		least := own[len(own)-1]
		least.own = false
		least.fold(now)
		rest[0].own = true
		own, rest = own[:len(own)-1], rest[1:]
	}
	for _, n := range rest {
		n.fold(now)
	}
}

// fold leaves all that the kernel did so far to _other.
func (n *kernel) fold(now pcommon.Timestamp) {
	n.before = n.total
	n.created = now
}

// each calls f with every series, _other last: its name, when it began, and its sums.
func (k *kernels) each(f func(name string, created pcommon.Timestamp, w *work)) {
	var own []*kernel
	for _, n := range k.named {
		if n.own {
			own = append(own, n)
		}
	}
	slices.SortFunc(own, func(a, b *kernel) int { return cmp.Compare(a.name, b.name) })
	other := k.total
	for _, n := range own {
		w := n.total.minus(&n.before)
		other = other.minus(&w)
		if w.calls() > 0 {
			f(n.name, n.created, &w)
		}
	}
	if other.calls() > 0 {
		f(otherName, k.start, &other)
	}
}
