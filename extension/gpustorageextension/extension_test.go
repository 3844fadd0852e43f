// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package gpustorageextension

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpuflight/gpuflight/extension/gpustorageextension/internal/metadata"
	"github.com/gpuflight/gpuflight/extension/gpustorageextension/internal/metadatatest"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/testing/trainsim"
	"github.com/gpuflight/gpuflight/semconv"
)

func config(t *testing.T, backends map[string]any) *Config {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	require.NoError(t, confmap.NewFromStringMap(map[string]any{"backends": backends}).Unmarshal(cfg))
	return cfg
}

func start(t *testing.T, dir string, retention map[string]any) (*gpuStorage, *componenttest.Telemetry) {
	t.Helper()
	tel := componenttest.NewTelemetry()
	set := extensiontest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	cfg := config(t, map[string]any{"a": map[string]any{"duckdb": map[string]any{"directory": dir}, "retention": retention}})
	require.NoError(t, cfg.Validate())
	ext, err := NewFactory().Create(t.Context(), set, cfg)
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() {
		require.NoError(t, ext.Shutdown(context.Background()))
		require.NoError(t, tel.Shutdown(context.Background()))
	})
	return ext.(*gpuStorage), tel
}

func spans(session string, n int) []*store.Batch {
	b := &store.Batch{Session: session}
	for i := range n {
		b.Spans = append(b.Spans, store.Span{StartNs: int64(i + 1), EndNs: int64(i + 2), Span: store.SpanID(i + 1)})
	}
	return []*store.Batch{b}
}

func TestConfig_Errors(t *testing.T) {
	duck := func(settings map[string]any) map[string]any { return map[string]any{"duckdb": settings} }
	click := func(settings map[string]any) map[string]any { return map[string]any{"clickhouse": settings} }
	for _, tt := range []struct {
		name     string
		backends map[string]any
		want     string
	}{
		{"no kind", map[string]any{"a": map[string]any{}}, "backends::a has no kind of store: set duckdb or clickhouse"},
		{"two kinds", map[string]any{"a": map[string]any{"duckdb": map[string]any{}, "clickhouse": map[string]any{}}},
			"backends::a has two kinds of store: set duckdb or clickhouse"},
		{"no endpoint", map[string]any{"a": click(nil)}, "backends::a::clickhouse::endpoint is empty: write for example tcp://127.0.0.1:9000"},
		{"no URL", map[string]any{"a": click(map[string]any{"endpoint": "127.0.0.1:9000"})},
			"backends::a::clickhouse::endpoint is not a URL with tcp, http or https: write for example tcp://127.0.0.1:9000"},
		{"password in the endpoint", map[string]any{"a": click(map[string]any{"endpoint": "tcp://me:secret@127.0.0.1:9000"})},
			"backends::a::clickhouse::endpoint has credentials: write them in username and password"},
		{"password in the options", map[string]any{"a": click(map[string]any{"endpoint": "tcp://127.0.0.1:9000?password=secret"})},
			"backends::a::clickhouse::endpoint has credentials: write them in username and password"},
		{"database in the endpoint", map[string]any{"a": click(map[string]any{"endpoint": "tcp://127.0.0.1:9000/gpu"})},
			"backends::a::clickhouse::endpoint has a database: write it in database"},
		{"certificates without TLS", map[string]any{"a": click(map[string]any{"endpoint": "http://127.0.0.1:8123", "tls": map[string]any{"ca_file": "ca.pem"}})},
			"backends::a::clickhouse::tls is set for an endpoint with http: write https"},
		{"no timeout", map[string]any{"a": click(map[string]any{"endpoint": "tcp://127.0.0.1:9000", "timeout": "0s"})},
			"backends::a::clickhouse::timeout is 0s: it must be positive"},
		{"disk of a server", map[string]any{"a": map[string]any{
			"clickhouse": map[string]any{"endpoint": "tcp://127.0.0.1:9000"}, "retention": map[string]any{"min_free": "1GiB"},
		}}, "backends::a::retention::min_free is for DuckDB: remove it, because the disk belongs to the server"},
		{"no directory", map[string]any{"a": duck(map[string]any{"directory": ""})}, "backends::a::duckdb::directory is empty: write for example ./gpuflight-state/store"},
		{"same directory", map[string]any{"a": duck(map[string]any{"directory": "x"}), "b": duck(map[string]any{"directory": "./x"})},
			"backends::b::duckdb::directory is that of backends::a: give each store a directory of its own"},
		{"little memory", map[string]any{"a": duck(map[string]any{"memory_limit": "1MiB"})}, "backends::a::duckdb::memory_limit is 1048576: it must be at least 64MiB"},
		{"no threads", map[string]any{"a": duck(map[string]any{"threads": 0})}, "backends::a::duckdb::threads is 0: it must be between 1 and 256"},
		{"negative age", map[string]any{"a": map[string]any{"duckdb": map[string]any{}, "retention": map[string]any{"max_age": "-1h"}}},
			"backends::a::retention::max_age is -1h0m0s: it must be positive, or 0 for no limit"},
		{"raw age", map[string]any{"a": map[string]any{"duckdb": map[string]any{}, "retention": map[string]any{"max_age": "1h", "raw_max_age": "1h"}}},
			"backends::a::retention::raw_max_age is 1h0m0s: it must be below max_age, which is 1h0m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.EqualError(t, config(t, tt.backends).Validate(), tt.want)
		})
	}
}

