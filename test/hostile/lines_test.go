// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hostile_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

const (
	token = "a-token-of-the-hostile-tests"
	// memoryLimit is the most resident memory of a Collector with a shipped configuration.
	memoryLimit = 500 << 20
	// columns are those of a device_metric_batch with all optional ones: 18 data points a row.
	columns = `["dt_ns","device_id","gpu_util","mem_util","temp_c","power_mw","used_mib","total_mib","clock_sm",` +
		`"fan_speed_pct","temp_mem_c","temp_junction_c","voltage_mv","energy_uj","clock_mem","pcie_bw_bps","ecc_corrected","ecc_uncorrected"]`
	baseTime = 1_790_000_000_000_000_000
)

// deviceLine is one device_metric_batch of about the given size. It is the line of the review.
func deviceLine(session string, size int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"type":"device_metric_batch","version":1,"session_id":"%s","batch_id":1,"base_time_ns":%d,"columns":%s,"rows":[`,
		session, int64(baseTime), columns)
	for i := 0; b.Len() < size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "[%d,0,1,1,1,1,1,1,1,1,1,2,1,1,1,1,1,1]", i%100)
	}
	b.WriteString("]}\n")
	return b.Bytes()
}

// points is the number of data points of a deviceLine.
func points(line []byte) int64 {
	rows := bytes.Count(line, []byte{'['}) - 2 // those of columns and rows
	one := gpuevent.NewBatch(gpuevent.Signals{Metrics: true})
	row := append(bytes.SplitAfter(line, []byte("]"))[0], `,"rows":[[0,0,1,1,1,1,1,1,1,1,1,2,1,1,1,1,1,1]]}`...)
	gpuflog.NewDecoder(gpuflog.Options{}).Feed(gpuflog.System, row, 0, baseTime, one)
	return int64(rows) * int64(one.Points())
}

// smallSession is a session as a recorder writes it: a header, one kernel and the end.
func smallSession(session string) []byte {
	return fmt.Appendf(nil, `{"type":"job_start","version":1,"session_id":"%[1]s","pid":1,"app":"small","ts_ns":%[2]d}
{"type":"dictionary_update","version":1,"session_id":"%[1]s","kernel_dict":{"1":"k"}}
{"type":"kernel_event_batch","version":1,"session_id":"%[1]s","batch_id":1,"base_time_ns":%[2]d,"columns":["dt_ns","kernel_id","stream_id","duration_ns","corr_id"],"rows":[[0,1,0,1000,1]]}
{"type":"shutdown","version":1,"session_id":"%[1]s","ts_ns":%[3]d}
`, session, int64(baseTime), int64(baseTime)+1e9)
}

func compressed(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(content)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

// backend counts what arrives and keeps nothing.
type backend struct {
	address               string
	spans, points, others atomic.Int64
}

type traceBackend struct {
	ptraceotlp.UnimplementedGRPCServer
	*backend
}

func (b *traceBackend) Export(_ context.Context, r ptraceotlp.ExportRequest) (ptraceotlp.ExportResponse, error) {
	b.spans.Add(int64(r.Traces().SpanCount()))
	return ptraceotlp.NewExportResponse(), nil
}

type metricBackend struct {
	pmetricotlp.UnimplementedGRPCServer
	*backend
}

func (b *metricBackend) Export(_ context.Context, r pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	b.points.Add(int64(r.Metrics().DataPointCount()))
	return pmetricotlp.NewExportResponse(), nil
}

type logBackend struct {
	plogotlp.UnimplementedGRPCServer
	*backend
}

func (b *logBackend) Export(_ context.Context, r plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	b.others.Add(int64(r.Logs().LogRecordCount()))
	return plogotlp.NewExportResponse(), nil
}

func startBackend(t *testing.T) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &backend{address: l.Addr().String()}
	s := grpc.NewServer()
	ptraceotlp.RegisterGRPCServer(s, &traceBackend{backend: b})
	pmetricotlp.RegisterGRPCServer(s, &metricBackend{backend: b})
	plogotlp.RegisterGRPCServer(s, &logBackend{backend: b})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return b
}

// collector is a Collector with a shipped configuration.
type collector struct {
	process *process.Process
	backend *backend
	address string
	metrics string
	state   string
}

func start(t *testing.T, config string, more ...string) *collector {
	t.Helper()
	binary := process.Collector.Find(t)
	folder := t.TempDir()
	keys := filepath.Join(folder, "token")
	require.NoError(t, os.WriteFile(keys, []byte(token+"\n"), 0o600))
	c := &collector{
		backend: startBackend(t), address: process.FreePort(t), metrics: process.FreePort(t), state: filepath.Join(folder, "state"),
	}
	_, port, err := net.SplitHostPort(c.metrics)
	require.NoError(t, err)
	args := append([]string{
		"GPUFLIGHT_HTTP=" + c.address, "GPUFLIGHT_TOKEN_FILE=" + keys, "GPUFLIGHT_STATE=" + c.state,
		"GPUFLIGHT_OTLP_ENDPOINT=" + c.backend.address, "GPUFLIGHT_OTLP_INSECURE=true", "GPUFLIGHT_METRICS_PORT=" + port,
	}, more...)
	args = append(args, binary, "--config", filepath.Join(process.Root(t), "config", config))
	c.process = process.Start(t, "/usr/bin/env", args...)
	c.process.WaitOutput(process.Ready, time.Minute)
	return c
}

// peak is the most resident memory so far, in bytes, without the pages of the program file: the
// system can drop them, and their number depends on the build. env execs the Collector, which keeps
// its process id.
func (c *collector) peak(t *testing.T) int64 {
	t.Helper()
	mark := []byte("GPUFLIGHT_STATE=" + c.state + "\x00")
	list, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, path := range list {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, mark) {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		require.NoError(t, err)
		kib := map[string]int64{}
		for line := range strings.Lines(string(status)) {
			name, rest, _ := strings.Cut(line, ":")
			if name == "VmHWM" || name == "RssFile" {
				kib[name], err = strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				require.NoError(t, err)
			}
		}
		require.Len(t, kib, 2)
		return (kib["VmHWM"] - kib["RssFile"]) << 10
	}
	require.Fail(t, "the Collector's process was not found")
	return 0
}

// metric returns the sum of a metric of the Collector itself over the label sets that contain a
// text.
func (c *collector) metric(t *testing.T, name, label string) (sum float64) {
	t.Helper()
	resp, err := http.Get("http://" + c.metrics + "/metrics")
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, name) && strings.Contains(line, label) {
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			require.NoError(t, err)
			sum += v
		}
	}
	require.NoError(t, lines.Err())
	return sum
}

// post sends a window of a session and returns the status, 0 if there was no answer.
func (c *collector) post(ctx context.Context, session string, body []byte) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.address+"/api/v1/events/stream", bytes.NewReader(body))
	if err != nil {
		return 0
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + token, "Content-Encoding": "gzip", "Content-Type": "application/x-ndjson",
		"X-GpuFlight-Session-Id": session,
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// serveSmall sends ten small sessions and returns how long each took until it was accepted.
func (c *collector) serveSmall(t *testing.T, name string) (took []time.Duration) {
	t.Helper()
	for i := range 10 {
		session := fmt.Sprintf("small-%s-%d", name, i)
		body := compressed(t, smallSession(session))
		began := time.Now()
		process.Eventually(t, 30*time.Second, "a small session is accepted", func() bool {
			return c.post(t.Context(), session, body) == http.StatusOK
		})
		took = append(took, time.Since(began))
	}
	return took
}

// TestHTTP_ExpandingLine sends lines that expand to some hundred times their size as data points.
func TestHTTP_ExpandingLine(t *testing.T) {
	for _, tt := range []struct {
		name    string
		size    int
		senders int
		// delivered says that the line is within max_line_bytes, so its rows arrive.
		delivered bool
	}{
		{"one sender of 20 MB", 20e6, 1, false},
		{"10 senders of 20 MB", 20e6, 10, false},
		{"64 senders of 20 MB", 20e6, 64, false},
		{"one sender of 3 MB", 3e6, 1, true},
		{"one sender of 15 MB", 15e6, 1, true}, // some minutes: six million data points
		{"64 senders of 15 MB", 15e6, 64, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.delivered && tt.size > 10e6 && os.Getenv("GPUFLIGHT_SOAK") == "" {
				t.Skip("a long test: set GPUFLIGHT_SOAK=1, or run make soak")
			}
			c := start(t, "gpuflog-http.yaml")
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			var senders sync.WaitGroup
			for i := range tt.senders {
				session := fmt.Sprintf("large-%d", i)
				line := deviceLine(session, tt.size)
				body := compressed(t, line)
				senders.Go(func() {
					for {
						status := c.post(ctx, session, body)
						if status == http.StatusOK || ctx.Err() != nil || (!tt.delivered && tt.senders > 1) {
							return
						}
						time.Sleep(100 * time.Millisecond)
					}
				})
			}
			took := c.serveSmall(t, "a")
			if tt.delivered || tt.senders == 1 {
				senders.Wait()
			}
			if tt.delivered {
				want := points(deviceLine("large-0", tt.size))
				process.Eventually(t, time.Minute, "all data points arrive", func() bool { return c.backend.points.Load() >= want })
				assert.Equal(t, want, c.backend.points.Load())
			} else if tt.size > 16<<20 {
				process.Eventually(t, time.Minute, "each line is counted", func() bool {
					return c.metric(t, "otelcol_receiver_gpuflog_rejects", `reason="line_too_long"`) >= float64(tt.senders)
				})
			}
			took = append(took, c.serveSmall(t, "b")...)
			slices.Sort(took)
			began := time.Now()
			peak := c.peak(t)
			c.process.Stop(15 * time.Second)
			cancel()
			senders.Wait()
			t.Logf("peak %d MiB; a small session %v at the median, %v at most; %d data points; stopped in %v",
				peak>>20, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond),
				c.backend.points.Load(), time.Since(began).Round(time.Millisecond))
			assert.Less(t, peak, int64(memoryLimit))
			assert.Less(t, took[len(took)-1], 10*time.Second)
		})
	}
}

// TestFiles_ExpandingLine reads a folder with lines that expand, each of one session, and ten
// small sessions.
func TestFiles_ExpandingLine(t *testing.T) {
	for _, files := range []int{1, 10, 64} {
		t.Run(fmt.Sprintf("%d files", files), func(t *testing.T) {
			logs := t.TempDir()
			write := func(name string, content []byte) {
				require.NoError(t, os.WriteFile(filepath.Join(logs, name+".system.log"), content, 0o600))
			}
			for i := range min(files, 3) { // decoding more takes minutes
				write(fmt.Sprintf("large%d", i), deviceLine(fmt.Sprintf("large-%d", i), 5e6))
			}
			for i := range files {
				write(fmt.Sprintf("toolong%d", i), deviceLine(fmt.Sprintf("toolong-%d", i), 20e6))
			}
			c := start(t, "jaeger.yaml", "GPUFLIGHT_LOGS="+logs)
			for i := range 10 {
				session := fmt.Sprintf("small-%d", i)
				require.NoError(t, os.WriteFile(filepath.Join(logs, fmt.Sprintf("small%d.device.log", i)), smallSession(session), 0o600))
			}
			began := time.Now()
			process.Eventually(t, 2*time.Minute, "the small sessions arrive", func() bool { return c.backend.spans.Load() >= 10 })
			took := time.Since(began)
			process.Eventually(t, 2*time.Minute, "each large line is counted", func() bool {
				return c.metric(t, "otelcol_receiver_gpuflog_rejects", `reason="line_too_long"`) >= float64(files)
			})
			peak := c.peak(t)
			began = time.Now()
			c.process.Stop(15 * time.Second)
			t.Logf("peak %d MiB; ten small sessions in %v; stopped in %v", peak>>20,
				took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
			assert.Less(t, peak, int64(memoryLimit))
		})
	}
}

// kernelLine is one kernel_event_batch with so many kernels.
func kernelLine(session string, kernels int) []byte {
	b := fmt.Appendf(nil, `{"type":"job_start","version":1,"session_id":"%[1]s","pid":1,"app":"kernels","ts_ns":%[2]d}
{"type":"kernel_event_batch","version":1,"session_id":"%[1]s","batch_id":1,"base_time_ns":%[2]d,"columns":["dt_ns","kernel_id","stream_id","duration_ns","corr_id"],"rows":[`,
		session, int64(baseTime))
	for i := range kernels {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, "[%d,1,0,100,%d]", i*1000, i+1)
	}
	return fmt.Appendf(b, `]}
{"type":"shutdown","version":1,"session_id":"%s","ts_ns":%d}
`, session, int64(baseTime)+int64(kernels)*1000)
}

// TestFiles_KilledInsideLine kills the Collector while the kernels of one line are delivered. After
// the restart each kernel is there, and none differs from its first delivery.
func TestFiles_KilledInsideLine(t *testing.T) {
	const kernels = 150_000
	binary := process.Collector.Find(t)
	store, sink := process.Sink(t, "cuda.operation")
	logs, state := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(logs, "app.device.log"), kernelLine("killed", kernels), 0o600))
	_, port, err := net.SplitHostPort(process.FreePort(t))
	require.NoError(t, err)
	run := func() *process.Process {
		p := process.Start(t, "/usr/bin/env", "GPUFLIGHT_LOGS="+logs, "GPUFLIGHT_STATE="+state,
			"GPUFLIGHT_OTLP_ENDPOINT="+sink.Endpoint(), "GPUFLIGHT_METRICS_PORT="+port,
			binary, "--config", filepath.Join(process.Root(t), "config", "jaeger.yaml"))
		p.WaitOutput(process.Ready, time.Minute)
		return p
	}
	spans := func() int { return store.Distinct().Spans }
	p := run()
	process.Eventually(t, time.Minute, "some kernels arrive", func() bool { return spans() > 0 })
	p.Kill()
	before := spans()
	require.Less(t, before, kernels, "the kill came too late")
	p = run()
	process.Eventually(t, 2*time.Minute, "all kernels arrive", func() bool {
		return len(kernelsOf(store.Spans())) >= kernels
	})
	p.Stop(15 * time.Second)
	list := kernelsOf(store.Spans())
	assert.Len(t, list, kernels)
	conflicts := 0
	for _, s := range list {
		conflicts += s.Conflicts
	}
	assert.Zero(t, conflicts, "kernels that differ between two deliveries")
	t.Logf("%d of %d kernels before the kill", before, kernels)
}

func kernelsOf(spans []testsink.Span) (list []testsink.Span) {
	for _, s := range spans {
		if s.Attrs["cuda.operation"] == "kernel" {
			list = append(list, s)
		}
	}
	return list
}
