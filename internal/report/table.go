// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

// Write prints the totals: at most top rows (0 for all) of each kind, in lines of a width (0 if it is
// unknown). Nothing is printed of what there is none of.
func (t *Totals) Write(out io.Writer, top, width int) error {
	var b bytes.Buffer
	t.writeKernels(&b, top, width)
	t.writeCopies(&b, top, width)
	t.writeScopes(&b, top, width)
	if t.Graphs > 0 {
		fmt.Fprintln(&b, plural(t.Graphs, "launch of graphs", "launches of graphs"))
	}
	t.writeLost(&b, width)
	_, err := out.Write(b.Bytes())
	return err
}

func (t *Totals) writeKernels(w io.Writer, top, width int) {
	if len(t.Kernels) == 0 {
		return
	}
	var all Row
	for i := range t.Kernels {
		all.add(&t.Kernels[i])
	}
	x := table{head: []string{"TIME", "SHARE", "CALLS", "MEAN", "MAX", "KERNEL"}}
	add := func(r *Row, name string) {
		share := 0.0
		if all.Total > 0 {
			share = 100 * float64(r.Total) / float64(all.Total)
		}
		x.add(Time(r.Total), fmt.Sprintf("%.1f%%", share), Count(r.Count), Time(r.Mean()), Time(r.Max), name)
	}
	rows, rest, more := cut(t.Kernels, top)
	names, shapes := make([]string, len(rows)), make([]string, len(rows))
	for i := range rows {
		names[i], shapes[i] = rows[i].Name, rows[i].Longest.Shape
		add(&rows[i], "")
	}
	if more > 0 {
		add(&rest, fmt.Sprintf("(%d more)", more))
	}
	add(&all, "(all)")
	for i, label := range kernelLabels(names, shapes, x.room(width)) {
		x.rows[i][len(x.head)-1] = label
	}
	x.write(w, width)
	fmt.Fprintln(w)
}

func (t *Totals) writeCopies(w io.Writer, top, width int) {
	rows, rest, names := cut(t.Copies, top)
	if names > 0 {
		rest.Name = fmt.Sprintf("(%d more)", names)
		rows = append(rows[:len(rows):len(rows)], rest)
	}
	if t.Sets.Count > 0 || t.Sets.Bytes > 0 {
		sets := t.Sets
		sets.Name = "(sets)"
		rows = append(rows[:len(rows):len(rows)], sets)
	}
	if len(rows) == 0 {
		return
	}
	x := table{head: []string{"TIME", "CALLS", "BYTES", "GB/S", "COPY"}}
	for i := range rows {
		r := &rows[i]
		rate := "-"
		if v := r.GBPerSecond(); v > 0 {
			rate = strconv.FormatFloat(v, 'f', 1, 64)
		}
		x.add(Time(r.Total), Count(r.Count), Count(r.Bytes), rate, cmp.Or(r.Name, "(kind unknown)"))
	}
	x.write(w, width)
	fmt.Fprintln(w)
}

// writeScopes prints the tree of scopes, or their list if the spans of some work are missing.
func (t *Totals) writeScopes(w io.Writer, top, width int) {
	if len(t.ScopeTree) == 0 {
		t.writeScopeList(w, top, width)
		return
	}
	x := table{head: []string{"ON DEVICE", "KERNELS", "WALL", "CALLS", "MEAN", "SCOPE"}}
	tree, more := topScopes(t.ScopeTree, top)
	for i := range tree {
		s := &tree[i]
		mean := "-"
		if s.Count > 0 {
			mean = Time(time.Duration(s.WallNs / s.Count))
		}
		x.add(Time(time.Duration(s.DeviceNs)), Count(uint64(s.Kernels)), Time(time.Duration(s.WallNs)), Count(uint64(s.Count)), mean,
			strings.Repeat("  ", len(s.Path)-1)+s.Path[len(s.Path)-1])
	}
	if more > 0 {
		x.add("", "", "", "", "", fmt.Sprintf("(%d more)", more))
	}
	x.write(w, width)
	fmt.Fprintln(w)
}

// topScopes returns the scopes with the most device time, in the order of the tree. These include the
// scopes around them.
func topScopes(tree []analysis.ScopeSum, top int) (first []analysis.ScopeSum, more int) {
	if top <= 0 || len(tree) <= top {
		return tree, 0
	}
	order := make([]int, len(tree))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(tree[b].DeviceNs, tree[a].DeviceNs) })
	order = order[:top]
	slices.Sort(order)
	for _, i := range order {
		first = append(first, tree[i])
	}
	return first, len(tree) - top
}

func (t *Totals) writeScopeList(w io.Writer, top, width int) {
	rows, rest, names := cut(t.Scopes, top)
	if names > 0 {
		rest.Name = fmt.Sprintf("(%d more)", names)
		rows = append(rows[:len(rows):len(rows)], rest)
	}
	x := table{head: []string{"WALL", "CALLS", "MEAN", "SELF ON DEVICE", "SCOPE"}}
	for i := range rows {
		r := &rows[i]
		x.add(Time(r.Total), Count(r.Count), Time(r.Mean()), Time(r.Device), r.Name)
	}
	if len(rows) > 0 {
		x.write(w, width)
		fmt.Fprintln(w)
	}
}

func (t *Totals) writeLost(w io.Writer, width int) {
	for _, l := range []struct {
		n    uint64
		text string
	}{
		{t.Estimated, "kernels, copies and other work of the device have times that are estimated, not measured"},
		{t.Slowed, "scopes took longer than usual, because a deep window was open"},
		{t.Sliced, "sessions were recorded in time slices, to keep an overhead budget: times and calls are those of the slices"},
		{t.Lost.Dropped, "records dropped: they came faster than they could be read"},
		{t.Lost.Rejected, "records rejected: they were invalid"},
		{t.Lost.LeftOut, "operations without a span, by limit or filter; times and counts include them"},
		{t.Lost.Unsampled, "operations without a span, because their trace is not sampled; times and counts include them"},
	} {
		if l.n > 0 {
			prose(w, "", Count(l.n)+" "+l.text, width)
		}
	}
}

// cut returns the first top rows and the sum of the other names.
func cut(rows []Row, top int) (first []Row, rest Row, names int) {
	if top <= 0 || len(rows) <= top {
		return rows, Row{}, 0
	}
	for i := range rows[top:] {
		rest.add(&rows[top+i])
	}
	return rows[:top], rest, len(rows) - top
}

// Shorten makes a name one short line: control characters become spaces, and of a long one the
// beginning and the end stay.
func Shorten(name string) string { return clean(name, maxCell) }

// clean is Shorten for texts of another length.
func clean(text string, most int) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 {
			return ' '
		}
		return c
	}, text)
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	runes := []rune(text)
	end := min(20, most/3)
	return string(runes[:most-end-1]) + "…" + string(runes[len(runes)-end:])
}

// Time prints a duration with three or four digits.
func Time(d time.Duration) string {
	switch {
	case d >= 100*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + "s"
	case d >= time.Millisecond:
		return strconv.FormatFloat(float64(d)/1e6, 'f', 2, 64) + "ms"
	case d >= time.Microsecond:
		return strconv.FormatFloat(float64(d)/1e3, 'f', 2, 64) + "µs"
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

// Count prints a number with commas between thousands.
func Count(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, c := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}
