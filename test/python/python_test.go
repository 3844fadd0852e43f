// SPDX-License-Identifier: Apache-2.0

//go:build linux

package python

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

var (
	interpreter = process.Binary{Env: "GPUFLIGHT_PYTHON", Path: ".tools/python/python", Make: "make .tools/python/python"}
	programs    = []process.Binary{
		{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"},
		{Env: "GPUFLIGHT_COLLECTOR", Path: "bin/otelcol-gpuflight", Make: "make build"},
	}
)

// python returns a Python with the packages of scripts/python.txt.
func python(t *testing.T) string {
	t.Helper()
	return interpreter.FindFetched(t, "no Python 3.11 with pip here to fetch the packages with", "pip3")
}

// built holds what one test binary builds once.
var built struct {
	sync.Once
	dir, wheel, venv string
	err              error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// wheel builds the wheel with the programs under test and installs it into a new virtual
// environment, without an index. It returns the paths of both.
func wheel(t *testing.T) (file, venv string) {
	t.Helper()
	packages := python(t)
	root := process.Root(t)
	folder := t.TempDir()
	for _, p := range programs {
		require.NoError(t, os.Symlink(p.Find(t), filepath.Join(folder, filepath.Base(p.Path))))
	}
	library := os.Getenv("GPUFLIGHT_INJECT")
	if library == "" {
		library = filepath.Join(root, "bin", "libgpuflight.so")
	}
	for _, name := range []string{"libgpuflight.so", "libgpuflight-recorder.so"} {
		path := filepath.Join(filepath.Dir(library), name)
		if _, err := os.Stat(path); err != nil {
			process.Missing(t, fmt.Sprintf("%v; build it with %q", err, "make build"))
		}
		require.NoError(t, os.Symlink(path, filepath.Join(folder, name)))
	}
	built.Do(func() { built.err = buildWheel(root, folder, packages) })
	var unreachable *exec.ExitError
	if errors.As(built.err, &unreachable) && unreachable.ExitCode() == 3 {
		t.Skip("PyPI is unreachable, which has the tools that build wheels")
	}
	require.NoError(t, built.err)
	return built.wheel, built.venv
}

func buildWheel(root, programs, packages string) (err error) {
	if built.dir, err = os.MkdirTemp("", "gpuflight-wheel-"); err != nil {
		return err
	}
	run := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
		}
		return nil
	}
	if err := run(filepath.Join(root, "scripts", "wheel"), "--programs", programs,
		"--tools", filepath.Join(root, ".tools", "wheel"), built.dir); err != nil {
		return err
	}
	wheels, err := filepath.Glob(filepath.Join(built.dir, "*.whl"))
	if err != nil {
		return err
	}
	if len(wheels) != 1 {
		return fmt.Errorf("scripts/wheel built %d wheels", len(wheels))
	}
	built.wheel = wheels[0]
	built.venv = filepath.Join(built.dir, "venv")
	if err := run("python3", "-m", "venv", built.venv); err != nil {
		return err
	}
	if err := run(filepath.Join(built.venv, "bin", "pip"), "install", "--quiet", "--no-index", built.wheel); err != nil {
		return err
	}
	// The other packages are those of scripts/python.
	out, err := exec.Command(packages, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").Output()
	if err != nil {
		return err
	}
	own, err := filepath.Glob(filepath.Join(built.venv, "lib", "python3*", "site-packages"))
	if err != nil {
		return err
	}
	if len(own) != 1 {
		return fmt.Errorf("the environment has %d folders of packages", len(own))
	}
	return os.WriteFile(filepath.Join(own[0], "test.pth"), out, 0o600)
}

// environment is that of the tested programs: with the fake driver and without settings of the user.
func environment(t *testing.T, more ...string) []string {
	t.Helper()
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "OTEL_") && !strings.HasPrefix(name, "GPUFLIGHT_") && !strings.HasPrefix(name, "PYTHON") &&
			name != "TRACEPARENT" && name != "LD_LIBRARY_PATH" {
			env = append(env, v)
		}
	}
	testdata, err := filepath.Abs("testdata")
	require.NoError(t, err)
	env = append(env, cuptitest.Environment(cuptitest.Build(t))...)
	return append(append(env, "PYTHONPATH="+testdata, "PYTHONDONTWRITEBYTECODE=1"), more...)
}

