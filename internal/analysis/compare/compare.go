// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

const (
	// MinChange is the smallest relative change of a step, part, kernel or scope that is reported as one. Two
	// runs of one program can differ by that.
	MinChange = 0.01
	// minShare is the share of the time of a step, without steps of all kernels, from which a part, kernel or scope is
	// tested. It is of the session with the larger share, so it does not favour one.
	minShare = 0.01
	// stepShare is the share of Level for the time of a step. The rest is for all other tests.
	stepShare = 0.5
	// minSteps is the smallest number of steps with minBlocks blocks. With less than fewSteps there is a warning.
	minSteps = 6
	fewSteps = 30
	// uncertainShare is the smallest difference of means, as a share of that of A, that makes a row without a
	// significant test [Untested] instead of [Same].
	uncertainShare = 0.2
	// maxListed bounds the rows of each list, those with the largest effect first.
	maxListed = 1000
)

// Status is the result for a row.
type Status string

// Values of Status. All except Same and Untested need a significant test and a change of at least
// MinChange. New and Gone are facts and need none.
const (
	Slower   Status = "slower" // takes more time
	Faster   Status = "faster"
	More     Status = "more" // launched more often, and not slower or faster
	Fewer    Status = "fewer"
	New      Status = "new"  // in B only
	Gone     Status = "gone" // in A only
	Same     Status = "same"
	Untested Status = "untested" // too little time, too few repetitions, or means that differ and vary too much
)

// Comparison is what changed from A to B. All times are nanoseconds.
//
// The probability that it finds any false difference is at most Level, if the assumption of [Test]
// holds. Half of it is for the time of a step. All other tests share the other half by Holm's method.
type Comparison struct {
	A Summary `json:"a"`
	B Summary `json:"b"`
	// Verdict is Slower, Faster, Same or Untested, by the time of a step. Without steps it is by kernels.
	Verdict Status `json:"verdict"`
	// Text is the verdict in one sentence.
	Text string `json:"text"`
	// Warnings are sentences about what limits the comparison.
	Warnings []string `json:"warnings"`
	// Tests is the number of tests except that of the step.
	Tests int `json:"tests"`
	// Step is nil if a session has no steps. Parts are compute, communication, copy and causes of idle
	// time, per step.
	Step  *Change   `json:"step,omitempty"`
	Parts []*Change `json:"parts"`
	// Kernels are by name. Shapes are of kernels with several grids or blocks. Scopes are by path. Of
	// each the largest effect comes first.
	Kernels []*Change `json:"kernels"`
	Shapes  []*Change `json:"shapes"`
	Scopes  []*Change `json:"scopes"`
}

// Answer is a [Comparison] as JSON, with the ids of both sessions, or the paths of recordings. openapi.yaml describes
// it as Comparison.
type Answer struct {
	SessionA string `json:"session_a"`
	SessionB string `json:"session_b"`
	*Comparison
}

// Summary describes a session.
type Summary struct {
	Steps int64 `json:"steps"`
	// Rule and StepName are how steps were found: see [analysis.Steps].
	Rule     string `json:"rule"`
	StepName string `json:"step_name"`
	Device   string `json:"device"`
	// Kernels and KernelNs are of all kernels, with steps of those in steps.
	Kernels  int64 `json:"kernels"`
	KernelNs int64 `json:"kernel_ns"`
	// Complete is false if a part of the session was not read.
	Complete bool `json:"complete"`
	// Missing is what is missing of the session, nil below 5 %. Then only the durations of kernels are compared.
	Missing *analysis.Missing `json:"missing,omitempty"`
}