func TestConfig_Defaults(t *testing.T) {
	b := config(t, nil).backends()["default"]
	assert.Equal(t, DuckDBConfig{Directory: "gpuflight-state/store", MemoryLimit: 256 << 20, Threads: duckstore.DefaultThreads()}, *b.DuckDB.Get())
	b = config(t, map[string]any{"a": map[string]any{"duckdb": map[string]any{"threads": 3}}}).backends()["a"]
	assert.Equal(t, 3, b.DuckDB.Get().Threads)
	assert.Equal(t, RetentionConfig{MinFree: 1 << 30}, b.Retention)
}

func TestConfig_ClickHouse(t *testing.T) {
	cfg := config(t, map[string]any{"a": map[string]any{
		"clickhouse": map[string]any{"endpoint": "tcp://ch:9000", "password": "no one's"}, "retention": map[string]any{"max_age": "1h"},
	}})
	require.NoError(t, cfg.Validate())
	b := cfg.Backends["a"]
	assert.False(t, b.DuckDB.HasValue())
	assert.Equal(t, RetentionConfig{MaxAge: time.Hour}, b.Retention)
	c := b.ClickHouse.Get()
	assert.Equal(t, "no one's", string(c.Password))
	assert.Equal(t, []any{"default", "default", true, 30 * time.Second, false}, []any{c.Username, c.Database, c.CreateSchema, c.Timeout, c.TLS.HasValue()})
	assert.NotContains(t, fmt.Sprintf("%v %+v", c, c), "no one")
}

// TestBackend_NoServer checks that the error of a start is one sentence without the password.
func TestBackend_NoServer(t *testing.T) {
	cfg := config(t, map[string]any{"a": map[string]any{"clickhouse": map[string]any{"endpoint": "tcp://127.0.0.1:1", "password": "secret"}}})
	ext, err := NewFactory().Create(t.Context(), extensiontest.NewNopSettings(metadata.Type), cfg)
	require.NoError(t, err)
	err = ext.Start(t.Context(), componenttest.NewNopHost())
	require.ErrorContains(t, err, "backend a: create tables: temporarily unavailable: dial tcp 127.0.0.1:1: connect: connection refused")
	assert.NotContains(t, err.Error(), "\n")
	assert.NotContains(t, err.Error(), "secret")
}

