// SPDX-License-Identifier: Apache-2.0

// Package account has the exact arithmetic of the usage connector, in whole nanoseconds:
//
//   - [Union]: how long a device was busy, for intervals in any order;
//   - [Seen]: which spans were counted before;
//   - [Ledger]: who pays for each nanosecond of a device, which nanoseconds were idle, and the gaps
//     between the kernels of a stream.
//
// Times are Unix nanoseconds, intervals are half open: [start, end). The package reads no clock: the
// caller passes the time. All tables are bounded, and evictions are reported. State is saved to bytes
// and loaded from them; invalid bytes are an error and change nothing. Nothing here is safe for
// concurrent use: the caller holds a lock.
//
// The package imports the standard library only. It does not depend on spans or metrics.
package account
