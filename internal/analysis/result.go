// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"fmt"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Result is what [Run] finds. All times are nanoseconds; those that end in StartNs are Unix time. For
// JSON see [Answer].
type Result struct {
	FromNs int64
	ToNs   int64
	// Complete is false if the analysis stopped at Options.Deadline. ToNs is then where it stopped.
	Complete   bool
	Operations int64
	// LaunchesKnown and LaunchesUnknown count operations of devices with and without launch times.
	LaunchesKnown   int64
	LaunchesUnknown int64
	// Missing is nil if less than 5 % of the work has no span. Otherwise all idle time has the cause unknown,
	// and the only finding says so.
	Missing  *Missing
	Devices  []Device
	Steps    Steps
	Findings []Finding
}

// Parts is a partition of time on one device: WallNs = ComputeNs + CommunicationNs + CopyNs + IdleNs,
// and IdleNs is the sum of Idle.
type Parts struct {
	WallNs int64 `json:"wall_ns"`
	// ComputeNs is time with a kernel or graph, CommunicationNs with kernels of NCCL only, CopyNs with
	// copies and sets only, of these with or without NCCL's.
	ComputeNs       int64 `json:"compute_ns"`
	CommunicationNs int64 `json:"communication_ns"`
	CopyNs          int64 `json:"copy_ns"`
	IdleNs          int64 `json:"idle_ns"`
	// Idle is the idle time by cause.
	Idle CauseSums `json:"idle_by_cause_ns"`
}

// BusyNs returns the time with any work.
func (p *Parts) BusyNs() int64 { return p.ComputeNs + p.CommunicationNs + p.CopyNs }

func (p *Parts) minus(o *Parts) Parts {
	d := Parts{
		WallNs: p.WallNs - o.WallNs, ComputeNs: p.ComputeNs - o.ComputeNs, CommunicationNs: p.CommunicationNs - o.CommunicationNs,
		CopyNs: p.CopyNs - o.CopyNs, IdleNs: p.IdleNs - o.IdleNs,
	}
	for c := range d.Idle {
		d.Idle[c] = p.Idle[c] - o.Idle[c]
	}
	return d
}

func (p *Parts) plus(o *Parts) Parts {
	zero := Parts{}
	negative := zero.minus(o)
	return p.minus(&negative)
}

// CauseSums is nanoseconds by cause. Its JSON is an object with the causes that are not 0.
type CauseSums [numCauses]int64

// MarshalJSON writes the causes in their fixed order.
func (s CauseSums) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for c, ns := range s {
		if ns != 0 {
			if len(b) > 1 {
				b = append(b, ',')
			}
			b = fmt.Appendf(b, "%q:%d", Cause(c).String(), ns)
		}
	}
	return append(b, '}'), nil
}

// Sum returns the sum of all causes.
func (s *CauseSums) Sum() (sum int64) {
	for _, ns := range s {
		sum += ns
	}
	return sum
}

// Device is the work of one device.
type Device struct {
	// ID is hw.id, Model hw.name, "" if unknown. Index is -1 if unknown.
	ID, Model string
	Index     int64
	Parts
	// Active is the parts from the begin of the first step to the end of the last one. Without steps
	// it is from the start of the first kernel to the end of the last operation. So it has no start-up.
	// The following values are of this interval too. All are 0 without kernels.
	ActiveFromNs int64
	ActiveToNs   int64
	Active       Parts
	// PageableCopyNs is the part of Active.CopyNs in which the copy was from or to pageable memory.
	PageableCopyNs int64
	// HostScopes is the idle time by causes host and unknown by the innermost scope around the host's
	// code in the middle of it, the largest first. Its name is "" outside all scopes, and
	// has no number at its end.
	HostScopes []NameSum
	// HostLines is the part of it for which samples of the host found a Python stack, by the innermost
	// frame of the program's own code, the largest first.
	HostLines []NameSum
	// SyncCalls is the idle time by cause sync and the call, the largest first.
	SyncCalls []NameSum
	// Bound is what limits the device: see [Bound].
	Bound Bound

	// The following values are of the whole interval. CommunicationTotalNs and CopyTotalNs are the
	// unions of these, also during other work.
	CommunicationTotalNs int64
	CopyTotalNs          int64
	Kernels              int64
	// KernelNs is the sum of the durations of kernels, which may overlap.
	KernelNs int64
	// QueueP50Ns is the median of the known times from the launch to the start, the middle of a bucket
	// of the store; -1 if none is known.
	QueueP50Ns int64
	// Launches says how fast the host launched kernels and graphs.
	Launches LaunchRate
	// Small are the kernels with a grid fill below 0.5, by shape, the most lost time first, at most 20.
	Small []SmallKernel
	// Gaps are examples: for each cause those in which it has the largest part.
	Gaps []Gap

	// copies and comms are the longest examples of copies and communication without other work.
	copies, comms Ref
	pairs         []pair
	smallSums     smallSums
}

// NameSum is nanoseconds and a count by name. Of more than 1,000 names, the rest is "_other".
type NameSum struct {
	Name  string `json:"name"`
	Ns    int64  `json:"ns"`
	Count int64  `json:"count"`
}

// Ref names an operation or a scope.
type Ref struct {
	Span    store.SpanID
	StartNs int64
	Name    string
}

// Gap is an interval without any work on a device.
type Gap struct {
	StartNs int64
	EndNs   int64
	// Cause is the one with the largest part, PartNs that part.
	Cause  Cause
	PartNs int64
	Idle   CauseSums
	// Before is the operation that ended last, After the one that ended the gap; absent if there is none.
	Before *Ref
	After  *Ref
	// Call is the call that made the host late, Scope the innermost scope around the host's code. Stack
	// is the host stack of the launch, DelayStack what most samples found before it. "" is unknown.
	Call       string
	Scope      string
	Stack      string
	DelayStack string
}

// Bound says what limits a device or a step.
type Bound string

// Bounds, in the active interval. BoundDevice is tested first. Of the others, that with the most time holds.
const (
	// BoundUnknown: no work, or idle time by cause unknown or nothing_queued.
	BoundUnknown Bound = "unknown"
	// BoundDevice: compute and copies for at least [DeviceBusy] of the time.
	BoundDevice Bound = "device"
	// BoundLaunch: idle time by launch, latency and slow_launch.
	BoundLaunch Bound = "launch"
	// BoundHost: idle time by sync, allocator, copy_call and host.
	BoundHost Bound = "host"
	// BoundCommunication: communication without compute and copies. It includes waits for other ranks.
	BoundCommunication Bound = "communication"
	// BoundDependency: idle time by queued and start_up.
	BoundDependency Bound = "dependency"
)

// DeviceBusy is the share of compute and copies from which a device limits the program.
const DeviceBusy = 0.85

func (p *Parts) bound() Bound {
	switch {
	case p.WallNs <= 0 || p.BusyNs() == 0:
		return BoundUnknown
	case float64(p.ComputeNs+p.CopyNs) >= DeviceBusy*float64(p.WallNs):
		return BoundDevice
	}
	i := &p.Idle
	launch := i[Launch] + i[Latency] + i[SlowLaunch]
	host := i[Sync] + i[Allocator] + i[CopyCall] + i[Host]
	other := i[Queued] + i[StartUp]
	switch most := max(launch, host, other, p.CommunicationNs, i[Unknown], i[NothingQueued]); most {
	case i[Unknown], i[NothingQueued]:
		return BoundUnknown
	case p.CommunicationNs:
		return BoundCommunication
	case launch:
		return BoundLaunch
	case host:
		return BoundHost
	}
	return BoundDependency
}
