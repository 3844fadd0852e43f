// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

// MaxRanks is the largest number of sessions of one analysis.
const MaxRanks = 256

// Options are what to analyse. The zero value is everything, without a deadline.
type Options struct {
	// Limit is the number of collectives in the result; 0 means 1,000.
	Limit int
	// Deadline bounds reading: what is read until then is analysed.
	Deadline time.Time
}

// lateShare is the share of the wall time from which the delays of a rank are a finding.
const lateShare = 0.01

// Run analyses the sessions of one run. It returns errors of the sources and those of ctx.
func Run(ctx context.Context, inputs []Input, o Options) (*Result, error) {
	if len(inputs) > MaxRanks {
		return nil, fmt.Errorf("%d sessions are more than %d", len(inputs), MaxRanks)
	}
	inputs = slices.Clone(inputs)
	slices.SortStableFunc(inputs, func(a, b Input) int {
		return cmp.Or(cmp.Compare(uint(a.Rank), uint(b.Rank)), cmp.Compare(a.Session, b.Session)) // unknown ones last
	})
	a := &run{result: &Result{Complete: true, Ranks: []Rank{}, Groups: []Group{}, Collectives: []Together{}, Findings: []Finding{}, Problems: []string{}}}
	for i := range inputs {
		deadline := o.Deadline
		if !deadline.IsZero() { // the rest is for the other sessions
			deadline = time.Now().Add(time.Until(deadline) / time.Duration(len(inputs)-i))
		}
		r, err := collect(ctx, inputs[i], maxCollectives/len(inputs), deadline)
		if err != nil {
			return nil, err
		}
		if n := len(a.ranks) - 1; n >= 0 && r.Rank >= 0 && a.ranks[n].Rank == r.Rank {
			older := r
			if r.baseNs > a.ranks[n].baseNs {
				older, a.ranks[n] = a.ranks[n], r
			}
			a.problem("Session %s states rank %d too and is older. It is left out.", older.Session, older.Rank)
			continue
		}
		a.ranks = append(a.ranks, r)
	}
	for _, r := range a.ranks {
		a.add(r)
	}
	// Without some of its collectives, the others of a session would be paired with the wrong ones.
	if slices.ContainsFunc(a.ranks, func(r *recorded) bool { return r.missing != nil }) {
		a.problem("The ranks are not compared, because collectives can be missing. Record a shorter time with all spans.")
		return a.result, nil
	}
	a.join()
	a.align()
	a.judge()
	a.bandwidth()
	if err := a.causes(ctx, o.Deadline); err != nil {
		return nil, err
	}
	a.finish(o)
	return a.result, nil
}

// run is one analysis.
type run struct {
	result *Result
	ranks  []*recorded
	groups []*group
	clocks *clocks
	events []event
}

// group is the collectives of a communicator.
type group struct {
	members  []int
	lanes    map[int]int64 // by rank
	partners map[int][]int // by rank, for the collectives of members[0]
}

// event is one collective of several ranks. The parts are of ranks in ascending order.
type event struct {
	group    int
	complete bool
	parts    []member
	late     *Late
	// previous is the index of the event of the group before it, in which the same ranks take part; -1
	// if there is none.
	previous int
	enterNs  int64 // of the last one, aligned

	bytes          int64 // 0 if unknown
	algorithm, bus float64
}

type member struct {
	rank         int
	at           *Collective
	enter, leave int64 // aligned
}

func (a *run) problem(format string, args ...any) {
	a.result.Problems = append(a.result.Problems, fmt.Sprintf(format, args...))
}

func (a *run) name(i int) string { return fmt.Sprintf("rank %d", a.result.Ranks[i].Rank) }

