// SPDX-License-Identifier: Apache-2.0

// Package gpuflogreceiver receives the logs of GPU Flight's recorder and sends them as traces, logs
// and metrics. It follows files, and it receives logs from GPU Flight's clients over HTTP.
//
// The package internal/fileset finds the files and reads them as ordered streams of lines. The
// package internal/ingest reads the requests. The repository's internal/gpuflog decodes the lines.
// This package moves data through them to the pipelines and keeps checkpoints. Its reader handles
// files, its intake handles sessions over HTTP.
package gpuflogreceiver

//go:generate mdatagen metadata.yaml
