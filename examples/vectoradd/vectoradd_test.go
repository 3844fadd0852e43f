// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/examples/internal/cuda"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestWithoutDriver(t *testing.T) {
	if cuda.Open() == nil {
		t.Skip("there is a driver here, or the fake one of an earlier run")
	}
	t.Setenv("GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "out.otlp.jsonl"))
	t.Setenv("GPUFLIGHT_LOG_LEVEL", "off")
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), nil, &stdout, &stderr)
	assert.Equal(t, 1, code)
	assert.Empty(t, stdout.String())
	assert.Contains(t, stderr.String(), "needs an NVIDIA GPU and its driver")
}

func TestBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-n", "7"}, {"-n", "513"}, {"-launches", "1"}, {"-threads", "0"}, {"-graph", "-1"}, {"-what"}} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, 2, run(t.Context(), args, &stdout, &stderr), args)
		assert.NotEmpty(t, stderr.String())
	}
}

// The fake GPU copies and counts but does not calculate: everything is recorded as it was launched, and
// the check sees that the sums are missing.
func TestOnTheFakeGPU(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	t.Setenv("GPUFLIGHT_OUTPUT", path)
	t.Setenv("GPUFLIGHT_LOG_LEVEL", "off")
	t.Setenv("GPUFLIGHT_MAX_SPANS_PER_SECOND", "1000000")
	cuptitest.Libraries(t)
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"-n", "1024", "-launches", "11", "-threads", "3", "-empty", "5", "-json"}, &stdout, &stderr)
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr.String(), errWrong.Error())
	var r report
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &r), stderr.String())
	assert.False(t, r.Verified)
	require.True(t, r.Recording.Recording, r.Recording.Detail)
	assert.Equal(t, map[string]int{"vector_add": 33, "reverse_blocks": 6, "nothing": 5}, r.Kernels)
	assert.Equal(t, map[string]amount{"HtoD": {12, 3 * 2 * 4096}, "DtoH": {6, 3 * 4096}}, r.Copies)

	recorded, grids, copied := map[string]int{}, map[string][]any{}, map[string]int64{}
	names, parents := map[string]string{}, map[string]string{}
	var spans []ptrace.Span
	_, err := otlp.ReadFile(path, otlp.Handler{Traces: func(td ptrace.Traces) {
		for _, rs := range td.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					spans = append(spans, s)
					names[s.SpanID().String()], parents[s.SpanID().String()] = s.Name(), s.ParentSpanID().String()
				}
			}
		}
	}})
	require.NoError(t, err)
	for _, s := range spans {
		a := s.Attributes().AsRaw()
		worker := names[parents[s.ParentSpanID().String()]]
		switch a[semconv.CUDAOperation] {
		case semconv.CUDAOperationKernel:
			recorded[s.Name()]++
			if s.Name() == "vector_add" {
				assert.Equal(t, "compute", names[s.ParentSpanID().String()])
				if known, ok := grids[worker]; ok {
					assert.Equal(t, known, a[semconv.CUDAKernelGrid])
				}
				grids[worker] = a[semconv.CUDAKernelGrid].([]any)
				assert.Equal(t, int64(dynamicShared), a[semconv.CUDAKernelSharedMemoryDynamic])
			}
		case semconv.CUDAOperationMemcpy:
			copied[a[semconv.CUDAMemcpyKind].(string)] += a[semconv.CUDAMemcpySize].(int64)
		}
	}
	assert.Equal(t, r.Kernels, recorded)
	assert.Equal(t, map[string]int64{"HtoD": r.Copies["HtoD"].Bytes, "DtoH": r.Copies["DtoH"].Bytes}, copied)
	for _, w := range r.Workers {
		assert.Equal(t, []any{int64(w.Grid[0]), int64(1), int64(1)}, grids[w.Scope])
		assert.Equal(t, [2]int{6, 5}, w.Launches)
		assert.Equal(t, w.Scope, names[w.SpanID])
	}
	assert.Len(t, grids, 3)
}
