// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package store_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// collector runs config/local.yaml, which also writes to files what the store gets.
type collector struct {
	t           *testing.T
	state, sent string
	args        []string
}

func newCollector(t *testing.T, logs string) *collector {
	t.Helper()
	c := &collector{t: t, state: filepath.Join(t.TempDir(), "state"), sent: t.TempDir()}
	_, port, _ := strings.Cut(process.FreePort(t), ":")
	overlay := filepath.Join(t.TempDir(), "overlay.yaml")
	require.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil, `exporters:
  file/traces: {path: %[1]s/traces, append: true}
  file/logs: {path: %[1]s/logs, append: true}
service:
  pipelines:
    traces: {exporters: [gpu_storage, file/traces]}
    logs: {exporters: [gpu_storage, file/logs]}
    metrics: {receivers: [gpuflog, otlp], exporters: [gpu_storage]}
`, c.sent), 0o600))
	c.args = []string{
		"GPUFLIGHT_STATE=" + c.state, "GPUFLIGHT_LOGS=" + logs, "GPUFLIGHT_METRICS_PORT=" + port,
		"GPUFLIGHT_LISTEN=" + process.FreePort(t), "GPUFLIGHT_LISTEN_HTTP=" + process.FreePort(t), "GPUFLIGHT_UI=" + process.FreePort(t), process.Collector.Find(t),
		"--config", filepath.Join(process.Root(t), "config", "local.yaml"), "--config", overlay,
	}
	return c
}

func (c *collector) start() *process.Process {
	p := process.Start(c.t, "/usr/bin/env", c.args...)
	p.WaitOutput(process.Ready, 2*time.Minute)
	time.Sleep(200 * time.Millisecond) // The message precedes the handler of SIGTERM.
	return p
}

// size is the number of bytes of the files that the exporters wrote.
func (c *collector) size() (n int64) {
	for _, name := range []string{"traces", "logs"} {
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
}

func (c *collector) read() *sent {
	s := &sent{map[spanKey]ptrace.Span{}, map[string]bool{}, map[string]int64{}, map[string]int64{}}
	c.lines("traces", func(line []byte) {
		td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		require.NoError(c.t, err)
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
	return s
}

func (c *collector) lines(name string, f func([]byte)) {
	b, err := os.ReadFile(filepath.Join(c.sent, name))
	require.NoError(c.t, err)
	for line := range bytes.Lines(b) {
		if bytes.HasSuffix(line, []byte("\n")) { // The last one ends early after a kill.
			f(line)
		}
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
