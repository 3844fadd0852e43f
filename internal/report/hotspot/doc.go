// SPDX-License-Identifier: Apache-2.0

// Package hotspot sums up the measurements of deep-profiling windows inside kernels. Samples of
// program counters are summed by function, source line and stall reason. Counters of instructions
// are summed by function and line. From the sums it derives the active lanes of a warp and the
// sectors of memory per request.
//
// It uses CUPTI's names of reasons and counters, but does not depend on CUPTI, OpenTelemetry or
// files. The report passes it log records from any producer. A recorder can pass it a window's
// rows. A [Table] is bounded: data above a limit is counted and remains in the totals.
//
// The formulas are those of Nsight Compute 2025.3, which belongs to CUDA 13.0: see its Kernel
// Profiling Guide and Metrics Reference, "Source Metrics" and "Warp Stall Reasons". They apply to
// the counters of CUPTI 13.0's SASS metrics. Each formula is documented at its method.
package hotspot
