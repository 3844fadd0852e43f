// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// TraceConfig configures which calls become spans. It applies if the receiver is in a pipeline of
// traces.
type TraceConfig struct {
	// Duration is the length of a window.
	Duration time.Duration `mapstructure:"duration"`
	// OnSignal opens a window when the collector receives SIGUSR1.
	OnSignal bool `mapstructure:"on_signal"`
	// When opens a window by a rule.
	When TraceRuleConfig `mapstructure:"when"`
	// Cooldown is the shortest time between the end of a window and the next one that the rule
	// opens. It does not apply to the signal.
	Cooldown time.Duration `mapstructure:"cooldown"`
	// MaxSpans bounds the spans of one process per window. All processes together have less than
	// three times as many, by the rule of package fair.
	MaxSpans int `mapstructure:"max_spans"`
	// RingBytes is the size of the kernel's buffer for calls. It is drained every 33 ms.
	RingBytes uint32 `mapstructure:"ring_bytes"`
	// prevent unkeyed literal initialization
	_ struct{}
}

// TraceRuleConfig opens a window by the number of launches of a process (kernels and graphs) in an
// interval.
type TraceRuleConfig struct {
	// Above opens one if any process exceeds this rate. 0 disables it.
	Above float64 `mapstructure:"launches_per_second_above"`
	// Below opens one if any process has launches, but fewer than this rate. 0 disables it.
	Below float64 `mapstructure:"launches_per_second_below"`
	// Interval is the period of the rate.
	Interval time.Duration `mapstructure:"interval"`
	// prevent unkeyed literal initialization
	_ struct{}
}

const (
	defaultTraceDuration = 10 * time.Second
	// longestTrace prevents an endless trace after a typing error: while it runs, every call costs
	// about a microsecond.
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

// Validate returns an error for invalid settings.
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
