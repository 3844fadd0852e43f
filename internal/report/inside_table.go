// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gpuflight/gpuflight/internal/report/hotspot"
)

// maxReasons is how many stall reasons of a function the text has; the rest is one row.
const maxReasons = 5

// maxPath is the longest path of a source file that the text has whole, in characters.
const maxPath = 48

// Write prints the functions, each with its stall reasons, how well its lanes and its accesses to memory are
// used, and its worst lines. Nothing is printed of what was not measured.
func (i *Inside) Write(out io.Writer) error {
	if i.Empty() {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "Inside kernels: ", plural(uint64(i.Functions), "function"))
	if i.Samples > 0 {
		fmt.Fprint(w, ", ", plural(i.Samples, "sample"))
	}
	fmt.Fprintln(w)
	if i.Samples > 0 {
		fmt.Fprintln(w, "A sample is one measurement of one warp, which is 32 threads: at which instruction it was, and what it waited for.")
		fmt.Fprintln(w, "NOT ISSUED is the part in whose cycle nothing was issued: a wait with little of it is hidden by the work of other warps.")
	}
	fmt.Fprintln(w)
	for n := range i.Listed {
		writeFunction(w, &i.Listed[n])
	}
	if i.More > 0 {
		fmt.Fprintf(w, "(%s more)\n", plural(uint64(i.More), "function"))
	}
	i.writeLeftOut(w)
	return w.Flush()
}

// plural returns a number with a noun, whose plural has an s unless it is given.
func plural(n uint64, one string, many ...string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + append(many, one+"s")[0]
}

func writeFunction(w io.Writer, f *hotspot.Function) {
	name := Shorten(f.Name)
	switch f.Name {
	case "":
		name = "(function unknown)"
	case hotspot.Other:
		name = "(functions that are not told apart)"
	}
	fmt.Fprintln(w, name)
	if f.Samples > 0 {
		fmt.Fprintf(w, "  %s, %s of all%s\n", plural(f.Samples, "sample"), percent(f.Share), waiting(f))
	}
	if lanes, ok := f.Lanes(); ok {
		fmt.Fprintf(w, "  %.1f of the %d lanes (threads) of a warp active in the mean, in %s\n", lanes, hotspot.WarpLanes, plural(f.Executed, "warp instruction"))
	}
	if f.Contradictory() {
		fmt.Fprintln(w, "  active lanes are not known: there are more thread instructions than its warp instructions had lanes for, so rows of this recording are missing")
	}
	if on, ok := f.LanesOn(); ok && f.Executed == 0 {
		fmt.Fprintf(w, "  %.1f of the %d lanes (threads) of a warp took part in the mean, in %s of global memory\n", on, hotspot.WarpLanes, plural(f.OnOf, "request"))
	} else if ok {
		fmt.Fprintf(w, "  %.1f of %d lanes not switched off by a predicate\n", on, hotspot.WarpLanes)
	}
	if sectors, ok := f.SectorsPerRequest(); ok {
		fmt.Fprintf(w, "  %.1f sectors (of 32 bytes) moved a request of global memory", sectors)
		if ideal, ok := f.IdealPerRequest(); ok {
			fmt.Fprintf(w, ", where %.1f would do", ideal)
		}
		if times, ok := f.TimesIdeal(); ok {
			fmt.Fprintf(w, ": %.1f times the ideal", times)
		}
		fmt.Fprintf(w, ", in %s\n", plural(f.Requests, "request"))
	}
	fmt.Fprintln(w)
	writeReasons(w, f)
	writeLines(w, f.Lines, f.MoreLines, "SAMPLES\tSHARE\t  REASON\t  LINE WITH MOST SAMPLES\n", func(l *hotspot.Line) string {
		return fmt.Sprintf("%s\t%s\t  %s", Count(l.Samples), percent(l.Share), mainReason(l.Reasons))
	})
	hint(w, len(f.Divergent), "idle lanes", "have neighbouring threads do alike work, with cases sorted or one case a warp; take rare cases out into a kernel of their own")
	writeLines(w, f.Divergent, f.MoreDivergent, "LANES\tOF\tWARP INSTRUCTIONS\tIDLE LANES\t  DIVERGENT LINE\n", func(l *hotspot.Line) string {
		lanes, of, ok := l.KnownLanes()
		return fmt.Sprintf("%s\t%d\t%s\t%s", orDash(lanes, ok), hotspot.WarpLanes, Count(of), Count(l.IdleLanes()))
	})
	hint(w, len(f.Uncoalesced), "excess sectors", "have thread i read word i: transpose the loop or the array, use structures of arrays, align rows, or go through shared memory")
	writeLines(w, f.Uncoalesced, f.MoreUncoalesced, "SECTORS/REQUEST\tIDEAL\tTIMES\tREQUESTS\tEXCESS\t  UNCOALESCED LINE\n", func(l *hotspot.Line) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", orDash(l.SectorsPerRequest()), orDash(l.IdealPerRequest()),
			orDash(l.TimesIdeal()), Count(l.Requests), Count(l.Excess()))
	})
}

