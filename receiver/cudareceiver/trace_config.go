// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// TraceConfig says when single calls become spans, and how many. It has a meaning where the receiver is in a
// pipeline of traces.
type TraceConfig struct {
	// Duration is how long a window lasts.
	Duration time.Duration `mapstructure:"duration"`
	// OnSignal opens a window when the collector gets SIGUSR1.
	OnSignal bool `mapstructure:"on_signal"`
	// When opens one by itself.
	When TraceRuleConfig `mapstructure:"when"`
	// Cooldown is the least time from the end of a window to the next that the rule opens. A signal does not wait.
	Cooldown time.Duration `mapstructure:"cooldown"`
	// MaxSpans bounds the calls of one process in a window that become spans. All processes together have less than
	// three times as many, by the rule of package fair.
	MaxSpans int `mapstructure:"max_spans"`
	// RingBytes is the size of the kernel's buffer for calls, which is emptied every 33 ms.
	RingBytes uint32 `mapstructure:"ring_bytes"`
	// prevent unkeyed literal initialization
	_ struct{}
}

// TraceRuleConfig opens a window by the launches of a process, of kernels and graphs, in an interval.
type TraceRuleConfig struct {
	// Above opens one where any process launches more often than this, 0 for never.
	Above float64 `mapstructure:"launches_per_second_above"`
	// Below opens one where any process launches less often than this, but launches; 0 for never.
	Below float64 `mapstructure:"launches_per_second_below"`
	// Interval is the time over which the rate is taken.
	Interval time.Duration `mapstructure:"interval"`
	// prevent unkeyed literal initialization
	_ struct{}
}

const (
	defaultTraceDuration = 10 * time.Second
	// longestTrace keeps a typing error from tracing for ever: every call costs about a microsecond meanwhile.
	longestTrace         = 10 * time.Minute
	defaultCooldown      = 5 * time.Minute
	defaultSpans         = 100_000
	mostSpans            = 10_000_000
	defaultRingBytes     = 4 << 20
	leastRing, mostRing  = 64 << 10, 1 << 30
	defaultRuleInterval  = 10 * time.Second
	shortestRuleInterval = time.Second
)

func defaultTrace() TraceConfig {
	return TraceConfig{
		Duration: defaultTraceDuration, OnSignal: true, When: TraceRuleConfig{Interval: defaultRuleInterval},
		Cooldown: defaultCooldown, MaxSpans: defaultSpans, RingBytes: defaultRingBytes,
	}
}

func (r *TraceRuleConfig) set() bool { return r.Above != 0 || r.Below != 0 }

// Validate reports settings that cannot work.
func (c *TraceConfig) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Duration <= 0 || c.Duration > longestTrace {
		wrong("duration is %v: set a time above 0, up to %v", c.Duration, longestTrace)
	}
	if !c.OnSignal && !c.When.set() {
		wrong("nothing opens a window: set on_signal to true, or launches_per_second_above or _below in when")
	}
	if c.Cooldown < 0 {
		wrong("cooldown is %v: it cannot be below 0", c.Cooldown)
	}
	if c.MaxSpans <= 0 || c.MaxSpans > mostSpans {
		wrong("max_spans is %d: set a number from 1 to %d", c.MaxSpans, mostSpans)
	}
	if c.RingBytes < leastRing || c.RingBytes > mostRing || bits.OnesCount32(c.RingBytes) != 1 {
		wrong("ring_bytes is %d: set a power of two from %d to %d", c.RingBytes, leastRing, mostRing)
	}
	for _, n := range []struct {
		name  string
		value float64
	}{{"launches_per_second_above", c.When.Above}, {"launches_per_second_below", c.When.Below}} {
		if !(n.value >= 0) || math.IsInf(n.value, 0) {
			wrong("when.%s is %v: set 0 for never, or a rate", n.name, n.value)
		}
	}
	if c.When.Above > 0 && c.When.Below > c.When.Above {
		wrong("when.launches_per_second_below is %v, which is more than _above (%v): every rate would open a window", c.When.Below, c.When.Above)
	}
	if c.When.Interval < shortestRuleInterval {
		wrong("when.interval is %v: set %v or more", c.When.Interval, shortestRuleInterval)
	}
	return errors.Join(errs...)
}
