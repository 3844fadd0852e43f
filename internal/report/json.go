// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"io"
	"time"

	"github.com/gpuflight/gpuflight/internal/hotspot"
)

// The JSON of a report, for programs. Times are in seconds and shares 0–1; what is unknown is absent.

type jsonReport struct {
	Sessions int       `json:"sessions"`
	Kernels  []jsonRow `json:"kernels"`
	Copies   []jsonRow `json:"copies"`
	Sets     jsonRow   `json:"sets"`
	Scopes   []jsonRow `json:"scopes"`
	Graphs   uint64    `json:"graphs"`
	// Estimated is how much device work has times that are not measured.
	Estimated uint64      `json:"estimated"`
	Lost      jsonLost    `json:"lost"`
	Inside    *jsonInside `json:"inside,omitempty"`
}

type jsonRow struct {
	Name          string  `json:"name,omitempty"`
	Count         uint64  `json:"count"`
	Seconds       float64 `json:"seconds"`
	MaxSeconds    float64 `json:"max_seconds"`
	Bytes         uint64  `json:"bytes,omitempty"`
	DeviceSeconds float64 `json:"device_seconds,omitempty"`
}

type jsonLost struct {
	Dropped   uint64 `json:"records_dropped"`
	Rejected  uint64 `json:"records_rejected"`
	LeftOut   uint64 `json:"spans_left_out"`
	Unsampled uint64 `json:"spans_unsampled"`
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

// WriteJSON prints the totals, and what was measured inside kernels, as one object of JSON: at most top rows
// (0 for all) of each kind.
func WriteJSON(out io.Writer, t *Totals, inside *Inside, top int) error {
	j := jsonReport{
		Sessions: t.Sessions, Kernels: jsonRows(t.Kernels, top), Copies: jsonRows(t.Copies, top),
		Sets: jsonRowOf(&t.Sets), Scopes: jsonRows(t.Scopes, top), Graphs: t.Graphs, Estimated: t.Estimated, Lost: jsonLost(t.Lost),
	}
	if !inside.Empty() {
		j.Inside = &jsonInside{Totals: inside.Totals, Unread: inside.Unread, More: inside.More}
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
	seconds := func(d time.Duration) float64 { return d.Seconds() }
	return jsonRow{r.Name, r.Count, seconds(r.Total), seconds(r.Max), r.Bytes, seconds(r.Device)}
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
