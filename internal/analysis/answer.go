// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
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
	Start      int64     `json:"start"`
	Active     Parts     `json:"active"`
	Bound      Bound     `json:"bound"`
	QueueP50Ns *int64    `json:"queue_p50_ns,omitempty"`
	Kernels    int64     `json:"kernels"`
	KernelNs   int64     `json:"kernel_ns"`
	PageableNs int64     `json:"pageable_copy_ns"`
	HostScopes []NameSum `json:"host_by_scope"`
	HostLines  []NameSum `json:"host_by_line"`
	SyncCalls  []NameSum `json:"sync_by_call"`
	// Launches is nil if fewer than two launch times are known.
	Launches *LaunchRate   `json:"launches,omitempty"`
	Small    []AnswerSmall `json:"small_kernels"`
	// SmallTotal is of all small kernels, also of those that are not in Small.
	SmallTotal AnswerSmallTotal `json:"small_total"`
	Gaps       []AnswerGap      `json:"gaps"`
}

// AnswerSmall is a [SmallKernel]. Waves, Occupancy and Limiter are nil if they are unknown.
type AnswerSmall struct {
	Shape     uint32    `json:"shape"`
	Name      string    `json:"name"`
	Grid      []int64   `json:"grid"`
	Block     []int64   `json:"block"`
	Count     int64     `json:"count"`
	Ns        int64     `json:"ns"`
	LostNs    int64     `json:"lost_ns"`
	Fill      float64   `json:"grid_fill"`
	Waves     *float64  `json:"waves,omitempty"`
	Occupancy *float64  `json:"occupancy,omitempty"`
	Limiter   string    `json:"limiter,omitempty"`
	Longest   AnswerRef `json:"longest"`
}

// AnswerSmallTotal is the sums of small kernels.
type AnswerSmallTotal struct {
	Shapes int64 `json:"shapes"`
	Count  int64 `json:"count"`
	Ns     int64 `json:"ns"`
	LostNs int64 `json:"lost_ns"`
}

// AnswerStep is a [Step].
type AnswerStep struct {
	Number int64     `json:"number"`
	Name   string    `json:"name"`
	Start  int64     `json:"start"`
	First  AnswerRef `json:"first"`
	Bound  Bound     `json:"bound"`
	Graph  int64     `json:"graph_gain_ns"`
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
	Typical  *AnswerStep     `json:"typical,omitempty"`
	Longest  []AnswerStep    `json:"longest"`
	Outliers []AnswerOutlier `json:"outliers"`
	// OutlierCount is the number of all outliers, also of those that are not listed.
	OutlierCount int64 `json:"outliers_total"`
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
		Rule: x.Rule, Name: x.Name, Device: x.Device, Count: x.Count, P50: x.P50, P95: x.P95, Max: x.Max, OutlierCount: x.OutlierCount,
		Longest: []AnswerStep{}, Outliers: []AnswerOutlier{},
	}
	if x.Typical != nil {
		typical := b.step(x.Typical)
		a.Steps.Typical = &typical
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
	return AnswerStep{x.Number, x.Name, x.StartNs - int64(b), b.ref(x.First), x.Bound, x.GraphNs, x.StepValues}
}

func (b answerBase) device(d *Device) AnswerDevice {
	a := AnswerDevice{
		ID: d.ID, Model: d.Model, Whole: d.Parts, Start: d.ActiveFromNs - int64(b), Active: d.Active, Bound: d.Bound, Kernels: d.Kernels, KernelNs: d.KernelNs,
		PageableNs: d.PageableCopyNs, HostScopes: d.HostScopes, HostLines: d.HostLines, SyncCalls: d.SyncCalls,
	}
	if d.Kernels == 0 {
		a.Start = 0
	}
	a.Index, a.QueueP50Ns = known(&d.Index), known(&d.QueueP50Ns)
	if d.Launches.Calls > 0 && d.Launches.IntervalP50Ns >= 0 {
		a.Launches = &d.Launches
	}
	a.Small = make([]AnswerSmall, len(d.Small))
	for i := range d.Small {
		x := &d.Small[i]
		a.Small[i] = AnswerSmall{
			Shape: x.Shape, Name: x.Name, Grid: append([]int64{}, x.Grid...), Block: append([]int64{}, x.Block...), Count: x.Count, Ns: x.Ns, LostNs: x.LostNs, Fill: x.Fill,
			Waves: known(&x.Waves), Occupancy: known(&x.Occupancy), Limiter: x.Limiter, Longest: b.ref(x.Longest),
		}
	}
	a.SmallTotal = AnswerSmallTotal{d.smallSums.shapes, d.smallSums.count, d.smallSums.ns, d.smallSums.lostNs}
	a.Gaps = b.gaps(d.Gaps)
	return a
}