// Change is one row.
type Change struct {
	// Name is the name of the kernel or scope. Of a part it is "compute", "communication", "copy" or a
	// cause of idle time. FullName, Grid and Block are of shapes, and of kernels with one shape.
	Name     string  `json:"name"`
	FullName string  `json:"full_name,omitempty"`
	Grid     []int64 `json:"grid,omitempty"`
	Block    []int64 `json:"block,omitempty"`
	// Path is the path of a scope.
	Path   []string `json:"path,omitempty"`
	Status Status   `json:"status"`
	A      Sums     `json:"a"`
	B      Sums     `json:"b"`
	// EffectNs is the shift of the time per step. Of new and gone kernels, and with Mean, it is that of the
	// mean time per step. Without steps it is the shift of the duration times the launches of B, and the sum for new and gone
	// kernels.
	EffectNs int64 `json:"effect_ns"`
	// Duration tests the time of a step or part per step, of a kernel per launch, of a scope per
	// instance. Launches tests launches per step. Device tests the time of kernels and copies in a scope
	// per step. Each is nil if it was not tested.
	Duration *Test `json:"duration,omitempty"`
	Launches *Test `json:"launches,omitempty"`
	Device   *Test `json:"device,omitempty"`
	// Mean is set if the mean differs significantly, and the other tests explain less than half of that.
	// So some repetitions are much longer. It is of the time per step, of scopes of that of an instance, and
	// without steps of that of a launch.
	Mean *Test `json:"mean,omitempty"`

	// typical tests the medians of blocks of what mean tests the means of.
	typical, mean *Test
	meanEffectNs  int64 // EffectNs with Mean
}

// Sums are of all steps. Without steps they are of all launches.
type Sums struct {
	Count int64 `json:"count"`
	Ns    int64 `json:"ns"`
	// Longest is the id of the longest launch or instance as OTLP writes it. Of a step it is that of the first
	// operation of the longest one. LongestNs is its start in Unix nanoseconds. Parts have neither.
	Longest   string `json:"longest,omitempty"`
	LongestNs int64  `json:"longest_start,string,omitempty"`
}

func (s *Sums) cite(r *analysis.Ref) {
	if r != nil {
		s.Longest, s.LongestNs = analysis.SpanText(r.Span), r.StartNs
	}
}

func (s *Sums) citeStep(p *analysis.Profile) {
	if list := p.Result.Steps.Longest; len(list) > 0 {
		s.cite(&list[0].First)
	}
}

// Sources reads two sessions at the same time and compares B with A. It returns errors of the sources and
// of ctx.
func Sources(ctx context.Context, a, b analysis.Source, o analysis.Options) (*Comparison, error) {
	var sides [2]*analysis.Profile
	var errs [2]error
	var both sync.WaitGroup
	for i, src := range []analysis.Source{a, b} {
		both.Go(func() { sides[i], errs[i] = analysis.NewProfile(ctx, src, o) })
	}
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return Sessions(sides[0], sides[1]), nil
}

// Sessions compares B with A.
func Sessions(a, b *analysis.Profile) *Comparison {
	c := &Comparison{A: summary(a), B: summary(b), Warnings: []string{}, Parts: []*Change{}}
	s := &sides{a: a, b: b, missing: c.A.Missing != nil || c.B.Missing != nil}
	s.steps = !s.missing && len(a.Steps) > 0 && len(b.Steps) > 0
	s.baseA, s.baseB = float64(max(a.KernelNs, 1)), float64(max(b.KernelNs, 1))
	if s.steps {
		c.Step = s.part("step", func(p *analysis.StepValues) int64 { return p.WallNs })
		c.Step.A.citeStep(a)
		c.Step.B.citeStep(b)
		s.baseA, s.baseB = typical(a.Steps)*float64(len(a.Steps)), typical(b.Steps)*float64(len(b.Steps))
		c.Parts = s.parts()
	}
	c.Kernels = s.groups(a.Kernels, b.Kernels)
	c.Shapes = s.groups(a.Shapes, b.Shapes)
	c.Scopes = s.scopes()
	c.Shapes = oneShape(c.Kernels, c.Shapes)
	c.judge(s)
	c.warn(s)
	c.Text = c.sentence()
	c.Kernels, c.Shapes, c.Scopes = first(c.Kernels), first(c.Shapes), first(c.Scopes)
	return c
}

