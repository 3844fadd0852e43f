// SPDX-License-Identifier: Apache-2.0

package probe

import "time"

// TraceOptions of a [Trace].
type TraceOptions struct {
	// Duration is when the trace ends by itself; it must be above 0.
	Duration time.Duration
	// MaxCalls is how many calls of a process that is alone are handed out, 0 for none; what is more is counted in
	// TraceLosses. Of all processes together it is less than three times as many, by the rule of package fair.
	MaxCalls int
	// Select says of which processes, nil for all; user is as in Process. It is called by other
	// goroutines than the trace's owner, one at a time, must not call the Probe, and is asked of a process once or,
	// where there are very many, again.
	Select func(id ProcessID, user uint32) bool
	// RingBytes is the size of the buffer between two calls of Take, a power of two of at least one page; 4 MiB if 0,
	// which holds 37,000 calls. A process that is alone can have a third of it.
	RingBytes uint32
	// MaxInFlight is how many calls may be without their return at a time, 12,288 if 0: one for each thread that is
	// in a call. A process that is alone can have a third of them.
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

// CallKind says what a call is for.
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
	// Thread is the thread's id in the machine's own namespace.
	Thread int32
	// Function is the driver's name of it, such as cuMemcpyHtoDAsync_v2.
	Function string
	Kind     CallKind
	// Start and End are when the host entered the function and left it, in ns since 1970 by the machine's clock.
	// The kernel takes them on another one; between the two is one offset, measured to less than 0.1 ms (on an
	// idle machine to less than 1 µs), and measured again if the machine's clock is set.
	Start, End int64
	// Code is what the function returned, 0 for success.
	Code int32
	// Kernel is the name of what is launched, mangled, as the driver was asked for it; "" if the process resolved
	// it before we looked. Handle is the driver's, of the kernel or of the graph.
	Kernel string
	Handle uint64
	// Grid has blocks, Block threads of a block, in x, y and z; SharedBytes is the dynamic shared memory of a block.
	Grid, Block [3]uint32
	SharedBytes uint32
	// CopyKind is "HtoD", "DtoH", …, "" where the call does not say; Async of calls that need not wait.
	CopyKind string
	Async    bool
	// MemoryKind is of an allocation: see Memory.
	MemoryKind string
	// Stream is the driver's handle of it, Bytes what is copied, set or allocated, Address what is allocated or
	// freed; each is known only if its Has is true.
	Stream, Bytes, Address          uint64
	HasStream, HasBytes, HasAddress bool
}

// TraceLosses count the calls that a trace did not hand out. They never fall.
type TraceLosses struct {
	// RingFull are calls for whose end there was no room in the buffer, InFlightFull those for whose begin there
	// was none.
	RingFull, InFlightFull uint64
	// Beyond are those past MaxCalls.
	Beyond uint64
	// Unfinished are those that had begun and not ended when the trace did; it is 0 until then.
	Unfinished uint64
	// AttachFailed are functions, not calls: those that could not be attached to.
	AttachFailed uint64
	// Processes has RingFull, InFlightFull and Beyond by process id. Where more than 4,096 processes call, some are in
	// the sums only. Nil if nothing was lost.
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
