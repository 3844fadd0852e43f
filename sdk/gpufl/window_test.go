// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deep/control"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/report"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// images are where package cubin keeps real machine code and its source.
const images = "../../internal/recording/cubin/testdata"

// store is an instruction of the kernel plain of lines.cu, and the line that it was made from.
func store(t *testing.T, image []byte) (pc uint64, line int64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(images, "lines.cu"))
	require.NoError(t, err)
	for i, l := range strings.Split(string(text), "\n") {
		if strings.HasSuffix(l, "// line: plain") {
			line = int64(i + 1)
		}
	}
	f, err := cubin.Open(image)
	require.NoError(t, err)
	fn, ok := f.Lookup("plain")
	require.True(t, ok)
	for ; pc < fn.Size; pc += cubin.InstructionBytes {
		if frames, reason := f.Locate("plain", pc, nil); reason == cubin.Resolved && int64(frames[0].Line) == line {
			return pc, line
		}
	}
	t.Fatal("no instruction is of the marked line")
	return 0, 0
}

// The samples and counts that each window has in these tests.
const (
	waiting  = 4321 // samples of long_scoreboard at the store
	atOnce   = 17   // samples of wait at the begin
	executed = 5_000_000_000
	dropped  = 9
)

// windows is a program with a context, a real module, and windows that yield the figures above.
type windows struct {
	*cuptitest.Fake
	path string
	line int64
	pc   uint64
	text bool // there is an nvdisasm
}

// recordWindows begins to record on the fake GPU with windows allowed. stop ends it and returns
// what was recorded.
func recordWindows(t *testing.T, pairs ...string) (w *windows, stop func() windowed) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	path := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	place := t.TempDir()
	require.NoError(t, os.Chmod(place, 0o700))
	setenv(t, append([]string{
		"GPUFLIGHT_OUTPUT", path, "GPUFLIGHT_MAX_SPANS_PER_SECOND", "1000000", "GPUFLIGHT_SHUTDOWN_TIMEOUT", "10m", "OTEL_SERVICE_NAME", "svc",
		"GPUFLIGHT_DEEP", "1", "GPUFLIGHT_DEEP_BLACKOUT", "0s", "GPUFLIGHT_DEEP_COOLDOWN", "0s", "GPUFLIGHT_DEEP_PER_HOUR", "10000", "GPUFLIGHT_DEEP_SHARE", "100%",
		"XDG_RUNTIME_DIR", place,
	}, pairs...)...)
	w = &windows{path: path}
	if os.Getenv(cubin.DisassemblerEnv) == "" {
		t.Setenv(cubin.DisassemblerEnv, filepath.Join(process.Root(t), ".tools", "cuda-tools", "13.0", "bin", "nvdisasm"))
	}
	_, err := os.Stat(os.Getenv(cubin.DisassemblerEnv))
	w.text = err == nil
	w.Fake = cuptitest.Libraries(t)
	require.Zero(t, w.Init())
	shutdown, err := Init(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = shutdown(context.Background()) })
	require.True(t, CurrentStatus().Recording, CurrentStatus().Detail)

	image, err := os.ReadFile(filepath.Join(images, "lines.sm_90.cubin"))
	require.NoError(t, err)
	w.pc, w.line = store(t, image)
	script := filepath.Join(t.TempDir(), "windows.txt")
	crc := w.CRC(image)
	require.NoError(t, os.WriteFile(script, fmt.Appendf(nil, `gpuflight-deep 1 pc_sampling
name 0 smsp__pcsamp_warps_issue_stalled_long_scoreboard
name 1 smsp__pcsamp_warps_issue_stalled_wait
function 0 plain
row 0 %[1]d %[2]d 0 0 0 %[3]d
row 0 %[1]d 0 0 1 0 %[4]d
totals %[5]d %[6]d 0
gpuflight-deep 1 sass_metrics
name 0 smsp__sass_inst_executed
row 0 %[1]d %[2]d 0 0 0 %[7]d
`, crc, w.pc, waiting, atOnce, waiting+atOnce+dropped, dropped, executed), 0o600))
	w.Replay(t, script)
	cuda := w.NewContext(0)
	module := w.LoadModule(image)
	t.Cleanup(func() {
		w.UnloadModule(module)
		w.DestroyContext(cuda)
		assert.Zero(t, w.Control("armed", 0), "something is left armed")
		assert.Zero(t, w.Control("sass_with_activity", 0))
	})
	return w, func() windowed {
		require.NoError(t, shutdown(t.Context()))
		return w.read(t)
	}
}

