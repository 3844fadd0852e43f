// SPDX-License-Identifier: Apache-2.0

// Package cupti records what the GPU did, through NVIDIA's CUPTI: kernels, copies, sets, memory,
// waits, graphs and NVTX ranges, as gpuevent values.
//
// A small C core (gpufl_cupti.h is its whole contract) opens CUPTI at run time, lends it buffers
// from a bounded pool and never enters Go; completed buffers go whole to the one goroutine that
// calls [Collector.Take]. Nothing of CUDA is needed to build, and where there is no GPU [Available]
// says why. The package knows no OpenTelemetry.
//
// Life of the values:
//
//   - There is one CUPTI in a process, so there is one [Collector] at a time; a second [Open] is
//     refused with [ReasonBusy]. Open, Start, Flush, Stop and Close are called by its owner, one at
//     a time; PushScope and PopScope by any thread; Take by one goroutine.
//   - A [Batch] is one decoded buffer. It points into CUPTI's own memory until Release; after that
//     every method of it panics. Event structs that its methods fill are the caller's, strings and
//     names in them live for ever.
//   - A forked child is not the collector's: every call of the C core returns at once there, and no
//     Go code runs.
package cupti
