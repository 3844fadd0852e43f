// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// Kind is a kind of record, in this package's numbering: one for each thing that can be asked for.
type Kind uint8

// The kinds. Values are shared with the C core (GPUFL_KIND_…).
const (
	KindKernel    Kind = iota // kernels that may run side by side; with graph nodes also those of graphs
	KindMemcpy                // copies, within a device or with the host
	KindMemcpyP2P             // copies between devices.
	KindMemset
	KindMemory     // allocations and releases, pools included
	KindSync       // waits of the host, and of streams for events
	KindGraph      // launches of whole graphs
	KindNVTX       // ranges and markers, through our own NVTX injection; see ScopeEvent.
	KindExternal   // which scope a launch belongs to; on with the first scope.
	KindOverhead   // what CUPTI itself costs
	KindRuntimeAPI // host calls of the runtime: when a launch was asked for
	KindDriverAPI  // host calls of the driver
	NumKinds
)

// Kinds is a set of kinds.
type Kinds uint32

// KindsOf returns a set.
func KindsOf(kinds ...Kind) Kinds {
	var s Kinds
	for _, k := range kinds {
		s |= 1 << k
	}
	return s
}

// Has reports whether the set has k.
func (s Kinds) Has(k Kind) bool { return s&(1<<k) != 0 }

// DefaultKinds is all that costs little.
var DefaultKinds = KindsOf(KindKernel, KindMemcpy, KindMemcpyP2P, KindMemset, KindGraph, KindNVTX, KindExternal, KindOverhead)

// Config says what to record. The zero value works.
type Config struct {
	// Library is the path of libcupti; "" looks for it: one that the process has mapped already,
	// the loader's path, the usual folders of the CUDA toolkit.
	Library string
	// Kinds defaults to DefaultKinds. What a library does not know is left out; Status says so.
	Kinds Kinds
	// GraphNodes records each kernel of a graph instead of each launch of a graph.
	GraphNodes bool
	// BufferBytes is the size of one buffer (default 8 MiB: some 38,000 kernels), Buffers the most
	// that exist at a time (default 32). They are allocated when first needed and then kept.
	BufferBytes, Buffers int
	// Detachable allows [Collector.Detach]. It cannot be combined with Deep.
	Detachable bool
	// Deep makes ready for windows ([Collector.OpenDeep]): the images of modules are kept from Open
	// on, at most CubinBytes of them (default DefaultCubinBytes). Besides that it costs nothing
	// until a window opens.
	Deep       bool
	CubinBytes int64
	// Stacks samples the stacks of Python code that launches work (docs/stacks.md).
	Stacks bool
}

// Reason says why nothing can be recorded, or not all. Values are stable and end up in telemetry.
type Reason string

// The reasons.
const (
	ReasonNone          Reason = ""
	ReasonNoDriver      Reason = "no_driver"          // libcuda.so.1 is not there
	ReasonNoDevice      Reason = "no_device"          // the driver sees no GPU
	ReasonNoLibrary     Reason = "no_cupti"           // libcupti is not there
	ReasonVersion       Reason = "version_mismatch"   // too old, or not the driver's or process's CUDA version
	ReasonOtherProfiler Reason = "other_profiler"     // another profiler uses CUPTI.
	ReasonPermission    Reason = "no_permission"      // the driver lets only root profile
	ReasonBusy          Reason = "already_recording"  // a Collector exists in this process
	ReasonForked        Reason = "forked"             // the process was forked from one that recorded.
	ReasonDisabled      Reason = "disabled"           // by settings; for callers of this package
	ReasonUnsupported   Reason = "unsupported_system" // not Linux, or built without cgo
	ReasonFailed        Reason = "cupti_failed"       // any other error; Detail has CUPTI's words
)

// Status says what works here.
type Status struct {
	// Reason is ReasonNone where recording works; Detail says in one sentence what is wrong and
	// what to do about it.
	Reason Reason
	Detail string
	// Library is the path that was opened, Version CUPTI's own (18, 28, 130001, …), Driver the CUDA
	// version that the driver supports (13000 for 13.0). 0 and "" where not known.
	Library string
	Version int
	Driver  int
	// Kinds are available, Missing are not.
	Kinds, Missing Kinds
}

// OK reports whether recording works.
func (s Status) OK() bool { return s.Reason == ReasonNone }

// Error is a Status that is no success.
type Error struct{ Status Status }

func (e *Error) Error() string { return "cupti: " + string(e.Status.Reason) + ": " + e.Status.Detail }

