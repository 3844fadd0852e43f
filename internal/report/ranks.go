// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Ranks compares the sessions of a run. Without the name of a run, the files must have the sessions of
// one run, or of none. It keeps at most limit collectives.
func (c *Causes) Ranks(ctx context.Context, run string, limit int) (*ranks.Result, error) {
	if c.full {
		return nil, fmt.Errorf("the files have more than %s operations: send them to a Collector and use --run", Count(maxOperations))
	}
	byRun := map[string][]ranks.Input{}
	for _, s := range c.order {
		in := ranks.Input{Session: s.id, Service: s.service, Source: &s.rows, Rank: -1, Size: -1}
		for _, a := range s.resource {
			switch a.Key {
			case semconv.CUDARunID:
				in.Run = a.Value.Str
			case semconv.HostName:
				in.Host = a.Value.Str
			case semconv.HostID:
				in.HostID = a.Value.Str
			case semconv.CUDARunRank:
				in.Rank = integer(a.Value)
			case semconv.CUDARunSize:
				in.Size = integer(a.Value)
			}
		}
		if s.rows.Operations() == 0 && in.Rank < 0 {
			continue // such as the launcher
		}
		byRun[in.Run] = append(byRun[in.Run], in)
	}
	if len(byRun) == 0 {
		return nil, fmt.Errorf("the files contain no GPU work")
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(byRun)), func(s string) bool { return s == "" })
	if run == "" && len(names) == 1 {
		run = names[0]
	}
	switch {
	case run == "" && len(names) > 1:
		return nil, fmt.Errorf("the files have sessions of %d runs: use --run with one of %s", len(names), list(names))
	case len(byRun[run]) == 0:
		return nil, fmt.Errorf("the files have no session of run %q: they have %s", run, list(names))
	}
	return ranks.Run(ctx, byRun[run], ranks.Options{Limit: limit})
}

func integer(v store.Value) int {
	if v.Kind != store.KindInt || v.Int < 0 || v.Int > 1<<31-1 {
		return -1
	}
	return int(v.Int)
}

// list returns at most ten names.
func list(names []string) string {
	if len(names) == 0 {
		return "no run"
	}
	more := ""
	if len(names) > 10 {
		names, more = names[:10], ", …"
	}
	for i := range names {
		names[i] = strconv.Quote(clean(names[i], maxCell))
	}
	return strings.Join(names, ", ") + more
}

