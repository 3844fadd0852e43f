// SPDX-License-Identifier: Apache-2.0

// Package deep decides when a deep window opens and closes. A window is a few seconds in which an
// engine (PC sampling, SASS metrics) looks inside kernels of the running process. The program, a
// signal, the control socket (package control), a schedule, or rules on live figures (package rule)
// request windows.
//
// Its input is requests and figures. Its output is calls of an [Engines], which the caller
// implements, and a [Window] that says why each window opened and closed and what it yielded. The
// package does not depend on CUPTI or OpenTelemetry, and reads no environment: [ConfigFromEnv] is
// given a function.
//
// What a [Controller] guarantees:
//
//   - One window at a time, and never two engines armed: not at once, and not one while it is
//     unknown whether another has been disarmed.
//   - A request during a window joins it if it has the same cause and engine, and is refused
//     otherwise. Nothing is queued: what is refused is counted by reason. A schedule tries again at
//     its next time, a rule while it still holds.
//   - A window of the schedule that is due before the program uses the device waits until it does.
//   - There is no window in the blackout after the start, in the cool-down after another, or once
//     the process is at its end. Windows are bounded in all, by hour, and by share of the time.
//   - Activity is paused where an engine demands it and is resumed whatever happens. A call of
//     Engines that fails to disarm, panics, or does not return in time makes its engine broken. A
//     broken engine is never armed again, and everything else continues.
//
// One goroutine runs the windows; each call of Engines has another, which ends with the call.
// Methods of Controller may be called by any goroutine, but Figures belong to one (see there).
// Times are those of package time: tests give it a false clock by testing/synctest.
package deep
