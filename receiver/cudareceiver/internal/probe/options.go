// SPDX-License-Identifier: Apache-2.0

package probe

import "time"

// Options of a [Probe]; the zero value works.
type Options struct {
	// Root is where the machine's files are seen; /proc below it must be that of its own process namespace.
	// "" is "/".
	Root string
	// RescanInterval is the time between two looks for driver libraries that no process had mapped before,
	// 30 s if 0.
	RescanInterval time.Duration
	// LaunchSampling is of how many launches of a thread one is timed, 0 for none. Their errors are seen as well
	// then; each launch costs about twice as much, sampled or not.
	LaunchSampling uint32
	// Source says where calls are counted; SourceAuto if "".
	Source Source
	// WithoutNCCL leaves collectives out.
	WithoutNCCL bool
	// MaxSums, MaxProcesses, MaxThreads and MaxAllocations are how much is kept in the kernel at once. Users and processes
	// share them by the rule of package fair; what is more is counted in Losses and for each Process. If 0: 16,384,
	// 16,384, 32,768 and 131,072.
	MaxSums, MaxProcesses, MaxThreads, MaxAllocations uint32
	// MaxNames is how many kernels' names are kept of a process, 4096 if 0; of all together 16 times as many.
	MaxNames int
	// RingBytes is the size of the buffer for kernels' names between two looks, a power of two of at least one
	// page; 1 MiB if 0.
	RingBytes uint32
	// Log is told, seldom and in a sentence each, where less is observed than could be; nil for nobody. It is called
	// with the Probe's lock held and must not call the Probe.
	Log func(text string)
	// Skipped is told of files that are not observed, the first of each reason in ten minutes; nil for nobody. It may
	// be called with the Probe's lock held and must not call the Probe. Losses count all of them.
	Skipped func(Skip)
}

// Source is where calls are counted.
type Source string

const (
	// SourceAuto counts at the driver, and at libcudart what does not come by the driver's exported functions.
	// libcudart is detached from once its launches were seen to come by them.
	SourceAuto Source = "auto"
	// SourceDriver counts at the driver and does not look at libcudart.
	SourceDriver Source = "driver"
	// SourceRuntime is SourceAuto without the end: libcudart stays attached to. Each call of it costs more then.
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
	// drainInterval is how often names are taken from the ring, and processes that ended from the maps.
	drainInterval = time.Second
	// mappedInterval is how often libraries that were just loaded are looked for. Between loading the driver and its
	// first call a program initialises it, which takes longer.
	mappedInterval = 50 * time.Millisecond
	// minRescan and rescanPause bound how often all processes are looked through because the kernel had no room for
	// events: a program that maps files all the time can cause that. The pause is a multiple of the last look's time.
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
