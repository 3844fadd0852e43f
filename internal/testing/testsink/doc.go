// SPDX-License-Identifier: Apache-2.0

// Package testsink is a telemetry backend for tests. A [Store] keeps every distinct span, log
// record and data point, with the number and times of its arrivals. A [Server] is an OTLP gRPC
// endpoint on loopback that fills a Store. Tests can make it reject, hang and recover.
//
// It depends on pdata and OTLP, but not on packages for GPU logs. Tests compare its content with
// expected values from other sources. Store and Server are safe for concurrent use.
package testsink
