// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"cmp"
	"container/heap"
	"slices"
)

// kernels are the kernels of a service. The first ones are members and have histograms of their own.
// The others are counted together. The Space-Saving algorithm tracks those of them that take the most
// time (Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data
// streams, 2005). Its table is bounded: for each name it has an upper bound of the time, and how much of
// that may belong to another name. A candidate that certainly took more time replaces a member.
type kernels struct {
	limit   int
	members []*member
	byName  map[string]*member

	candidates candidateHeap
	byCand     map[string]*candidate
}

// member is a kernel with histograms of its own, one per device.
type member struct {
	name string
	// score is its time, including what it took as a candidate, by which members are compared.
	score  int64
	series []*kernelSeries // by label, rising
}

type kernelSeries struct {
	label uint32
	*series
}

// of returns the member's histogram on a device, nil if there is none.
func (m *member) of(label uint32) *kernelSeries {
	if i, ok := m.find(label); ok {
		return m.series[i]
	}
	return nil
}

func (m *member) find(label uint32) (int, bool) {
	return slices.BinarySearchFunc(m.series, label, func(s *kernelSeries, l uint32) int { return cmp.Compare(s.label, l) })
}

func (m *member) add(s *kernelSeries) {
	i, _ := m.find(s.label)
	m.series = slices.Insert(m.series, i, s)
}

// candidate is a kernel that may become a member. Its time is between count − err and count.
type candidate struct {
	name       string
	count, err int64
	at         int // in the heap
}

// perMember is how many candidates are tracked for each member: the more there are, the smaller the
// error of each.
const perMember = 2

// swapFactor is the ratio by which a candidate's certain time must exceed that of the smallest member.
// With a smaller one, two kernels of about the same weight would replace each other repeatedly.
const swapFactor = 2

func newKernels(limit int) kernels {
	return kernels{limit: limit, byName: map[string]*member{}, byCand: map[string]*candidate{}}
}

// member returns the member of a name, a new one if there is room, else nil.
func (k *kernels) member(name string) *member {
	m := k.byName[name]
	if m == nil && len(k.members) < k.limit {
		m = &member{name: name}
		k.members = append(k.members, m)
		k.byName[name] = m
	}
	return m
}

// track counts time of a kernel that is no member.
func (k *kernels) track(name string, ns int64) {
	c := k.byCand[name]
	switch {
	case c != nil:
		c.count += ns
		heap.Fix(&k.candidates, c.at)
	case len(k.candidates) < perMember*k.limit:
		c = &candidate{name: name, count: ns}
		k.byCand[name] = c
		heap.Push(&k.candidates, c)
	default:
		c = k.candidates[0]
		delete(k.byCand, c.name)
		c.name, c.err = name, c.count
		c.count += ns
		k.byCand[name] = c
		heap.Fix(&k.candidates, 0)
	}
}

// swap replaces members by candidates that took more than swapFactor times as much, and calls out
// with each member that leaves.
func (k *kernels) swap(out func(*member)) {
	if len(k.candidates) == 0 {
		return
	}
	best := slices.Clone(k.candidates)
	slices.SortFunc(best, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(b.count-b.err, a.count-a.err), cmp.Compare(a.name, b.name))
	})
	least := make([]*member, len(k.members))
	copy(least, k.members)
	slices.SortFunc(least, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.name, b.name))
	})
	for i, m := range least {
		if i == len(best) {
			return
		}
		c := best[i]
		sure := c.count - c.err
		if sure/swapFactor <= m.score {
			return
		}
		heap.Remove(&k.candidates, c.at)
		delete(k.byCand, c.name)
		at := slices.Index(k.members, m)
		delete(k.byName, m.name)
		in := &member{name: c.name, score: sure}
		k.members[at] = in
		k.byName[in.name] = in
		out(m)
		// It goes on as a candidate: with what it is known to have taken it may come back.
		c.name, c.count, c.err = m.name, m.score, 0
		k.byCand[c.name] = c
		heap.Push(&k.candidates, c)
	}
}

// candidateHeap has the least count on top.
type candidateHeap []*candidate

func (h candidateHeap) Len() int { return len(h) }
func (h candidateHeap) Less(i, j int) bool {
	if h[i].count != h[j].count {
		return h[i].count < h[j].count
	}
	return h[i].name < h[j].name // so that the same records always give the same state
}
func (h candidateHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *candidateHeap) Push(x any) {
	c := x.(*candidate)
	c.at = len(*h)
	*h = append(*h, c)
}
func (h *candidateHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}
