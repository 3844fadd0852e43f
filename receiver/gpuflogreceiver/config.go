// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/gpuflight/gpuflight/internal/bytesize"
)

// Config is the receiver's configuration.
type Config struct {
	// Protocols are the ways in which logs come other than as files.
	Protocols Protocols `mapstructure:"protocols"`
	// Include holds folders, searched recursively, and glob patterns. It may be empty where a
	// protocol is set.
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

// Protocols are the ways in which logs come other than as files.
type Protocols struct {
	// HTTP is GPU Flight's own wire protocol, as its agent and its upload speak it.
	HTTP configoptional.Optional[HTTPConfig] `mapstructure:"http"`
}

// HTTPConfig is the configuration of the HTTP server. Besides its own settings it has those of every
// HTTP server of the Collector; max_request_body_size bounds a body as sent and also unpacked.
type HTTPConfig struct {
	confighttp.ServerConfig `mapstructure:",squash"`
	// MaxSessions bounds the sessions of one principal that are kept in memory; those of all may be a
	// quarter more. For one more, the one that has been silent longest is closed, of the principal
	// with the most.
	MaxSessions int `mapstructure:"max_sessions"`
	// MaxBufferedBytes bounds what all request bodies hold together. One principal may have three
	// quarters of it, and one host of a principal half.
	MaxBufferedBytes ByteSize `mapstructure:"max_buffered_bytes"`
	// MaxRequests bounds the requests under way. One principal may have three quarters of them, and
	// one host of a principal half, each at least one.
	MaxRequests int `mapstructure:"max_requests"`
	// ChannelTimeout is how long, in wall time, work waits for another channel of its session: a
	// client may send the channels one after the other.
	ChannelTimeout time.Duration `mapstructure:"channel_timeout"`
}

// maxWindowBytes is what GPU Flight's own backend takes of one window, unpacked (format document,
// section 7.1); the recorder cuts at 64 MiB.
const maxWindowBytes = 128 << 20

func defaultHTTP() HTTPConfig {
	s := confighttp.NewDefaultServerConfig()
	s.NetAddr.Endpoint = "localhost:8080"
	s.MaxRequestBodySize = maxWindowBytes
	s.ReadHeaderTimeout = 10 * time.Second
	s.ReadTimeout = 2 * time.Minute
	s.WriteTimeout = 3 * time.Minute // counted from the header, so above the time for the body
	return HTTPConfig{
		ServerConfig: s, MaxSessions: 64, MaxBufferedBytes: maxWindowBytes, MaxRequests: 256,
		ChannelTimeout: 10 * time.Second,
	}
}

// Validate reports each mistake in one sentence that says what to write instead.
func (c *HTTPConfig) Validate() error {
	var errs []error
	if c.NetAddr.Endpoint == "" {
		errs = append(errs, errors.New("protocols::http::endpoint is empty: write for example localhost:8080"))
	}
	if c.MaxRequestBodySize < 1<<10 || c.MaxRequestBodySize > 1<<30 {
		errs = append(errs, fmt.Errorf("protocols::http::max_request_body_size is %d: it must be between 1024 and 1073741824", c.MaxRequestBodySize))
	}
	if int64(c.MaxBufferedBytes) < c.MaxRequestBodySize {
		errs = append(errs, fmt.Errorf("protocols::http::max_buffered_bytes is %d: it must hold at least one body (max_request_body_size)", c.MaxBufferedBytes))
	}
	for _, a := range c.CompressionAlgorithms {
		if a != "" && a != "gzip" {
			errs = append(errs, fmt.Errorf(`protocols::http::compression_algorithms has %q: GPU Flight's clients send gzip or nothing (["", gzip])`, a))
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"max_sessions", c.MaxSessions}, {"max_requests", c.MaxRequests}} {
		if n.value < 1 {
			errs = append(errs, fmt.Errorf("protocols::http::%s is %d: it must be at least 1", n.name, n.value))
		}
	}
	if c.ChannelTimeout <= 0 {
		errs = append(errs, fmt.Errorf("protocols::http::channel_timeout is %s: it must be above zero", c.ChannelTimeout))
	}
	return errors.Join(errs...)
}

const (
	startAtBeginning = "beginning"
	startAtEnd       = "end"
)

// defaultLineBytes is 14 times the longest line of the recordings that we have, a source map of an
// H200 with 1.1 MiB. A line is held in memory whole.
const defaultLineBytes = 16 << 20

func createDefaultConfig() component.Config {
	return &Config{
		Protocols:        Protocols{HTTP: configoptional.Default(defaultHTTP())},
		StartAt:          startAtBeginning,
		PollInterval:     200 * time.Millisecond,
		MaxSpansPerTrace: 10000,
		MaxLineBytes:     defaultLineBytes,
		JoinTimeout:      10 * time.Second,
		SessionTimeout:   5 * time.Minute,
	}
}

// Validate reports each mistake in one sentence that says what to write instead.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Include) == 0 && !c.Protocols.HTTP.HasValue() {
		errs = append(errs, errors.New("include is empty: name at least one folder or pattern, such as /var/log/gpuflight, or set protocols::http"))
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
	n, err := bytesize.Parse(string(text))
	*b = ByteSize(n)
	return err
}
