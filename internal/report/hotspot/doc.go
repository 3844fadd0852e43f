// SPDX-License-Identifier: Apache-2.0

// Package hotspot adds up what deep windows measure inside kernels, and says where and why: samples of
// program counters by function, source line and stall reason, and counters of single instructions by
// function and line, with what follows from them: how many lanes of a warp were active, and how many
// sectors of memory a request took.
//
// It knows CUPTI's names of reasons and counters, and nothing of CUPTI, OpenTelemetry or files: the
// report feeds it with log records, whoever made them, and a recorder can feed it with a window's rows.
// A [Table] has bounds; what does not fit is counted, and still in the totals.
//
// The formulas are those of Nsight Compute 2025.3, which belongs to CUDA 13.0 (Kernel Profiling Guide and
// Metrics Reference, "Source Metrics" and "Warp Stall Reasons"), over the counters that CUPTI 13.0's SASS
// metrics are called there; each is at the method that computes it.
package hotspot
