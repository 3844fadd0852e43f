// SPDX-License-Identifier: Apache-2.0

// Package gpuflgen writes GPU Flight logs of simulated training sessions. A seed and a size
// describe a session. The layout is the first published format (A2) or the current session folders
// (C3). The bytes have the recorder's form, with rotation, dictionaries, sidecars and locks.
//
// The same [Config] produces the same lines, so a test can keep the output as a golden file.
// Rotation, compression, pacing and split writes change only how lines are distributed over files
// and system calls. [Summary] counts every line and row and sums kernel time and bytes. Tests
// compare a reader's results with it.
//
//	s, err := gpuflgen.Run(ctx, gpuflgen.Config{Dir: dir, Layout: gpuflgen.C3, Kernels: 100_000})
//
// Use [Run] for whole sessions, and [Writer] for single steps, flushes, rotations, and for a clean
// or crashed end. A Writer is not safe for concurrent use. Its memory does not grow with the
// output.
//
// The package shares no code with the log decoder and imports only the standard library. A wrong
// assumption about the format therefore cannot be in both.
package gpuflgen
