// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpuflight/gpuflight/internal/collector/sharedcomponent"
	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// sink is what stands behind the receiver. Each delivery asks answer what to say.
type sink struct {
	mu     sync.Mutex
	answer func(n int) error
	calls  int
	spans  map[string]int // id and everything else of a span: how often it came
	ops    map[string]int // distinct spans by operation
	logs   int
	points int
}

func newSink() *sink { return &sink{spans: map[string]int{}, ops: map[string]int{}} }

func (s *sink) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (s *sink) ask() error {
	s.calls++
	if s.answer == nil {
		return nil
	}
	return s.answer(s.calls)
}

func (s *sink) ConsumeTraces(_ context.Context, td ptrace.Traces) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ask(); err != nil {
		return err
	}
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, sp := range ss.Spans().All() {
				key := fmt.Sprint(sp.TraceID(), sp.SpanID(), sp.ParentSpanID(), sp.Name(), sp.StartTimestamp(), sp.EndTimestamp(), sp.Attributes().AsRaw())
				if s.spans[key]++; s.spans[key] == 1 {
					op, _ := sp.Attributes().Get("cuda.operation")
					s.ops[op.Str()]++
				}
			}
		}
	}
	return nil
}

func (s *sink) ConsumeLogs(_ context.Context, ld plog.Logs) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ask(); err != nil {
		return err
	}
	s.logs += ld.LogRecordCount()
	return nil
}

func (s *sink) ConsumeMetrics(_ context.Context, md pmetric.Metrics) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ask(); err != nil {
		return err
	}
	s.points += md.DataPointCount()
	return nil
}

func (s *sink) count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ops[op]
}

func (s *sink) pointCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.points
}

func (s *sink) distinct() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.spans))
}

// memory is a storage extension that outlives the receivers that use it.
type memory struct {
	component.StartFunc
	component.ShutdownFunc
	mu sync.Mutex
	m  map[string][]byte
	// fail makes every write fail.
	fail error
}

// clone returns what is stored now.
func (m *memory) clone() *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &memory{m: maps.Clone(m.m)}
}

func (m *memory) GetClient(context.Context, component.Kind, component.ID, string) (storage.Client, error) {
	return m, nil
}

func (m *memory) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.m[key]), nil
}

func (m *memory) Set(ctx context.Context, key string, v []byte) error {
	return m.Batch(ctx, storage.SetOperation(key, v))
}

func (m *memory) Delete(ctx context.Context, key string) error {
	return m.Batch(ctx, storage.DeleteOperation(key))
}

func (m *memory) Batch(_ context.Context, ops ...*storage.Operation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	for _, op := range ops {
		switch op.Type {
		case storage.Set:
			m.m[op.Key] = slices.Clone(op.Value)
		case storage.Delete:
			delete(m.m, op.Key)
		case storage.Get:
			op.Value = slices.Clone(m.m[op.Key])
		}
	}
	return nil
}

func (m *memory) Close(context.Context) error { return nil }

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

var storageID = component.MustNewID("memory")

// extension is one that the receiver finds in its host.
type extension struct {
	id        component.ID
	component component.Component
}

// running is a started receiver.
type running struct {
	t        *testing.T
	rs       []component.Component
	settings receiver.Settings
	logs     *observer.ObservedLogs
	tel      *componenttest.Telemetry
}

func start(t *testing.T, s *sink, m *memory, change func(*Config)) *running {
	t.Helper()
	return startWith(t, s, m, change)
}

func startWith(t *testing.T, s consumers, m *memory, change func(*Config), extensions ...extension) *running {
	t.Helper()
	return startAt(t, time.Now, s, m, change, extensions...)
}

// startAt starts a receiver with a clock.
func startAt(t *testing.T, now func() time.Time, s consumers, m *memory, change func(*Config), extensions ...extension) *running {
	t.Helper()
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.PollInterval = 10 * time.Millisecond
	h := host{}
	for _, e := range extensions {
		h[e.id] = e.component
	}
	if m != nil {
		cfg.Storage = &storageID
		h[storageID] = m
	}
	change(cfg)
	require.NoError(t, cfg.Validate())
	core, logs := observer.New(zapcore.InfoLevel)
	tel := componenttest.NewTelemetry()
	set := receivertest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	set.Logger = zap.New(core)
	r := &running{t: t, settings: set, logs: logs, tel: tel}
	ctx := context.Background()
	tr, err := f.CreateTraces(ctx, set, cfg, s)
	require.NoError(t, err)
	lr, err := f.CreateLogs(ctx, set, cfg, s)
	require.NoError(t, err)
	mr, err := f.CreateMetrics(ctx, set, cfg, s)
	require.NoError(t, err)
	r.rs = []component.Component{tr, lr, mr}
	r.receiver().grace = time.Minute // no test is about how fast
	r.receiver().now = now
	for _, c := range r.rs {
		require.NoError(t, c.Start(ctx, h))
	}
	return r
}

