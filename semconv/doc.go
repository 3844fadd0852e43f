// SPDX-License-Identifier: Apache-2.0

// Package semconv defines the names of this project's telemetry: attributes, metrics, events, and the
// values of attributes with a fixed set of values. No other package spells them.
//
// [Attributes], [Metrics] and [Events] are the registry. It holds the meaning, type and unit of each
// name, and its origin: OpenTelemetry, OpenTelemetry eBPF Instrumentation, or an extension of this
// project. "go run ./semconv/gen" generates the constants (attributes.go, metrics.go, events.go) and
// docs/telemetry.md from it; a test fails when they are stale. To add a name, add a row and generate.
//
// The name of a constant is the telemetry name without dots: cuda.stream.id is [CUDAStreamID]. Metrics
// and events have their kind as a prefix ([MetricHWPower], [EventGPUXID]). A value has its attribute as
// a prefix ([CUDAOperationKernel]).
//
// The package imports nothing, so that every component may import it. Everything in it is constant
// and safe for concurrent use. Do not write to the registry's slices.
package semconv

//go:generate go run ./gen ..

// SchemaURL names the version of the OpenTelemetry semantic conventions that the names follow.
const SchemaURL = "https://opentelemetry.io/schemas/1.44.0"

// ScopeName is the instrumentation scope of all telemetry about GPU work.
const ScopeName = "github.com/gpuflight/gpuflight"

// EBPFObserver is telemetry.sdk.name of telemetry about a process that eBPF programs observed. The
// process itself reported nothing, so its metrics alone are no session.
const EBPFObserver = "gpuflight-ebpf"

// UnknownService is the value of service.name where the application has no name, as OpenTelemetry
// prescribes it.
const UnknownService = "unknown_service"
