// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package store_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// collector runs config/local.yaml, which also writes to files what the store gets.
type collector struct {
	t           *testing.T
	logs        string
	state, sent string
	args        []string
}

func newCollector(t *testing.T, logs string) *collector {
	t.Helper()
	c := &collector{t: t, logs: logs, state: filepath.Join(t.TempDir(), "state"), sent: t.TempDir()}
	_, port, _ := strings.Cut(process.FreePort(t), ":")
	overlay := filepath.Join(t.TempDir(), "overlay.yaml")
	require.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil, `exporters:
  file/traces: {path: %[1]s/traces, append: true}
  file/logs: {path: %[1]s/logs, append: true}
  file/metrics: {path: %[1]s/metrics, append: true}
service:
  pipelines:
    traces: {exporters: [gpu_storage, file/traces]}
    logs: {exporters: [gpu_storage, file/logs]}
    metrics: {receivers: [gpuflog, otlp], exporters: [gpu_storage, file/metrics]}
`, c.sent), 0o600))
	c.args = []string{
		"GPUFLIGHT_STATE=" + c.state, "GPUFLIGHT_LOGS=" + logs, "GPUFLIGHT_METRICS_PORT=" + port, "GPUFLIGHT_PROMETHEUS_PORT=0",
		"GPUFLIGHT_LISTEN=" + process.FreePort(t), "GPUFLIGHT_LISTEN_HTTP=" + process.FreePort(t), "GPUFLIGHT_UI=" + process.FreePort(t), process.Collector.Find(t),
		"--config", filepath.Join(process.Root(t), "config", "local.yaml"), "--config", overlay,
	}
	return c
}

// address is that of OTLP over gRPC.
func (c *collector) address() string {
	for _, a := range c.args {
		if value, ok := strings.CutPrefix(a, "GPUFLIGHT_LISTEN="); ok {
			return value
		}
	}
	panic("the Collector has no address")
}

func (c *collector) start() *process.Process {
	p := process.Start(c.t, "/usr/bin/env", c.args...)
	p.WaitOutput(process.Ready, 2*time.Minute)
	return p
}

var sentFiles = []string{"traces", "logs", "metrics"}

// size is the number of bytes of the files that the exporters wrote.
func (c *collector) size() (n int64) {
	for _, name := range sentFiles {
		if fi, err := os.Stat(filepath.Join(c.sent, name)); err == nil {
			n += fi.Size()
		}
	}
	return n
}

// deliver runs the Collector until it has read all logs from the start.
func (c *collector) deliver() {
	entries, err := os.ReadDir(c.state)
	if !os.IsNotExist(err) {
		require.NoError(c.t, err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			require.NoError(c.t, os.Remove(filepath.Join(c.state, e.Name())), "checkpoints")
		}
	}
	p := c.start()
	last, since := c.size(), time.Now()
	process.Eventually(c.t, 2*time.Minute, "all logs are read", func() bool {
		if n := c.size(); n != last {
			last, since = n, time.Now()
		}
		return last > 0 && time.Since(since) > 8*time.Second // above gpuflog's timeouts
	})
	p.Stop(time.Minute)
	assert.NotContains(c.t, p.Output(), "were refused", "the last export of gpu_usage")
}

type spanKey struct {
	session string
	start   int64
	id      store.SpanID
}

// sent is what the exporters got, each span and record once.
type sent struct {
	spans    map[spanKey]ptrace.Span
	logs     map[string]bool
	kernels  map[string]int64 // by session
	kernelNs map[string]int64
	points   map[pointKey]store.Point
	memory   *storetest.Memory
}

type pointKey struct {
	session string
	series  uint64
	at      int64
}

func (c *collector) read() *sent {
	s := &sent{map[spanKey]ptrace.Span{}, map[string]bool{}, map[string]int64{}, map[string]int64{}, map[pointKey]store.Point{}, storetest.NewMemory()}
	var decoder rows.Decoder
	write := func(batches []*store.Batch) {
		_, err := s.memory.Write(c.t.Context(), batches)
		require.NoError(c.t, err)
	}
	c.lines("traces", func(line []byte) {
		td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		require.NoError(c.t, err)
		write(decoder.Traces("", td))
		for _, rs := range td.ResourceSpans().All() {
			session, _ := rs.Resource().Attributes().Get(semconv.ServiceInstanceID)
			for _, ss := range rs.ScopeSpans().All() {
				for _, span := range ss.Spans().All() {
					id := span.SpanID()
					var n store.SpanID
					for _, b := range id {
						n = n<<8 | store.SpanID(b)
					}
					key := spanKey{session.Str(), int64(span.StartTimestamp()), n}
					known, ok := s.spans[key]
					if ok && known.EndTimestamp() >= span.EndTimestamp() {
						continue
					}
					s.spans[key] = span
					op, _ := span.Attributes().Get(semconv.CUDAOperation)
					if !ok && op.Str() == semconv.CUDAOperationKernel {
						s.kernels[key.session]++
						s.kernelNs[key.session] += int64(span.EndTimestamp()) - key.start
					}
				}
			}
		}
	})
	c.lines("logs", func(line []byte) {
		ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(line)
		require.NoError(c.t, err)
		write(decoder.Logs("", ld))
		for _, rl := range ld.ResourceLogs().All() {
			session, _ := rl.Resource().Attributes().Get(semconv.ServiceInstanceID)
			for _, sl := range rl.ScopeLogs().All() {
				for _, r := range sl.LogRecords().All() {
					uid, ok := r.Attributes().Get("log.record.uid")
					require.True(c.t, ok)
					s.logs[session.Str()+" "+uid.Str()] = true
				}
			}
		}
	})
	c.lines("metrics", func(line []byte) {
		md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
		require.NoError(c.t, err)
		batches := decoder.Metrics("", md)
		write(batches)
		for _, b := range batches {
			for _, p := range b.Points {
				k := pointKey{b.Session, b.Series[p.Series].Key, p.TimeNs}
				p.Series = 0
				s.points[k] = p
			}
		}
	})
	return s
}

