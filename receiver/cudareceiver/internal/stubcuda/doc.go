// SPDX-License-Identifier: Apache-2.0

// Package stubcuda provides a fake CUDA driver for tests of the probes. It builds a libcuda.so.1
// that exports the probed functions with their real signatures and almost empty bodies, and a
// program that calls them on command. Both are written in C (in src) and compiled with cc.
//
// It is for tests only, and needs Linux and a C compiler.
package stubcuda
