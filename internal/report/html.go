// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/version"
)

//go:embed report.html
var htmlText string

var htmlTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"ns":    func(ns int64) string { return Time(time.Duration(ns)) },
	"count": func(n int64) string { return Count(uint64(n)) },
}).Parse(htmlText))

// The chart of steps has this size. Bars have a distance of a fifth of their width.
const (
	chartWidth  = 1000.0
	chartHeight = 160.0
)

type htmlPage struct {
	Title, Version string
	Sessions       []htmlSession
	Kernels        []htmlKernel
	Scopes         []htmlScope
	Copies         []htmlCopy
	Notes, Deep    string
}

type htmlSession struct {
	Service, Session, Start string
	WallNs, Operations      int64
	Devices                 []htmlDevice
	Findings                []analysis.AnswerFinding
	Steps                   *htmlSteps
	Scopes                  []htmlScopeTime
}

// htmlScopeTime is the device time of a scope.
type htmlScopeTime struct {
	Name, Idle, Late, Queue, Limit string
	WallNs                         int64
	Depth                          int
}

type htmlDevice struct {
	Name, Bound, Busy, Idle string
	Launches                string
	ActiveNs                int64
	Segments                []htmlSegment
}

// htmlSegment is a part of a bar.
type htmlSegment struct {
	Class, Name, Share  string
	Ns                  int64
	X, Y, Width, Height string
}

type htmlSteps struct {
	Title, ChartTitle string
	Bars              []htmlBar
	Rows              []htmlQuantiles
	Slow              []htmlSlow
	MoreSlow          int64
	Paths             []htmlPath
}

// htmlPath is the critical path of a step: its parts as a bar, and their sums.
type htmlPath struct {
	Title      string
	Bar, Kinds []htmlSegment
}

type htmlBar struct {
	Title    string
	Segments []htmlSegment
}

type htmlQuantiles struct {
	Name          string
	P50, P95, Max int64
}

type htmlSlow struct {
	Name, Reason, Span, Limit string
	WallNs, ExcessNs          int64
}

type htmlKernel struct{ Time, Share, Calls, Mean, Max, Name, Full, Shape, Span string }

type htmlScope struct {
	Device, Kernels, Wall, Calls, Mean, Name string
	Depth                                    int
}

type htmlCopy struct{ Time, Calls, Bytes, Rate, Name string }

// WriteHTML prints a page that needs no other file and no network: what the other reports have, at most
// top rows (0 for all) of each table.
func WriteHTML(out io.Writer, t *Totals, windows *Windows, inside *Inside, analyses []SessionCauses, top int) error {
	page := htmlPage{Title: "GPU report", Version: version.String(), Kernels: htmlKernels(t, top), Scopes: htmlScopes(t, top), Copies: htmlCopies(t)}
	analyses = byKernelTime(analyses)
	for i := range analyses {
		if i < shownSessions {
			page.Sessions = append(page.Sessions, htmlSessionOf(&analyses[i]))
		}
	}
	if len(analyses) > 0 && analyses[0].Service != "" {
		page.Title = analyses[0].Service
	}
	var notes, deep bytes.Buffer
	t.writeLost(&notes, 10_000)
	page.Notes = notes.String()
	if err := windows.Write(&deep, top); err != nil {
		return err
	}
	if err := inside.Write(&deep); err != nil {
		return err
	}
	page.Deep = deep.String()
	var b bytes.Buffer
	if err := htmlTemplate.Execute(&b, &page); err != nil {
		return err
	}
	_, err := out.Write(b.Bytes())
	return err
}

