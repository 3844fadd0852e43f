// SPDX-License-Identifier: Apache-2.0

package analysis

import "strings"

// Cause is why a device was idle. docs/causes.md has the rules and their order.
type Cause uint8

// Causes of idle time. The text of each is stable.
const (
	// StartUp is idle time before the first kernel of the device.
	StartUp Cause = iota
	// Sync is time that the host waited for the device, or that it was late because it had waited.
	Sync
	// Allocator is the same for calls that allocate or release memory.
	Allocator
	// CopyCall is the same for calls that copy from the host and return after the copy.
	CopyCall
	// SlowLaunch is time inside a launch call longer than [SlowLaunchNs].
	SlowLaunch
	// Launch is time inside a launch call, and host code of at most [LaunchGapNs] between two calls.
	Launch
	// Host is other host code before the launch of the next operation.
	Host
	// Queued is time after the launch in which the operation waited for another one.
	Queued
	// Latency is the last part of the time after the launch, at most [LatencyNs].
	Latency
	// NothingQueued is time after the last operation of the interval, and time without a scope in a session
	// whose scopes are requests.
	NothingQueued
	// Unknown is time before an operation whose launch times are not recorded, and all idle time if work is
	// missing: see Result.Missing.
	Unknown

	numCauses
)

// Bounds of causes, in nanoseconds.
const (
	// LatencyNs is the longest time that a device may need from the launch call, or from the end of the
	// work before, to the start of queued work. Measured are 2 to 6 µs on an H200, and more for graphs.
	LatencyNs = 10_000
	// LaunchGapNs is the longest host code between two calls that counts as the cost of launching. An
	// operator of PyTorch needs 5 to 50 µs of host code.
	LaunchGapNs = 100_000
	// SlowLaunchNs is the shortest launch call that counts as slow, such as one that loads a module.
	SlowLaunchNs = 1_000_000
)

var causeNames = [numCauses]string{
	StartUp: "start_up", Sync: "sync", Allocator: "allocator", CopyCall: "copy_call", SlowLaunch: "slow_launch",
	Launch: "launch", Host: "host", Queued: "queued", Latency: "latency", NothingQueued: "nothing_queued", Unknown: "unknown",
}

var causeTexts = [numCauses]string{
	StartUp:       "start-up: before the first kernel",
	Sync:          "synchronisation: the host waited, and launched only then",
	Allocator:     "allocator: the host allocated or released device memory",
	CopyCall:      "copy call: the host was in a call that copies its memory",
	SlowLaunch:    "slow launch: a call took over 1 ms, as to load a module",
	Launch:        "launch: the host launched slower than the device worked",
	Host:          "host code: other code ran before the next launch",
	Queued:        "queued: launched, but waiting for other work or an event",
	Latency:       "latency: from the launch or earlier work to the start",
	NothingQueued: "nothing queued: no scope or request ran, or no operation follows",
	Unknown:       "unknown: launch times or operations are not recorded",
}

// String returns the name of the cause in JSON.
func (c Cause) String() string { return causeNames[c] }

// Text returns the cause as a phrase.
func (c Cause) Text() string { return causeTexts[c] }

// PartText returns the part of a step that an [Outlier] names as a phrase, such as "compute" and
// "idle time (host code)".
func PartText(part string) string {
	var c Cause
	if c.UnmarshalText([]byte(part)) != nil {
		return part
	}
	name, _, _ := strings.Cut(c.Text(), ":")
	return "idle time (" + name + ")"
}

// MarshalText returns the name.
func (c Cause) MarshalText() ([]byte, error) { return []byte(causeNames[c]), nil }

// Causes returns all causes in a fixed order.
func Causes() []Cause {
	all := make([]Cause, numCauses)
	for i := range all {
		all[i] = Cause(i)
	}
	return all
}
