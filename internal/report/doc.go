// SPDX-License-Identifier: Apache-2.0

// Package report sums up a recording and prints it as short tables: kernels by time, copies, scopes
// and losses. If a deep-profiling window was open, it also prints the costs inside kernels by
// function and source line, as package hotspot computes them.
//
// It reads three kinds of input: telemetry with the names of semconv, from any producer; GPU
// Flight's logs, through package gpuflog; and the summaries that recording processes write for
// `gpuflight trace`. If a session has both spans and metrics, counts and times come from its
// metrics. They are exact even if some spans were skipped.
package report
