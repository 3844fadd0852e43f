// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"io"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/report/hotspot"
)

// The JSON of a report, for programs. Times are in seconds and shares 0–1; what is unknown is absent.

type jsonReport struct {
	Sessions int         `json:"sessions"`
	Kernels  []jsonRow   `json:"kernels"`
	Copies   []jsonRow   `json:"copies"`
	Sets     jsonRow     `json:"sets"`
	Scopes   []jsonScope `json:"scopes"`
	Graphs   uint64      `json:"graphs"`
	// Estimated is how much device work has times that are not measured.
	Estimated uint64 `json:"estimated"`
	// Slowed is how many scopes deep windows made longer, Sliced how many sessions an overhead budget had recorded in time slices.
	Slowed  uint64       `json:"slowed_scopes,omitempty"`
	Sliced  uint64       `json:"sliced_sessions,omitempty"`
	Lost    jsonLost     `json:"lost"`
	Windows *jsonWindows `json:"windows,omitempty"`
	Inside  *jsonInside  `json:"inside,omitempty"`
	// Analyses has whole nanoseconds, because its sums are exact.
	Analyses []jsonAnalysis `json:"analyses,omitempty"`
}

type jsonAnalysis struct {
	Session string `json:"session"`
	Service string `json:"service"`
	*analysis.Answer
	// Scopes are the times of scopes on the device with the most kernel time.
	Scopes []analysis.AnswerScopeTime `json:"scope_times"`
	// Paths are the critical paths of the typical step and of the first outlier: openapi.yaml describes them
	// as CriticalPath.
	Paths []jsonPath `json:"critical_paths"`
}

type jsonPath struct {
	Step int64 `json:"step"`
	*analysis.AnswerPath
}

// jsonParts bounds the parts of a path.
const jsonParts = 100

type jsonRow struct {
	Name       string      `json:"name,omitempty"`
	Count      uint64      `json:"count"`
	Seconds    float64     `json:"seconds"`
	MaxSeconds float64     `json:"max_seconds"`
	Bytes      uint64      `json:"bytes,omitempty"`
	Longest    *jsonLaunch `json:"longest,omitempty"`
}

// jsonLaunch is an operation or scope. The start is Unix nanoseconds.
type jsonLaunch struct {
	Span    string `json:"span"`
	StartNs uint64 `json:"start,string"`
	Shape   string `json:"shape,omitempty"`
}

// jsonScope is the scopes of one path.
type jsonScope struct {
	Path       []string `json:"path"`
	Count      uint64   `json:"count"`
	Seconds    float64  `json:"seconds"`
	MaxSeconds float64  `json:"max_seconds"`
	// SelfSeconds is device time of work that no scope below launched, DeviceSeconds of all. The number
	// of kernels and DeviceSeconds are absent if spans are missing.
	SelfSeconds   float64     `json:"self_device_seconds"`
	DeviceSeconds *float64    `json:"device_seconds,omitempty"`
	Kernels       *int64      `json:"kernels,omitempty"`
	Longest       *jsonLaunch `json:"longest,omitempty"`
}

type jsonLost struct {
	Dropped   uint64 `json:"records_dropped"`
	Rejected  uint64 `json:"records_rejected"`
	LeftOut   uint64 `json:"spans_left_out"`
	Unsampled uint64 `json:"spans_unsampled"`
}

// jsonWindows are deep windows: the sums of all, and the first ones.
type jsonWindows struct {
	Collected int  `json:"collected"`
	Empty     int  `json:"without_figures"`
	More      bool `json:"more,omitempty"`
	// WithoutListing are functions whose instructions have no text, since it was not ready.
	WithoutListing uint64 `json:"functions_without_sass"`
	jsonFigures
	Missing []string     `json:"missing,omitempty"`
	List    []jsonWindow `json:"list"`
}

type jsonWindow struct {
	ID      int64    `json:"id"`
	PID     int64    `json:"pid,omitempty"`
	Engines []string `json:"engines,omitempty"`
	Cause   string   `json:"cause,omitempty"`
	Why     string   `json:"why,omitempty"`
	Status  string   `json:"status"`
	Message string   `json:"message,omitempty"`
	Closing string   `json:"closed,omitempty"`
	StartNs int64    `json:"start_unix_nano"`
	Seconds float64  `json:"seconds"`
	jsonFigures
}

