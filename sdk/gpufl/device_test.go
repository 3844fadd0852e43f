// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/semconv"
)

// recordOn begins to record on the fake GPU into a file. stop ends it and returns all spans.
func recordOn(t *testing.T, pairs ...string) (gpu *cuptitest.Fake, stop func() []ptrace.Span) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	setenv(t, append([]string{"GPUFLIGHT_OUTPUT", path, "GPUFLIGHT_MAX_SPANS_PER_SECOND", "1000000"}, pairs...)...)
	gpu = cuptitest.Libraries(t) // after setenv, which hides a real one
	require.Zero(t, gpu.Init())
	shutdown, err := Init(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = shutdown(context.Background()) })
	require.True(t, CurrentStatus().Recording, CurrentStatus().Detail)
	return gpu, func() []ptrace.Span {
		require.NoError(t, shutdown(t.Context()))
		return spansOf(t, path)
	}
}

func spansOf(t *testing.T, path string) []ptrace.Span {
	t.Helper()
	var spans []ptrace.Span
	stats, err := otlp.ReadFile(path, otlp.Handler{Traces: func(td ptrace.Traces) {
		for _, rs := range td.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					spans = append(spans, s)
				}
			}
		}
	}})
	require.NoError(t, err)
	require.Zero(t, stats.Bad)
	return spans
}

// only returns the span of that name, of which there must be one.
func only(t *testing.T, spans []ptrace.Span, name string) ptrace.Span {
	t.Helper()
	var found []ptrace.Span
	for _, s := range spans {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	require.Len(t, found, 1, name)
	return found[0]
}

// kernels counts kernels by their parent span.
func kernels(spans []ptrace.Span) map[pcommon.SpanID]int {
	n := map[pcommon.SpanID]int{}
	for _, s := range spans {
		if v, ok := s.Attributes().Get(semconv.CUDAOperation); ok && v.Str() == semconv.CUDAOperationKernel {
			n[s.ParentSpanID()]++
		}
	}
	return n
}

// Request, scope, inner scope: each kernel is under the innermost scope that was open at its
// launch.
func TestKernelsAreUnderTheirScope(t *testing.T) {
	gpu, stop := recordOn(t, "OTEL_SERVICE_NAME", "svc")
	ctx, request := current.Load().tracer.Start(t.Context(), "GET /work", trace.WithSpanKind(trace.SpanKindServer))
	gpu.Launch("outside", 3)
	ctx, outer := Scope(ctx, "outer")
	gpu.Launch("k", 5)
	_, inner := Scope(ctx, "inner")
	gpu.Launch("k", 7)
	inner.End()
	gpu.Launch("k", 11)
	outer.End()
	request.End()
	spans := stop()

	o, i, session := only(t, spans, "outer"), only(t, spans, "inner"), only(t, spans, "svc")
	server := only(t, spans, "GET /work")
	assert.Equal(t, server.SpanID(), o.ParentSpanID())
	assert.Equal(t, o.SpanID(), i.ParentSpanID())
	assert.Equal(t, map[pcommon.SpanID]int{o.SpanID(): 16, i.SpanID(): 7, session.SpanID(): 3}, kernels(spans))
	for _, s := range spans {
		if s.ParentSpanID() == o.SpanID() || s.ParentSpanID() == i.SpanID() {
			assert.Equal(t, server.TraceID(), s.TraceID())
		}
	}
	assert.NotEqual(t, server.TraceID(), session.TraceID(), "a request is a trace of its own")
}

func TestEachGoroutineHasItsOwnScopes(t *testing.T) {
	gpu, stop := recordOn(t)
	const goroutines, rounds = 8, 20
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for range rounds {
				_ = Do(t.Context(), fmt.Sprint("scope ", g), func(ctx context.Context) error {
					gpu.Launch(fmt.Sprint("kernel_", g), g+1)
					runtime.Gosched()
					return Do(ctx, "inner", func(context.Context) error {
						gpu.Launch(fmt.Sprint("kernel_", g), 1)
						return nil
					})
				})
			}
		})
	}
	all.Wait()
	spans := stop()
	under := kernels(spans)
	names := map[pcommon.SpanID]string{}
	parents := map[pcommon.SpanID]pcommon.SpanID{}
	total := 0
	for _, s := range spans {
		names[s.SpanID()], parents[s.SpanID()] = s.Name(), s.ParentSpanID()
	}
	for id, n := range under {
		var g int
		if names[id] == "inner" {
			assert.Equal(t, 1, n)
		} else {
			_, err := fmt.Sscanf(names[id], "scope %d", &g)
			require.NoError(t, err, "a kernel is under %q", names[id])
			assert.Equal(t, g+1, n, names[id])
		}
		total += n
	}
	assert.Len(t, under, 2*goroutines*rounds)
	assert.Equal(t, rounds*(goroutines*(goroutines+1)/2+goroutines), total)
	for _, s := range spans {
		var k, g int
		if _, err := fmt.Sscanf(s.Name(), "kernel_%d", &k); err != nil {
			continue
		}
		scope := s.ParentSpanID()
		if names[scope] == "inner" {
			scope = parents[scope]
		}
		_, err := fmt.Sscanf(names[scope], "scope %d", &g)
		require.NoError(t, err)
		assert.Equal(t, k, g, "a kernel is in another goroutine's scope")
	}
}