func (c *collector) lines(name string, f func([]byte)) {
	b, err := os.ReadFile(filepath.Join(c.sent, name))
	require.NoError(c.t, err)
	for line := range bytes.Lines(b) {
		f(line)
	}
}

// removeTorn removes the lines that a killed Collector wrote in part.
func (c *collector) removeTorn() {
	for _, name := range sentFiles {
		file := filepath.Join(c.sent, name)
		b, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue
		}
		require.NoError(c.t, err)
		require.NoError(c.t, os.Truncate(file, int64(bytes.LastIndexByte(b, '\n')+1)))
	}
}

// check compares the store with what the exporters got.
func (c *collector) check() {
	ctx, want := c.t.Context(), c.read()
	require.NotEmpty(c.t, want.spans)
	require.NotEmpty(c.t, want.logs)
	s, err := duckstore.Open(ctx, duckstore.Config{Directory: filepath.Join(c.state, "store")})
	require.NoError(c.t, err)
	defer func() { require.NoError(c.t, s.Close(ctx)) }()
	sessions, err := s.Sessions(ctx, store.SessionQuery{Limit: 1000})
	require.NoError(c.t, err)
	var spans, logs int64
	for _, info := range sessions {
		spans += info.Counts["ops"] + info.Counts["spans"]
		logs += info.Counts["samples"] + info.Counts["logs"]
		assert.Equal(c.t, want.kernels[info.ID], info.Operations[store.OpKernel], "kernels of %s", info.ID)
		assert.Equal(c.t, want.kernelNs[info.ID], info.KernelNs, "time of kernels of %s", info.ID)
	}
	assert.EqualValues(c.t, len(want.spans), spans)
	assert.EqualValues(c.t, len(want.logs), logs)
	c.checkPoints(s, append(sessions, store.SessionInfo{}), want.points)
	if c.logs != "" {
		c.checkRaw(sessions)
	}
	compared := 0
	for key, span := range want.spans {
		if compared == 200 {
			break
		}
		compared++
		op, other, err := s.Span(ctx, "", key.session, key.id, key.start)
		require.NoError(c.t, err)
		got := ptrace.NewSpan()
		if op != nil {
			rows.AppendOp(op, got)
		} else {
			require.NoError(c.t, rows.AppendSpan(other, got))
		}
		assert.Equal(c.t, span.Attributes().AsRaw(), got.Attributes().AsRaw())
		assert.Equal(c.t, []any{span.Name(), span.TraceID(), span.SpanID(), span.ParentSpanID(), span.EndTimestamp()},
			[]any{got.Name(), got.TraceID(), got.SpanID(), got.ParentSpanID(), got.EndTimestamp()})
	}
	assert.Equal(c.t, 200, compared)
	storetest.Compare(c.t, s, want.memory)
}

// checkPoints compares all points.
func (c *collector) checkPoints(s *duckstore.Store, sessions []store.SessionInfo, want map[pointKey]store.Point) {
	require.NotEmpty(c.t, want)
	got := map[pointKey]store.Point{}
	for i := range sessions {
		id := sessions[i].ID
		list, err := s.Series(c.t.Context(), store.SeriesQuery{Session: id, Limit: 10_000})
		require.NoError(c.t, err)
		for j := range list {
			points, err := s.Points(c.t.Context(), store.PointQuery{Session: id, Series: list[j].Key, Points: 20_000})
			require.NoError(c.t, err)
			require.Len(c.t, points, int(list[j].Count), "more points than a query returns")
			for _, p := range points {
				got[pointKey{id, list[j].Key, p.TimeNs}] = p.Point
			}
		}
	}
	assert.Len(c.t, got, len(want), "points")
	for k, p := range want {
		if !assert.Equal(c.t, p, got[k], "%+v", k) {
			break
		}
	}
}