// known returns nil for a value below 0.
func known[T int64 | float64](v *T) *T {
	if *v < 0 {
		return nil
	}
	return v
}

func (b answerBase) gaps(list []Gap) []AnswerGap {
	answer := make([]AnswerGap, len(list))
	for i := range list {
		g := &list[i]
		answer[i] = AnswerGap{
			g.StartNs - int64(b), g.EndNs - g.StartNs, g.Cause, g.Idle, b.optionalRef(g.Before), b.optionalRef(g.After), g.Call, g.Scope, g.Stack, g.DelayStack,
		}
	}
	return answer
}

// AnswerScopes is the times of scopes of a [Profile] as JSON. From and To are the active interval of the device.
type AnswerScopes struct {
	// Base is Unix nanoseconds.
	Base     int64  `json:"base,string"`
	From     int64  `json:"from"`
	To       int64  `json:"to"`
	Complete bool   `json:"complete"`
	Device   string `json:"device"`
	// ManyScopes says that there are too many scopes. Scopes is then empty.
	ManyScopes bool              `json:"many_scopes"`
	Missing    *Missing          `json:"missing,omitempty"`
	Scopes     []AnswerScopeTime `json:"scopes"`
}

// AnswerScopeTime is a [ScopeTime]. QueueP50Ns is nil if it is unknown.
type AnswerScopeTime struct {
	Path []string `json:"path"`
	Parts
	SelfNs     int64  `json:"self_ns"`
	Bound      Bound  `json:"bound"`
	Operations int64  `json:"operations"`
	Launches   int64  `json:"launches"`
	Late       int64  `json:"late"`
	QueueP50Ns *int64 `json:"queue_p50_ns,omitempty"`
}

// NewAnswerScopes returns the JSON of the times of scopes. Times are relative to base, in Unix nanoseconds.
func NewAnswerScopes(p *Profile, base int64) *AnswerScopes {
	a := &AnswerScopes{Base: base, Complete: p.Result.Complete, Device: p.Device, ManyScopes: p.ManyScopes, Missing: p.Result.Missing, Scopes: NewAnswerScopeTimes(p.Times)}
	for i := range p.Result.Devices {
		if d := &p.Result.Devices[i]; d.ID == p.Device && d.Kernels > 0 {
			a.From, a.To = d.ActiveFromNs-base, d.ActiveToNs-base
		}
	}
	return a
}

// NewAnswerScopeTimes returns the JSON of the times of scopes.
func NewAnswerScopeTimes(list []ScopeTime) []AnswerScopeTime {
	out := make([]AnswerScopeTime, len(list))
	for i := range list {
		x := &list[i]
		out[i] = AnswerScopeTime{append([]string{}, x.Path...), x.Parts, x.SelfNs, x.Bound, x.Operations, x.Launches, x.Late, known(&x.QueueP50Ns)}
	}
	return out
}

// AnswerGaps is [Gaps] as JSON. From and To are the active interval of the device.
type AnswerGaps struct {
	// Base is Unix nanoseconds.
	Base     int64       `json:"base,string"`
	From     int64       `json:"from"`
	To       int64       `json:"to"`
	Complete bool        `json:"complete"`
	Count    int64       `json:"count"`
	SumNs    int64       `json:"sum_ns"`
	Gaps     []AnswerGap `json:"gaps"`
}

// NewAnswerGaps returns the JSON of gaps. Times are relative to base, in Unix nanoseconds.
func NewAnswerGaps(x *Gaps, base int64) *AnswerGaps {
	a := &AnswerGaps{Base: base, Complete: x.Complete, Count: x.Count, SumNs: x.SumNs, Gaps: answerBase(base).gaps(x.List)}
	if x.ToNs > 0 {
		a.From, a.To = x.FromNs-base, x.ToNs-base
	}
	return a
}

// AnswerOwned is [Owned] as JSON. From and To are the active interval of the device.
type AnswerOwned struct {
	// Base is Unix nanoseconds.
	Base     int64 `json:"base,string"`
	From     int64 `json:"from"`
	To       int64 `json:"to"`
	Complete bool  `json:"complete"`
	// ManyScopes says that there are no operations because there are too many scopes.
	ManyScopes bool  `json:"many_scopes"`
	Count      int64 `json:"count"`
	Parts
	Launches   int64           `json:"launches"`
	Late       int64           `json:"late"`
	Operations []AnswerOwnedOp `json:"operations"`
}

