// SPDX-License-Identifier: Apache-2.0

// Package report adds up what a recording holds and prints it as short tables: the kernels that took
// the time, the copies, the scopes, what is missing, and, where a deep window was open, why the kernels
// took it: by function and source line, as package hotspot computes it.
//
// It reads telemetry by the names of semconv, whoever made it; GPU Flight's logs, by way of package
// gpuflog; and the summaries that recording processes leave for `gpuflight trace`. Where a session has
// both spans and metrics, counts and times come from its metrics, which are exact where spans were left
// out.
package report