func TestBackend_Names(t *testing.T) {
	g, _ := start(t, t.TempDir(), nil)
	only, err := g.Backend("")
	require.NoError(t, err)
	named, err := g.Backend("a")
	require.NoError(t, err)
	assert.Same(t, only, named)
	_, err = g.Backend("b")
	assert.EqualError(t, err, `backend "b" is not configured: set backend to one of a`)
}

func TestBackend_DirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	start(t, dir, nil)
	cfg := config(t, map[string]any{"a": map[string]any{"duckdb": map[string]any{"directory": dir}}})
	ext, err := NewFactory().Create(t.Context(), extensiontest.NewNopSettings(metadata.Type), cfg)
	require.NoError(t, err)
	err = ext.Start(t.Context(), componenttest.NewNopHost())
	require.ErrorIs(t, err, store.ErrInUse)
	assert.NotContains(t, err.Error(), "\n")
}

// training returns a session of 40 kernels in 10 steps.
func training(session string, start, kernelNs int64) *store.Batch {
	batch := &store.Batch{
		Session: session, Lanes: []store.Lane{{}, {Key: 1, Device: "GPU-1"}}, Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "k"}},
		Places: []store.Place{{}}, Stacks: []store.Stack{{}}, Extras: []store.Extra{{}},
		Origins: []store.Origin{{}, {Key: 1, Resource: store.Attrs{
			{Key: semconv.K8sNamespaceName, Value: store.Value{Kind: store.KindString, Str: "ml"}},
			{Key: semconv.ServiceName, Value: store.Value{Kind: store.KindString, Str: "train"}},
		}}},
	}
	for i := range int64(40) {
		at := start + i*1e6
		batch.Ops = append(batch.Ops, store.Op{
			StartNs: at, EndNs: at + kernelNs, Span: store.SpanID(i + 1), Lane: 1, Shape: 1, Origin: 1,
			LaunchStartNs: store.Some(at - 1e4), LaunchEndNs: store.Some(at - 5e3), QueueNs: store.Some(int64(5e3)),
		})
	}
	for i := range int64(10) {
		batch.Spans = append(batch.Spans, store.Span{
			StartNs: start + i*4e6 - 1e5, EndNs: start + i*4e6 + 3e6, Span: store.SpanID(100 + i), Name: "step", Operation: semconv.CUDAOperationScope, Origin: 1,
		})
	}
	return batch
}

// sealAll seals all sessions, so that they are analysed.
func (b *backend) sealAll(t *testing.T) {
	t.Helper()
	b.active.mu.Lock()
	later := b.active.now().Add(sealAfter + time.Minute)
	b.active.now = func() time.Time { return later }
	b.active.mu.Unlock()
	b.seal(t.Context())
}

// TestBackend_Analyses seals a session and expects the time of its device in metrics. The Collector has been
// restarted since the last data, before or after it sealed the session.
func TestBackend_Analyses(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprintf("sealed %v", sealed), func(t *testing.T) { analyses(t, sealed) })
	}
}

