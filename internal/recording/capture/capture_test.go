// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(t *testing.T, env map[string]string) Options {
	t.Helper()
	getenv := func(k string) string { return env[k] }
	settings, err := recorder.SettingsFromEnv(getenv)
	require.NoError(t, err)
	sending, err := otlp.FromEnv(getenv)
	require.NoError(t, err)
	return Options{Settings: settings, Sending: sending}
}

// recording returns the number of kernel spans of a file and its one capture log.
func recording(t *testing.T, path string) (kernels int, spans []string, capture plog.LogRecord) {
	t.Helper()
	found := 0
	_, err := otlp.ReadFile(path, otlp.Handler{
		Traces: func(td ptrace.Traces) {
			for _, rs := range td.ResourceSpans().All() {
				for _, ss := range rs.ScopeSpans().All() {
					for _, s := range ss.Spans().All() {
						spans = append(spans, s.Name())
						if v, _ := s.Attributes().Get(semconv.CUDAOperation); v.Str() == semconv.CUDAOperationKernel {
							kernels++
						}
					}
				}
			}
		},
		Logs: func(ld plog.Logs) {
			found += ld.LogRecordCount()
			capture = ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
		},
	})
	require.NoError(t, err)
	require.Equal(t, 1, found, "capture logs")
	return kernels, spans, capture
}

