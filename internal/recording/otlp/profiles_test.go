// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
)

// profilesOf returns one request. Each profile in it has one sample with one of the given values.
func profilesOf(t *testing.T, values ...uint64) profile.Profiles {
	t.Helper()
	r := pcommon.NewResource()
	r.Attributes().PutStr("service.name", "trainer")
	w := profile.NewWriter(profile.Settings{Resource: r, ID: func(n uint64) [16]byte { return [16]byte{byte(n + 1)} }})
	for _, v := range values {
		w.Begin(profile.Kind{Samples: profile.Type{Name: "gpu_samples", Unit: "count"}})
		w.Add(&profile.Sample{Value: v, Stack: []profile.Location{{Lines: []profile.Line{{Function: profile.Function{Name: fmt.Sprint("f", v)}}}}}})
	}
	all := w.Take()
	require.Len(t, all, 1)
	return all[0]
}

func valuesOf(t *testing.T, requests []profile.Profiles) (values []int64) {
	t.Helper()
	for _, s := range profiletest.Samples(t, requests...) {
		assert.Equal(t, "trainer", s.Resource["service.name"])
		assert.Equal(t, []string{fmt.Sprint("f", s.Value)}, s.Stack, "each request has its own tables")
		values = append(values, s.Value)
	}
	return values
}

func TestProfiles_Setting(t *testing.T) {
	for v, want := range map[string]bool{"": false, "0": false, "off": false, "1": true, "True": true, "on": true} {
		s := testSettings(t, "GPUFLIGHT_PROFILES", v)
		assert.Equal(t, want, s.Sends(Profiles), v)
		assert.True(t, s.Sends(Logs))
	}
	_, err := FromEnv(env("GPUFLIGHT_PROFILES", "maybe"))
	require.EqualError(t, err, `GPUFLIGHT_PROFILES is "maybe"; it must be true or false`)

	s := testSettings(t, "GPUFLIGHT_PROFILES", "1", "OTEL_PROFILES_EXPORTER", "none")
	assert.False(t, s.Sends(Profiles))
	s = testSettings(t, "OTEL_TRACES_EXPORTER", "none", "OTEL_LOGS_EXPORTER", "none", "OTEL_METRICS_EXPORTER", "none")
	assert.True(t, s.Off())
	s.Profiles = true
	assert.False(t, s.Off())
	s = testSettings(t, "GPUFLIGHT_PROFILES", "1", "OTEL_SDK_DISABLED", "true")
	assert.True(t, s.Off())

	// Profiles that are off are discarded and not counted as unsent.
	c := start(t, testSettings(t), nil)
	c.Profiles(profilesOf(t, 1))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	assert.Zero(t, c.Stats()[Profiles].Sent+c.Stats()[Profiles].UnsentTotal())
}

func TestEndpointOfProfiles(t *testing.T) {
	s := testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318/base")
	assert.Equal(t, "http://a:4318/base/v1development/profiles", s.Signals[Profiles].URL.String())
	assert.Equal(t, "http://a:4318/base/v1/logs", s.Signals[Logs].URL.String())
	s = testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", "http://pyroscope:4040/otlp/x",
		"OTEL_EXPORTER_OTLP_PROFILES_HEADERS", "x-scope-orgid=me")
	assert.Equal(t, "http://pyroscope:4040/otlp/x", s.Signals[Profiles].URL.String())
	assert.Equal(t, map[string]string{"x-scope-orgid": "me"}, s.Signals[Profiles].Headers)
	assert.Empty(t, s.Signals[Traces].Headers)
}

// collecting is an HTTP endpoint that accepts profiles, or answers with a status code.
type collecting struct {
	code int

	mu       sync.Mutex
	paths    map[string]int
	requests []profile.Profiles
}

func (c *collecting) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paths[q.URL.Path]++
	if q.URL.Path != "/v1development/profiles" {
		return // it accepts the other signals
	}
	if c.code != 0 {
		w.WriteHeader(c.code)
		return
	}
	p, bad := profile.FromProto(body)
	if err != nil || bad != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if p.Count() > 0 {
		c.requests = append(c.requests, p)
	}
}

func profileServer(t *testing.T, code int) (*collecting, string) {
	t.Helper()
	c := &collecting{code: code, paths: map[string]int{}}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	return c, server.URL
}

