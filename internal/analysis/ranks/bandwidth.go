// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
)

// linkPeaks is the bandwidth of all NVLinks of a device in one direction, in bytes per second, by the name
// of the device. It is half of the totals of 300, 600, 900 and 1,800 GB/s that NVIDIA states for the
// generations (https://www.nvidia.com/en-us/data-center/nvlink/). Names are those of SXM modules. Other
// boards, parts of a device (MIG) and links between hosts have none. Nor has the V100-SXM2: without a switch,
// its devices use all links only if eight take part (https://github.com/NVIDIA/nccl/issues/258).
var linkPeaks = map[string]float64{
	"Tesla V100-SXM3-32GB":  150e9,
	"NVIDIA A100-SXM4-40GB": 300e9,
	"NVIDIA A100-SXM4-80GB": 300e9,
	"NVIDIA H100 80GB HBM3": 450e9,
	"NVIDIA H200":           450e9,
	"NVIDIA B200":           900e9,
}

const (
	// largeNs is the time at the peak from which a collective is bound by the link. NCCL needs up to some
	// 25 µs for a small one within a host, which is then a tenth at most.
	largeNs = 250_000
	// lowShare is the share of the peak below which large collectives are a finding. The protocol leaves about 80 %:
	// nccl-tests reach 120 of 150 GB/s (https://github.com/NVIDIA/nccl/issues/258), 230 of 300
	// (https://github.com/NVIDIA/nccl-tests/issues/149) and 370 of 450. An all-reduce that the switch adds up
	// reaches 480 of 450 (https://github.com/NVIDIA/nccl-tests/issues/212).
	lowShare = 0.5
	// unswitched is the largest number of devices on boards without a switch. There, two devices share a third
	// of their links, 100 GB/s of an A100 (https://github.com/NVIDIA/nccl-tests/issues/331). Four share all.
	unswitched = 4
)

// perRank says that NCCL states the part of one rank, of a total that is as many times as large as there
// are ranks: sendcount, recvcount and count of src/collectives.cc.
func (k Kind) perRank() bool { return k == AllGather || k == ReduceScatter || k == AllToAll }

// busFactor is the bus bandwidth divided by the algorithm bandwidth, for the total size, 0 if it is not
// defined: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
func (k Kind) busFactor(ranks int) float64 {
	n := float64(ranks)
	switch k {
	case AllReduce:
		return 2 * (n - 1) / n
	case AllGather, ReduceScatter, AllToAll:
		return (n - 1) / n
	case Broadcast, Reduce:
		return 1
	case Barrier, SendRecv, Other, numKinds:
	}
	return 0
}

// message is what one range of NCCL states.
type message struct {
	kind  Kind
	bytes int64
}

// sizes finds the sizes of collectives by the ranges that launch their kernels. The range of a collective
// states its size. Between ncclGroupStart and ncclGroupEnd it launches nothing, and the last
// ncclGroupEnd launches all. Then the sizes add up, if they are of one kind and it is one kernel.
type sizes struct {
	kernels  map[store.SpanID]int // kernels of NCCL that a range launched
	messages map[store.SpanID]message
}

func newSizes(scopes []analysis.Scope) *sizes {
	s := &sizes{kernels: map[store.SpanID]int{}, messages: map[store.SpanID]message{}}
	for i := range scopes {
		if x := &scopes[i]; x.CollectiveBytes > 0 {
			s.messages[x.Span] = message{kindOf(x.Name), x.CollectiveBytes}
		}
	}
	return s
}

// pending is the open calls of ncclGroupStart within one range.
type pending struct {
	begin   int // the index of the first ncclGroupStart
	depth   int
	message message
	mixed   bool // several kinds, or calls of several threads
}

// resolve finds the sizes of groups. The scopes are by start.
func (s *sizes) resolve(scopes []analysis.Scope) {
	if len(s.messages) == 0 {
		return
	}
	groups := map[store.SpanID]*pending{} // by enclosing range
	for i := range scopes {
		x := &scopes[i]
		g := groups[x.Parent]
		switch {
		case x.Name == "ncclGroupStart":
			if g == nil {
				g = &pending{begin: i}
				groups[x.Parent] = g
			}
			g.depth++
		case g == nil:
		case x.Name == "ncclGroupEnd":
			g.depth--
			switch {
			case g.depth > 0: // an inner one launches nothing
				g.mixed = g.mixed || s.kernels[x.Span] > 0
				continue
			case !g.mixed && g.message.bytes > 0 && uninterrupted(scopes, g.begin, i):
				s.messages[x.Span] = g.message
			}
			delete(groups, x.Parent)
		case x.CollectiveBytes > 0 && s.kernels[x.Span] == 0:
			kind := kindOf(x.Name)
			g.mixed = g.mixed || g.message.bytes > 0 && g.message.kind != kind
			g.message = message{kind, g.message.bytes + x.CollectiveBytes}
		}
	}
}

