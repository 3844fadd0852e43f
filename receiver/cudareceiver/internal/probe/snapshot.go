// SPDX-License-Identifier: Apache-2.0

package probe

import "time"

// ProcessID identifies a process until the machine reboots. The start time distinguishes processes
// that reuse an id.
type ProcessID struct {
	// PID is the id of the thread group in the PID namespace of the machine.
	PID int32
	// Start is the start time in nanoseconds since boot (start_boottime of the kernel's task),
	// rounded down to 10 ms as in /proc/PID/stat.
	Start uint64
}

// Identity is what the kernel knew of a process at its first call. It is for processes that end before
// /proc is read. A field is empty if the kernel has no type information.
type Identity struct {
	// Executable is the name of the file without its folders, truncated to 63 bytes.
	Executable string
	// Cgroup has the control groups in the form of /proc/PID/cgroup: that of one controller of
	// version 1, and that of version 2. A path has no leading slash if only its innermost part is
	// known. The kernel keeps 16 names and 320 to 512 bytes.
	Cgroup string
}

// Snapshot has the sums of all processes that called CUDA. The sums of a process never decrease. A
// process that has ended is in exactly one more Snapshot, with Ended set and its final sums.
type Snapshot struct {
	// Time is the wall time at which the maps were read.
	Time      time.Time
	Processes []Process
	Losses    Losses
	Runtimes  []RuntimeCheck
}

// Process has the sums of one process. Slices are sorted by their keys, so that equal sums give
// equal Snapshots.
type Process struct {
	ID    ProcessID
	Ended bool
	// User identifies the owner at the first call: a user id, or the number of the container's PID
	// namespace. The capacities are shared between users.
	User uint32
	// Identity is that of the last program of the process that called CUDA.
	Identity Identity
	// Lost counts calls that are in none of the sums below, by the table that was full: "sums",
	// "threads", "allocations" (bytes in use), "records" (graphs), "names", "returns", "batch",
	// "datatypes". It is nil if no call was lost.
	Lost map[string]uint64
	// Launches are the kernel launches by kernel, executed or captured into a graph.
	Launches []Launch
	// Graphs counts launches of graphs. GraphNodes counts the kernels in them, if their capture was
	// observed.
	Graphs, GraphNodes uint64
	// GraphsUnknown counts launches of graphs with unknown kernels.
	GraphsUnknown uint64
	Copies        []Copy
	Sets          Volume
	Memory        []Memory
	Waits         []Wait
	Errors        []Error
	// Modules counts loads of modules and libraries.
	Modules uint64
	// Enqueue is the time from entry to return of sampled launches; each stands for SampleEvery
	// launches. Idle is the time from the return of a wait to the next launch of the same thread.
	Enqueue     Histogram
	SampleEvery uint32
	Idle        Histogram
	Collectives []Collective
}

// Launch has the launches of one kernel.
type Launch struct {
	// Name is the mangled name that the program requested from the driver. It is "" if the process
	// requested it before the Probe started. It is also "" if Other is set: then the launches are
	// those beyond the share of the process, Handle is 0, and Grid and Block are empty.
	Name   string
	Handle uint64
	Other  bool
	// Captured launches were recorded into a graph and not executed.
	Captured bool
	Calls    uint64
	// Grid counts blocks per launch, Block threads per block.
	Grid, Block Histogram
}

// Copy has the copies of one kind.
type Copy struct {
	// Kind is "HtoD", "DtoH", "DtoD", "PtoP", …, or "" if the call does not specify it (cuMemcpy).
	Kind  string
	Async bool
	// Bytes has the sizes of the copies.
	Bytes Histogram
	// Time has the durations of synchronous calls. For asynchronous calls it has the time to the
	// end of a wait, if the same thread then waited on the same stream with no call between. This
	// time is at least the duration of the copy.
	Time Histogram
	// TimedBytes is the number of bytes copied by the calls in Time.
	TimedBytes uint64
}

// Volume counts calls and their bytes.
type Volume struct{ Calls, Bytes uint64 }

// Memory has the allocations of one kind.
type Memory struct {
	// Kind is "device", "pinned", "managed", "async" (of a pool) or "virtual" (cuMemCreate).
	Kind             string
	Allocated, Freed Volume
	// InUse is the number of bytes that were allocated while the Probe was attached and are not
	// freed.
	InUse int64
}

// Wait has the waits of the host in one function of the driver.
type Wait struct {
	Function string
	Time     Histogram
}

// Error counts returns of one function with one code other than 0 and 600 (not ready).
type Error struct {
	Function string
	Code     int32
	Calls    uint64
}

// Collective has the calls of one NCCL function.
type Collective struct {
	Function string
	// Bytes has count × size of the datatype, as passed to the call. It is empty for ncclGroupEnd.
	Bytes Histogram
	// Time has the durations of the host calls outside groups and of ncclGroupEnd.
	Time Histogram
}

// RuntimeState is the result of the check of a libcudart.
type RuntimeState string

// States of a libcudart: undecided for lack of launches; its launches reach the exported functions
// of the driver; they do not.
const (
	RuntimeChecking RuntimeState = "checking"
	RuntimePassed   RuntimeState = "passed"
	RuntimeBypasses RuntimeState = "bypassing"
)

// RuntimeCheck compares the calls of a libcudart with those that the driver's functions observe.
// Calls that do not reach the driver's functions are counted at libcudart while it is attached.
type RuntimeCheck struct {
	Library  string // path of the library
	State    RuntimeState
	Attached bool
	// Reached and Bypassed count launches that did and did not reach the exported functions of the
	// driver while libcudart was attached.
	Reached, Bypassed uint64
}

// Buckets is the number of buckets of a Histogram.
const Buckets = 64

// Histogram counts values by powers of two: bucket i has values in (2^(i-1), 2^i], bucket 0 the
// values 0 and 1. Sizes are in bytes or counts, times in nanoseconds.
type Histogram struct {
	Count, Sum, Max uint64
	Buckets         [Buckets]uint64
}

// Losses count what is missing from the sums. They never decrease, with the stated exceptions.
type Losses struct {
	// MapFull counts calls that were dropped because a map was full, by map. RingFull counts
	// dropped rare events.
	MapFull  map[string]uint64
	RingFull uint64
	// Folded counts launches that are summed without kernel, grid and block, because their process
	// had used its share.
	Folded uint64
	// Users counts calls of processes that are not in Processes because their user had used its
	// share, by Process.User. MapFull["runs"] has the total. With more than 1,024 users, some are
	// only in the total. It may decrease.
	Users map[uint32]uint64
	// InFlight counts calls whose return was not observed: their thread ended, or the table was
	// full.
	InFlight uint64
	// NamesEvicted counts evicted names of kernels.
	NamesEvicted uint64
	// AttachFailed counts functions that could not be attached, by file and function. Slow counts
	// functions that are not attached because the kernel would single-step their first instruction,
	// which makes each call about 10 µs slower.
	AttachFailed, Slow uint64
	// Denied counts processes and files whose access was denied in the last scan for libraries. It
	// may decrease.
	Denied int
	// Skipped counts files that were not observed, by reason. A file is counted in each scan that
	// skips it.
	Skipped map[string]uint64
}

// Library is an attached library.
type Library struct {
	// Path is where the library was found, possibly under /proc/PID/root. Device and Inode identify
	// it. On an overlay, as in containers, Device is a placeholder, because each container shows
	// another device for the same file.
	Path          string
	Device, Inode uint64
	// Functions is the number of attached functions.
	Functions int
}
