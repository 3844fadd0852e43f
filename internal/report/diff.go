// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
)

const (
	// diffRows is how many rows of each table are shown in any case, diffFound how many of those with a
	// difference.
	diffRows  = 8
	diffFound = 20
)

// Diff is a comparison with the names of both sides.
type Diff struct {
	A, B string
	*compare.Comparison
	// Limit is that of --fail-over, negative without one.
	Limit float64
}

// WriteJSON prints the comparison as one object, which openapi.yaml describes as Diff.
func (d *Diff) WriteJSON(out io.Writer) error {
	j := struct {
		compare.Answer
		Limit       *float64         `json:"fail_over,omitempty"`
		Regressions *[]regressionRow `json:"regressions,omitempty"`
	}{Answer: compare.Answer{SessionA: d.A, SessionB: d.B, Comparison: d.Comparison}}
	if d.Limit >= 0 {
		list := []regressionRow{}
		for _, x := range d.Regressions(d.Limit) {
			list = append(list, regressionRow{d.kind(x), x.Name, x.Grid, x.Block, x.Path, x.Slowdown()})
		}
		j.Limit, j.Regressions = &d.Limit, &list
	}
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false) // names of C++ are full of < and >
	e.SetIndent("", "  ")
	return e.Encode(&j)
}

type regressionRow struct {
	Kind  string   `json:"kind"`
	Name  string   `json:"name"`
	Grid  []int64  `json:"grid,omitempty"`
	Block []int64  `json:"block,omitempty"`
	Path  []string `json:"path,omitempty"`
	By    float64  `json:"relative"`
}

func (d *Diff) kind(x *compare.Change) string {
	switch {
	case x == d.Step:
		return "step"
	case x.Path != nil:
		return "scope"
	}
	return "kernel"
}

// Write prints the verdict, the step with its parts, kernels, shapes and scopes, in lines of a width (0 if
// it is unknown).
func (d *Diff) Write(out io.Writer, width int) error {
	sentence := func(text string) { prose(out, "", text, width) }
	sentence(d.Text)
	fmt.Fprintln(out)
	for _, side := range []struct {
		letter, name string
		compare.Summary
	}{{"A", d.A, d.Comparison.A}, {"B", d.B, d.Comparison.B}} {
		fmt.Fprintf(out, "%s  %s: %s steps, %s kernels\n", side.letter, Shorten(side.name), Count(uint64(side.Steps)), Count(uint64(side.Kernels)))
	}
	for _, w := range d.Warnings {
		sentence("Note: " + w)
	}
	fmt.Fprintln(out)
	d.writeStep(out, width)
	for _, t := range []struct {
		list  []*compare.Change
		title string
	}{{d.Kernels, "KERNEL"}, {d.Shapes, "KERNEL WITH SEVERAL SHAPES"}, {d.Scopes, "SCOPE"}} {
		d.writeTable(out, t.list, t.title, width)
	}
	unit := "device time per step"
	switch {
	case d.lacksWork():
		unit = "time of the recorded calls of B"
	case d.Step == nil:
		unit = "time of all calls"
	}
	sentence("EFFECT is the change of the " + unit + ". A and B are the mean time of a call.")
	if d.Limit >= 0 {
		fmt.Fprintln(out)
		d.writeRegressions(out)
	}
	_, err := fmt.Fprint(out) // errors of earlier writes come back
	return err
}

func (d *Diff) writeStep(out io.Writer, width int) {
	if d.Step == nil {
		return
	}
	if t := d.Step.Duration; t != nil {
		what := "Step"
		if d.Step.Mean != nil {
			what, t = "Mean step", d.Step.Mean
		}
		fmt.Fprintf(out, "%s: %s, at 95 %% from %s to %s (%s)\n", what, compare.Percent(t.Relative), compare.Percent(t.Low/max(t.A, 1)), compare.Percent(t.High/max(t.A, 1)), probability(t))
	}
	w := table{head: []string{"EFFECT", "A", "B", "CHANGE", "RESULT", "PART OF A STEP"}}
	row := func(x *compare.Change, name string) {
		a, b, change := "-", "-", "-"
		if t := cmp.Or(x.Mean, x.Duration); t != nil {
			a, b, change = ns(t.A), ns(t.B), relative(t)
		} else if d.Comparison.A.Steps > 0 && d.Comparison.B.Steps > 0 {
			a, b = ns(float64(x.A.Ns)/float64(d.Comparison.A.Steps)), ns(float64(x.B.Ns)/float64(d.Comparison.B.Steps))
		}
		w.add(effect(x.EffectNs), a, b, change, string(x.Status), name)
	}
	row(d.Step, "all")
	for _, x := range d.Parts {
		row(x, analysis.PartText(x.Name))
	}
	w.write(out, width)
	fmt.Fprintln(out)
}

