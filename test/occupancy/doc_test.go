// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package occupancy_test runs the distribution's binary with the occupancy processor. It compares
// the output with CUDA's own results: a table measured by CUDA's occupancy API, and the number of
// resident blocks that recorders queried at each launch.
//
// Attribute names are literals here, and the expectations come from the files. An error in the
// processor or in semconv therefore cannot change both sides.
package occupancy_test
