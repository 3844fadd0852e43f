// SPDX-License-Identifier: Apache-2.0

// Package otlp sends pdata by OTLP over gRPC or HTTP, as OpenTelemetry's environment variables
// configure it. It can also append to a file in the format of the Collector's file exporter, and it
// reads such files.
//
// It runs inside observed programs. The methods of a [Client] that accept telemetry never block,
// and its queue is bounded. Unsent data is counted by reason, and an unreachable endpoint causes
// one log message. The package does not depend on the meaning of the telemetry.
package otlp