// writeTable prints the rows with a difference, and others with the largest effect.
func (d *Diff) writeTable(out io.Writer, list []*compare.Change, title string, width int) {
	if len(list) == 0 {
		return
	}
	w := table{head: []string{"EFFECT", "A", "B", "CHANGE", "CALLS", "RESULT", title}}
	var names, shapes []string
	found := 0
	for i, x := range list {
		different := x.Status != compare.Same && x.Status != compare.Untested
		if different {
			found++
		}
		if (!different || found > diffFound) && i >= diffRows {
			continue
		}
		t := x.Duration
		if x.Device != nil && x.Device.Significant && (t == nil || !t.Significant) {
			t = x.Device
		}
		t = cmp.Or(x.Mean, t)
		change := "-"
		if t != nil {
			change = relative(t)
		}
		w.add(effect(x.EffectNs), mean(x.A), mean(x.B), change, d.calls(x), string(x.Status), "")
		names, shapes = append(names, changeName(x, false)), append(shapes, gridText(x))
	}
	for i, label := range kernelLabels(names, shapes, w.room(width)) {
		w.rows[i][len(w.head)-1] = label
	}
	w.write(out, width)
	if n := len(list) - len(names); n > 0 {
		fmt.Fprintf(out, "%s more with smaller effects are in --json.\n", Count(uint64(n)))
	}
	fmt.Fprintln(out)
}

func (d *Diff) writeRegressions(out io.Writer) {
	list := d.Regressions(d.Limit)
	nothing := "Nothing is slower by more than %s.\n"
	if d.Step != nil && d.Verdict == compare.Untested {
		nothing = "No test found anything slower by more than %s. The step is untested.\n"
	}
	limit := strconv.FormatFloat(100*d.Limit, 'f', -1, 64) + " %"
	if len(list) == 0 {
		fmt.Fprintf(out, nothing, limit)
		return
	}
	fmt.Fprintf(out, "Slower by more than %s:\n", limit)
	long := false
	for _, x := range list {
		name := d.kind(x)
		if x != d.Step {
			name += " " + changeName(x, true)
		}
		name = Shorten(name)
		if x.Mean != nil && x.Mean.Relative == x.Slowdown() {
			name += " (mean)"
			long = true
		}
		fmt.Fprintf(out, "  %s  %s\n", compare.Percent(x.Slowdown()), name)
	}
	if long {
		fmt.Fprintln(out, "The mean is slower because some repetitions take much longer than the median.")
	}
}

// changeName returns the name of a row, on request with the shape of a kernel.
func changeName(x *compare.Change, shape bool) string {
	if x.Path != nil {
		return strings.Join(x.Path, " > ")
	}
	if text := gridText(x); shape && text != "" {
		return x.Name + " " + text
	}
	return x.Name
}

// gridText returns the grid and the block of a kernel, "" if they are unknown.
func gridText(x *compare.Change) string {
	if len(x.Grid) == 0 || len(x.Block) == 0 {
		return ""
	}
	return fmt.Sprint(x.Grid, " ", x.Block)
}

// lacksWork says that calls of a side are missing.
func (d *Diff) lacksWork() bool {
	return d.Comparison.A.Missing != nil || d.Comparison.B.Missing != nil
}

// calls returns the calls per step, or all calls without steps, "-" if they are unknown.
func (d *Diff) calls(x *compare.Change) string {
	if d.lacksWork() {
		return "-"
	}
	count := func(n, steps int64) string {
		if d.Step == nil || x.Path != nil {
			return strconv.FormatInt(n, 10)
		}
		each := float64(n) / float64(max(steps, 1))
		if each >= 100 {
			return strconv.FormatFloat(each, 'f', 0, 64)
		}
		return strconv.FormatFloat(each, 'g', 3, 64)
	}
	a, b := count(x.A.Count, d.Comparison.A.Steps), count(x.B.Count, d.Comparison.B.Steps)
	if a == b {
		return a
	}
	return a + "→" + b
}

// ns formats nanoseconds with three digits, in little space.
func ns(v float64) string { return strings.ReplaceAll(analysis.Duration(v), " ", "") }

func mean(s compare.Sums) string {
	if s.Count == 0 {
		return "-"
	}
	return ns(float64(s.Ns) / float64(s.Count))
}

func effect(v int64) string {
	switch {
	case v > 0:
		return "+" + ns(float64(v))
	case v < 0:
		return ns(float64(v))
	}
	return "0"
}

func relative(t *compare.Test) string {
	if t.A == 0 {
		return "-"
	}
	return fmt.Sprintf("%+.1f%%", 100*t.Relative)
}

func probability(t *compare.Test) string {
	if t.Adjusted < 0.0001 {
		return "p < 0.0001"
	}
	return fmt.Sprintf("p = %.2g", t.Adjusted)
}
