// SPDX-License-Identifier: Apache-2.0

// Package gpuevent is the domain of this project: GPU work as plain Go values, and their only
// translation to OpenTelemetry's pdata. The values are Kernel, Copy, Set, Sync, Memory, Graph, Scope,
// samples, metrics, and the Session that they belong to.
//
// Each source of GPU work (log files, CUPTI, NVML) fills these values and adds them to a [Batch]. No
// other package writes spans, log records or data points for GPU work. A kernel is therefore the same
// in every store, whichever source observed it.
//
// Three rules for ownership:
//
//   - The source fills an event and calls the Batch's method for it. The Batch copies what it needs
//     before it returns, so the source may reuse the event struct. The Batch keeps strings as they
//     are: a source whose strings point into a reused buffer must intern or clone them first.
//   - [Session] and [KernelName] are shared. The source keeps one of each per session and per name,
//     does not change them after the first use, and passes the same pointer every time. The Batch
//     groups by the Session's pointer.
//   - A Batch belongs to one goroutine. [Batch.Take] returns the finished pdata and leaves the Batch
//     empty, ready for more events.
//
// The package imports pdata and semconv. It does no I/O and does not depend on any source.
package gpuevent
