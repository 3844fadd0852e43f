// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// node is a span with its children.
type node struct {
	ptrace.Span
	children []*node
}

func (n *node) operation() string { return text(n, semconv.CUDAOperation) }

func text(n *node, key string) string {
	v, _ := n.Attributes().Get(key)
	return v.Str()
}

type spanKey struct {
	trace pcommon.TraceID
	span  pcommon.SpanID
}

// forest groups spans into trees. A span without its parent is a root.
type forest map[spanKey]*node

func (f forest) add(td ptrace.Traces) {
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, s := range ss.Spans().All() {
				f[spanKey{s.TraceID(), s.SpanID()}] = &node{Span: s}
			}
		}
	}
}

func (f forest) grow() (roots []*node) {
	for key, n := range f {
		if parent := f[spanKey{key.trace, n.ParentSpanID()}]; parent != nil && !n.ParentSpanID().IsEmpty() {
			parent.children = append(parent.children, n)
		} else {
			roots = append(roots, n)
		}
	}
	return roots
}

// count returns the number of descendants with an operation.
func (n *node) count(operation string) (c int) {
	for _, child := range n.children {
		if child.operation() == operation {
			c++
		}
		c += child.count(operation)
	}
	return c
}

// TestReplay_RecordingsInJaeger sends recordings of `gpuflight trace` and the SDK from an H200
// through config/replay.yaml into Jaeger. Jaeger must show the tree of request, scope and kernels.
func TestReplay_RecordingsInJaeger(t *testing.T) {
	process.Collector.Find(t)
	process.Jaeger.Find(t)
	dir := filepath.Join(process.Root(t), "examples", "recordings")
	files, err := filepath.Glob(filepath.Join(dir, "*.otlp.jsonl.gz"))
	require.NoError(t, err)
	require.Len(t, files, 3)

	recorded := forest{}
	services := map[string]bool{}
	for _, file := range files {
		stats, err := otlp.ReadFile(file, otlp.Handler{Traces: func(td ptrace.Traces) {
			recorded.add(td)
			for _, rs := range td.ResourceSpans().All() {
				name, _ := rs.Resource().Attributes().Get(semconv.ServiceName)
				services[name.Str()] = true
			}
		}})
		require.NoError(t, err)
		require.Zero(t, stats.Bad)
		require.False(t, stats.Torn)
		info, err := os.Stat(file)
		require.NoError(t, err)
		assert.Less(t, info.Size(), int64(3<<20), file)
	}

	j := startJaeger(t)
	p, _ := startReplay(t, dir, j.otlp, map[string]any{ // Jaeger accepts traces only
		"exporters": map[string]any{"nop": nil},
		"service": map[string]any{"pipelines": map[string]any{
			"metrics": map[string]any{"exporters": []string{"nop"}},
			"logs":    map[string]any{"exporters": []string{"nop"}},
		}},
	})
	var got forest
	process.Eventually(t, time.Minute, fmt.Sprintf("%d spans in Jaeger", len(recorded)), func() bool {
		time.Sleep(200 * time.Millisecond) // each query fetches everything
		got = forest{}
		for service := range services {
			got.add(j.traces(service))
		}
		return len(got) >= len(recorded)
	})
	p.Stop(20 * time.Second)
	require.Len(t, got, len(recorded))
	for key, want := range recorded {
		n := got[key]
		require.NotNil(t, n, "%s is not in Jaeger", want.Name())
		require.Equal(t, want.Name(), n.Name())
		require.Equal(t, want.ParentSpanID(), n.ParentSpanID(), want.Name())
		require.Equal(t, want.StartTimestamp(), n.StartTimestamp(), want.Name())
	}

	roots := got.grow()
	requests, kernels := 0, 0
	for _, n := range got {
		switch {
		case n.operation() == semconv.CUDAOperationKernel:
			kernels++
			parent := got[spanKey{n.TraceID(), n.ParentSpanID()}]
			require.NotNil(t, parent, "kernel %s has no parent in its trace", n.Name())
			assert.Contains(t, []string{semconv.CUDAOperationScope, semconv.CUDAOperationSession}, parent.operation())
			if parent.operation() == semconv.CUDAOperationScope {
				assert.Equal(t, parent.Name(), text(n, semconv.CUDAScopeName))
			}
		case n.Kind() == ptrace.SpanKindServer:
			requests++
			require.Len(t, n.children, 1, "a request has one scope")
			scope := n.children[0]
			assert.Equal(t, semconv.CUDAOperationScope, scope.operation())
			assert.Equal(t, semconv.CUDAScopeSourceSDK, text(scope, semconv.CUDAScopeSource))
			launches, ok := scope.Attributes().Get("launches")
			require.True(t, ok)
			assert.Equal(t, int(launches.Int()), scope.count(semconv.CUDAOperationKernel), "kernels of request %s", n.TraceID())
		}
	}
	assert.Positive(t, requests)
	assert.Positive(t, kernels)
	t.Logf("%d spans in %d trees, %d requests, %d kernels", len(got), len(roots), requests, kernels)
}

