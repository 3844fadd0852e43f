// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// LaunchRate says how fast the host launched kernels and graphs on a device. Calls that took more than
// [SlowLaunchNs] do not count, and intervals of more than [LaunchGapNs]. The values are middles of buckets of the
// store, within 3.2 %, and -1 if they are unknown.
type LaunchRate struct {
	// Calls is the number of launches with known times.
	Calls int64 `json:"calls"`
	// CallP50Ns is the median duration of the calls. FloorNs is their 10th percentile: a host that does nothing
	// but launch needs at least this time for each kernel. It includes the cost of recording.
	CallP50Ns int64 `json:"call_p50_ns"`
	FloorNs   int64 `json:"call_p10_ns"`
	// IntervalP50Ns is the median time between the starts of launches, in the order in which their kernels
	// started.
	IntervalP50Ns int64 `json:"interval_p50_ns"`
}

func (t *tally) launchRate() LaunchRate {
	return LaunchRate{t.callTimes.count(), t.callTimes.quantile(50), t.callTimes.quantile(10), t.intervals.quantile(50)}
}

// addLaunch adds the launch of a kernel or graph.
func (d *device) addLaunch(w *work) {
	if in := w.launchEnd - w.launchStart; in <= SlowLaunchNs {
		d.callTimes.add(in)
	}
	if since := w.launchStart - d.launchedAt; since > 0 && since <= LaunchGapNs {
		d.intervals.add(since)
	}
	d.launchedAt = w.launchStart
}

// maxPairs bounds the pairs of kernels of an interval. Further ones are left out.
const maxPairs = 2000

// pair is two kernels that follow each other in a stream, and between which the device waited for the launch.
type pair struct {
	names [2]string
	count int64
	// idleNs is the idle time between them by causes launch and latency, workNs the sum of the durations of both.
	idleNs, workNs int64
	ref            Ref // the second kernel, after the longest idle time
	refNs          int64
}

func (p *pair) add(o *pair) {
	p.count += o.count
	p.idleNs += o.idleNs
	p.workNs += o.workNs
	if o.refNs > p.refNs {
		p.ref, p.refNs = o.ref, o.refNs
	}
}

// pairKey returns the key of a pair from the hashes of the names.
func pairKey(before, after uint64) uint64 { return before*0x9e3779b97f4a7c15 + after }

// pair returns the pair with a key, or nil if there are too many.
func (t *tally) pair(key uint64, before, after string) *pair {
	p := t.pairs[key]
	if p == nil && len(t.pairs) < maxPairs {
		if t.pairs == nil {
			t.pairs = map[uint64]*pair{}
		}
		p = &pair{names: [2]string{before, after}}
		t.pairs[key] = p
	}
	return p
}

// addPair adds a kernel that ended idle time, and the one before if it is in the same step.
func (d *device) addPair(w *work, idle *CauseSums) {
	ns, last := idle[Launch]+idle[Latency], &d.last
	if ns == 0 || !w.kernel || !d.any || !last.kernel || last.lane != w.lane || w.class != classCompute || last.class != classCompute || d.steps.changes(w) {
		return
	}
	if d.steps.begun && d.steps.open == nil {
		return // after the last step
	}
	if p := d.pair(pairKey(last.name, w.name), last.ref.Name, w.ref.Name); p != nil {
		p.add(&pair{count: 1, idleNs: ns, workNs: d.lastEnd - last.start + w.end - w.start, ref: w.ref, refNs: ns})
	}
	if d.owned != nil {
		d.owned.pair(w, last.ref.Name, idle)
	}
}

// sortedPairs returns the pairs whose kernels are shorter than an interval on average, the most idle time first.
func (t *tally) sortedPairs(interval int64) []pair {
	var list []pair
	for _, p := range t.pairs {
		if p.workNs < 2*p.count*interval {
			list = append(list, *p)
		}
	}
	slices.SortFunc(list, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.idleNs, a.idleNs), strings.Compare(a.names[0], b.names[0]), strings.Compare(a.names[1], b.names[1]))
	})
	return list
}

func (c *codec) pairs(all *map[uint64]*pair) {
	values := func(p *pair) {
		c.ints(&p.count, &p.idleNs, &p.workNs, &p.refNs)
		c.ref(&p.ref)
	}
	if !c.reads() {
		list := slices.SortedFunc(maps.Values(*all), func(a, b *pair) int {
			return cmp.Or(strings.Compare(a.names[0], b.names[0]), strings.Compare(a.names[1], b.names[1]))
		})
		elements(c, &list, func(p **pair) {
			c.text(&(*p).names[0])
			c.text(&(*p).names[1])
			values(*p)
		})
		return
	}
	var list []pair
	*all = nil
	elements(c, &list, func(p *pair) {
		before := c.hashed(&p.names[0])
		key := pairKey(before, c.hashed(&p.names[1]))
		values(p)
		if *all == nil {
			*all = make(map[uint64]*pair, min(len(list), maxPairs))
		}
		if to := (*all)[key]; to != nil {
			to.add(p)
		} else if len(*all) < maxPairs {
			(*all)[key] = p
		}
	})
}

const (
	// minRepeated is the smallest number of steps with the same operations for a graph, minRepeatedShare their
	// share of the steps after the first.
	minRepeated      = 5
	minRepeatedShare = 0.9
)

// repeated is the steps after the first with the same operations. Such steps can be one CUDA graph.
type repeated struct {
	steps, of  int64
	operations int64 // of each
	// idleNs is the idle time by launch, latency and slow_launch beyond one launch for each step. blockedNs is the
	// idle time by calls that a graph cannot contain: synchronisation, allocation and copies of pageable memory.
	idleNs, blockedNs int64
	refs              []Ref // the first operations of those with the most idle time
}

// repeated returns the steps with the most frequent operations, none if these are too few.
func (l *stepList) repeated(floorNs int64) (out repeated) {
	if !l.found() {
		return out
	}
	counts := map[uint64]int64{}
	var shapes uint64
	for i := range l.list[1:] {
		x := l.list[1+i].shapes
		if counts[x]++; counts[x] > counts[shapes] {
			shapes = x
		}
	}
	out.of = int64(len(l.list)) - 1
	if out.steps = counts[shapes]; out.steps < minRepeated || float64(out.steps) < minRepeatedShare*float64(out.of) {
		return repeated{}
	}
	type saving struct {
		ns  int64
		ref Ref
	}
	var most []saving
	for i := range l.list[1:] {
		s := &l.list[1+i]
		if s.shapes != shapes {
			continue
		}
		ns := max(0, s.Idle[Launch]+s.Idle[Latency]+s.Idle[SlowLaunch]-floorNs)
		out.operations, s.GraphNs = s.Operations, ns
		out.idleNs += ns
		out.blockedNs += s.Idle[Sync] + s.Idle[Allocator] + s.Idle[CopyCall]
		if most = append(most, saving{ns, s.First}); len(most) > 2*maxEvidence {
			slices.SortStableFunc(most, func(a, b saving) int { return cmp.Compare(b.ns, a.ns) })
			most = most[:maxEvidence]
		}
	}
	slices.SortStableFunc(most, func(a, b saving) int { return cmp.Compare(b.ns, a.ns) })
	for _, x := range most[:min(len(most), maxEvidence)] {
		out.refs = append(out.refs, x.ref)
	}
	return out
}
