// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// maxCell is the longest name that a table shows, in characters: C++ names fill pages.
const maxCell = 90

// Write prints the totals: at most top rows (0 for all) of each kind. Nothing is printed of what there
// is none of.
func (t *Totals) Write(out io.Writer, top int) error {
	// Errors are remembered by the tabwriter, and given at its Flush.
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	t.writeKernels(w, top)
	t.writeCopies(w, top)
	t.writeScopes(w, top)
	if t.Graphs > 0 {
		fmt.Fprintf(w, "%s launches of graphs\n", Count(t.Graphs))
	}
	t.writeLost(w)
	return w.Flush()
}

// The last cell of a line is not aligned by the tabwriter: there go the names, whatever their length.

func (t *Totals) writeKernels(w io.Writer, top int) {
	if len(t.Kernels) == 0 {
		return
	}
	var all Row
	for i := range t.Kernels {
		all.add(&t.Kernels[i])
	}
	fmt.Fprint(w, "TIME\tSHARE\tCALLS\tMEAN\tMAX\t  KERNEL\n")
	rows, rest, names := cut(t.Kernels, top)
	for i := range rows {
		writeKernel(w, &rows[i], all.Total, shorten(rows[i].Name))
	}
	if names > 0 {
		writeKernel(w, &rest, all.Total, fmt.Sprintf("(%d more)", names))
	}
	writeKernel(w, &all, all.Total, "(all)")
	fmt.Fprintln(w)
}

func writeKernel(w io.Writer, r *Row, all time.Duration, name string) {
	share := 0.0
	if all > 0 {
		share = 100 * float64(r.Total) / float64(all)
	}
	fmt.Fprintf(w, "%s\t%.1f%%\t%s\t%s\t%s\t  %s\n", Time(r.Total), share, Count(r.Count), Time(r.Mean()), Time(r.Max), name)
}

func (t *Totals) writeCopies(w io.Writer, top int) {
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
	fmt.Fprint(w, "TIME\tCALLS\tBYTES\tGB/S\t  COPY\n")
	for i := range rows {
		r := &rows[i]
		rate := "-"
		if v := r.GBPerSecond(); v > 0 {
			rate = strconv.FormatFloat(v, 'f', 1, 64)
		}
		name := r.Name
		if name == "" {
			name = "(kind unknown)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t  %s\n", Time(r.Total), Count(r.Count), Count(r.Bytes), rate, shorten(name))
	}
	fmt.Fprintln(w)
}

func (t *Totals) writeScopes(w io.Writer, top int) {
	if len(t.Scopes) == 0 {
		return
	}
	fmt.Fprint(w, "TIME\tCALLS\tMEAN\tON DEVICE\t  SCOPE\n")
	rows, rest, names := cut(t.Scopes, top)
	if names > 0 {
		rest.Name = fmt.Sprintf("(%d more)", names)
		rows = append(rows[:len(rows):len(rows)], rest)
	}
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t  %s\n", Time(r.Total), Count(r.Count), Time(r.Mean()), Time(r.Device), shorten(r.Name))
	}
	fmt.Fprintln(w)
}

func (t *Totals) writeLost(w io.Writer) {
	for _, l := range []struct {
		n    uint64
		text string
	}{
		{t.Estimated, "kernels, copies and other work of the device have times that are estimated, not measured"},
		{t.Slowed, "scopes that took longer than they would have, since a deep window was open"},
		{t.Sliced, "sessions were recorded in time slices, to keep an overhead budget: times and calls are those of the slices"},
		{t.Lost.Dropped, "records dropped: they came faster than they could be read"},
		{t.Lost.Rejected, "records rejected: they made no sense"},
		{t.Lost.LeftOut, "without a span, by limit or filter; times and counts have them"},
		{t.Lost.Unsampled, "without a span, since their trace is not sampled; times and counts have them"},
	} {
		if l.n > 0 {
			fmt.Fprintf(w, "%s %s\n", Count(l.n), l.text)
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

// shorten makes a name one short line: control characters become spaces, and of a long one the
// beginning and the end stay.
func shorten(name string) string { return clean(name, maxCell) }

// clean is shorten for texts of another length.
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
	const end = 20
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
