// SPDX-License-Identifier: Apache-2.0

// Package gpuflogreceiver takes the logs of GPU Flight's recorder, from files that it follows and from
// GPU Flight's own clients over HTTP, and sends what they tell as traces, logs and metrics. Four rooms
// share the work: internal/fileset finds the files and reads them as ordered streams of lines,
// internal/ingest reads the requests, the repository's internal/gpuflog decodes the lines, and this
// package moves data through them to the pipelines and keeps checkpoints: the reader for files, the
// intake for sessions that come over HTTP.
package gpuflogreceiver

//go:generate mdatagen metadata.yaml
