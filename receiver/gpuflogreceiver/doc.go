// SPDX-License-Identifier: Apache-2.0

// Package gpuflogreceiver follows the log files of GPU Flight's recorder and sends what they tell as
// traces, logs and metrics. Three rooms share the work: internal/fileset finds the files and reads
// them as ordered streams of lines, the repository's internal/gpuflog decodes the lines, and this
// package moves data from the one through the other to the pipelines and keeps checkpoints.
package gpuflogreceiver

//go:generate mdatagen metadata.yaml
