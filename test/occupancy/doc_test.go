// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package occupancy_test runs the distribution's real binary with the occupancy processor in it and
// compares what comes out with what CUDA itself said: a table measured by CUDA's occupancy API, and
// the number of resident blocks that recorders asked CUDA for at each launch.
//
// The names of attributes are spelled out here and the expectations are made from the files: neither
// the processor's code nor the constants of semconv can make both sides wrong at once.
package occupancy_test
