// SPDX-License-Identifier: Apache-2.0

// Package storetest tests implementations of [store.Store].
//
// [Memory] is a store that keeps all rows and computes each answer from them. It has no rollups and
// no caches, so it is the reference for all other stores. [Generate] makes random sessions, and
// [Deliver] delivers them in another order, in other batches and several times. [Run] writes them
// to a store and to a Memory, and compares all answers.
//
// Lanes, shapes and paths have other ids in each store. Run maps them by content: lanes and shapes
// by Key, paths by their names. It also checks that a store never changes them. Values that differ
// between stores by design are not compared: sizes in bytes, and indices of a Batch in answers.
package storetest
