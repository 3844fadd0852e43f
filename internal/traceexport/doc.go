// SPDX-License-Identifier: Apache-2.0

// Package traceexport writes a session of a store in the formats of other tools. [Perfetto] writes
// a protobuf trace of Perfetto, [Chrome] the JSON of Chrome's trace viewer, [Profile] a profile of
// pprof, and [OTLPProfiles] the same samples as OpenTelemetry profiles.
//
// Perfetto and Chrome read the session in pages and write while they read. Their memory grows with
// the number of distinct shapes and of concurrent spans, not with the number of rows. Profile
// and OTLPProfiles sum up the rows before they write.
//
// All functions may be called concurrently. An error after the first byte means that the output is
// incomplete.
package traceexport
