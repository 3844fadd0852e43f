// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/internal/histogram"
	"github.com/gpuflight/gpuflight/internal/numbered"
)

// What is not kept apart is counted under this name; idle time is under a service of that name.
const (
	otherName = "_other"
	idleName  = "_idle"
)

// Numbers of names in the tables below.
const (
	noName = 0 // the attribute is absent
	others = 1
)

// names numbers the names of one kind (scopes, requests) of one service, up to a limit. Of names that
// differ only in their numbers, the first ones have numbers of their own, and the others share one.
type names struct {
	list  []string // of the numbers from 2
	ids   map[string]uint32
	alike map[string]int // how many of list have a pattern
	steps int            // how many of list are single steps, from a state of an earlier version
}

// of returns the number of a name, others if there is no room for it.
func (n *names) of(name string, limit int) (id uint32, overflow bool) {
	if name == "" {
		return noName, false
	}
	if id, ok := n.ids[name]; ok {
		return id, false
	}
	if p := numbered.Pattern(name); p != name && n.alike[p] >= numbered.Max {
		return n.of(p, limit)
	}
	if len(n.list) >= max(limit, min(limit+n.steps, maxScopes-2)) {
		return others, true
	}
	return n.add(name), false
}

func (n *names) add(name string) uint32 {
	if n.ids == nil {
		n.ids, n.alike = map[string]uint32{}, map[string]int{}
	}
	if p := numbered.Pattern(name); p != name {
		n.alike[p]++
		if numbered.Counts(p) {
			n.steps++
		}
	}
	id := uint32(len(n.list)) + 2
	n.list = append(n.list, name)
	n.ids[name] = id
	return id
}

// name returns the name of a number, "" for noName.
func (n *names) name(id uint32) string {
	switch id {
	case noName:
		return ""
	case others:
		return otherName
	default:
		return n.list[id-2]
	}
}

// valid says whether a number that was read from outside means something.
func (n *names) valid(id uint32) bool { return int(id) < len(n.list)+2 }

// sums are the counters of device work of one scope, by operation.
type sums struct {
	ns    [numTimed]int64
	spans [numTimed]int64
	nodes int64 // kernels that were nodes of graphs
}

func (s *sums) add(o *sums) {
	for i := range s.ns {
		s.ns[i] += o.ns[i]
		s.spans[i] += o.spans[i]
	}
	s.nodes += o.nodes
}

// cell is the counters of one scope of a service on one device.
type cell struct {
	scope, label uint32
	created      int64
	sums
}

// cost is the device time that one scope and request of a service has to pay on one device.
type cost struct {
	scope, request, label uint32
	created               int64
	bill
}

// bill is a time at the present price and what was charged at earlier ones.
type bill struct {
	ns     int64
	before float64
}

const hour = 3600e9

func (b *bill) amount(perHour float64) float64 { return b.before + float64(b.ns)*perHour/hour }

// exemplar is a span that stands for a histogram's value.
type exemplar struct {
	ns    int64
	end   int64
	trace pcommon.TraceID
	span  pcommon.SpanID
}

// series is a histogram of durations.
type series struct {
	created int64
	exp     *histogram.Exponential // one of the two
	exact   *histogram.Explicit
	// The slowest of the interval that the number names.
	exemplars []exemplar
	interval  uint64
}

// durationBounds are those of explicit histograms, in ns: 1, 2 and 5 in each decade of 1 µs to 10 s.
var durationBounds = func() []int64 {
	var b []int64
	for decade := int64(1_000); decade < 1e10; decade *= 10 {
		b = append(b, decade, 2*decade, 5*decade)
	}
	return append(b, 1e10)
}()

// copyBounds are those of the sizes of copies, in bytes: the powers of 4 from 1 KiB to 4 GiB.
var copyBounds = func() []int64 {
	var b []int64
	for n := int64(1 << 10); n <= 1<<32; n *= 4 {
		b = append(b, n)
	}
	return b
}()

func newSeries(created int64, explicit bool, size int) *series {
	if explicit {
		return &series{created: created, exact: histogram.NewExplicit(durationBounds)}
	}
	return &series{created: created, exp: histogram.NewExponential(size)}
}

func (s *series) observe(ns int64) {
	if s.exp != nil {
		s.exp.Observe(ns)
	} else {
		s.exact.Observe(ns)
	}
}

func (s *series) merge(o *series) {
	if s.exp != nil {
		s.exp.Merge(o.exp)
	} else {
		s.exact.Merge(o.exact)
	}
}

// remember keeps a span if it is among the slowest of its interval.
func (s *series) remember(ns int64, w *workSpan, interval uint64, limit int) {
	if s.interval != interval {
		s.interval, s.exemplars = interval, s.exemplars[:0]
	}
	at := len(s.exemplars)
	if at == limit {
		if limit == 0 || ns <= s.exemplars[limit-1].ns {
			return
		}
		at--
		s.exemplars = s.exemplars[:at]
	}
	// Sorted, slowest first.
	for at > 0 && s.exemplars[at-1].ns < ns {
		at--
	}
	s.exemplars = slices.Insert(s.exemplars, at, exemplar{ns: ns, end: w.end, trace: w.trace, span: w.id})
}

// sizes is a histogram of the sizes of copies of one kind.
type sizes struct {
	kind    string
	created int64
	bytes   *histogram.Explicit
}

// maxKinds bounds the kinds of copies; CUDA knows eleven.
const maxKinds = 32

// usage is the histograms of a service on one device.
type usage struct {
	label  uint32
	queue  [numTimed]*series
	gaps   [numGaps]*series
	copies []*sizes
	other  *series // kernels without a histogram of their own
}
