// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

// jaegerSpan is a span as Jaeger's API writes it; more are further attributes.
func jaegerSpan(trace, id, name, operation string, start, end int64, more ...string) string {
	attributes := append([]string{
		`{"key":"cuda.kernel.grid","value":{"arrayValue":{"values":[{"intValue":"1"}]}}}`,
		fmt.Sprintf(`{"key":"cuda.operation","value":{"stringValue":%q}}`, operation),
	}, more...)
	return fmt.Sprintf(`{"traceId":%q,"spanId":%q,"name":%q,"kind":1,"startTimeUnixNano":"%d","endTimeUnixNano":"%d",`+
		`"attributes":[%s],"status":{}}`, trace, id, name, start, end, strings.Join(attributes, ","))
}

func doubleValue(key string, v float64) string {
	return fmt.Sprintf(`{"key":%q,"value":{"doubleValue":%v}}`, key, v)
}

func limitedBy(names ...string) string {
	var values []string
	for _, n := range names {
		values = append(values, fmt.Sprintf(`{"stringValue":%q}`, n))
	}
	return `{"key":"cuda.occupancy.limiter","value":{"arrayValue":{"values":[` + strings.Join(values, ",") + `]}}}`
}

// fakeJaeger answers the two requests of the API that the demo makes.
func fakeJaeger(t *testing.T, services string, traces map[string]string) client {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v3/services", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, services) })
	mux.HandleFunc("GET /api/v3/traces", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		for _, bound := range []string{"query.start_time_min", "query.start_time_max"} {
			_, err := time.Parse(time.RFC3339Nano, q.Get(bound))
			assert.NoError(t, err, bound)
		}
		answer, ok := traces[q.Get("query.service_name")]
		if !ok {
			http.Error(w, `{"error":{"httpCode":404,"message":"No traces found"}}`, http.StatusNotFound)
			return
		}
		fmt.Fprint(w, answer)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return client{base: server.URL}
}

func answer(spans ...string) string {
	return `{"result":{"resourceSpans":[{"resource":{},"scopeSpans":[{"scope":{},"spans":[` + strings.Join(spans, ",") + `]}]}]}}`
}

func TestReadSumsKernelsToTheNanosecond(t *testing.T) {
	const start = 1_795_200_000_000_000_001 // beyond what a float64 can distinguish
	c := fakeJaeger(t, `{"services":["b","a","none","alien"]}`, map[string]string{
		"a": answer(
			jaegerSpan("t1", "1", "epoch", "scope", start, start+900),
			jaegerSpan("t1", "2", "gemm", "kernel", start, start+100),
			jaegerSpan("t1", "3", "gemm", "kernel", start+100, start+203),
			jaegerSpan("t1", "3", "gemm", "kernel", start+100, start+203), // sent twice
			jaegerSpan("t2", "2", "softmax", "kernel", start, start+7),
		),
		"b":     answer(jaegerSpan("t3", "9", "relu", "kernel", start, start+7)),
		"alien": answer(jaegerSpan("t4", "8", "relu", "kernel", start, start+7)),
	})
	got, err := c.read(t.Context(), []string{"b", "a", "none", "other"})
	require.NoError(t, err)
	assert.Equal(t, report{
		services: []string{"a", "b", "none"}, traces: 3, spans: 5, kernels: 4, kernelTime: 217, first: start, last: start + 203,
		byTime: []kernelTotal{
			{name: "gemm", launches: 2, time: 203, limiters: map[string]time.Duration{}},
			{name: "relu", launches: 1, time: 7, limiters: map[string]time.Duration{}},
			{name: "softmax", launches: 1, time: 7, limiters: map[string]time.Duration{}},
		},
	}, got)
}

func TestReadWeighsOccupancyAndThroughputByTime(t *testing.T) {
	c := fakeJaeger(t, `{"services":["a"]}`, map[string]string{"a": answer(
		jaegerSpan("t", "1", "gemm", "kernel", 100, 400, doubleValue("cuda.occupancy.theoretical", 0.25),
			doubleValue("cuda.occupancy.grid_fill", 1), limitedBy("registers")),
		jaegerSpan("t", "2", "gemm", "kernel", 400, 500, doubleValue("cuda.occupancy.theoretical", 0.5), limitedBy("blocks", "warps")),
		jaegerSpan("t", "3", "gemm", "kernel", 500, 600), // nothing known
		jaegerSpan("t", "4", "memcpy HtoD", "memcpy", 600, 700, `{"key":"cuda.memcpy.kind","value":{"stringValue":"HtoD"}}`,
			`{"key":"cuda.memcpy.size","value":{"intValue":"1000"}}`, doubleValue("cuda.memcpy.throughput", 1e10), doubleValue("cuda.memcpy.link_utilization", 0.2)),
		jaegerSpan("t", "5", "memcpy HtoD", "memcpy", 50, 350, `{"key":"cuda.memcpy.kind","value":{"stringValue":"HtoD"}}`,
			`{"key":"cuda.memcpy.size","value":{"intValue":"6000"}}`, doubleValue("cuda.memcpy.throughput", 2e10), doubleValue("cuda.memcpy.link_utilization", 0.4)),
		jaegerSpan("t", "6", "memcpy DtoD", "memcpy", 700, 710, `{"key":"cuda.memcpy.kind","value":{"stringValue":"DtoD"}}`),
		jaegerSpan("t", "7", "cudaStreamSynchronize", "synchronize", 1, 2000), // the host's time, not the device's
	)})
	got, err := c.read(t.Context(), []string{"a"})
	require.NoError(t, err)
	assert.Equal(t, int64(50), got.first)
	assert.Equal(t, int64(710), got.last)
	var out strings.Builder
	got.print(&out, 5)
	// (0.25×300 + 0.5×100) / 400 = 31.25 %; (10×100 + 20×300) / 400 = 17.5 GB/s; (20×100 + 40×300) / 400 = 35 %
	assert.Equal(t, `services  a
traces    1
spans     7, 3 of them kernels with 500ns of device time

      time    share  launches  occupancy  grid fill  limited by  kernel
  0.001 ms  100.0 %         3     31.2 %    100.0 %   registers  gemm

      time  bytes  copies   throughput  of the link  copy
  0.000 ms      0       1            -            -  DtoD
  0.000 ms   7000       2  17.500 GB/s       35.0 %  HtoD
`, out.String())
}

func TestReadOfAnEmptyJaeger(t *testing.T) {
	got, err := fakeJaeger(t, `{}`, nil).read(t.Context(), []string{"a"})
	require.NoError(t, err)
	assert.Equal(t, report{}, got)
}

func TestReadReportsWhatIsWrongWithAnAnswer(t *testing.T) {
	for name, test := range map[string]struct{ traces, want string }{
		"not JSON":            {`<html>`, "/api/v3/traces"},
		"no time":             {answer(`{"traceId":"t","spanId":"s","attributes":[{"key":"cuda.operation","value":{"stringValue":"kernel"}}]}`), "span t/s"},
		"a size that is none": {answer(jaegerSpan("t", "s", "memcpy HtoD", "memcpy", 1, 2, `{"key":"cuda.memcpy.size","value":{"stringValue":"7"}}`)), "span t/s"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := fakeJaeger(t, `{"services":["a"]}`, map[string]string{"a": test.traces}).read(t.Context(), []string{"a"})
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestPrintListsTheLongestKernels(t *testing.T) {
	r := report{
		services: []string{"minigpt", "other"}, traces: 2, spans: 9, kernels: 6, kernelTime: 4 * time.Millisecond,
		byTime: []kernelTotal{
			{name: "gemm", launches: 3, time: 3 * time.Millisecond},
			{name: "relu", launches: 2, time: time.Millisecond - 5},
			{name: "copy", launches: 1, time: 5},
		},
	}
	var out strings.Builder
	r.print(&out, 2)
	assert.Equal(t, `services  minigpt, other
traces    2
spans     9, 6 of them kernels with 4ms of device time

      time   share  launches  occupancy  grid fill  limited by  kernel
  3.000 ms  75.0 %         3          -          -           -  gemm
  1.000 ms  25.0 %         2          -          -           -  relu
`, out.String())
}

func TestPrintAddressTellsWhetherThereIsAPage(t *testing.T) {
	for page, hint := range map[string]bool{
		"<title>Jaeger UI</title>":                                false,
		"<h1>This is not the Jaeger UI you are looking for!</h1>": true,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) }))
		var out strings.Builder
		printAddress(t.Context(), &out, client{base: server.URL}, []string{"mini gpt"})
		assert.Contains(t, out.String(), "open  "+server.URL+"\n")
		assert.Equal(t, hint, strings.Contains(out.String(), server.URL+"/api/traces?limit=20&lookback=1h&service=mini+gpt"))
		server.Close()
	}
}