func analyses(t *testing.T, sealed bool) {
	dir := t.TempDir()
	g, _ := start(t, dir, nil)
	before := g.backends["a"]
	before.stop()
	before.done.Wait()
	_, err := before.Write(t.Context(), []*store.Batch{training("s", 1e18, 4e5)})
	require.NoError(t, err)
	if sealed {
		before.sealAll(t)
		require.Len(t, before.ended, 1)
	}
	require.NoError(t, g.Shutdown(t.Context()))
	g.backends = nil

	g, tel := start(t, dir, nil)
	b := g.backends["a"]
	assert.Empty(t, b.active.grown(100, 64))
	assert.Equal(t, map[session]int64{{"", "s"}: 40}, b.active.grown(40, 64))
	b.sealAll(t)
	steps := func() bool {
		_, err := tel.GetMetric("otelcol_extension_gpu_storage_steps")
		return err == nil
	}
	require.Eventually(t, steps, time.Minute, 10*time.Millisecond)
	service, namespace := attribute.String(semconv.ServiceName, "train"), attribute.String(semconv.ServiceNamespace, "ml")
	set := func(more ...attribute.KeyValue) attribute.Set {
		return attribute.NewSet(append(more, attribute.String("backend", "a"), namespace, service)...)
	}
	metadatatest.AssertEqualExtensionGpuStorageSteps(t, tel, []metricdata.DataPoint[int64]{{Attributes: set(), Value: 10}}, metricdatatest.IgnoreTimestamp())
	got, err := tel.GetMetric("otelcol_extension_gpu_storage_device_time")
	require.NoError(t, err)
	seconds := map[string]float64{}
	for _, p := range got.Data.(metricdata.Sum[float64]).DataPoints {
		state, _ := p.Attributes.Value("state")
		seconds[state.AsString()] = p.Value
	}
	got, err = tel.GetMetric("otelcol_extension_gpu_storage_step_time")
	require.NoError(t, err)
	assert.InDelta(t, 39e-3+4e-4, got.Data.(metricdata.Sum[float64]).DataPoints[0].Value, 1e-9)
	assert.InDelta(t, 40*4e-4, seconds["compute"], 1e-9)
	assert.InDelta(t, 39*6e-4, seconds["host"]+seconds["launch"]+seconds["latency"], 1e-9)
	require.Eventually(t, func() bool {
		value, err := b.Store.(store.Scanner).KeptValue(t.Context(), "", "s", waiting)
		require.NoError(t, err)
		return value == nil
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, g.Shutdown(t.Context()))
	g.backends = nil

	g, _ = start(t, dir, nil)
	assert.Zero(t, g.backends["a"].active.len(), "it is not analysed again")
}

// TestBackend_AnalysesMissingWork expects no metrics of a session that was recorded for a part of the time.
func TestBackend_AnalysesMissingWork(t *testing.T) {
	g, tel := start(t, t.TempDir(), nil)
	b := g.backends["a"]
	missing := training("missing", 1e18, 4e5)
	missing.Logs = []store.Log{{UID: store.UID{1}, TimeNs: 1e18 + 1, Event: semconv.EventCUDACapture, Origin: 1, Attrs: store.Attrs{
		{Key: semconv.CUDACaptureRecordedRatio, Value: store.Value{Kind: store.KindDouble, Double: 0.2}},
	}}}
	_, err := b.Write(t.Context(), []*store.Batch{missing})
	require.NoError(t, err)
	b.keepParts(t.Context(), session{"", "missing"}, 40, true)
	_, err = tel.GetMetric("otelcol_extension_gpu_storage_device_time")
	require.Error(t, err)
	_, err = tel.GetMetric("otelcol_extension_gpu_storage_steps")
	require.Error(t, err)

	_, err = b.Write(t.Context(), []*store.Batch{training("whole", 1e18, 4e5)})
	require.NoError(t, err)
	b.keepParts(t.Context(), session{"", "whole"}, 40, true)
	assert.Equal(t, int64(10), value(t, tel, "extension_gpu_storage_steps"))
}

// TestBackend_NoKeeper expects that a session counts once in a store that keeps no parts.
func TestBackend_NoKeeper(t *testing.T) {
	g, tel := start(t, t.TempDir(), nil)
	memory := storetest.NewMemory()
	b := &backend{
		opened: opened{Store: memory}, api: memory, name: "a", logger: zap.NewNop(), telemetry: g.backends["a"].telemetry,
		active: newActivity(), jobs: map[job]struct{}{}, stragglers: map[straggler]struct{}{},
	}
	_, err := memory.Write(t.Context(), []*store.Batch{training("s", 1e18, 4e5)})
	require.NoError(t, err)
	b.keepParts(t.Context(), session{"", "s"}, 40, false)
	_, err = tel.GetMetric("otelcol_extension_gpu_storage_steps")
	require.Error(t, err)
	b.keepParts(t.Context(), session{"", "s"}, 40, true)
	b.keepParts(t.Context(), session{"", "s"}, 40, true)
	assert.Equal(t, int64(10), value(t, tel, "extension_gpu_storage_steps"))
	for i := range maxCounted + 10 {
		b.countsFirst(session{"", strconv.Itoa(i)})
	}
	assert.Len(t, b.counted, maxCounted)
}

// TestBackend_Regressions compares ended sessions with a baseline.
func TestBackend_Regressions(t *testing.T) {
	g, tel := start(t, t.TempDir(), nil)
	b := g.backends["a"]
	end := func(name string, start, kernelNs int64) {
		_, err := b.Write(t.Context(), []*store.Batch{training(name, start, kernelNs)})
		require.NoError(t, err)
		b.sealAll(t)
	}
	regressions := func() int64 {
		if _, err := tel.GetMetric("otelcol_extension_gpu_storage_regressions"); err != nil {
			return -1
		}
		return value(t, tel, "extension_gpu_storage_regressions")
	}
	logs := func(name string) []store.LogRow {
		list, err := b.Logs(t.Context(), store.LogQuery{Session: name, Event: semconv.EventCUDARegression})
		require.NoError(t, err)
		return list
	}
	end("good", 1e18, 4e5)
	require.NoError(t, b.SetBaseline(t.Context(), "", "main", "good"))
	end("slower", 2e18, 5e5)
	require.Eventually(t, func() bool { return len(logs("slower")) == 1 }, time.Minute, 10*time.Millisecond)
	assert.Equal(t, int64(1), regressions(), "the kernel")
	change, err := tel.GetMetric("otelcol_extension_gpu_storage_step_change")
	require.NoError(t, err)
	assert.InDelta(t, 0, change.Data.(metricdata.Gauge[float64]).DataPoints[0].Value, 1e-9, "gaps hide it")
	log := logs("slower")[0]
	assert.Contains(t, log.Body.Str, "A is the baseline main, B is this session. No significant difference")
	assert.Contains(t, log.Body.Str, "1 is slower")
	assert.Equal(t, "WARN", log.SeverityText)
	assert.Equal(t, "good", log.Attrs[1].Value.Str)
	assert.Equal(t, []store.Value{{Kind: store.KindString, Str: "k"}}, log.Attrs[2].Value.Slice)
	resource, _ := log.OriginRef.Resource.Get(semconv.ServiceName)
	assert.Equal(t, "train", resource.Str)
	end("same", 3e18, 4e5)
	require.Eventually(t, func() bool { return regressions() == 0 }, time.Minute, 10*time.Millisecond)
	assert.Empty(t, logs("same"))
	assert.Empty(t, logs("good"))
	b.sealAll(t)
	info, err := b.Session(t.Context(), "", "slower")
	require.NoError(t, err)
	assert.True(t, info.Sealed, "again after the log record")
}

// TestBackend_Stragglers ends the three ranks of a run, one of which is late.
func TestBackend_Stragglers(t *testing.T) {
	g, tel := start(t, t.TempDir(), nil)
	b := g.backends["a"]
	sim := trainsim.Training{Run: "run 1", Start: 1_700_000_000_000_000_000, Ranks: 3, Steps: 24, Slow: 2, DelayNs: 5_000_000, OffsetNs: 70_000_000}
	var d rows.Decoder
	for _, td := range sim.Traces() {
		_, err := b.Write(t.Context(), d.Traces("", td))
		require.NoError(t, err)
	}
	b.sealAll(t)
	sum := func(name string) (points []metricdata.DataPoint[float64]) {
		if m, err := tel.GetMetric("otelcol_extension_gpu_storage_" + name); err == nil {
			points = m.Data.(metricdata.Sum[float64]).DataPoints
		}
		return points
	}
	require.Eventually(t, func() bool { return len(sum("late_time")) > 0 }, time.Minute, 10*time.Millisecond)
	late, run := sum("late_time"), sum("run_time")
	require.Len(t, late, 1)
	assert.InEpsilon(t, 8*5e-3, late[0].Value, 0.03)
	rank, _ := late[0].Attributes.Value(semconv.CUDARunRank)
	assert.Equal(t, int64(2), rank.AsInt64())
	require.Len(t, run, 1)
	assert.Greater(t, run[0].Value, late[0].Value)
	// A later run has the same id.
	later := sim
	later.Start += time.Hour.Nanoseconds()
	for r, td := range later.Traces() {
		td.ResourceSpans().At(0).Resource().Attributes().PutStr(semconv.ServiceInstanceID, fmt.Sprint("later-", r))
		_, err := b.Write(t.Context(), d.Traces("", td))
		require.NoError(t, err)
	}
	b.sealAll(t)
	require.Eventually(t, func() bool { return sum("late_time")[0].Value > 1.9*late[0].Value }, time.Minute, 10*time.Millisecond)
	late, run = sum("late_time"), sum("run_time")
	assert.InEpsilon(t, 2*8*5e-3, late[0].Value, 0.03)
	// A session that ends again does not count the run again.
	b.stop() // the test does the analysis
	b.done.Wait()
	list, err := b.Sessions(t.Context(), store.SessionQuery{})
	require.NoError(t, err)
	require.Len(t, list, 6)
	b.keepParts(t.Context(), session{"", list[0].ID}, 1, true)
	assert.InDelta(t, run[0].Value, sum("run_time")[0].Value, 1e-9)
}

func TestBackend_Counts(t *testing.T) {
	g, tel := start(t, t.TempDir(), nil)
	b, err := g.Backend("")
	require.NoError(t, err)
	for range 2 {
		_, err = b.Write(t.Context(), spans("s", 3))
		require.NoError(t, err)
	}
	name := attribute.String("backend", "a")
	metadatatest.AssertEqualExtensionGpuStorageRows(t, tel, []metricdata.DataPoint[int64]{
		{Attributes: attribute.NewSet(name, attribute.String("result", "written")), Value: 3},
		{Attributes: attribute.NewSet(name, attribute.String("result", "duplicate")), Value: 3},
	}, metricdatatest.IgnoreTimestamp())
	require.NoError(t, b.Delete(t.Context(), "", "s"))
	metadatatest.AssertEqualExtensionGpuStorageDeleted(t, tel, []metricdata.DataPoint[int64]{
		{Attributes: attribute.NewSet(name, attribute.String("reason", "request")), Value: 1},
	}, metricdatatest.IgnoreTimestamp())
}

// TestMaintenance_SealAndRetain also finds the sessions of an earlier process.
func TestMaintenance_SealAndRetain(t *testing.T) {
	dir := t.TempDir()
	g, _ := start(t, dir, nil)
	_, err := g.backends["a"].Write(t.Context(), spans("s", 3))
	require.NoError(t, err)
	require.NoError(t, g.Shutdown(t.Context()))
	g.backends = nil

	g, tel := start(t, dir, map[string]any{"max_age": "1h"})
	b := g.backends["a"]
	b.stop() // the test does maintenance
	b.done.Wait()
	assert.Equal(t, 1, b.active.len())
	sealed := func() bool {
		info, err := b.Session(t.Context(), "", "s")
		require.NoError(t, err)
		return info.Sealed
	}
	now := time.Now()
	b.active.mu.Lock()
	b.active.now = func() time.Time { return now.Add(sealAfter - time.Minute) }
	b.active.mu.Unlock()
	b.seal(t.Context())
	assert.False(t, sealed(), "before sealAfter")
	b.active.mu.Lock()
	b.active.now = func() time.Time { return now.Add(sealAfter + time.Second) }
	b.active.mu.Unlock()
	b.seal(t.Context())
	assert.True(t, sealed())
	assert.Zero(t, b.active.len())
	b.retain(t.Context())
	_, err = b.Session(t.Context(), "", "s")
	require.ErrorIs(t, err, store.ErrNotFound)
	metadatatest.AssertEqualExtensionGpuStorageDeleted(t, tel, []metricdata.DataPoint[int64]{
		{Attributes: attribute.NewSet(attribute.String("backend", "a"), attribute.String("reason", "max_age")), Value: 1},
	}, metricdatatest.IgnoreTimestamp())
}

// TestMaintenance_AnalysisBehind seals more sessions than wait for their analysis.
func TestMaintenance_AnalysisBehind(t *testing.T) {
	g, tel := start(t, t.TempDir(), nil)
	b := g.backends["a"]
	b.stop() // the test does maintenance
	b.done.Wait()
	b.ended = make(chan ended, 1)
	for _, id := range []string{"s", "t"} {
		batch := spans(id, 3)[0]
		batch.Ops = []store.Op{{StartNs: 1, EndNs: 2, Span: 9}}
		_, err := b.Write(t.Context(), []*store.Batch{batch})
		require.NoError(t, err)
	}
	now := time.Now()
	b.active.now = func() time.Time { return now.Add(sealAfter + time.Minute) }
	b.seal(t.Context())
	for _, id := range []string{"s", "t"} {
		info, err := b.Session(t.Context(), "", id)
		require.NoError(t, err)
		assert.True(t, info.Sealed, id)
	}
	assert.Equal(t, 1, b.active.len(), "the second session waits")
	first := <-b.ended
	b.seal(t.Context())
	assert.Zero(t, b.active.len())
	second := <-b.ended
	assert.ElementsMatch(t, []string{"s", "t"}, []string{first.id, second.id})
	assert.EqualValues(t, 2, value(t, tel, "extension_gpu_storage_sealed"))
}

// maintained returns a backend whose maintenance the test does, and its log.
func maintained(t *testing.T, retention map[string]any) (*backend, *observer.ObservedLogs) {
	g, _ := start(t, t.TempDir(), retention)
	b := g.backends["a"]
	b.stop()
	b.done.Wait()
	core, logs := observer.New(zap.WarnLevel)
	b.logger = zap.New(core)
	return b, logs
}

// TestBackend_Rejected writes rows that no store can hold. One warning has their number.
func TestBackend_Rejected(t *testing.T) {
	b, logs := maintained(t, nil)
	late := spans("s", 3)
	for i := range late[0].Spans[:2] {
		late[0].Spans[i].EndNs = math.MaxInt64
	}
	for range 2 {
		_, err := b.Write(t.Context(), append(late, spans(strings.Repeat("x", answer.MaxSession+1), 5)...))
		require.NoError(t, err)
	}
	b.warnRejected()
	b.warnRejected()
	require.Equal(t, 1, logs.Len())
	assert.Equal(t, "rows rejected", logs.All()[0].Message)
	assert.Equal(t, map[string]any{"rows": int64(14),
		"reason": "a time before 1970 or after 2116, a session id above 256 bytes, or rows of a session that has sums only"}, logs.All()[0].ContextMap())
}

// TestRetain_LiveAboveMaxSize has a live session that is larger than max_size. The sealed one is deleted, and
// one warning says why.
func TestRetain_LiveAboveMaxSize(t *testing.T) {
	b, logs := maintained(t, map[string]any{"max_size": "1KiB", "min_free": 0})
	for _, id := range []string{"sealed", "live"} {
		_, err := b.Write(t.Context(), spans(id, 3))
		require.NoError(t, err)
	}
	require.NoError(t, b.Seal(t.Context(), "", "sealed"))
	b.retain(t.Context())
	b.retain(t.Context())
	_, err := b.Session(t.Context(), "", "sealed")
	require.ErrorIs(t, err, store.ErrNotFound)
	require.Equal(t, 1, logs.Len())
	warning := logs.All()[0]
	assert.Equal(t, "store above max_size: only live, pinned and baseline sessions remain, which are not deleted", warning.Message)
	assert.EqualValues(t, 1024, warning.ContextMap()["max_size"])
	info, err := b.Session(t.Context(), "", "live")
	require.NoError(t, err)
	assert.Equal(t, info.Bytes, warning.ContextMap()["bytes"])
	require.NoError(t, b.Seal(t.Context(), "", "live"))
	b.retain(t.Context())
	assert.Equal(t, 1, logs.Len())
	_, err = b.Write(t.Context(), spans("live", 3))
	require.NoError(t, err)
	b.retain(t.Context())
	assert.Equal(t, 2, logs.Len(), "above again")
}

var _ component.Component = (*gpuStorage)(nil)

// value sums the data points of a metric. For a histogram it is their count.
func value(t *testing.T, tel *componenttest.Telemetry, name string) (sum int64) {
	t.Helper()
	m, err := tel.GetMetric("otelcol_" + name)
	require.NoError(t, err, name)
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			sum += p.Value
		}
	case metricdata.Gauge[int64]:
		for _, p := range d.DataPoints {
			sum += p.Value
		}
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			sum += int64(p.Count)
		}
	default:
		t.Fatalf("%s is a %T", name, d)
	}
	return sum
}

