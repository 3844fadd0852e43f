// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

// judge corrects the tests and sets the status of each row.
func (c *Comparison) judge(s *sides) {
	c.Tests = len(s.tests)
	rest := 1.0
	if c.Step != nil {
		rest -= stepShare
		if c.Step.mean != nil {
			holm([]*Test{c.Step.Duration, c.Step.mean}, stepShare)
		}
		c.Step.judge()
		c.Verdict = c.Step.Status
	}
	holm(s.tests, rest)
	for _, x := range c.Parts {
		x.judge()
	}
	byEffect(c.Parts)
	for _, list := range [][]*Change{c.Kernels, c.Shapes, c.Scopes} {
		for _, x := range list {
			x.judge()
			switch {
			case s.absent(x):
			case x.A.Count == 0:
				x.Status = New
			case x.B.Count == 0:
				x.Status = Gone
			}
		}
		byEffect(list)
	}
	if c.Step == nil {
		c.Verdict = Untested
		for _, status := range []Status{Same, Faster, Slower} {
			if slices.ContainsFunc(c.Kernels, func(x *Change) bool { return x.Status == status }) {
				c.Verdict = status
			}
		}
	}
}

func first(list []*Change) []*Change { return list[:min(len(list), maxListed)] }

func (x *Change) judge() {
	if m := x.mean; m != nil && m.Significant && !x.explains(m) {
		x.Mean, x.EffectNs = m, x.meanEffectNs
	}
	x.Status = Untested
	for _, t := range []struct {
		*Test
		up, down Status
	}{{x.Launches, More, Fewer}, {x.Device, Slower, Faster}, {x.Duration, Slower, Faster}, {x.Mean, Slower, Faster}} {
		switch {
		case t.Test == nil:
		case t.Significant && t.Shift > 0 && (t.A == 0 || t.Relative >= MinChange):
			x.Status = t.up
		case t.Significant && t.Shift < 0 && -t.Relative >= MinChange:
			x.Status = t.down
		case x.Status == Untested:
			x.Status = Same
		}
	}
	if x.Status == Same && x.uncertain() {
		x.Status = Untested
	}
}

// explains says that the significant other tests explain half of the shift of the mean or more.
func (x *Change) explains(m *Test) bool {
	found := false
	for _, t := range []*Test{x.Launches, x.Device, x.Duration} {
		found = found || t != nil && t.Significant
	}
	return found && 2*x.typical.Shift/m.Shift >= 1
}

// uncertain says that the means differ much. Without a significant test, a few long repetitions decide that.
func (x *Change) uncertain() bool {
	m := x.mean
	return m != nil && m.Shift != 0 && math.Abs(m.Shift) >= uncertainShare*m.A
}

// oneShape moves the shape of a kernel that has the same single one in both sessions to the kernel, and
// returns the other shapes.
func oneShape(kernels, shapes []*Change) []*Change {
	byName := map[string][]*Change{}
	for _, x := range shapes {
		byName[x.Name] = append(byName[x.Name], x)
	}
	for _, k := range kernels {
		if list := byName[k.Name]; len(list) == 1 {
			k.FullName, k.Grid, k.Block = list[0].FullName, list[0].Grid, list[0].Block
		}
	}
	return slices.DeleteFunc(shapes, func(x *Change) bool { return len(byName[x.Name]) == 1 })
}

func (c *Comparison) warn(s *sides) {
	warn := func(format string, args ...any) { c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...)) }
	for _, side := range []struct {
		name string
		Summary
	}{{"A", c.A}, {"B", c.B}} {
		switch {
		case side.Kernels == 0:
			warn("%s has no kernels.", side.name)
		case side.Missing != nil:
			warn("%s: %s Only the times of its recorded kernels are compared.", side.name, side.Missing.Text)
		case side.Steps == 0 && !s.missing:
			warn("No steps were found in %s, so only kernels and scopes are compared. Mark steps with scopes.", side.name)
		}
		if !side.Complete {
			warn("%s was not read to its end.", side.name)
		}
	}
	if s.a.More || s.b.More {
		warn("A session has 2,000 kernels, shapes or scopes, which is the limit. Further ones are not compared.")
	}
	if n := max(len(c.Kernels), len(c.Shapes), len(c.Scopes)); n > maxListed {
		warn("The %d rows with the smallest effects of a list are not shown.", n-maxListed)
	}
	if s.a.ManyScopes || s.b.ManyScopes {
		warn("A session has more than 200,000 scopes, so scopes are not compared.")
	}
	if c.Step == nil {
		return
	}
	if c.A.Rule != c.B.Rule || c.A.StepName != c.B.StepName {
		warn("Steps begin with %s %q in A and with %s %q in B. Check that they are the same.", begin(c.A.Rule), c.A.StepName, begin(c.B.Rule), c.B.StepName)
	}
	switch fewer := min(c.A.Steps, c.B.Steps); {
	case fewer < minSteps:
		warn("There are too few steps (%d and %d) for a test. It needs %d of each.", c.A.Steps, c.B.Steps, minSteps)
	case fewer < fewSteps:
		warn("There are few steps (%d and %d), so only large differences are found. Compare at least %d.", c.A.Steps, c.B.Steps, fewSteps)
	}
	if c.Step.Mean != nil || c.Step.Status == Untested && c.Step.uncertain() {
		long := 2 * max(typical(s.a.Steps), typical(s.b.Steps))
		warn("%d of %d steps of A and %d of %d of B take more than twice the median step.", longer(s.a.Steps, long), c.A.Steps, longer(s.b.Steps, long), c.B.Steps)
	}
	few := []*Change{}
	for _, x := range slices.Concat(c.Parts, c.Kernels, c.Shapes, c.Scopes) {
		if x.Status == Untested && x.uncertain() {
			few = append(few, x)
		}
	}
	if len(few) > 0 {
		warn("The means of %d rows differ by %.0f %% or more, but vary too much for a test. The first is %s.", len(few), 100*uncertainShare, few[0].Name)
	}
	unknown := func(p *analysis.Profile) bool {
		v := &p.Result.Steps.P50
		return v.IdleNs > 0 && v.Idle[analysis.Unknown] > v.IdleNs/2
	}
	if unknown(s.a) || unknown(s.b) {
		warn("Most causes of idle time are unknown. Record with --kinds causes.")
	}
}

