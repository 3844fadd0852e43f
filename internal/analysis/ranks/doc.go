// SPDX-License-Identifier: Apache-2.0

// Package ranks says which rank of a distributed run the others waited for, and why. docs/ranks.md
// defines every term.
//
// Each rank is a session with its own clock. [Run] reads the collectives of each rank from its
// source, finds which of them belong together, aligns the clocks, and then compares when the ranks
// entered. No rank can leave an all-reduce, all-gather, reduce-scatter or barrier before the last one
// has entered. So each collective bounds the offset of each pair of clocks, and the bounds of all give
// the interval in which each offset must be. This interval is the error of all results.
//
// The package has no SQL and no HTTP. Its functions belong to one goroutine each.
package ranks
