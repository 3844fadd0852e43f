// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"time"
)

// Reader answers queries. All stores give equal answers: to the nanosecond, to the byte, and in the
// same order. A session that does not exist gives an error that wraps ErrNotFound. A query outside
// its documented limits gives an error that wraps ErrInvalid.
//
// Times are Unix nanoseconds. An interval [From, To) includes rows that start in it, and with
// Overlapping also rows that start earlier and end in it. From 0 and To 0 mean no bound.
type Reader interface {
	// Sessions lists sessions, the latest start first.
	Sessions(ctx context.Context, q SessionQuery) ([]SessionInfo, error)
	// Session returns one session.
	Session(ctx context.Context, project, session string) (SessionInfo, error)
	// Lanes returns the lanes of a session, by device, context, stream and class.
	Lanes(ctx context.Context, project, session string) ([]LaneInfo, error)
	// Timeline returns the bins of an interval, by lane and bin. Empty bins are absent.
	Timeline(ctx context.Context, q TimelineQuery) (Timeline, error)
	// Ops returns operations of an interval in the order of the query, then by start and span.
	Ops(ctx context.Context, q OpQuery) (OpPage, error)
	// Kernels returns statistics by group, the largest sum first, then by group.
	Kernels(ctx context.Context, q KernelQuery) ([]KernelStat, error)
	// Scopes returns the tree of scopes: one node for each path, parents before children, siblings by
	// name.
	Scopes(ctx context.Context, project, session string) ([]ScopeNode, error)
	// Instances returns instances of a path in the order of the query, then by start and span.
	Instances(ctx context.Context, q InstanceQuery) ([]Instance, error)
	// Span returns the operation or span with this id. At is its start, 0 if unknown, which is slower.
	// Exactly one of the results is set.
	Span(ctx context.Context, project, session string, id SpanID, at int64) (*OpRow, *SpanRow, error)
	// Spans returns spans that are not operations, by start and span.
	Spans(ctx context.Context, q SpanQuery) ([]SpanRow, error)
	// Gaps returns intervals in which a device ran no kernel, the longest first, then by start.
	Gaps(ctx context.Context, q GapQuery) (Gaps, error)
	// Samples returns sums of samples, by kind, function, file, line, PC and what.
	Samples(ctx context.Context, q SampleQuery) ([]SampleSum, error)
	// Logs returns log records by time and UID.
	Logs(ctx context.Context, q LogQuery) ([]LogRow, error)
	// Series lists the series of metrics, by metric and attributes. An empty session means the data
	// without a session.
	Series(ctx context.Context, q SeriesQuery) ([]SeriesInfo, error)
	// Points returns the points of one series by time. If the interval has more than q.Points, it
	// returns the first, last, smallest and largest point of each of q.Points/4 equal parts (M4).
	Points(ctx context.Context, q PointQuery) ([]PointRow, error)
	// Trace returns the sessions that have rows of a trace, with the interval of these rows.
	Trace(ctx context.Context, project string, trace TraceID) ([]TraceRef, error)
}

// Admin maintains the sessions of a store.
type Admin interface {
	// Pin protects a session from retention, or ends that.
	Pin(ctx context.Context, project, session string, pinned bool) error
	// Delete removes a session.
	Delete(ctx context.Context, project, session string) error
	// Seal compacts a session that gets no more data now. Later data opens it again. Sealing twice
	// changes nothing.
	Seal(ctx context.Context, project, session string) error
	// Retain applies the limits once and returns what it deleted.
	Retain(ctx context.Context, limits Retention) ([]Deleted, error)
	// Export writes a session to a new file, and Import adds a session from such a file. The file has
	// the format of a DuckDB segment.
	Export(ctx context.Context, project, session, file string) error
	Import(ctx context.Context, project, file string) (session string, err error)
}

// Store is a complete store.
type Store interface {
	Writer
	Reader
	Admin
	// Close ends the store after running calls have returned.
	Close(ctx context.Context) error
}

// SessionQuery selects sessions. Empty fields select all.
type SessionQuery struct {
	Project string
	// Service, Host and Run are exact values of service.name, host.name and cuda.run.id.
	Service, Host, Run string
	// Text is a part of the id, service, host or run, in any case of letters.
	Text string
	// From and To select sessions that have rows in the interval.
	From, To int64
	// After is the id of the last session of the previous page.
	After string
	// Limit is at most 1,000; 0 means 100.
	Limit int
}

