// SPDX-License-Identifier: Apache-2.0

// Package occupancy computes how many blocks of a kernel a multiprocessor can hold at once, as CUDA's
// occupancy API (cudaOccupancyMaxActiveBlocksPerMultiprocessor) does. It also computes the share of a
// device that a grid can fill.
//
// The input is a compute capability and the resources of a launch. The result has the blocks, the
// warps, their share of the maximum, and every resource that sets the limit. The package is arithmetic
// on one table: no I/O, no telemetry, only the standard library. A capability that is missing from the
// table is an error.
//
// All functions are safe for concurrent use.
package occupancy
