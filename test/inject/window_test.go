// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/control"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// The values of each window in these tests, at the store of the kernel plain of lines.cu.
const (
	waiting  = 4321
	executed = 5_000_000_000
)

// windowBench is a bench whose windows return these values.
func windowBench(t *testing.T, environ ...string) (b *bench, line int64) {
	t.Helper()
	b = newBench(t)
	images := filepath.Join(process.Root(t), "internal", "recording", "cubin", "testdata")
	path := filepath.Join(images, "lines.sm_90.cubin")
	image, err := os.ReadFile(path)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(images, "lines.cu"))
	require.NoError(t, err)
	for i, l := range strings.Split(string(text), "\n") {
		if strings.HasSuffix(l, "// line: plain") {
			line = int64(i + 1)
		}
	}
	f, err := cubin.Open(image)
	require.NoError(t, err)
	pc := uint64(0)
	for {
		frames, reason := f.Locate("plain", pc, nil)
		require.NotEqual(t, cubin.OutsideFunction, reason)
		if reason == cubin.Resolved && int64(frames[0].Line) == line {
			break
		}
		pc += cubin.InstructionBytes
	}
	script, place := filepath.Join(t.TempDir(), "windows.txt"), t.TempDir()
	require.NoError(t, os.Chmod(place, 0o700))
	require.NoError(t, os.WriteFile(script, fmt.Appendf(nil, `gpuflight-deep 1 pc_sampling
name 0 smsp__pcsamp_warps_issue_stalled_long_scoreboard
function 0 plain
row 0 %[1]d %[2]d 0 0 0 %[3]d
totals %[3]d 0 0
gpuflight-deep 1 sass_metrics
name 0 smsp__sass_inst_executed
row 0 %[1]d %[2]d 0 0 0 %[4]d
`, cubin.CUPTICRC(image), pc, waiting, executed), 0o600))
	b.environ = append(b.environ, "FAKE_CUPTI_REPLAY="+script, "WORK_IMAGE="+path, "XDG_RUNTIME_DIR="+place)
	b.environ = append(b.environ, environ...)
	return b, line
}

// windowed returns the recorded windows, and the sums of their values by kernel, line and name.
func (b *bench) windowed() (windows []map[string]any, figures map[string]int64, listings []string, captures []plog.LogRecord) {
	b.t.Helper()
	spans, records, _ := b.recorded()
	sessions := map[string]bool{}
	for _, s := range spans {
		if s.operation == semconv.CUDAOperationSession {
			sessions[s.SpanID().String()] = true
		}
	}
	under := map[string]bool{}
	for _, s := range spans {
		// Before the first context exists, the schedule retries.
		if s.Name() == "deep window" && s.Attributes().AsRaw()[semconv.CUDADeepWindowStatus] != string(deep.StatusNoContext) {
			windows = append(windows, s.Attributes().AsRaw())
			under[s.SpanID().String()] = true
			assert.True(b.t, sessions[s.ParentSpanID().String()], "the window is under a session")
		}
	}
	figures = map[string]int64{}
	for _, r := range records {
		a := r.Attributes().AsRaw()
		key := fmt.Sprint(a[semconv.CUDAKernelName], ":", a[semconv.CodeLineNumber], " ")
		switch r.EventName() {
		case semconv.EventCUDAPCSample:
			figures[key+a[semconv.CUDAStallReason].(string)] += a[semconv.CUDASampleCount].(int64)
			assert.True(b.t, under[r.SpanID().String()], "figures are under their window")
		case semconv.EventCUDASASSMetric:
			if v := a[semconv.CUDAMetricValue].(int64); v != 0 {
				figures[key+a[semconv.CUDAMetricName].(string)] += v
			}
		case semconv.EventCUDASASSListing:
			listings = append(listings, r.Body().Str())
		case semconv.EventCUDACapture:
			captures = append(captures, r)
		}
	}
	return windows, figures, listings, captures
}

func attrs(w map[string]any) [4]any {
	return [4]any{w[semconv.CUDADeepWindowCause], w[semconv.CUDADeepWindowStatus], w[semconv.CUDADeepWindowCloseReason], w[semconv.CUDADeepWindowSamples]}
}