// Regressions returns the step, kernels, shapes and scopes that are slower by more than a limit, such as
// 0.05 for 5 %, the largest effect first in each of these groups.
func (c *Comparison) Regressions(limit float64) (list []*Change) {
	if c.Step != nil && c.Step.slowerBy(limit) {
		list = append(list, c.Step)
	}
	for _, changes := range [][]*Change{c.Kernels, c.Shapes, c.Scopes} {
		for _, x := range changes {
			if x.slowerBy(limit) {
				list = append(list, x)
			}
		}
	}
	return list
}

// Slowdown returns the largest relative change of the significant tests of time, 0 if there is none.
func (x *Change) Slowdown() (by float64) {
	for _, t := range []*Test{x.Duration, x.Device, x.Mean} {
		if t != nil && t.Significant {
			by = max(by, t.Relative)
		}
	}
	return by
}

func (x *Change) slowerBy(limit float64) bool {
	by := x.Slowdown()
	return by > limit && by >= MinChange
}

func summary(p *analysis.Profile) Summary {
	s := Summary{Steps: int64(len(p.Steps)), Rule: p.Result.Steps.Rule, StepName: p.Result.Steps.Name, Device: p.Result.Steps.Device, KernelNs: p.KernelNs, Complete: p.Result.Complete, Missing: p.Result.Missing}
	for _, g := range p.Kernels {
		s.Kernels += g.Count
	}
	return s
}

// sides are the two profiles.
type sides struct {
	a, b         *analysis.Profile
	steps        bool
	missing      bool    // work, of a or b
	baseA, baseB float64 // the time that minShare refers to
	tests        []*Test // all except that of the step
}

// typical returns the median wall time of a step.
func typical(steps []analysis.StepValues) float64 {
	values := make([]float64, len(steps))
	for i := range steps {
		values[i] = float64(steps[i].WallNs)
	}
	slices.Sort(values)
	return median(values)
}

// large says whether something is tested.
func (s *sides) large(aNs, bNs int64) bool {
	return float64(aNs) >= minShare*s.baseA || float64(bNs) >= minShare*s.baseB
}

// part compares a value of steps.
func (s *sides) part(name string, get func(*analysis.StepValues) int64) *Change {
	x := &Change{Name: name}
	side := func(steps []analysis.StepValues, sums *Sums) values {
		for i := range steps {
			sums.Ns += get(&steps[i])
		}
		sums.Count = int64(len(steps))
		return values{len(steps), func(i int) (float64, bool) { return float64(get(&steps[i])), true }}
	}
	a, b := side(s.a.Steps, &x.A), side(s.b.Steps, &x.B)
	x.Duration, x.mean = medians(a, b), means(a, b)
	x.typical = x.Duration
	if x.Duration != nil {
		x.EffectNs, x.meanEffectNs = whole(x.Duration.Shift), whole(x.mean.Shift)
	}
	return x
}

func (s *sides) parts() []*Change {
	list := []*Change{
		s.part("compute", func(p *analysis.StepValues) int64 { return p.ComputeNs }),
		s.part("communication", func(p *analysis.StepValues) int64 { return p.CommunicationNs }),
		s.part("copy", func(p *analysis.StepValues) int64 { return p.CopyNs }),
	}
	for _, c := range analysis.Causes() {
		list = append(list, s.part(c.String(), func(p *analysis.StepValues) int64 { return p.Idle[c] }))
	}
	list = slices.DeleteFunc(list, func(x *Change) bool { return x.A.Ns == 0 && x.B.Ns == 0 })
	for _, x := range list {
		if !s.large(x.A.Ns, x.B.Ns) {
			x.Duration, x.typical, x.mean = nil, nil, nil
		}
		s.use(x.Duration)
		s.use(x.mean)
	}
	return byEffect(list)
}

