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
	// Protocols are the sources of logs other than files.
	Protocols Protocols `mapstructure:"protocols"`
	// Include holds folders, searched recursively, and glob patterns. It may be empty if a protocol
	// is configured.
	Include []string `mapstructure:"include"`
	// Exclude holds glob patterns of files and folders to skip.
	Exclude []string `mapstructure:"exclude"`
	// Raw sends the lines of files as log records, as they are, for an archive. Nothing is decoded.
	Raw bool `mapstructure:"raw"`
	// StartAt is the start position in files that exist at the first start: beginning or end.
	StartAt string `mapstructure:"start_at"`
	// PollInterval bounds the time between two scans of the files. Inotify wakes the receiver
	// earlier if it is available.
	PollInterval time.Duration `mapstructure:"poll_interval"`
	// Storage is the storage extension for checkpoints. Without one a restart reads all files
	// again.
	Storage *component.ID `mapstructure:"storage"`
	// MaxSpansPerTrace bounds a trace. Further spans go to the next part of the trace.
	MaxSpansPerTrace int `mapstructure:"max_spans_per_trace"`
	// MaxLineBytes bounds a line. Longer lines are skipped and counted.
	MaxLineBytes ByteSize `mapstructure:"max_line_bytes"`
	// JoinTimeout is how long, in the session's own time, a kernel row waits for its kernel_detail.
	JoinTimeout time.Duration `mapstructure:"join_timeout"`
	// SessionTimeout bounds the idle time of a session without a shutdown record. After it, the
	// session and its open scopes are sent as unfinished. If the session continues, they are sent
	// again at their end, with the same ids.
	SessionTimeout time.Duration `mapstructure:"session_timeout"`
}

// Protocols are the sources of logs other than files.
type Protocols struct {
	// HTTP is GPU Flight's wire protocol, as its agent and its upload use it.
	HTTP configoptional.Optional[HTTPConfig] `mapstructure:"http"`
}

// HTTPConfig configures the HTTP server. It extends the settings of every HTTP server of the
// Collector. max_request_body_size bounds a body both as sent and decompressed.
type HTTPConfig struct {
	confighttp.ServerConfig `mapstructure:",squash"`
	// MaxSessions bounds the sessions of one principal in memory. All principals together may have
	// a quarter more. Above a bound, the receiver closes the session of the largest principal that
	// has been idle longest.
	MaxSessions int `mapstructure:"max_sessions"`
	// MaxBufferedBytes bounds the bytes of all request bodies. One principal may use three quarters
	// of it, and one host of a principal half.
	MaxBufferedBytes ByteSize `mapstructure:"max_buffered_bytes"`
	// MaxRequests bounds the requests in progress. One principal may use three quarters of it, and
	// one host of a principal half, each at least one.
	MaxRequests int `mapstructure:"max_requests"`
	// ChannelTimeout bounds the wall time for which work waits for another channel of its session.
	// A client may send the channels sequentially.
	ChannelTimeout time.Duration `mapstructure:"channel_timeout"`
}

// maxWindowBytes is what GPU Flight's own backend accepts of one window, decompressed (format
// document, section 7.1). The recorder starts a new window at 64 MiB.
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

// Validate reports each mistake in one sentence with valid values.
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

// defaultLineBytes is 14 times the longest line of the available recordings, a source map of an
// H200 with 1.1 MiB. A line is held in memory completely.
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

// Validate reports each mistake in one sentence with valid values.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Include) == 0 && !c.Protocols.HTTP.HasValue() {
		errs = append(errs, errors.New("include is empty: name at least one folder or pattern, such as /var/log/gpuflight, or set protocols::http"))
	}
	if c.Raw && c.Protocols.HTTP.HasValue() {
		errs = append(errs, errors.New("raw is for files: remove protocols::http, or use another gpuflog for it"))
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

// ByteSize is a number of bytes. In a file it may have a unit, such as 64MiB.
type ByteSize int64

// UnmarshalText parses a number of bytes with or without a unit.
func (b *ByteSize) UnmarshalText(text []byte) error {
	n, err := bytesize.Parse(string(text))
	*b = ByteSize(n)
	return err
}
