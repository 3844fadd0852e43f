// SPDX-License-Identifier: Apache-2.0

// Package gpufl records what a Go program does on an NVIDIA GPU, as OpenTelemetry spans, metrics and
// logs.
//
//	shutdown, err := gpufl.Init(ctx)
//	if err != nil {
//		return err // a setting is invalid; a missing GPU is not an error
//	}
//	defer shutdown(context.Background())
//
//	ctx, scope := gpufl.Scope(ctx, "train_step", gpufl.Attr("step", 12))
//	defer scope.End()
//
// A scope is an ordinary span of the application's TracerProvider. Kernels, copies, memory sets and
// graphs that the goroutine launches while it is open become its children, with the device's times.
// Work outside every scope is a child of the session's span.
//
// # Settings
//
// They come from the environment: OTEL_EXPORTER_OTLP_ENDPOINT and the other variables of
// OpenTelemetry, and GPUFLIGHT_*. docs/sdk.md in the repository lists them. Options in code take
// precedence. Without settings, telemetry goes to http://localhost:4318. If no collector is there,
// the SDK logs one warning, and the program continues.
//
// # Providers
//
// Init sets no global of OpenTelemetry, except with [WithGlobalTracerProvider]. It reads the global
// TracerProvider, if the application has set one. [WithTracerProvider], [WithMeterProvider] and
// [WithLoggerProvider] use providers of the application. Spans of device work always go to the OTLP
// endpoint.
//
// # Before use
//
//   - CUDA knows threads, not goroutines. An open scope keeps its goroutine on its thread
//     (runtime.LockOSThread), and the goroutine that began it must end it. Work that another goroutine
//     launches is not in it. Where nothing is recorded, no goroutine is locked.
//   - Without a GPU or CUPTI the program runs unchanged, and [CurrentStatus] has the reason.
//   - [DeepWindow] profiles the inside of kernels for some seconds: what they wait for, and on which
//     line. GPUFLIGHT_DEEP=1 or [WithDeepWindows] allows it.
//   - A process has one recording. Init may be called again after its shutdown.
//   - The package builds without CUDA. Recording requires Linux and cgo; elsewhere, and with
//     CGO_ENABLED=0, scopes are spans and nothing is recorded.
package gpufl