// run runs a command for a minute at most and returns what it prints.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", strings.Join(cmd.Args, " "), out)
	return string(out)
}

// span is a span with the name of its parent, "" where that is unknown.
type span struct {
	ptrace.Span
	operation, scope, source, parent string
}

// spansOf collects the spans of requests.
func spansOf(data ...ptrace.Traces) []span {
	var spans []span
	names := map[pcommon.SpanID]ptrace.Span{}
	for _, td := range data {
		for _, rs := range td.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					names[s.SpanID()] = s
					text := func(key string) string {
						v, _ := s.Attributes().Get(key)
						return v.Str()
					}
					spans = append(spans, span{s, text(semconv.CUDAOperation), text(semconv.CUDAScopeName), text(semconv.CUDAScopeSource), ""})
				}
			}
		}
	}
	for i, s := range spans {
		if p, ok := names[s.ParentSpanID()]; ok && p.TraceID() == s.TraceID() {
			spans[i].parent = p.Name()
		}
	}
	return spans
}

func recorded(t *testing.T, file string) []span {
	t.Helper()
	var all []ptrace.Traces
	stats, err := otlp.ReadFile(file, otlp.Handler{Traces: func(td ptrace.Traces) { all = append(all, td) }})
	require.NoError(t, err)
	require.Zero(t, stats.Bad, "%v", stats.Errors)
	return spansOf(all...)
}

// The tests of the package run with a libgpuflight.so of their own: they need no recorder. Each
// version of Python on PATH runs those that need no other packages, because the layout of context
// variables differs between versions.
func TestPackage(t *testing.T) {
	packages := python(t)
	root := process.Root(t)
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler: ", err)
	}
	library := filepath.Join(t.TempDir(), "libgpuflight.so")
	run(t, os.Environ(), filepath.Join(root, "cupti", "inject", "loader", "build"), library)
	env := environment(t, "CUDA_INJECTION64_PATH="+library, "PYTHONPATH="+filepath.Join(root, "python", "src"))
	test := func(t *testing.T, python string) (out string) {
		t.Helper()
		out = run(t, env, python, "-m", "unittest", "discover", "-s", filepath.Join(root, "python", "tests"))
		assert.Regexp(t, `Ran \d\d tests`, out)
		return out
	}
	t.Run("with OpenTelemetry", func(t *testing.T) { assert.NotContains(t, test(t, packages), "skipped") })
	for minor := 9; minor <= 15; minor++ {
		name := fmt.Sprintf("python3.%d", minor)
		// The name may be that of a shim for a version that is not selected.
		if exec.Command(name, "-c", "").Run() == nil {
			t.Run(name, func(t *testing.T) { test(t, name) })
		}
	}
}

func TestWheel_Contents(t *testing.T) {
	file, venv := wheel(t)
	assert.Regexp(t, `^gpuflight-[0-9.]+(dev0)?-py3-none-manylinux_2_(2[89]|[3-9]\d)_(x86_64|aarch64)\.whl$`, filepath.Base(file))
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(100<<20), "PyPI refuses larger files")
	env := environment(t)
	bin := filepath.Join(venv, "bin")
	assert.Contains(t, run(t, env, filepath.Join(bin, "gpuflight"), "--version"), "gpuflight ")
	assert.Contains(t, run(t, env, filepath.Join(bin, "python"), "-m", "gpuflight", "--version"), "gpuflight ")
	assert.Contains(t, run(t, env, filepath.Join(bin, "otelcol-gpuflight"), "--version"), "otelcol-gpuflight version")
	config := run(t, env, filepath.Join(bin, "python"), "-c", "import gpuflight, os; print(os.path.join(os.path.dirname(gpuflight.__file__), 'config', 'local.yaml'))")
	run(t, env, filepath.Join(bin, "otelcol-gpuflight"), "validate", "--config", strings.TrimSpace(config))
	// The package is plain Python, and the programs are what was built.
	var files []string
	root := filepath.Dir(filepath.Dir(strings.TrimSpace(config)))
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) != ".pyc" {
			files = append(files, strings.TrimPrefix(path, root+"/"))
		}
		return err
	}))
	assert.Equal(t, []string{
		"__init__.py", "__main__.py", "_library.py", "_scope.py", "bin/gpuflight", "bin/libgpuflight-recorder.so", "bin/libgpuflight.so",
		"bin/otelcol-gpuflight", "config/local.yaml", "otel.py",
	}, files)
}

