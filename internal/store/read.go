// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Reader answers queries. All stores give equal answers: to the nanosecond, to the byte, and in the
// same order. The ids of lanes, shapes and paths are the exception. Each store assigns its own, and
// they stay the same while the session exists.
//
// A session that does not exist gives an error that wraps ErrNotFound. A query outside its
// documented limits gives an error that wraps ErrInvalid, and so does a negative Limit. A call
// whose context has ended gives an error that wraps that of the context.
//
// Times are Unix nanoseconds. An interval [From, To) includes rows that start in it, and with
// Overlapping also rows that start before From and end after it. Samples, logs and points start at
// their time. From 0 and To 0 each mean no bound. Bounds below 0 or above MaxTimeNs, and a To that
// is not above From, are invalid.
//
// Strings, trace ids and UIDs are ordered by bytes, and unknown numbers come before known ones.
// Lanes are ordered by Device, DeviceIndex, Context, Stream, Class and Key. Sums wrap around as
// int64 does. Text ignores the case of the letters A to Z only (see ContainsFold). An id that does
// not exist selects nothing. An empty list of ids selects all.
//
// The session "" has the data without a session. Only Spans, Span, Ops, Samples, Logs, Series,
// Points and Trace answer for it, and they never give ErrNotFound for the session. The ids of its
// lanes, shapes and paths have no meaning, and OpPage.Shapes is nil. All other calls, also those of
// Admin, give ErrNotFound for it.
//
// # Scopes
//
// The tree of scopes has one node, called path, for each distinct list of names. A Span is in the
// tree unless its Operation is "session" or "deep_window", or its chain is longer than
// MaxScopeDepth. The chain of a span is the span, its parent, the parent of that, and so on. It
// ends at a span whose Parent is 0, is not a Span of the session, or is a session or deep window. A
// cycle is longer than any limit. The path of a span in the tree is the names of its chain,
// outermost first, and that of any other span is the root. If several spans have the id of a
// parent, the one with the earliest start counts.
//
// The path of an operation is the first of these that exists:
//
//  1. the first MaxScopeDepth names of Place.ScopePath, split at "|", if it is not "";
//  2. the path of the span Place.Parent, if this is in the tree;
//  3. the one name Place.ScopeName, if it is not "";
//  4. the root.
//
// Names that differ only in their numbers fold: if more than a limit have the same [numbered.Pattern], the
// paths have the pattern in the place of all of them. The limit is [numbered.Max], and 1 for numbers of steps,
// iterations, batches and epochs. The names of all spans count, except sessions and deep windows, and for
// each operation those of its ScopePath, or its ScopeName if that is "". Of more than 250,000 different
// names, a store need not count all. Rows have exact names.
//
// All rows that are stored at the time of a query take part, in whichever order they arrived. So a
// late parent moves the spans and operations below it to other paths, and another name may fold them.
type Reader interface {
	// Sessions lists sessions, the largest FirstNs first, then by id. While many sessions are written,
	// counts, sums and resources may leave out what was written in the last minutes. FirstNs, LastNs and
	// Ended never do.
	Sessions(ctx context.Context, q SessionQuery) ([]SessionInfo, error)
	// Session returns one session.
	Session(ctx context.Context, project, session string) (SessionInfo, error)
	// Lanes returns the lanes of a session that have operations, in the order of lanes.
	Lanes(ctx context.Context, project, session string) ([]LaneInfo, error)
	// Shapes returns shapes of the session by id. Unknown ids are absent. More than 10,000 ids are
	// invalid.
	Shapes(ctx context.Context, project, session string, ids []uint32) (map[uint32]*Shape, error)
	// Timeline returns the bins of an interval, in the order of lanes, then by bin. Bins without
	// count and busy time are absent.
	Timeline(ctx context.Context, q TimelineQuery) (Timeline, error)
	// Ops returns operations of an interval in the order of the query, then by start and span.
	Ops(ctx context.Context, q OpQuery) (OpPage, error)
	// Kernels returns statistics of kernels by group, the largest sum first. Groups with equal sums
	// are in this order: names by name; shapes by name, then Key; paths as in Scopes; lanes as in
	// Lanes.
	Kernels(ctx context.Context, q KernelQuery) ([]KernelStat, error)
	// Scopes returns the tree of scopes, depth first: each node, then its children by name. It has
	// the root, the paths of spans in the tree and of operations, and the paths above these.
	Scopes(ctx context.Context, project, session string) ([]ScopeNode, error)
	// Instances returns instances of a path in the order of the query, then by start and span. An
	// instance is a span in the tree. The root has none.
	Instances(ctx context.Context, q InstanceQuery) ([]Instance, error)
	// Span returns the operation or span with this id. At is its start, 0 if unknown, which is
	// slower. Exactly one of the results is set. Of several, operations come before spans, then the
	// earliest start counts. Id 0 gives ErrNotFound.
	Span(ctx context.Context, project, session string, id SpanID, at int64) (*OpRow, *SpanRow, error)
	// Spans returns spans that are not operations, in the order of the query.
	Spans(ctx context.Context, q SpanQuery) ([]SpanRow, error)
	// Gaps returns intervals in which a device ran no kernel, the longest first, then by start,
	// then by device.
	Gaps(ctx context.Context, q GapQuery) (Gaps, error)
	// Busy returns for each interval of the query how long a kernel ran in it: the union of the kernels
	// of a device, summed over the devices. With Idle it returns the sum of the parts of gaps in the
	// interval, see Gap. An interval that is empty or ends before it starts has 0.
	Busy(ctx context.Context, q BusyQuery) ([]int64, error)
	// Samples returns sums of samples, by kind, kernel, function, file, line, PC and what, then by path
	// as in Scopes.
	Samples(ctx context.Context, q SampleQuery) ([]SampleSum, error)
	// Stacks returns sums of kernels by host stack, path and name: the largest sum first, then by
	// stack, by path as in Scopes, and by name.
	Stacks(ctx context.Context, q StackQuery) ([]StackSum, error)
	// Logs returns log records by time and UID.
	Logs(ctx context.Context, q LogQuery) ([]LogRow, error)
	// Series lists the series of metrics that have points in the interval, by metric and Key.
	Series(ctx context.Context, q SeriesQuery) ([]SeriesInfo, error)
	// Points returns the points of one series by time. A session without this series gives
	// ErrNotFound.
	//
	// If the interval has more than q.Points, it returns the first, last, smallest and largest
	// point of each of n = q.Points/4 parts (M4), each point once. A bound that the query leaves
	// out is the time of the first point, or that of the last one plus 1. Part i is [From + i*w,
	// From + (i+1)*w), with w = (To-From)/n rounded up. Points are compared by Double, or by Int as
	// a float64, and points with Data by 0. NaN is neither smallest nor largest. Of equal points
	// the earliest counts.
	Points(ctx context.Context, q PointQuery) ([]PointRow, error)
	// Baselines returns the baselines of a project by name.
	Baselines(ctx context.Context, project string) ([]Baseline, error)
	// Trace returns the sessions that have operations, spans, samples or logs of a trace, by
	// FirstNs and session. They include the session "". The zero trace is invalid.
	Trace(ctx context.Context, project string, trace TraceID) ([]TraceRef, error)
}

