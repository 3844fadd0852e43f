// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package recordings_test reads every recorded session and compares
// what comes out, span by span, record by record and point by point, with what the raw lines say.
//
// The expectation is made from the lines with encoding/json and the attribute names are spelled out
// here: neither the decoder's code nor the constants of semconv can make both sides wrong at once.
package recordings_test