// TestTelemetry_AllMetrics checks each metric of documentation.md.
func TestTelemetry_AllMetrics(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "_", "sessions", "x")
	require.NoError(t, os.MkdirAll(foreign, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "1.duckdb"), []byte("not a database"), 0o600))
	g, tel := start(t, dir, nil)
	b := g.backends["a"]
	const sessions = 20 // more than the store writes directly
	var batches []*store.Batch
	for i := range sessions {
		batches = append(batches, spans(fmt.Sprint(i), 3)...)
	}
	for range 2 {
		_, err := b.Write(t.Context(), batches)
		require.NoError(t, err)
	}
	waiting := value(t, tel, "extension_gpu_storage_waiting_rows")
	assert.Positive(t, waiting)
	require.NoError(t, b.Seal(t.Context(), "", "0"))
	b.active.mu.Lock()
	b.active.at[session{"", "1"}] = time.Now().Add(-time.Hour)
	b.active.mu.Unlock()
	b.seal(t.Context())
	require.NoError(t, b.Delete(t.Context(), "", "2"))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Write(canceled, spans("3", 1))
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool {
		for i := 3; i < sessions; i++ {
			_, err := b.Session(t.Context(), "", fmt.Sprint(i))
			require.NoError(t, err)
		}
		return value(t, tel, "extension_gpu_storage_waiting_rows") == 0
	}, time.Minute, 10*time.Millisecond)

	doc, err := os.ReadFile("documentation.md")
	require.NoError(t, err)
	want := map[string]int64{
		"commit_duration": 3, "deleted": 1, "errors": 1, "sealed": 1, "set_aside": 1, "sessions": sessions - 1, "unsealed": sessions - 2,
		"waiting_rows": 0,
	}
	for _, m := range regexp.MustCompile(`### otelcol_extension_gpu_storage_(\S+)`).FindAllSubmatch(doc, -1) {
		name := string(m[1])
		if slices.Contains([]string{"device_time", "late_time", "regressions", "run_time", "step_change", "step_time", "steps"}, name) {
			continue // the tests of analyses have them
		}
		got := value(t, tel, "extension_gpu_storage_"+name)
		if n, ok := want[name]; ok {
			assert.Equal(t, n, got, name)
		} else {
			assert.Positive(t, got, name)
		}
		delete(want, name)
	}
	assert.Empty(t, want, "metrics that documentation.md lacks")
	rows := map[string]int64{}
	m, err := tel.GetMetric("otelcol_extension_gpu_storage_rows")
	require.NoError(t, err)
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		result, _ := p.Attributes.Value("result")
		rows[result.AsString()] += p.Value
	}
	// Those of session 2 may be deleted before they are counted.
	assert.InDelta(t, sessions*3, rows["written"], 3)
	assert.InDelta(t, sessions*3, rows["duplicate"], 3)
}
