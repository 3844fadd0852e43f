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

// otherName represents the kernels without series of their own.
const otherName = "_other"

// work is the activity of one or several kernels.
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

// minus returns w without o, an earlier value of w.
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

// minus keeps Max: its value in between is unknown.
func minus(h, o *probe.Histogram) probe.Histogram {
	d := probe.Histogram{Count: less(h.Count, o.Count), Sum: less(h.Sum, o.Sum), Max: h.Max}
	for i := range d.Buckets {
		d.Buckets[i] = less(h.Buckets[i], o.Buckets[i])
	}
	return d
}

// less returns a − b, or 0 if a concurrent call was counted only partly in the snapshot.
func less(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}

// kernels has the kernels of one process by displayed name.
type kernels struct {
	top   int
	strip bool
	start pcommon.Timestamp
	// shown caches the displayed name of each kernel, so that each is demangled once.
	shown map[symbol]string
	named map[string]*kernel
	// total is the sum of all kernels, including those without a name. Its part outside of all
	// series is _other.
	total work
}

type symbol struct {
	name   string
	handle uint64
}

// kernel is one name.
type kernel struct {
	name string
	// own means that it has series of its own.
	own bool
	// created is the start time of these series.
	created pcommon.Timestamp
	// total is its sum, minus the part that belongs to _other.
	total, before work
}

func newKernels(top int, strip bool, start pcommon.Timestamp) *kernels {
	return &kernels{top: top, strip: strip, shown: map[symbol]string{}, named: map[string]*kernel{}, start: start}
}

// update adds the sums of a snapshot.
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
			s.handle = 0 // one name is one kernel, in all modules
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
		return // a decreasing sum would resemble a restart, and all of it would be counted again
	}
	k.shown, k.total = known, total

	// When the driver adds or removes the name of a kernel, its sum moves between names without
	// notice. This is rare. All activity since the last snapshot then goes to _other. No series
	// decreases, and nothing is counted twice.
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

// show returns the displayed name of a kernel.
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
		// A kernel may have any name, but two series must not be equal.
		return otherName + "()"
	}
	return name
}

// rank selects the names with series of their own: those with the most launches. The activity of
// the others since the last snapshot is added to _other. A name that is selected later starts a
// series at that time. A name that is no longer selected moves its sum to _other. So every sum is
// exact and no series decreases.
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
	// A name needs twice the launches of the last one, so that two names with similar counts do
	// not alternate.
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

// fold moves the kernel's sum to _other.
func (n *kernel) fold(now pcommon.Timestamp) {
	n.before = n.total
	n.created = now
}

// each calls f with every series, _other last: its name, start time and sums.
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