// Stats are sums since Open, which never fall.
type Stats struct {
	// Records were delivered by CUPTI, Dropped were not: it found no free buffer. Unknown were
	// delivered and are of a kind that this package does not read.
	Records, Dropped, Unknown uint64
	// Rejected were delivered and were invalid, by reason.
	Rejected [NumRejects]uint64
	// Overhead is what CUPTI says it needed, from its own records; Requests counts buffers lent,
	// Refused those that could not be lent.
	Overhead          time.Duration
	Requests, Refused uint64
	// Unreturned are buffers that CUPTI kept when recording ended, since a record in them was not
	// complete. They hold kernels and copies that the device had not finished, and what was
	// launched later.
	Unreturned uint64
	// ScopesLost counts NVTX events that did not fit, ScopesMisplaced scopes that another thread
	// ended than began them.
	ScopesLost, ScopesMisplaced uint64
	// StacksLost counts stacks that did not fit. StacksTime is how long launches waited for samples of
	// stacks, and samples kept Python from running.
	StacksLost uint64
	StacksTime time.Duration
}

// Reject says why a record was not taken.
type Reject uint8

// The reasons for rejects, in the order of RejectNames.
const (
	RejectZeroTime Reject = iota // start or end is 0
	RejectReversed               // it ends before it starts
	RejectFarTime                // more than a day from now, or before the session by more than that.
	RejectShort                  // shorter than its kind can be
	RejectName                   // a kernel without a name, or with one that is no text
	RejectShape                  // dimensions that no launch can have
	NumRejects
)

// RejectNames are the reasons as telemetry spells them.
var RejectNames = [NumRejects]string{"zero_time", "reversed_time", "implausible_time", "short_record", "bad_name", "bad_shape"}

// Head is what is wanted of every record before it is decided whether to read the rest.
type Head struct {
	Kind Kind
	// Device is the CUDA ordinal, -1 where the record names none.
	Device int32
	// Correlation ties the record to the host call; 0 for none.
	Correlation uint32
	// Start and End are Unix nanoseconds; equal for KindMemory.
	Start, End int64
	// Name is the kernel's, nil for other kinds.
	Name *gpuevent.KernelName
	// Bytes is the size of a copy, set or allocation.
	Bytes int64
	// CopyKind is "HtoD", … for copies.
	CopyKind string
	// GraphNode says that the kernel, copy or set ran as a node of a graph.
	GraphNode bool
	// Scope is the scope around the call with this Correlation, 0 for none. ScopeInferred says that
	// the calling thread was in none. Then the scope is the innermost NVTX range of the only thread
	// that was in any, such as the thread that waits for a backward pass.
	Scope         uint64
	ScopeInferred bool
	// Host is set for host calls (KindRuntimeAPI, KindDriverAPI): Start and End are the host's.
	Host bool
}

// ScopeEventKind says what a ScopeEvent is.
type ScopeEventKind uint8

// Kinds of ScopeEvents.
const (
	ScopeBegin ScopeEventKind = iota
	ScopeEnd
	ScopeMark
	ScopeSpan // a span of the application, which sends it, begins
)

// ScopeEvent is one NVTX range begun or ended, or one mark. A range of nvtxRangePush is the scope
// of what its thread launches until its pop. A range of nvtxRangeStart belongs to no thread and is
// never the scope of a launch. It is also a scope of a program's task (gpufl_context.h).
type ScopeEvent struct {
	What ScopeEventKind
	// ID is the scope's number, unique in the process and shared with PushScope's; Parent is the
	// scope around it on its thread, 0 for none.
	ID, Parent uint64
	TimeNs     int64
	Thread     uint32
	// Name and Domain are as the application gave them ("" on ScopeEnd). Color is ARGB, 0 for none.
	Name, Domain string
	Color        uint32
	// CollectiveBytes is the size that NCCL states for the range of a collective, 0 for none.
	CollectiveBytes uint64
	// Nested is false for ranges of nvtxRangeStart.
	Nested bool
	// Program is true for scopes that the program opened by another interface than NVTX.
	Program bool
	// Span (Trace and Span) is the application's span of a ScopeSpan, and Sampled is its flag.
	Span    gpuevent.Ref
	Sampled bool
}

// StackEvent is the host stack of one launch.
type StackEvent struct {
	// Correlation identifies the launch among those with the same Attachment ([Batch.Attachment]).
	Correlation, Attachment uint32
	// Text has one frame in each line, innermost first, as "function (file:line)".
	Text string
	// Samples is 0 for the stack of the launch itself. Otherwise nothing had been launched since so
	// many samples before the launch, and most of them found its thread at Text.
	Samples int
}