func begin(rule string) string {
	if rule == "kernels" {
		return "the kernel"
	}
	return "scope"
}

func longer(steps []analysis.StepValues, ns float64) (n int) {
	for i := range steps {
		if float64(steps[i].WallNs) > ns {
			n++
		}
	}
	return n
}

// sentence returns the verdict.
func (c *Comparison) sentence() string {
	var found []string
	for _, status := range []Status{Slower, Faster} {
		n := 0
		for _, x := range c.Kernels {
			if x.Status == status {
				n++
			}
		}
		switch n {
		case 0:
		case 1:
			found = append(found, fmt.Sprintf("1 is %s", status))
		default:
			found = append(found, fmt.Sprintf("%d are %s", n, status))
		}
	}
	kernels := strings.Join(found, " and ")
	if c.Step == nil {
		switch {
		case c.Verdict == Untested:
			return "Nothing could be compared."
		case kernels == "":
			return "No kernel is slower or faster."
		}
		return fmt.Sprintf("Of %d kernels, %s in B.", len(c.Kernels), kernels)
	}
	t := c.Step.Duration
	if t == nil {
		return "There are too few steps to say whether B is slower."
	}
	if c.Verdict == Same {
		times := fmt.Sprintf("a step takes %s in A and %s in B (%s)", analysis.Duration(t.A), analysis.Duration(t.B), Percent(t.Relative))
		text := "No significant difference: " + times
		if t.Significant { // below MinChange
			text = "The difference is below 1 %: " + times
		}
		if kernels != "" {
			text += fmt.Sprintf("; of %d kernels, %s", len(c.Kernels), kernels)
		}
		return text + "."
	}
	if c.Verdict == Untested {
		return "It is uncertain whether B differs: " + totals(c.Step) + ". The times of steps vary too much for a test."
	}
	text := fmt.Sprintf("B is %s: a step takes %s instead of %s (%s)", c.Verdict, analysis.Duration(t.B), analysis.Duration(t.A), Percent(t.Relative))
	if c.Step.Mean != nil {
		text = fmt.Sprintf("B is %s: %s", c.Verdict, totals(c.Step))
	}
	var why []string
	for _, x := range c.Parts {
		if x.Status == c.Verdict && len(why) < 2 {
			why = append(why, fmt.Sprintf("%s %s", analysis.PartText(x.Name), signed(float64(x.EffectNs))))
		}
	}
	if len(why) > 0 {
		text += ", because of " + strings.Join(why, " and ")
	}
	return text + "."
}

// totals compares the means and the medians of steps.
func totals(step *Change) string {
	a, b := float64(step.A.Ns)/float64(step.A.Count), float64(step.B.Ns)/float64(step.B.Count)
	what, t, change := "the mean step takes", step.Duration, Percent(b/a-1)
	if step.A.Count == step.B.Count {
		what, a, b = fmt.Sprintf("all %d steps together take", step.A.Count), float64(step.A.Ns), float64(step.B.Ns)
	}
	return fmt.Sprintf("%s %s instead of %s (%s), but the median step %s instead of %s (%s)", what, analysis.Duration(b), analysis.Duration(a), change, analysis.Duration(t.B), analysis.Duration(t.A), Percent(t.Relative))
}

// Percent formats a share with its sign.
func Percent(share float64) string { return fmt.Sprintf("%+.1f %%", 100*share) }

func signed(ns float64) string {
	if ns < 0 {
		return "-" + analysis.Duration(-ns)
	}
	return "+" + analysis.Duration(ns)
}
