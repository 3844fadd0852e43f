// SPDX-License-Identifier: Apache-2.0

// Package gpuflog decodes the NDJSON logs of GPU Flight's recorder into gpuevent values: the
// generations A2 (flat events, "init") and B, C1, C2, C3 (columnar batches and dictionaries,
// "job_start"). It does no file I/O and knows no Collector.
//
// A [Decoder] reads one group of files that belong together: the channels (device, scope, system,
// sass) of one flat base name or of one session folder. The caller feeds it whole lines, channel by
// channel, each channel in the order in which it was written; [Decoder.Want] says which channel it
// would like to read next, so that channels keep pace and little has to be held back. Events go to
// a gpuevent.Batch as soon as everything about them is known.
//
// What has to be known first, and how long it is waited for:
//
//   - A kernel row of a batch waits for its kernel_detail (same channel, same correlation id), for
//     Options.JoinTimeout of the session's own time.
//   - Every span waits until the scope channel has been read past the moment at which its work was
//     launched, so that it can hang under the scope instance that launched it. On a live session
//     that wait is bounded by Options.ScopeWait of wall time.
//
// Everything that the Decoder does follows from what it was fed and from the times and flags given
// to [Decoder.EndStep]; it reads no clock and draws no random numbers. Feeding the same again, from
// the same state ([Decoder.AppendState], [Decoder.LoadState]), gives the same events with the same
// ids. All its tables are bounded; what does not fit is counted in [Stats].
//
// A Decoder belongs to one goroutine.
package gpuflog
