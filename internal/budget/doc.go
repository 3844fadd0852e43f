// SPDX-License-Identifier: Apache-2.0

// Package budget keeps what recording costs a program within a share of its time: it decides when launches are
// traced, when they are only counted and when nothing is seen, and says what the launches between the slices
// must have been. It knows neither CUPTI nor OpenTelemetry, and has no clock.
//
// A [Controller] plans strata. In each one slot of several is traced, any with the same chance, so that no
// rhythm of the program can hide from it or fall in step with it. What it pays is the number of launches times what
// one costs, found by comparing the time that a launch takes in neighbouring intervals with and without
// records; what CUPTI says of its own work; our threads' processor time; and changes of state. It is paid from a
// bucket into which nine tenths of the budget flow, and which holds the tenth part of a minute's: so no minute
// costs more than the budget, by the costs as they are known then.
//
// An [Estimator] adds up the strata. Launches that were counted are exact; others are estimated with a
// bound. See its comment for what the bounds say.
//
// # For a recorder
//
// The recorder's goroutine calls Controller.Begin when it starts and Controller.Next when a step's time is over, sets
// the collector's mode to Step.State, after detaching CUPTI where Step.Finalise says so, and tells with the
// next call
//
//   - the launches that were counted since the mode was reached (all operations; Known is false in Blind),
//   - how long the change took, and whether it failed,
//   - what CUPTI's overhead records and the goroutine's own processor time have added up to since the last call.
//
// Records arrive late. They are put to the stratum in which they started: a step's records are complete some
// seconds after it. When Step.Stratum changes, the stratum before is closed, and given to Estimator.Add when its
// records are complete, with the difference of the counts at its ends.
package budget