// windowed is what was recorded of windows.
type windowed struct {
	spans    []ptrace.Span     // of windows
	kernels  map[bool]int      // by whether their times are estimated
	scopes   map[string]string // how their times were obtained
	session  ptrace.Span
	logs     map[string][]plog.LogRecord // by event
	samples  map[string]int64            // by kernel, offset and reason or metric
	report   *report.Report
	distinct map[string]bool // the windows that figures are under
}

func (w *windows) read(t *testing.T) windowed {
	t.Helper()
	out := windowed{logs: map[string][]plog.LogRecord{}, kernels: map[bool]int{}, scopes: map[string]string{}, samples: map[string]int64{}, report: report.New(), distinct: map[string]bool{}}
	stats, err := otlp.ReadFile(w.path, otlp.Handler{
		Traces: func(td ptrace.Traces) {
			out.report.Traces(td)
			for _, rs := range td.ResourceSpans().All() {
				for _, ss := range rs.ScopeSpans().All() {
					for _, s := range ss.Spans().All() {
						switch operation := text(s.Attributes().AsRaw(), semconv.CUDAOperation); {
						case s.Name() == "deep window":
							out.spans = append(out.spans, s)
						case operation == semconv.CUDAOperationSession:
							out.session = s
						case operation == semconv.CUDAOperationScope:
							out.scopes[s.Name()] = text(s.Attributes().AsRaw(), semconv.CUDATiming)
						case operation == semconv.CUDAOperationKernel:
							out.kernels[text(s.Attributes().AsRaw(), semconv.CUDATiming) == semconv.CUDATimingEstimated]++
						}
					}
				}
			}
		},
		Logs: func(ld plog.Logs) {
			out.report.Logs(ld)
			for _, rl := range ld.ResourceLogs().All() {
				for _, sl := range rl.ScopeLogs().All() {
					for _, r := range sl.LogRecords().All() {
						out.logs[r.EventName()] = append(out.logs[r.EventName()], r)
						a := r.Attributes().AsRaw()
						key := fmt.Sprint(a[semconv.CUDAKernelName], "+", a[semconv.CUDAPCOffset], " ")
						switch r.EventName() {
						case semconv.EventCUDAPCSample:
							out.samples[key+text(a, semconv.CUDAStallReason)] += a[semconv.CUDASampleCount].(int64)
							out.distinct[r.SpanID().String()] = true
						case semconv.EventCUDASASSMetric:
							out.samples[key+text(a, semconv.CUDAMetricName)] += a[semconv.CUDAMetricValue].(int64)
							out.distinct[r.SpanID().String()] = true
						}
					}
				}
			}
		},
	})
	require.NoError(t, err)
	require.Zero(t, stats.Bad)
	slices.SortFunc(out.spans, func(a, b ptrace.Span) int { return int(a.StartTimestamp()) - int(b.StartTimestamp()) })
	return out
}

func text(a map[string]any, key string) string {
	s, _ := a[key].(string)
	return s
}

// figures are those of so many windows of each engine.
func (w *windows) figures(pc, sass int64) map[string]int64 {
	all := map[string]int64{}
	if pc > 0 {
		all[fmt.Sprintf("plain+%d long_scoreboard", w.pc)] = pc * waiting
		all["plain+0 wait"] = pc * atOnce
	}
	if sass > 0 {
		all[fmt.Sprintf("plain+%d smsp__sass_inst_executed", w.pc)] = sass * executed
		// The fake counts nothing else at that place, and says so.
	}
	return all
}

// nonZero leaves out what counted nothing.
func nonZero(all map[string]int64) map[string]int64 {
	out := map[string]int64{}
	for k, v := range all {
		if v != 0 {
			out[k] = v
		}
	}
	return out
}

// ownProcess runs the test in a process of its own, and reports whether this is that process. A
// process has one window of SASS metrics, whatever sessions it has.
func ownProcess(t *testing.T) bool {
	t.Helper()
	const variable = "GPUFLIGHT_TEST_OWN_PROCESS"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return false
}

// By call: the window is a span of the session, and its figures have functions, lines and SASS.
func TestDeepWindowByCall(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	w, stop := recordWindows(t)
	_, before := Scope(t.Context(), "before")
	w.Launch("plain", 3)
	before.End()
	_, in := Scope(t.Context(), "in")
	got, err := DeepWindow(t.Context(), 20*time.Millisecond, WithReason("manual"))
	in.End()
	require.NoError(t, err)
	require.True(t, got.Collected(), "%+v", got)
	assert.Equal(t, "time", got.Closed)
	assert.Equal(t, [4]uint64{2, waiting + atOnce + dropped, dropped, 1}, [4]uint64{got.Rows, got.Samples, got.Lost, got.Functions})
	assert.Equal(t, uint64(1), got.ID)
	assert.GreaterOrEqual(t, got.End.Sub(got.Start), 20*time.Millisecond)
	assert.Zero(t, got.Paused)

	got, err = DeepWindow(t.Context(), 20*time.Millisecond, WithEngine(EngineSASS))
	require.NoError(t, err)
	require.True(t, got.Collected(), "%+v", got)
	assert.Positive(t, got.Paused)
	got, err = DeepWindow(t.Context(), 40*time.Millisecond, WithEngine(EngineBoth))
	require.NoError(t, err)
	require.True(t, got.Collected(), "PC sampling: %+v", got)
	r := stop()

	assert.Equal(t, map[string]string{"before": "", "in": semconv.CUDATimingEstimated}, r.scopes)
	require.Len(t, r.spans, 3)
	for i, want := range []struct {
		engines []any
		why     string
	}{{[]any{"pc_sampling"}, "manual"}, {[]any{"sass_metrics"}, ""}, {[]any{"pc_sampling"}, ""}} {
		a := r.spans[i].Attributes().AsRaw()
		assert.Equal(t, want.engines, a[semconv.CUDADeepWindowEngines])
		assert.Equal(t, want.why, text(a, semconv.CUDADeepWindowWhy))
		assert.Equal(t, "call", a[semconv.CUDADeepWindowCause])
		assert.Equal(t, "collected", a[semconv.CUDADeepWindowStatus])
		assert.Equal(t, i == 1, a[semconv.CUDADeepWindowPausedDuration].(float64) > 0)
		assert.Equal(t, r.session.SpanID(), r.spans[i].ParentSpanID())
		assert.True(t, r.distinct[r.spans[i].SpanID().String()], "figures are under their window")
	}
	assert.Equal(t, w.figures(2, 1), nonZero(r.samples))
	for _, record := range r.logs[semconv.EventCUDAPCSample] {
		a := record.Attributes().AsRaw()
		if a[semconv.CUDAPCOffset] == int64(w.pc) {
			assert.Equal(t, "lines.cu", filepath.Base(text(a, semconv.CodeFilePath)))
			assert.Equal(t, w.line, a[semconv.CodeLineNumber])
		}
	}
	if w.text {
		listings := r.logs[semconv.EventCUDASASSListing]
		require.Len(t, listings, 2, "SASS and PTX, once in a session")
		assert.Equal(t, "plain", listings[0].Attributes().AsRaw()[semconv.CUDAKernelName])
		assert.Equal(t, "plain", listings[1].Attributes().AsRaw()[semconv.CUDAKernelName])
		assert.Equal(t, semconv.CUDAListingKindPTX, listings[1].Attributes().AsRaw()[semconv.CUDAListingKind])
		line := ""
		for l := range strings.Lines(listings[0].Body().Str()) {
			if strings.HasPrefix(l, fmt.Sprintf("%04x  ", w.pc)) {
				line = l
			}
		}
		assert.NotEmpty(t, line, "%s", listings[0].Body().Str())
	}
	require.Len(t, r.logs[semconv.EventCUDACapture], 1)
	a := r.logs[semconv.EventCUDACapture][0].Attributes().AsRaw()
	assert.Equal(t, int64(3), a[semconv.CUDACaptureDeepWindows])
	assert.Positive(t, a[semconv.CUDACapturePausedTime])

	// The report shows the function with its sums.
	inside := r.report.Inside(0, 0)
	require.Len(t, inside.Listed, 1)
	assert.Equal(t, "plain", inside.Listed[0].Name)
	assert.Equal(t, uint64(2*(waiting+atOnce)), inside.Samples)
}

// What is launched beside PC sampling has spans, whose times are estimates; what is launched while
// activity is paused has none; all before and after is as before.
func TestKernelsBesideDeepWindows(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	w, stop := recordWindows(t)
	// Kernels of the fake begin when they are launched, by the clock that windows are measured
	// with.
	w.Launch("plain", 10)
	during := func(e Engine, n int) {
		t.Helper()
		done := make(chan Window)
		go func() {
			got, err := DeepWindow(t.Context(), time.Minute, WithEngine(e))
			assert.NoError(t, err)
			done <- got
		}()
		process.Eventually(t, time.Minute, "an engine is armed", func() bool { return w.Control("armed", 0) > 0 })
		w.Launch("plain", n)
		require.True(t, current.Load().capture.Windows().Close())
		got := <-done
		assert.True(t, got.Collected(), "%+v", got)
		assert.Equal(t, "asked", got.Closed)
	}
	during(EnginePC, 100)
	during(EngineSASS, 1000)
	time.Sleep(300 * time.Millisecond) // what comes right after is an estimate, too
	w.Launch("plain", 20)
	r := stop()
	assert.Equal(t, map[bool]int{false: 30, true: 100}, r.kernels)
	assert.Equal(t, w.figures(1, 1), nonZero(r.samples))
}

func TestDeepWindowRefusals(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	got, err := DeepWindow(t.Context(), time.Second)
	require.NoError(t, err)
	assert.Equal(t, "not_initialized", got.Status)
	assert.NotEmpty(t, got.Detail)

	t.Run("disabled", func(t *testing.T) {
		_, stop := recordWindows(t, "GPUFLIGHT_DEEP", "")
		got, err := DeepWindow(t.Context(), time.Second)
		require.NoError(t, err)
		assert.Equal(t, "disabled", got.Status)
		assert.Empty(t, stop().spans)
	})
	t.Run("by the engine", func(t *testing.T) {
		w, stop := recordWindows(t)
		for _, tc := range []struct {
			set    string
			code   int64
			engine Engine
			status string
		}{
			{"refuse_pc", 26, EnginePC, "another_profiler"},
			{"refuse_pc", 35, EnginePC, "no_permission"},
			{"refuse_sass", 27, EngineSASS, "unsupported"},
			{"refuse_pc", 999, EnginePC, "failed"},
		} {
			before := w.Control(tc.set, tc.code)
			got, err := DeepWindow(t.Context(), 20*time.Millisecond, WithEngine(tc.engine))
			w.Control(tc.set, before)
			require.NoError(t, err)
			assert.Equal(t, tc.status, got.Status, got.Detail)
			assert.False(t, got.Collected())
			assert.Zero(t, got.Rows)
		}
		require.Zero(t, w.BeginCapture(7))
		got, err := DeepWindow(t.Context(), 20*time.Millisecond)
		require.NoError(t, err)
		assert.Equal(t, "capture_under_way", got.Status, got.Detail)
		require.Zero(t, w.EndCapture(7), "the capture was spoilt")
		// And then there is one after all.
		got, err = DeepWindow(t.Context(), 20*time.Millisecond)
		require.NoError(t, err)
		assert.Equal(t, "collected", got.Status, got.Detail)
		w.Launch("plain", 5)
		r := stop()
		require.Len(t, r.spans, 6)
		assert.True(t, strings.HasPrefix(r.spans[1].Status().Message(), "the driver lets only root profile: "), r.spans[1].Status().Message())
		assert.Equal(t, 5, r.kernels[false]+r.kernels[true], "recording went on")
		assert.Equal(t, w.figures(1, 0), r.samples)
	})
	t.Run("by limits", func(t *testing.T) {
		_, stop := recordWindows(t, "GPUFLIGHT_DEEP_COOLDOWN", "1h")
		got, err := DeepWindow(t.Context(), 20*time.Millisecond)
		require.NoError(t, err)
		assert.Equal(t, "collected", got.Status, got.Detail)
		got, err = DeepWindow(t.Context(), 20*time.Millisecond)
		require.NoError(t, err)
		assert.Equal(t, "cool_down", got.Status)
		got, err = DeepWindow(t.Context(), time.Hour)
		require.Error(t, err, "no window is that long")
		assert.Equal(t, "invalid_request", got.Status)
		_, err = DeepWindow(t.Context(), 0, WithEngine("x-ray"))
		require.ErrorContains(t, err, `"x-ray" is no engine`)
		stop()
	})
	t.Run("no context", func(t *testing.T) {
		setenv(t, "GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "out.otlp.jsonl"), "GPUFLIGHT_DEEP_BLACKOUT", "0s", "XDG_RUNTIME_DIR", "")
		gpu := cuptitest.Libraries(t)
		require.Zero(t, gpu.Init())
		shutdown, err := Init(t.Context(), WithDeepWindows())
		require.NoError(t, err)
		got, err := DeepWindow(t.Context(), 20*time.Millisecond)
		require.NoError(t, err)
		assert.Equal(t, "no_context", got.Status, got.Detail)
		require.NoError(t, shutdown(t.Context()))
	})
}

// A caller that goes away closes its window.
func TestDeepWindowEndsWithItsContext(t *testing.T) {
	w, stop := recordWindows(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err := DeepWindow(ctx, time.Minute)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, StatusOpen, got.Status)
	}()
	process.Eventually(t, time.Minute, "an engine is armed", func() bool { return w.Control("armed", 0) > 0 })
	cancel()
	<-done
	process.Eventually(t, time.Minute, "the window has closed", func() bool { return current.Load().capture.Windows().Report().Windows == 1 })
	r := stop()
	require.Len(t, r.spans, 1)
	assert.Equal(t, "asked", r.spans[0].Attributes().AsRaw()[semconv.CUDADeepWindowCloseReason])
	assert.Equal(t, w.figures(1, 0), r.samples)
	_, err := DeepWindow(ctx, time.Second)
	assert.ErrorIs(t, err, context.Canceled)
}

// The end of the recording closes a window that is open, and what it has is sent.
func TestShutdownClosesTheWindow(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	for _, e := range []Engine{EnginePC, EngineSASS} {
		t.Run(string(e), func(t *testing.T) {
			w, stop := recordWindows(t)
			done := make(chan Window)
			go func() {
				got, err := DeepWindow(t.Context(), time.Minute, WithEngine(e))
				assert.NoError(t, err)
				done <- got
			}()
			process.Eventually(t, time.Minute, "an engine is armed", func() bool { return w.Control("armed", 0) > 0 })
			r := stop()
			got := <-done
			assert.Equal(t, "collected", got.Status, got.Detail)
			assert.Equal(t, "exit", got.Closed)
			require.Len(t, r.spans, 1)
			assert.Equal(t, "exit", r.spans[0].Attributes().AsRaw()[semconv.CUDADeepWindowCloseReason])
			if e == EnginePC {
				assert.Equal(t, w.figures(1, 0), nonZero(r.samples))
			} else {
				assert.Equal(t, w.figures(0, 1), nonZero(r.samples))
			}
		})
	}
}

// windowsUntil waits until so many windows have closed.
func windowsUntil(t *testing.T, n uint64, each func()) {
	t.Helper()
	process.Eventually(t, time.Minute, fmt.Sprintf("%d windows", n), func() bool {
		each()
		return current.Load().capture.Windows().Report().Windows >= n
	})
}

func TestDeepWindowsBySchedule(t *testing.T) {
	w, stop := recordWindows(t, "GPUFLIGHT_DEEP", "", "GPUFLIGHT_DEEP_BLACKOUT", "", "GPUFLIGHT_DEEP_COOLDOWN", "", "GPUFLIGHT_DEEP_PER_HOUR", "", "GPUFLIGHT_DEEP_SHARE", "",
		"GPUFLIGHT_DEEP_AFTER", "2s", "GPUFLIGHT_DEEP_EVERY", "1s", "GPUFLIGHT_DEEP_FOR", "20ms", "GPUFLIGHT_DEEP_MAX", "3", "GPUFLIGHT_DEEP_ENGINE", "pc")
	windowsUntil(t, 3, func() { w.Launch("plain", 1) })
	process.Eventually(t, time.Minute, "the fourth is refused", func() bool {
		return current.Load().capture.Windows().Report().Refused["maximum"] > 0
	})
	r := stop()
	require.Len(t, r.spans, 3)
	for _, s := range r.spans {
		assert.Equal(t, "schedule", s.Attributes().AsRaw()[semconv.CUDADeepWindowCause])
		assert.Equal(t, "2s after the start, every 1s", s.Attributes().AsRaw()[semconv.CUDADeepWindowWhy])
	}
	assert.Equal(t, w.figures(3, 0), r.samples)
}

func TestDeepWindowByRule(t *testing.T) {
	w, stop := recordWindows(t, "GPUFLIGHT_DEEP_WHEN", "kernel(plain).rate over 200ms > 1/s", "GPUFLIGHT_DEEP_FOR", "20ms", "GPUFLIGHT_DEEP_MAX", "1", "GPUFLIGHT_FLUSH_INTERVAL", "20ms")
	windowsUntil(t, 1, func() { w.Launch("plain", 100) })
	r := stop()
	require.Len(t, r.spans, 1)
	a := r.spans[0].Attributes().AsRaw()
	assert.Equal(t, "rule", a[semconv.CUDADeepWindowCause])
	assert.Contains(t, a[semconv.CUDADeepWindowWhy], "kernel(plain).rate over 200ms > 1/s: ")
	assert.Equal(t, w.figures(1, 0), r.samples)
}

func TestDeepWindowBySocket(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("there are such sockets on Linux only")
	}
	w, stop := recordWindows(t)
	client := control.Client{Place: control.PlaceFromEnv(os.Getenv)}
	got, err := client.Open(t.Context(), os.Getpid(), control.Request{Engine: "both", For: "40ms"}, nil)
	require.NoError(t, err)
	assert.Equal(t, "collected", string(got.Outcome.Status), got.Outcome.Text)
	p, state, err := client.Status(t.Context(), os.Getpid())
	require.NoError(t, err)
	assert.Equal(t, "svc", p.Service)
	assert.Equal(t, uint64(1), state.Windows)
	r := stop()
	require.Len(t, r.spans, 1)
	assert.Equal(t, "socket", r.spans[0].Attributes().AsRaw()[semconv.CUDADeepWindowCause])
	assert.Equal(t, w.figures(1, 1), nonZero(r.samples))
	_, _, err = client.Status(t.Context(), os.Getpid())
	require.ErrorIs(t, err, control.ErrNotListening, "the socket goes with the recording")
}

// An engine that never comes back costs windows, and nothing else.
func TestHangingEngineDoesNotHoldTheProgram(t *testing.T) {
	w, stop := recordWindows(t, "GPUFLIGHT_SHUTDOWN_TIMEOUT", "2s")
	w.Control("hang", 1)
	defer w.Control("hang", 0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = DeepWindow(t.Context(), time.Minute)
	}()
	process.Eventually(t, time.Minute, "an engine is armed", func() bool { return w.Control("armed", 0) > 0 })
	w.Launch("plain", 7)
	process.Eventually(t, time.Minute, "kernels are recorded all the same", func() bool {
		return current.Load().capture.Client().Stats()[otlp.Traces].Sent >= 7
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = current.Load().shutdown(context.Background())
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the recording does not end")
	}
	w.Control("hang", 0)
	<-done
	process.Eventually(t, time.Minute, "nothing is armed", func() bool { return w.Control("armed", 0) == 0 })
	_ = stop
	r := w.read(t)
	assert.Equal(t, 7, r.kernels[true]+r.kernels[false])
	// Now that it has come back, the process can record again.
	t.Setenv("GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "again.otlp.jsonl"))
	process.Eventually(t, time.Minute, "it can be recorded again", func() bool {
		shutdown, err := Init(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, shutdown(t.Context())) }()
		return CurrentStatus().Recording
	})
}

// A hundred windows leave nothing behind.
func TestHundredWindowsKeepMemoryFlat(t *testing.T) {
	w, stop := recordWindows(t)
	memory := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	routines, heap := 0, uint64(math.MaxUint64)
	const all = 100
	for i := range all {
		got, err := DeepWindow(t.Context(), 10*time.Millisecond)
		require.NoError(t, err)
		require.True(t, got.Collected(), "%d: %+v", i, got)
		w.Launch("plain", 10)
		if i == all/5 {
			routines, heap = runtime.NumGoroutine(), memory()
		}
	}
	assert.Less(t, memory(), heap+4<<20)
	assert.LessOrEqual(t, runtime.NumGoroutine(), routines+5)
	r := stop()
	assert.Len(t, r.spans, all)
	assert.Equal(t, w.figures(all, 0), nonZero(r.samples))
	assert.Equal(t, 10*all, r.kernels[true]+r.kernels[false])
	var wrong bytes.Buffer
	for _, s := range r.spans {
		a := s.Attributes().AsRaw()
		if lost := a[semconv.CUDADeepWindowLost].(int64); a[semconv.CUDADeepWindowStatus] != "collected" || lost > dropped || a[semconv.CUDADeepWindowRows] == int64(0) {
			fmt.Fprintln(&wrong, a)
		}
	}
	assert.Empty(t, wrong.String())
}