func TestWindow_Schedule(t *testing.T) {
	nvdisasm := filepath.Join(process.Root(t), ".tools", "cuda-tools", "13.0", "bin", "nvdisasm")
	_, err := os.Stat(nvdisasm)
	text := err == nil
	for _, tc := range []struct{ engine, name, figure string }{
		{"pc", "pc_sampling", "long_scoreboard"},
		{"sass", "sass_metrics", "smsp__sass_inst_executed"},
	} {
		t.Run(tc.engine, func(t *testing.T) {
			// nvdisasm at exit has time only if this variable allows it.
			b, line := windowBench(t, cubin.DisassemblerEnv+"="+nvdisasm, "GPUFLIGHT_SHUTDOWN_TIMEOUT=10m")
			o := b.traced("window", "--deep-after", "100ms", "--deep-every", "1s", "--deep-for", "100ms", "--deep-engine", tc.engine, "--deep-max", "1")
			require.Equal(t, 0, o.code, o.stderr)
			assert.Equal(t, "signals kept\nlimits kept\nwindowed\n", o.stdout)
			windows, figures, listings, captures := b.windowed()
			require.Len(t, windows, 1)
			got := attrs(windows[0])
			assert.Equal(t, []any{"schedule", "collected", "time"}, got[:3], "%v", windows[0])
			assert.Equal(t, []any{tc.name}, windows[0][semconv.CUDADeepWindowEngines])
			want := int64(waiting)
			if tc.engine == "sass" {
				want = executed
			}
			assert.Equal(t, map[string]int64{fmt.Sprintf("plain:%d %s", line, tc.figure): want}, figures)
			if text {
				require.Len(t, listings, 2, "SASS and PTX")
				assert.Contains(t, listings[0], "STG")
				assert.Contains(t, listings[1], ".entry plain(")
			}
			require.Len(t, captures, 1)
			assert.Equal(t, int64(1), captures[0].Attributes().AsRaw()[semconv.CUDACaptureDeepWindows])

			assert.Contains(t, o.stderr, "("+tc.engine+", by schedule): ")
			assert.Contains(t, o.stderr, "`gpuflight report "+b.file+"` shows their results")
			assert.Equal(t, tc.engine == "sass", strings.Contains(o.stderr, "nothing else was recorded for "), o.stderr)
			r := b.run(b.gpuflight, "report", b.file)
			require.Equal(t, 0, r.code, r.stderr)
			assert.Contains(t, r.stdout, "plain")
			if tc.engine == "pc" {
				assert.Contains(t, r.stdout, tc.figure)
				assert.Contains(t, r.stdout, fmt.Sprintf("lines.cu:%d", line))
			}
		})
	}
}

// On a cold machine the first context may exist only after the scheduled time. The window waits for
// it.
func TestWindow_ScheduleWithoutContext(t *testing.T) {
	b, _ := windowBench(t)
	o := b.traced("window_late", "--deep-after", "10ms", "--deep-for", "500ms")
	require.Equal(t, 0, o.code, o.stderr)
	assert.Equal(t, "signals kept\nlimits kept\nwindowed\n", o.stdout)
	windows, figures, _, _ := b.windowed()
	require.Len(t, windows, 1, o.stderr)
	assert.Equal(t, [4]any{"schedule", "collected", "time", int64(waiting)}, attrs(windows[0]))
	assert.NotEmpty(t, figures)
	assert.NotContains(t, o.stderr, "no CUDA context", "what waits has not failed")
}

func TestWindow_Rule(t *testing.T) {
	b, line := windowBench(t, "GPUFLIGHT_FLUSH_INTERVAL=20ms", "GPUFLIGHT_DEEP_BLACKOUT=0s")
	// The program launches some hundred kernels per second while it waits.
	o := b.traced("window", "--deep-when", "kernel.rate over 100ms < 100000/s", "--deep-when", "kernel(plain).rate over 100ms > 1000000/s", "--deep-for", "50ms", "--deep-max", "1")
	require.Equal(t, 0, o.code, o.stderr)
	windows, figures, _, _ := b.windowed()
	require.Len(t, windows, 1, o.stderr)
	assert.Equal(t, [4]any{"rule", "collected", "time", int64(waiting)}, attrs(windows[0]))
	assert.Contains(t, windows[0][semconv.CUDADeepWindowWhy], "kernel.rate over 100ms < 100000/s: ")
	assert.Equal(t, map[string]int64{fmt.Sprintf("plain:%d long_scoreboard", line): waiting}, figures)
}

// client connects to the programs of this bench.
func (b *bench) client() *control.Client {
	return &control.Client{Place: control.PlaceFromEnv(func(name string) string {
		for _, v := range b.environ {
			if value, found := strings.CutPrefix(v, name+"="); found {
				return value
			}
		}
		return ""
	})}
}

