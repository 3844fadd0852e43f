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

// Source delivers records: [FromCollector] makes one of a *cupti.Collector.
type Source interface {
	// Take returns the next completed buffer. It returns nil, nil after wait, and nil, io.EOF when
	// the collector is stopped and all buffers are taken. Only one goroutine calls it.
	Take(wait time.Duration) (Records, error)
	// Flush requests the completed records.
	Flush() error
	// Pending is the number of completed buffers that wait for Take.
	Pending() int
	// ScopeEvents appends the pending NVTX events to dst, in order for each thread.
	ScopeEvents(dst []cupti.ScopeEvent) []cupti.ScopeEvent
	// StackEvents appends the pending stacks of launches to dst.
	StackEvents(dst []cupti.StackEvent) []cupti.StackEvent
	// NoStacks is why stacks are not sampled, "" if they are or were not requested.
	NoStacks() string
	Devices() []gpuevent.Device
	Stats() cupti.Stats
	Status() cupti.Status
	// PushScope and PopScope act on the calling thread.
	PushScope(id uint64) error
	PopScope(id uint64) error
	NextScopeID() uint64
}

// Records is one decoded buffer: a *cupti.Batch. The methods that fill an event set all fields
// except Ref and ScopeName.
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
	// API returns the name of a host call.
	API(i int) string
	Release()
}

// Sink receives the telemetry. It never blocks, owns what it receives, and is called by one
// goroutine at a time.
type Sink interface {
	Traces(ptrace.Traces)
	Logs(plog.Logs)
	Metrics(pmetric.Metrics)
	// Backlog reports whether the sink would have more room later. The recorder then leaves records
	// in CUPTI's buffers, up to Config.MaxBacklog.
	Backlog() bool
}

// ProfileSink receives profiles under the rules of Sink.
type ProfileSink interface{ Profiles(profile.Profiles) }

// Config describes the session and selects the spans. The zero value is valid: New generates an
// InstanceID and sets the documented defaults.
type Config struct {
	// ServiceName is service.name. "" means unknown_service and the name of the executable.
	// InstanceID is service.instance.id, a UUID from which all ids are derived. "" generates one.
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
	// MaxSpansPerTrace limits the spans in a trace of the session or of an NVTX range. Further
	// spans go to the next part of the trace. The default is 10,000, the minimum 2.
	MaxSpansPerTrace int
	// KernelsOnly limits spans of device work to kernels.
	KernelsOnly bool
	// Include and Exclude are globs (*, ?) on a kernel's short or full name. A kernel has a span if
	// it matches no Exclude and, unless Include is empty, at least one Include.
	Include, Exclude []string
	// MinDuration is the minimum duration of device work with a span.
	MinDuration time.Duration
	// FlushInterval is the interval of CUPTI flushes (default 200 ms). MetricInterval is the
	// interval of metric exports (default 10 s).
	FlushInterval, MetricInterval time.Duration
	// MaxBacklog is the number of completed buffers that wait for Take while the sink has a backlog.
	// The default is 16, half of the collector's buffers. At this number the recorder takes them
	// anyway, so that CUPTI drops no records: the sink drops spans then, and metrics stay complete.
	MaxBacklog int
	// Start is the start of the session. The default is the current time.
	Start time.Time
	// Asked are the requested kinds. The default is cupti.DefaultKinds.
	Asked cupti.Kinds
	// OverheadBudget is the share of the program's time that recording may cost, above 0 and at
	// most 1. 0 sets no limit. The Source must be a Detacher. The recorder then records time slices
	// and detaches CUPTI between them.
	OverheadBudget float64
	// Rules observe kernels and scopes. It may be nil.
	Rules Rules
	// Profiles also receives deep windows as profiles. It may be nil.
	Profiles ProfileSink
	// Logger receives log messages. The default discards them.
	Logger *slog.Logger
}

// Scope is a span of the application around the launches of one thread.
type Scope struct {
	// Ref identifies the span by Trace and Span.
	Ref gpuevent.Ref
	// Sampled reports whether device work in the scope has spans.
	Sampled bool
	Name    string
	// Stack is the host stack of the begin, "" if unknown. The first span of work in the scope has it.
	Stack string
}

