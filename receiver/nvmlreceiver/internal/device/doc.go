// SPDX-License-Identifier: Apache-2.0

// Package device reads NVIDIA devices through NVML into gpu.Reading values. It knows nothing of the
// Collector. Without cgo or outside Linux it compiles to a Driver that cannot be opened.
//
// Every call but the few that find a device is optional. Whether the library has the function is
// looked up when it is opened: go-nvml binds lazily, and a call of a function that is not there ends
// the process. Whether the device supports it is asked once: a call that says "not supported" before
// it ever worked is remembered and not made again. NVML writes all ones where it has no value; such
// values, and ratios out of range, are left out.
//
// Counters belong to the device's UUID and outlive a restart of the driver. Those that NVML keeps
// are given as they are, with a new start time when they fall; those that wrap, or that are made of
// rates, are summed up here.
package device

import (
	"time"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/process"
)

// Options say what to read and how often.
type Options struct {
	// LibraryPath is the library to open, "" for the one the dynamic linker finds.
	LibraryPath string
	// Interval is the time between two readings.
	Interval time.Duration
	// The groups of calls besides those that every reading makes.
	Slow, GPM, Processes, Samples Group
	// MaxProcesses bounds the processes of a reading, by device.
	MaxProcesses int
	// Select says which devices to read: an index, a UUID, or a glob on UUID or name; empty for all.
	Select []string
	// Proc tells about processes.
	Proc *process.Reader
	// Now is the clock; nil for the system's.
	Now func() time.Time
}

// Group is a group of calls.
type Group struct {
	Enabled bool
	// Interval is the least time between two rounds; 0 for every reading.
	Interval time.Duration
}

// The names of the groups.
const (
	groupFast      = "fast"
	groupSlow      = "slow"
	groupGPM       = "gpm"
	groupProcesses = "processes"
	groupSamples   = "samples"
)
