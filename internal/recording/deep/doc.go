// SPDX-License-Identifier: Apache-2.0

// Package deep decides when a deep window opens and closes: a few seconds in which an engine of the
// device (PC sampling, SASS metrics) looks inside kernels of the running process. Windows are asked
// for by the program, a signal, the control socket (package control), a schedule, or rules on live
// figures (package rule).
//
// In go requests and figures, out go calls of an [Engines], which someone else implements, and a
// [Window] for each that says why it opened and closed and what came of it. The package knows
// neither CUPTI nor OpenTelemetry, and reads no environment ([ConfigFromEnv] is given a function).
//
// What a [Controller] guarantees:
//
//   - One window at a time, and never two engines armed: not at once, and not one while it is
//     unknown whether another has been disarmed.
//   - A request during a window joins it if it has the same cause and engine, and is refused
//     otherwise. Nothing is queued: what is refused is counted by reason. A schedule tries again at
//     its next time, a rule while it still holds.
//   - A window of the schedule that is due before the program uses the device waits until it does.
//   - No window in the blackout after the start, in the cool-down after another, above the maximum
//     in all, an hour, or of the time, or once the process is at its end.
//   - Activity is paused where an engine demands it and is resumed whatever happens. A call of
//     Engines that fails to disarm, panics, or does not return in time makes its engine broken: it
//     is never armed again, and everything else runs on.
//
// One goroutine runs the windows; each call of Engines has another, which ends with the call.
// Methods of Controller may be called by any goroutine, but Figures belong to one (see there).
// Times are those of package time: tests give it a false clock by testing/synctest.
package deep