func TestScopesEndInAnyOrder(t *testing.T) {
	gpu, stop := recordOn(t)
	ctx, outer := Scope(t.Context(), "outer")
	_, inner := Scope(ctx, "inner")
	outer.End()
	outer.End()
	gpu.Launch("k", 2)
	inner.End()
	_, next := Scope(t.Context(), "next")
	gpu.Launch("k", 3)
	next.End()
	assert.Zero(t, CurrentStatus().MisplacedScopes)
	spans := stop()
	assert.Equal(t, map[pcommon.SpanID]int{only(t, spans, "inner").SpanID(): 2, only(t, spans, "next").SpanID(): 3}, kernels(spans))
}

// A scope that another goroutine ends is ended, and what its own launches after that is not in it.
func TestScopeEndedByAnotherGoroutine(t *testing.T) {
	gpu, stop := recordOn(t, "OTEL_SERVICE_NAME", "svc")
	began, ended, done := make(chan *ActiveScope), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_, s := Scope(t.Context(), "handed over")
		gpu.Launch("k", 2)
		began <- s
		<-ended
		gpu.Launch("k", 1)
	}()
	s := <-began
	_, own := Scope(t.Context(), "own")
	s.End()
	close(ended)
	<-done
	gpu.Launch("k", 4)
	own.End()
	assert.Equal(t, uint64(1), CurrentStatus().MisplacedScopes)
	spans := stop()
	assert.Equal(t, map[pcommon.SpanID]int{
		only(t, spans, "handed over").SpanID(): 2, only(t, spans, "own").SpanID(): 4, only(t, spans, "svc").SpanID(): 1,
	}, kernels(spans))
}

// locked reports whether f leaves its goroutine locked to its thread.
func locked(f func()) bool {
	result := make(chan bool)
	go func() {
		f()
		head := make([]byte, 100)
		head = head[:runtime.Stack(head, false)]
		first, _, _ := strings.Cut(string(head), "\n")
		result <- strings.Contains(first, "locked to thread")
	}()
	return <-result
}

func TestGoroutineIsHeldOnlyWhileItMustBe(t *testing.T) {
	var s *ActiveScope
	assert.False(t, locked(func() { _, s = Scope(t.Context(), "not recorded") }))
	s.End()

	_, stop := recordOn(t)
	assert.True(t, locked(func() { _, s = Scope(t.Context(), "open") }))
	s.End() // by another goroutine, whose own is gone
	assert.False(t, locked(func() {
		ctx, outer := Scope(t.Context(), "outer")
		_, inner := Scope(ctx, "inner")
		outer.End()
		inner.End()
		inner.End()
	}))
	stop()
}

func TestUnsampledScopesMakeNoSpans(t *testing.T) {
	summaries := t.TempDir()
	gpu, stop := recordOn(t, "OTEL_TRACES_SAMPLER", "always_off", "OTEL_SERVICE_NAME", "svc", "GPUFLIGHT_SUMMARY_DIR", summaries)
	require.NoError(t, Do(t.Context(), "quiet", func(context.Context) error {
		gpu.Launch("k", 9)
		return nil
	}))
	gpu.Launch("k", 2)
	spans := stop()
	assert.Equal(t, map[pcommon.SpanID]int{only(t, spans, "svc").SpanID(): 2}, kernels(spans))
	files, err := filepath.Glob(filepath.Join(summaries, "*.json"))
	require.NoError(t, err)
	assert.Len(t, files, 1)
}

