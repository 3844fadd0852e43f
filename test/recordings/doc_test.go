// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package recordings_test reads every recorded session and compares the telemetry with the raw
// lines: each span, log record and data point.
//
// The expectation is computed with encoding/json, and attribute names are literals here. An error
// in the decoder or in semconv therefore cannot change both sides.
package recordings_test
