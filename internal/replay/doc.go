// SPDX-License-Identifier: Apache-2.0

// Package replay reads archives of telemetry and sends what they hold again: OTLP as the Collector's
// awss3 and file exporters write it, and the logs of GPU Flight's recorder, out of folders or of
// S3.
//
// [Run] reads one object after the other, in the order of their names. Of an object only a message at a
// time is in memory, and nothing is read ahead of what was sent, so an endpoint that takes less is
// waited for. What cannot be read is named, counted and left out; the rest goes on.
//
// A [Journal] remembers what was sent. A replay that was killed at any moment and goes on by it sends
// every item at least once, and at most one batch a second time. Ids are those of the archive, or for
// logs follow from their content, so that what comes twice is the same.
//
// It does not know what the telemetry says, and changes nothing of it.
package replay
