// SPDX-License-Identifier: Apache-2.0

// Package ingest reads the requests of GPU Flight's wire protocol (format document, section 7).
// These are complete windows of lines, gzip or plain, and single lines in their envelope. The
// package handles sizes, checksums and JSON. It does not depend on sessions or pipelines.
//
// A body is held as sent, compressed, and is read twice. [Body.Check] reads it once, so that a
// damaged or too large body is rejected before any line is processed. [Body.Lines] then returns its
// lines. A [Budget] bounds the memory of all bodies together.
//
// A Budget is safe for concurrent use. A Body belongs to one request.
package ingest
