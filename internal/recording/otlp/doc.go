// SPDX-License-Identifier: Apache-2.0

// Package otlp sends pdata by OTLP, over gRPC or HTTP as OpenTelemetry's environment variables say,
// or appends it to a file in the form that the Collector's file exporter writes; and reads such
// files.
//
// It works inside programs that have better things to do: handing telemetry to a [Client] never
// waits, what is queued is bounded, what could not be sent is counted by reason, and an endpoint
// that is away costs one line in the log. It knows nothing of what the telemetry says.
package otlp
