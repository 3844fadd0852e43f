// SPDX-License-Identifier: Apache-2.0

// Package recorder converts the records of package cupti into telemetry. It makes spans of device
// work as children of the scopes that launched it, and exact metrics. At the end it sends one log
// about what was recorded and what was dropped.
//
// The input is buffers of records ([Source], [Records]). The output is pdata ([Sink]). The package
// opens no connection and reads no environment variable: [SettingsFromEnv] is given a function for
// that. It calls CUPTI through Source only.
//
// [Recorder.Start] starts one goroutine, which reads the buffers and owns all state derived from
// them. Any thread may call [Recorder.Begin] and [Recorder.End]; they append an event under a lock
// of their own. All memory is bounded and every drop is counted: spans omitted by the limit, and
// scopes dropped or evicted at a bound. In metrics, names above a bound become _other. Spans of
// evicted host calls have no launch time.
//
// A panic or an error in the goroutine never reaches the program. It is logged once, recording
// stops, buffers are returned unread, and the summary reports it.
package recorder
