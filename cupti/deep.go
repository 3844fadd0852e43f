// SPDX-License-Identifier: Apache-2.0

package cupti

import "time"

// Engine is one of the two ways to see inside kernels.
type Engine uint8

// The engines. Values are shared with the C core (GPUFL_DEEP_…).
const (
	// EnginePCSampling looks at a warp of each multiprocessor at intervals: where it is, and what
	// it waits for. Kernels run as they are.
	EnginePCSampling Engine = iota
	// EngineSASS has the instructions of kernels patched so that they count: exact figures, and
	// slower kernels.
	EngineSASS
	NumEngines
)

// EngineNames are the engines as telemetry spells them.
var EngineNames = [NumEngines]string{"pc_sampling", "sass_metrics"}

func (e Engine) String() string {
	if e < NumEngines {
		return EngineNames[e]
	}
	return "unknown"
}

// Limits of a DeepConfig.
const (
	MinPeriodLog2 = 5  // a sample every 32 cycles
	MaxPeriodLog2 = 31 // a sample every two thousand million cycles

	// DefaultPeriodLog2 is a sample every 65,536 cycles of each multiprocessor: some 4 million a
	// second of an H200. What CUPTI 13.0 chooses by itself fills its buffer of 512 MiB in less than
	// 50 ms there, and what does not fit is lost.
	DefaultPeriodLog2 = 16
	// DefaultHardwareBytes is for some 0.4 s of such samples; CUPTI empties it every 0.1 s. The
	// application's launches wait while it is allocated and freed, 512 MiB for 0.3 s and more.
	DefaultHardwareBytes = 64 << 20

	DefaultMaxRows    = 200_000
	DefaultCubinBytes = 256 << 20
	DefaultOpenLimit  = 10 * time.Second
	DefaultCloseLimit = 10 * time.Second
)

// DefaultMetrics are the default metrics of a window of EngineSASS. They count instructions by warp
// and by thread: the quotient is the number of active threads of 32. They also count the sectors of
// global memory that were moved and those that would have been enough. If a device does not have
// one of them, the others are measured: see DeepResult.Missing.
var DefaultMetrics = []string{
	"smsp__sass_inst_executed",
	"smsp__sass_thread_inst_executed",
	"smsp__sass_sectors_mem_global",
	"smsp__sass_sectors_mem_global_ideal",
}

// MemoryMetrics are those of DefaultMetrics for instructions that access global memory only:
// sectors, and how many lanes took part. CUPTI patches few instructions then, and keeps little
// device memory.
var MemoryMetrics = []string{
	"smsp__sass_inst_executed_op_global",
	"smsp__sass_thread_inst_executed_op_global_pred_on",
	"smsp__sass_sectors_mem_global",
	"smsp__sass_sectors_mem_global_ideal",
}

// DeepConfig says what a window shall see. The zero value samples program counters.
type DeepConfig struct {
	Engine Engine

	// PeriodLog2 is the sampling period as a power of two of cycles, MinPeriodLog2 to MaxPeriodLog2
	// (default DefaultPeriodLog2). PC sampling.
	PeriodLog2 int
	// Serialize runs one kernel at a time and tells which launch a sample belongs to. It slows what
	// runs side by side. PC sampling.
	Serialize bool
	// HardwareBytes is the size of CUPTI's buffer in device memory (default DefaultHardwareBytes).
	// PC sampling.
	HardwareBytes int64

	// Metrics are the names of what is counted; empty for DefaultMetrics. EngineSASS.
	Metrics []string

	// WithActivity lets a window of EngineSASS open while kinds of activity are recorded. The
	// driver may deadlock then; it is for experiments. PC sampling in its continuous form runs
	// beside activity.
	WithActivity bool

	// LeaseDir is a folder of this user, in which one process at a time holds the lease to sample a
	// GPU; "" is for none. PC sampling.
	LeaseDir string
	// MaxRows bounds what a window keeps (default DefaultMaxRows); the rest is counted.
	MaxRows int
	// OpenLimit and CloseLimit bound how long opening and closing may take. A window that takes
	// more than a second longer is given up, and so are both engines for the rest of the process:
	// see ReasonStuck.
	OpenLimit, CloseLimit time.Duration
}

