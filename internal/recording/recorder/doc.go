// SPDX-License-Identifier: Apache-2.0

// Package recorder turns what package cupti collects into telemetry: spans of device work under the
// scopes that launched it, exact metrics beside them, and one log at the end that says what was
// recorded and what was lost.
//
// In go buffers of records ([Source], [Records]); out goes pdata ([Sink]). The package opens no
// connection, reads no environment (the parser of it, [SettingsFromEnv], is given a function), and
// calls CUPTI through Source only.
//
// One goroutine, started by [Recorder.Start], takes the buffers and owns everything that is learned
// from them. [Recorder.Begin] and [Recorder.End] may be called by any thread and only leave a note
// under a lock of their own. Nothing here grows without a bound. What passes one is counted: spans
// that the limit left out, scopes that found no room or were forgotten, names that are _other in
// metrics; host calls that are forgotten leave spans without launch times.
//
// A fault in the goroutine never reaches the program that it runs in: it is logged once, recording
// stops, buffers are given back unread, and the summary says so.
package recorder