// rawLine is a line of GPU Flight's logs with operations or samples.
type rawLine struct {
	Type    string              `json:"type"`
	Session string              `json:"session_id"`
	Start   json.Number         `json:"start_ns"`
	End     json.Number         `json:"end_ns"`
	Corr    json.Number         `json:"corr_id"`
	Kind    string              `json:"sample_kind"`
	Base    json.Number         `json:"base_time_ns"`
	Columns []string            `json:"columns"`
	Rows    [][]json.RawMessage `json:"rows"`
}

// checkRaw compares the numbers of kernels and copies, and the time of kernels, with the lines of the logs.
// Some folders have the same session.
func (c *collector) checkRaw(sessions []store.SessionInfo) {
	kinds := map[string]store.Operation{"kernel_event": store.OpKernel, "kernel_event_batch": store.OpKernel,
		"memcpy_event": store.OpCopy, "memcpy_event_batch": store.OpCopy}
	type operation struct {
		kind        store.Operation
		start, corr string
	}
	want := map[string]map[operation]int64{} // with durations
	process.Lines(c.t, c.logs, func(path string, line []byte) {
		var l rawLine
		if json.Unmarshal(line, &l) != nil || kinds[l.Type] == 0 {
			return
		}
		if want[l.Session] == nil {
			want[l.Session] = map[operation]int64{}
		}
		if l.Columns == nil {
			start, err := l.Start.Int64()
			require.NoError(c.t, err, path)
			end, err := l.End.Int64()
			require.NoError(c.t, err, path)
			want[l.Session][operation{kinds[l.Type], l.Start.String(), l.Corr.String()}] = end - start
			return
		}
		base, err := l.Base.Int64()
		require.NoError(c.t, err, path)
		for _, row := range l.Rows {
			o := operation{kind: kinds[l.Type]}
			var duration int64
			var err error
			for i, column := range l.Columns {
				switch column {
				case "dt_ns":
					n, err := strconv.ParseInt(string(row[i]), 10, 64)
					require.NoError(c.t, err, path)
					o.start = strconv.FormatInt(base+n, 10)
				case "duration_ns":
					duration, err = strconv.ParseInt(string(row[i]), 10, 64)
					require.NoError(c.t, err, path)
				case "corr_id":
					o.corr = string(row[i])
				}
			}
			want[l.Session][o] = duration
		}
	})
	got := map[string]store.SessionInfo{}
	for i := range sessions {
		got[sessions[i].ID] = sessions[i]
	}
	require.NotEmpty(c.t, want)
	for session, operations := range want {
		counts := map[store.Operation]int64{}
		var kernelNs int64
		for o, duration := range operations {
			counts[o.kind]++
			if o.kind == store.OpKernel {
				kernelNs += duration
			}
		}
		for _, kind := range []store.Operation{store.OpKernel, store.OpCopy} {
			assert.Equal(c.t, counts[kind], got[session].Operations[kind], "operations %d of session %s", kind, session)
		}
		assert.Equal(c.t, kernelNs, got[session].KernelNs, "time of kernels of session %s", session)
	}
}

// TestStore_SharedLogs delivers the logs in ../shared/logs, which need not be those of the repository.
func TestStore_SharedLogs(t *testing.T) {
	dir := filepath.Join(process.Root(t), "..", "shared", "logs")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no other logs: %v", err)
	}
	c := newCollector(t, dir)
	c.deliver()
	c.check()
}

// TestStore_Recordings delivers all recordings, and again from the start.
func TestStore_Recordings(t *testing.T) {
	c := newCollector(t, process.Recordings(t))
	c.deliver()
	c.check()
	c.deliver()
	c.check()
}

// TestStore_Killed kills the Collector while it loads and delivers from the start.
func TestStore_Killed(t *testing.T) {
	c := newCollector(t, process.Recordings(t))
	for range 3 {
		p := c.start()
		before := c.size()
		process.Eventually(t, time.Minute, "data arrived", func() bool { return c.size() != before })
		p.Kill()
		c.removeTorn()
	}
	c.deliver()
	c.check()
}

// TestStore_DirectoryInUse starts a second Collector on the store of a running one.
func TestStore_DirectoryInUse(t *testing.T) {
	c := newCollector(t, t.TempDir())
	p := c.start()
	second := newCollector(t, t.TempDir())
	other := filepath.Join(t.TempDir(), "other.yaml")
	require.NoError(t, os.WriteFile(other, []byte("extensions: {file_storage: {directory: "+t.TempDir()+"}}\n"), 0o600))
	second.args[0] = c.args[0]
	q := process.Start(t, "/usr/bin/env", append(second.args, "--config", other)...)
	process.Eventually(t, time.Minute, "the second Collector ends", func() bool { return !q.Running() })
	assert.Contains(t, q.Output(), "Error: failed to start extensions: backend default: open store "+filepath.Join(c.state, "store")+
		": in use by another process: stop it or configure another directory")
	p.Stop(time.Minute)
}
