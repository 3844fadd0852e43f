// SPDX-License-Identifier: Apache-2.0

// Package peers has the reference probes that the receiver's probes are compared with in
// benchmarks. One is the minimum that a uprobe can do, which is to count calls. The other does what
// similar tools do: it sends an event of each call to a reader. Both attach only to the functions
// that launch kernels in the CUDA driver.
//
// The package is for benchmarks and tests only. It runs on Linux as root. Its programs are written
// in BPF assembly, so that a measurement can be repeated without a compiler.
package peers
