// SPDX-License-Identifier: Apache-2.0

// Package gpuflgen writes plausible GPU Flight logs: a seeded training session of any size, in the
// flat layout of the first published format (A2) or in session folders as written today (C3), byte
// by byte as the recorder writes them, with rotation, dictionaries, sidecars and locks.
//
// The same [Config] gives the same lines, so a test can keep its output as a golden file; rotation,
// compression, pacing and torn writes change only how the lines are cut into files and system calls.
// What was written is known exactly: [Summary] counts every line and row, and sums kernel time and
// bytes, so that a reader can be checked against it.
//
//	s, err := gpuflgen.Run(ctx, gpuflgen.Config{Dir: dir, Layout: gpuflgen.C3, Kernels: 100_000})
//
// Use [Run] for whole sessions and [Writer] to drive one session by hand: step, flush, rotate, close,
// or crash. A Writer belongs to one goroutine. It streams: memory does not grow with what is written.
//
// The package is the counterpart of the log decoder and therefore shares nothing with it: it imports
// only the standard library, so a wrong idea about the format cannot hide in both.
package gpuflgen