func TestWheel_Trace(t *testing.T) {
	_, venv := wheel(t)
	file := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	run(t, environment(t), filepath.Join(venv, "bin", "gpuflight"), "trace", "--quiet", "--output", file, "--",
		filepath.Join(venv, "bin", "python"), filepath.Join("testdata", "scopes.py"), "plain")

	type edge struct{ name, parent string }
	got := map[edge]int{}
	traces := map[pcommon.TraceID]bool{}
	for _, s := range recorded(t, file) {
		switch s.operation {
		case semconv.CUDAOperationKernel:
			got[edge{s.Name(), s.parent}]++
			if s.Name() != "outside" && s.Name() != "in_thread" {
				assert.Equal(t, s.parent, s.scope, "cuda.scope.name of %s", s.Name())
			}
		case semconv.CUDAOperationScope:
			got[edge{s.Name(), s.parent}]++
			assert.Equal(t, semconv.CUDAScopeSourceSDK, s.source, s.Name())
			assert.Positive(t, s.EndTimestamp()-s.StartTimestamp())
			if s.parent == "" {
				traces[s.TraceID()] = true
			}
		}
	}
	session := "unknown_service:" + filepath.Base(pythonProgram(t, venv))
	want := map[edge]int{
		{"outer", ""}: 1, {"inner", "outer"}: 1, {"in_outer", "outer"}: 3, {"in_inner", "inner"}: 3,
		{"in_thread", session}: 1, {"outside", session}: 4, {"task", ""}: 20,
	}
	for n := range 20 {
		kernel := fmt.Sprintf("k%d", n)
		for _, where := range []string{"part", "thread"} {
			want[edge{kernel, fmt.Sprintf("%s %d", where, n)}] = 5
		}
		want[edge{fmt.Sprintf("t%d", n), "task"}] = 5
		want[edge{fmt.Sprintf("part %d", n), "task"}] = 5
		want[edge{fmt.Sprintf("thread %d", n), ""}] = 5
	}
	assert.Equal(t, want, got)
	assert.Len(t, traces, 121, "each outermost scope has a trace of its own")
}

// A thread's scopes from before the recording apply after its next call of the package.
func TestWheel_ThreadInScopeBeforeRecording(t *testing.T) {
	_, venv := wheel(t)
	file := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	run(t, environment(t), filepath.Join(venv, "bin", "gpuflight"), "trace", "--quiet", "--output", file, "--",
		filepath.Join(venv, "bin", "python"), filepath.Join("testdata", "scopes.py"), "early")
	parents := map[string]string{}
	for _, s := range recorded(t, file) {
		parents[s.Name()] = s.parent
	}
	assert.Equal(t, "waits", parents["works"])
	assert.Equal(t, "works", parents["in_works"])
	assert.Equal(t, "waits", parents["in_waits"])
	assert.NotEqual(t, "waits", parents["outside"])
}

// pythonProgram returns the file that the virtual environment's python is.
func pythonProgram(t *testing.T, venv string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(filepath.Join(venv, "bin", "python"))
	require.NoError(t, err)
	return path
}

// Daemon threads launch kernels while the interpreter frees its memory.
func TestWheel_EndOfInterpreter(t *testing.T) {
	_, venv := wheel(t)
	for range 5 {
		file := filepath.Join(t.TempDir(), "out.otlp.jsonl")
		run(t, environment(t), filepath.Join(venv, "bin", "gpuflight"), "trace", "--quiet", "--output", file, "--max-spans", "1000", "--",
			filepath.Join(venv, "bin", "python"), filepath.Join("testdata", "scopes.py"), "daemons")
	}
}

// otlpServer is an OTLP endpoint over HTTP that keeps traces.
type otlpServer struct {
	*httptest.Server
	mu     sync.Mutex
	traces []ptrace.Traces
}

func newOTLPServer(t *testing.T) *otlpServer {
	t.Helper()
	s := &otlpServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			body = z
		}
		data, err := io.ReadAll(body)
		request := ptraceotlp.NewExportRequest()
		if err == nil && r.URL.Path == "/v1/traces" {
			err = request.UnmarshalProto(data)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.traces = append(s.traces, request.Traces())
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(s.Close)
	return s
}