func htmlSessionOf(s *SessionCauses) htmlSession {
	h := htmlSession{
		Service: s.Service, Session: s.Session, Start: time.Unix(0, s.FromNs).UTC().Format("2006-01-02 15:04:05"),
		WallNs: s.ToNs - s.FromNs, Operations: s.Operations, Findings: analysis.NewAnswer(s.Result, s.FromNs).Findings,
	}
	for i := range s.Devices {
		h.Devices = append(h.Devices, htmlDeviceOf(&s.Devices[i]))
	}
	for _, x := range shownScopes(s.Times) {
		h.Scopes = append(h.Scopes, htmlScopeTime{scopeTitle(x), share(x.IdleNs, x.WallNs), scopeLate(x), scopeQueue(x), string(x.Bound), x.WallNs, max(0, len(x.Path)-1)})
	}
	if s.Steps.Count > 0 {
		h.Steps = htmlStepsOf(&s.Steps)
		for i := range s.Paths {
			h.Steps.Paths = append(h.Steps.Paths, htmlPathOf(s, i))
		}
	}
	return h
}

func htmlDeviceOf(d *analysis.Device) htmlDevice {
	p := &d.Active
	h := htmlDevice{Name: deviceName(d), Bound: boundTexts[d.Bound], ActiveNs: p.WallNs, Busy: share(p.BusyNs(), p.WallNs), Idle: share(p.IdleNs, p.WallNs), Launches: launchText(d)}
	if p.WallNs <= 0 {
		return h
	}
	at := 0.0
	add := func(class, name string, ns int64) {
		if ns <= 0 {
			return
		}
		width := chartWidth * float64(ns) / float64(p.WallNs)
		h.Segments = append(h.Segments, htmlSegment{Class: class, Name: name, Share: share(ns, p.WallNs), Ns: ns, X: decimal(at), Width: decimal(width)})
		at += width
	}
	add("compute", "compute", p.ComputeNs)
	add("communication", "communication only", p.CommunicationNs)
	add("copy", "copies and sets only", p.CopyNs)
	for _, c := range causesBySum(&p.Idle) {
		name, _, _ := strings.Cut(c.Text(), ":")
		add(c.String(), "idle, "+name, p.Idle[c])
	}
	return h
}

// maxHTMLParts bounds the parts of a path in a page.
const maxHTMLParts = 500

func htmlPathOf(s *SessionCauses, i int) htmlPath {
	step, path := s.Paths[i].Step, s.Paths[i].CriticalPath
	title := "Typical step"
	if step != s.Steps.Typical {
		title = "Slow step"
	}
	wall := path.ToNs - path.FromNs
	h := htmlPath{Title: fmt.Sprintf("%s %s: %s", title, stepName(&s.Steps, step), Time(time.Duration(wall)))}
	a := analysis.NewAnswerPath(path, path.FromNs, maxHTMLParts)
	scale := chartWidth / float64(max(wall, 1))
	for i := range a.Parts {
		p := &a.Parts[i]
		h.Bar = append(h.Bar, htmlSegment{
			Class: p.Kind.String(), Name: p.Kind.String() + " " + clean(p.Name, maxCell), Ns: p.DurationNs,
			X: decimal(float64(p.Start) * scale), Width: decimal(float64(p.DurationNs) * scale),
		})
	}
	for _, k := range a.Kinds {
		h.Kinds = append(h.Kinds, htmlSegment{Class: k.Kind.String(), Name: k.Kind.String(), Ns: k.Ns, Share: share(k.Ns, wall)})
	}
	return h
}

