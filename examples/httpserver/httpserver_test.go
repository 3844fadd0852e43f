// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/examples/internal/cuda"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/sdk/gpufl"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestWithoutDriver(t *testing.T) {
	if cuda.Open() == nil {
		t.Skip("there is a driver here, or the fake one of an earlier run")
	}
	t.Setenv("GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "out.otlp.jsonl"))
	t.Setenv("GPUFLIGHT_LOG_LEVEL", "off")
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"-self-test", "1", "-listen", "127.0.0.1:0"}, &stdout, &stderr)
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr.String(), "needs an NVIDIA GPU and its driver")
}

// Every request's trace holds exactly its kernels and copies, under the request's scope.
func TestRequestsHaveTheirKernels(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	t.Setenv("GPUFLIGHT_OUTPUT", path)
	t.Setenv("GPUFLIGHT_LOG_LEVEL", "off")
	t.Setenv("GPUFLIGHT_MAX_SPANS_PER_SECOND", "1000000")
	cuptitest.Libraries(t)
	var stdout, stderr bytes.Buffer
	const requests = 1000
	require.Equal(t, 0, run(t.Context(), []string{"-self-test", "1000", "-concurrency", "32", "-listen", "127.0.0.1:0"}, &stdout, &stderr), stderr.String())
	var result struct {
		Requests  []answer
		Recording gpufl.Status
	}
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &result))
	require.True(t, result.Recording.Recording, result.Recording.Detail)
	require.Len(t, result.Requests, requests)
	want := map[string]answer{}
	for i, a := range result.Requests {
		assert.Equal(t, i%7+1, a.Launched)
		want[a.TraceID] = a
	}
	require.Len(t, want, requests, "each request has its own trace")

	got := map[string]answer{}
	operation, parent, server := map[string]string{}, map[string]string{}, map[string]bool{}
	var work [][2]string // trace and parent of kernels and copies
	_, err := otlp.ReadFile(path, otlp.Handler{Traces: func(td ptrace.Traces) {
		for _, rs := range td.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					op := ""
					if v, ok := s.Attributes().Get(semconv.CUDAOperation); ok {
						op = v.Str()
					}
					id, trace := s.SpanID().String(), s.TraceID().String()
					operation[id], parent[id], server[id] = op, s.ParentSpanID().String(), s.Kind() == ptrace.SpanKindServer
					a := got[trace]
					switch op {
					case semconv.CUDAOperationKernel:
						a.Launched++
					case semconv.CUDAOperationMemcpy:
						a.Copies++
					default:
						continue
					}
					a.TraceID = trace
					got[trace] = a
					work = append(work, [2]string{trace, s.ParentSpanID().String()})
				}
			}
		}
	}})
	require.NoError(t, err)
	assert.Equal(t, want, got)
	for _, w := range work {
		require.Equal(t, semconv.CUDAOperationScope, operation[w[1]])
		require.True(t, server[parent[w[1]]], "a scope is under its request")
	}
}

func TestBadRequests(t *testing.T) {
	h := handler(nil) // refused before any work
	for _, query := range []string{"", "launches=0", "launches=-3", "launches=10001", "launches=many"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/work?"+query, nil))
		assert.Equal(t, http.StatusBadRequest, w.Code, query)
	}
}