// waiting says in how many samples of a function its warps waited, and in how many the scheduler had nothing else
// to issue; "" where no reason is known.
func waiting(f *hotspot.Function) string {
	waits, idle, known := uint64(0), uint64(0), false
	for _, r := range f.Reasons {
		e, ok := hotspot.Explain(r.Name)
		known = known || ok
		if !ok || e.State == hotspot.Waiting {
			waits += r.Samples
		}
		idle += r.NotIssued
	}
	if !known {
		return ""
	}
	text := "; its warps waited in " + percent(float64(waits)/float64(f.Samples)) + " of them"
	if idle > 0 {
		text += ", and nothing was issued in " + percent(float64(idle)/float64(f.Samples))
	}
	return text
}

// hint says what may help against what a table of lines shows, if it has any.
func hint(w io.Writer, lines int, against, try string) {
	if lines > 0 {
		fmt.Fprintf(w, "  What may help against %s: %s.\n\n", against, try)
	}
}

// mainReason is why warps waited most at a line: what they did instead of waiting is said where they did
// not wait at all.
func mainReason(all []hotspot.Reason) string {
	for _, r := range all {
		if e, ok := hotspot.Explain(r.Name); !ok || e.State == hotspot.Waiting {
			return r.Name
		}
	}
	if len(all) > 0 {
		return all[0].Name
	}
	return "-"
}

func writeReasons(w io.Writer, f *hotspot.Function) {
	if len(f.Reasons) == 0 {
		return
	}
	// Where no sample says what else was issued in its cycle, it is not known; elsewhere none is 0.
	idle := slices.ContainsFunc(f.Reasons, func(r hotspot.Reason) bool { return r.NotIssued > 0 })
	fmt.Fprint(w, "SAMPLES\tSHARE\tNOT ISSUED\t  REASON\t  THE WARP\n")
	shown := f.Reasons[:min(len(f.Reasons), maxReasons)]
	for _, r := range shown {
		e, ok := hotspot.Explain(r.Name)
		if !ok {
			e.Means = "-"
		}
		part := "-"
		if idle && r.Samples > 0 && (!ok || e.State == hotspot.Waiting) {
			part = percent(float64(r.NotIssued) / float64(r.Samples))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t  %s\t  %s\n", Count(r.Samples), percent(r.Share), part, Shorten(r.Name), e.Means)
	}
	if rest := f.Reasons[len(shown):]; len(rest) > 0 {
		samples, share := uint64(0), 0.0
		for _, r := range rest {
			samples += r.Samples
			share += r.Share
		}
		fmt.Fprintf(w, "%s\t%s\t\t  (%d more)\t\n", Count(samples), percent(share), len(rest))
	}
	for _, r := range f.Reasons {
		if e, ok := hotspot.Explain(r.Name); ok && e.State == hotspot.Waiting {
			fmt.Fprintf(w, "  What may help against %s: %s.\n", r.Name, e.Try)
			break
		}
	}
	fmt.Fprintln(w)
}

func writeLines(w io.Writer, lines []hotspot.Line, more int, header string, figures func(*hotspot.Line) string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprint(w, header)
	for i := range lines {
		fmt.Fprintf(w, "%s\t  %s\n", figures(&lines[i]), where(&lines[i]))
	}
	if more > 0 {
		// As many empty cells as the header has, so that the row stays in the table.
		fmt.Fprintf(w, "%s  (%d more)\n", strings.Repeat("\t", strings.Count(header, "\t")), more)
	}
	fmt.Fprintln(w)
}

// where says which line, which instruction of it is the worst, and what that is.
func where(l *hotspot.Line) string {
	var b strings.Builder
	if l.Line > 0 {
		fmt.Fprintf(&b, "%s:%d", shortPath(l.File), l.Line)
	}
	if l.PC != nil {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "+%#x", *l.PC)
	}
	if l.SASS != "" {
		b.WriteString("  " + Shorten(l.SASS))
	}
	if l.Instructions > 1 {
		fmt.Fprintf(&b, "  (of %d instructions)", l.Instructions)
	}
	return b.String()
}

// shortPath keeps the end of a long path, from the beginning of a name on.
func shortPath(file string) string {
	file = Shorten(file)
	if file == "" {
		return "(file unknown)"
	}
	short, dir := path.Base(file), path.Dir(file)
	for dir != "." && dir != "/" {
		longer := path.Join(path.Base(dir), short)
		if len([]rune(longer)) > maxPath {
			return "…/" + short
		}
		short, dir = longer, path.Dir(dir)
	}
	if dir == "/" {
		return "/" + short
	}
	return short
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 1, 64) + "%" }

func orDash(v float64, ok bool) string {
	if !ok {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func (i *Inside) writeLeftOut(w io.Writer) {
	for _, l := range []struct {
		n    uint64
		text string
	}{
		{i.LeftOut.Functions, "samples and counters are of functions that are not told apart: there are too many"},
		{i.LeftOut.Places, "samples and counters are in the totals of their function only: there are too many places"},
		{i.LeftOut.Names, "samples and counters have lost the name of their reason, file or metric: there are too many"},
		{i.LeftOut.Instructions, "lines of listings were left out: there are too many, or they make no sense"},
		{i.LeftOut.Saturated, "sums were too large for 64 bits"},
		{i.Unread, "records of samples or counters have no figure"},
	} {
		if l.n > 0 {
			fmt.Fprintf(w, "%s %s\n", Count(l.n), l.text)
		}
	}
}
