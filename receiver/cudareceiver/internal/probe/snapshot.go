// SPDX-License-Identifier: Apache-2.0

package probe

import "time"

// ProcessID is a process for as long as the machine runs: process ids are used again, start times
// tell them apart.
type ProcessID struct {
	// PID is the thread group's id in the machine's own namespace.
	PID int32
	// Start is when it began, in nanoseconds since boot as the kernel counts them (task's start_boottime),
	// rounded down to 10 ms, as /proc/PID/stat has it.
	Start uint64
}

// Snapshot has the sums of all processes that called CUDA. They never fall as long as a process is in
// it; one that has ended is in exactly one more Snapshot, with Ended set and its last sums.
type Snapshot struct {
	// Time is when the maps were read, by the machine's clock.
	Time      time.Time
	Processes []Process
	Losses    Losses
	Runtimes  []RuntimeCheck
}

// Process is what one process did. Slices are ordered by their keys, so that equal sums are equal
// Snapshots.
type Process struct {
	ID    ProcessID
	Ended bool
	// User says whose it was when it first called: the id of a user, or the number of the container's PID namespace. Users
	// share what is kept.
	User uint32
	// Lost are its calls that are in none of the sums below, by what had no room for them: "sums", "threads",
	// "allocations" (bytes in use), "records" (graphs), "names", "returns", "batch", "datatypes". Nil if there are none.
	Lost map[string]uint64
	// Launches are launches of kernels by kernel, executed or captured into a graph.
	Launches []Launch
	// Graphs are launches of graphs; Nodes the kernels in them, as far as they were captured while we
	// looked.
	Graphs, GraphNodes uint64
	// GraphsUnknown are launches of graphs whose kernels are not known.
	GraphsUnknown uint64
	Copies        []Copy
	Sets          Volume
	Memory        []Memory
	Waits         []Wait
	Errors        []Error
	// Modules are loads of modules and libraries.
	Modules uint64
	// Enqueue is the time from entry to return of sampled launches; SampleEvery says of how many each
	// stands for. Idle is the time from the return of a wait to the next launch of the same thread.
	Enqueue     Histogram
	SampleEvery uint32
	Idle        Histogram
	Collectives []Collective
}

// Launch are the launches of one kernel.
type Launch struct {
	// Name is mangled, as the driver was asked for it; "" if the process resolved it before we looked, or
	// it is one of those beyond the process's share: then Handle is 0, Other is set, and Grid and Block are empty.
	Name   string
	Handle uint64
	Other  bool
	// Captured launches were recorded into a graph and not executed.
	Captured bool
	Calls    uint64
	// Grid has blocks per launch, Block threads per block.
	Grid, Block Histogram
}

// Copy are the copies of one kind.
type Copy struct {
	// Kind is "HtoD", "DtoH", "DtoD", "PtoP", …, "" where the call does not say (cuMemcpy).
	Kind  string
	Async bool
	// Bytes has the sizes of copies.
	Bytes Histogram
	// Time has the durations of synchronous calls; of asynchronous ones that the same thread then waited
	// for on the same stream, with nothing between, the time to the wait's end: no shorter than the copy.
	Time Histogram
	// TimedBytes are the bytes that Time's calls copied.
	TimedBytes uint64
}

// Volume is a number of calls and their bytes.
type Volume struct{ Calls, Bytes uint64 }

// Memory is allocations of one kind.
type Memory struct {
	// Kind is "device", "pinned", "managed", "async" (of a pool) or "virtual" (cuMemCreate).
	Kind             string
	Allocated, Freed Volume
	// InUse is what was allocated while we looked and is not freed, in bytes.
	InUse int64
}

// Wait are the waits of the host by one function of the driver.
type Wait struct {
	Function string
	Time     Histogram
}

// Error are returns of one function with one code other than 0 and 600 (not ready).
type Error struct {
	Function string
	Code     int32
	Calls    uint64
}

// Collective are calls of one NCCL function.
type Collective struct {
	Function string
	// Bytes has count × size of the datatype, as the call has them; ncclGroupEnd has none.
	Bytes Histogram
	// Time has how long the call took the host, of calls outside groups and of ncclGroupEnd.
	Time Histogram
}

// RuntimeState is what is known of a libcudart.
type RuntimeState string

// States of a libcudart: not enough launches to tell; they reach the driver's exported functions; they do not.
const (
	RuntimeChecking RuntimeState = "checking"
	RuntimePassed   RuntimeState = "passed"
	RuntimeBypasses RuntimeState = "bypassing"
)

// RuntimeCheck is one libcudart, whose calls are held against what the driver's functions see. Calls that do not
// reach those are counted from libcudart as long as it is attached to.
type RuntimeCheck struct {
	Library  string // its path
	State    RuntimeState
	Attached bool
	// Reached and Bypassed are launches that did and did not reach the driver's exported functions while it was
	// attached to.
	Reached, Bypassed uint64
}

// Buckets is the number of a Histogram's buckets.
const Buckets = 64

// Histogram counts values by powers of two: bucket i has values of (2^(i-1), 2^i], bucket 0 those of 0
// and 1. Sizes are in bytes or ones, times in nanoseconds.
type Histogram struct {
	Count, Sum, Max uint64
	Buckets         [Buckets]uint64
}

// Losses say what is not in the sums. They never fall.
type Losses struct {
	// MapFull counts calls whose sums found no room, by map; RingFull rare events that were dropped.
	MapFull  map[string]uint64
	RingFull uint64
	// Folded are launches that are in the sums without kernel, grid and block, as their process had its share.
	Folded uint64
	// Users are calls of processes that are not in Processes because their user had its share of these, by
	// Process.User. MapFull["runs"] has their sum; of more than 1,024 users some are in that only. It may fall.
	Users map[uint32]uint64
	// InFlight are calls whose return was not seen: their thread ended, or there was no room.
	InFlight uint64
	// NamesEvicted are kernels' names that made room for others.
	NamesEvicted uint64
	// AttachFailed are functions that are there and could not be attached to, by file and function; Slow are
	// functions whose first instruction has to be single-stepped, which makes each call some 10 µs
	// longer: they are not attached to.
	AttachFailed, Slow uint64
	// Denied are processes and files that we were not allowed to look at when we last looked for libraries. It may
	// fall.
	Denied int
	// Skipped are files that were not observed, by reason, each time that a look skipped one.
	Skipped map[string]uint64
}

// Library is a library that is attached to.
type Library struct {
	// Path is where it was found, under /proc/PID/root if need be; Device and Inode identify it. Below an overlay, as
	// containers have it, Device is a stand-in, since each container shows another one for the same file.
	Path          string
	Device, Inode uint64
	// Functions is the number of functions attached to.
	Functions int
}
