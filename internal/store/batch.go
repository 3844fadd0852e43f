// SPDX-License-Identifier: Apache-2.0

package store

import "context"

// SpanID and TraceID are ids of OpenTelemetry. SpanID has the 8 bytes in big-endian order. Zero
// means none.
type (
	SpanID  uint64
	TraceID [16]byte
)

// UID is the 16 bytes of log.record.uid. For a record without one, package rows derives it from
// the content.
type UID [16]byte

// Int is an integer that may be unknown. The zero value is unknown.
type Int struct {
	V  int64
	OK bool
}

// MaxTimeNs is the latest time that a store holds, in 2116. Stores reject rows with an earlier or
// later start, end or time than 0 and MaxTimeNs, so that differences of times stay within int64.
const MaxTimeNs = 1<<62 - 1

// Some returns a known integer.
func Some(v int64) Int { return Int{V: v, OK: true} }

// Batch is the rows of one session in one delivery, with the dictionaries that the rows refer to.
//
// A dictionary entry has a Key, a 64-bit hash of its content: equal content has equal keys in every
// process and release. Rows refer to entries by their index in the Batch. Entry 0 of each
// dictionary is the empty entry, with Key 0.
//
// Stores reject a row that refers to an absent entry, also if its Series does. Index 0 is never
// absent, also not in an empty dictionary. Strings are valid UTF-8, except those in Value. An empty
// slice is equal to nil.
//
// Rows have an identity, which is documented at their types. Two rows with equal identity are one
// row, sent twice. If their content differs nevertheless, a store keeps either, except where the
// type documents a rule.
type Batch struct {
	// Session is service.instance.id, "" for data without a session. Stores reject all rows of a
	// Batch whose Session is longer than 256 bytes. A session exists once a row of it is stored.
	// Stores keep data without a session in one segment per UTC day. The start or time of a row
	// gives the day.
	Session string
	// Project is the tenant that delivered the data, "" for the default.
	Project string

	Origins []Origin
	Extras  []Extra
	Lanes   []Lane
	Shapes  []Shape
	Places  []Place
	Stacks  []Stack
	Series  []Series

	Ops     []Op
	Spans   []Span
	Samples []Sample
	Logs    []Log
	Points  []Point
}

// Rows returns the number of rows.
func (b *Batch) Rows() int {
	return len(b.Ops) + len(b.Spans) + len(b.Samples) + len(b.Logs) + len(b.Points)
}

// Origin is what the signals of OpenTelemetry call resource and instrumentation scope.
type Origin struct {
	Key               uint64
	Resource          Attrs
	ResourceSchemaURL string
	ScopeName         string
	ScopeVersion      string
	ScopeAttrs        Attrs
	ScopeSchemaURL    string
}

// Extra is the attributes of a row for which the row has no column.
type Extra struct {
	Key   uint64
	Attrs Attrs
}

// LaneClass distinguishes the lanes of one stream: kernels and copies of one stream may overlap in
// time, and waits of the host are not work of the device.
type LaneClass uint8

// Classes of lanes.
const (
	LaneCompute LaneClass = iota // kernels, sets and graph launches
	LaneCopy                     // copies
	LaneHost                     // synchronisations, allocations and releases
)

// Lane is a row of the timeline: one class of work of one stream.
type Lane struct {
	Key uint64
	// Device is hw.id, "" if unknown. DeviceIndex is cuda.device.index.
	Device      string
	DeviceIndex Int
	Context     Int
	Stream      Int
	Class       LaneClass
}

// Operation is cuda.operation of device work.
type Operation uint8

// Operations. The numbers are stored.
const (
	OpKernel Operation = iota + 1
	OpCopy
	OpSet
	OpSync
	OpGraph
	OpAlloc
	OpFree
)

// Shape is what repeats from one launch to the next: the name of the operation and its static
// attributes. Unknown numbers and empty strings are absent attributes.
type Shape struct {
	Key       uint64
	Operation Operation
	// Name is the name of the span: the short name of a kernel, "memcpy HtoD", ….
	Name string
	// FullName is cuda.kernel.name, Symbol cuda.kernel.symbol.
	FullName, Symbol     string
	Grid, Block, Cluster []int64
	Registers            Int
	SharedStatic         Int
	SharedDynamic        Int
	SharedExecuted       Int
	LocalMemory          Int
	// Attrs holds the remaining attributes that do not change from one launch to the next:
	// occupancy, limiters, compute capability, kinds of copies, graph node, ….
	Attrs Attrs
}

// Place is where in the program an operation was launched.
type Place struct {
	Key   uint64
	Trace TraceID
	// Parent is the span that launched the operation, 0 for none.
	Parent SpanID
	// ScopeName is cuda.scope.name, ScopePath cuda.scope.path; "" for none.
	ScopeName, ScopePath string
	// Inferred is cuda.scope.inferred.
	Inferred bool
}

// Stack is a host call stack, code.stacktrace.
type Stack struct {
	Key  uint64
	Text string
}

