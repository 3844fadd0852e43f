// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// maxMessages is how many different messages of windows the text has.
const maxMessages = 20

// maxSentence is the longest message of a window that the text has, in characters.
const maxSentence = 500

// Write prints the windows, at most top of them (0 for all), what they lost, and what that means for the shares
// that come of them. Nothing is printed where there was no window.
func (w *Windows) Write(out io.Writer, top int) error {
	if w.Nothing() {
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "Deep windows: ", Count(uint64(len(w.List))))
	if w.Empty > 0 {
		fmt.Fprintf(t, ", %s of them without figures", Count(uint64(w.Empty)))
	}
	if w.Sum.Paused > 0 {
		fmt.Fprintf(t, "; nothing else was recorded for %s of that time", Time(w.Sum.Paused))
	}
	fmt.Fprint(t, "\n\nLENGTH\tSAMPLES\tLOST\tROWS\t  ENGINE\t  WINDOW\n")
	list, processes := w.List, w.processes()
	if top > 0 && len(list) > top {
		list = list[:top]
	}
	for i := range list {
		list[i].write(t, processes > 1)
	}
	if rest := w.List[len(list):]; len(rest) > 0 {
		var sum WindowFigures
		length := time.Duration(0)
		for i := range rest {
			figures := rest[i].WindowFigures
			if !slices.Contains(rest[i].Engines, samplingEngine) {
				figures.Samples = 0 // they are counters
			}
			sum.add(&figures)
			length += rest[i].Length
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\t  (%d more)\n", Time(length), Count(sum.Samples), Count(sum.Lost), Count(sum.Rows), len(rest))
	}
	fmt.Fprintln(t)
	w.writeMessages(t)
	w.writeLosses(t)
	if w.More {
		fmt.Fprintf(t, "There are more windows than %s; those are not in these sums.\n", Count(maxWindows))
	}
	fmt.Fprintln(t)
	return t.Flush()
}

// processes is how many processes had windows, those without a known id counted as one.
func (w *Windows) processes() int {
	all := map[int64]struct{}{}
	for i := range w.List {
		all[w.List[i].PID] = struct{}{}
	}
	return len(all)
}

// write prints the row of a window.
func (w *Window) write(t io.Writer, process bool) {
	samples, lost, rows, engines := "-", "-", "-", "-"
	if w.collected() {
		lost, rows = Count(w.Lost), Count(w.Rows)
		if slices.Contains(w.Engines, samplingEngine) {
			samples = Count(w.Samples)
		}
	}
	if len(w.Engines) > 0 {
		engines = Shorten(strings.Join(w.Engines, ", "))
	}
	name := fmt.Sprint(w.ID)
	if process {
		name += fmt.Sprintf(" of process %d", w.PID)
	}
	if w.Cause != "" {
		name += ", by " + w.Cause
	}
	if w.Why != "" {
		name += " (" + w.Why + ")"
	}
	switch {
	case !w.collected():
		name += ": " + w.Status
	case w.Closing != "" && w.Closing != string(deep.ClosedTime):
		name += ", closed by " + w.Closing
	}
	fmt.Fprintf(t, "%s\t%s\t%s\t%s\t  %s\t  %s\n", Time(w.Length), samples, lost, rows, engines, Shorten(name))
}

// writeMessages says once for each reason why windows have no figures, and what was amiss in those that have.
func (w *Windows) writeMessages(t io.Writer) {
	type message struct {
		text    string
		windows uint64
	}
	var all []message
	more := uint64(0)
	at := map[string]int{}
	for i := range w.List {
		x := &w.List[i]
		text := ", " + clean(x.Status, maxCell) + ": " + clean(x.Message, maxSentence)
		if x.collected() {
			// What stands behind the first sentence is not whole.
			_, rest, found := strings.Cut(x.Message, "; ")
			if !found {
				continue
			}
			text = ": " + clean(rest, maxSentence)
		}
		n, known := at[text]
		if !known {
			if len(all) == maxMessages {
				more++
				continue
			}
			n = len(all)
			at[text] = n
			all = append(all, message{text: text})
		}
		all[n].windows++
	}
	for _, m := range all {
		fmt.Fprintf(t, "%s%s.\n", plural(m.windows, "window"), m.text)
	}
	if more > 0 {
		fmt.Fprintf(t, "%s with other messages: --json has them.\n", plural(more, "window"))
	}
}

// writeLosses says what was lost, each with what it means for the figures, and at the end whether shares hold.
func (w *Windows) writeLosses(t io.Writer) {
	s := &w.Sum
	if w.Collected == 0 {
		return
	}
	// Losses of which more may have hit one line than another.
	uneven := false
	say := func(n uint64, harm bool, what, much, means string) {
		if n == 0 {
			return
		}
		uneven = uneven || harm
		fmt.Fprintf(t, "%s: %s. %s.\n", what, much, means)
	}
	say(s.HardwareFull, true, "Buffer of the hardware full", times(s.HardwareFull),
		"What ran from then on until it was read is not in the samples, so that shares lean towards what ran just after each reading; a longer period (GPUFLIGHT_DEEP_PERIOD) fills it more slowly")
	say(s.Dropped, false, "Dropped by the hardware", w.share(s.Dropped), "Any may be hit, so totals are too small and shares stay as they are")
	if all, known := w.sampled(); known && s.NonUser > all/2 {
		say(s.NonUser, true, "Of code that CUPTI does not show", w.share(s.NonUser),
			"These are most samples, and in no share; CUPTI may not know modules that were loaded before recording began")
	} else {
		say(s.NonUser, false, "Of code that CUPTI does not show", w.share(s.NonUser), "They are in no share")
	}
	rest := s.Lost - min(s.Lost, s.Dropped+s.NonUser)
	if s.RowsLost > 0 {
		say(s.RowsLost, true, "Without room while a window was open", plural(s.RowsLost, "row")+" of "+plural(rest, "sample"),
			"Lines that were first seen late may be missing; shorter windows need less room")
	} else {
		say(rest, true, "Lost otherwise", plural(rest, "figure"), "There was no room for them, or they made no sense")
	}
	say(s.Other, false, "Above the most that a window sends", plural(s.Other, "row"), "They are the smallest, and summed by function, without their line; GPUFLIGHT_DEEP_ROWS allows more")
	say(s.SkippedContexts, true, "Not looked at", plural(s.SkippedContexts, "CUDA context"), "PC sampling sees one context of each device, and what ran in others is in no figure")
	say(s.LostContexts, true, "Ended before all was read", plural(s.LostContexts, "CUDA context"), "The last of what ran there is in no figure")
	if uneven {
		fmt.Fprintln(t, "So the shares below are of what was seen, and what was not seen may differ: the large ones hold, small differences do not.")
	} else if s.Lost > 0 || s.Other > 0 {
		fmt.Fprintln(t, "So the shares below hold.")
	} else {
		fmt.Fprintln(t, "Nothing that was taken was lost.")
	}
	longest, released := "", ""
	if s.LongestHold > 0 {
		longest = ", " + Time(s.LongestHold) + " at most"
	}
	if s.Released > 0 {
		released = fmt.Sprintf("; %s of them went on before the window was done, since that took too long", Count(s.Released))
	}
	say(s.Held, false, "Had to wait for a window", plural(s.Held, "call")+" of the program"+longest, "It lost that time"+released)
	say(s.Unresolved, false, "Without a source line", plural(s.Unresolved, "row"), "Compile with -lineinfo; code that is made at run time needs line tables of its own")
	say(s.WithoutListing, false, "Without the text of the instruction", plural(s.WithoutListing, "row"),
		"There was no nvdisasm where the program ran (in PATH, or named by GPUFLIGHT_NVDISASM), it failed, or the code was not kept")
	say(w.WithoutListing, false, "Without the text of their instructions", plural(w.WithoutListing, "function"),
		"nvdisasm was not ready when the program ended, or failed; a longer GPUFLIGHT_SHUTDOWN_TIMEOUT gives it more time")
	if len(w.Missing) > 0 {
		fmt.Fprintf(t, "Not known to the device: %s.\n", clean(strings.Join(w.Missing, ", "), maxSentence))
	}
}

// share says how many samples something is, and which part of all where all are samples.
func (w *Windows) share(n uint64) string {
	s := plural(n, "sample")
	all, known := w.sampled()
	if !known || all < n || all == 0 {
		return s
	}
	part := percent(float64(n) / float64(all))
	if n > 0 && part == percent(0) {
		part = "less than 0.1%"
	}
	return fmt.Sprintf("%s (%s of all)", s, part)
}

// sampled is how many samples all windows took; false where a window has one number for samples and counters.
func (w *Windows) sampled() (all uint64, known bool) {
	for i := range w.List {
		x := &w.List[i]
		if x.collected() && !x.sampled() && x.Dropped+x.NonUser > 0 {
			return 0, false
		}
		if x.sampled() {
			all += x.Samples
		}
	}
	return all, true
}

// times says how often.
func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return Count(n) + " times"
}