// Admin maintains the sessions of a store.
type Admin interface {
	// Pin protects a session from retention, or ends that.
	Pin(ctx context.Context, project, session string, pinned bool) error
	// SetBaseline gives a session a name, see [Baseline]. Another session loses it. An empty session
	// removes the name, and gives ErrNotFound if there is none. [CheckBaseline] has the limits of names.
	SetBaseline(ctx context.Context, project, name, session string) error
	// Delete removes a session and its baselines.
	Delete(ctx context.Context, project, session string) error
	// Seal compacts a session that gets no more data now. It changes no answer except Sealed and
	// Bytes. New rows open the session again. Sealing twice changes nothing.
	Seal(ctx context.Context, project, session string) error
	// Retain applies the limits once and returns what it deleted, in this order: MaxAge, MaxSize,
	// MinFree, RawMaxAge, and for each the smallest LastNs first, then by project and id. Only
	// sealed sessions that are not pinned and no baseline are deleted. A day of data without a session counts as a
	// sealed session that ends with the day.
	Retain(ctx context.Context, limits Retention) ([]Deleted, error)
	// Export writes a session to a new file, and Import adds a session from such a file. The file
	// has the format of a DuckDB segment. A session that the store did not have is pinned.
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

// Baseline is a name for a session that others are compared with. A session can have several. Retention
// keeps it.
type Baseline struct{ Name, Session string }

// maxBaseline is the length of the longest name of a baseline in bytes.
const maxBaseline = 100

// CheckBaseline returns an error that wraps ErrInvalid unless a name has 1 to 100 bytes of UTF-8, without
// control characters and slashes.
func CheckBaseline(name string) error {
	control := func(r rune) bool { return r < ' ' || r == 0x7f || r == '/' || r == utf8.RuneError }
	if name == "" || len(name) > maxBaseline || strings.ContainsFunc(name, control) {
		return fmt.Errorf("name of a baseline: must have 1 to %d bytes of UTF-8 without control characters and slashes: %w", maxBaseline, ErrInvalid)
	}
	return nil
}

// SessionQuery selects sessions. Empty fields select all.
type SessionQuery struct {
	Project string
	// Service, Host and Run are exact values of service.name, host.name and cuda.run.id.
	Service, Host, Run string
	// Text is a part of the id, service, host or run, in any case of letters.
	Text string
	// From and To select sessions with FirstNs below To and LastNs not below From.
	From, To int64
	// After is the id of the last session of the previous page. If it does not exist: ErrNotFound.
	After string
	// Limit is at most 1,000; 0 means 100.
	Limit int
}

// SessionInfo describes a session.
type SessionInfo struct {
	Project, ID         string
	Service, Host       string
	Run, Rank, RankSize string // cuda.run.id, cuda.run.rank, cuda.run.size; "" if unknown
	PID                 Int
	// Resource is that of the origin whose rows have the latest start or time; of several the one
	// with the smallest Key. Origin 0 does not count. For points it is the origin of the series.
	//
	// The fields above are its attributes: strings as they are, integers as decimal numbers. Other
	// types of values, and a PID that is no integer, are unknown.
	Resource Attrs
	// FirstNs is the earliest start or time of all rows, LastNs the latest end or time.
	FirstNs, LastNs int64
	// Counts is the number of rows by table. It has these five keys: "ops", "spans", "samples",
	// "logs", "points".
	Counts map[string]int64
	// Operations is the number of operations by kind, without kinds that have none.
	Operations map[Operation]int64
	// KernelNs is the sum of the durations of all kernels.
	KernelNs int64
	// Bytes is the size on disk, 0 if unknown.
	Bytes          int64
	Sealed, Pinned bool
	// RowsDropped is set after retention has removed the rows and kept the rollups.
	RowsDropped bool
	// Ended says that the session has a span whose Operation is "session".
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
	// Bins is the number of equal bins of the interval, 1 to 4,000. A bound that the query leaves
	// out is that of all operations of the session: the earliest start, or the latest end plus 1.
	// If To is then not above From, or the session has no operations, the answer is empty.
	Bins int
	// Lanes selects lanes by ID; nil selects all.
	Lanes []uint32
}

// Timeline is the answer: bin i covers [From + i*Width, From + (i+1)*Width). From and Width are
// those of [PlanTimeline]. It has the bins that begin before the To of the query. The sums are of
// whole bins, also where the interval of the query begins or ends within one.
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
	// BusyNs is the sum of the time of operations in the bin. An operation counts in each bin that
	// it touches, with its part in that bin. Operations that overlap each count in full. An
	// operation can last until MaxTimeNs, so a store cannot keep one row for each bin that it
	// touches.
	BusyNs int64
	// The longest operation that starts in the bin; all three are 0 if none does. Of several, the
	// one with the earliest start counts, then the one with the smallest Key of its shape.
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
	// Name is the name of the shape. Parent and Trace are those of the place. With Below, Parent also
	// selects the operations of the spans below it: a span in the tree is below all others of its
	// chain. Below is invalid for the session "".
	Name   string
	Parent SpanID
	Below  bool
	Trace  TraceID
	// Path selects the operations of this path and of all paths below it, or with Direct only those
	// of this path; nil selects all. It is invalid for the session "".
	Path   *uint32
	Direct bool
	// Stack selects the operations whose host stack has these frames, innermost first, as its outermost
	// ones: their texts end with its lines. With StackExact it selects those with exactly this text, ""
	// those without a stack. Nil selects all.
	Stack      *string
	StackExact bool
	// MinNs and MaxNs are the shortest and the longest duration; MaxNs 0 means no limit. A negative
	// one is invalid.
	MinNs, MaxNs int64
	// Sort by duration or queue time puts the largest first. An unknown queue time counts as the
	// smallest int64.
	Sort OpSort
	// After continues after the last row of the previous page: its sort key, start and span.
	After *OpCursor
	// Limit is at most 20,000; 0 means 1,000.
	Limit int
}

