// SPDX-License-Identifier: Apache-2.0

// Package cupti records what the GPU did, through NVIDIA's CUPTI: kernels, copies, sets, memory,
// waits, graphs and NVTX ranges, as gpuevent values.
//
// A small C core opens CUPTI at run time and lends it buffers from a bounded pool. Its contract is
// gpufl_cupti.h. It never enters Go. Completed buffers go whole to the one goroutine that calls
// [Collector.Take]. Nothing of CUDA is needed to build. Without a GPU, [Available] says why. The
// package does not depend on OpenTelemetry.
//
// Life of the values:
//
//   - There is one CUPTI in a process, so there is one [Collector] at a time; a second [Open] is
//     refused with [ReasonBusy]. Open, Start, Flush, Stop and Close are called by its owner, one at
//     a time; PushScope and PopScope by any thread; Take by one goroutine.
//   - A [Batch] is one decoded buffer. It points into CUPTI's own memory until Release; after that
//     every method of it panics. Event structs that its methods fill are the caller's, strings and
//     names in them live permanently.
//   - A [DeepWindow] looks inside kernels for a while, by PC sampling or by SASS metrics: one at a
//     time, and only if [Config.Deep] was set. Its methods may be called by any goroutine, and each
//     is bounded in time. If CUPTI does not return in time, its engine is not used again in the
//     process ([ReasonStuck]). gpufl_deep.h is the contract of that part of the core. While CUPTI
//     changes its state, conflicting calls of the application wait, each for at most two seconds.
//     These are loads of modules, begins of captures, and launches for SASS metrics. No window
//     opens while a stream is captured.
//   - Images of modules are kept in memory from Open to Close ([Collector.Cubins]), since CUPTI
//     shows each only when it is loaded.
//   - A forked child is not the collector's: every call of the C core returns at once there, and no
//     Go code runs.
package cupti
