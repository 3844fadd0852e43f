// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/numbered"
	"github.com/gpuflight/gpuflight/internal/store"
)

const (
	// maxCompared is the number of collectives of a rank whose causes are found, those with the largest
	// delays, and maxCauses the number of ranks.
	maxCompared = 8
	maxCauses   = 8
	// maxOthers is the number of other ranks that a rank is compared with.
	maxOthers = 4
	// moreKernels is the share above the others from which a rank ran more kernels.
	moreKernels = 1.05
	maxEvidence = 5
	// causeTime is how long after the deadline of reading causes are sought.
	causeTime = 5 * time.Second
)

// Kinds of causes that are not those of idle time.
const (
	causeSlower        = "slower_kernels"
	causeMore          = "more_kernels"
	causeCommunication = "communication"
	causeCopy          = "copy"
)

// stretchOf is what a rank did between two collectives.
type stretch struct {
	parts   map[string]int64
	kernels int64
	byName  map[string]kernelSum
	gaps    []analysis.Gap
}

type kernelSum struct {
	ns, count int64
	longest   Ref
}

// causes finds the causes of the ranks that the others waited for.
func (a *run) causes(ctx context.Context, deadline time.Time) error {
	if !deadline.IsZero() {
		deadline = deadline.Add(causeTime)
	}
	for n, i := range a.stragglers() {
		if n == maxCauses {
			break
		}
		if err := a.causeOf(ctx, i, deadline); err != nil {
			return err
		}
	}
	if expired(deadline) {
		a.problem("There was no time to look for the causes of all delays. Select fewer sessions.")
	}
	return nil
}

func expired(deadline time.Time) bool { return !deadline.IsZero() && time.Now().After(deadline) }

func (a *run) causeOf(ctx context.Context, rank int, deadline time.Time) error {
	var late []int
	for i := range a.events {
		if e := &a.events[i]; e.late != nil && e.late.Rank == rank && e.previous >= 0 {
			late = append(late, i)
		}
	}
	slices.SortStableFunc(late, func(x, y int) int { return cmp.Compare(a.events[y].late.Ns, a.events[x].late.Ns) })
	late = late[:min(len(late), maxCompared)]
	if len(late) == 0 {
		return nil
	}
	c := &Cause{Evidence: []Ref{}}
	excess := map[string]int64{}
	own := stretch{byName: map[string]kernelSum{}}
	usual := map[string]int64{} // nanoseconds of kernels by name on the others
	var ownKernels, otherKernels int64
	for _, i := range late {
		if expired(deadline) {
			break
		}
		e := &a.events[i]
		mine, err := a.stretch(ctx, i, rank)
		if err != nil {
			return err
		}
		var others []*stretch
		for _, p := range e.parts {
			if p.rank == rank || len(others) == maxOthers {
				continue
			}
			s, err := a.stretch(ctx, i, p.rank)
			if err != nil {
				return err
			}
			others = append(others, s)
		}
		middleOf := func(get func(*stretch) int64) int64 {
			var list []int64
			for _, s := range others {
				list = append(list, get(s))
			}
			return median(list)
		}
		for part := range mine.parts {
			excess[part] += mine.parts[part] - middleOf(func(s *stretch) int64 { return s.parts[part] })
		}
		ownKernels += mine.kernels
		otherKernels += middleOf(func(s *stretch) int64 { return s.kernels })
		for name, k := range mine.byName {
			sum := own.byName[name]
			sum.ns += k.ns
			sum.count += k.count
			if k.longest.DurationNs > sum.longest.DurationNs {
				sum.longest = k.longest
			}
			own.byName[name] = sum
			usual[name] += middleOf(func(s *stretch) int64 { return s.byName[name].ns })
		}
		own.gaps = append(own.gaps, mine.gaps...)
		c.LateNs += e.late.Ns
		c.Collectives++
	}
	for _, part := range slices.Sorted(maps.Keys(excess)) {
		if excess[part] > c.ExcessNs {
			c.Kind, c.ExcessNs = part, excess[part]
		}
	}
	if c.Kind == "" {
		return nil
	}
	a.describe(c, rank, &own, usual, float64(ownKernels) > moreKernels*float64(otherKernels), ownKernels-otherKernels)
	a.result.Ranks[rank].Cause = c
	return nil
}