// AnswerOwnedOp is an [OwnedOp]. QueueNs is nil if it is unknown.
type AnswerOwnedOp struct {
	AnswerRef
	Before string `json:"before"`
	Parts
	Launched bool   `json:"launched"`
	Late     bool   `json:"late"`
	QueueNs  *int64 `json:"queue_ns,omitempty"`
}

// NewAnswerOwned returns the JSON of operations. Times are relative to base, in Unix nanoseconds.
func NewAnswerOwned(x *Owned, base int64) *AnswerOwned {
	a := &AnswerOwned{Base: base, Complete: x.Complete, ManyScopes: x.ManyScopes, Count: x.Count, Parts: x.Parts, Launches: x.Launches, Late: x.Late, Operations: make([]AnswerOwnedOp, len(x.List))}
	if x.ToNs > 0 {
		a.From, a.To = x.FromNs-base, x.ToNs-base
	}
	for i, op := range x.List {
		a.Operations[i] = AnswerOwnedOp{AnswerRef: answerBase(base).ref(op.Ref), Before: op.Before, Parts: op.Parts, Launched: op.Launched, Late: op.Late}
		if op.QueueNs.OK {
			a.Operations[i].QueueNs = &op.QueueNs.V
		}
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

// AnswerPath is a [CriticalPath].
type AnswerPath struct {
	// Base is Unix nanoseconds.
	Base int64 `json:"base,string"`
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Kinds has the sums of the kinds that occur, the largest first. They sum to To - From.
	Kinds []AnswerPathKind `json:"kinds"`
	// Parts are in the order of time. Those beyond the limit, the shortest, are in MoreParts and MoreNs.
	Parts     []AnswerPathPart `json:"parts"`
	MoreParts int              `json:"more_parts"`
	MoreNs    int64            `json:"more_ns"`
	// Missing is that of [CriticalPath].
	Missing *Missing `json:"missing,omitempty"`
}

// AnswerPathKind is the sum of the parts of a kind.
type AnswerPathKind struct {
	Kind PathKind `json:"kind"`
	Text string   `json:"text"`
	Ns   int64    `json:"ns"`
}

// AnswerPathPart is a [PathPart].
type AnswerPathPart struct {
	Start      int64       `json:"start"`
	DurationNs int64       `json:"duration_ns"`
	Kind       PathKind    `json:"kind"`
	Name       string      `json:"name"`
	Spans      []AnswerRef `json:"spans"`
	Session    string      `json:"session"`
	Device     string      `json:"device"`
	Stream     *int64      `json:"stream,omitempty"`
	Assumed    bool        `json:"assumed"`
}

// NewAnswerPath returns the JSON of a path with its longest parts.
func NewAnswerPath(c *CriticalPath, base int64, limit int) *AnswerPath {
	b := answerBase(base)
	a := &AnswerPath{Base: base, From: c.FromNs - base, To: c.ToNs - base, Kinds: []AnswerPathKind{}, Parts: []AnswerPathPart{}, Missing: c.Missing}
	for k, ns := range c.Sums {
		if ns > 0 {
			a.Kinds = append(a.Kinds, AnswerPathKind{PathKind(k), PathKind(k).Text(), ns})
		}
	}
	slices.SortStableFunc(a.Kinds, func(x, y AnswerPathKind) int { return cmp.Compare(y.Ns, x.Ns) })
	ns := func(p *PathPart) int64 { return p.EndNs - p.StartNs }
	var least int64 // the duration of the shortest one that is listed
	var equal int   // the number of those with this duration, the first ones
	if len(c.Parts) > limit {
		durations := make([]int64, len(c.Parts))
		for i := range c.Parts {
			durations[i] = ns(&c.Parts[i])
		}
		slices.Sort(durations)
		least = durations[len(durations)-max(limit, 1)]
		equal, _ = slices.BinarySearch(durations[len(durations)-limit:], least+1)
	}
	for i := range c.Parts {
		p := &c.Parts[i]
		if n := ns(p); n < least || n == least && equal == 0 {
			a.MoreParts++
			a.MoreNs += n
			continue
		} else if n == least {
			equal--
		}
		part := AnswerPathPart{
			Start: p.StartNs - base, DurationNs: ns(p), Kind: p.Kind, Name: p.Name, Spans: []AnswerRef{}, Session: p.Session, Device: p.Device, Assumed: p.Assumed,
		}
		if p.Stream.OK {
			part.Stream = &p.Stream.V
		}
		for _, s := range p.Spans {
			part.Spans = append(part.Spans, b.ref(s))
		}
		a.Parts = append(a.Parts, part)
	}
	return a
}