// SessionInfo describes a session.
type SessionInfo struct {
	Project, ID         string
	Service, Host       string
	Run, Rank, RankSize string // cuda.run.*; "" if unknown
	PID                 Int
	// Resource is the latest resource of the session.
	Resource Attrs
	// FirstNs and LastNs bound the starts and ends of all rows.
	FirstNs, LastNs int64
	// Counts is the number of rows by table: "ops", "spans", "samples", "logs", "points".
	Counts map[string]int64
	// Operations is the number of operations by kind.
	Operations map[Operation]int64
	// KernelNs is the sum of the durations of all kernels.
	KernelNs int64
	// Bytes is the size on disk, 0 if unknown.
	Bytes          int64
	Sealed, Pinned bool
	// RowsDropped is set after retention has removed the rows and kept the rollups.
	RowsDropped bool
	// Ended says that the session's span arrived.
	Ended bool
}

// LaneInfo is a lane of a session. ID is valid within the session and stable.
type LaneInfo struct {
	ID uint32
	Lane
	// Count is the number of operations, BusyNs the sum of their durations.
	Count, BusyNs   int64
	FirstNs, LastNs int64
}

// TimelineQuery selects a part of the timeline.
type TimelineQuery struct {
	Project, Session string
	From, To         int64
	// Bins is the number of equal bins of the interval, 1 to 4,000.
	Bins int
	// Lanes selects lanes by ID; nil selects all.
	Lanes []uint32
}

// Timeline is the answer: bin i covers [From + i*Width, From + (i+1)*Width). From and Width are those
// of [PlanTimeline].
type Timeline struct {
	From  int64
	Width int64
	Bins  []Bin
}

// Bin sums the operations of one lane in one bin.
type Bin struct {
	Lane  uint32
	Index uint32
	// Count is the number of operations that start in the bin.
	Count int64
	// BusyNs is the sum of the time of operations in the bin. An operation counts in each bin that it
	// touches, with its part in that bin. Operations that overlap each count in full.
	BusyNs int64
	// The longest operation that starts in the bin; TopNs is 0 if none does.
	TopNs    int64
	TopShape uint32
	TopStart int64
}

// OpSort is the order of operations.
type OpSort uint8

// Orders of operations.
const (
	ByStart OpSort = iota
	ByDuration
	ByQueue
)

// OpQuery selects operations. Empty fields select all.
type OpQuery struct {
	Project, Session string
	From, To         int64
	Overlapping      bool
	Operations       []Operation
	Lanes            []uint32
	Shapes           []uint32
	// Name is an exact span name. Parent is the span that launched the operation.
	Name   string
	Parent SpanID
	Trace  TraceID
	Sort   OpSort // durations: longest first
	// After continues after the last row of the previous page: its sort key, start and span.
	After *OpCursor
	// Limit is at most 20,000; 0 means 1,000.
	Limit int
}

// OpCursor is the position of a row in an order.
type OpCursor struct {
	Value, StartNs int64
	Span           SpanID
}

// OpPage is a page of operations. Shapes has the shapes that its rows refer to.
type OpPage struct {
	Rows   []OpRow
	Shapes map[uint32]*Shape
	More   bool
}

// OpRow is an operation as stored. The fields Lane and Shape of Op are ids of the session; its other
// dictionary indices have no meaning, because the row has the content.
type OpRow struct {
	Op
	LaneRef   *Lane
	ShapeRef  *Shape
	OriginRef *Origin
	PlaceRef  Place
	StackText string
	Attrs     Attrs // of Extra
}

// Group is what kernel statistics are grouped by.
type Group uint8

// Groups.
const (
	GroupName  Group = iota // short name
	GroupShape              // name, grid, block, …
	GroupPath               // path of scopes
	GroupLane
)

// KernelQuery selects kernel statistics.
type KernelQuery struct {
	Project, Session string
	Group            Group
	From, To         int64
	// Text is a part of the full name, in any case of letters.
	Text string
	// Path and below: only kernels below this path; nil selects all.
	Path *uint32
	// Limit is at most 10,000; 0 means 50.
	Limit int
}

// KernelStat is the statistics of one group. P50Ns and P99Ns are middles of buckets (see Bucket);
// all other values are exact.
type KernelStat struct {
	Name string // GroupName, GroupShape
	// ID is the shape, path or lane; 0 for GroupName.
	ID                  uint32
	Count, SumNs, MaxNs int64
	QueueNs             int64
	P50Ns, P99Ns        int64
}

// ScopeNode is one path of the tree of scopes. Path 0 is the root, which has the operations outside
// every scope.
type ScopeNode struct {
	Path, Parent uint32
	Name         string
	// Instances is the number of scopes of this path, WallNs the sum of their durations.
	Instances, WallNs int64
	// P50Ns and P99Ns are of the durations of the instances, middles of buckets.
	P50Ns, P99Ns int64
	// Of kernels and copies launched directly in this path.
	Kernels, KernelNs, QueueNs int64
	Copies, CopyNs, CopyBytes  int64
}