// WriteRanksJSON prints the comparison as one object of JSON.
func WriteRanksJSON(out io.Writer, r *ranks.Result) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteRanks prints the comparison of ranks in lines of a width (0 if it is unknown), with at most top
// collectives.
func WriteRanks(out io.Writer, r *ranks.Result, top, width int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s of several ranks in %s\n\n", plural(uint64(len(r.Ranks)), "rank"), plural(uint64(r.Total), "collective"), Time(time.Duration(r.WallNs)))
	writeRanks(&b, r, width)
	writeClocks(&b, r, width)
	writeBandwidths(&b, r, width)
	for i, f := range r.Findings {
		lead := fmt.Sprintf("%d. ", i+1)
		prose(&b, lead, f.Text, width)
		indent := strings.Repeat(" ", len(lead))
		prose(&b, indent, fmt.Sprintf("Gain at most %s: %s.", Time(time.Duration(f.GainNs)), f.Formula), width)
		if c := r.Ranks[f.Rank].Cause; c != nil && len(c.Evidence) > 0 {
			var spans []string
			for _, e := range c.Evidence {
				spans = append(spans, fmt.Sprintf("%016x", uint64(e.Span)))
			}
			prose(&b, indent, fmt.Sprintf("Spans of session %s: %s", r.Ranks[f.Rank].Session, strings.Join(spans, " ")), width)
		}
	}
	if len(r.Findings) == 0 && r.Total > 0 {
		prose(&b, "", "No rank delays the others by 1 % of the time or more.", width)
	}
	for _, g := range r.Groups {
		for _, f := range g.Findings {
			prose(&b, "", "Ranks "+members(r, &g)+": "+f, width)
		}
	}
	b.WriteByte('\n')
	writeCollectives(&b, r, top, width)
	for _, p := range r.Problems {
		prose(&b, "", p, width)
	}
	for _, g := range r.Groups {
		if g.Uncertain == "" && g.Complete == g.Collectives {
			continue
		}
		text := fmt.Sprintf("Ranks %s: %s of %s have parts of all ranks.", members(r, &g), Count(uint64(g.Complete)), plural(uint64(g.Collectives), "collective"))
		if g.Uncertain != "" {
			text += " It is uncertain which parts belong together: " + g.Uncertain + "."
		}
		prose(&b, "", text, width)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// writeRanks prints a row for each rank, without the columns of communication if no collective is a kernel.
func writeRanks(out io.Writer, r *ranks.Result, width int) {
	kernels := slices.ContainsFunc(r.Ranks, func(x ranks.Rank) bool { return x.CommunicationNs > 0 })
	columns := func(cells ...string) []string {
		if !kernels {
			cells = slices.Delete(cells, 5, 8)
		}
		return cells
	}
	t := table{head: columns("RANK", "LAST", "CERTAIN", "LATE", "WAITED", "COMM", "EXPOSED", "OVERLAPPED", "MATCHED", "HOST")}
	for i := range r.Ranks {
		x := &r.Ranks[i]
		t.add(columns(strconv.Itoa(x.Rank), Count(uint64(x.Last)), Count(uint64(x.Proven)), Time(time.Duration(x.LateNs)), Time(time.Duration(x.WaitedNs)),
			Time(time.Duration(x.CommunicationNs)), Time(time.Duration(x.ExposedNs)), Time(time.Duration(x.OverlappedNs)),
			Count(uint64(x.Matched))+"/"+Count(uint64(x.Collectives)), x.Host)...)
	}
	t.write(out, width)
	fmt.Fprintln(out)
}

// members lists the ranks of a group.
func members(r *ranks.Result, g *ranks.Group) string {
	var names []string
	for _, i := range g.Ranks {
		names = append(names, strconv.Itoa(r.Ranks[i].Rank))
	}
	return strings.Join(names, ", ")
}

// writeBandwidths prints the bus bandwidths of each group.
func writeBandwidths(out io.Writer, r *ranks.Result, width int) {
	t := table{head: []string{"BUS BANDWIDTH", "MEDIAN", "BEST", "PEAK", "COLLECTIVES", "BYTES", "RANKS"}}
	speed := func(v float64) string { return strconv.FormatFloat(v/1e9, 'f', 1, 64) + "GB/s" }
	for _, g := range r.Groups {
		peak := "-"
		if g.Peak > 0 {
			peak = speed(g.Peak)
		}
		for _, b := range g.Bandwidths {
			t.add(b.Kind.String(), speed(b.Median), speed(b.Best), peak, Count(uint64(b.Collectives)), Count(uint64(b.Bytes)), members(r, &g))
		}
	}
	if len(t.rows) > 0 {
		t.write(out, width)
		fmt.Fprintln(out)
	}
}

func writeClocks(out io.Writer, r *ranks.Result, width int) {
	t := table{head: []string{"CLOCK OF", "AHEAD OF", "BY", "AT LEAST", "AT MOST", "DRIFT", "SESSION"}}
	for i := range r.Ranks {
		x := &r.Ranks[i]
		o := x.Offset
		if o == nil || x.Reference == x.Rank {
			continue
		}
		least, most := "-", "-"
		if o.MinNs != nil && o.MaxNs != nil {
			least, most = millis(*o.MinNs), millis(*o.MaxNs)
		}
		t.add(fmt.Sprintf("rank %d", x.Rank), fmt.Sprintf("rank %d", x.Reference), millis(o.Ns), least, most, strconv.FormatFloat(o.PPM, 'f', 1, 64)+" ppm", x.Session)
	}
	if len(t.rows) > 0 {
		t.write(out, width)
		fmt.Fprintln(out)
	}
}

// millis prints a difference of clocks to the microsecond, which is the error of one time.
func millis(ns int64) string { return strconv.FormatFloat(float64(ns)/1e6, 'f', 3, 64) + "ms" }

// difference prints a time that can be negative.
func difference(ns int64) string {
	if ns < 0 {
		return "-" + Time(time.Duration(-ns))
	}
	return Time(time.Duration(ns))
}

func writeCollectives(out io.Writer, r *ranks.Result, top, width int) {
	var late []*ranks.Together
	for i := range r.Collectives {
		if r.Collectives[i].Late != nil {
			late = append(late, &r.Collectives[i])
		}
	}
	slices.SortStableFunc(late, func(a, b *ranks.Together) int { return cmp.Compare(b.Late.Ns, a.Late.Ns) })
	t := table{head: []string{"FIRST ENTERS", "LAST", "LATE", "AT LEAST", "AT MOST", "SPREAD", "SPAN", "COLLECTIVE"}}
	for _, x := range late[:min(len(late), top)] {
		least, most := "-", "-"
		if x.Late.MinNs != nil && x.Late.MaxNs != nil {
			least, most = difference(*x.Late.MinNs), difference(*x.Late.MaxNs)
		}
		first := slices.MinFunc(x.Parts, func(a, b ranks.Part) int { return cmp.Compare(a.Enter, b.Enter) }).Enter
		for _, p := range x.Parts {
			if p.Rank == x.Late.Rank {
				t.add(Time(time.Duration(first)), fmt.Sprintf("rank %d", r.Ranks[p.Rank].Rank), Time(time.Duration(x.Late.Ns)), least, most,
					Time(time.Duration(x.Late.SpreadNs)), fmt.Sprintf("%016x", uint64(p.Span)), x.Name)
			}
		}
	}
	if len(t.rows) > 0 {
		t.write(out, width)
		fmt.Fprintln(out)
	}
}
