// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
)

func TestTracesAreConfigured(t *testing.T) {
	c := config()
	require.NoError(t, c.Trace.Validate())
	assert.Equal(t, 10*time.Second, c.Trace.Duration)
	assert.True(t, c.Trace.OnSignal)
	assert.False(t, c.Trace.When.set())

	require.NoError(t, confmap.NewFromStringMap(map[string]any{"trace": map[string]any{
		"duration": "30s", "on_signal": false, "cooldown": "1h", "max_spans": 500, "ring_bytes": 1 << 20,
		"when": map[string]any{"launches_per_second_above": 100000, "launches_per_second_below": 0.5, "interval": "5s"},
	}}).Unmarshal(c))
	require.NoError(t, c.Validate())
	require.NoError(t, c.Trace.Validate())
	assert.Equal(t, TraceConfig{
		Duration: 30 * time.Second, Cooldown: time.Hour, MaxSpans: 500, RingBytes: 1 << 20,
		When: TraceRuleConfig{Above: 100000, Below: 0.5, Interval: 5 * time.Second},
	}, c.Trace)
}

func TestTheCollectorChecksSettingsOfTracesToo(t *testing.T) {
	c := config()
	c.Trace.Duration = 0
	assert.EqualError(t, confmap.Validate(c), "trace: duration is 0s: set a time above 0, up to 10m0s")
}

func TestWrongSettingsOfTracesSayWhatToDo(t *testing.T) {
	rate := "when.launches_per_second_above is "
	for want, change := range map[string]func(*TraceConfig){
		"duration is 0s: set a time above 0, up to 10m0s":                                                      func(c *TraceConfig) { c.Duration = 0 },
		"duration is 1h0m0s: set a time above 0, up to 10m0s":                                                  func(c *TraceConfig) { c.Duration = time.Hour },
		"nothing opens a window: set on_signal to true, or launches_per_second_above or _below in when":        func(c *TraceConfig) { c.OnSignal = false },
		"cooldown is -1s: it cannot be below 0":                                                                func(c *TraceConfig) { c.Cooldown = -time.Second },
		"max_spans is 0: set a number from 1 to 10000000":                                                      func(c *TraceConfig) { c.MaxSpans = 0 },
		"max_spans is 10000001: set a number from 1 to 10000000":                                               func(c *TraceConfig) { c.MaxSpans = mostSpans + 1 },
		"ring_bytes is 4096: set a power of two from 65536 to 1073741824":                                      func(c *TraceConfig) { c.RingBytes = 4096 },
		"ring_bytes is 100000: set a power of two from 65536 to 1073741824":                                    func(c *TraceConfig) { c.RingBytes = 100_000 },
		rate + "-1: set 0 for never, or a rate":                                                                func(c *TraceConfig) { c.When.Above = -1 },
		rate + "NaN: set 0 for never, or a rate":                                                               func(c *TraceConfig) { c.When.Above = math.NaN() },
		"when.launches_per_second_below is +Inf: set 0 for never, or a rate":                                   func(c *TraceConfig) { c.When.Below = math.Inf(1) },
		"when.launches_per_second_below is 11, which is more than _above (10): every rate would open a window": func(c *TraceConfig) { c.When.Above, c.When.Below = 10, 11 },
		"when.interval is 10ms: set 1s or more":                                                                func(c *TraceConfig) { c.When.Interval = 10 * time.Millisecond },
		"duration is -1s: set a time above 0, up to 10m0s\nmax_spans is -1: set a number from 1 to 10000000":   func(c *TraceConfig) { c.Duration, c.MaxSpans = -time.Second, -1 },
	} {
		c := defaultTrace()
		change(&c)
		assert.EqualError(t, c.Validate(), want)
	}
}
