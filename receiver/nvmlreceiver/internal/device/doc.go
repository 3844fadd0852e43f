// SPDX-License-Identifier: Apache-2.0

// Package device reads NVIDIA devices through NVML into gpu.Reading values. It does not depend on
// the Collector. Without cgo or outside Linux it compiles to a Driver that cannot be opened.
//
// All calls are optional, except the few that find a device. Open looks up which functions the
// library has: go-nvml binds lazily, and a call of a missing function ends the process. A call that
// returns "not supported" before its first success is not repeated for that device. NVML returns
// all ones for a missing value. Such values, and ratios out of range, are skipped.
//
// Counters belong to the device's UUID and survive a restart of the driver. NVML's own counters are
// reported unchanged, with a new start time after a decrease. This package sums up counters that
// wrap and rates.
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
