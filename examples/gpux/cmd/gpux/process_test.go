// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/ortlib"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/orttest"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// asGPUX makes this test binary the command gpux.
const asGPUX = "GPUX_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asGPUX) != "" {
		main()
	}
	os.Exit(m.Run())
}

// served is a `gpux serve` in a process of its own.
type served struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string
	file    string // what it recorded, after stop
	output  *process.Output
}

func startServer(t *testing.T, dir string, env ...string) *served {
	t.Helper()
	s := &served{t: t, file: filepath.Join(t.TempDir(), "out.otlp.jsonl"), output: &process.Output{}}
	s.cmd = exec.Command(os.Args[0], "serve", dir+"/", "--port", "0", "--provider", "cpu")
	s.cmd.Env = slices.Concat(os.Environ(), []string{asGPUX + "=1", "GPUFLIGHT_OUTPUT=" + s.file, "GPUFLIGHT_LOG_LEVEL=error", "GPUFLIGHT_MAX_SPANS_PER_SECOND=1000000"}, env)
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	require.Eventually(t, func() bool {
		m := regexp.MustCompile(`Serving at (http://127\.0\.0\.1:\d+)`).FindStringSubmatch(s.output.String())
		if m != nil {
			s.address = m[1]
		}
		return m != nil
	}, 30*time.Second, 5*time.Millisecond, "%s", s.output)
	return s
}

// stop sends SIGTERM and returns the exit status.
func (s *served) stop() int {
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	_ = s.cmd.Wait() // the status is below
	return s.cmd.ProcessState.ExitCode()
}

func (s *served) spans() (spans []ptrace.Span) {
	s.t.Helper()
	stats, err := otlp.ReadFile(s.file, otlp.Handler{Traces: func(td ptrace.Traces) {
		for _, rs := range td.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, span := range ss.Spans().All() {
					spans = append(spans, span)
				}
			}
		}
	}})
	require.NoError(s.t, err)
	require.Zero(s.t, stats.Bad)
	return spans
}

// tagged returns n requests: the image of each begins with the number of the request, in thousandths.
func tagged(t *testing.T, n int) (bodies [][]byte) {
	t.Helper()
	image := orttest.ReadExpected(t).Image[0]
	for i := range n {
		image[0][0][0] = float32(i+1) / 1000
		body, err := json.Marshal(map[string]any{"image": image})
		require.NoError(t, err)
		bodies = append(bodies, body)
	}
	return bodies
}

// launching compiles the ONNX Runtime that launches a kernel for each row, and returns its path.
func launching(t *testing.T) string {
	t.Helper()
	found, err := ortlib.Find("")
	require.NoError(t, err)
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/yalue/onnxruntime_go")
	list.Dir = orttest.Digits()
	out, err := list.Output()
	require.NoError(t, err)
	library := filepath.Join(t.TempDir(), "libonnxruntime.so")
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	text, err := exec.Command(compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-fPIC", "-shared", "-fvisibility=hidden",
		"-isystem", strings.TrimSpace(string(out)), fmt.Sprintf("-DREAL=%q", found.Path), "-o", library, filepath.Join(orttest.Digits(), "..", "cmd", "gpux", "testdata", "launching.c"), "-ldl").CombinedOutput()
	require.NoError(t, err, string(text))
	return library
}