// describe adds the evidence and the text of a cause.
func (a *run) describe(c *Cause, rank int, own *stretch, usual map[string]int64, more bool, extra int64) {
	var what string
	switch c.Kind {
	case causeSlower:
		var most int64
		var k kernelSum
		for _, name := range slices.Sorted(maps.Keys(own.byName)) {
			if ns := own.byName[name].ns - usual[name]; ns > most {
				most, k, c.Kernel = ns, own.byName[name], name
			}
		}
		what = "kernels took longer"
		if more {
			c.Kind = causeMore
			what = fmt.Sprintf("it ran more kernels (%d more)", extra)
		}
		if c.Kernel != "" {
			what += fmt.Sprintf(", mostly %s (%s more)", c.Kernel, analysis.Duration(most))
			c.Evidence = append(c.Evidence, k.longest)
		}
	case causeCommunication:
		what = "other communication took longer"
	case causeCopy:
		what = "copies took longer"
	default:
		cause := causeNamed(c.Kind)
		what = "more idle time by the cause " + cause.Text()
		slices.SortStableFunc(own.gaps, func(x, y analysis.Gap) int { return cmp.Compare(y.Idle[cause], x.Idle[cause]) })
		for i := range own.gaps {
			g := &own.gaps[i]
			if g.Idle[cause] == 0 || len(c.Evidence) == maxEvidence {
				break
			}
			if i == 0 {
				c.Call, c.Stack = g.Call, g.Stack
			}
			if g.After != nil {
				c.Evidence = append(c.Evidence, Ref{Span: SpanID(g.After.Span), Start: g.After.StartNs - a.ranks[rank].baseNs, Name: g.After.Name})
			}
		}
		if name, ns := scopeOf(own.gaps, cause); name != "" {
			c.Scope = name
			what += fmt.Sprintf(", %s of it in scope %q", analysis.Duration(ns), name)
		}
	}
	delays, them := "largest delay", "it"
	if c.Collectives != 1 {
		delays, them = fmt.Sprintf("%d largest delays", c.Collectives), "them"
	}
	c.Text = fmt.Sprintf("Cause in the %s: %s. This is %s of the %s by which it was late in %s.",
		delays, what, analysis.Duration(c.ExcessNs), analysis.Duration(c.LateNs), them)
}

// scopeOf returns the scope with the most idle time by a cause, and that time. Scopes whose names differ in numbers
// only are one, with "*" for each number.
func scopeOf(gaps []analysis.Gap, cause analysis.Cause) (name string, ns int64) {
	sums, names := map[string]int64{}, map[string]string{}
	for i := range gaps {
		g := &gaps[i]
		pattern := numbered.Pattern(g.Scope)
		sums[pattern] += g.Idle[cause]
		if known, ok := names[pattern]; ok && known != g.Scope {
			names[pattern] = pattern
		} else {
			names[pattern] = g.Scope
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(sums)) {
		if sums[pattern] > ns {
			name, ns = names[pattern], sums[pattern]
		}
	}
	return name, ns
}

func causeNamed(name string) analysis.Cause {
	for _, c := range analysis.Causes() {
		if c.String() == name {
			return c
		}
	}
	return analysis.Unknown
}

// stretch returns what a rank did from the end of the collective before to the start of this one.
func (a *run) stretch(ctx context.Context, i, rank int) (*stretch, error) {
	e := &a.events[i]
	find := func(e *event) *Collective {
		for _, p := range e.parts {
			if p.rank == rank {
				return p.at
			}
		}
		return nil
	}
	s := &stretch{parts: map[string]int64{}, byName: map[string]kernelSum{}}
	before, at := find(&a.events[e.previous]), find(e)
	if before == nil || at == nil || at.StartNs <= before.EndNs {
		return s, nil
	}
	r := a.ranks[rank]
	// The first nanosecond of the collective ends the last gap.
	found, err := analysis.Run(ctx, r.Source, analysis.Options{From: before.EndNs, To: at.StartNs + 1, NoSteps: true})
	if err != nil {
		return nil, err
	}
	if len(found.Devices) == 0 {
		s.parts[analysis.NothingQueued.String()] = at.StartNs - before.EndNs
		return s, nil
	}
	d := slices.MaxFunc(found.Devices, func(x, y analysis.Device) int { return cmp.Compare(x.Kernels, y.Kernels) })
	s.parts[causeSlower], s.parts[causeCommunication], s.parts[causeCopy] = d.ComputeNs, d.CommunicationNs, d.CopyNs
	for c, ns := range d.Idle {
		s.parts[analysis.Cause(c).String()] = ns
	}
	s.gaps = d.Gaps
	return s, r.Source.Ops(ctx, before.EndNs, at.StartNs, func(row *store.OpRow) error {
		_, communication := KernelKind(row.ShapeRef.Name)
		if row.ShapeRef.Operation != store.OpKernel || row.StartNs < before.EndNs || communication {
			return nil
		}
		s.kernels++
		k := s.byName[row.ShapeRef.Name]
		ns := max(0, row.EndNs-row.StartNs)
		k.ns += ns
		k.count++
		if ns > k.longest.DurationNs {
			k.longest = Ref{SpanID(row.Span), row.StartNs - r.baseNs, ns, row.ShapeRef.Name}
		}
		s.byName[row.ShapeRef.Name] = k
		return nil
	})
}
