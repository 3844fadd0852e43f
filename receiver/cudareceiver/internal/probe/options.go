// SPDX-License-Identifier: Apache-2.0

package probe

import "time"

// Options configure a [Probe]. The zero value is valid.
type Options struct {
	// Root is the folder where the machine's file system is mounted, "/" if empty. Root/proc must
	// belong to the PID namespace of the machine.
	Root string
	// RescanInterval is the time between two scans for driver libraries that no process had mapped
	// before, 30 s if 0.
	RescanInterval time.Duration
	// LaunchSampling is N if one of N launches of a thread is timed, 0 for none. It also enables
	// the counting of launch errors. Every launch then costs about twice as much, sampled or not.
	LaunchSampling uint32
	// Source selects where calls are counted, SourceAuto if empty.
	Source Source
	// WithoutNCCL disables the counting of collectives.
	WithoutNCCL bool
	// MaxSums, MaxProcesses, MaxThreads and MaxAllocations are the capacities of the kernel's maps.
	// Users and processes share them by the rule of package fair. Calls beyond them are counted in
	// Losses and for each Process. The defaults are 16,384, 16,384, 32,768 and 131,072.
	MaxSums, MaxProcesses, MaxThreads, MaxAllocations uint32
	// MaxNames bounds the kernel names of a process, 4096 if 0. All processes together have 16
	// times as many.
	MaxNames int
	// RingBytes is the size of the buffer for kernel names between two reads, a power of two of at
	// least one page, 1 MiB if 0.
	RingBytes uint32
	// Log receives a rare message of one sentence if less is observed than possible. It may be nil.
	// It is called with the Probe's lock held and must not call the Probe.
	Log func(text string)
	// Skipped receives the first skipped file of each reason in ten minutes. It may be nil. It may
	// be called with the Probe's lock held and must not call the Probe. Losses count all skipped
	// files.
	Skipped func(Skip)
}

// Source selects where calls are counted.
type Source string

const (
	// SourceAuto counts calls at the driver. At libcudart it counts the calls that do not reach the
	// exported functions of the driver. It detaches from libcudart once its launches have reached
	// them.
	SourceAuto Source = "auto"
	// SourceDriver counts calls at the driver only.
	SourceDriver Source = "driver"
	// SourceRuntime is like SourceAuto, but never detaches from libcudart. Each call of libcudart
	// then costs more.
	SourceRuntime Source = "runtime"
)

const (
	defaultRescan    = 30 * time.Second
	defaultSums      = 16384
	defaultProcesses = 16384
	defaultThreads   = 32768
	defaultAllocated = 131072
	defaultNames     = 4096
	defaultRing      = 1 << 20
	// drainInterval is the time between two reads of the names in the ring and of the processes
	// that ended.
	drainInterval = time.Second
	// mappedInterval is the time between two checks for newly loaded libraries. A program
	// initializes the driver between loading it and its first call, which takes longer.
	mappedInterval = 50 * time.Millisecond
	// minRescan and rescanPause bound the frequency of full scans after the kernel dropped mapping
	// events: a program that maps files continuously can cause that. The pause is a multiple of the
	// duration of the last scan.
	minRescan   = time.Second
	rescanPause = 10
)

func (o Options) withDefaults() Options {
	orElse := func(v *uint32, other uint32) {
		if *v == 0 {
			*v = other
		}
	}
	if o.Root == "" {
		o.Root = "/"
	}
	if o.RescanInterval <= 0 {
		o.RescanInterval = defaultRescan
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	if o.MaxNames <= 0 {
		o.MaxNames = defaultNames
	}
	if o.Source == "" {
		o.Source = SourceAuto
	}
	orElse(&o.MaxSums, defaultSums)
	orElse(&o.MaxProcesses, defaultProcesses)
	orElse(&o.MaxThreads, defaultThreads)
	orElse(&o.MaxAllocations, defaultAllocated)
	orElse(&o.RingBytes, defaultRing)
	return o
}