// Each of many concurrent requests has exactly its own kernels: in a run of its own, or in that of a
// batch which is linked with it both ways. The kernels are of the fake driver, because ONNX Runtime
// launches none on a processor; test/gpu/gpux.py does the same on a GPU.
func TestServe_KernelsOfRequests(t *testing.T) {
	orttest.Open(t)
	fakes := cuptitest.Build(t)
	dir := model(t)
	yml, err := os.ReadFile("gpux.yml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("gpux.yml", append(yml, "  max_workers: 1\n"...), 0o600)) // under serving
	s := startServer(t, dir, append(cuptitest.Environment(fakes), "GPUX_ORT_LIB="+launching(t))...)
	const requests, clients = 400, 32
	bodies := tagged(t, requests)
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	var next atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= requests {
					return
				}
				q, err := http.NewRequest(http.MethodPost, s.address+"/predict", bytes.NewReader(bodies[i]))
				if !assert.NoError(t, err) {
					return
				}
				q.Header.Set("traceparent", fmt.Sprintf("00-%032x-%016x-01", i+1, i+1))
				resp, err := client.Do(q)
				if !assert.NoError(t, err) {
					return
				}
				_, err = io.Copy(io.Discard, resp.Body)
				assert.NoError(t, err)
				assert.NoError(t, resp.Body.Close())
				assert.Equal(t, 200, resp.StatusCode)
			}
		})
	}
	all.Wait()
	client.CloseIdleConnections()
	require.Equal(t, 0, s.stop(), s.output.String())

	assert.Equal(t, 1, strings.Count(s.output.String(), "a session opens"), "the model is loaded once")

	type id = string
	spans := map[id]ptrace.Span{}
	children := map[id][]ptrace.Span{}
	for _, span := range s.spans() {
		spans[span.SpanID().String()] = span
		children[span.ParentSpanID().String()] = append(children[span.ParentSpanID().String()], span)
	}
	// kernels returns the tags of the kernels in the only session.run below a span, and their number.
	kernels := func(parent ptrace.Span) (tags []int) {
		var runs []ptrace.Span
		for _, c := range children[parent.SpanID().String()] {
			if c.Name() == "session.run" {
				runs = append(runs, c)
			}
		}
		if len(runs) != 1 {
			return nil
		}
		for _, c := range children[runs[0].SpanID().String()] {
			if operation, _ := c.Attributes().Get(semconv.CUDAOperation); operation.Str() != semconv.CUDAOperationKernel {
				continue
			}
			assert.Equal(t, runs[0].TraceID(), c.TraceID())
			grid, ok := c.Attributes().Get(semconv.CUDAKernelGrid)
			if assert.True(t, ok) {
				tags = append(tags, int(grid.Slice().At(0).Int()))
			}
		}
		slices.Sort(tags)
		return tags
	}
	alone, batches := 0, map[id][]int{} // the tags of the requests that are linked with a batch
	for i := range requests {
		server := children[fmt.Sprintf("%016x", i+1)] // the client chose the parent
		require.Len(t, server, 1)
		var links []ptrace.SpanLink
		for _, c := range children[server[0].SpanID().String()] {
			if c.Name() == "queue" {
				for _, link := range c.Links().All() {
					links = append(links, link)
				}
			}
		}
		if len(links) == 0 {
			require.Equal(t, []int{i + 1}, kernels(server[0]))
			alone++
			continue
		}
		require.Len(t, links, 1)
		require.Empty(t, kernels(server[0]))
		batch := links[0].SpanID().String()
		back := 0
		for _, link := range spans[batch].Links().All() {
			if link.SpanID() == server[0].SpanID() && link.TraceID() == server[0].TraceID() {
				back++
			}
		}
		require.Equal(t, 1, back)
		batches[batch] = append(batches[batch], i+1)
	}
	for batch, tags := range batches {
		require.Equal(t, tags, kernels(spans[batch]))
		require.Equal(t, len(tags), spans[batch].Links().Len())
	}
	launched := 0
	for _, span := range spans {
		if operation, _ := span.Attributes().Get(semconv.CUDAOperation); operation.Str() == semconv.CUDAOperationKernel {
			launched++
		}
	}
	assert.Equal(t, requests, launched, "no kernel is elsewhere")
	assert.NotEmpty(t, batches)
	t.Logf("%d requests ran alone, and %d in %d batches", alone, requests-alone, len(batches))
}

// A server that gets SIGTERM under load answers each request that it has accepted, and exits with 0.
func TestServe_TerminatedUnderLoad(t *testing.T) {
	orttest.Open(t)
	s := startServer(t, orttest.Digits())
	body := tagged(t, 1)[0]
	var ok, after atomic.Int64
	var terminated atomic.Bool
	var all sync.WaitGroup
	for i := range 16 {
		client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: i%2 == 0}}
		all.Go(func() {
			defer client.CloseIdleConnections()
			for {
				resp, err := client.Post(s.address+"/predict", "application/json", bytes.NewReader(body))
				if err != nil { // not accepted, which the number of spans confirms
					assert.True(t, terminated.Load(), "%v", err)
					return
				}
				text, err := io.ReadAll(resp.Body)
				assert.NoError(t, err, "an answer is whole")
				assert.NoError(t, resp.Body.Close())
				assert.Equal(t, 200, resp.StatusCode, string(text))
				assert.True(t, json.Valid(text))
				ok.Add(1)
				if terminated.Load() {
					after.Add(1)
				}
			}
		})
	}
	require.Eventually(t, func() bool { return ok.Load() >= 200 }, 30*time.Second, time.Millisecond)
	terminated.Store(true)
	assert.Equal(t, 0, s.stop(), s.output.String())
	all.Wait()
	accepted := int64(0)
	for _, span := range s.spans() {
		if span.Name() == "POST /predict" {
			accepted++
		}
	}
	assert.Equal(t, ok.Load(), accepted)
	t.Logf("%d requests, %d of them answered after the signal", ok.Load(), after.Load())
}