func (r *running) stop() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // no test is about how fast
	defer cancel()
	for _, c := range r.rs {
		assert.NoError(r.t, c.Shutdown(ctx))
	}
	assert.NoError(r.t, r.tel.Shutdown(ctx))
}

// receiver is the one behind the components.
func (r *running) receiver() *gpuflogReceiver {
	return r.rs[0].(*sharedcomponent.Shared[*gpuflogReceiver]).Unwrap()
}

// server is the receiver's HTTP server.
func (r *running) server() *httpServer { return r.receiver().http }

// sum returns a counter's value over all attributes, or with one that contains part.
func (r *running) sum(name, part string) (n int64) {
	r.t.Helper()
	m, err := r.tel.GetMetric(name)
	if err != nil {
		return 0
	}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		if strings.Contains(fmt.Sprint(p.Attributes.ToSlice()), part) {
			n += p.Value
		}
	}
	return n
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 2*time.Minute, 10*time.Millisecond, what)
}

func generate(t *testing.T, dir string, cfg gpuflgen.Config) gpuflgen.Summary {
	t.Helper()
	cfg.Dir = dir
	sum, err := gpuflgen.Run(context.Background(), cfg)
	require.NoError(t, err)
	return sum
}

func kernelsOf(sum gpuflgen.Summary) (n int) {
	for _, k := range sum.Kernels {
		n += int(k.Count)
	}
	return n
}

var _ receiver.Traces = (*gpuflogReceiver)(nil)

func TestReader_GeneratedSession(t *testing.T) {
	for _, layout := range []gpuflgen.Layout{gpuflgen.A2, gpuflgen.C3} {
		t.Run(string(layout), func(t *testing.T) {
			dir := t.TempDir()
			sum := generate(t, dir, gpuflgen.Config{Layout: layout, Epochs: 1, StepsPerEpoch: 3, RotateBytes: 200_000})
			s := newSink()
			r := start(t, s, nil, func(c *Config) { c.Include = []string{dir} })
			eventually(t, "the session's span", func() bool { return s.count("session") > 0 })
			assert.Equal(t, kernelsOf(sum), s.count("kernel"))
			assert.Equal(t, 1, r.logs.FilterMessageSnippet("no storage is set").Len())
			r.stop()
			assert.Positive(t, s.pointCount())
			for span, n := range s.spans {
				require.Equal(t, 1, n, span)
			}
		})
	}
}