// OpCursor is the position of a row in an order. Value is the duration or queue time that the order
// uses, and has no meaning for ByStart.
type OpCursor struct {
	Value, StartNs int64
	Span           SpanID
}

// OpPage is a page of operations. Shapes has the shapes that its rows refer to. More says that rows
// follow the last one.
type OpPage struct {
	Rows   []OpRow
	Shapes map[uint32]*Shape
	More   bool
}

// OpRow is an operation as stored. The fields Lane and Shape of Op are ids of the session; its
// other dictionary indices have no meaning, because the row has the content. LaneRef, ShapeRef and
// OriginRef are never nil. The Key of PlaceRef has no meaning.
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
	// Text is a part of the name or of the full name, in any case of letters.
	Text string
	// Path selects the kernels of this path and of all paths below it; nil selects all.
	Path *uint32
	// Buckets adds the distribution of durations to each group.
	Buckets bool
	// Limit is at most 10,000; 0 means 50.
	Limit int
}

// KernelStat is the statistics of one group. P50Ns and P99Ns are middles of buckets (see Bucket);
// all other values are exact. Percentile p of n durations is in the smallest bucket for which 100*k
// >= n*p, where k is the number of durations in this bucket and in smaller ones. QueueNs is the sum
// of the known queue times.
type KernelStat struct {
	Name string // GroupName, GroupShape
	// ID is the shape, path or lane; 0 for GroupName.
	ID                  uint32
	Count, SumNs, MaxNs int64
	QueueNs             int64
	P50Ns, P99Ns        int64
	// Buckets counts the durations by bucket, ascending, if the query asks for it.
	Buckets []BucketCount
}