type jsonFigures struct {
	PausedSeconds   float64 `json:"paused_seconds"`
	Samples         uint64  `json:"samples"`
	Lost            uint64  `json:"lost"`
	Dropped         uint64  `json:"samples_dropped"`
	NonUser         uint64  `json:"samples_non_user"`
	HardwareFull    uint64  `json:"hardware_full"`
	Rows            uint64  `json:"rows"`
	Other           uint64  `json:"rows_other"`
	RowsLost        uint64  `json:"rows_lost"`
	Unresolved      uint64  `json:"rows_unresolved"`
	WithoutListing  uint64  `json:"rows_without_sass"`
	SkippedContexts uint64  `json:"contexts_skipped"`
	LostContexts    uint64  `json:"contexts_lost"`
	Held            uint64  `json:"calls_held"`
	Released        uint64  `json:"calls_released"`
	LongestHold     float64 `json:"longest_hold_seconds"`
}

type jsonInside struct {
	hotspot.Totals
	Unread uint64         `json:"unread_records"`
	Listed []jsonFunction `json:"by_function"`
	More   int            `json:"more_functions"`
}

// jsonFunction has the quotients besides the sums, and its lines have them too.
type jsonFunction struct {
	*hotspot.Function
	jsonQuotients
	Lines       []jsonLine `json:"lines,omitempty"`
	Divergent   []jsonLine `json:"divergent,omitempty"`
	Uncoalesced []jsonLine `json:"uncoalesced,omitempty"`
}

type jsonLine struct {
	*hotspot.Line
	jsonQuotients
}

type jsonQuotients struct {
	Lanes             *float64 `json:"lanes,omitempty"`
	LanesOn           *float64 `json:"lanes_on,omitempty"`
	SectorsPerRequest *float64 `json:"sectors_per_request,omitempty"`
	IdealPerRequest   *float64 `json:"ideal_sectors_per_request,omitempty"`
	TimesIdeal        *float64 `json:"times_ideal,omitempty"`
}

// WriteJSON prints the totals, the deep windows, what was measured inside kernels, and the analyses, as one object
// of JSON: at most top rows (0 for all) of each kind.
//
// Analyses are [analysis.Answer]s, relative to the begin of their interval.
func WriteJSON(out io.Writer, t *Totals, windows *Windows, inside *Inside, analyses []SessionCauses, top int) error {
	j := jsonReport{
		Sessions: t.Sessions, Kernels: jsonRows(t.Kernels, top), Copies: jsonRows(t.Copies, top),
		Sets: jsonRowOf(&t.Sets), Scopes: jsonScopes(t, top), Graphs: t.Graphs, Estimated: t.Estimated, Slowed: t.Slowed, Sliced: t.Sliced, Lost: jsonLost(t.Lost),
	}
	for i := range analyses {
		a := &analyses[i]
		x := jsonAnalysis{a.Session, a.Service, analysis.NewAnswer(a.Result, a.FromNs), analysis.NewAnswerScopeTimes(a.Times), []jsonPath{}}
		for _, p := range a.Paths {
			x.Paths = append(x.Paths, jsonPath{p.Step.Number, analysis.NewAnswerPath(p.CriticalPath, a.FromNs, jsonParts)})
		}
		j.Analyses = append(j.Analyses, x)
	}
	if !windows.Nothing() {
		j.Windows = jsonWindowsOf(windows, top)
	}
	if !inside.Empty() {
		j.Inside = &jsonInside{Totals: inside.Totals, Unread: inside.Unread, Listed: []jsonFunction{}, More: inside.More}
		for i := range inside.Listed {
			f := &inside.Listed[i]
			j.Inside.Listed = append(j.Inside.Listed, jsonFunction{
				Function: f, jsonQuotients: quotients(&f.Counts),
				Lines: jsonLines(f.Lines), Divergent: jsonLines(f.Divergent), Uncoalesced: jsonLines(f.Uncoalesced),
			})
		}
	}
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false) // names of C++ are full of < and >
	e.SetIndent("", "  ")
	return e.Encode(&j)
}