// use adds a test to those that are corrected together. Values that are all equal need no test: whichever
// way they are divided, the answer is the same.
func (s *sides) use(t *Test) {
	if t != nil && t.P < 1 {
		s.tests = append(s.tests, t)
	}
}

// pairs joins groups by a key, in the order of a, then of b.
func pairs(a, b []*analysis.Group, key func(*analysis.Group) string) (list [][2]*analysis.Group) {
	index := map[string]int{}
	for side, groups := range [2][]*analysis.Group{a, b} {
		for _, g := range groups {
			k := key(g)
			i, ok := index[k]
			if !ok {
				i = len(list)
				index[k] = i
				list = append(list, [2]*analysis.Group{{}, {}})
			}
			list[i][side] = g
		}
	}
	return list
}

func named(p [2]*analysis.Group) *Change {
	g := p[0]
	if g.Name == "" && g.Path == nil {
		g = p[1]
	}
	x := &Change{
		Name: g.Name, FullName: g.FullName, Grid: g.Grid, Block: g.Block, Path: g.Path,
		A: Sums{Count: p[0].Count, Ns: p[0].SumNs}, B: Sums{Count: p[1].Count, Ns: p[1].SumNs},
	}
	x.A.cite(p[0].Longest)
	x.B.cite(p[1].Longest)
	return x
}

// groups compares kernels or shapes.
func (s *sides) groups(a, b []*analysis.Group) []*Change {
	list := []*Change{}
	for _, p := range pairs(a, b, func(g *analysis.Group) string { return fmt.Sprint(cmp.Or(g.FullName, g.Name), "\x00", g.Grid, g.Block) }) {
		x := named(p)
		large := s.large(x.A.Ns, x.B.Ns)
		if s.steps {
			a, b := s.perStep(p, stepNs)
			x.EffectNs = whole(shift(a, b))
			one := x.A.Count == 0 || x.B.Count == 0
			if one { // also if fewer than half of the steps have it
				x.EffectNs = s.meanEffect(x.A.Ns, x.B.Ns)
			}
			if large {
				x.Duration, x.Launches = medians(durations(p[0].Steps, p[1].Steps)), medians(s.perStep(p, stepCount))
			}
			if large && !one {
				x.typical, x.mean = medians(a, b), means(a, b)
			}
			if x.mean != nil {
				x.meanEffectNs = whole(x.mean.Shift)
			}
		} else {
			a, b := durations(calls(p[0]), calls(p[1]))
			t := medians(a, b)
			switch {
			case s.absent(x):
			case x.A.Count == 0 || x.B.Count == 0:
				x.EffectNs = x.B.Ns - x.A.Ns
			case t != nil:
				x.EffectNs = whole(t.Shift * float64(x.B.Count))
			}
			if large {
				x.Duration, x.typical, x.mean = t, t, means(a, b)
			}
			if x.mean != nil {
				x.meanEffectNs = whole(x.mean.Shift * float64(x.B.Count))
			}
		}
		s.use(x.Duration)
		s.use(x.Launches)
		s.use(x.mean)
		list = append(list, x)
	}
	return byEffect(list)
}

// scopes compares scopes.
func (s *sides) scopes() []*Change {
	list := []*Change{}
	if s.a.ManyScopes || s.b.ManyScopes || s.missing {
		return list
	}
	for _, p := range pairs(s.a.Scopes, s.b.Scopes, func(g *analysis.Group) string { return strings.Join(g.Path, "\x00") }) {
		x := named(p)
		deviceA, deviceB := sum(p[0].Steps), sum(p[1].Steps)
		if s.steps {
			x.EffectNs, x.meanEffectNs = whole(shift(s.perStep(p, stepNs))), s.meanEffect(deviceA, deviceB)
			if s.large(deviceA, deviceB) {
				x.Device = medians(s.perStep(p, stepNs))
			}
		}
		if s.large(x.A.Ns, x.B.Ns) {
			a, b := durations(p[0].Calls, p[1].Calls)
			x.Duration, x.mean = medians(a, b), means(a, b)
			x.typical = x.Duration
		}
		s.use(x.Duration)
		s.use(x.Device)
		s.use(x.mean)
		list = append(list, x)
	}
	return byEffect(list)
}