// BucketCount is the number of durations in a bucket (see [Bucket]).
type BucketCount struct {
	Bucket uint16
	Count  int64
}

// ScopeNode is one path of the tree of scopes (see [Reader]). Path 0 is the root, which has the
// operations outside every scope. Its Name is "" and its Parent 0.
type ScopeNode struct {
	Path, Parent uint32
	Name         string
	// Instances is the number of scopes of this path, WallNs the sum of their durations.
	Instances, WallNs int64
	// P50Ns and P99Ns are of the durations of the instances, middles of buckets; 0 without
	// instances.
	P50Ns, P99Ns int64
	// Of kernels and copies launched directly in this path. QueueNs is of kernels.
	Kernels, KernelNs, QueueNs int64
	Copies, CopyNs, CopyBytes  int64
}

// InstanceSort is the order of instances, largest first, or by start.
type InstanceSort uint8

// Orders of instances.
const (
	InstancesByStart  InstanceSort = iota
	InstancesByWall                // duration
	InstancesByDevice              // KernelNs + CopyNs
	InstancesByQueue
)

// InstanceQuery selects the instances of a path.
type InstanceQuery struct {
	Project, Session string
	Path             uint32
	// Name is the exact name; "" selects all.
	Name     string
	From, To int64
	Sort     InstanceSort
	// Limit is at most 10,000; 0 means 100.
	Limit int
}

