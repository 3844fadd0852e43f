// SPDX-License-Identifier: Apache-2.0

// Package rows makes rows of the store from traces, logs and metrics in pdata, and pdata from rows.
//
// Converting to rows and back gives equal telemetry, with these exceptions:
//
//   - The order of attributes, and of records in a delivery. Of attributes with equal keys, the first
//     remains, which is the one that pdata returns.
//   - Values nested deeper than [store.MaxDepth] become empty. [Stats] counts them.
//   - Rows do not have metadata of metrics, entity references, and the numbers of attributes that a
//     source dropped from a resource or an instrumentation scope. [Stats] counts the metadata and the
//     numbers.
//   - Resources, scopes and metrics without any span, record or point.
//
// A device operation becomes a [store.Op]. If it has something that an Op cannot hold, such as an
// event, a link or a status, it becomes a [store.Span]. Likewise a sample whose text, severity or
// time of observation is not the usual one becomes a [store.Log].
//
// The key of a dictionary entry is the 64-bit xxhash of its content, and two entries with equal keys
// count as equal. Telemetry in which somebody has constructed equal hashes damages only its own
// session.
package rows