// A service under opentelemetry-instrument gets 50 requests at once. One endpoint is in the thread pool and
// one in the event loop, with scopes. The third has a span of its own and no scope. The trace of each request
// has its own kernels and no others.
func TestFastAPI_KernelsOfRequests(t *testing.T) {
	_, venv := wheel(t)
	const requests = 50
	for _, kind := range []struct {
		name    string
		kernels int
	}{{"sync", 3}, {"async", 5}, {"span", 4}} {
		t.Run(kind.name, func(t *testing.T) {
			server := newOTLPServer(t)
			address := process.FreePort(t)
			_, port, _ := strings.Cut(address, ":")
			bin := filepath.Join(venv, "bin")
			var out bytes.Buffer
			cmd := exec.Command(filepath.Join(bin, "gpuflight"), "trace", "--quiet", "--",
				// What the script opentelemetry-instrument does; it is in the environment of the other packages.
				filepath.Join(bin, "python"), "-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()",
				filepath.Join(bin, "python"), "-m", "uvicorn", "--log-level", "warning", "--port", port, "service:app")
			cmd.Env = environment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
				"OTEL_SERVICE_NAME=predictor", "OTEL_TRACES_EXPORTER=otlp_proto_http", "OTEL_METRICS_EXPORTER=none", "OTEL_LOGS_EXPORTER=none",
				"OTEL_PYTHON_FASTAPI_EXCLUDED_URLS=openapi.json")
			cmd.Stdout, cmd.Stderr = &out, &out
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			require.NoError(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			stop := sync.OnceValue(func() error {
				// uvicorn ends itself with SIGTERM when it gets that, and then its exporters send nothing.
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
				select {
				case err := <-ended:
					return err
				case <-time.After(20 * time.Second):
					_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
					return fmt.Errorf("the service does not end: %w", <-ended)
				}
			})
			t.Cleanup(func() {
				_ = stop()
				if t.Failed() {
					t.Logf("output of the service:\n%s", &out)
				}
			})

			client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxConnsPerHost: requests}}
			defer client.CloseIdleConnections()
			get := func(path string) error {
				r, err := client.Get("http://" + address + path)
				if err != nil {
					return err
				}
				defer r.Body.Close()
				if r.StatusCode != http.StatusOK {
					return fmt.Errorf("%s: %s", path, r.Status)
				}
				_, err = io.Copy(io.Discard, r.Body)
				return err
			}
			process.Eventually(t, 30*time.Second, "the service answers", func() bool { return get("/openapi.json") == nil })
			errs := make([]error, requests)
			var wg sync.WaitGroup
			for i := range requests {
				wg.Go(func() { errs[i] = get(fmt.Sprintf("/%s/%d", kind.name, i)) })
			}
			wg.Wait()
			require.NoError(t, errors.Join(errs...))
			_ = stop() // Python ends with the status of an interrupt

			route := fmt.Sprintf("GET /%s/{n}", kind.name)
			server.mu.Lock()
			spans := spansOf(server.traces...)
			server.mu.Unlock()
			// By trace: each request is one.
			served := map[pcommon.TraceID]map[string]int{}
			for _, s := range spans {
				if s.Name() == route && s.Kind() == ptrace.SpanKindServer {
					served[s.TraceID()] = map[string]int{}
				}
			}
			require.Len(t, served, requests, "requests")
			total, predicts := 0, 0
			for _, s := range spans {
				if s.Name() == "predict" && s.parent == route || s.Name() == "predict" && kind.name == "async" && s.parent == "predict" {
					predicts++
				}
				if s.operation != semconv.CUDAOperationKernel {
					continue
				}
				total++
				assert.Equal(t, []string{"predict", "predict"}, []string{s.parent, s.scope}, s.Name())
				if kernels := served[s.TraceID()]; assert.NotNil(t, kernels, s.Name()) {
					kernels[s.Name()]++
				}
			}
			require.Equal(t, requests*kind.kernels, total, "kernels")
			scopes := map[string]int{"sync": requests, "async": 3 * requests, "span": requests}
			assert.Equal(t, scopes[kind.name], predicts, "spans and scopes below the requests")
			names := map[string]bool{}
			for _, kernels := range served {
				for name, n := range kernels {
					names[name] = true
					assert.Equal(t, kind.kernels, n, "%s in one request", name)
				}
				assert.Len(t, kernels, 1, "one request has kernels of others: %v", slices.Collect(maps.Keys(kernels)))
			}
			assert.Len(t, names, requests)
		})
	}
}
