// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func env(pairs ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) string { return m[k] }
}

func TestFromEnv_Specification(t *testing.T) {
	s, err := FromEnv(env())
	require.NoError(t, err)
	assert.Equal(t, "http://localhost:4318/v1/traces", s.Signals[Traces].URL.String())
	assert.Equal(t, "http://localhost:4318/v1/logs", s.Signals[Logs].URL.String())
	assert.Equal(t, "http://localhost:4318/v1/metrics", s.Signals[Metrics].URL.String())
	assert.Equal(t, 10*time.Second, s.Signals[Traces].Timeout)
	assert.False(t, s.Off())

	s, err = FromEnv(env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"))
	require.NoError(t, err)
	assert.Equal(t, "http://localhost:4317", s.Signals[Metrics].URL.String())

	s, err = FromEnv(env(
		"OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example/base/",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://10.0.0.1:9/own",
		"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc",
		"OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20s3cret, x-tenant = a%2Cb",
		"OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-tenant=c",
		"OTEL_EXPORTER_OTLP_TIMEOUT", "2500",
		"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip",
		"OTEL_METRICS_EXPORTER", "prometheus",
		"OTEL_LOGS_EXPORTER", "console, otlp",
	))
	require.NoError(t, err)
	assert.Equal(t, "http://10.0.0.1:9/own", s.Signals[Traces].URL.String(), "a signal's endpoint is used as it is")
	assert.Equal(t, "https://collector.example/base/v1/metrics", s.Signals[Metrics].URL.String())
	assert.Equal(t, "https://collector.example/base/", s.Signals[Logs].URL.String())
	assert.Equal(t, GRPC, s.Signals[Logs].Protocol)
	assert.Equal(t, map[string]string{"authorization": "Bearer s3cret", "x-tenant": "a,b"}, s.Signals[Traces].Headers)
	assert.Equal(t, map[string]string{"x-tenant": "c"}, s.Signals[Metrics].Headers, "a signal's headers replace the common ones")
	assert.Equal(t, 2500*time.Millisecond, s.Signals[Logs].Timeout)
	assert.True(t, s.Signals[Traces].Gzip)
	assert.False(t, s.Signals[Logs].Gzip)
	assert.True(t, s.Signals[Metrics].Off)
	assert.False(t, s.Signals[Logs].Off)

	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s)} {
		assert.NotContains(t, text, "s3cret", "headers are secret")
	}
}

func TestFromEnv_NoScheme(t *testing.T) {
	for endpoint, want := range map[string]string{
		"localhost:4317":        "http://localhost:4317",
		"127.0.0.1:4317":        "http://127.0.0.1:4317",
		"[::1]:4317":            "http://[::1]:4317",
		"collector.example:443": "https://collector.example:443",
	} {
		s, err := FromEnv(env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"))
		require.NoError(t, err)
		assert.Equal(t, want, s.Signals[Traces].URL.String())
	}
	s, err := FromEnv(env("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "OTEL_EXPORTER_OTLP_INSECURE", "true"))
	require.NoError(t, err)
	assert.Equal(t, "http://collector:4318/v1/traces", s.Signals[Traces].URL.String())
}

func TestFromEnv_InvalidValues(t *testing.T) {
	for variable, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_PROTOCOL":            "http/json",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":     "ftp://user:s3cret@host/",
		"OTEL_EXPORTER_OTLP_ENDPOINT":            "http://user:s3cret@ho st",
		"OTEL_EXPORTER_OTLP_HEADERS":             "a=b,s3cret",
		"OTEL_EXPORTER_OTLP_LOGS_HEADERS":        "a=s3cret%zz",
		"OTEL_EXPORTER_OTLP_METRICS_HEADERS":     "a=s3cret%01",
		"OTEL_EXPORTER_OTLP_TIMEOUT":             "10s",
		"OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": "zstd",
		"OTEL_EXPORTER_OTLP_INSECURE":            "yes",
		"OTEL_SDK_DISABLED":                      "1",
		"OTEL_EXPORTER_OTLP_CLIENT_KEY":          "/key.pem",
	} {
		_, err := FromEnv(env(variable, value))
		if assert.Error(t, err, variable) {
			assert.Contains(t, err.Error(), variable)
			assert.NotContains(t, err.Error(), "s3cret")
			assert.NotContains(t, err.Error(), "\n")
		}
	}
}

func TestFromEnvOff(t *testing.T) {
	s, err := FromEnv(env("OTEL_SDK_DISABLED", "true"))
	require.NoError(t, err)
	assert.True(t, s.Off())
	assert.Equal(t, "nowhere", s.Signals[Traces].String())
}
