// SPDX-License-Identifier: Apache-2.0

// Package testsink is where tests let telemetry end: a [Store] that remembers every distinct span,
// log record and data point with how often and when it came, and a [Server] that puts an OTLP gRPC
// endpoint on loopback in front of a Store and can be told to refuse, to hang and to recover.
//
// It knows pdata and OTLP and nothing of GPU logs: what it holds is compared with an expectation
// that the test makes from other sources. Store and Server may be used by many goroutines at once.
package testsink
