// SPDX-License-Identifier: Apache-2.0

// Package gpuevent is the domain of this project: what a GPU did, as plain Go values (Kernel, Copy,
// Set, Sync, Memory, Graph, Scope, samples, metrics, the Session they belong to), and their one
// translation to OpenTelemetry's pdata.
//
// Whoever sees GPU work, be it a log file, CUPTI or a probe in the kernel, makes these values and
// hands them to a [Batch]; nobody else writes spans, log records or data points for GPU work, so a
// kernel looks the same in every store wherever it was seen.
//
// Three roles, and how long their values live:
//
//   - The source fills an event and calls the Batch's method for it. The Batch copies what it needs
//     before it returns: the event struct may be reused at once. Strings are kept as they are (Go
//     strings are immutable); a source that cuts strings out of a reused buffer must intern or clone
//     them first.
//   - [Session] and [KernelName] are shared: the source keeps one of each per session and per name,
//     does not change them after the first use, and passes the same pointer every time. The Batch
//     groups by the Session's pointer.
//   - The Batch belongs to one goroutine. [Batch.Take] hands the finished pdata over and leaves the
//     Batch empty and ready.
//
// The package knows pdata and semconv. It does no I/O and knows no source.
package gpuevent
