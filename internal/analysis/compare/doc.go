// SPDX-License-Identifier: Apache-2.0

// Package compare says what changed from one session to another: the time of a step, its parts, and
// kernels, shapes and scopes, each with a test. docs/internals/comparisons.md defines every term.
//
// [Sessions] compares two profiles of package analysis. It has no state and is safe for concurrent use.
//
// The tests know the variation inside the two sessions only. Two runs of an unchanged program can differ
// by more, because of clocks, temperature and other work on the machine.
package compare