// InstanceSort is the order of instances, largest first, or by start.
type InstanceSort uint8

// Orders of instances.
const (
	InstancesByStart InstanceSort = iota
	InstancesByWall
	InstancesByDevice
	InstancesByQueue
)

// InstanceQuery selects the instances of a path.
type InstanceQuery struct {
	Project, Session string
	Path             uint32
	From, To         int64
	Sort             InstanceSort
	// Limit is at most 10,000; 0 means 100.
	Limit int
}

// Instance is one scope with the sums of what was launched directly in it.
type Instance struct {
	StartNs, EndNs             int64
	Span, Parent               SpanID
	Trace                      TraceID
	Kernels, KernelNs, QueueNs int64
	Copies, CopyNs             int64
	// FirstNs and LastNs bound its device work; 0 if it has none.
	FirstNs, LastNs int64
}

// SpanQuery selects spans that are not operations. Empty fields select all.
type SpanQuery struct {
	Project, Session string
	From, To         int64
	Overlapping      bool
	Trace            TraceID
	Parent           SpanID
	Name, Operation  string
	// Limit is at most 20,000; 0 means 1,000.
	Limit int
}

// SpanRow is a span as stored. Its field Origin of Span has no meaning; OriginRef has the content.
type SpanRow struct {
	Span
	// Path is the span's node in the tree of scopes.
	Path      uint32
	OriginRef *Origin
}

// GapQuery selects gaps.
type GapQuery struct {
	Project, Session string
	From, To         int64
	Device           string
	// MinNs is the shortest gap; stores keep single gaps of MinGapNs and longer.
	MinNs int64
	Limit int // at most 10,000; 0 means 100
}

// MinGapNs is the length from which a store keeps single gaps. Shorter ones are in sums only.
const MinGapNs = 10_000

// Gaps is the answer: all gaps of an interval, summed, and the longest ones.
type Gaps struct {
	Count, SumNs int64
	Longest      []Gap
}

// Gap is an interval in which no kernel ran on a device, between two kernels.
type Gap struct {
	Device         string
	StartNs, EndNs int64
	// Before is the kernel that ended last, After the one that ends the gap.
	BeforeStart, AfterStart int64
	Before, After           SpanID
	AfterShape              uint32
}

// SampleQuery selects samples. Empty fields select all.
type SampleQuery struct {
	Project, Session string
	From, To         int64
	Kind             SampleKind
	Function         string
	// ByLine and ByPC add the line and the PC to the groups.
	ByLine, ByPC bool
	// Limit is at most 100,000; 0 means 10,000.
	Limit int
}

// SampleSum is a sum of samples.
type SampleSum struct {
	Kind             SampleKind
	Kernel, Function string
	File             string
	Line, PC         Int
	What             string
	// Rows is the number of records, Value their sum; it wraps around above 2^64-1.
	Rows  int64
	Value uint64
}

// LogQuery selects log records. Empty fields select all.
type LogQuery struct {
	Project, Session string
	From, To         int64
	Event            string
	Trace            TraceID
	Limit            int // at most 10,000; 0 means 1,000
}

// LogRow is a log record as stored.
type LogRow struct {
	Log
	OriginRef *Origin
}

// SeriesQuery selects series. Empty fields select all.
type SeriesQuery struct {
	Project, Session string
	From, To         int64
	Metric           string
	// Device is hw.id in the attributes of the series.
	Device string
	Limit  int // at most 10,000; 0 means 1,000
}

// SeriesInfo is a series as stored. Key identifies it in all sessions.
type SeriesInfo struct {
	Series
	OriginRef       *Origin
	Count           int64
	FirstNs, LastNs int64
}

// PointQuery selects points of a series.
type PointQuery struct {
	Project, Session string
	Series           uint64
	From, To         int64
	// Points is 4 to 20,000; 0 means 2,000.
	Points int
}

// PointRow is a point as stored.
type PointRow struct{ Point }

// TraceRef is a session with rows of a trace.
type TraceRef struct {
	Session         string
	FirstNs, LastNs int64
}

// Retention is limits of a store. Zero means no limit.
type Retention struct {
	MaxAge  time.Duration
	MaxSize int64 // bytes of all segments
	MinFree int64 // bytes free on the disk
	// RawMaxAge is the age after which rows are dropped and rollups are kept.
	RawMaxAge time.Duration
}

// Deleted is a session that retention removed.
type Deleted struct {
	Project, Session string
	Reason           string // "max_age", "max_size", "min_free", "raw_max_age"
	Bytes            int64
}