func (a *run) add(r *recorded) {
	rank := r.Rank
	if rank < 0 { // these are the last ones
		if n := len(a.result.Ranks); n > 0 {
			rank = a.result.Ranks[n-1].Rank + 1
		} else {
			rank = 0
		}
		a.problem("Session %s does not state its rank. It is called rank %d here.", r.Session, rank)
	}
	x := Rank{Rank: rank, Session: r.Session, Service: r.Service, Host: r.Host, Base: r.baseNs, Collectives: r.count}
	x.CommunicationNs, x.OverlappedNs = r.totalNs, r.overlappedNs
	x.ExposedNs = r.totalNs - r.overlappedNs
	x.Missing = r.missing
	a.result.Ranks = append(a.result.Ranks, x)
	a.result.Size = max(a.result.Size, r.Size)
	if !r.complete {
		a.result.Complete = false
		a.problem("Session %s was read in part only, up to %s after its start.", r.Session, analysis.Duration(r.toNs-r.baseNs))
	}
	if r.moreScopes {
		a.result.Complete = false
		a.problem("Session %s has more than %d scopes. Later ones are not searched for collectives of the host.", r.Session, maxScopes)
	}
	if r.devices > 1 {
		a.problem("Session %s has collectives on %d devices. Those of the device with the most count.", r.Session, r.devices)
	}
	switch {
	case r.missing != nil:
		a.problem("Session %s: %s The times of its communication are too small, except the exposed one, which can be too large.", r.Session, r.missing.Text)
	case r.count == 0:
		a.problem("Session %s has no collectives: no kernel of NCCL, and no scope such as gloo:all_reduce.", r.Session)
	}
}

// join finds the groups and their collectives.
func (a *run) join() {
	if n := len(a.ranks); a.result.Size > n {
		a.problem("The run has %d ranks, and %d are given. One of the others can have been the last.", a.result.Size, n)
	}
	for _, key := range a.keys() {
		a.joinLane(key)
	}
	for g, x := range a.groups {
		a.addEvents(g, x)
	}
}

// keys returns for each stream that ranks have in common its number at each rank. Streams with equal
// numbers belong together. If ranks have different numbers, the n-th streams belong together.
func (a *run) keys() []map[int]int64 {
	streams := make([][]int64, len(a.ranks))
	equal := true
	var first []int64
	for i, r := range a.ranks {
		for lane, list := range r.lanes {
			if slices.ContainsFunc(list, func(c Collective) bool { return c.Kind.common() }) {
				streams[i] = append(streams[i], lane)
			}
		}
		slices.Sort(streams[i])
		if len(streams[i]) == 0 {
			continue
		}
		if first == nil {
			first = streams[i]
		}
		equal = equal && slices.Equal(first, streams[i])
	}
	keys := map[int64]map[int]int64{}
	for i, list := range streams {
		for n, lane := range list {
			key := int64(n)
			if equal || lane < 0 {
				key = lane
			}
			if keys[key] == nil {
				keys[key] = map[int]int64{}
			}
			keys[key][i] = lane
		}
	}
	if !equal {
		a.problem("The ranks use streams with different numbers. Their n-th streams are compared.")
	}
	var list []map[int]int64
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		list = append(list, keys[key])
	}
	return list
}

func (a *run) sequence(rank int, lane int64) []Collective {
	return slices.DeleteFunc(slices.Clone(a.ranks[rank].lanes[lane]), func(c Collective) bool { return !c.Kind.common() })
}

// joinLane divides the ranks of a stream into groups. The rank with the most collectives is compared
// with each other one; those whose collectives do not fit form further groups.
func (a *run) joinLane(lanes map[int]int64) {
	todo := slices.Sorted(maps.Keys(lanes))
	sequences := map[int][]Collective{}
	for _, r := range todo {
		sequences[r] = a.sequence(r, lanes[r])
		a.ranks[r].lanes[lanes[r]] = sequences[r]
	}
	slices.SortStableFunc(todo, func(x, y int) int { return cmp.Compare(len(sequences[y]), len(sequences[x])) })
	var alone []string
	for len(todo) > 0 {
		first := todo[0]
		g := &group{members: []int{first}, lanes: map[int]int64{first: lanes[first]}, partners: map[int][]int{}}
		var uncertain []string
		rest := todo[:0:0]
		for _, r := range todo[1:] {
			m := pair(sequences[first], sequences[r])
			if m.pairs == 0 || m.together < minTogether {
				rest = append(rest, r)
				continue
			}
			g.members = append(g.members, r)
			g.lanes[r], g.partners[r] = lanes[r], m.partner
			if m.uncertain != "" && !slices.Contains(uncertain, m.uncertain) {
				uncertain = append(uncertain, m.uncertain)
			}
		}
		todo = rest
		if len(g.members) == 1 {
			alone = append(alone, a.name(first))
			continue
		}
		slices.Sort(g.members[1:])
		out := Group{Ranks: slices.Sorted(slices.Values(g.members)), Uncertain: strings.Join(uncertain, "; ")}
		if lane := lanes[out.Ranks[0]]; lane >= 0 {
			out.Stream = &lane
		}
		a.groups = append(a.groups, g)
		a.result.Groups = append(a.result.Groups, out)
	}
	if len(alone) > 0 && len(a.ranks) > 1 {
		a.problem("The collectives of %s match those of no other rank.", strings.Join(alone, ", "))
	}
}

