// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"maps"
	"slices"
)

const (
	// maxMarkers bounds the kernel names that may begin a step.
	maxMarkers = 10_000
	// minRegular is the share of the periods that must have the usual kernels, and the share of the
	// kernels of a device that must be in them.
	minRegular = 0.75
	// minPeriodKernels is the smallest number of kernels of a step.
	minPeriodKernels = 3
	signatures       = 4
)

// pattern finds the kernel that begins each step of a device without scopes.
//
// A period of a kernel name is what the device runs from one kernel of this name to the next. Its
// signature is the set of its kernels with their numbers, in any order. A name is a candidate if
// its usual signature is that of at least minRegular of its periods, and if these have minRegular of
// the kernels since its first one. Of all candidates the one with the shortest period wins, then the one whose first kernel is the earliest.
// A kernel that runs once per layer is no candidate, because its periods do not cover the rest of the
// step.
type pattern struct {
	kernels int64  // since the start
	hash    uint64 // sum of the hashes of all kernels
	names   map[string]*marker
}

type marker struct {
	name        string
	count       int64
	first       int64 // kernels before the first one
	lastHash    uint64
	lastKernels int64
	signature   [signatures]signature
}

// signature counts periods, as in the algorithm of Misra and Gries: the count is at most the true one,
// and exact if there are few different signatures.
type signature struct {
	hash           uint64
	kernels, count int64
}

func (p *pattern) kernel(name string, hash uint64) {
	m := p.names[name]
	switch {
	case m != nil:
		m.period(p.hash-m.lastHash, p.kernels-m.lastKernels)
		m.count++
		m.lastHash, m.lastKernels = p.hash, p.kernels
	case len(p.names) < maxMarkers:
		if p.names == nil {
			p.names = map[string]*marker{}
		}
		p.names[name] = &marker{name: name, count: 1, first: p.kernels, lastHash: p.hash, lastKernels: p.kernels}
	}
	p.hash += hash
	p.kernels++
}

func (m *marker) period(hash uint64, kernels int64) {
	free := -1
	for i := range m.signature {
		s := &m.signature[i]
		if s.count > 0 && s.hash == hash && s.kernels == kernels {
			s.count++
			return
		}
		if s.count == 0 && free < 0 {
			free = i
		}
	}
	if free >= 0 {
		m.signature[free] = signature{hash, kernels, 1}
		return
	}
	for i := range m.signature {
		m.signature[i].count--
	}
}

// best returns the kernel that begins each step, "" if there is none.
func (p *pattern) best() string {
	var all []*marker
	for _, name := range slices.Sorted(maps.Keys(p.names)) {
		m := p.names[name]
		usual := slices.MaxFunc(m.signature[:], func(a, b signature) int { return cmp.Compare(a.count*a.kernels, b.count*b.kernels) })
		regular := float64(usual.count) >= minRegular*float64(m.count-1)
		if regular && m.count > minSteps && usual.kernels >= minPeriodKernels && usual.count >= minSteps &&
			float64(usual.count*usual.kernels) >= minRegular*float64(p.kernels-m.first) {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return slices.MinFunc(all, func(a, b *marker) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.first, b.first))
	}).name
}
