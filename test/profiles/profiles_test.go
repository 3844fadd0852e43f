// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package profiles sends deep-profiling windows as profiles through the distribution: over both
// protocols, to other endpoints, and into and out of a file. It also tests a Collector that does
// not support the signal.
package profiles

import (
	"context"
	"encoding/json"
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

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deepprofile"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// gate enables the signal in the Collector.
const gate = "--feature-gates=service.profilesSupport"

// limit bounds every action of a Collector; nothing is measured.
const limit = 2 * time.Minute

// window returns a window of both engines with enough locations for several requests.
func window() []profile.Profiles {
	w := &deepprofile.Window{}
	for _, part := range []deepprofile.Part{
		{Engine: cupti.EnginePCSampling, PeriodLog2: 12, Start: time.Unix(100, 0), End: time.Unix(101, 0)},
		{Engine: cupti.EngineSASS, Start: time.Unix(102, 0), End: time.Unix(103, 0)},
	} {
		names := []string{"smsp__pcsamp_warps_issue_stalled_wait", "smsp__pcsamp_warps_issue_stalled_wait_not_issued"}
		if part.Engine == cupti.EngineSASS {
			names = []string{"smsp__sass_inst_executed", "smsp__sass_thread_inst_executed"}
		}
		for i := range 2500 {
			kernel := gpuevent.NewKernelName(fmt.Sprintf("gemm<%d>(float const*)", i/500))
			part.Figures = append(part.Figures, deepprofile.Figure{
				What: names[i%2], Value: uint64(i + 1), CRC: uint64(1 + i/1000), PC: gpuevent.Some(int64(i % 500 * 16)),
				At: cubin.Location{Function: kernel, Frames: []cubin.NamedFrame{
					{Function: gpuevent.NewKernelName("load(float const*)"), File: "/src/load.cuh", Line: 3}, {Function: kernel, File: "/src/gemm.cu", Line: i % 500},
				}},
				Device: gpuevent.Some(int64(i % 2)), Correlation: gpuevent.Some(int64(i % 3)),
			})
		}
		w.Parts = append(w.Parts, &part)
	}
	r := pcommon.NewResource()
	r.Attributes().PutStr(semconv.ServiceName, "trainer")
	r.Attributes().PutInt(semconv.ProcessPID, 4711)
	r.Attributes().PutEmptySlice(semconv.HostIP).AppendEmpty().SetStr("10.0.0.1")
	return w.Profiles(&deepprofile.Session{
		Resource: r, Devices: []gpuevent.Device{{Index: 1, UUID: "GPU-1"}},
		Attributes: []profile.Attribute{{Key: semconv.CUDADeepWindowID, Int: 3, IsInt: true}},
		ID:         func(n uint64) [16]byte { return [16]byte{1, byte(n >> 8), byte(n)} },
		Launch: func(c gpuevent.Int) (gpuevent.Ref, []string) {
			ref := gpuevent.Ref{Trace: gpuevent.TraceID{1}, Span: gpuevent.SpanID{byte(c.V + 1)}}
			if c.V == 0 {
				return ref, nil
			}
			return ref, []string{"forward", "train_step"}
		},
	})
}

// digest returns one line per sample with all its data.
func digest(t testing.TB, requests ...profile.Profiles) map[string]int {
	t.Helper()
	m := map[string]int{}
	for _, s := range profiletest.Samples(t, requests...) {
		text, err := json.Marshal(s)
		require.NoError(t, err)
		m[string(text)]++
	}
	return m
}

// start starts the Collector with pipelines of profiles and waits until it is ready. A pipeline of
// logs lets it start without the gate.
func start(t *testing.T, receivers, exporters map[string]any, pipelines map[string]any, args ...string) *process.Process {
	t.Helper()
	config := map[string]any{
		"receivers": receivers, "exporters": exporters,
		"processors": map[string]any{"memory_limiter": map[string]any{"check_interval": "1s", "limit_mib": 1024}},
		"service": map[string]any{
			"telemetry": map[string]any{"metrics": map[string]any{"level": "none"}}, "pipelines": pipelines,
		},
	}
	text, err := json.Marshal(config) // which is YAML too
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	p := process.Start(t, process.Collector.Find(t), append([]string{"--config", path}, args...)...)
	p.WaitOutput(process.Ready, limit)
	return p
}

// otlpReceiver listens on both protocols.
func otlpReceiver(grpc, http string) map[string]any {
	return map[string]any{"protocols": map[string]any{"grpc": map[string]any{"endpoint": grpc}, "http": map[string]any{"endpoint": http}}}
}

// client sends to an endpoint, which need not accept traces and metrics.
func client(t *testing.T, logger *slog.Logger, env map[string]string) *otlp.Client {
	t.Helper()
	env["GPUFLIGHT_PROFILES"], env["OTEL_TRACES_EXPORTER"], env["OTEL_METRICS_EXPORTER"] = "1", "none", "none"
	s, err := otlp.FromEnv(func(name string) string { return env[name] })
	require.NoError(t, err)
	c, err := otlp.New(s, logger)
	require.NoError(t, err)
	return c
}

// send sends requests and closes the client.
func send(t *testing.T, c *otlp.Client, requests []profile.Profiles) error {
	t.Helper()
	for _, p := range requests {
		c.Profiles(p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return c.Shutdown(ctx)
}

// httpSink accepts profiles over HTTP.
type httpSink struct {
	mu       sync.Mutex
	requests []profile.Profiles
	bad      []string
}

func (s *httpSink) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	var p profile.Profiles
	if err == nil {
		p, err = profile.FromProto(body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || q.URL.Path != "/v1development/profiles" {
		s.bad = append(s.bad, fmt.Sprint(q.URL.Path, ": ", err))
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.requests = append(s.requests, p)
}

func (s *httpSink) taken() []profile.Profiles {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]profile.Profiles(nil), s.requests...)
}

func count(requests []profile.Profiles) (n int) {
	for _, p := range requests {
		n += p.Count()
	}
	return n
}

// noQueue disables the queue, so that an exporter returns the result of its request.
func noQueue(more map[string]any) map[string]any {
	more["sending_queue"] = map[string]any{"enabled": false}
	more["compression"] = "none"
	return more
}

func TestCollector_Profiles(t *testing.T) {
	requests := window()
	require.Greater(t, len(requests), 1)
	want, profiles := digest(t, requests...), count(requests)
	require.Len(t, want, 5_000, "each sample differs from the others")

	for _, protocol := range []otlp.Protocol{otlp.HTTP, otlp.GRPC} {
		t.Run(string(protocol), func(t *testing.T) {
			grpcSink, overHTTP := &profiletest.Server{}, &httpSink{}
			server := httptest.NewServer(overHTTP)
			t.Cleanup(server.Close)
			grpc, http := process.FreePort(t), process.FreePort(t)
			file := filepath.Join(t.TempDir(), "profiles.jsonl")
			p := start(t,
				map[string]any{"otlp": otlpReceiver(grpc, http)},
				map[string]any{
					"otlp_grpc": noQueue(map[string]any{"endpoint": grpcSink.Serve(t), "tls": map[string]any{"insecure": true}}),
					"otlp_http": noQueue(map[string]any{"endpoint": server.URL}),
					"file":      map[string]any{"path": file},
					"debug":     map[string]any{"verbosity": "basic"},
				},
				map[string]any{"profiles": map[string]any{
					"receivers": []string{"otlp"}, "processors": []string{"memory_limiter"}, "exporters": []string{"otlp_grpc", "otlp_http", "file", "debug"},
				}}, gate)
			endpoint := http
			if protocol == otlp.GRPC {
				endpoint = grpc
			}
			c := client(t, nil, map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": string(protocol),
				"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_LOGS_EXPORTER": "none",
			})
			require.NoError(t, c.Check(t.Context()))
			require.NoError(t, send(t, c, window()))
			assert.Equal(t, uint64(profiles), c.Stats()[otlp.Profiles].Sent)
			p.Stop(limit) // flushes the file

			assert.Equal(t, want, digest(t, grpcSink.Requests()...))
			assert.Equal(t, want, digest(t, overHTTP.taken()...))
			assert.Empty(t, overHTTP.bad)
			var written []profile.Profiles
			stats, err := otlp.ReadFile(file, otlp.Handler{Profiles: func(p profile.Profiles) { written = append(written, p) }})
			require.NoError(t, err)
			assert.Zero(t, stats.Bad)
			assert.Equal(t, want, digest(t, written...))
		})
	}
}

// The Collector's file receiver reads a file of our client.
func TestCollector_ProfilesFromFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.otlp.jsonl")
	require.NoError(t, send(t, client(t, nil, map[string]string{"GPUFLIGHT_OUTPUT": file}), window()))
	sink := &httpSink{}
	server := httptest.NewServer(sink)
	t.Cleanup(server.Close)
	p := start(t,
		map[string]any{"otlp_json_file": map[string]any{"include": []string{file}, "start_at": "beginning"}},
		map[string]any{"otlp_http": noQueue(map[string]any{"endpoint": server.URL})},
		map[string]any{"profiles": map[string]any{"receivers": []string{"otlp_json_file"}, "exporters": []string{"otlp_http"}}}, gate)
	want, profiles := digest(t, window()...), count(window())
	process.Eventually(t, limit, "all profiles", func() bool { return count(sink.taken()) >= profiles })
	p.Stop(limit)
	assert.Equal(t, want, digest(t, sink.taken()...))
	assert.Empty(t, sink.bad)
}

// A Collector without the gate does not support the signal: the client logs one line and counts the
// loss.
func TestCollector_WithoutFeatureGate(t *testing.T) {
	grpc, http := process.FreePort(t), process.FreePort(t)
	p := start(t, map[string]any{"otlp": otlpReceiver(grpc, http)}, map[string]any{"nop": map[string]any{}},
		map[string]any{"logs": map[string]any{"receivers": []string{"otlp"}, "exporters": []string{"nop"}}})
	for protocol, endpoint := range map[otlp.Protocol]string{otlp.HTTP: http, otlp.GRPC: grpc} {
		var log strings.Builder
		c := client(t, slog.New(slog.NewTextHandler(&log, nil)), map[string]string{
			"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": string(protocol),
		})
		require.NoError(t, c.Check(t.Context()), protocol)
		require.NoError(t, send(t, c, window()), protocol)
		stats := c.Stats()[otlp.Profiles]
		assert.Zero(t, stats.Sent)
		assert.Equal(t, map[string]uint64{otlp.ReasonUnsupported: uint64(count(window()))}, stats.Unsent)
		assert.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		assert.Contains(t, log.String(), "the endpoint does not support profiles")
	}
	p.Stop(limit)
}
