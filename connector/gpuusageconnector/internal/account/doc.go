// SPDX-License-Identifier: Apache-2.0

// Package account is the exact arithmetic under the usage connector, in whole nanoseconds:
//
//   - [Union]: for how long a device was busy, whatever the order in which its intervals arrive;
//   - [Seen]: which spans were counted before;
//   - [Ledger]: who pays for each nanosecond of a device, which of them were idle, and the silences
//     between the kernels of a stream.
//
// Times are Unix nanoseconds, intervals half open: [start, end). There is no clock here: the caller
// passes the time. Everything is bounded, and what a bound makes forgotten is reported. State goes
// out as bytes and comes back from them; bytes that make no sense are an error and change nothing.
// Nothing here is safe for concurrent use: the caller holds a lock.
//
// The package knows neither spans nor metrics, only the standard library.
package account
