// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/dustin/go-humanize"
	"go.opentelemetry.io/collector/component"
)

// Config is the receiver's configuration.
type Config struct {
	// Include holds folders, searched recursively, and glob patterns.
	Include []string `mapstructure:"include"`
	// Exclude holds glob patterns of files and folders to leave out.
	Exclude []string `mapstructure:"exclude"`
	// StartAt says where to begin in files that are there at the first start: beginning or end.
	// Files that come later are always read from their beginning.
	StartAt string `mapstructure:"start_at"`
	// PollInterval is the longest time between two looks at the files. Inotify wakes the receiver
	// earlier where it works.
	PollInterval time.Duration `mapstructure:"poll_interval"`
	// Storage is the storage extension that keeps checkpoints. Without one a restart reads again.
	Storage *component.ID `mapstructure:"storage"`
	// MaxSpansPerTrace bounds a trace; it goes on in a further one.
	MaxSpansPerTrace int `mapstructure:"max_spans_per_trace"`
	// MaxLineBytes bounds a line; longer ones are skipped and counted.
	MaxLineBytes ByteSize `mapstructure:"max_line_bytes"`
	// JoinTimeout is how long, in the session's own time, a kernel row waits for its kernel_detail.
	JoinTimeout time.Duration `mapstructure:"join_timeout"`
	// SessionTimeout is how long a session without a shutdown record may be silent until its open
	// scopes and the session itself are sent as unfinished. If it goes on after all, they are sent
	// again when they end, with the same ids.
	SessionTimeout time.Duration `mapstructure:"session_timeout"`
}

const (
	startAtBeginning = "beginning"
	startAtEnd       = "end"
)

func createDefaultConfig() component.Config {
	return &Config{
		StartAt:          startAtBeginning,
		PollInterval:     200 * time.Millisecond,
		MaxSpansPerTrace: 10000,
		MaxLineBytes:     64 << 20,
		JoinTimeout:      10 * time.Second,
		SessionTimeout:   5 * time.Minute,
	}
}

// Validate reports each mistake in one sentence that says what to write instead.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Include) == 0 {
		errs = append(errs, errors.New("include is empty: name at least one folder or pattern, such as /var/log/gpuflight"))
	}
	for _, list := range [][]string{c.Include, c.Exclude} {
		for _, p := range list {
			if p == "" || !doublestar.ValidatePattern(filepath.ToSlash(p)) {
				errs = append(errs, fmt.Errorf("pattern %q is not valid: use a path, or * ? [a-z] {a,b} and ** as in shell patterns", p))
			}
		}
	}
	if c.StartAt != startAtBeginning && c.StartAt != startAtEnd {
		errs = append(errs, fmt.Errorf("start_at is %q: write beginning or end", c.StartAt))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"poll_interval", c.PollInterval}, {"join_timeout", c.JoinTimeout}, {"session_timeout", c.SessionTimeout}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s: it must be above zero", d.name, d.value))
		}
	}
	if c.MaxSpansPerTrace < 2 {
		errs = append(errs, fmt.Errorf("max_spans_per_trace is %d: it must be at least 2", c.MaxSpansPerTrace))
	}
	if c.MaxLineBytes < 1<<10 || c.MaxLineBytes > 1<<30 {
		errs = append(errs, fmt.Errorf("max_line_bytes is %d: it must be between 1KiB and 1GiB", c.MaxLineBytes))
	}
	return errors.Join(errs...)
}

// ByteSize is a number of bytes; in a file it may carry a unit, such as 64MiB.
type ByteSize int64

// UnmarshalText reads a number of bytes with or without a unit.
func (b *ByteSize) UnmarshalText(text []byte) error {
	n, err := humanize.ParseBytes(string(text))
	if err != nil || n > 1<<62 {
		return fmt.Errorf("size %q is not a number of bytes: write for example 64MiB", text)
	}
	*b = ByteSize(n)
	return nil
}
