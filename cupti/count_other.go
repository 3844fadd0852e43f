// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package cupti

import "time"

// SetMode returns ErrNotRunning.
func (*Collector) SetMode(Mode) error { return ErrNotRunning }

// Mode is ModeTrace.
func (*Collector) Mode() Mode { return ModeTrace }

// Detach returns ErrNotRunning.
func (*Collector) Detach(Mode, time.Duration) (time.Duration, error) { return 0, ErrNotRunning }

// LaunchCounts returns dst as it is.
func (*Collector) LaunchCounts(dst []LaunchCount) []LaunchCount { return dst }

// Doubts returns dst as it is.
func (*Collector) Doubts(dst []Doubt) []Doubt { return dst }

// CountStats are zero.
func (*Collector) CountStats() CountStats { return CountStats{} }
