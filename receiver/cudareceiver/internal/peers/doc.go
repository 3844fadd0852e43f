// SPDX-License-Identifier: Apache-2.0

// Package peers is what the probes are measured against: the least that a uprobe can do, which is to count its
// calls, and what other tools do, which is to send an event of each call to a reader. It attaches to the functions
// by which the CUDA driver launches kernels, and to nothing else.
//
// It is for benchmarks and tests only, and runs on Linux, as root. Its programs are written here, instruction by
// instruction, so that nothing has to be compiled to repeat a measurement.
package peers
