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
//   - A [DeepWindow] looks inside kernels for a while, by PC sampling or by SASS metrics: one at a
//     time, and only if [Config.Deep] was set. Its methods may be called by any goroutine; each is
//     bounded in time, and what CUPTI does not end in time is given up for the life of the process
//     ([ReasonStuck]). gpufl_deep.h is the contract of that part of the core. While CUPTI
//     rearranges things, calls of the application that must not happen at the same time wait, each
//     at most two seconds: loads of modules and begins of captures, and for SASS metrics launches.
//     No window opens while a stream is captured.
//   - Images of modules are kept in memory from Open to Close ([Collector.Cubins]), since CUPTI
//     shows each only when it is loaded.
//   - A forked child is not the collector's: every call of the C core returns at once there, and no
//     Go code runs.
package cupti