// residentMiB returns the resident memory of a process.
func residentMiB(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	require.NoError(t, err)
	var size, resident float64
	_, err = fmt.Sscan(string(text), &size, &resident)
	require.NoError(t, err)
	return resident * float64(os.Getpagesize()) / (1 << 20)
}

// Each window of an engine has the same two thousand rows. Memory must not grow with the number of
// windows. test/gpu/deep.py measures CUPTI's own memory.
func TestWindow_ManyWindowsConstantMemory(t *testing.T) {
	const early, late = 10, 45
	b, _ := windowBench(t, "GPUFLIGHT_DEEP_BLACKOUT=0s")
	image, err := os.ReadFile(filepath.Join(process.Root(t), "internal", "recording", "cubin", "testdata", "lines.sm_90.cubin"))
	require.NoError(t, err)
	crc := cubin.CUPTICRC(image)
	var script bytes.Buffer
	for _, engine := range []struct{ name, figure string }{
		{"pc_sampling", "smsp__pcsamp_warps_issue_stalled_long_scoreboard"}, {"sass_metrics", "smsp__sass_inst_executed"},
	} {
		fmt.Fprintf(&script, "gpuflight-deep 1 %s\nname 0 %s\n", engine.name, engine.figure)
		for i := range 20 {
			fmt.Fprintf(&script, "function %d a_kernel_with_the_long_name_that_templates_give_%d\n", i, i)
		}
		for i := range 2000 {
			fmt.Fprintf(&script, "row 0 %d %d %d 0 0 %d\n", crc, i/20*cubin.InstructionBytes, i%20, 1+i)
		}
		if engine.name == "pc_sampling" {
			fmt.Fprintf(&script, "totals %d 0 0\n", 2000*2001/2)
		}
	}
	file := filepath.Join(t.TempDir(), "many.txt")
	require.NoError(t, os.WriteFile(file, script.Bytes(), 0o600))
	b.environ = append(slices.DeleteFunc(b.environ, func(v string) bool { return strings.HasPrefix(v, "FAKE_CUPTI_REPLAY=") }), "FAKE_CUPTI_REPLAY="+file)
	b.flags = append(b.flags, "--deep-after", "50ms", "--deep-every", "400ms", "--deep-for", "20ms", "--deep-engine", "both", "--deep-max", "0",
		"--deep-cooldown", "0s", "--deep-share", "100%", "--deep-per-hour", "10000")
	p, in := b.beginSteps()
	client := b.client()
	after := func(windows uint64) (mib float64) {
		process.Eventually(t, 5*time.Minute, fmt.Sprintf("%d windows", windows), func() bool {
			_, r, err := client.Status(t.Context(), p.pid)
			return err == nil && r.Windows >= windows
		})
		return residentMiB(t, p.pid)
	}
	before := after(early)
	grown := after(late) - before
	assert.Less(t, grown, 24.0, "MiB from window %d to %d, which began with %.0f", early, late, before)
	require.NoError(t, in.Close())
	require.NoError(t, p.Wait(), p.stderr)
	windows, _, _, _ := b.windowed()
	require.GreaterOrEqual(t, len(windows), late)
	for i, w := range windows[:late] {
		want := 2000
		if i == 0 {
			want = 4000 // a process has one window of SASS metrics
		}
		require.Equal(t, "collected", w[semconv.CUDADeepWindowStatus], "%v", w)
		require.EqualValues(t, want, w[semconv.CUDADeepWindowRows], "%v", w)
	}
	t.Logf("%.1f MiB from window %d to %d of %d, which began with %.0f", grown, early, late, len(windows), before)
}