func TestReader_RetriesRejectedData(t *testing.T) {
	dir := t.TempDir()
	sum := generate(t, dir, gpuflgen.Config{Epochs: 1, StepsPerEpoch: 2})
	s := newSink()
	s.answer = func(n int) error {
		if n%3 != 0 {
			return errors.New("busy")
		}
		return nil
	}
	r := start(t, s, &memory{m: map[string][]byte{}}, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the session's span", func() bool { return s.count("session") > 0 })
	assert.Equal(t, kernelsOf(sum), s.count("kernel"))
	assert.Positive(t, r.logs.FilterMessageSnippet("data not accepted").Len())
	r.stop()
	for span, n := range s.spans {
		require.Equal(t, 1, n, span)
	}
}

func TestReader_PermanentRejection(t *testing.T) {
	dir := t.TempDir()
	generate(t, dir, gpuflgen.Config{Epochs: 1, StepsPerEpoch: 2})
	s := newSink()
	s.answer = func(n int) error {
		if n == 1 {
			return consumererror.NewPermanent(errors.New("no"))
		}
		return nil
	}
	r := start(t, s, nil, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "a refusal", func() bool { return r.logs.FilterMessageSnippet("rejected permanently").Len() == 1 })
	eventually(t, "the rest", func() bool { return s.pointCount() > 0 })
	assert.Positive(t, r.sum("otelcol_receiver_gpuflog_dropped", ""))
	r.stop()
}

func TestReader_RestartInTheMiddle(t *testing.T) {
	for _, layout := range []gpuflgen.Layout{gpuflgen.A2, gpuflgen.C3} {
		t.Run(string(layout), func(t *testing.T) {
			dir := t.TempDir()
			generate(t, dir, gpuflgen.Config{Layout: layout, Epochs: 2, StepsPerEpoch: 12, RotateBytes: 3_000_000})
			whole := newSink()
			r := start(t, whole, nil, func(c *Config) { c.Include = []string{dir} })
			eventually(t, "the session's span", func() bool { return whole.count("session") > 0 })
			r.stop()
			want := whole.distinct()

			m := &memory{m: map[string][]byte{}}
			s := newSink()
			// Each life ends in the middle of a delivery that is never accepted.
			lives := 0
			for ; s.count("session") == 0; lives++ {
				require.Less(t, lives, 100)
				stuck := make(chan struct{})
				first := s.calls
				s.answer = func(n int) error {
					if n > first+3 { // a delivery has up to three parts, and at least one gets through
						select {
						case <-stuck:
						default:
							close(stuck)
						}
						return errors.New("down")
					}
					return nil
				}
				r := start(t, s, m, func(c *Config) { c.Include = []string{dir} })
				eventually(t, "a delivery that is stuck, or the end", func() bool {
					select {
					case <-stuck:
						return true
					default:
						return s.count("session") > 0
					}
				})
				r.stop()
			}
			assert.Greater(t, lives, 2)
			assert.Equal(t, want, s.distinct())
		})
	}
}

func TestReader_CleanStop(t *testing.T) {
	dir := t.TempDir()
	generate(t, dir, gpuflgen.Config{Epochs: 1, StepsPerEpoch: 2})
	m := &memory{m: map[string][]byte{}}
	s := newSink()
	r := start(t, s, m, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the session's span", func() bool { return s.count("session") > 0 })
	r.stop()
	calls := s.calls
	r = start(t, s, m, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "following", func() bool { return r.logs.FilterMessage("following").Len() == 1 })
	time.Sleep(200 * time.Millisecond)
	r.stop()
	assert.Equal(t, calls, s.calls)
	assert.Equal(t, true, r.logs.FilterMessage("following").All()[0].ContextMap()["resumed"])
}

func TestReader_DamagedCheckpoint(t *testing.T) {
	dir := t.TempDir()
	generate(t, dir, gpuflgen.Config{Epochs: 1, StepsPerEpoch: 2})
	m := &memory{m: map[string][]byte{}}
	s := newSink()
	r := start(t, s, m, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the session's span", func() bool { return s.count("session") > 0 })
	r.stop()
	want := s.distinct()
	for k, v := range m.m {
		if strings.HasSuffix(k, "/s") {
			m.m[k] = v[:len(v)/2]
		}
	}
	s = newSink()
	r = start(t, s, m, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the session's span", func() bool { return s.count("session") > 0 })
	assert.Equal(t, 1, r.logs.FilterMessageSnippet("checkpoint cannot be used").Len())
	r.stop()
	assert.Equal(t, want, s.distinct())
}

func TestReader_CheckpointWriteError(t *testing.T) {
	dir := t.TempDir()
	sum := generate(t, dir, gpuflgen.Config{Epochs: 1, StepsPerEpoch: 2})
	m := &memory{m: map[string][]byte{}, fail: errors.New("write error")}
	s := newSink()
	r := start(t, s, m, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the session's span", func() bool { return s.count("session") > 0 })
	assert.Equal(t, kernelsOf(sum), s.count("kernel"))
	assert.Positive(t, r.sum("otelcol_receiver_gpuflog_checkpoint_errors", ""))
	r.stop()
}

func TestReader_RemovedSessionCheckpoint(t *testing.T) {
	dir := t.TempDir()
	generate(t, dir, gpuflgen.Config{Epochs: 1, StepsPerEpoch: 1})
	m := &memory{m: map[string][]byte{}}
	s := newSink()
	r := start(t, s, m, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the session's span", func() bool { return s.count("session") > 0 })
	r.stop()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	has := func(prefix string) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for k := range m.m {
			if strings.HasPrefix(k, prefix) {
				return true
			}
		}
		return false
	}
	require.True(t, has("g/"))
	r = start(t, s, m, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "it is gone", func() bool { return !has("g/") })
	r.stop()
	assert.False(t, has("g/"))
}

const a2Line = `{"type":"kernel_event","pid":1,"app":"a","session_id":"11111111-2222-4333-8444-555555555555","name":"k%d","device_id":"0","stream_id":"7","user_scope":"global|k","scope_depth":0,"start_ns":%d,"end_ns":%d,"corr_id":%d}`

func line(i int) string {
	at := int64(1773600000000000000) + int64(i)*1000
	return fmt.Sprintf(a2Line, i, at, at+500, i+1)
}

func TestStartAt_End(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.device.log")
	require.NoError(t, os.WriteFile(path, []byte(line(1)+"\n"+line(2)+"\n"), 0o600))
	s := newSink()
	r := start(t, s, nil, func(c *Config) { c.Include, c.StartAt = []string{dir}, "end" })
	eventually(t, "the end", func() bool { return r.logs.FilterMessageSnippet("reached the end").Len() == 1 })
	appendTo(t, path, line(3)+"\n")
	eventually(t, "the new kernel", func() bool { return s.count("kernel") == 1 })
	time.Sleep(300 * time.Millisecond)
	assert.Equal(t, 1, s.count("kernel"))
	r.stop()
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestReader_PartialLine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.device.log")
	half := line(2)
	require.NoError(t, os.WriteFile(path, []byte(line(1)+"\n"+half[:100]), 0o600))
	s := newSink()
	r := start(t, s, nil, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the whole line", func() bool { return s.count("kernel") == 1 })
	time.Sleep(tailWait + 500*time.Millisecond)
	assert.Equal(t, 1, s.count("kernel"), "half a line is not a record")
	appendTo(t, path, half[100:]) // without its newline
	eventually(t, "the line without newline", func() bool { return s.count("kernel") == 2 })
	appendTo(t, path, "\n"+line(3)+"\n")
	eventually(t, "the line behind it", func() bool { return s.count("kernel") == 3 })
	assert.Zero(t, r.sum("otelcol_receiver_gpuflog_rejects", ""))
	r.stop()
}

func TestReader_InvalidLines(t *testing.T) {
	dir := t.TempDir()
	bad := "{\"type\":\"kernel_event\",\"session_id\":\n"
	text := line(1) + "\n" + bad + bad + `{"type":"martian"}` + "\n\n" + line(2) + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.device.log"), []byte(text), 0o600))
	s := newSink()
	r := start(t, s, nil, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "both kernels", func() bool { return s.count("kernel") == 2 })
	eventually(t, "the counts", func() bool {
		return r.sum("otelcol_receiver_gpuflog_rejects", "malformed") == 2 && r.sum("otelcol_receiver_gpuflog_rejects", "unknown_type") == 1
	})
	warnings := r.logs.FilterMessageSnippet("input rejected").FilterField(zap.String("reason", "malformed")).All()
	require.Len(t, warnings, 1)
	assert.EqualValues(t, len(line(1))+1, warnings[0].ContextMap()["offset"])
	assert.Equal(t, filepath.Join(dir, "a.device.log"), warnings[0].ContextMap()["path"])
	r.stop()
}

func TestReader_UnsupportedGeneration(t *testing.T) {
	dir := t.TempDir()
	text := `{"type":"init","pid":1,"app":"a","session_id":"s","system_rate_ms":100,"ts_ns":1772500000000000000}` + "\n" +
		`{"type":"kernel_event","session_id":"s","name":"k","start_ns":1772500000000000001,"end_ns":1772500000000000002}` + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.device.0.log"), []byte(text), 0o600))
	s := newSink()
	r := start(t, s, nil, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the message", func() bool { return r.logs.FilterMessageSnippet("before A2 are unsupported").Len() == 1 })
	eventually(t, "the counts", func() bool { return r.sum("otelcol_receiver_gpuflog_rejects", "too_old") == 2 })
	assert.Zero(t, s.count("kernel"))
	r.stop()
}

// TestShutdown_UnavailableBackend: an exporter that waits for its backend answers when the
// delivery's context ends, and the Collector's Shutdown sets no end.
func TestShutdown_UnavailableBackend(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.device.log"), []byte(line(1)+"\n"+line(2)+"\n"), 0o600))
	m := &memory{m: map[string][]byte{}}
	away := &backendAway{sink: newSink()}
	r := startWith(t, away, m, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "the delivery", func() bool { return away.called.Load() })
	r.receiver().grace = 100 * time.Millisecond
	for _, c := range r.rs {
		require.NoError(t, c.Shutdown(context.Background()))
	}
	require.NoError(t, r.tel.Shutdown(context.Background()))
	assert.Equal(t, 1, r.logs.FilterMessageSnippet("shutdown interrupts a delivery").Len())

	s := newSink()
	r = start(t, s, m, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "both kernels, read again", func() bool { return s.count("kernel") == 2 })
	r.stop()
}

// backendAway waits until a delivery's context ends.
type backendAway struct {
	*sink
	called atomic.Bool
}

func (b *backendAway) ConsumeTraces(ctx context.Context, _ ptrace.Traces) error {
	b.called.Store(true)
	<-ctx.Done()
	return ctx.Err()
}

func TestStart_MissingStorage(t *testing.T) {
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.Include = []string{t.TempDir()}
	cfg.Storage = &storageID
	r, err := f.CreateTraces(context.Background(), receivertest.NewNopSettings(metadata.Type), cfg, newSink())
	require.NoError(t, err)
	assert.ErrorContains(t, r.Start(context.Background(), host{}), `storage "memory" is not configured: add it`)
	require.NoError(t, r.Shutdown(context.Background()))
}
