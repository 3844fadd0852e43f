// SPDX-License-Identifier: Apache-2.0

// Package analysis says why a program was slow: what each device did, why it was idle, how long the
// steps took, and what a change could gain at most. docs/causes.md defines every term.
//
// [Run] reads the operations of one session once or twice in the order of their starts, from a
// [Source]: a store through [FromReader], or rows in memory through [Collection]. It keeps sums and
// the largest examples only, so that its memory does not depend on the number of operations. A store that
// is a [store.Scanner] keeps what parts of a long session gave, and a later run reads these parts instead.
//
// All sums are exact to the nanosecond. Compute, communication, copies and idle time of a device sum
// to the wall time. The causes of idle time sum to the idle time.
//
// The package imports the types of the store. It has no SQL and no HTTP.
package analysis