// absent says that a kernel was recorded in one session, and that the other one can have lost it.
func (s *sides) absent(x *Change) bool {
	return x.A.Count == 0 && s.a.Result.Missing != nil || x.B.Count == 0 && s.b.Result.Missing != nil
}

// calls returns the durations of launches, by step if the session has steps.
func calls(g *analysis.Group) analysis.Series {
	if len(g.Calls.Cells) == 0 {
		return g.Steps
	}
	return g.Calls
}

func sum(s analysis.Series) (ns int64) {
	for _, c := range s.Cells {
		ns += c.Ns
	}
	return ns
}

// durations returns the mean durations of two series.
func durations(a, b analysis.Series) (x, y values) {
	a, b = equalSize(a, b, len(a.Cells)*a.Size, len(b.Cells)*b.Size)
	side := func(s analysis.Series) values {
		return values{len(s.Cells), func(i int) (float64, bool) {
			c := s.Cells[i]
			return float64(c.Ns) / float64(max(c.Count, 1)), c.Count > 0
		}}
	}
	return side(a), side(b)
}

func stepNs(c analysis.Cell) int64    { return c.Ns }
func stepCount(c analysis.Cell) int64 { return c.Count }

// perStep returns a value per step of both sessions. A step without launches has 0.
func (s *sides) perStep(p [2]*analysis.Group, get func(analysis.Cell) int64) (x, y values) {
	stepsA, stepsB := len(s.a.Steps), len(s.b.Steps)
	a, b := equalSize(p[0].Steps, p[1].Steps, stepsA, stepsB)
	side := func(series analysis.Series, steps int) values {
		size := series.Size
		return values{(steps + size - 1) / size, func(i int) (float64, bool) {
			if i >= len(series.Cells) { // those at the end may be absent
				return 0, true
			}
			return float64(get(series.Cells[i])) / float64(min(size, steps-i*size)), true
		}}
	}
	return side(a, stepsA), side(b, stepsB)
}

// equalSize makes the cells of the finer series as large as those of the other one, because the medians of
// sums of different size differ. It keeps at least maxBlocks cells of n repetitions.
func equalSize(a, b analysis.Series, na, nb int) (x, y analysis.Series) {
	a.Size, b.Size = max(a.Size, 1), max(b.Size, 1)
	for a.Size < b.Size && na/(2*a.Size) >= maxBlocks {
		a = a.Coarser()
	}
	for b.Size < a.Size && nb/(2*b.Size) >= maxBlocks {
		b = b.Coarser()
	}
	return a, b
}

// shift returns the shift of the medians of blocks, for any number of them.
func shift(a, b values) float64 {
	x, y := blocks(a, b, false)
	return mean(y) - mean(x)
}

func medians(a, b values) *Test { return test(blocks(a, b, false)) }
func means(a, b values) *Test   { return test(blocks(a, b, true)) }

// meanEffect returns the change of the mean device time per step.
func (s *sides) meanEffect(a, b int64) int64 {
	return b/int64(len(s.b.Steps)) - a/int64(len(s.a.Steps))
}

func whole(ns float64) int64 { return int64(math.Round(ns)) }

func byEffect(list []*Change) []*Change {
	key := func(x *Change) string { return fmt.Sprint(x.Name, "\x00", x.FullName, x.Grid, x.Block, x.Path) }
	slices.SortFunc(list, func(a, b *Change) int {
		return cmp.Or(cmp.Compare(max(b.EffectNs, -b.EffectNs), max(a.EffectNs, -a.EffectNs)), cmp.Compare(b.A.Ns+b.B.Ns, a.A.Ns+a.B.Ns), cmp.Compare(key(a), key(b)))
	})
	return list
}
