// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/semconv"
)

// logKeeper keeps the records of a LoggerProvider.
type logKeeper struct{ records []sdklog.Record }

func (k *logKeeper) OnEmit(_ context.Context, r *sdklog.Record) error {
	k.records = append(k.records, r.Clone())
	return nil
}
func (*logKeeper) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }
func (*logKeeper) Shutdown(context.Context) error                         { return nil }
func (*logKeeper) ForceFlush(context.Context) error                       { return nil }

// collected returns the integer values of a metric by kernel name.
func collected(t *testing.T, reader *sdkmetric.ManualReader, name string) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	values := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		assert.Equal(t, instrumentationName, sm.Scope.Name)
		for _, m := range sm.Metrics {
			if m.Name != name {
				continue
			}
			sum, ok := m.Data.(metricdata.Sum[int64])
			require.True(t, ok, "%T", m.Data)
			assert.True(t, sum.IsMonotonic)
			for _, p := range sum.DataPoints {
				kernel, _ := p.Attributes.Value(semconv.CUDAKernelName)
				values[kernel.AsString()] += p.Value
			}
		}
	}
	return values
}

// TestProviders_OfTheApplication sends scopes, logs and metrics through providers of the application.
func TestProviders_OfTheApplication(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	setenv(t, "GPUFLIGHT_OUTPUT", path, "GPUFLIGHT_METRIC_INTERVAL", "5ms", "GPUFLIGHT_FLUSH_INTERVAL", "5ms")
	gpu := cuptitest.Libraries(t)
	require.Zero(t, gpu.Init())
	logs, reader := &logKeeper{}, sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	start := func() func(context.Context) error {
		shutdown, err := Init(t.Context(), WithMeterProvider(meters), WithTracerProvider(noop.NewTracerProvider()),
			WithLoggerProvider(sdklog.NewLoggerProvider(sdklog.WithProcessor(logs))))
		require.NoError(t, err)
		return shutdown
	}
	shutdown := start()
	gpu.Launch("gemm", 40)
	require.Eventually(t, func() bool {
		return collected(t, reader, semconv.MetricGPUCUDAKernelLaunchCalls)["gemm"] == 40
	}, time.Minute, 5*time.Millisecond, "while the program runs")
	gpu.Launch("relu", 2)
	require.NoError(t, shutdown(t.Context()))
	assert.Equal(t, map[string]int64{"gemm": 40, "relu": 2}, collected(t, reader, semconv.MetricGPUCUDAKernelLaunchCalls), "the final values")

	require.Len(t, logs.records, 1)
	r := logs.records[0]
	assert.Equal(t, semconv.EventCUDACapture, r.EventName())
	assert.Equal(t, log.SeverityInfo, r.Severity())
	assert.WithinDuration(t, time.Now(), r.Timestamp(), time.Hour)
	attributes := map[string]log.Value{}
	r.WalkAttributes(func(kv log.KeyValue) bool {
		attributes[kv.Key] = kv.Value
		return true
	})
	assert.Equal(t, log.KindString, attributes[semconv.CUDACaptureStatus].Kind())

	types := map[pmetric.MetricType]int{}
	_, err := otlp.ReadFile(path, otlp.Handler{
		Logs: func(plog.Logs) { t.Error("the log went to the endpoint too") },
		Metrics: func(md pmetric.Metrics) {
			for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
				types[m.Type()]++
			}
		},
	})
	require.NoError(t, err)
	assert.NotZero(t, types[pmetric.MetricTypeExponentialHistogram], "the API has no asynchronous histogram")
	assert.Len(t, types, 1)

	// A second recording replaces the values of the first.
	shutdown = start()
	gpu.Launch("gemm", 3)
	require.NoError(t, shutdown(t.Context()))
	assert.Equal(t, map[string]int64{"gemm": 3}, collected(t, reader, semconv.MetricGPUCUDAKernelLaunchCalls))
	require.NoError(t, meters.Shutdown(t.Context()))
}

func TestProviders_Nil(t *testing.T) {
	setenv(t)
	for name, o := range map[string]Option{
		"WithMeterProvider": WithMeterProvider(nil), "WithLoggerProvider": WithLoggerProvider(nil), "WithTracerProvider": WithTracerProvider(nil),
	} {
		_, err := Init(t.Context(), o)
		require.EqualError(t, err, "gpufl: "+name+": the provider is nil")
	}
}

// TestGlobals checks in a process of its own that Init sets a global only if it is asked to.
func TestGlobals(t *testing.T) {
	if cmd := child(t); cmd != nil {
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	setenv(t, "GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "out.otlp.jsonl"))
	before := otel.GetTracerProvider()
	shutdown, err := Init(t.Context())
	require.NoError(t, err)
	assert.Same(t, before, otel.GetTracerProvider())
	_, scope := Scope(t.Context(), "step")
	assert.True(t, scope.Span().IsRecording(), "scopes are spans of a provider of their own")
	scope.End()
	require.NoError(t, shutdown(t.Context()))

	shutdown, err = Init(t.Context(), WithGlobalTracerProvider())
	require.NoError(t, err)
	assert.IsType(t, &sdktrace.TracerProvider{}, otel.GetTracerProvider())
	require.NoError(t, shutdown(t.Context()))
}

// TestWarnings_NoCollector checks that a missing collector is one warning and one error, although
// there are three signals.
func TestWarnings_NoCollector(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			setenv(t, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+gone.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL", protocol,
				"GPUFLIGHT_METRIC_INTERVAL", "5ms", "GPUFLIGHT_FLUSH_INTERVAL", "5ms", "OTEL_BSP_SCHEDULE_DELAY", "5")
			var text bytes.Buffer
			gpu := cuptitest.Libraries(t)
			require.Zero(t, gpu.Init())
			shutdown, err := Init(t.Context(), WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
			require.NoError(t, err)
			gpu.Launch("gemm", 5)
			time.Sleep(50 * time.Millisecond) // several exports
			err = shutdown(t.Context())
			require.ErrorContains(t, err, "6 spans, 1 log record, ")
			assert.NotContains(t, err.Error(), "\n")
			assert.Contains(t, err.Error(), " were not sent to "+gone.Addr().String()+" (unreachable): ")
			assert.Equal(t, 1, strings.Count(text.String(), "level=WARN"), text.String())
			assert.NotContains(t, text.String(), "level=ERROR")
		})
	}
}

func TestLogAttributes(t *testing.T) {
	m := pcommon.NewMap()
	require.NoError(t, m.FromRaw(map[string]any{"a": []any{"x", int64(1)}, "b": map[string]any{"c": true}, "d": 1.5, "e": []byte{1}, "f": nil}))
	got := map[string]log.Value{}
	for _, kv := range logAttributes(m) {
		got[kv.Key] = kv.Value
	}
	assert.True(t, got["a"].Equal(log.SliceValue(log.StringValue("x"), log.Int64Value(1))))
	assert.True(t, got["b"].Equal(log.MapValue(log.Bool("c", true))))
	assert.True(t, got["d"].Equal(log.Float64Value(1.5)))
	assert.True(t, got["e"].Equal(log.BytesValue([]byte{1})))
	assert.True(t, got["f"].Equal(log.Value{}))
}
