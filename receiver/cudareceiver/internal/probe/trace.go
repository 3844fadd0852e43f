// SPDX-License-Identifier: Apache-2.0

package probe

import "time"

// TraceOptions configure a [Trace].
type TraceOptions struct {
	// Duration is the time after which the trace ends. It must be positive.
	Duration time.Duration
	// MaxCalls bounds the calls that are returned if only one process is traced, 0 for none. Calls
	// beyond it are counted in TraceLosses. All processes together can have less than three times
	// as many, by the rule of package fair.
	MaxCalls int
	// Select decides which processes are traced, nil for all; user and identity are as in Process. It is called
	// from other goroutines, one call at a time, and must not call the Probe. It is called once per
	// process, or repeatedly if there are very many processes.
	Select func(id ProcessID, user uint32, identity Identity) bool
	// RingBytes is the size of the buffer between two calls of Take, a power of two of at least one
	// page, 4 MiB if 0, which holds 37,000 calls. A process that runs alone can use a third of it.
	RingBytes uint32
	// MaxInFlight bounds the calls in flight, 12,288 if 0: one for each thread that is in a call. A
	// process that runs alone can use a third of it.
	MaxInFlight uint32
}

const (
	defaultTraceRing = 4 << 20
	defaultInFlight  = 12288
)

func (o TraceOptions) withDefaults() TraceOptions {
	if o.RingBytes == 0 {
		o.RingBytes = defaultTraceRing
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = defaultInFlight
	}
	return o
}

// CallKind is the purpose of a call.
type CallKind uint8

// Kinds of calls.
const (
	CallLaunch CallKind = iota
	CallGraph
	CallCopy
	CallSet
	CallAlloc
	CallFree
	CallWait
)

// Call is one call of the driver that has returned.
type Call struct {
	Process ProcessID
	// User is as in Process.
	User uint32
	// Thread is the id of the thread in the PID namespace of the machine.
	Thread int32
	// Function is the driver's name of the function, such as cuMemcpyHtoDAsync_v2.
	Function string
	Kind     CallKind
	// Start and End are the times at which the host entered and left the function, in ns since 1970
	// by the wall clock. The kernel measures them with the monotonic clock. Both are converted with
	// one offset, known to less than 0.1 ms (on an idle machine to less than 1 µs). The offset is
	// measured again if the wall clock is set.
	Start, End int64
	// Code is the return value of the function, 0 for success.
	Code int32
	// Kernel is the mangled name of the launched kernel, as requested from the driver. It is "" if
	// the process requested it before the Probe started. Handle is the driver's handle of the
	// kernel or of the graph.
	Kernel string
	Handle uint64
	// Grid is in blocks and Block in threads per block, in x, y and z. SharedBytes is the dynamic
	// shared memory of a block.
	Grid, Block [3]uint32
	SharedBytes uint32
	// CopyKind is "HtoD", "DtoH", …, or "" if the call does not specify it. Async is set for calls
	// that need not wait.
	CopyKind string
	Async    bool
	// MemoryKind is the kind of an allocation: see Memory.
	MemoryKind string
	// Stream is the driver's handle of the stream, Bytes the size of the copy, set or allocation,
	// Address the allocated or freed address. Each is valid only if its Has field is true.
	Stream, Bytes, Address          uint64
	HasStream, HasBytes, HasAddress bool
}

// TraceLosses count the calls that a trace did not return. They never decrease.
type TraceLosses struct {
	// RingFull counts calls whose end was dropped because the buffer was full. InFlightFull counts
	// calls whose begin was dropped because the table was full.
	RingFull, InFlightFull uint64
	// Beyond counts calls beyond MaxCalls.
	Beyond uint64
	// Unfinished counts calls that were in flight when the trace ended. It is 0 until then.
	Unfinished uint64
	// AttachFailed counts functions, not calls, that could not be attached.
	AttachFailed uint64
	// Processes has RingFull, InFlightFull and Beyond by process id. If more than 4,096 processes
	// call, some are only in the totals. It is nil if no call was lost.
	Processes map[int32]uint64
}

func (l *TraceLosses) of(pid int32, calls uint64) {
	if calls == 0 {
		return
	}
	if l.Processes == nil {
		l.Processes = map[int32]uint64{}
	}
	l.Processes[pid] += calls
}