func TestAwaitWorkRefusesWrongTime(t *testing.T) {
	c := fakeJaeger(t, `{"services":["a"]}`, map[string]string{"a": answer(jaegerSpan("t", "1", "gemm", "kernel", 10, 20))})
	want := work{services: []string{"a"}, kernels: 1, nanos: 10}
	got, err := awaitWork(t.Context(), c, want)
	require.NoError(t, err)
	assert.Equal(t, int64(1), got.kernels)

	want.nanos = 11
	_, err = awaitWork(t.Context(), c, want)
	assert.EqualError(t, err, "jaeger has 10ns of kernel time of [a], but 11ns was written")
}

func TestReadRecordings(t *testing.T) {
	dir := t.TempDir()
	_, err := readRecordings(dir)
	require.ErrorContains(t, err, "no recording")

	client, err := otlp.New(otlp.Settings{File: filepath.Join(dir, "a.otlp.jsonl.gz")}, nil)
	require.NoError(t, err)
	for range 2 { // sent twice is one
		td := ptrace.NewTraces()
		for i, name := range []string{"b", "a"} {
			rs := td.ResourceSpans().AppendEmpty()
			rs.Resource().Attributes().PutStr("service.name", name)
			rs.Resource().Attributes().PutStr("hw.name", "NVIDIA H200")
			for j, operation := range []string{"scope", "kernel", "kernel", "memcpy"} {
				s := rs.ScopeSpans().AppendEmpty().Spans().AppendEmpty()
				s.SetSpanID([8]byte{byte(i + 1), byte(j)})
				s.Attributes().PutStr("cuda.operation", operation)
				s.SetStartTimestamp(100)
				s.SetEndTimestamp(107)
			}
		}
		client.Traces(td)
	}
	require.NoError(t, client.Shutdown(t.Context()))
	got, err := readRecordings(dir)
	require.NoError(t, err)
	assert.Equal(t, work{services: []string{"a", "b"}, kernels: 4, nanos: 28, devices: []string{"NVIDIA H200"}}, got)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "b.otlp.jsonl.gz"), []byte("no recording\n"), 0o600))
	_, err = readRecordings(dir)
	require.ErrorContains(t, err, "b.otlp.jsonl.gz: 1 bad lines")
}

