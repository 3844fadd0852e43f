// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
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

// forest gathers spans into trees. A span whose parent is not there is a root.
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

// count returns how many of an operation hang below a node, at any depth.
func (n *node) count(operation string) (c int) {
	for _, child := range n.children {
		if child.operation() == operation {
			c++
		}
		c += child.count(operation)
	}
	return c
}

// TestReplayedRecordingsInJaeger sends what `gpuflight trace` and the SDK recorded on an H200 through the
// distribution's otlp_json_file receiver into Jaeger, and looks there for the tree that the user wants
// to see: request, scope, kernels.
func TestReplayedRecordingsInJaeger(t *testing.T) {
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
	p := process.Start(t, process.Collector.Find(t), "--config", replayConfig(t, dir, j.otlp))
	var got forest
	process.Eventually(t, time.Minute, fmt.Sprintf("%d spans in Jaeger", len(recorded)), func() bool {
		time.Sleep(200 * time.Millisecond) // each look fetches everything
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

// replayConfig is a Collector that reads a folder of recordings and sends the spans on.
func replayConfig(t *testing.T, dir, endpoint string) string {
	t.Helper()
	config := map[string]any{
		"receivers": map[string]any{"otlp_json_file": map[string]any{
			"include": []string{filepath.Join(dir, "*.otlp.jsonl.gz")}, "start_at": "beginning", "compression": "gzip",
		}},
		"exporters": map[string]any{"otlp_grpc": map[string]any{"endpoint": endpoint, "tls": map[string]any{"insecure": true}}},
		"service": map[string]any{
			"telemetry": map[string]any{"metrics": map[string]any{"level": "none"}},
			"pipelines": map[string]any{"traces": map[string]any{"receivers": []string{"otlp_json_file"}, "exporters": []string{"otlp_grpc"}}},
		},
	}
	b, err := json.Marshal(config)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "replay.yaml")
	require.NoError(t, os.WriteFile(file, b, 0o600))
	return file
}
