// SPDX-License-Identifier: Apache-2.0

// Package gpufl records what a Go program does on the GPU, as OpenTelemetry spans, metrics and one
// log about the recording itself.
//
//	shutdown, err := gpufl.Init(ctx)
//	if err != nil {
//		return err // a setting is wrong; a missing GPU is no error
//	}
//	defer shutdown(context.Background())
//
//	ctx, scope := gpufl.Scope(ctx, "train_step", gpufl.Attr("step", 12))
//	defer scope.End()
//
// A scope is an ordinary span of the application's TracerProvider. What the goroutine launches
// while it is open (kernels, copies, sets, graphs) becomes the scope's children, with times
// measured by the device. Work outside every scope is a child of the session's span. Settings
// come from the environment: OTEL_* as everywhere, and GPUFL_*; docs/sdk.md lists them.
//
// What to know before use:
//
//   - CUDA knows threads, not goroutines: an open scope holds its goroutine on its thread
//     (runtime.LockOSThread), and must be ended by the goroutine that began it. Work that another
//     goroutine launches is not in it. Where nothing is recorded, nothing is held.
//   - Where there is no GPU or no CUPTI the program runs unchanged, and [CurrentStatus] says why
//     nothing is recorded.
//   - [DeepWindow] looks inside kernels for some seconds: what they wait for, and on which line. It
//     must be allowed first, by GPUFLIGHT_DEEP=1 or [WithDeepWindows].
//   - There is one recording in a process. Init may be called again after its shutdown.
//   - Nothing of CUDA is needed to build, but cgo is needed to record.
package gpufl