func shell(t *testing.T, script string) *child {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip(err)
	}
	c, err := start("sh", []string{"-c", script}, filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

func TestChildThatEndsEarlyIsReportedWithItsLog(t *testing.T) {
	c := shell(t, "for i in $(seq 20); do echo line $i; done; exit 3")
	err := c.ready(t.Context(), "http://127.0.0.1:1/")
	require.ErrorContains(t, err, "sh ended by itself: exit status 3\nline 6\n")
	assert.ErrorContains(t, err, "line 20")
	assert.NoError(t, c.stop(), "stopping what has ended")
}

func TestReadyWaitsForAnAnswer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	c := shell(t, "exec sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	assert.ErrorContains(t, c.ready(ctx, server.URL), "sh is not ready", "404 is not ready")

	ok := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer ok.Close()
	assert.NoError(t, c.ready(t.Context(), ok.URL))
}

func TestStopReportsAnErrorStatus(t *testing.T) {
	c := shell(t, "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done")
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(c.log)
		return err == nil && strings.Contains(string(text), "ready")
	}, time.Minute, 5*time.Millisecond)
	require.ErrorContains(t, c.stop(), "exit status 4")
	assert.Equal(t, syscall.WaitStatus(4<<8), c.cmd.ProcessState.Sys())
}