func TestCapture_Recording(t *testing.T) {
	gpu := cuptitest.Libraries(t)
	require.Zero(t, gpu.Init())
	for round := range 3 { // a second recording can start
		dir := t.TempDir()
		path := filepath.Join(dir, "out.otlp.jsonl.zst")
		c, err := Start(options(t, map[string]string{
			"GPUFLIGHT_OUTPUT": path, "GPUFLIGHT_CUPTI": gpu.CUPTI, "GPUFLIGHT_SUMMARY_DIR": dir, "OTEL_SERVICE_NAME": "svc", "GPUFLIGHT_MAX_SPANS_PER_SECOND": "100000",
		}))
		require.NoError(t, err)
		require.True(t, c.Status().OK(), c.Status().Detail)
		second, err := Start(options(t, map[string]string{"GPUFLIGHT_OUTPUT": filepath.Join(dir, "other"), "GPUFLIGHT_CUPTI": gpu.CUPTI}))
		require.NoError(t, err, "a second one is no error, but records nothing")
		assert.Equal(t, cupti.ReasonBusy, second.Status().Reason)
		_, err = second.Stop(t.Context(), true)
		require.NoError(t, err)

		gpu.LaunchThreads(2, 500, "_Z6kernelv")
		summary, err := c.Stop(t.Context(), true)
		require.NoError(t, err)
		again, err := c.Stop(t.Context(), true)
		require.NoError(t, err)
		assert.Equal(t, summary, again)

		kernels, _, capture := recording(t, path)
		assert.Equal(t, 1000, kernels, "round %d", round)
		assert.Equal(t, uint64(1000), summary.KernelCount)
		assert.Equal(t, uint64(1000), summary.Spans.Emitted)
		assert.Equal(t, semconv.EventCUDACapture, capture.EventName())
		require.Len(t, summary.Delivery, 3)
		assert.Equal(t, recorder.Delivery{Signal: "traces", To: path, Sent: 1001, Unsent: map[string]uint64{}}, summary.Delivery[0])

		files, err := filepath.Glob(filepath.Join(dir, "*.json"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		text, err := os.ReadFile(files[0])
		require.NoError(t, err)
		var written recorder.Summary
		require.NoError(t, json.Unmarshal(text, &written))
		assert.Equal(t, uint64(1000), written.KernelCount)
		assert.Equal(t, uint64(1001), written.Delivery[0].Sent)
	}
}

func TestCapture_Unavailable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	c, err := Start(options(t, map[string]string{"GPUFLIGHT_OUTPUT": path, "GPUFLIGHT_CUPTI": filepath.Join(t.TempDir(), "libcupti.so"), "OTEL_SERVICE_NAME": "svc"}))
	require.NoError(t, err)
	assert.Nil(t, c.Recorder())
	assert.False(t, c.Status().OK())
	time.Sleep(2 * time.Millisecond)
	summary, err := c.Stop(t.Context(), false)
	require.NoError(t, err)
	assert.Equal(t, c.Status().Reason, summary.Reason)
	assert.Greater(t, summary.EndNs, summary.StartNs, "the session lasted from Start to Stop")
	_, spans, capture := recording(t, path)
	assert.Equal(t, []string{"svc"}, spans)
	assert.Equal(t, plog.SeverityNumberWarn, capture.SeverityNumber())
}

func TestCapture_SwitchedOff(t *testing.T) {
	for _, variable := range []string{"GPUFLIGHT_DISABLED", "OTEL_SDK_DISABLED"} {
		c, err := Start(options(t, map[string]string{variable: "true"}))
		require.NoError(t, err)
		assert.Equal(t, cupti.ReasonDisabled, c.Status().Reason)
		assert.Nil(t, c.Client())
		_, err = c.Stop(t.Context(), true)
		require.NoError(t, err)
	}
}

func TestStart_BudgetAndDeepProfiling(t *testing.T) {
	o := options(t, map[string]string{"GPUFLIGHT_OUTPUT": filepath.Join(t.TempDir(), "out.jsonl"), "GPUFLIGHT_OVERHEAD_BUDGET": "2%"})
	o.Deep.Enabled = true
	c, err := Start(o)
	assert.Nil(t, c)
	assert.EqualError(t, err, "GPUFLIGHT_OVERHEAD_BUDGET and deep profiling (GPUFLIGHT_DEEP) exclude each other: remove one of them")
	assert.NoFileExists(t, o.Sending.File)
}

// TestCaptureStop_SlowEndpoint checks an endpoint that needs longer than the shutdown timeout for all
// data, and one that stops accepting.
func TestCaptureStop_SlowEndpoint(t *testing.T) {
	gpu := cuptitest.Libraries(t)
	require.Zero(t, gpu.Init())
	for name, accepts := range map[string]int64{"accepts": 1 << 30, "stops accepting": 5} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64
			over := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if requests.Add(1) > accepts {
					<-over
				}
				time.Sleep(150 * time.Millisecond)
			}))
			defer server.Close()
			defer close(over)
			o := options(t, map[string]string{
				"GPUFLIGHT_CUPTI": gpu.CUPTI, "OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "GPUFLIGHT_MAX_SPANS_PER_SECOND": "unlimited",
				"GPUFLIGHT_SHUTDOWN_TIMEOUT": "4s", "GPUFLIGHT_DRAIN_TIMEOUT": "5m", "OTEL_EXPORTER_OTLP_TIMEOUT": "3600000",
			})
			o.Sending.RequestBytes = 32 << 10
			c, err := Start(o)
			require.NoError(t, err)
			gpu.LaunchThreads(1, 6000, "_Z6kernelv")
			require.Eventually(t, func() bool { return c.Client().Stats()[otlp.Traces].Sent > 0 }, 2*time.Minute, time.Millisecond)
			summary, err := c.Stop(t.Context(), false)
			assert.Equal(t, uint64(6000), summary.KernelCount)
			traces := summary.Delivery[0]
			if accepts > 5 {
				require.NoError(t, err)
				assert.Equal(t, uint64(6001), traces.Sent)
				assert.Greater(t, requests.Load(), int64(4*4000/150), "more than four in flight can send in the shutdown timeout")
				return
			}
			require.Error(t, err)
			assert.Equal(t, uint64(6001), traces.Sent+traces.Unsent[otlp.ReasonShutdown])
			assert.NotZero(t, traces.Sent)
		})
	}
}

func TestCaptureStop_UnreachableEndpoint(t *testing.T) {
	gpu := cuptitest.Libraries(t)
	require.Zero(t, gpu.Init())
	c, err := Start(options(t, map[string]string{
		"GPUFLIGHT_CUPTI": gpu.CUPTI, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://192.0.2.1:4318", "GPUFLIGHT_SHUTDOWN_TIMEOUT": "300ms",
		"OTEL_EXPORTER_OTLP_TIMEOUT": "3600000",
	}))
	require.NoError(t, err)
	gpu.LaunchThreads(1, 10, "_Z6kernelv")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	summary, err := c.Stop(ctx, false)
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "the bound is that of the settings")
	assert.Equal(t, uint64(10), summary.KernelCount)
	assert.Equal(t, uint64(0), summary.Delivery[0].Sent)
	assert.NotEmpty(t, summary.Delivery[0].Unsent)
}
