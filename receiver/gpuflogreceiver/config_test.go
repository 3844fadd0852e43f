// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
)

func TestConfig_Units(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	require.NoError(t, confmap.NewFromStringMap(map[string]any{
		"include": []any{"/var/log/gpuflight"}, "exclude": []any{"**/old"}, "start_at": "end", "poll_interval": "1s",
		"storage": "file_storage/gpuflog", "max_spans_per_trace": 500, "max_line_bytes": "8MiB", "join_timeout": "3s",
		"session_timeout": "5m",
	}).Unmarshal(cfg))
	id := component.MustNewIDWithName("file_storage", "gpuflog")
	assert.Equal(t, &Config{
		Protocols: createDefaultConfig().(*Config).Protocols,
		Include:   []string{"/var/log/gpuflight"}, Exclude: []string{"**/old"}, StartAt: "end", PollInterval: time.Second,
		Storage: &id, MaxSpansPerTrace: 500, MaxLineBytes: 8 << 20, JoinTimeout: 3 * time.Second, SessionTimeout: 5 * time.Minute,
	}, cfg)
	require.NoError(t, cfg.Validate())
	require.NoError(t, confmap.NewFromStringMap(map[string]any{"max_line_bytes": 4096}).Unmarshal(cfg))
	assert.EqualValues(t, 4096, cfg.MaxLineBytes)
}

func TestConfig_Invalid(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"include is empty: name at least one folder":            func(c *Config) { c.Include = nil },
		`pattern "[" is not valid`:                              func(c *Config) { c.Exclude = []string{"["} },
		`start_at is "middle": write beginning or end`:          func(c *Config) { c.StartAt = "middle" },
		"poll_interval is 0s: it must be above zero":            func(c *Config) { c.PollInterval = 0 },
		"join_timeout is -1s: it must be above zero":            func(c *Config) { c.JoinTimeout = -time.Second },
		"max_spans_per_trace is 1: it must be at least 2":       func(c *Config) { c.MaxSpansPerTrace = 1 },
		"max_line_bytes is 1: it must be between 1KiB and 1GiB": func(c *Config) { c.MaxLineBytes = 1 },
		"session_timeout is 0s: it must be above zero":          func(c *Config) { c.SessionTimeout = 0 },
	} {
		cfg := createDefaultConfig().(*Config)
		cfg.Include = []string{"/logs"}
		require.NoError(t, cfg.Validate())
		change(cfg)
		assert.ErrorContains(t, cfg.Validate(), want)
	}
	err := confmap.NewFromStringMap(map[string]any{"max_line_bytes": "many"}).Unmarshal(createDefaultConfig())
	assert.ErrorContains(t, err, "write for example 64MiB")
}

func TestConfig_HTTPEnabledByName(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	require.Error(t, cfg.Validate())
	assert.False(t, cfg.Protocols.HTTP.HasValue())
	require.NoError(t, confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{"http": nil}}).Unmarshal(cfg))
	require.NoError(t, confmap.Validate(cfg), "include is optional then")
	h := cfg.Protocols.HTTP.Get()
	assert.Equal(t, "localhost:8080", h.NetAddr.Endpoint)
	assert.EqualValues(t, 128<<20, h.MaxRequestBodySize)
	assert.False(t, h.Auth.HasValue())

	require.NoError(t, confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{"http": map[string]any{
		"endpoint": "127.0.0.1:9", "auth": map[string]any{"authenticator": "bearertokenauth"}, "max_sessions": 5,
		"max_buffered_bytes": "1GiB", "channel_timeout": "3s", "max_requests": 7, "max_request_body_size": 4096,
		"tls": map[string]any{"cert_file": "a", "key_file": "b"},
	}}}).Unmarshal(cfg))
	require.NoError(t, confmap.Validate(cfg))
	h = cfg.Protocols.HTTP.Get()
	assert.Equal(t, "127.0.0.1:9", h.NetAddr.Endpoint)
	assert.Equal(t, component.MustNewID("bearertokenauth"), h.Auth.Get().AuthenticatorID)
	assert.Equal(t, 5, h.MaxSessions)
	assert.Equal(t, 7, h.MaxRequests)
	assert.EqualValues(t, 1<<30, h.MaxBufferedBytes)
	assert.EqualValues(t, 4096, h.MaxRequestBodySize)
	assert.Equal(t, 3*time.Second, h.ChannelTimeout)
	assert.True(t, h.TLS.HasValue())
}

func TestConfig_InvalidHTTP(t *testing.T) {
	for want, change := range map[string]func(*HTTPConfig){
		"endpoint is empty: write for example localhost:8080": func(c *HTTPConfig) { c.NetAddr.Endpoint = "" },
		"max_request_body_size is 5: it must be between":      func(c *HTTPConfig) { c.MaxRequestBodySize = 5 },
		"max_buffered_bytes is 1: it must hold at least":      func(c *HTTPConfig) { c.MaxBufferedBytes = 1 },
		`compression_algorithms has "zstd"`:                   func(c *HTTPConfig) { c.CompressionAlgorithms = []string{"", "zstd"} },
		"max_sessions is 0: it must be at least 1":            func(c *HTTPConfig) { c.MaxSessions = 0 },
		"max_requests is -1: it must be at least 1":           func(c *HTTPConfig) { c.MaxRequests = -1 },
		"channel_timeout is 0s: it must be above zero":        func(c *HTTPConfig) { c.ChannelTimeout = 0 },
	} {
		cfg := createDefaultConfig().(*Config)
		change(cfg.Protocols.HTTP.GetOrInsertDefault())
		assert.ErrorContains(t, confmap.Validate(cfg), want)
	}
}