// A training that becomes slower opens a window: the rule compares the p95 of steps with its own
// baseline.
func TestWindow_RuleOnBaseline(t *testing.T) {
	const rule = "scope(train_step).p95 > 1.5x baseline"
	b, _ := windowBench(t, "GPUFLIGHT_FLUSH_INTERVAL=100ms")
	b.flags = append(b.flags, "--deep-when", rule, "--deep-for", "100ms")
	p, in := b.beginSteps()
	client := b.client()
	// The value is known after ten seconds, and its baseline after ten evaluations.
	process.Eventually(t, 3*time.Minute, "a baseline", func() bool {
		_, r, err := client.Status(t.Context(), p.pid)
		return err == nil && len(r.Rules) == 1 && r.Rules[0].Threshold != "unknown"
	})
	_, err := fmt.Fprintln(in, "slower")
	require.NoError(t, err)
	// On a busy machine steps may have been slow before.
	process.Eventually(t, 3*time.Minute, "a window", func() bool {
		_, r, err := client.Status(t.Context(), p.pid)
		return err == nil && r.Windows > 0
	})
	require.NoError(t, in.Close())
	rest, err := p.out.ReadString(0)
	assert.Equal(t, "over\n", rest, "%v %s", err, p.stderr)
	require.NoError(t, p.Wait(), p.stderr)
	windows, figures, _, _ := b.windowed()
	require.NotEmpty(t, windows, p.stderr)
	first := attrs(windows[0])
	assert.Equal(t, []any{"rule", "collected", "time"}, first[:3], "%v", windows[0])
	why := windows[0][semconv.CUDADeepWindowWhy].(string)
	value, baseline, ok := strings.Cut(strings.TrimPrefix(why, rule+": "), ", baseline ")
	require.True(t, ok, why)
	slow, err := time.ParseDuration(value)
	require.NoError(t, err)
	usual, err := time.ParseDuration(baseline)
	require.NoError(t, err)
	assert.Greater(t, float64(slow), 1.5*float64(usual))
	assert.NotEmpty(t, figures)
	assert.Contains(t, p.stderr.String(), "(pc, by rule): ")
}

func TestWindow_Signal(t *testing.T) {
	b, line := windowBench(t, "GPUFLIGHT_DEEP_BLACKOUT=0s")
	o := b.traced("window_signal", "--deep-signal", "USR2", "--deep-for", "50ms", "--deep-max", "1")
	require.Equal(t, 0, o.code, o.stderr)
	require.Zero(t, o.signal)
	// The requested window must be completed.
	assert.True(t, strings.HasSuffix(o.stdout, "limits kept\nwindowed\n"), o.stdout)
	windows, figures, _, _ := b.windowed()
	require.Len(t, windows, 1, o.stderr)
	assert.Equal(t, [4]any{"signal", "collected", "time", int64(waiting)}, attrs(windows[0]))
	assert.Equal(t, "SIGUSR2", windows[0][semconv.CUDADeepWindowWhy])
	assert.Equal(t, map[string]int64{fmt.Sprintf("plain:%d long_scoreboard", line): waiting}, figures)
}

// A program that exits in a window behaves as without it. If possible, the window is reported.
func TestWindow_ProgramEnd(t *testing.T) {
	for _, tc := range []struct {
		mode   string
		code   int
		signal syscall.Signal
		stdout string
		told   bool
	}{
		{mode: "window_exit", stdout: "ending in a window\n", told: true},
		{mode: "window_code", code: 9, told: true},
		{mode: "window_fork", stdout: "4\n3\narmed True\n", told: true},
		{mode: "window_leave", code: 7, stdout: "leaving in a window\n"},
		{mode: "window_segv", signal: syscall.SIGSEGV},
		{mode: "window_term", signal: syscall.SIGTERM},
	} {
		for _, engine := range []string{"pc", "sass"} {
			t.Run(tc.mode+" "+engine, func(t *testing.T) {
				b, line := windowBench(t, "GPUFLIGHT_DEEP_BLACKOUT=0s", "GPUFLIGHT_DEEP_SHARE=1", "GPUFLIGHT_SHUTDOWN_TIMEOUT=30s", "GPUFLIGHT_FLUSH_INTERVAL=20ms")
				o := b.traced(tc.mode, "--deep-when", "kernel(plain).rate over 100ms > 1/s", "--deep-for", "60s", "--deep-engine", engine)
				assert.Equal(t, tc.code, o.code, o.stderr)
				assert.Equal(t, tc.signal, o.signal, o.stderr)
				assert.Equal(t, "signals kept\nlimits kept\n"+tc.stdout, o.stdout)
				assert.Less(t, o.took, 55*time.Second, "it waited for the window")
				windows, figures, _, captures := b.windowed()
				if !tc.told {
					assert.Empty(t, captures)
					return
				}
				require.Len(t, windows, 1, o.stderr)
				got := attrs(windows[0])
				assert.Equal(t, []any{"rule", "collected", "exit"}, got[:3], "%v", windows[0])
				want := map[string]int64{fmt.Sprintf("plain:%d long_scoreboard", line): waiting}
				if engine == "sass" {
					want = map[string]int64{fmt.Sprintf("plain:%d smsp__sass_inst_executed", line): executed}
				}
				assert.Equal(t, want, figures)
			})
		}
	}
}

// program is a command under gpuflight trace that prints its process id.
type program struct {
	*exec.Cmd
	out    *bufio.Reader
	pid    int
	stderr *bytes.Buffer
}

