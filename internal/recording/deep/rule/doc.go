// SPDX-License-Identifier: Apache-2.0

// Package rule says when live figures of a process meet a rule, such as
//
//	kernel.rate < 100/s for 2s
//	scope(train_step).p95 > 1.5x baseline
//
// In go counts and durations ([Figures], [Series]), out go firings. The package opens
// nothing and reads no clock: every time is given to it.
//
// # Grammar
//
//	rule     = figure [ "over" duration ] op value [ "for" duration ]
//	figure   = source "." stat
//	source   = "kernel" [ "(" name ")" ] | "scope" "(" name ")"
//	stat     = "rate" | "p" number             p1 to p99, such as p50, p95
//	op       = "<" | "<=" | ">" | ">="
//	value    = number "/s"                     of a rate
//	         | duration                        of p50, p95, …
//	         | number "x baseline"             of any of them
//
// Durations are those of Go, such as 500ms or 2s.
//
// A name is a glob: * stands for any text, ? for one byte. Kernels are found by their short or their
// full name, and all that match are one figure. kernel without a name is all kernels. A comparison
// that no figure can meet, or that every figure always meets, is an error.
//
// # Figures
//
// rate counts per second of real time, over the last second unless "over" says otherwise. It is
// unknown until the first kernel or scope of that name has been seen, and 0 when none comes any
// more. pNN is a quantile of the durations over the last ten seconds. It is within 5 % if the
// longest is less than a million times the shortest, and unknown without durations.
//
// Figures are updated at ticks. Their time range is up to a tenth and one tick longer than stated,
// and rates use the true range. What is delivered late counts when it arrives. A figure is known
// only if its whole time range was observed. It is unknown for that long after the start, after a
// deep window, which disturbs the measurement, and after a gap of more than five seconds between two
// ticks. Unknown meets no rule, and ends the time that "for" counts.
//
// # Firing
//
// A rule is met when its comparison has held at every tick for as long as "for" says, without it at
// one tick. It is then offered at every tick, while it holds, until it is taken; that is once. It
// is armed again when the figure has been on the other side of the value, by at least a tenth of
// it, for as long as "for" says.
//
// # Baseline
//
// The baseline is the median of the last 600 looks at the figure, a second or a little more apart,
// in quiet time. Time is quiet while the figure is known and the rule is armed and does not hold.
// There must have been ten looks; until then the rule cannot hold. Fast changes leave the median
// where it was, slow drift moves it: a change that takes longer than ten minutes is no change to
// this rule. A figure that goes to another level and stays there fires once, and not again before
// it comes back. A baseline of 0 is none.
package rule