func (a *run) addEvents(n int, g *group) {
	first := g.members[0]
	list := a.ranks[first].lanes[g.lanes[first]]
	out := &a.result.Groups[n]
	for i := range list {
		e := event{group: n, parts: []member{{rank: first, at: &list[i]}}, previous: -1}
		for _, r := range g.members[1:] {
			if j := g.partners[r][i]; j >= 0 {
				e.parts = append(e.parts, member{rank: r, at: &a.ranks[r].lanes[g.lanes[r]][j]})
			}
		}
		if len(e.parts) < 2 {
			continue
		}
		slices.SortFunc(e.parts, func(x, y member) int { return cmp.Compare(x.rank, y.rank) })
		e.complete = len(e.parts) == len(g.members)
		for _, p := range e.parts {
			a.result.Ranks[p.rank].Matched++
		}
		out.Collectives++
		if e.complete {
			out.Complete++
		}
		a.events = append(a.events, e)
	}
}

// align aligns the clocks by the collectives that synchronise.
func (a *run) align() {
	var meetings []meeting
	for i := range a.events {
		e := &a.events[i]
		if !e.parts[0].at.Kind.synchronises() {
			continue
		}
		m := meeting{}
		for _, p := range e.parts {
			m.parts = append(m.parts, visit{p.rank, p.at.StartNs, p.at.EndNs})
		}
		meetings = append(meetings, m)
	}
	hosts := make([]string, len(a.ranks))
	for i, r := range a.ranks {
		if r.HostID != "" && r.Host != "" {
			hosts[i] = r.HostID + "\x00" + r.Host
		}
	}
	a.clocks = align(len(a.ranks), meetings, hosts, a.name)
	a.result.Problems = append(a.result.Problems, a.clocks.problems...)
	for i := range a.events {
		for k := range a.events[i].parts {
			p := &a.events[i].parts[k]
			p.enter, p.leave = a.clocks.aligned(p.rank, p.at.StartNs), a.clocks.aligned(p.rank, p.at.EndNs)
			a.events[i].enterNs = max(a.events[i].enterNs, p.enter)
		}
	}
	slices.SortStableFunc(a.events, func(x, y event) int { return cmp.Compare(x.enterNs, y.enterNs) })
	if len(a.events) > 0 {
		first, last := a.events[0].enterNs, int64(0)
		for i := range a.events {
			for _, p := range a.events[i].parts {
				first, last = min(first, p.enter), max(last, p.leave)
			}
		}
		a.result.Base, a.result.WallNs = first, last-first
	}
	for i := range a.result.Ranks {
		r := &a.result.Ranks[i]
		r.Reference = a.result.Ranks[a.clocks.root[i]].Rank
		if len(a.clocks.knots) == 0 || a.clocks.root[i] == i && i > 0 {
			continue
		}
		middle := a.result.Base + a.result.WallNs/2
		ns, low, high, ok := a.clocks.offset(i, middle)
		r.Offset = &Offset{Ns: ns, PPM: a.clocks.lines[i].rate * 1e6}
		if ok {
			r.Offset.MinNs, r.Offset.MaxNs = &low, &high
		}
	}
}