func htmlStepsOf(s *analysis.Steps) *htmlSteps {
	h := &htmlSteps{Title: stepsTitle(s)}
	for _, q := range stepParts {
		if q.get(&s.Max) > 0 {
			h.Rows = append(h.Rows, htmlQuantiles{q.name, q.get(&s.P50), q.get(&s.P95), q.get(&s.Max)})
		}
	}
	for i := range s.Outliers {
		o := &s.Outliers[i]
		h.Slow = append(h.Slow, htmlSlow{stepName(s, &o.Step), slowReason(o), analysis.SpanText(o.First.Span), string(o.Bound), o.WallNs, o.ExcessNs})
	}
	h.MoreSlow = s.OutlierCount - int64(len(s.Outliers))
	steps := slices.Clone(s.Longest)
	slices.SortFunc(steps, func(a, b analysis.Step) int { return cmp.Compare(a.Number, b.Number) })
	h.ChartTitle = "All steps in their order."
	if int64(len(steps)) < s.Count {
		h.ChartTitle = fmt.Sprintf("The %d longest steps in their order.", len(steps))
	}
	// One very long step must not hide the others.
	most := s.Max.WallNs
	if limit := 3 * s.P50.WallNs; limit > 0 && most > limit {
		most = limit
		h.ChartTitle += " Higher bars are cut."
	}
	slot := chartWidth / float64(max(len(steps), 1))
	for i := range steps {
		p := &steps[i]
		bar := htmlBar{Title: fmt.Sprintf("%s: %s", stepName(s, p), Time(time.Duration(p.WallNs)))}
		bottom := chartHeight
		for _, part := range []struct {
			class string
			ns    int64
		}{{"compute", p.ComputeNs}, {"communication", p.CommunicationNs}, {"copy", p.CopyNs}, {"idle", p.IdleNs}} {
			height := min(chartHeight*float64(part.ns)/float64(max(most, 1)), bottom)
			if height > 0 {
				bottom -= height
				bar.Segments = append(bar.Segments, htmlSegment{Class: part.class, X: decimal(slot * float64(i)), Y: decimal(bottom), Width: decimal(slot * 0.8), Height: decimal(height)})
			}
		}
		h.Bars = append(h.Bars, bar)
	}
	return h
}

func htmlKernels(t *Totals, top int) (list []htmlKernel) {
	var all Row
	for i := range t.Kernels {
		all.add(&t.Kernels[i])
	}
	rows, rest, more := cut(t.Kernels, top)
	names, shapes := make([]string, len(rows)), make([]string, len(rows))
	add := func(r *Row, name, shape string) {
		k := htmlKernel{
			Time: Time(r.Total), Share: share(int64(r.Total), int64(all.Total)), Calls: Count(r.Count), Mean: Time(r.Mean()), Max: Time(r.Max),
			Name: name, Full: r.Name, Shape: shape,
		}
		if !r.Longest.Span.IsEmpty() {
			k.Span = r.Longest.Span.String()
		}
		list = append(list, k)
	}
	for i := range rows {
		names[i] = compact(rows[i].Name)
	}
	for i, label := range kernelLabels(names, shapes, 2*maxCell) {
		add(&rows[i], label, rows[i].Longest.Shape)
	}
	if more > 0 {
		rest.Longest = Launch{}
		add(&rest, fmt.Sprintf("(%d more)", more), "")
	}
	return list
}

func htmlScopes(t *Totals, top int) (list []htmlScope) {
	tree, _ := topScopes(t.ScopeTree, top)
	for i := range tree {
		s := &tree[i]
		list = append(list, htmlScope{
			Device: Time(time.Duration(s.DeviceNs)), Kernels: Count(uint64(s.Kernels)), Wall: Time(time.Duration(s.WallNs)), Calls: Count(uint64(s.Count)),
			Mean: Time(time.Duration(s.WallNs / max(s.Count, 1))), Name: s.Path[len(s.Path)-1], Depth: len(s.Path) - 1,
		})
	}
	return list
}

func htmlCopies(t *Totals) (list []htmlCopy) {
	rows := slices.Clone(t.Copies)
	if t.Sets.Count > 0 {
		sets := t.Sets
		sets.Name = "(sets)"
		rows = append(rows, sets)
	}
	for i := range rows {
		r := &rows[i]
		list = append(list, htmlCopy{Time(r.Total), Count(r.Count), Count(r.Bytes), strconv.FormatFloat(r.GBPerSecond(), 'f', 1, 64), cmp.Or(r.Name, "(kind unknown)")})
	}
	return list
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }
