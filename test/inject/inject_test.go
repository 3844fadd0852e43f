// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/procfs"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/report"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

var gpuflBinary = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}

// library returns the path of the injection library, which is not executable.
func library(t *testing.T) string {
	t.Helper()
	path := os.Getenv("GPUFLIGHT_INJECT")
	if path == "" {
		path = filepath.Join(process.Root(t), "bin", "libgpuflight.so")
	}
	if _, err := os.Stat(path); err != nil {
		process.Missing(t, fmt.Sprintf("%v; build it with %q or name it in GPUFLIGHT_INJECT", err, "make build"))
	}
	return path
}

// bench runs programs with and without tracing.
type bench struct {
	t             *testing.T
	gpuflight     string
	python, work  string
	environ       []string
	flags, output []string
	file          string
	attributes    syscall.SysProcAttr // for processes that begin starts
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, gpuflight: gpuflBinary.Find(t)}
	python, err := exec.LookPath("python3")
	if err != nil {
		process.Missing(t, "there is no python3 to trace")
	}
	b.python = python
	b.work = filepath.Join(process.Root(t), "test", "inject", "testdata", "work.py")
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "OTEL_") && !strings.HasPrefix(name, "GPUFLIGHT_") && name != "TRACEPARENT" && name != "LD_LIBRARY_PATH" {
			b.environ = append(b.environ, v)
		}
	}
	b.environ = append(b.environ, cuptitest.Environment(cuptitest.Build(t))...)
	b.file = filepath.Join(t.TempDir(), "out.otlp.jsonl")
	b.flags = []string{"--library", library(t)}
	b.output = []string{"--force", "--output", b.file}
	return b
}

// outcome is the visible result of a program.
type outcome struct {
	code           int
	signal         syscall.Signal
	stdout, stderr string
	took           time.Duration
}

func (b *bench) run(name string, args ...string) outcome {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = b.environ
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	require.NoError(b.t, ctx.Err(), "%s hangs: %s", name, &stderr)
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(b.t, err, &exit)
	}
	o := outcome{stdout: stdout.String(), stderr: stderr.String(), took: time.Since(began)}
	o.code, o.signal = ended(cmd)
	return o
}

func ended(cmd *exec.Cmd) (int, syscall.Signal) {
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 0, status.Signal()
	}
	return cmd.ProcessState.ExitCode(), 0
}

func (b *bench) baseline(mode string) outcome { return b.run(b.python, b.work, mode) }

// traced traces with additional flags.
func (b *bench) traced(mode string, flags ...string) outcome {
	return b.run(b.gpuflight, b.traceArgs(mode, flags...)...)
}

func (b *bench) traceArgs(mode string, flags ...string) []string {
	args := slices.Concat([]string{"trace"}, b.flags, b.output, flags)
	return append(args, "--", b.python, b.work, mode)
}

// recorded reads the recording.
func (b *bench) recorded() (spans []span, captures []plog.LogRecord, totals report.Totals) {
	b.t.Helper()
	r := report.New()
	stats, err := otlp.ReadFile(b.file, otlp.Handler{
		Traces: func(td ptrace.Traces) {
			r.Traces(td)
			for _, rs := range td.ResourceSpans().All() {
				for _, ss := range rs.ScopeSpans().All() {
					for _, s := range ss.Spans().All() {
						operation, _ := s.Attributes().Get(semconv.CUDAOperation)
						spans = append(spans, span{s, operation.Str(), rs.Resource().Attributes().AsRaw()})
					}
				}
			}
		},
		Logs: func(ld plog.Logs) {
			r.Logs(ld)
			for _, rl := range ld.ResourceLogs().All() {
				for _, sl := range rl.ScopeLogs().All() {
					captures = slices.AppendSeq(captures, recordsOf(sl.LogRecords()))
				}
			}
		},
		Metrics: r.Metrics,
	})
	require.NoError(b.t, err)
	require.Zero(b.t, stats.Bad, "%v", stats.Errors)
	return spans, captures, r.Totals()
}

func recordsOf(records plog.LogRecordSlice) func(func(plog.LogRecord) bool) {
	return func(yield func(plog.LogRecord) bool) {
		for _, r := range records.All() {
			if !yield(r) {
				return
			}
		}
	}
}

type span struct {
	ptrace.Span
	operation string
	resource  map[string]any
}

func kernels(totals report.Totals) map[string]uint64 {
	m := map[string]uint64{}
	for _, row := range totals.Kernels {
		m[row.Name] = row.Count
	}
	return m
}

var addresses = regexp.MustCompile(`0x[0-9a-f]+|Thread 0x\S+`)

// TestTrace_SameBehavior runs programs that exit in each possible way.
func TestTrace_SameBehavior(t *testing.T) {
	for _, tc := range []struct {
		mode   string
		code   int
		signal syscall.Signal
		stdout string
		// kernels are the required records, nil for a program that is killed before it can report.
		kernels map[string]uint64
	}{
		{mode: "plain", stdout: "done", kernels: map[string]uint64{"gemm": 1000, "relu": 500}},
		{mode: "threads", stdout: "joined", kernels: map[string]uint64{"gemm": 2000}},
		{mode: "code", code: 9, stdout: "nine", kernels: map[string]uint64{"gemm": 10}},
		{mode: "uncaught", code: 1},
		{mode: "segv", signal: syscall.SIGSEGV},
		{mode: "faults", signal: syscall.SIGSEGV},
		{mode: "abort", signal: syscall.SIGABRT},
		{mode: "term", signal: syscall.SIGTERM},
		{mode: "interrupt", stdout: "interrupted"},
		{mode: "interrupt_dies", signal: syscall.SIGINT},
		{mode: "pipe", signal: syscall.SIGPIPE},
		{mode: "pipe_ignored", stdout: "broken pipe"},
		{mode: "lasting", stdout: "lasted"},
		{mode: "leave", code: 7, stdout: "leaving"},
		{mode: "alarms", stdout: "True True"},
		{mode: "fork_exec", stdout: "from the child\n3", kernels: map[string]uint64{"gemm": 10}},
		{mode: "fork_exit", stdout: "child 0\n4", kernels: map[string]uint64{"gemm": 10}},
		{mode: "fork_busy", stdout: "{4}"},
		{mode: "pool", stdout: "332833500", kernels: map[string]uint64{"gemm": 10}},
		{mode: "spawn", stdout: "[0, 0, 0]", kernels: map[string]uint64{"gemm": 10, "spawned": 300}},
		{mode: "children", stdout: "9\n9\n9", kernels: map[string]uint64{"gemm": 30}},
		{mode: "environment", stdout: "True"},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			b := newBench(t)
			baseline, traced := b.baseline(tc.mode), b.traced(tc.mode, "--quiet")
			assert.Equal(t, tc.code, baseline.code, "the program itself: %s", baseline.stderr)
			assert.Equal(t, tc.signal, baseline.signal, "the program itself")
			assert.Contains(t, baseline.stdout, "signals kept\nlimits kept\n")
			assert.Contains(t, baseline.stdout, tc.stdout)
			assert.Equal(t, baseline.code, traced.code)
			assert.Equal(t, baseline.signal, traced.signal)
			assert.Equal(t, baseline.stdout, traced.stdout)
			assert.Equal(t, addresses.ReplaceAllString(baseline.stderr, "…"), addresses.ReplaceAllString(traced.stderr, "…"))
			if tc.kernels != nil {
				_, _, totals := b.recorded()
				assert.Equal(t, tc.kernels, kernels(totals))
			}
		})
	}
}

func TestTrace_SessionPerProcess(t *testing.T) {
	b := newBench(t)
	const parent = "00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01"
	b.environ = append(b.environ, "TRACEPARENT="+parent, "OTEL_SERVICE_NAME=trainer", "OTEL_RESOURCE_ATTRIBUTES=team=vision")
	o := b.traced("spawn")
	require.Zero(t, o.code, o.stderr)
	spans, captures, totals := b.recorded()
	assert.Len(t, captures, 4, "one capture log a process")
	assert.Equal(t, map[string]uint64{"gemm": 10, "spawned": 300}, kernels(totals))

	var command span
	sessions := map[string]bool{}
	for _, s := range spans {
		assert.Equal(t, "0102030405060708090a0b0c0d0e0f10", s.TraceID().String())
		assert.Equal(t, "trainer", s.resource[semconv.ServiceName])
		assert.Equal(t, "vision", s.resource["team"])
		if s.ParentSpanID().String() == "1112131415161718" {
			command = s
		}
	}
	require.NotNil(t, command.resource, "no span hangs under TRACEPARENT")
	assert.Equal(t, filepath.Base(b.python), command.Name())
	assert.Equal(t, semconv.CUDAOperationSession, command.operation)
	attributes := command.Attributes().AsRaw()
	assert.Equal(t, int64(0), attributes[semconv.ProcessExitCode])
	assert.Equal(t, []any{b.python, b.work, "spawn"}, attributes[semconv.ProcessCommandArgs])
	for _, s := range spans {
		if s.operation == semconv.CUDAOperationSession && s.SpanID() != command.SpanID() {
			assert.Equal(t, command.SpanID(), s.ParentSpanID())
			sessions[fmt.Sprint(s.resource[semconv.ServiceInstanceID])] = true
		}
	}
	assert.Len(t, sessions, 4)
}

func TestTrace_Summary(t *testing.T) {
	b := newBench(t)
	o := b.traced("plain")
	assert.Equal(t, "signals kept\nlimits kept\ndone\n", o.stdout)
	assert.Regexp(t, `gpuflight: python3\S* ended with 0 after \S+, 1 process recorded\n`, o.stderr)
	assert.Regexp(t, `gpuflight: 1,503 spans, 1 log record, \d+ metric points went to `+regexp.QuoteMeta(b.file)+`, trace [0-9a-f]{32}\n`, o.stderr)
	assert.Regexp(t, `66\.7%\s+1,000\s+1\.00µs\s+1\.00µs\s+gemm\n`, o.stderr)
	assert.Regexp(t, `\s1\s+1,048,576\s+\S+\s+HtoD\n`, o.stderr)

	again := b.run(b.gpuflight, "report", b.file)
	assert.Zero(t, again.code, again.stderr)
	assert.Regexp(t, `66\.7%\s+1,000\s+1\.00µs\s+1\.00µs\s+gemm\n`, again.stdout)

	b.environ = append(b.environ, "FAKE_CUPTI_REFUSE=39") // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
	o = b.traced("plain")
	assert.Zero(t, o.code)
	assert.Equal(t, "signals kept\nlimits kept\ndone\n", o.stdout)
	assert.Contains(t, o.stderr, "gpuflight: 1 process recorded nothing: ")
}

func TestTrace_WithoutGPU(t *testing.T) {
	b := newBench(t)
	o := b.run(b.gpuflight, slices.Concat([]string{"trace"}, b.flags, b.output, []string{"--", "sh", "-c", "echo out; echo err >&2; exit 5"})...)
	assert.Equal(t, 5, o.code)
	assert.Equal(t, "out\n", o.stdout)
	assert.True(t, strings.HasPrefix(o.stderr, "err\ngpuflight: sh ended with 5 after "), o.stderr)
	assert.Contains(t, o.stderr, "nothing was recorded: no process of the command used the GPU")
	spans, _, _ := b.recorded()
	require.Len(t, spans, 1)
	assert.Equal(t, int64(5), spans[0].Attributes().AsRaw()[semconv.ProcessExitCode])
	assert.Equal(t, ptrace.StatusCodeError, spans[0].Status().Code())
}

// TestTrace_InheritedState checks that changes by gpuflight's own runtime are not inherited by the
// command.
func TestTrace_InheritedState(t *testing.T) {
	b := newBench(t)
	const set = `trap '' HUP INT QUIT USR1 PIPE TERM; ulimit -Sn 256; exec "$@"`
	command := []string{"sh", "-c", `grep -E '^Sig(Ign|Blk)' /proc/self/status; ulimit -Sn; ls /proc/self/fd | wc -l`}
	baseline := b.run("sh", slices.Concat([]string{"-c", set, "sh"}, command)...)
	require.Regexp(t, `SigIgn:\s[0-9a-f]{12}5207\n256\n`, baseline.stdout)
	traced := b.run("sh", slices.Concat([]string{"-c", set, "sh", b.gpuflight, "trace", "--quiet"}, b.flags, b.output, []string{"--"}, command)...)
	assert.Equal(t, baseline.stdout, traced.stdout)
	assert.Equal(t, baseline.stderr, traced.stderr)
}

// TestTrace_UnreachableCollector checks a collector that rejects connections immediately, and one
// that never answers.
func TestTrace_UnreachableCollector(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	for name, address := range map[string]string{"refused": gone.Addr().String(), "silent": silent.Addr().String()} {
		for _, protocol := range []string{"http/protobuf", "grpc"} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				b := newBench(t)
				b.output = []string{"--endpoint", "http://" + address, "--protocol", protocol}
				// A client that waits for an answer exceeds the time limit of the command.
				b.environ = append(b.environ, "OTEL_EXPORTER_OTLP_TIMEOUT=600000")
				if name == "refused" {
					b.environ = append(b.environ, "GPUFLIGHT_SHUTDOWN_TIMEOUT=10m") // this must not be waited for either
				}
				baseline, traced := b.baseline("code"), b.traced("code", "--quiet")
				assert.Equal(t, baseline.code, traced.code)
				assert.Equal(t, baseline.stdout, traced.stdout)
				lines := strings.Split(strings.TrimSuffix(traced.stderr, "\n"), "\n")
				require.Len(t, lines, 1, traced.stderr)
				assert.Regexp(t, `^gpuflight: \d+ spans, 1 log record, \d+ metric points could not be sent to http://`+regexp.QuoteMeta(address), lines[0])
			})
		}
	}
}

// TestTrace_UnreachableShared checks that processes share the information that the collector does
// not answer. Otherwise their waiting times add up.
func TestTrace_UnreachableShared(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	b := newBench(t)
	b.output = []string{"--endpoint", "http://" + silent.Addr().String()}
	b.environ = append(b.environ, "GPUFLIGHT_SHUTDOWN_TIMEOUT=10s")
	baseline, traced := b.baseline("children"), b.traced("children", "--quiet")
	assert.Equal(t, baseline.code, traced.code)
	assert.Equal(t, baseline.stdout, traced.stdout)
	assert.Contains(t, traced.stderr, "4 log records")
	// Four processes and gpuflight: one waits for 8 seconds, the others for half a second,
	// gpuflight for one. Without the shared information the sum is more than 32 seconds.
	assert.Less(t, traced.took-baseline.took, 30*time.Second)
}

// TestTrace_BrokenConnection: a write to a broken connection raises SIGPIPE.
func TestTrace_BrokenConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	broken := make(chan int, 1)
	go func() {
		n := 0
		defer func() { broken <- n }()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n++
			_, _ = c.Read(make([]byte, 1))
			_ = c.(*net.TCPConn).SetLinger(0) // reset instead of an orderly close
			_ = c.Close()
		}
	}()
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		b := newBench(t)
		b.environ = append(b.environ, "GPUFLIGHT_FLUSH_INTERVAL=20ms", "GPUFLIGHT_METRIC_INTERVAL=50ms", "GPUFLIGHT_LOG_LEVEL=debug")
		b.output = []string{"--endpoint", "http://" + l.Addr().String(), "--protocol", protocol}
		o := b.traced("lasting", "--quiet")
		assert.Equal(t, "signals kept\nlimits kept\nlasted\n", o.stdout)
		assert.Zero(t, o.code)
		assert.Zero(t, o.signal)
	}
	require.NoError(t, l.Close())
	assert.Greater(t, <-broken, 4, "connections")
}

func TestTrace_GoProgram(t *testing.T) {
	b := newBench(t)
	program := filepath.Join(t.TempDir(), "goprogram")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./testdata/goprogram").CombinedOutput()
	require.NoError(t, err, string(out))
	baseline := b.run(program)
	require.Equal(t, 6, baseline.code, baseline.stderr)
	require.Equal(t, "init 0\nuser defined signal 1\nruntime error: invalid memory address or nil pointer dereference\n", baseline.stdout)
	traced := b.run(b.gpuflight, slices.Concat([]string{"trace", "--quiet"}, b.flags, b.output, []string{"--", program})...)
	assert.Equal(t, baseline.code, traced.code)
	assert.Equal(t, baseline.stdout, traced.stdout)
	assert.Equal(t, baseline.stderr, traced.stderr)
	_, _, totals := b.recorded()
	assert.Equal(t, map[string]uint64{"from_go": 2001}, kernels(totals))
}

// TestTrace_LeftoverTimer leaves a timer running while the library waits for a collector that does
// not answer.
func TestTrace_LeftoverTimer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	b := newBench(t)
	b.environ = append(b.environ, "GPUFLIGHT_SHUTDOWN_TIMEOUT=2s")
	b.output = []string{"--endpoint", "http://" + silent.Addr().String()}
	baseline, traced := b.baseline("timer_left"), b.traced("timer_left", "--quiet")
	require.Zero(t, baseline.signal)
	assert.Equal(t, baseline.signal, traced.signal)
	assert.Equal(t, baseline.code, traced.code)
	assert.Equal(t, baseline.stdout, traced.stdout)
	assert.Greater(t, traced.took, time.Second, "the library waited past the timer")
}

func TestTrace_Signals(t *testing.T) {
	b := newBench(t)
	// Signals that are ignored in the tests (by nohup) stay ignored in the command. Caught signals
	// have their default in children.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP)
	defer signal.Stop(caught)
	cmd := exec.Command(b.gpuflight, b.traceArgs("wait", "--quiet")...)
	cmd.Env = b.environ
	// A process group of its own, in the background of the terminal if there is one, as a shell's
	// job.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }()
	lines := make(chan string, 16)
	go func() {
		defer close(lines)
		var rest []byte
		buf := make([]byte, 4096)
		for {
			n, err := out.Read(buf)
			rest = append(rest, buf[:n]...)
			for {
				line, after, ok := bytes.Cut(rest, []byte("\n"))
				if !ok {
					break
				}
				lines <- string(line)
				rest = after
			}
			if err != nil {
				return
			}
		}
	}()
	next := func() string {
		select {
		case l := <-lines:
			return l
		case <-time.After(time.Minute):
			t.Fatal("the command says nothing")
			return ""
		}
	}
	require.Equal(t, "signals kept", next())
	require.Equal(t, "limits kept", next())
	require.Equal(t, "ready", next())
	for _, s := range []struct {
		signal syscall.Signal
		name   string
	}{{syscall.SIGHUP, "SIGHUP"}, {syscall.SIGUSR1, "SIGUSR1"}, {syscall.SIGUSR2, "SIGUSR2"}, {syscall.SIGWINCH, "SIGWINCH"}, {syscall.SIGQUIT, "SIGQUIT"}} {
		require.NoError(t, cmd.Process.Signal(s.signal))
		assert.Equal(t, s.name, next())
	}

	child := childOf(t, cmd.Process.Pid)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTSTP))
	require.Eventually(t, func() bool { return state(t, cmd.Process.Pid) == 'T' && state(t, child) == 'T' }, time.Minute, 10*time.Millisecond, "both stop")
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	require.Eventually(t, func() bool { return state(t, cmd.Process.Pid) != 'T' && state(t, child) != 'T' }, time.Minute, 10*time.Millisecond, "both go on")

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	for range lines { // until it is closed
	}
	_ = cmd.Wait()
	_, signal := ended(cmd)
	assert.Equal(t, syscall.SIGTERM, signal)
}

func childOf(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	require.NoError(t, err)
	if len(bytes.TrimSpace(data)) == 0 { // the child of another thread
		matches, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		require.NoError(t, err)
		for _, m := range matches {
			if more, err := os.ReadFile(m); err == nil {
				data = append(data, more...)
			}
		}
	}
	var child int
	_, err = fmt.Sscan(string(data), &child)
	require.NoError(t, err)
	return child
}

func state(t *testing.T, pid int) byte {
	t.Helper()
	s, ok := procfs.ParseStat(procfs.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))
	require.True(t, ok, "process %d", pid)
	return s.State
}

func TestTrace_InvalidCommand(t *testing.T) {
	b := newBench(t)
	trace := func(args ...string) outcome {
		return b.run(b.gpuflight, slices.Concat([]string{"trace"}, b.flags, args)...)
	}
	o := trace("--", "no-such-command-anywhere")
	assert.Equal(t, 127, o.code)
	assert.Contains(t, o.stderr, "no-such-command-anywhere")
	o = trace("--", os.TempDir())
	assert.Equal(t, 126, o.code)
	o = trace()
	assert.Equal(t, 2, o.code)
	assert.Contains(t, o.stderr, "no command")
	o = trace("--kinds", "kernel,frob", "--", "true")
	assert.Equal(t, 2, o.code)
	assert.Contains(t, o.stderr, `"frob" is not a kind of record`)
	o = trace("--protocol", "http/json", "--", "true")
	assert.Equal(t, 2, o.code)
	assert.Contains(t, o.stderr, "http/json")

	b.environ = append(b.environ, "CUDA_INJECTION64_PATH=/opt/nsight/libToolsInjection.so")
	o = trace("--", "true")
	assert.Equal(t, 1, o.code)
	assert.Contains(t, o.stderr, "the driver loads only one profiler")
	o = trace("--force", "--output", b.file, "--", "sh", "-c", "echo $CUDA_INJECTION64_PATH")
	assert.Equal(t, library(t)+"\n", o.stdout)
}

// TestTrace_Warnings checks that problems are reported before the command runs, in one line each, and
// that the command runs anyway.
func TestTrace_Warnings(t *testing.T) {
	server, err := testsink.Listen(testsink.NewStore(), "")
	require.NoError(t, err)
	defer server.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	none := gone.Addr().String()
	full := filepath.Join(t.TempDir(), "missing", "out.jsonl")
	for _, tc := range []struct {
		name   string
		env    []string
		output []string
		want   string
	}{
		{"nothing listens", nil, []string{"--endpoint", "http://" + none}, "nothing listens at " + none + ": run otelcol-gpuflight --config config/local.yaml, set --endpoint, or record into a file with --output"},
		{"wrong protocol", nil, []string{"--endpoint", "http://" + server.Endpoint()}, "this port speaks gRPC: " + server.Endpoint() + ": use --protocol grpc"},
		{"right protocol", nil, []string{"--endpoint", "http://" + server.Endpoint(), "--protocol", "grpc"}, ""},
		{"no driver", []string{"LD_LIBRARY_PATH="}, nil, "the CUDA driver (libcuda.so.1) is not there: "},
		{"no CUPTI", []string{"GPUFLIGHT_CUPTI=/not/libcupti.so"}, nil, "only programs that bring their own CUPTI, such as PyTorch, can be recorded: "},
		{"folder of the output", nil, []string{"--output", full}, "nothing can be recorded: open " + full + ": no such file or directory"},
		{"disabled", []string{"GPUFLIGHT_DISABLED=1"}, nil, "GPUFLIGHT_DISABLED disables recording: unset it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			b.environ = append(b.environ, tc.env...)
			if tc.output != nil {
				b.output = tc.output
			}
			o := b.run(b.gpuflight, slices.Concat([]string{"trace"}, b.flags, b.output, []string{"--", "sh", "-c", "echo the command >&2; exit 3"})...)
			assert.Equal(t, 3, o.code)
			before, _, found := strings.Cut(o.stderr, "the command\n")
			require.True(t, found, o.stderr)
			if tc.want == "" {
				assert.Empty(t, before)
				return
			}
			assert.Equal(t, 1, strings.Count(before, "\n"), before)
			assert.True(t, strings.HasPrefix(before, "gpuflight: warning: "), before)
			assert.Contains(t, before, tc.want)

			o = b.run(b.gpuflight, slices.Concat([]string{"trace", "--quiet"}, b.flags, b.output, []string{"--force", "--", "sh", "-c", "echo the command >&2; exit 3"})...)
			assert.True(t, strings.HasPrefix(o.stderr, "the command\n"), o.stderr)
		})
	}
}

func TestDoctor_Report(t *testing.T) {
	b := newBench(t)
	checks := func() map[string]bool {
		o := b.run(b.gpuflight, slices.Concat([]string{"doctor", "--json"}, b.flags)...)
		var findings []struct {
			Check, Detail, Fix string
			OK, Optional       bool
		}
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &findings), o.stdout+o.stderr)
		m := map[string]bool{}
		all := true
		for _, f := range findings {
			assert.NotEmpty(t, f.Detail)
			if f.Optional { // depends on this machine
				continue
			}
			m[f.Check] = f.OK
			all = all && f.OK
		}
		assert.Equal(t, all, o.code == 0)
		return m
	}
	all := map[string]bool{"driver": true, "devices": true, "cupti": true, "permission": true, "injection": true, "settings": true, "collector": true}
	fine := slices.Concat(b.environ, []string{"GPUFLIGHT_OUTPUT=" + b.file})
	for _, tc := range []struct {
		name  string
		env   []string
		wrong []string
	}{
		{"all is well", nil, nil},
		{"no device", []string{"FAKE_CUDA_DEVICES=0"}, []string{"devices", "cupti", "permission"}},
		{"another profiler", []string{"FAKE_CUPTI_REFUSE=39"}, []string{"cupti", "permission"}},
		{"bad setting", []string{"GPUFLIGHT_MAX_SPANS_PER_SECOND=many"}, []string{"settings"}},
		{"another injection", []string{"CUDA_INJECTION64_PATH=/opt/other.so"}, []string{"injection"}},
		{"no collector", []string{"GPUFLIGHT_OUTPUT=", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, []string{"collector"}},
		{"no driver", []string{"LD_LIBRARY_PATH="}, []string{"driver", "devices", "cupti", "permission"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b.t = t
			b.environ = slices.Concat(fine, tc.env)
			want := map[string]bool{}
			for k := range all {
				want[k] = !slices.Contains(tc.wrong, k)
			}
			assert.Equal(t, want, checks())
		})
	}
}