// Further reasons, of windows.
const (
	ReasonNotSupported Reason = "not_supported"      // this CUPTI, GPU, or virtual GPU cannot do it
	ReasonNoContext    Reason = "no_context"         // the process has no CUDA context yet
	ReasonCapture      Reason = "stream_capture"     // a CUDA graph is being captured.
	ReasonTaken        Reason = "gpu_taken"          // another process samples the GPU, and would receive our samples
	ReasonOnce         Reason = "sass_used"          // the process has had its window of EngineSASS
	ReasonWindowOpen   Reason = "window_open"        // another window is open.
	ReasonActivity     Reason = "activity_on"        // activity must be paused first
	ReasonNotQuiesced  Reason = "calls_under_way"    // calls of the application were still in flight at the limit
	ReasonExit         Reason = "at_exit"            // recording ends.
	ReasonStuck        Reason = "engine_stuck"       // CUPTI did not come back in time; not tried again
	ReasonUnresponsive Reason = "cupti_unresponsive" // CUPTI reports nothing in this process any more; recording has ended as well.
	ReasonBadRequest   Reason = "invalid_request"    // the DeepConfig is invalid
)

// DeepRow is one figure of a window: how often a place in the code was seen waiting for something,
// or what an instruction counted. Rows with equal keys are summed.
type DeepRow struct {
	// Device is the CUDA ordinal.
	Device int32
	// CRC names the cubin, as [Collector.Cubins] does. SASS metrics give its low 32 bits only.
	CRC uint64
	// Function is the index in DeepResult.Functions, PC the offset in bytes within that function.
	Function uint32
	PC       uint64
	// What is the index in DeepResult.Names: the stall reason, or the metric.
	What uint32
	// Correlation ties the row to a launch where the window was serialised, else 0.
	Correlation uint32
	// Value is the number of samples, or the metric summed over the device.
	Value uint64
}

// DeepTotals count what a window saw and what it did not. They never say less than what was lost.
type DeepTotals struct {
	// Samples is all that the hardware took, with the following three in it. PC sampling.
	Samples uint64
	// DroppedSamples were lost by the hardware, NonUserSamples belong to kernels that CUPTI does
	// not show. PC sampling.
	DroppedSamples, NonUserSamples uint64
	// HardwareFull counts how often the hardware's buffer was found full. PC sampling.
	HardwareFull uint64
	// DroppedRecords is what SASS metrics had counted and not handed over when the window closed.
	DroppedRecords uint64
	// Patched is how many instructions had been patched when the window closed, of all contexts
	// that were there. EngineSASS.
	Patched uint64
	// Launched is how many calls launched kernels while they were patched, those included that
	// waited for the window to open. SASS metrics.
	Launched uint64
	// LostRows and LostValue are figures that did not fit: above MaxRows, or between two
	// calls of Drain. LostValue is the sum of their values.
	LostRows, LostValue uint64
	// LostNames are figures of functions for whose names there was no room; they are in rows of the
	// function "_other". Broken are records that were invalid.
	LostNames, Broken uint64
	// Contexts were watched. SkippedContexts were not: PC sampling watches one of each device.
	// LostContexts were destroyed before they could be asked for the rest.
	Contexts, SkippedContexts, LostContexts uint64
	// NotIdle counts the openings of windows that could not check whether the contexts had work in
	// flight. The check needs cuCtxRecordEvent of CUDA 12.5. Work that was in flight may be counted
	// in part.
	NotIdle uint64
	// Deferred counts calls of Drain that came while a module was loaded or unloaded and left it
	// for the next. BlockedCalls counts calls of the application that had to wait for one of ours,
	// BarrierTimeouts those that went on before it had ended. LongestBlock is the longest that one
	// waited.
	Deferred, BlockedCalls, BarrierTimeouts uint64
	LongestBlock                            time.Duration
	// NamesKept counts the texts that CUPTI handed over and that may still be in use by it: they
	// are not freed.
	NamesKept uint64
}

// DeepResult is what a window yielded.
type DeepResult struct {
	Engine Engine
	// Start and End are when the engine was armed and disarmed.
	Start, End time.Time
	// Functions are names as CUPTI gives them (mangled); Names the stall reasons or metrics.
	Functions, Names []string
	// Missing are names that were asked for and that the devices do not know.
	Missing []string
	Rows    []DeepRow
	Totals  DeepTotals
	// PeriodLog2 is the sampling period as a power of two of cycles; 0 for EngineSASS.
	PeriodLog2 int
	// Problem is set where the window did not end as it should; what it has is good all the same.
	Problem *Status
}

// Cubin describes the image of a module that this process has or had loaded.
type Cubin struct {
	// CRC is CUPTI's; 0 where the library cannot compute it.
	CRC  uint64
	Size int64
	// Loaded says that no unloading was seen.
	Loaded bool
}

// CubinStats say how much of the images is kept.
type CubinStats struct {
	Images int
	// Bytes are kept, at most Config.CubinBytes.
	Bytes int64
	// Refused images had no room, which RefusedBytes are; Evicted were of unloaded modules and made
	// room for others.
	Refused, RefusedBytes, Evicted uint64
}
