// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Answer is a [Result] as JSON. It is the one schema of the query API, `gpuflight report --json` and
// `gpuflight mcp`: openapi.yaml describes it as Analysis. Times are nanoseconds since Base, because
// programs in JavaScript cannot hold Unix nanoseconds exactly.
type Answer struct {
	// Base is Unix nanoseconds.
	Base            int64           `json:"base,string"`
	From            int64           `json:"from"`
	To              int64           `json:"to"`
	Complete        bool            `json:"complete"`
	Operations      int64           `json:"operations"`
	LaunchesKnown   int64           `json:"launches_known"`
	LaunchesUnknown int64           `json:"launches_unknown"`
	Causes          []AnswerCause   `json:"causes"`
	Devices         []AnswerDevice  `json:"devices"`
	Steps           AnswerSteps     `json:"steps"`
	Findings        []AnswerFinding `json:"findings"`
}

// AnswerRef is a [Ref]. Span has the 16 hexadecimal digits of OTLP.
type AnswerRef struct {
	Span  string `json:"span"`
	Start int64  `json:"start"`
	Name  string `json:"name"`
}

// AnswerCause explains a cause.
type AnswerCause struct {
	Cause Cause  `json:"cause"`
	Text  string `json:"text"`
}

// AnswerGap is a [Gap].
type AnswerGap struct {
	Start      int64      `json:"start"`
	DurationNs int64      `json:"duration_ns"`
	Cause      Cause      `json:"cause"`
	Idle       CauseSums  `json:"idle_by_cause_ns"`
	Before     *AnswerRef `json:"before,omitempty"`
	After      *AnswerRef `json:"after,omitempty"`
	Call       string     `json:"call"`
	Scope      string     `json:"scope"`
	Stack      string     `json:"stack"`
	DelayStack string     `json:"delay_stack"`
}

// AnswerDevice is a [Device]. Index and QueueP50Ns are nil if unknown.
type AnswerDevice struct {
	ID    string `json:"id"`
	Model string `json:"model"`
	Index *int64 `json:"index,omitempty"`
	Whole Parts  `json:"whole"`
	// Start and Active are of the active interval.
	Start      int64       `json:"start"`
	Active     Parts       `json:"active"`
	Bound      Bound       `json:"bound"`
	QueueP50Ns *int64      `json:"queue_p50_ns,omitempty"`
	Kernels    int64       `json:"kernels"`
	KernelNs   int64       `json:"kernel_ns"`
	PageableNs int64       `json:"pageable_copy_ns"`
	HostScopes []NameSum   `json:"host_by_scope"`
	HostLines  []NameSum   `json:"host_by_line"`
	SyncCalls  []NameSum   `json:"sync_by_call"`
	Gaps       []AnswerGap `json:"gaps"`
}

// AnswerStep is a [Step].
type AnswerStep struct {
	Number int64     `json:"number"`
	Name   string    `json:"name"`
	Start  int64     `json:"start"`
	First  AnswerRef `json:"first"`
	Bound  Bound     `json:"bound"`
	StepValues
}

// AnswerOutlier is an [Outlier].
type AnswerOutlier struct {
	AnswerStep
	ExcessNs       int64  `json:"excess_ns"`
	Part           string `json:"part"`
	PartExcessNs   int64  `json:"part_excess_ns"`
	Kernel         string `json:"kernel"`
	KernelExcessNs int64  `json:"kernel_excess_ns"`
}

// AnswerSteps is [Steps].
type AnswerSteps struct {
	Rule     string          `json:"rule"`
	Name     string          `json:"name"`
	Device   string          `json:"device"`
	Count    int64           `json:"count"`
	P50      StepValues      `json:"p50"`
	P95      StepValues      `json:"p95"`
	Max      StepValues      `json:"max"`
	Longest  []AnswerStep    `json:"longest"`
	Outliers []AnswerOutlier `json:"outliers"`
}

// AnswerFinding is a [Finding].
type AnswerFinding struct {
	Kind     string      `json:"kind"`
	Device   string      `json:"device"`
	Text     string      `json:"text"`
	Formula  string      `json:"formula"`
	GainNs   int64       `json:"gain_at_most_ns"`
	OfNs     int64       `json:"active_ns"`
	FloorNs  int64       `json:"active_at_least_ns"`
	Share    float64     `json:"gain_share"`
	Evidence []AnswerRef `json:"evidence"`
}

