// SPDX-License-Identifier: Apache-2.0

// Package budget keeps what recording costs a program within a share of its time: it decides when launches are
// traced, when they are only counted and when nothing is seen, and says what the launches between the slices
// must have been. It knows neither CUPTI nor OpenTelemetry, and has no clock.
//
// # What is paid for
//
// A [Controller] adds up what was lost: the number of launches times what one costs; what CUPTI says of its own
// work; our threads' processor time; and changes of state, during which the program is taken to stand still. A launch
// costs something to count, something once CUPTI has made any record, until CUPTI is left, and something for a record of its own.
// The last is found by comparing the time that a launch takes in neighbouring intervals with and without records, for each
// octave of the rate of launches: a program that waits for the device loses nothing, and may soon launch faster. The others
// no comparison can tell while a program runs, and they are taken to be in the same proportion to it as on the machine where all
// were measured. Until enough comparisons were made, costs are taken to be no less than they were there for a program with as
// much time from launch to launch: the more it does in between, the more of CUPTI has left the caches.
//
// After CUPTI was left it prepares each kernel anew when that is first launched with records. What this takes is found by comparing
// the beginning of a slice with the rest of it, and slices are so long that it is the smaller part.
//
// It is paid from a bucket into which nine tenths of the budget flow, and which holds the tenth part of a minute's: so
// no minute costs more than the budget, by the costs as they are known then.
//
// # What is done
//
// A program that costs less than half of its budget is traced all the time. Otherwise there is a plan of slots, of which
// one is traced, any with the same chance, so that no rhythm of the program can hide from it or fall in step with it. In
// between all launches are counted. Where CUPTI may be left (Config.CanLeave) and counting takes more than half of the budget and
// leaves little for tracing, they are counted by a CUPTI that was left after the slice; where even that takes more than
// four fifths, CUPTI is left between slices and nothing is seen. What was decided is only decided otherwise when that is clearly
// better, and CUPTI is left only when costs are known well or there is a debt.
//
// An [Estimator] adds up the strata. Launches that were counted are exact; others are estimated with a
// bound. See its comment for what the bounds say.
//
// # For a recorder
//
// One goroutine calls Controller.Begin when it starts and Controller.Next when a step's time is over, leaves CUPTI where
// Step.Finalise says so, sets the collector's mode to Step.State, and tells with the next call
//
//   - the launches that were counted since the mode was reached (all operations; Known is false in Blind),
//   - how long it had to wait for the change, how long the change took, and what of it failed,
//   - what CUPTI's overhead records and its own threads' processor time have added up to since the last call.
//
// Records arrive late. They are put to the stratum in which they started: a step's records are complete some
// seconds after it. When Step.Stratum changes, the stratum before is closed, and given to Estimator.Add when its
// records are complete, with the difference of the counts at its ends.
package budget
