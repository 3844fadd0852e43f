// SPDX-License-Identifier: Apache-2.0

// Package gpuflog decodes the NDJSON logs of GPU Flight's recorder into gpuevent values: the
// generations A2 (flat events, "init") and B, C1, C2, C3 (columnar batches and dictionaries,
// "job_start"). It does no file I/O and does not depend on the Collector.
//
// A [Decoder] reads one group of files: the channels (device, scope, system, sass) of one flat base
// name or of one session folder. The caller feeds it complete lines, channel by channel, each channel
// in the order of its file. [Decoder.Want] returns the channel to read next, so that the channels keep
// pace and few events wait. The Decoder adds an event to a gpuevent.Batch when the event is complete.
//
// Events wait for two things:
//
//   - A kernel row of a batch waits for its kernel_detail (same channel, same correlation id), for up
//     to Options.JoinTimeout of the session's own time.
//   - Every span waits until the scope channel has been read past the launch of its work. Then it
//     becomes a child of the scope instance that launched it. On a live session that wait is bounded
//     by Options.ScopeWait of wall time.
//
// The result depends only on the lines, and on the times and flags given to [Decoder.EndStep]. The
// Decoder reads no clock and uses no random numbers. The same lines from the same state
// ([Decoder.AppendState], [Decoder.LoadState]) give the same events with the same ids. All tables are
// bounded; dropped events are counted in [Stats].
//
// A Decoder belongs to one goroutine.
package gpuflog
