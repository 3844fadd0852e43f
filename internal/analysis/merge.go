// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"maps"
	"slices"
)

// merge adds the tally of the interval that follows. Its marks begin with this interval. The result is
// what one sweep over both intervals gives. With more names than their limit, others are "_other".
func (t *tally) merge(o *tally) {
	begin := mark{set: true, sums: t.sums, pageable: t.pageable}
	for i := range o.active {
		o.active[i] = o.active[i].shift(&begin)
		o.list.active[i] = o.list.active[i].shift(&begin)
	}
	if !t.active[0].set {
		t.active[0] = o.active[0]
	}
	if o.active[1].set {
		t.active[1] = o.active[1]
	}
	if o.list.first {
		// The examples before the first step are those of this interval, and of o until the step.
		for c := range o.early {
			t.gaps[c] = mergeGaps(t.gaps[c], o.early[c], Cause(c))
		}
		t.firstStep()
	}
	for c := range o.gaps {
		t.gaps[c] = mergeGaps(t.gaps[c], o.gaps[c], Cause(c))
	}
	for i := range o.longest {
		t.totals[i] += o.totals[i]
		if o.longest[i].ns > t.longest[i].ns {
			t.longest[i] = o.longest[i]
		}
	}
	t.sums = t.sums.plus(&o.sums)
	t.pageable += o.pageable
	t.kernels += o.kernels
	t.kernelNs += o.kernelNs
	t.queue.merge(o.queue)
	t.callTimes.merge(o.callTimes)
	t.intervals.merge(o.intervals)
	for _, key := range slices.Sorted(maps.Keys(o.pairs)) {
		x := o.pairs[key]
		if p := t.pair(key, x.names[0], x.names[1]); p != nil {
			p.add(x)
		}
	}
	t.hostNames.merge(&o.hostNames)
	t.hostLines.merge(&o.hostLines)
	t.syncNames.merge(&o.syncNames)
	for shape, x := range o.small {
		if x == nil {
			continue
		}
		if t.small == nil {
			t.small = map[uint32]*SmallKernel{}
		}
		s := t.small[shape]
		if s == nil {
			if len(t.small) < maxShapes {
				t.small[shape] = x
			}
			continue
		}
		s.add(x)
	}
	if o.groups != nil {
		if t.groups == nil {
			t.groups = newGroups()
		}
		t.groups.merge(o.groups, len(t.list.list), len(o.list.list)+1) // with the open one
	}
	t.list.merge(&o.list)
}

// mergeGaps returns the longest of two lists, of equal ones the earlier.
func mergeGaps(a, b []Gap, c Cause) []Gap {
	if len(b) == 0 {
		return a
	}
	all := append(slices.Clone(a), b...)
	slices.SortStableFunc(all, func(x, y Gap) int { return cmp.Compare(y.Idle[c], x.Idle[c]) })
	return all[:min(len(all), gapsPerCause)]
}

func (s *sums) merge(o *sums) {
	for _, name := range slices.Sorted(maps.Keys(o.all)) {
		x := o.all[name]
		y := s.of(name)
		y.Ns += x.Ns
		y.Count += x.Count
	}
}

func (l *stepList) merge(o *stepList) {
	if o.first {
		l.first, l.active[0] = true, o.active[0]
	}
	if o.active[1].set {
		l.active[1] = o.active[1]
	}
	full := len(l.list) >= maxSteps
	offset := len(l.list)
	n := min(len(o.list), maxSteps-offset)
	for i := range o.list[:n] {
		o.list[i].Number += int64(offset)
	}
	if cap(l.list)-offset < n {
		l.list = slices.Grow(l.list, offset+n) // doubles it, so that steps of many parts are copied once
	}
	l.list = append(l.list, o.list[:n]...)
	l.more = l.more || o.more || n < len(o.list)
	slices.Sort(o.longest) // a candidate that comes first wins
	for _, i := range o.longest {
		if i < n {
			l.candidate(offset + i)
		}
	}
	if !full {
		for _, x := range o.totals {
			l.totals.add(x.name, x.ns)
		}
	}
}