// Summary is the result of a session. It is encoded as JSON.
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

	// Reason is "" if recording worked. Detail is one sentence. Failure is set if an internal error
	// stopped recording.
	Reason  cupti.Reason `json:"reason,omitempty"`
	Detail  string       `json:"detail,omitempty"`
	Failure string       `json:"failure,omitempty"`
	Library string       `json:"library,omitempty"`
	Version int          `json:"version,omitempty"`
	Devices []string     `json:"devices,omitempty"`

	// Kernels are the 20 names with the most time, longest first. KernelsOther is the rest.
	// KernelCount counts all kernels, including graph nodes.
	Kernels      []KernelRow `json:"kernels,omitempty"`
	KernelsOther *KernelRow  `json:"kernels_other,omitempty"`
	KernelCount  uint64      `json:"kernel_count"`
	Copies       []CopyRow   `json:"copies,omitempty"`
	Sets         CopyRow     `json:"sets"`
	Graphs       uint64      `json:"graph_launches"`

	Spans   SpanCounts   `json:"spans"`
	Records RecordCounts `json:"records"`
	// Windows describes the deep windows. It is nil if there was none.
	Windows *WindowCounts `json:"deep_windows,omitempty"`
	// Overhead is the result of the overhead budget. It is nil without a budget.
	Overhead *OverheadSummary `json:"overhead,omitempty"`
	// StacksSeconds is the time that samples of host stacks took from the program, of all threads.
	StacksSeconds float64 `json:"stacks_seconds,omitempty"`
	// NoStacks is why host stacks were requested and not sampled.
	NoStacks string `json:"no_stacks,omitempty"`
	// OverheadSeconds is the overhead that CUPTI reports. OwnSeconds is the recorder's processor
	// time.
	OverheadSeconds float64 `json:"overhead_seconds"`
	OwnSeconds      float64 `json:"own_seconds"`
	// Delivery counts sent and unsent telemetry by signal. The exporter fills it in.
	Delivery []Delivery `json:"delivery,omitempty"`
}

// Delivery counts the items of one signal: spans, log records, metric points or profiles.
type Delivery struct {
	Signal string `json:"signal"`
	To     string `json:"to"`
	Sent   uint64 `json:"sent"`
	// Unsent counts items by reason. Error is the last error.
	Unsent map[string]uint64 `json:"unsent,omitempty"`
	Error  string            `json:"error,omitempty"`
}

// KernelRow sums up one kernel in the session.
type KernelRow struct {
	Name    string  `json:"name"`
	Count   uint64  `json:"count"`
	Seconds float64 `json:"seconds"`
	// MaxSeconds is the duration of the longest kernel.
	MaxSeconds float64 `json:"max_seconds"`
}

// CopyRow sums up one kind of copy ("HtoD"), or all memory sets.
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
	// Scopes counts the spans of NVTX ranges and of the session.
	Scopes uint64 `json:"scopes"`
	// ScopesLeftOut counts NVTX ranges and marks above the limit. Their work belongs to the
	// enclosing scope.
	ScopesLeftOut uint64 `json:"scopes_left_out,omitempty"`
}

// RecordCounts are the counters of the collector.
type RecordCounts struct {
	Collected uint64 `json:"collected"`
	Dropped   uint64 `json:"dropped"`
	Unknown   uint64 `json:"unknown"`
	Rejected  uint64 `json:"rejected"`
	// RejectedBy counts rejected records by reason.
	RejectedBy map[string]uint64 `json:"rejected_by,omitempty"`
	// Unread counts records in buffers that were returned unread, after a fault or the deadline of
	// Stop.
	Unread uint64 `json:"unread,omitempty"`
	// Unreturned counts buffers that CUPTI kept at the end. They hold unfinished records and those
	// of later launches.
	Unreturned uint64 `json:"unreturned_buffers,omitempty"`
	// ScopesLost counts NVTX events and scopes that were dropped at a bound or evicted.
	// ScopesUnknown counts records whose scope is unknown; they belong to the session.
	ScopesLost uint64 `json:"scopes_lost,omitempty"`
	// StacksLost counts host stacks that were dropped at a bound.
	StacksLost    uint64 `json:"stacks_lost,omitempty"`
	ScopesUnknown uint64 `json:"scopes_unknown,omitempty"`
}
