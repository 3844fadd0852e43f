// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/semconv"
)

// apisOwn is the global provider before any test.
var apisOwn = otel.GetTracerProvider()

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setenv gives the SDK an environment of its own.
func setenv(t testing.TB, pairs ...string) {
	for _, k := range []string{"GPUFLIGHT_OUTPUT", "GPUFLIGHT_DISABLED", "GPUFLIGHT_MAX_SPANS_PER_SECOND", "OTEL_SERVICE_NAME", "OTEL_EXPORTER_OTLP_TIMEOUT", "TRACEPARENT"} {
		t.Setenv(k, "")
	}
	t.Setenv("GPUFLIGHT_LOG_LEVEL", "off")
	t.Setenv("GPUFLIGHT_CUPTI", "/nowhere/libcupti.so")
	for i := 0; i < len(pairs); i += 2 {
		t.Setenv(pairs[i], pairs[i+1])
	}
}

type recorded struct {
	spans map[string]ptrace.Span
	logs  []plog.LogRecord
	attrs map[string]map[string]any // the resource of each span
}

func readAll(t *testing.T, path string) recorded {
	t.Helper()
	r := recorded{spans: map[string]ptrace.Span{}, attrs: map[string]map[string]any{}}
	stats, err := otlp.ReadFile(path, otlp.Handler{
		Traces: func(td ptrace.Traces) {
			for _, rs := range td.ResourceSpans().All() {
				for _, ss := range rs.ScopeSpans().All() {
					for _, s := range ss.Spans().All() {
						r.spans[s.Name()] = s
						r.attrs[s.Name()] = rs.Resource().Attributes().AsRaw()
					}
				}
			}
		},
		Logs: func(ld plog.Logs) {
			for _, rl := range ld.ResourceLogs().All() {
				for _, sl := range rl.ScopeLogs().All() {
					for _, l := range sl.LogRecords().All() {
						r.logs = append(r.logs, l)
					}
				}
			}
		},
	})
	require.NoError(t, err)
	require.Zero(t, stats.Bad)
	return r
}

func TestInit_BudgetAndDeepWindows(t *testing.T) {
	setenv(t, "GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "out.otlp.jsonl"), "GPUFLIGHT_OVERHEAD_BUDGET", "2%")
	_, err := Init(t.Context(), WithDeepWindows(), WithLogger(slog.New(slog.DiscardHandler)))
	require.ErrorContains(t, err, "GPUFLIGHT_OVERHEAD_BUDGET and deep profiling (GPUFLIGHT_DEEP) exclude each other: remove one of them")
	assert.Equal(t, "not_initialized", CurrentStatus().Reason)
}

// Nothing of a GPU is there: the program runs, scopes are spans, and the recording says why.
func TestWithoutGPU(t *testing.T) {
	if CurrentStatus().Reason != "not_initialized" {
		t.Fatal("another test left a session behind")
	}
	path := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	setenv(t, "GPUFLIGHT_OUTPUT", path, "OTEL_SERVICE_NAME", "trainer")
	shutdown, err := Init(t.Context(), WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	status := CurrentStatus()
	if status.Recording {
		_ = shutdown(t.Context())
		t.Skip("there is a CUPTI here that records")
	}
	assert.NotEmpty(t, status.Reason)
	assert.NotEmpty(t, status.Detail)

	_, err = Init(t.Context())
	require.ErrorIs(t, err, ErrInitialized)

	ctx, outer := Scope(t.Context(), "train_step", Attr("step", 7))
	failure := errors.New("out of luck")
	require.ErrorIs(t, Do(ctx, "forward", func(ctx context.Context) error {
		assert.Equal(t, outer.Span().SpanContext().TraceID(), trace.SpanContextFromContext(ctx).TraceID())
		return failure
	}), failure)
	assert.PanicsWithValue(t, "boom", func() {
		_ = Do(ctx, "backward", func(context.Context) error { panic("boom") })
	})
	outer.End()
	outer.End()
	require.NoError(t, shutdown(t.Context()))
	require.NoError(t, shutdown(t.Context()), "a second time does nothing")
	assert.Equal(t, "not_initialized", CurrentStatus().Reason)

	r := readAll(t, path)
	step, forward, backward := r.spans["train_step"], r.spans["forward"], r.spans["backward"]
	assert.Equal(t, map[string]any{semconv.CUDAOperation: "scope", semconv.CUDAScopeSource: "sdk", "step": int64(7)}, step.Attributes().AsRaw())
	assert.Equal(t, step.SpanID(), forward.ParentSpanID())
	assert.Equal(t, ptrace.StatusCodeError, forward.Status().Code())
	assert.Equal(t, "out of luck", forward.Status().Message())
	require.Equal(t, 1, forward.Events().Len())
	assert.Equal(t, "exception", forward.Events().At(0).Name())
	assert.Equal(t, ptrace.StatusCodeError, backward.Status().Code())
	assert.Equal(t, "trainer", r.attrs["train_step"][semconv.ServiceName])
	require.Contains(t, r.spans, "trainer", "the session is named as the service")
	assert.Equal(t, r.attrs["trainer"][semconv.ServiceInstanceID], r.attrs["train_step"][semconv.ServiceInstanceID],
		"spans of the program and of the session have one resource")
	require.Len(t, r.logs, 1)
	assert.Equal(t, semconv.EventCUDACapture, r.logs[0].EventName())

	// And again, since shutdown has ended all.
	path = filepath.Join(t.TempDir(), "second.otlp.jsonl")
	setenv(t, "GPUFLIGHT_OUTPUT", path)
	shutdown, err = Init(t.Context())
	require.NoError(t, err)
	_, scope := Scope(t.Context(), "again")
	scope.End()
	require.NoError(t, shutdown(t.Context()))
	assert.Contains(t, readAll(t, path).spans, "again")
}

func TestInitNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		want, variable, value string
		options               []Option
	}{
		{"GPUFLIGHT_MAX_SPANS_PER_SECOND", "GPUFLIGHT_MAX_SPANS_PER_SECOND", "many", nil},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT", "soon", nil},
		{"GPUFLIGHT_OUTPUT", "GPUFLIGHT_OUTPUT", "/no/such/folder/x.otlp.jsonl", nil},
		{"WithKinds", "OTEL_SERVICE_NAME", "s", []Option{WithKinds("kernels")}},
		{"WithTracerProvider", "OTEL_SERVICE_NAME", "s", []Option{WithTracerProvider(nil)}},
	} {
		want := c.want
		setenv(t, c.variable, c.value)
		shutdown, err := Init(t.Context(), c.options...)
		if assert.ErrorContains(t, err, want) {
			assert.NotContains(t, err.Error(), "\n")
		}
		require.NotNil(t, shutdown)
		assert.NoError(t, shutdown(t.Context()))
		assert.Equal(t, "not_initialized", CurrentStatus().Reason)
	}
}