// uninterrupted says that no range is missing between two scopes, such as one above the recorder's limit.
// The recorder numbers the ranges of all threads.
func uninterrupted(scopes []analysis.Scope, first, last int) bool {
	return scopes[last].Instance-scopes[first].Instance == int64(last-first)
}

// of returns the size of a collective, 0 if it is unknown.
func (s *sizes) of(c *Collective) int64 {
	if m := s.messages[c.scope]; m.kind == c.Kind && s.kernels[c.scope] == 1 {
		return m.bytes
	}
	return 0
}

// bandwidth finds the size and the bandwidths of each collective of all ranks. If ranks of the run are not
// given, they can be part of it, and the size of the whole is unknown.
func (a *run) bandwidth() {
	if a.result.Size > len(a.ranks) {
		return
	}
	speeds := map[speedKey][]speed{}
	for i := range a.events {
		e := &a.events[i]
		first := e.parts[0].at
		n := len(e.parts)
		factor := first.Kind.busFactor(n)
		if !e.complete || factor == 0 || first.Bytes == 0 {
			continue
		}
		leave := int64(0)
		equal := true
		for _, p := range e.parts {
			leave = max(leave, p.leave)
			equal = equal && p.at.Bytes == first.Bytes && a.clocks.root[p.rank] == a.clocks.root[e.parts[0].rank]
		}
		if !equal || leave <= e.enterNs {
			continue
		}
		e.bytes = first.Bytes
		if first.Kind.perRank() {
			e.bytes *= int64(n)
		}
		e.algorithm = float64(e.bytes) / float64(leave-e.enterNs) * 1e9
		e.bus = e.algorithm * factor
		key := speedKey{e.group, first.Kind}
		speeds[key] = append(speeds[key], speed{e.bytes, leave - e.enterNs, e.bus})
	}
	for g := range a.groups {
		out := &a.result.Groups[g]
		out.Peak = a.peak(g)
		for kind := AllReduce; kind < numKinds; kind++ {
			if list := speeds[speedKey{g, kind}]; len(list) > 0 {
				out.add(kind, list, kind.busFactor(len(out.Ranks)))
			}
		}
	}
}

type speedKey struct {
	group int
	kind  Kind
}

// speed is one collective.
type speed struct {
	bytes, ns int64
	bus       float64
}

// add adds the bandwidths of a kind, and a finding if the large ones are far below the peak.
func (g *Group) add(kind Kind, list []speed, factor float64) {
	slices.SortFunc(list, func(x, y speed) int { return cmp.Compare(x.bus, y.bus) })
	b := Bandwidth{Kind: kind, Collectives: len(list), Best: list[len(list)-1].bus, Median: medianBus(list)}
	for _, x := range list {
		b.Bytes += x.bytes
	}
	g.Bandwidths = append(g.Bandwidths, b)
	if g.Peak == 0 {
		return
	}
	ideal := func(x speed) float64 { return float64(x.bytes) * factor / g.Peak * 1e9 }
	list = slices.DeleteFunc(list, func(x speed) bool { return ideal(x) < largeNs })
	if len(list) == 0 {
		return
	}
	if low := medianBus(list); low < lowShare*g.Peak {
		lost := 0.0
		for _, x := range list {
			lost += float64(x.ns) - ideal(x)
		}
		g.Findings = append(g.Findings, fmt.Sprintf("The median bus bandwidth of %d large collectives (%s) is %.0f GB/s: %.0f %% of the link's %.0f GB/s. At the peak they would take %s less.",
			len(list), kind, low/1e9, 100*low/g.Peak, g.Peak/1e9, analysis.Duration(int64(lost))))
	}
}

// medianBus returns the bandwidth at or below which half of the bytes moved. The list is by bandwidth.
func medianBus(list []speed) float64 {
	var total, sum float64
	for _, x := range list {
		total += float64(x.bytes)
	}
	for _, x := range list {
		if sum += float64(x.bytes); sum >= total/2 {
			return x.bus
		}
	}
	return 0
}

// peak returns the bandwidth of the link between the ranks of a group, 0 if it is unknown. The ranks must
// be on one host, on devices of their own, and use all links of each.
func (a *run) peak(g int) float64 {
	members := a.groups[g].members
	first := a.ranks[members[0]]
	beside := func(r *recorded) bool { return r.Host != "" && r.Host == first.Host && r.HostID == first.HostID }
	devices := map[string]bool{}
	for _, m := range members {
		r := a.ranks[m]
		if !beside(r) || r.model != first.model || devices[r.device] {
			return 0
		}
		devices[r.device] = true
	}
	onHost := 0
	for _, r := range a.ranks {
		if beside(r) {
			onHost++
		}
	}
	if len(members) < unswitched && onHost <= unswitched {
		return 0
	}
	return linkPeaks[first.model]
}