// Instance is one scope with the sums of what was launched in it or in a span below it. These are the
// kernels and copies of an OpQuery with its id as Parent and with Below. An instance with id 0 has
// none. QueueNs is of kernels.
type Instance struct {
	StartNs, EndNs             int64
	Span, Parent               SpanID
	Trace                      TraceID
	Name                       string
	Kernels, KernelNs, QueueNs int64
	Copies, CopyNs             int64
	// FirstNs and LastNs are the earliest start and the latest end of these; 0 if there are none.
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
	// MinNs is the shortest duration. A negative one is invalid.
	MinNs int64
	// Longest orders by duration, the longest first, then by start and span.
	Longest bool
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

// GapQuery selects gaps that start in the interval, with Overlapping also gaps that start before From
// and end after it.
type GapQuery struct {
	Project, Session string
	From, To         int64
	Overlapping      bool
	// Device is Lane.Device; "" selects all.
	Device string
	// MinNs is the length of the shortest gap in Longest. Less than MinGapNs means MinGapNs.
	MinNs int64
	Limit int // at most 10,000; 0 means 100
}

// MaxScopeDepth is the largest depth of the tree of scopes. The root has depth 0.
const MaxScopeDepth = 64

// MinGapNs is the length from which a store keeps single gaps. Shorter ones are in sums only.
const MinGapNs = 10_000

// Gaps is the answer: all gaps of an interval, summed whatever their length, and the longest ones.
// With Overlapping, SumNs is the sum of their parts inside the interval. All other gaps are not cut.
type Gaps struct {
	Count, SumNs int64
	Longest      []Gap
}

// Gap is an interval in which no kernel ran on a device, between two kernels. A device is one value
// of Lane.Device. Take its kernels of all streams by start, then by span. If a kernel starts after
// the largest end of all kernels before it, a gap ends there. Graph launches are not kernels.
type Gap struct {
	Device         string
	StartNs, EndNs int64
	// Before is the kernel that ended last, of several the first by start and span. After is the
	// one that ends the gap, of several the one with the smallest span.
	BeforeStart, AfterStart int64
	Before, After           SpanID
	AfterShape              uint32
}

// BusyQuery asks how long devices were busy, or idle. See Gap for devices and kernels.
type BusyQuery struct {
	Project, Session string
	// Device is Lane.Device; "" sums all devices.
	Device string
	Idle   bool
	// Intervals are at most MaxIntervals. Their bounds are from 0 to MaxTimeNs. They may overlap, in any
	// order.
	Intervals []Interval
}

// MaxIntervals is the largest number of intervals of a BusyQuery.
const MaxIntervals = 10_000

// Interval is [From, To).
type Interval struct{ From, To int64 }

// SampleQuery selects samples. Empty fields select all.
type SampleQuery struct {
	Project, Session string
	From, To         int64
	Kind             SampleKind
	Function         string
	// ByLine and ByPC add the line and the PC to the groups, which are by kind, kernel, function,
	// file and what. Without them, Line and PC are unknown.
	ByLine, ByPC bool
	// ByPath adds the path to the groups. The path of a sample is that of the span Sample.Span, or
	// the root if this is not in the tree. It is invalid for the session "".
	ByPath bool
	// Limit is at most 100,000; 0 means 10,000.
	Limit int
}

// StackQuery selects kernels for [Reader.Stacks].
type StackQuery struct {
	Project, Session string
	From, To         int64
	// Limit is at most 100,000; 0 means 10,000.
	Limit int
}

// StackSum is the sum of the kernels with one host stack, path and name.
type StackSum struct {
	// Stack is the text of the stack, "" if unknown.
	Stack        string
	Path         uint32
	Name         string
	Count, SumNs int64
}

// SampleSum is a sum of samples.
type SampleSum struct {
	Kind             SampleKind
	Kernel, Function string
	File             string
	Line, PC         Int
	What             string
	Path             uint32
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
	// After continues after the record with this time and UID.
	After *LogCursor
	Limit int // at most 10,000; 0 means 1,000
}

// LogCursor is the position of a record in the order of Logs.
type LogCursor struct {
	TimeNs int64
	UID    UID
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
	// Device is hw.id in the attributes of the series, as a string.
	Device string
	Limit  int // at most 10,000; 0 means 1,000
}

// SeriesInfo is a series as stored. Key identifies it in all sessions. Its field Origin has no
// meaning. Count, FirstNs and LastNs are of its points in the interval.
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
	// Points is 4 to 20,000; 0 means 2,000. Other numbers are invalid.
	Points int
}

// PointRow is a point as stored. Its field Series has no meaning.
type PointRow struct{ Point }

// TraceRef is a session with rows of a trace. FirstNs is their earliest start or time, LastNs their
// latest end or time.
type TraceRef struct {
	Session         string
	FirstNs, LastNs int64
}

// Retention is limits of a store. Zero means no limit. Ages count from LastNs to the clock of the
// machine.
type Retention struct {
	MaxAge  time.Duration
	MaxSize int64 // bytes of all segments
	MinFree int64 // bytes free on the disk
	// RawMaxAge is the age after which the operations and samples are dropped and their rollups are
	// kept. Sessions, Session, Lanes, Scopes, Timeline from a level, and Kernels of a whole session
	// by name, shape or path answer as before. Ops and Samples then return nothing. Later
	// operations and samples of the session are rejected. Data without a session is kept whole.
	RawMaxAge time.Duration
}

// Deleted is a session that retention removed.
type Deleted struct {
	Project, Session string
	Reason           string // "max_age", "max_size", "min_free", "raw_max_age"
	Bytes            int64
}