// begin starts a program; stdin is its input, nil for none.
func (b *bench) begin(mode string, stdin *os.File) *program {
	b.t.Helper()
	p := &program{Cmd: exec.Command(b.gpuflight, b.traceArgs(mode)...), stderr: &bytes.Buffer{}}
	p.Env, p.Stderr = b.environ, p.stderr
	attributes := b.attributes
	attributes.Setpgid = true
	p.SysProcAttr = &attributes
	if stdin != nil {
		p.Stdin = stdin
	}
	out, err := p.StdoutPipe()
	require.NoError(b.t, err)
	p.out = bufio.NewReader(out)
	p.WaitDelay = time.Second
	require.NoError(b.t, p.Start())
	b.t.Cleanup(func() { _ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL) })
	limit := time.AfterFunc(time.Minute, func() { _ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL) })
	defer limit.Stop()
	for p.pid == 0 {
		line, err := p.out.ReadString('\n')
		require.NoError(b.t, err, "the program says nothing: %s", p.stderr)
		p.pid, _ = strconv.Atoi(strings.TrimSpace(line))
	}
	return p
}

// beginSteps starts a program of steps that exits when its standard input is closed. The caller
// closes it.
func (b *bench) beginSteps() (p *program, stdin *os.File) {
	b.t.Helper()
	in, stdin, err := os.Pipe()
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = stdin.Close() })
	p = b.begin("window_steps", in)
	require.NoError(b.t, in.Close())
	return p, stdin
}

func TestWindow_Socket(t *testing.T) {
	b, line := windowBench(t, "GPUFLIGHT_DEEP=1", "GPUFLIGHT_DEEP_BLACKOUT=0s")
	p := b.begin("window_asked", nil)
	// The program needs a moment until it has a context and its module.
	var o outcome
	var window deep.Window
	process.Eventually(t, time.Minute, "a window opens", func() bool {
		o = b.run(b.gpuflight, "deep", strconv.Itoa(p.pid), "--for", "100ms", "--engine", "pc", "--json")
		return json.Unmarshal([]byte(o.stdout), &window) == nil && window.Outcome.Status == deep.StatusCollected && o.code == 0
	})
	assert.Equal(t, uint64(waiting), window.Collected.Samples)
	require.NoError(t, p.Wait(), p.stderr)
	windows, figures, _, _ := b.windowed()
	require.NotEmpty(t, windows)
	assert.Equal(t, [4]any{"socket", "collected", "time", int64(waiting)}, attrs(windows[len(windows)-1]))
	if len(figures) > 0 { // a window before the load of the module has no lines
		assert.Contains(t, figures, fmt.Sprintf("plain:%d long_scoreboard", line))
	}
	o = b.run(b.gpuflight, "deep", strconv.Itoa(p.pid))
	assert.Equal(t, 1, o.code, "it has ended: %s", o.stderr)
}

// Without the option for windows there is no socket. Unsupported engines are reported.
func TestWindow_SocketRejection(t *testing.T) {
	b, _ := windowBench(t)
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer out.Close()
	run := func(environ ...string) outcome {
		before := b.environ
		defer func() { b.environ = before }()
		b.environ = append(b.environ[:len(b.environ):len(b.environ)], environ...)
		p := b.begin("window_refused", in)
		o := b.run(b.gpuflight, "deep", strconv.Itoa(p.pid), "--for", "50ms")
		require.NoError(t, syscall.Kill(-p.Process.Pid, syscall.SIGTERM))
		_ = p.Wait()
		return o
	}
	o := run()
	assert.NotZero(t, o.code)
	assert.Contains(t, o.stderr, "takes no requests for deep windows")
	o = run("GPUFLIGHT_DEEP=1")
	assert.Equal(t, 3, o.code, o.stderr)
	assert.Contains(t, o.stderr, "not yet allowed so soon after the start")
}

func TestWindow_InvalidFlags(t *testing.T) {
	b := newBench(t)
	for _, tc := range []struct {
		flags []string
		words string
	}{
		{[]string{"--deep-after", "30"}, "gpuflight trace: --deep-after is \"30\"; it must be a duration of at least 1ms, such as 1500us, 200ms or 5s (see gpuflight trace --help)\n"},
		{[]string{"--deep-when", "kernel.rate < much"}, "kernel.rate < much"},
		{[]string{"--deep-engine", "x-ray"}, "x-ray"},
		{[]string{"--deep-every", "1s", "--deep-for", "2s"}, "leave nothing between"},
	} {
		o := b.traced("plain", tc.flags...)
		assert.Equal(t, 2, o.code)
		assert.Contains(t, o.stderr, tc.words)
	}
}
