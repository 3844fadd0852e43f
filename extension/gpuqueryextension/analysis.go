// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"net/http"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

const (
	// maxAnalyses is the number of analyses in progress. Each reads all rows of its interval.
	maxAnalyses = 2
	// maxAnalysisTime leaves a part of [maxQueryTime] for the last page and the answer.
	maxAnalysisTime = 20 * time.Second
)

type refAnswer struct {
	Span  string `json:"span"`
	Start int64  `json:"start"`
	Name  string `json:"name"`
}

type analysedGap struct {
	Start      int64              `json:"start"`
	DurationNs int64              `json:"duration_ns"`
	Cause      analysis.Cause     `json:"cause"`
	Idle       analysis.CauseSums `json:"idle_by_cause_ns"`
	Before     *refAnswer         `json:"before,omitempty"`
	After      *refAnswer         `json:"after,omitempty"`
	Call       string             `json:"call"`
	Scope      string             `json:"scope"`
	Stack      string             `json:"stack"`
}

type analysedDevice struct {
	ID    string         `json:"id"`
	Index *int64         `json:"index,omitempty"`
	Whole analysis.Parts `json:"whole"`
	// Start and Active are of the active interval.
	Start      int64              `json:"start"`
	Active     analysis.Parts     `json:"active"`
	Bound      analysis.Bound     `json:"bound"`
	QueueP50Ns *int64             `json:"queue_p50_ns,omitempty"`
	Kernels    int64              `json:"kernels"`
	KernelNs   int64              `json:"kernel_ns"`
	PageableNs int64              `json:"pageable_copy_ns"`
	HostScopes []analysis.NameSum `json:"host_by_scope"`
	SyncCalls  []analysis.NameSum `json:"sync_by_call"`
	Gaps       []analysedGap      `json:"gaps"`
}

type analysedStep struct {
	Number int64          `json:"number"`
	Name   string         `json:"name"`
	Start  int64          `json:"start"`
	First  refAnswer      `json:"first"`
	Bound  analysis.Bound `json:"bound"`
	analysis.StepValues
}

type analysedOutlier struct {
	analysedStep
	ExcessNs       int64  `json:"excess_ns"`
	Part           string `json:"part"`
	PartExcessNs   int64  `json:"part_excess_ns"`
	Kernel         string `json:"kernel"`
	KernelExcessNs int64  `json:"kernel_excess_ns"`
}

type analysedSteps struct {
	Rule     string              `json:"rule"`
	Name     string              `json:"name"`
	Device   string              `json:"device"`
	Count    int64               `json:"count"`
	P50      analysis.StepValues `json:"p50"`
	P95      analysis.StepValues `json:"p95"`
	Max      analysis.StepValues `json:"max"`
	Longest  []analysedStep      `json:"longest"`
	Outliers []analysedOutlier   `json:"outliers"`
}

type findingAnswer struct {
	Kind     string      `json:"kind"`
	Device   string      `json:"device"`
	Text     string      `json:"text"`
	Formula  string      `json:"formula"`
	GainNs   int64       `json:"gain_at_most_ns"`
	OfNs     int64       `json:"active_ns"`
	FloorNs  int64       `json:"active_at_least_ns"`
	Share    float64     `json:"gain_share"`
	Evidence []refAnswer `json:"evidence"`
}

type causeAnswer struct {
	Cause analysis.Cause `json:"cause"`
	Text  string         `json:"text"`
}

type analysisAnswer struct {
	Base            string           `json:"base"`
	From            int64            `json:"from"`
	To              int64            `json:"to"`
	Complete        bool             `json:"complete"`
	Operations      int64            `json:"operations"`
	LaunchesUnknown int64            `json:"launches_unknown"`
	Causes          []causeAnswer    `json:"causes"`
	Devices         []analysedDevice `json:"devices"`
	Steps           analysedSteps    `json:"steps"`
	Findings        []findingAnswer  `json:"findings"`
}