func TestProfiles_Protocols(t *testing.T) {
	to, address := profileServer(t, 0)
	c := start(t, testSettings(t, "GPUFLIGHT_PROFILES", "1", "OTEL_EXPORTER_OTLP_ENDPOINT", address), nil)
	require.NoError(t, c.Check(within(t, time.Minute)))
	for _, p := range []profile.Profiles{profilesOf(t, 1, 2), profilesOf(t, 3), profilesOf(t, 4)} {
		c.Profiles(p)
	}
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	assert.Equal(t, []int64{1, 2, 3, 4}, valuesOf(t, to.requests))
	assert.Equal(t, uint64(4), c.Stats()[Profiles].Sent, "profiles, as servers count them")

	server := &profiletest.Server{}
	c = start(t, testSettings(t, "GPUFLIGHT_PROFILES", "1", "OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL", "grpc",
		"OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", "http://"+server.Serve(t), "OTEL_EXPORTER_OTLP_PROFILES_COMPRESSION", "gzip"), nil)
	c.Profiles(profilesOf(t, 1, 2))
	c.Profiles(profilesOf(t, 3))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	assert.Equal(t, []int64{1, 2, 3}, valuesOf(t, server.Requests()))

	server = &profiletest.Server{Rejected: 1}
	c = start(t, testSettings(t, "GPUFLIGHT_PROFILES", "1", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+server.Serve(t)), nil)
	c.Profiles(profilesOf(t, 1, 2))
	require.ErrorContains(t, c.Shutdown(within(t, time.Minute)), "1 profile was not sent")
	assert.Equal(t, uint64(1), c.Stats()[Profiles].Sent)
	assert.Equal(t, map[string]uint64{ReasonRejected: 1}, c.Stats()[Profiles].Unsent)
}

// An endpoint without support for the signal causes one log message. The rejected items are
// counted.
func TestProfiles_Unsupported(t *testing.T) {
	_, grpc := sink(t, "") // without such a service
	_, missing := profileServer(t, http.StatusNotFound)
	_, never := profileServer(t, http.StatusNotImplemented)
	for name, pairs := range map[string][]string{
		"gRPC": {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://" + grpc.Endpoint()},
		"404":  {"OTEL_EXPORTER_OTLP_ENDPOINT", missing},
		"501":  {"OTEL_EXPORTER_OTLP_ENDPOINT", never},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c := start(t, testSettings(t, append(pairs, "GPUFLIGHT_PROFILES", "1")...), slog.New(slog.NewTextHandler(&log, nil)))
			require.NoError(t, c.Check(within(t, time.Minute)))
			for range 5 {
				c.Profiles(profilesOf(t, 1, 2))
			}
			c.Logs(logRecords(3))
			require.NoError(t, c.Shutdown(within(t, time.Minute)))
			stats := c.Stats()
			assert.Zero(t, stats[Profiles].Sent)
			assert.Equal(t, map[string]uint64{ReasonUnsupported: 10}, stats[Profiles].Unsent)
			assert.NotEmpty(t, stats[Profiles].LastError)
			assert.Equal(t, uint64(3), stats[Logs].Sent)
			assert.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
			assert.Contains(t, log.String(), "the endpoint does not support profiles")
		})
	}
}

// Check sends a request without profiles. A store may reject it, but an endpoint must exist.
func TestCheckOfProfiles(t *testing.T) {
	_, strict := profileServer(t, http.StatusBadRequest)
	c := start(t, testSettings(t, "GPUFLIGHT_PROFILES", "1", "OTEL_EXPORTER_OTLP_ENDPOINT", strict), nil)
	require.NoError(t, c.Check(within(t, time.Minute)))
	c.Profiles(profilesOf(t, 1))
	require.Error(t, c.Shutdown(within(t, time.Minute)))
	assert.Equal(t, map[string]uint64{ReasonRefused: 1}, c.Stats()[Profiles].Unsent)

	c = start(t, testSettings(t, "GPUFLIGHT_PROFILES", "1", "OTEL_EXPORTER_OTLP_ENDPOINT", strict, "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", "http://"+nowhere(t)), nil)
	require.ErrorContains(t, c.Check(within(t, time.Minute)), "profiles to http://")
}

// The same answer for another signal is an error.
func TestLogs_Unsupported(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", server.URL), nil)
	c.Logs(logRecords(3))
	require.Error(t, c.Shutdown(within(t, time.Minute)))
	assert.Equal(t, map[string]uint64{ReasonRefused: 3}, c.Stats()[Logs].Unsent)
}

func TestProfilesInAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	c := start(t, testSettings(t, "GPUFLIGHT_PROFILES", "1", "GPUFLIGHT_OUTPUT", path), nil)
	c.Profiles(profilesOf(t, 1, 2))
	c.Logs(logRecords(3))
	c.Profiles(profilesOf(t, 3))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("{\"resourceProfiles\":[{\"resource\":7}]}\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())

	var requests []profile.Profiles
	stats, err := ReadFile(path, Handler{Profiles: func(p profile.Profiles) { requests = append(requests, p) }})
	require.NoError(t, err)
	assert.Equal(t, []int64{1, 2, 3}, valuesOf(t, requests))
	assert.Equal(t, 1, stats.Bad)
	stats, err = ReadFile(path, Handler{})
	require.NoError(t, err)
	assert.Equal(t, 1, stats.Bad, "for those who do not want profiles they are no bad lines")
}
