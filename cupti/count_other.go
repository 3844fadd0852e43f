// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package cupti

// SetMode returns ErrNotRunning.
func (*Collector) SetMode(Mode) error { return ErrNotRunning }

// LaunchCounts returns dst as it is.
func (*Collector) LaunchCounts(dst []LaunchCount) []LaunchCount { return dst }

// Doubts returns dst as it is.
func (*Collector) Doubts(dst []Doubt) []Doubt { return dst }

// CountStats are zero.
func (*Collector) CountStats() CountStats { return CountStats{} }
