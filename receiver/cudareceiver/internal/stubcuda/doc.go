// SPDX-License-Identifier: Apache-2.0

// Package stubcuda gives tests of the probes a driver library without a driver: a libcuda.so.1 that exports the
// functions that are probed, with their real signatures, and does next to nothing in them; and a program that calls
// them as it is told. Both are C (in src), compiled with cc.
//
// It is for tests only, and needs Linux and a C compiler.
package stubcuda
