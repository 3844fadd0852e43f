// SPDX-License-Identifier: Apache-2.0

// Package semconv is the one place where the names of this project's telemetry are spelled:
// attributes, metrics, events, and the values of attributes with a fixed set of them.
//
// [Attributes], [Metrics] and [Events] are the registry: what each name means, its type and unit,
// and whether it comes from OpenTelemetry, from OpenTelemetry eBPF Instrumentation, or is an
// extension of this project. The constants (attributes.go, metrics.go, events.go) and
// docs/telemetry.md are generated from it by "go run ./semconv/gen"; a test fails when they are
// stale. To add a name, add a row and generate.
//
// A constant is called as its name is spelled, without dots and in Go's capitals: cuda.stream.id is
// [CUDAStreamID]; metrics and events carry their kind in front ([MetricHWPower], [EventGPUXID]); a
// value is its attribute and itself ([CUDAOperationKernel]).
//
// The package imports nothing, so that every component may import it. Everything in it is constant
// and safe for concurrent use; the registry's slices must not be written to.
package semconv

//go:generate go run ./gen ..

// SchemaURL names the version of the OpenTelemetry semantic conventions that the names follow.
const SchemaURL = "https://opentelemetry.io/schemas/1.44.0"

// ScopeName is the instrumentation scope of all telemetry about GPU work.
const ScopeName = "github.com/gpuflight/gpuflight"

// UnknownService is the value of service.name where the application has no name, as OpenTelemetry
// prescribes it.
const UnknownService = "unknown_service"