// Op is one operation: a kernel, copy, set, wait, allocation, release or graph launch. (StartNs,
// Span) identifies it within the session, also if Span is 0.
//
// The duration of an operation or span is EndNs - StartNs, or 0 if it ends before it starts. All
// answers use this duration, and StartNs plus it as the end. Rows return EndNs as it was sent.
type Op struct {
	StartNs, EndNs int64
	Span           SpanID
	// Indices into the dictionaries of the Batch.
	Lane, Shape, Place, Stack, Origin, Extra uint32
	// LaunchStartNs and LaunchEndNs are the host call that requested the operation.
	LaunchStartNs, LaunchEndNs Int
	// QueueNs is the time from the end of the launch to the start on the device, unknown if the
	// source gave no cuda.queue.duration.
	QueueNs     Int
	Correlation Int
	// Bytes is the size of a copy, set, allocation or release. Address is cuda.memory.address.
	Bytes, Address Int
	// Estimated is cuda.timing = estimated.
	Estimated bool
}

// Span is any span that is not an operation: scopes, requests, sessions, deep windows, and spans of
// other instrumentations. (StartNs, Span) identifies it within the session, also if Span is 0. Of
// several versions, a store keeps all of the one with the largest EndNs. A version with an equal or
// smaller EndNs is a duplicate.
type Span struct {
	StartNs, EndNs int64
	Trace          TraceID
	Span, Parent   SpanID
	// Kind is the span kind of OTLP (1 is internal, 2 server, 3 client, …), Status the status code.
	Kind, Status  uint8
	StatusMessage string
	Name          string
	TraceState    string
	Flags         uint32
	// Operation is cuda.operation: "scope", "session", "deep_window"; "" for other spans.
	Operation string
	Origin    uint32
	Attrs     Attrs
	// Events and Links are encoded (see EncodeEvents); nil for none.
	Events, Links                             []byte
	DroppedAttrs, DroppedEvents, DroppedLinks uint32
}

// SampleKind distinguishes the rows of Sample.
type SampleKind uint8

// Kinds of samples. The numbers are stored.
const (
	SampleStall SampleKind = iota + 1 // cuda.pc_sample
	SampleSASS                        // cuda.sass_metric
)

// Sample is a count of program counter samples, or a SASS metric, at one instruction. UID
// identifies it within the session. Equal UIDs have equal times.
type Sample struct {
	UID    UID
	TimeNs int64
	Kind   SampleKind
	// What is the stall reason or the name of the metric.
	What  string
	Value uint64
	// Kernel is cuda.kernel.name, Function code.function.name.
	Kernel, Function string
	File             string
	Line             Int
	PC               Int
	Trace            TraceID
	Span             SpanID
	Device           string
	DeviceIndex      Int
	Correlation      Int
	Origin, Extra    uint32
}

// Log is any other log record. UID identifies it within the session. Equal UIDs have equal times. A record
// that has only a time of observation has this as TimeNs, and -TimeNs as ObservedNs.
type Log struct {
	UID                UID
	TimeNs, ObservedNs int64
	Severity           uint8
	SeverityText       string
	Event              string
	Body               Value
	Trace              TraceID
	Span               SpanID
	Flags              uint32
	Origin             uint32
	Attrs              Attrs
	DroppedAttrs       uint32
}

// SeriesType is the type of a metric. The numbers are stored.
type SeriesType uint8

// Types of metrics.
const (
	Gauge SeriesType = iota + 1
	Sum
	Histogram
	ExponentialHistogram
	Summary
)

// Series is one stream of data points.
type Series struct {
	Key               uint64
	Metric            string
	Unit, Description string
	Type              SeriesType
	// Temporality is that of OTLP: 0 unspecified, 1 delta, 2 cumulative.
	Temporality uint8
	Monotonic   bool
	Attrs       Attrs
	Origin      uint32
}

// Point is one data point. (Series, TimeNs) identifies it within the session. The last one written
// wins, also within a Batch. A point that equals the stored one is a duplicate.
type Point struct {
	Series          uint32
	TimeNs, StartNs int64
	Flags           uint32
	// Exactly one of Int, Double and Data has the value. Data is a histogram, an exponential
	// histogram or a summary as its OTLP data point in protobuf, without attributes.
	Int       Int
	Double    float64
	HasDouble bool
	Data      []byte
	// Exemplars is encoded, nil for none.
	Exemplars []byte
}

// Result counts what a write did.
type Result struct {
	// Written counts new rows, Duplicates rows that were stored already, Replaced spans and points
	// that replaced an earlier version, Rejected rows that no store can hold (see MaxTimeNs and
	// Batch). Their sum is the number of rows in the batches. A store that removes duplicates in
	// readers counts all rows that it accepts as Written.
	Written, Duplicates, Replaced, Rejected int64
	// Deferred counts rows that are durable and that readers find, but of which the store decides later
	// which of the above they are.
	Deferred int64
	// Bytes is what the transaction wrote, as far as known.
	Bytes int64
}

// Writer stores batches.
type Writer interface {
	// Write stores the batches and returns after they are durable. Either all rows of a Batch are
	// stored or none, apart from rejected rows. Writing a row again changes nothing, also in
	// another Batch, in another order or after a crash. An error that wraps ErrRetry may succeed
	// later. If ctx has ended, Write stores nothing and returns an error that wraps that of ctx.
	Write(ctx context.Context, batches []*Batch) (Result, error)
}