func TestScopesAreSpansOfTheProgramsProvider(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	path := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	setenv(t, "GPUFLIGHT_OUTPUT", path)
	shutdown, err := Init(t.Context(), WithTracerProvider(provider))
	require.NoError(t, err)
	_, scope := Scope(t.Context(), "step")
	scope.End()
	require.NoError(t, shutdown(t.Context()))
	require.Len(t, spans.Ended(), 1)
	assert.Equal(t, "step", spans.Ended()[0].Name())
	assert.NotContains(t, readAll(t, path).spans, "step", "they are the provider's to send")
}

func TestDisabled(t *testing.T) {
	setenv(t, "GPUFLIGHT_DISABLED", "true")
	shutdown, err := Init(t.Context(), WithTracerProvider(noop.NewTracerProvider()))
	require.NoError(t, err)
	assert.Equal(t, "disabled", CurrentStatus().Reason)
	_, scope := Scope(t.Context(), "step")
	scope.End()
	require.NoError(t, shutdown(t.Context()))
}

// What the API's own provider is has no official mark; if its type moves, this says so.
func TestTheAPIsOwnProviderIsKnown(t *testing.T) {
	starting.Lock()
	defer starting.Unlock()
	assert.True(t, isUnset(apisOwn))
	assert.False(t, isUnset(sdktrace.NewTracerProvider()))
	assert.False(t, isUnset(noop.NewTracerProvider()))
}

func TestAttr(t *testing.T) {
	for _, c := range []struct {
		value any
		want  attribute.Value
	}{
		{"a", attribute.StringValue("a")},
		{true, attribute.BoolValue(true)},
		{7, attribute.IntValue(7)},
		{int32(-7), attribute.Int64Value(-7)},
		{uint32(7), attribute.Int64Value(7)},
		{1.5, attribute.Float64Value(1.5)},
		{float32(0.5), attribute.Float64Value(0.5)},
		{[]string{"a"}, attribute.StringSliceValue([]string{"a"})},
		{time.Second, attribute.StringValue("1s")},
		{uint64(1 << 63), attribute.StringValue("9223372036854775808")},
		{nil, attribute.StringValue("<nil>")},
	} {
		assert.Equal(t, attribute.KeyValue{Key: "k", Value: c.want}, Attr("k", c.value))
	}
}

// Every field of a span survives the way into OTLP.
func TestToTraces(t *testing.T) {
	linked := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{9}, SpanID: trace.SpanID{8}, Remote: true})
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("lib", trace.WithInstrumentationVersion("1.2"))
	_, s := tracer.Start(trace.ContextWithRemoteSpanContext(t.Context(), parent), "name", trace.WithSpanKind(trace.SpanKindServer),
		trace.WithLinks(trace.Link{SpanContext: linked, Attributes: []attribute.KeyValue{attribute.Bool("l", true)}}),
		trace.WithAttributes(attribute.Float64("f", 0.5), attribute.IntSlice("is", []int{1, 2}), attribute.StringSlice("ss", []string{"x"}),
			attribute.BoolSlice("bs", []bool{true}), attribute.Float64Slice("fs", []float64{2})))
	s.AddEvent("event", trace.WithAttributes(attribute.Int("n", 3)))
	s.End()
	td := toTraces(spans.Ended())
	require.Equal(t, 1, td.SpanCount())
	ss := td.ResourceSpans().At(0).ScopeSpans().At(0)
	assert.Equal(t, "lib", ss.Scope().Name())
	assert.Equal(t, "1.2", ss.Scope().Version())
	got := ss.Spans().At(0)
	assert.Equal(t, [16]byte{1}, [16]byte(got.TraceID()))
	assert.Equal(t, [8]byte{2}, [8]byte(got.ParentSpanID()))
	assert.Equal(t, ptrace.SpanKindServer, got.Kind())
	assert.Equal(t, uint32(0x301), got.Flags())
	assert.Equal(t, map[string]any{"f": 0.5, "is": []any{int64(1), int64(2)}, "ss": []any{"x"}, "bs": []any{true}, "fs": []any{2.0}}, got.Attributes().AsRaw())
	assert.Equal(t, "event", got.Events().At(0).Name())
	assert.Equal(t, map[string]any{"n": int64(3)}, got.Events().At(0).Attributes().AsRaw())
	assert.Equal(t, [16]byte{9}, [16]byte(got.Links().At(0).TraceID()))
	assert.Equal(t, map[string]any{"l": true}, got.Links().At(0).Attributes().AsRaw())
	assert.LessOrEqual(t, got.StartTimestamp(), got.EndTimestamp())
}