func TestTraceparent(t *testing.T) {
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3, 4}})
	ref := gpuevent.Ref{Trace: gpuevent.TraceID(parent.TraceID()), Span: gpuevent.SpanID(parent.SpanID())}
	work := func(t *testing.T, gpu *cuptitest.Fake) {
		for range 2 {
			require.NoError(t, Do(t.Context(), "step", func(ctx context.Context) error {
				return Do(ctx, "inner", func(context.Context) error { gpu.Launch("k", 1); return nil })
			}))
		}
	}
	t.Run("sampled", func(t *testing.T) {
		gpu, stop := recordOn(t, "TRACEPARENT", recorder.Traceparent(ref, true), "OTEL_SERVICE_NAME", "svc")
		work(t, gpu)
		spans := stop()
		session := only(t, spans, "svc")
		assert.Equal(t, pcommon.SpanID(parent.SpanID()), session.ParentSpanID())
		assert.Equal(t, pcommon.TraceID(parent.TraceID()), session.TraceID())
		traces := map[pcommon.TraceID]bool{session.TraceID(): true}
		for _, s := range spans {
			if s.Name() != "step" {
				continue
			}
			assert.True(t, s.ParentSpanID().IsEmpty())
			assert.False(t, traces[s.TraceID()], "each step has another trace")
			traces[s.TraceID()] = true
			require.Equal(t, 1, s.Links().Len())
			assert.Equal(t, session.TraceID(), s.Links().At(0).TraceID())
			assert.Equal(t, session.SpanID(), s.Links().At(0).SpanID())
		}
		assert.Len(t, traces, 3)
		for _, s := range spans {
			assert.True(t, traces[s.TraceID()], s.Name())
			if s.Name() == "inner" {
				assert.False(t, s.ParentSpanID().IsEmpty())
				assert.Zero(t, s.Links().Len())
			}
		}
		assert.Len(t, kernels(spans), 2)
	})
	t.Run("request", func(t *testing.T) {
		gpu, stop := recordOn(t, "TRACEPARENT", recorder.Traceparent(ref, true), "OTEL_SERVICE_NAME", "svc")
		ctx, request := current.Load().tracer.Start(t.Context(), "GET /work", trace.WithNewRoot())
		require.NoError(t, Do(ctx, "step", func(context.Context) error { gpu.Launch("k", 3); return nil }))
		request.End()
		spans := stop()
		server, step := only(t, spans, "GET /work"), only(t, spans, "step")
		assert.Equal(t, server.SpanID(), step.ParentSpanID())
		assert.Equal(t, server.TraceID(), step.TraceID())
		assert.NotEqual(t, pcommon.TraceID(parent.TraceID()), step.TraceID())
		assert.Zero(t, step.Links().Len())
		assert.Equal(t, map[pcommon.SpanID]int{step.SpanID(): 3}, kernels(spans))
	})
	t.Run("not sampled", func(t *testing.T) {
		gpu, stop := recordOn(t, "TRACEPARENT", recorder.Traceparent(ref, false), "OTEL_SERVICE_NAME", "svc")
		work(t, gpu)
		assert.Empty(t, stop())
	})
}

// A recording can be ended and begun again, also with a scope open across both.
func TestAgainAndAgain(t *testing.T) {
	for round := range 20 {
		gpu, stop := recordOn(t)
		ctx, open := Scope(t.Context(), "open")
		_ = Do(ctx, "step", func(context.Context) error { gpu.Launch("k", 5); return nil })
		spans := stop()
		open.End()
		assert.Equal(t, map[pcommon.SpanID]int{only(t, spans, "step").SpanID(): 5}, kernels(spans), "round %d", round)
	}
}

// The first launch of a scope has the stack of its begin.
func TestScope_Stack(t *testing.T) {
	gpu, stop := recordOn(t, "GPUFLIGHT_STACKS", "true")
	var line int
	for range 2 {
		_, _, line, _ = runtime.Caller(0)
		_, scope := Scope(t.Context(), "step") // in the next line
		gpu.Launch("k", 3)
		scope.End()
	}
	gpu.Launch("outside", 1)
	_, file, _, _ := runtime.Caller(0)
	want := fmt.Sprintf("github.com/gpuflight/gpuflight/sdk/gpufl.TestScope_Stack (%s:%d)\ntesting.tRunner (", file, line+1)
	found := 0
	for _, s := range stop() {
		if v, ok := s.Attributes().Get(semconv.CodeStacktrace); ok {
			found++
			assert.Equal(t, "k", s.Name())
			assert.True(t, strings.HasPrefix(v.Str(), want), v.Str())
		}
	}
	assert.Equal(t, 2, found, "one of each scope")
}

func TestStacks_Bound(t *testing.T) {
	assert.Empty(t, (*stacks)(nil).of())
	s := &stacks{texts: map[[maxFrames]uintptr]string{}}
	for i := range uintptr(maxStacks) {
		s.texts[[maxFrames]uintptr{i}] = "x"
	}
	assert.Empty(t, s.of())
	assert.Len(t, s.texts, maxStacks)
}

func BenchmarkStack(b *testing.B) {
	s := &stacks{}
	b.ReportAllocs()
	for b.Loop() {
		s.of()
	}
}

// What a scope costs beside a span, without and with recording.
func BenchmarkScope(b *testing.B) {
	provider := sdktrace.NewTracerProvider()
	b.Run("span", func(b *testing.B) {
		tracer := provider.Tracer("bench")
		b.ReportAllocs()
		for b.Loop() {
			_, s := tracer.Start(b.Context(), "step", trace.WithAttributes(operationScope, sourceSDK))
			s.End()
		}
	})
	scopes := func(b *testing.B) {
		shutdown, err := Init(b.Context(), WithTracerProvider(provider))
		require.NoError(b, err)
		defer shutdown(context.Background()) //nolint:errcheck // Nothing is asserted of what is sent.
		b.ReportAllocs()
		for b.Loop() {
			_, s := Scope(b.Context(), "step")
			s.End()
		}
	}
	b.Run("scope/unavailable", func(b *testing.B) {
		setenv(b, "GPUFLIGHT_DISABLED", "true")
		scopes(b)
	})
	b.Run("scope/recording", func(b *testing.B) {
		setenv(b, "GPUFLIGHT_OUTPUT", filepath.Join(b.TempDir(), "out.otlp.jsonl"))
		gpu := cuptitest.Libraries(b)
		require.Zero(b, gpu.Init())
		scopes(b)
	})
}