// judge finds for each collective who came last.
func (a *run) judge() {
	previous := map[int]int{}
	for i := range a.events {
		e := &a.events[i]
		if p, ok := previous[e.group]; ok {
			e.previous = p
		}
		if !e.complete || !e.parts[0].at.Kind.synchronises() || slices.ContainsFunc(e.parts, func(p member) bool { return a.clocks.root[p.rank] != a.clocks.root[e.parts[0].rank] }) {
			continue
		}
		previous[e.group] = i
		last := slices.MaxFunc(e.parts, func(x, y member) int { return cmp.Compare(x.enter, y.enter) })
		late := &Late{Rank: last.rank, Ns: unbounded}
		low, high, known := unbounded, unbounded, true
		for _, p := range e.parts {
			wait := last.enter - p.enter
			late.SpreadNs = max(late.SpreadNs, wait)
			a.result.Ranks[p.rank].WaitedNs += min(wait, p.at.EndNs-p.at.StartNs)
			if p.rank == last.rank {
				continue
			}
			late.Ns = min(late.Ns, wait)
			l, h, ok := a.clocks.between(last.rank, last.at.StartNs, p.rank, p.at.StartNs)
			known = known && ok
			low, high = min(low, l), min(high, h)
		}
		r := &a.result.Ranks[last.rank]
		if known {
			late.MinNs, late.MaxNs = &low, &high
			late.Ns = max(0, min(max(late.Ns, low), high))
			if low > 0 {
				r.Proven++
				r.LateAtLeastNs += low
			}
		}
		r.Last++
		r.LateNs += late.Ns
		e.late = late
	}
}

// finish writes the collectives and the findings.
func (a *run) finish(o Options) {
	limit := o.Limit
	if limit <= 0 {
		limit = 1000
	}
	order := make([]int, len(a.events))
	for i := range order {
		order[i] = i
	}
	lateness := func(i int) int64 {
		if l := a.events[i].late; l != nil {
			return l.Ns
		}
		return -1
	}
	if len(order) > limit {
		slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(lateness(y), lateness(x)) })
		order = order[:limit]
		slices.Sort(order)
	}
	a.result.Total = len(a.events)
	base := a.result.Base
	for _, i := range order {
		e := &a.events[i]
		t := Together{Group: e.group, Kind: e.parts[0].at.Kind, Name: e.parts[0].at.Name, Complete: e.complete, Late: e.late, Bytes: e.bytes, Algorithm: e.algorithm, Bus: e.bus}
		for _, p := range e.parts {
			x := Part{
				Rank: p.rank, Span: SpanID(p.at.Span), Start: p.at.StartNs - a.ranks[p.rank].baseNs, Enter: p.enter - base, Leave: p.leave - base,
				OverlappedNs: p.at.OverlappedNs,
			}
			if a.groups[e.group].lanes[p.rank] != hostLane {
				x.ExposedNs = p.at.EndNs - p.at.StartNs - p.at.OverlappedNs
			}
			if e.late != nil {
				x.WaitedNs = min(e.enterNs-p.enter, p.at.EndNs-p.at.StartNs)
			}
			t.Parts = append(t.Parts, x)
		}
		a.result.Collectives = append(a.result.Collectives, t)
	}
	a.findings()
}

// findings describes the ranks that the others waited for, the largest delay first.
func (a *run) findings() {
	judged := 0
	for i := range a.result.Ranks {
		judged += a.result.Ranks[i].Last
	}
	for _, i := range a.stragglers() {
		r := &a.result.Ranks[i]
		text := fmt.Sprintf("Rank %d came last in %d of %d collectives, by %s in total", r.Rank, r.Last, judged, analysis.Duration(r.LateNs))
		switch r.Proven {
		case r.Last:
			text += fmt.Sprintf(" (at least %s).", analysis.Duration(r.LateAtLeastNs))
		case 0:
			text += ". The error of the clocks is larger than each delay, so this is an estimate from the times at which ranks leave."
		default:
			text += fmt.Sprintf(". It is certain for %d of them, with at least %s.", r.Proven, analysis.Duration(r.LateAtLeastNs))
		}
		if r.Cause != nil {
			text += " " + r.Cause.Text
		}
		a.result.Findings = append(a.result.Findings, Finding{
			Rank: i, Text: text, GainNs: r.LateNs, Formula: "sum of the time from the last but one rank to this rank over the collectives in which it came last",
		})
	}
}

// stragglers returns the ranks whose delays are a finding, the largest first.
func (a *run) stragglers() (list []int) {
	for i := range a.result.Ranks {
		if late := a.result.Ranks[i].LateNs; late > 0 && float64(late) >= lateShare*float64(a.result.WallNs) {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(x, y int) int { return cmp.Compare(a.result.Ranks[y].LateNs, a.result.Ranks[x].LateNs) })
	return list
}