// jsonRows returns the first rows, and the sum of the others as one more by the name of [other].
func jsonRows(rows []Row, top int) []jsonRow {
	first, rest, names := cut(rows, top)
	out := make([]jsonRow, 0, len(first)+1)
	for i := range first {
		out = append(out, jsonRowOf(&first[i]))
	}
	if names > 0 {
		rest.Name = other
		out = append(out, jsonRowOf(&rest))
	}
	return out
}

func jsonRowOf(r *Row) jsonRow {
	return jsonRow{r.Name, r.Count, r.Total.Seconds(), r.Max.Seconds(), r.Bytes, r.Longest.json()}
}

func (l *Launch) json() *jsonLaunch {
	if l.Span.IsEmpty() {
		return nil
	}
	return &jsonLaunch{l.Span.String(), l.StartNs, l.Shape}
}

// jsonScopes returns the scopes with the most device time, in the order of the tree.
func jsonScopes(t *Totals, top int) []jsonScope {
	out := []jsonScope{}
	if len(t.ScopeTree) == 0 {
		first, _, _ := cut(t.Scopes, top)
		for i := range first {
			r := &first[i]
			out = append(out, jsonScope{
				Path: []string{r.Name}, Count: r.Count, Seconds: r.Total.Seconds(), MaxSeconds: r.Max.Seconds(),
				SelfSeconds: r.Device.Seconds(), Longest: r.Longest.json(),
			})
		}
		return out
	}
	first, _ := topScopes(t.ScopeTree, top)
	for i := range first {
		s := &first[i]
		device := float64(s.DeviceNs) / 1e9
		out = append(out, jsonScope{
			Path: s.Path, Count: uint64(s.Count), Seconds: float64(s.WallNs) / 1e9, MaxSeconds: float64(s.MaxNs) / 1e9,
			SelfSeconds: float64(s.SelfNs) / 1e9, DeviceSeconds: &device, Kernels: &s.Kernels,
		})
		if s.Count > 0 {
			out[i].Longest = &jsonLaunch{Span: analysis.SpanText(s.Longest.Span), StartNs: uint64(s.Longest.StartNs)}
		}
	}
	return out
}

func jsonWindowsOf(w *Windows, top int) *jsonWindows {
	out := &jsonWindows{
		Collected: w.Collected, Empty: w.Empty, More: w.More, WithoutListing: w.WithoutListing, jsonFigures: jsonFiguresOf(&w.Sum), Missing: w.Missing, List: []jsonWindow{},
	}
	for i := range w.List {
		if top > 0 && i == top {
			break
		}
		x := &w.List[i]
		out.List = append(out.List, jsonWindow{
			ID: x.ID, PID: x.PID, Engines: x.Engines, Cause: x.Cause, Why: x.Why, Status: x.Status, Message: x.Message, Closing: x.Closing,
			StartNs: x.Start.UnixNano(), Seconds: x.Length.Seconds(), jsonFigures: jsonFiguresOf(&x.WindowFigures),
		})
	}
	return out
}

func jsonFiguresOf(f *WindowFigures) jsonFigures {
	return jsonFigures{
		f.Paused.Seconds(), f.Samples, f.Lost, f.Dropped, f.NonUser, f.HardwareFull, f.Rows, f.Other, f.RowsLost, f.Unresolved, f.WithoutListing,
		f.SkippedContexts, f.LostContexts, f.Held, f.Released, f.LongestHold.Seconds(),
	}
}

func jsonLines(lines []hotspot.Line) []jsonLine {
	out := make([]jsonLine, 0, len(lines))
	for i := range lines {
		out = append(out, jsonLine{&lines[i], quotients(&lines[i].Counts)})
	}
	return out
}

func quotients(c *hotspot.Counts) jsonQuotients {
	known := func(v float64, ok bool) *float64 {
		if !ok {
			return nil
		}
		return &v
	}
	return jsonQuotients{
		Lanes: known(c.Lanes()), LanesOn: known(c.LanesOn()), SectorsPerRequest: known(c.SectorsPerRequest()),
		IdealPerRequest: known(c.IdealPerRequest()), TimesIdeal: known(c.TimesIdeal()),
	}
}