// startReplay runs config/replay.yaml on a folder. It also returns the URL of the Collector's
// metrics.
func startReplay(t *testing.T, archive, endpoint string, overlay map[string]any) (p *process.Process, metrics string) {
	t.Helper()
	address := process.FreePort(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	args := []string{
		"GPUFLIGHT_ARCHIVE=" + archive, "GPUFLIGHT_OTLP_ENDPOINT=" + endpoint, "GPUFLIGHT_OTLP_INSECURE=true",
		"GPUFLIGHT_METRICS_PORT=" + port,
		process.Collector.Find(t), "--config", filepath.Join(process.Root(t), "config", "replay.yaml"),
		"--feature-gates", "receiverhelper.newReceiverMetrics", // counts requests that are not OTLP
	}
	if overlay != nil {
		b, err := json.Marshal(overlay)
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "overlay.yaml")
		require.NoError(t, os.WriteFile(file, b, 0o600))
		args = append(args, "--config", file)
	}
	return process.Start(t, "/usr/bin/env", args...), "http://" + address + "/metrics"
}

// archived returns a request of one numbered span and one of one numbered log record. All have the
// same resource of 4 kB.
func archived(t *testing.T, n int) (traces, logs []byte) {
	t.Helper()
	common := strings.Repeat("same ", 800)
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("process.command_line", common)
	s := rs.ScopeSpans().AppendEmpty().Spans().AppendEmpty()
	s.SetName("kernel")
	s.SetTraceID([16]byte{1, byte(n >> 8), byte(n)})
	s.SetSpanID([8]byte{2, byte(n >> 8), byte(n)})
	s.SetStartTimestamp(1)
	s.SetEndTimestamp(2)
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("process.command_line", common)
	rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().Body().SetInt(int64(n))
	traces, err := (&ptrace.JSONMarshaler{}).MarshalTraces(td)
	require.NoError(t, err)
	logs, err = (&plog.JSONMarshaler{}).MarshalLogs(ld)
	require.NoError(t, err)
	return traces, logs
}

// TestReplay_ManyFiles replays more files than the receiver opens at once. They are compressed or
// not, end with a newline or not, and share their first 4 kB. One file is damaged.
func TestReplay_ManyFiles(t *testing.T) {
	const files = 700
	dir := t.TempDir()
	for n := range files {
		traces, logs := archived(t, n)
		content := slices.Concat(traces, []byte("\n"), logs, []byte("\n"))
		name := filepath.Join(dir, fmt.Sprintf("hour=%02d", n%24), fmt.Sprintf("traces_%d.json", n))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o750))
		if n%3 != 0 {
			name += ".gz"
			if n%3 == 1 {
				content = content[:len(content)-1] // as awss3 writes it
			}
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			_, err := w.Write(content)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			content = b.Bytes()
		}
		require.NoError(t, os.WriteFile(name, content, 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad.jsonl"), []byte("{\"resourceSpans\": nonsense\n"), 0o600))
	// A second copy of a file is read once.
	original, err := os.ReadFile(filepath.Join(dir, "hour=03", "traces_3.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "copy.json"), original, 0o600))

	store, server := process.Sink(t)
	p, metrics := startReplay(t, dir, server.Endpoint(), nil)
	store.Settle(time.Second, 30*time.Second, func() bool {
		c := store.Distinct()
		return c.Spans >= files && c.Logs >= files
	})
	resp, err := http.Get(metrics) //nolint:noctx // a request to loopback in a test
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	p.Stop(20 * time.Second)
	assert.Equal(t, files, store.Distinct().Spans)
	assert.Equal(t, files, store.Distinct().Logs)
	assert.Equal(t, files, store.Counts().Spans, "each span comes once")
	assert.Regexp(t, `otelcol_receiver_requests\w*\{[^}]*outcome="failure"[^}]*receiver="otlp_json_file"[^}]*\} 3\n`, string(body), "each of the three signals counts the damaged request")
}
