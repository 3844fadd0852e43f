// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
)

// Config is the configuration of the extension. Bounds are per signal.
type Config struct {
	// MaxSessions bounds the sessions in memory. For one more, the one that has been silent longest is
	// closed.
	MaxSessions int `mapstructure:"max_sessions"`
	// MaxMessageBytes bounds a message, unpacked. Longer ones are left out and counted.
	MaxMessageBytes int `mapstructure:"max_message_bytes"`
	// MaxSpansPerTrace bounds a trace; it goes on in a further one.
	MaxSpansPerTrace int `mapstructure:"max_spans_per_trace"`
	// ChannelTimeout is how long, in wall time, work waits for another channel of its session of
	// which nothing comes.
	ChannelTimeout time.Duration `mapstructure:"channel_timeout"`
	// JoinTimeout is how long, in the session's own time, a kernel row waits for its kernel_detail.
	JoinTimeout time.Duration `mapstructure:"join_timeout"`
	// SessionTimeout is how long a session without a shutdown record may be silent until its open
	// scopes and the session itself are returned as unfinished.
	SessionTimeout time.Duration `mapstructure:"session_timeout"`
	// RememberedLines is how many lines of a session are remembered, so that they are not taken again
	// when Kafka delivers them again.
	RememberedLines int `mapstructure:"remembered_lines"`
	// Storage is the storage extension that keeps what is known of sessions over a restart.
	Storage *component.ID `mapstructure:"storage"`
}

func createDefaultConfig() component.Config {
	return &Config{
		MaxSessions: 64, MaxMessageBytes: 16 << 20, MaxSpansPerTrace: 10000, ChannelTimeout: 10 * time.Second,
		JoinTimeout: 10 * time.Second, SessionTimeout: 5 * time.Minute, RememberedLines: 16384,
	}
}

// Validate reports each mistake in one sentence that says what to write instead.
func (c *Config) Validate() error {
	var errs []error
	for _, n := range []struct {
		name             string
		value, low, high int
	}{
		{"max_sessions", c.MaxSessions, 1, 4096}, {"max_message_bytes", c.MaxMessageBytes, 1 << 10, 1 << 30},
		{"max_spans_per_trace", c.MaxSpansPerTrace, 2, 1 << 30}, {"remembered_lines", c.RememberedLines, 1, 1 << 24},
	} {
		if n.value < n.low || n.value > n.high {
			errs = append(errs, fmt.Errorf("%s is %d: it must be between %d and %d", n.name, n.value, n.low, n.high))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"channel_timeout", c.ChannelTimeout}, {"join_timeout", c.JoinTimeout}, {"session_timeout", c.SessionTimeout}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %v: it must be more than 0", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}
