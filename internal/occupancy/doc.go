// SPDX-License-Identifier: Apache-2.0

// Package occupancy computes how many blocks of a kernel a multiprocessor can hold at once, as
// CUDA's occupancy API (cudaOccupancyMaxActiveBlocksPerMultiprocessor) does, and how far a grid can
// fill a device with them.
//
// In goes a compute capability and what a launch asks for; out come blocks, warps, their share of
// the most that fit, and every resource that sets the limit. It is arithmetic on one table: no I/O,
// no telemetry, nothing but the standard library. A capability that the table lacks gives an error
// and never a guess.
//
// Everything may be used by many goroutines at once.
package occupancy
