// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
)

// Source is where records come from: a *cupti.Collector by [FromCollector].
type Source interface {
	// Take returns the next completed buffer. It returns nil, nil after wait, and nil, io.EOF when
	// the collector is stopped and all buffers are taken. Only one goroutine calls it.
	Take(wait time.Duration) (Records, error)
	// Flush requests the completed records.
	Flush() error
	// Pending is the number of completed buffers that wait for Take.
	Pending() int
	// ScopeEvents takes the NVTX events seen so far, in order per thread.
	ScopeEvents(dst []cupti.ScopeEvent) []cupti.ScopeEvent
	Devices() []gpuevent.Device
	Stats() cupti.Stats
	Status() cupti.Status
	// PushScope and PopScope act on the calling thread.
	PushScope(id uint64) error
	PopScope(id uint64) error
	NextScopeID() uint64
}

// Records is one decoded buffer: a *cupti.Batch. The methods that fill an event fill all but Ref and
// ScopeName.
type Records interface {
	Len() int
	// Attachment distinguishes correlation ids. Ids of records with different attachments are
	// unrelated.
	Attachment() uint32
	Head(i int) *cupti.Head
	Kernel(i int, k *gpuevent.Kernel)
	Copy(i int, c *gpuevent.Copy)
	Set(i int, m *gpuevent.Set)
	Sync(i int, y *gpuevent.Sync)
	Memory(i int, m *gpuevent.Memory)
	Graph(i int, g *gpuevent.Graph)
	// API is the name of a host call.
	API(i int) string
	Release()
}

// Sink receives the telemetry. It never blocks, owns what it receives, and is called by one
// goroutine at a time.
type Sink interface {
	Traces(ptrace.Traces)
	Logs(plog.Logs)
	Metrics(pmetric.Metrics)
}

// ProfileSink takes profiles as Sink takes the rest.
type ProfileSink interface{ Profiles(profile.Profiles) }

// Config says what the session is and what of it becomes spans. The zero value works: New fills in a
// new InstanceID, and defaults where a field says so.
type Config struct {
	// ServiceName is service.name, "" for unknown_service and the name of the executable. InstanceID
	// is a UUID: service.instance.id, from which all ids are derived; "" makes one.
	ServiceName, InstanceID string
	// Resource holds further attributes of the resource.
	Resource []gpuevent.Attr
	// Command is the program and its arguments.
	Command  []string
	PID      int
	HostName string
	// Parent is the parent span of the session (Trace and Span), if HasParent is set. Unless
	// ParentSampled is set, work outside scopes has no spans.
	Parent        gpuevent.Ref
	HasParent     bool
	ParentSampled bool
	// MaxSpansPerSecond limits spans of device work. The default is 20,000; a negative value allows
	// none. Omitted spans are counted, and metrics include their work.
	MaxSpansPerSecond int
	// MaxSpansPerTrace is the size from which a session's or NVTX range's trace goes on in another
	// part: default 10,000, at least 2.
	MaxSpansPerTrace int
	// KernelsOnly makes spans of kernels only.
	KernelsOnly bool
	// Include and Exclude are globs (*, ?) on a kernel's short or full name. A kernel has a span if
	// it matches one of Include, or there is none, and matches none of Exclude.
	Include, Exclude []string
	// MinDuration is the least duration of device work that has a span.
	MinDuration time.Duration
	// FlushInterval is how often CUPTI is asked for what is complete (default 200 ms), MetricInterval
	// how often metrics are sent (default 10 s).
	FlushInterval, MetricInterval time.Duration
	// Start is when the session began: default now.
	Start time.Time
	// Asked are the kinds that were asked for: default cupti.DefaultKinds.
	Asked cupti.Kinds
	// OverheadBudget is the share of the program's time that recording may cost, above 0 and at most 1; 0 sets no
	// limit. The Source must be a Detacher. The program is recorded in time slices; between them CUPTI is detached.
	OverheadBudget float64
	// Rules are told of kernels and scopes, nil for none.
	Rules Rules
	// Profiles takes deep windows as profiles too, nil for none.
	Profiles ProfileSink
	// Logger defaults to one that drops everything.
	Logger *slog.Logger
}

// Scope is a span of the application around the launches of one thread.
type Scope struct {
	// Ref has the span's Trace and Span.
	Ref gpuevent.Ref
	// Sampled says whether device work in it makes spans.
	Sampled bool
	Name    string
}

