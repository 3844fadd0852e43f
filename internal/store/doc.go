// SPDX-License-Identifier: Apache-2.0

// Package store defines what a store of GPU telemetry holds and answers. It has the rows, the
// dictionaries, the queries and their answers, the arithmetic that all stores share, and the
// interfaces [Writer], [Reader] and [Admin].
//
// Package rows makes a [Batch] from pdata. Packages duckstore and clickstore implement the
// interfaces. Package storetest has one contract suite for both, and a store in memory to compare
// with.
//
// Data belongs to a session, which is one run of one process, or to no session, such as metrics of
// NVML. A store keeps data without a session under the day of its time (see [Batch.Session]).
//
// Times are Unix nanoseconds and durations nanoseconds, both int64. Values of a Batch are valid
// until Write returns. Readers and writers are safe for concurrent use.
//
// The package imports the standard library only.
package store