// SpanText returns an id as OTLP writes it.
func SpanText(id store.SpanID) string { return fmt.Sprintf("%016x", uint64(id)) }

// NewAnswer returns the JSON of a result. Times are relative to base, in Unix nanoseconds.
func NewAnswer(found *Result, base int64) *Answer {
	b := answerBase(base)
	a := &Answer{
		Base: base, From: found.FromNs - base, To: found.ToNs - base, Complete: found.Complete, Operations: found.Operations,
		LaunchesKnown: found.LaunchesKnown, LaunchesUnknown: found.LaunchesUnknown, Devices: []AnswerDevice{}, Findings: []AnswerFinding{},
	}
	for _, c := range Causes() {
		a.Causes = append(a.Causes, AnswerCause{c, c.Text()})
	}
	for i := range found.Devices {
		a.Devices = append(a.Devices, b.device(&found.Devices[i]))
	}
	x := &found.Steps
	a.Steps = AnswerSteps{
		Rule: x.Rule, Name: x.Name, Device: x.Device, Count: x.Count, P50: x.P50, P95: x.P95, Max: x.Max,
		Longest: []AnswerStep{}, Outliers: []AnswerOutlier{},
	}
	for i := range x.Longest {
		a.Steps.Longest = append(a.Steps.Longest, b.step(&x.Longest[i]))
	}
	for i := range x.Outliers {
		o := &x.Outliers[i]
		a.Steps.Outliers = append(a.Steps.Outliers, AnswerOutlier{b.step(&o.Step), o.ExcessNs, o.Part, o.PartExcessNs, o.Kernel, o.KernelExcessNs})
	}
	for i := range found.Findings {
		f := &found.Findings[i]
		answer := AnswerFinding{f.Kind, f.Device, f.Text, f.Formula, f.GainNs, f.OfNs, f.FloorNs, f.Share, []AnswerRef{}}
		for _, e := range f.Evidence {
			answer.Evidence = append(answer.Evidence, b.ref(e))
		}
		a.Findings = append(a.Findings, answer)
	}
	return a
}

// answerBase is the time to which the times of an answer are relative.
type answerBase int64

func (b answerBase) ref(x Ref) AnswerRef {
	return AnswerRef{SpanText(x.Span), x.StartNs - int64(b), x.Name}
}

func (b answerBase) optionalRef(x *Ref) *AnswerRef {
	if x == nil {
		return nil
	}
	a := b.ref(*x)
	return &a
}

func (b answerBase) step(x *Step) AnswerStep {
	return AnswerStep{x.Number, x.Name, x.StartNs - int64(b), b.ref(x.First), x.Bound, x.StepValues}
}

func (b answerBase) device(d *Device) AnswerDevice {
	a := AnswerDevice{
		ID: d.ID, Model: d.Model, Whole: d.Parts, Start: d.ActiveFromNs - int64(b), Active: d.Active, Bound: d.Bound, Kernels: d.Kernels, KernelNs: d.KernelNs,
		PageableNs: d.PageableCopyNs, HostScopes: d.HostScopes, HostLines: d.HostLines, SyncCalls: d.SyncCalls, Gaps: []AnswerGap{},
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
		a.Gaps = append(a.Gaps, AnswerGap{
			g.StartNs - int64(b), g.EndNs - g.StartNs, g.Cause, g.Idle, b.optionalRef(g.Before), b.optionalRef(g.After), g.Call, g.Scope, g.Stack, g.DelayStack,
		})
	}
	return a
}

// UnmarshalText reads the name of a cause.
func (c *Cause) UnmarshalText(text []byte) error {
	for i, name := range causeNames {
		if name == string(text) {
			*c = Cause(i)
			return nil
		}
	}
	return fmt.Errorf("cause %s is unknown", strconv.Quote(string(text)))
}

// UnmarshalJSON reads an object by cause.
func (s *CauseSums) UnmarshalJSON(text []byte) error {
	var byCause map[Cause]int64
	if err := json.Unmarshal(text, &byCause); err != nil {
		return err
	}
	*s = CauseSums{}
	for c, ns := range byCause {
		s[c] = ns
	}
	return nil
}