// Summary is what came of a session. It is made to be written as JSON.
type Summary struct {
	PID      int      `json:"pid"`
	Command  []string `json:"command,omitempty"`
	Service  string   `json:"service"`
	Instance string   `json:"instance"`
	// Trace is the session span's trace, in hex.
	Trace string `json:"trace"`
	// StartNs and EndNs are Unix nanoseconds.
	StartNs int64 `json:"start_unix_nano"`
	EndNs   int64 `json:"end_unix_nano"`

	// Reason is "" where recording worked; Detail is one sentence. Failure is set if recording
	// stopped by a fault of its own.
	Reason  cupti.Reason `json:"reason,omitempty"`
	Detail  string       `json:"detail,omitempty"`
	Failure string       `json:"failure,omitempty"`
	Library string       `json:"library,omitempty"`
	Version int          `json:"version,omitempty"`
	Devices []string     `json:"devices,omitempty"`

	// Kernels are the 20 names that took the most time, the longest first; KernelsOther is the rest.
	// KernelCount counts all, graph nodes included.
	Kernels      []KernelRow `json:"kernels,omitempty"`
	KernelsOther *KernelRow  `json:"kernels_other,omitempty"`
	KernelCount  uint64      `json:"kernel_count"`
	Copies       []CopyRow   `json:"copies,omitempty"`
	Sets         CopyRow     `json:"sets"`
	Graphs       uint64      `json:"graph_launches"`

	Spans   SpanCounts   `json:"spans"`
	Records RecordCounts `json:"records"`
	// Windows are the deep windows, nil if there was none.
	Windows *WindowCounts `json:"deep_windows,omitempty"`
	// Overhead is what the overhead budget did, nil without one.
	Overhead *OverheadSummary `json:"overhead,omitempty"`
	// OverheadSeconds is what CUPTI says it needed, OwnSeconds the recorder's own processor time.
	OverheadSeconds float64 `json:"overhead_seconds"`
	OwnSeconds      float64 `json:"own_seconds"`
	// Delivery says what became of the telemetry, by signal; whoever sent it fills it in.
	Delivery []Delivery `json:"delivery,omitempty"`
}

// Delivery is what became of one signal's items: spans, log records, metric points or profiles.
type Delivery struct {
	Signal string `json:"signal"`
	To     string `json:"to"`
	Sent   uint64 `json:"sent"`
	// Unsent has them by reason, Error the last one seen.
	Unsent map[string]uint64 `json:"unsent,omitempty"`
	Error  string            `json:"error,omitempty"`
}

// KernelRow is one kernel's part of the session.
type KernelRow struct {
	Name    string  `json:"name"`
	Count   uint64  `json:"count"`
	Seconds float64 `json:"seconds"`
	// MaxSeconds is the longest of them.
	MaxSeconds float64 `json:"max_seconds"`
}

// CopyRow is one kind of copy ("HtoD"), or all sets.
type CopyRow struct {
	Kind    string  `json:"kind,omitempty"`
	Count   uint64  `json:"count"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// SpanCounts counts device work. The total is Emitted + LeftOut + Unsampled.
type SpanCounts struct {
	Emitted   uint64 `json:"emitted"`
	LeftOut   uint64 `json:"left_out"`
	Unsampled uint64 `json:"unsampled"`
	// Scopes are the spans of NVTX ranges and of the session.
	Scopes uint64 `json:"scopes"`
	// ScopesLeftOut are NVTX ranges and marks that the limit left out; their work is in the scope
	// around them.
	ScopesLeftOut uint64 `json:"scopes_left_out,omitempty"`
}

// RecordCounts are the collector's.
type RecordCounts struct {
	Collected uint64 `json:"collected"`
	Dropped   uint64 `json:"dropped"`
	Unknown   uint64 `json:"unknown"`
	Rejected  uint64 `json:"rejected"`
	// RejectedBy has the reasons that occurred.
	RejectedBy map[string]uint64 `json:"rejected_by,omitempty"`
	// Unread were in buffers given back unread, after a fault or past the bound of Stop.
	Unread uint64 `json:"unread,omitempty"`
	// Unreturned counts buffers that CUPTI kept at the end. They hold unfinished records and those
	// of later launches.
	Unreturned uint64 `json:"unreturned_buffers,omitempty"`
	// ScopesLost counts NVTX events and scopes that were dropped at a bound or evicted.
	// ScopesUnknown counts records whose scope is unknown; they belong to the session.
	ScopesLost    uint64 `json:"scopes_lost,omitempty"`
	ScopesUnknown uint64 `json:"scopes_unknown,omitempty"`
}
