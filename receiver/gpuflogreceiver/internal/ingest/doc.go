// SPDX-License-Identifier: Apache-2.0

// Package ingest reads the requests of GPU Flight's wire protocol (format document, section 7): whole
// windows of lines, gzip or plain, and single lines in their envelope. It knows sizes, checksums and
// JSON, and neither sessions nor pipelines.
//
// A body is held as it came, compressed, and is read twice: [Body.Check] walks over it once, so that
// one that is damaged or too large is refused before anything of it is taken, and [Body.Lines] then
// gives its lines. What all bodies hold together is bounded by a [Budget].
//
// A Budget is safe for concurrent use; a Body belongs to one request.
package ingest