// analysis answers why a session was slow.
func (s *server) analysis(ctx context.Context, r *request) (any, error) {
	o := analysis.Options{Deadline: time.Now().Add(maxAnalysisTime)}
	o.From, o.To = r.interval()
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.info.RowsDropped {
		return nil, &status{http.StatusBadRequest, "the session has sums only, because retention removed its rows"}
	}
	select {
	case s.analysing <- struct{}{}:
		defer func() { <-s.analysing }()
	default:
		return nil, &status{http.StatusTooManyRequests, "too many analyses are in progress"}
	}
	found, err := analysis.Run(ctx, analysis.FromReader(s.store, r.project, r.session), o)
	if err != nil {
		return nil, err
	}
	return r.analysisAnswer(found), nil
}

func (r *request) ref(x analysis.Ref) refAnswer {
	return refAnswer{spanText(x.Span), x.StartNs - r.base, x.Name}
}

func (r *request) optionalRef(x *analysis.Ref) *refAnswer {
	if x == nil {
		return nil
	}
	a := r.ref(*x)
	return &a
}

func (r *request) analysedStep(x *analysis.Step) analysedStep {
	return analysedStep{x.Number, x.Name, x.StartNs - r.base, r.ref(x.First), x.Bound, x.StepValues}
}

func (r *request) analysisAnswer(found *analysis.Result) *analysisAnswer {
	a := &analysisAnswer{
		Base: r.baseText(), From: found.FromNs - r.base, To: found.ToNs - r.base, Complete: found.Complete, Operations: found.Operations,
		LaunchesUnknown: found.LaunchesUnknown, Devices: []analysedDevice{}, Findings: []findingAnswer{},
	}
	for _, c := range analysis.Causes() {
		a.Causes = append(a.Causes, causeAnswer{c, c.Text()})
	}
	for i := range found.Devices {
		a.Devices = append(a.Devices, r.analysedDevice(&found.Devices[i]))
	}
	x := &found.Steps
	a.Steps = analysedSteps{
		Rule: x.Rule, Name: x.Name, Device: x.Device, Count: x.Count, P50: x.P50, P95: x.P95, Max: x.Max,
		Longest: []analysedStep{}, Outliers: []analysedOutlier{},
	}
	for i := range x.Longest {
		a.Steps.Longest = append(a.Steps.Longest, r.analysedStep(&x.Longest[i]))
	}
	for i := range x.Outliers {
		o := &x.Outliers[i]
		a.Steps.Outliers = append(a.Steps.Outliers, analysedOutlier{r.analysedStep(&o.Step), o.ExcessNs, o.Part, o.PartExcessNs, o.Kernel, o.KernelExcessNs})
	}
	for i := range found.Findings {
		f := &found.Findings[i]
		answer := findingAnswer{f.Kind, f.Device, f.Text, f.Formula, f.GainNs, f.OfNs, f.FloorNs, f.Share, []refAnswer{}}
		for _, e := range f.Evidence {
			answer.Evidence = append(answer.Evidence, r.ref(e))
		}
		a.Findings = append(a.Findings, answer)
	}
	return a
}

func (r *request) analysedDevice(d *analysis.Device) analysedDevice {
	a := analysedDevice{
		ID: d.ID, Whole: d.Parts, Start: d.ActiveFromNs - r.base, Active: d.Active, Bound: d.Bound, Kernels: d.Kernels, KernelNs: d.KernelNs,
		PageableNs: d.PageableCopyNs, HostScopes: d.HostScopes, SyncCalls: d.SyncCalls, Gaps: []analysedGap{},
	}
	if d.Kernels == 0 {
		a.Start = 0
	}
	if d.Index >= 0 {
		a.Index = &d.Index
	}
	if d.QueueP50Ns >= 0 {
		a.QueueP50Ns = &d.QueueP50Ns
	}
	for i := range d.Gaps {
		g := &d.Gaps[i]
		a.Gaps = append(a.Gaps, analysedGap{
			g.StartNs - r.base, g.EndNs - g.StartNs, g.Cause, g.Idle, r.optionalRef(g.Before), r.optionalRef(g.After), g.Call, g.Scope, g.Stack,
		})
	}
	return a
}
