// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// controlled is a program that runs commands.
type controlled struct {
	*program
	b  *bench
	in *os.File
}

func (b *bench) startControlled() *controlled {
	b.t.Helper()
	in, out, err := os.Pipe()
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = out.Close() })
	p := b.begin("window_told", in)
	require.NoError(b.t, in.Close())
	return &controlled{p, b, out}
}

// do runs one command in the program and returns the armed engines.
func (p *controlled) do(line string) string {
	p.b.t.Helper()
	_, err := fmt.Fprintln(p.in, line)
	require.NoError(p.b.t, err)
	answer, err := p.out.ReadString('\n')
	require.NoError(p.b.t, err, "%s: %s", line, p.stderr)
	return strings.TrimSpace(answer)
}

// ask requests a window, and returns the messages for users and programs.
func (p *controlled) ask(engine string) (code int, text string, window deep.Window) {
	p.b.t.Helper()
	id := strconv.Itoa(p.pid)
	o := p.b.run(p.b.gpuflight, "deep", id, "--for", "20ms", "--engine", engine)
	again := p.b.run(p.b.gpuflight, "deep", id, "--for", "20ms", "--engine", engine, "--json")
	require.NoError(p.b.t, json.Unmarshal([]byte(again.stdout), &window), "%s%s", again.stdout, again.stderr)
	assert.Equal(p.b.t, o.code, again.code)
	return o.code, o.stdout, window
}

// once requests one window and returns the exit code and the text.
func (p *controlled) once(engine string) (code int, text string) {
	p.b.t.Helper()
	o := p.b.run(p.b.gpuflight, "deep", strconv.Itoa(p.pid), "--for", "20ms", "--engine", engine)
	return o.code, o.stdout
}

// end closes the program's standard input and waits for it.
func (p *controlled) end() {
	p.b.t.Helper()
	require.NoError(p.b.t, p.in.Close())
	rest, err := p.out.ReadString(0)
	assert.Equal(p.b.t, "over\n", rest, "%v", err)
	require.NoError(p.b.t, p.Wait(), p.stderr)
}

// anyWindow allows consecutive windows without delay.
var anyWindow = []string{"GPUFLIGHT_DEEP=1", "GPUFLIGHT_DEEP_BLACKOUT=0s", "GPUFLIGHT_DEEP_COOLDOWN=0s", "GPUFLIGHT_DEEP_PER_HOUR=10000", "GPUFLIGHT_DEEP_SHARE=1"}

// TestWindow_RejectionMessages checks each cause of a rejection. gpuflight deep ends with one exit
// code and one sentence with the cause and the next step. Nothing stays armed, and the program and
// its next window work as before.
func TestWindow_RejectionMessages(t *testing.T) {
	b, line := windowBench(t, anyWindow...)
	p := b.startControlled()
	attempts := 0
	for _, tc := range []struct {
		set    string // the cause, as a command to the program
		unset  string
		engine string
		code   int
		status deep.Status
		words  string
	}{
		// Missing permission: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, and the similar error of a
		// virtual GPU.
		{"refuse_pc 35", "refuse_pc 0", "pc", 3, deep.StatusNoPermission, "NVreg_RestrictProfilingToAdminUsers=0, or give the process CAP_SYS_ADMIN"},
		{"refuse_profiler 35", "refuse_profiler 0", "sass", 3, deep.StatusNoPermission, "NVreg_RestrictProfilingToAdminUsers=0, or give the process CAP_SYS_ADMIN"},
		{"refuse_pc 40", "refuse_pc 0", "pc", 3, deep.StatusNoPermission, "on a virtual GPU have profiling enabled in its host"},
		// Another profiler uses the GPU, or CUPTI in this process: HARDWARE_BUSY,
		// OLD_PROFILER_API_INITIALIZED and MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED. PC sampling can also
		// report it as missing stall reasons.
		{"refuse_pc 26", "refuse_pc 0", "pc", 3, deep.StatusAnotherProfiler, "something else has the GPU's counters (Nsight, DCGM's profiling metrics, another process's window): stop it"},
		{"counters_taken 26", "counters_taken 0", "pc", 3, deep.StatusAnotherProfiler, "something else has the GPU's counters"},
		{"refuse_start 26", "refuse_start 0", "pc", 3, deep.StatusAnotherProfiler, "something else has the GPU's counters"},
		{"refuse_sass 26", "refuse_sass 0", "sass", 3, deep.StatusAnotherProfiler, "something else has the GPU's counters"},
		{"no_reasons 1", "no_reasons 0", "pc", 3, deep.StatusAnotherProfiler, "something else has the GPU's counters"},
		{"refuse_pc 36", "refuse_pc 0", "pc", 3, deep.StatusAnotherProfiler, "another profiler holds CUPTI (Nsight, "},
		{"refuse_profiler 39", "refuse_profiler 0", "sass", 3, deep.StatusAnotherProfiler, "another profiler holds CUPTI (Nsight, "},
		// An unsupported GPU: NOT_SUPPORTED and similar errors, and errors of a device's setup.
		{"refuse_pc 27", "refuse_pc 0", "pc", 3, deep.StatusUnsupported, "PC sampling does not work on this GPU or in this virtual machine"},
		{"refuse_sass 27", "refuse_sass 0", "sass", 3, deep.StatusUnsupported, "SASS metrics does not work on this GPU or in this virtual machine"},
		{"refuse_pc 33", "refuse_pc 0", "pc", 3, deep.StatusUnsupported, "use a whole GPU of compute capability 7.5 or later"},
		{"refuse_pc 41", "refuse_pc 0", "pc", 3, deep.StatusUnsupported, "use a whole GPU of compute capability 7.5 or later"},
		{"refuse_pc 42", "refuse_pc 0", "pc", 3, deep.StatusUnsupported, "use a whole GPU of compute capability 7.5 or later"},
		{"refuse_pc 43", "refuse_pc 0", "pc", 3, deep.StatusUnsupported, "use a whole GPU of compute capability 7.5 or later"},
		{"refuse_pc 44", "refuse_pc 0", "pc", 3, deep.StatusUnsupported, "use a whole GPU of compute capability 7.5 or later"},
		{"refuse_pc 45", "refuse_pc 0", "pc", 3, deep.StatusUnsupported, "use a whole GPU of compute capability 7.5 or later"},
		{"unsupported 1", "unsupported 0", "sass", 3, deep.StatusUnsupported, "the GPU cannot do SASS metrics as it is set up (architecture): use another GPU"},
		{"unsupported 3", "unsupported 0", "sass", 3, deep.StatusUnsupported, "(vGPU): use another GPU"},
		{"unsupported 6", "unsupported 0", "sass", 3, deep.StatusUnsupported, "(WSL): use another GPU"},
		// During a stream capture.
		{"capture", "captured", "pc", 3, deep.StatusCapturing, "a CUDA graph is being captured, and a window would spoil it: try again when it is done"},
		{"capture", "captured", "sass", 3, deep.StatusCapturing, "a CUDA graph is being captured, and a window would spoil it: try again when it is done"},
		// The program does not quiesce.
		{"hold", "held", "pc", 3, deep.StatusNotQuiesced, "the program was busy with launches or module loads until the limit (cuModuleLoadData of thread "},
		{"hold", "held", "sass", 3, deep.StatusNotQuiesced, "the program was busy with launches or module loads until the limit (cuModuleLoadData of thread "},
		// An unexpected failure.
		{"refuse_pc 7", "refuse_pc 0", "pc", 1, deep.StatusFailed, "another part of this process may use CUPTI's profiling"},
		{"refuse_pc 999", "refuse_pc 0", "pc", 1, deep.StatusFailed, "the engine failed (CUPTI says CUPTI_ERROR_UNKNOWN (999))"},
		{"refuse_pc 8", "refuse_pc 0", "pc", 1, deep.StatusFailed, "CUPTI_ERROR_OUT_OF_MEMORY"},
	} {
		t.Run(tc.set+" "+tc.engine, func(t *testing.T) {
			p.do(tc.set)
			code, text, window := p.ask(tc.engine)
			attempts += 2
			assert.Equal(t, tc.code, code, text)
			assert.Equal(t, tc.status, window.Outcome.Status)
			assert.Contains(t, window.Outcome.Text, tc.words)
			assert.Contains(t, text, " did not open: ")
			assert.Contains(t, text, tc.words)
			assert.Equal(t, 1, strings.Count(text, "\n"), "one line: %q", text)
			assert.NotContains(t, window.Outcome.Text, "\n")
			assert.False(t, strings.HasSuffix(window.Outcome.Text, "."), window.Outcome.Text)
			require.Equal(t, "armed 0", p.do(tc.unset), "nothing is left armed")
		})
	}
	// No state remains: both engines have their window, and SASS metrics only one.
	code, text, window := p.ask("pc")
	assert.Equal(t, 0, code, text)
	assert.Equal(t, deep.StatusCollected, window.Outcome.Status)
	code, text = p.once("sass")
	assert.Equal(t, 0, code, text)
	code, text, window = p.ask("sass") // rejected before an attempt
	assert.Equal(t, 3, code, text)
	assert.Equal(t, deep.StatusSASSUsed, window.Outcome.Status)
	p.end()
	windows, figures, _, captures := b.windowed()
	require.Len(t, windows, attempts+3, "each attempt is reported")
	require.Len(t, captures, 1)
	assert.Equal(t, int64(3), captures[0].Attributes().AsRaw()[semconv.CUDACaptureDeepWindows])
	assert.Equal(t, int64(2*waiting), figures[fmt.Sprintf("plain:%d long_scoreboard", line)])
	r := b.run(b.gpuflight, "report", b.file)
	require.Equal(t, 0, r.code, r.stderr)
	assert.Contains(t, r.stdout, fmt.Sprintf("Deep windows: %d, %d of them without figures", attempts+3, attempts))
	assert.Contains(t, r.stdout, "windows, capture_under_way: a CUDA graph is being captured")
}

// If another profiler uses the counters, the start of CUPTI is not attempted, because its failure
// may disable all of CUPTI. If availability cannot be queried, the start is attempted.
func TestWindow_CounterAccess(t *testing.T) {
	b, _ := windowBench(t, anyWindow...)
	p := b.startControlled()
	p.do("start_makes_unresponsive 1")
	refusals := 0
	for range 2 {
		p.do("refuse_start 26")
		p.do("counters_taken 26")
		for range 2 {
			o := b.run(b.gpuflight, "deep", strconv.Itoa(p.pid), "--for", "20ms")
			assert.Equal(t, 3, o.code, "%s%s", o.stdout, o.stderr)
			assert.Contains(t, o.stdout, "something else has the GPU's counters")
			assert.Equal(t, 1, strings.Count(o.stdout, "\n"), o.stdout)
			refusals++
		}
		p.do("refuse_start 0")
		p.do("counters_taken 0")
		code, text, _ := p.ask("pc")
		assert.Equal(t, 0, code, text)
	}
	code, text := p.once("sass")
	assert.Equal(t, 0, code, text)
	p.do("counters_taken 1") // an unknown answer
	code, text, _ = p.ask("pc")
	assert.Equal(t, 0, code, text)
	p.do("counters_taken 0")
	require.Equal(t, "armed 0", p.do("refuse_profiler 999"))
	code, text, _ = p.ask("pc")
	assert.Equal(t, 0, code, text)
	assert.Equal(t, "0", p.do("? read_concurrently"))
	p.end()
	windows, _, _, captures := b.windowed()
	assert.Len(t, windows, refusals+9)
	require.Len(t, captures, 1)
	ended := captures[0].Attributes().AsRaw()
	assert.Equal(t, int64(9), ended[semconv.CUDACaptureDeepWindows])
	assert.Contains(t, ended[semconv.CUDACaptureKindsCollected], "kernel", "it is recorded to the end")
	assert.NotContains(t, fmt.Sprint(ended), "unresponsive")
}

// Another tool uses the counters, and CUPTI becomes unresponsive when it rejects the start. The program
// continues, and the recorder makes no further calls that could crash CUPTI. Earlier records are kept,
// and the user gets a message.
func TestWindow_CUPTIUnresponsive(t *testing.T) {
	b, _ := windowBench(t, anyWindow...)
	p := b.startControlled()
	code, text, _ := p.ask("pc")
	require.Equal(t, 0, code, text)
	p.do("refuse_start 26")
	p.do("start_makes_unresponsive 1")
	const words = "and CUPTI is unresponsive: nothing more is recorded in this process; restart it, and request SASS metrics while "
	for _, engine := range []string{"pc", "pc", "sass", "both"} {
		code, text, window := p.ask(engine)
		assert.Equal(t, 1, code, text)
		assert.Equal(t, deep.StatusBroken, window.Outcome.Status)
		assert.Contains(t, text, words)
		assert.Equal(t, 1, strings.Count(text, "\n"), text)
		p.do("refuse_start 0")
	}
	require.Equal(t, "armed 0", p.do("launch"))
	assert.Equal(t, "0", p.do("? switched_unresponsive"))
	p.end()
	_, _, _, captures := b.windowed()
	require.Len(t, captures, 1)
	ended := captures[0].Attributes().AsRaw()
	assert.Equal(t, "partial", ended[semconv.CUDACaptureStatus])
	assert.Contains(t, fmt.Sprint(ended), words)
}

// A profiler that started first, such as torch.profiler, uses CUPTI exclusively. The program runs
// as before, and a request for a window returns the cause.
func TestWindow_OtherProfiler(t *testing.T) {
	b, _ := windowBench(t, append([]string{"FAKE_CUPTI_REFUSE=39"}, anyWindow...)...)
	p := b.startControlled()
	var code int
	var text string
	process.Eventually(t, time.Minute, "the process answers", func() bool {
		o := b.run(b.gpuflight, "deep", strconv.Itoa(p.pid), "--for", "20ms")
		code, text = o.code, o.stdout
		return o.code != 1
	})
	assert.Equal(t, 3, code)
	assert.Contains(t, text, "did not open: another profiler holds CUPTI (Nsight, ")
	assert.Equal(t, 1, strings.Count(text, "\n"), text)
	assert.Equal(t, "armed 0", p.do("launch"))
	p.end()
	assert.Contains(t, p.stderr.String(), "recorded nothing: another profiler holds CUPTI")
}

// shareFolder gives two benches one runtime folder, as two programs of one user have. It holds the
// lease of a GPU.
func shareFolder(t *testing.T, one, two *bench) {
	t.Helper()
	for _, v := range one.environ {
		if strings.HasPrefix(v, "XDG_RUNTIME_DIR=") {
			two.environ = append(two.environ, v)
			return
		}
	}
	t.Fatal("the bench has no runtime folder")
}

// Two programs on one GPU: the second reports which process is sampled until that process ends.
// Both can have windows of sass.
func TestWindow_TwoProcesses(t *testing.T) {
	one, _ := windowBench(t, append([]string{"FAKE_CUDA_BOARD=" + strconv.Itoa(os.Getpid()<<1)}, anyWindow...)...)
	two, _ := windowBench(t, append([]string{"FAKE_CUDA_BOARD=" + strconv.Itoa(os.Getpid()<<1)}, anyWindow...)...)
	shareFolder(t, one, two)
	first, second := one.startControlled(), two.startControlled()
	wants := func(p *controlled, engine string, code int, status deep.Status) string {
		t.Helper()
		got, text, window := p.ask(engine)
		assert.Equal(t, code, got, text)
		assert.Equal(t, status, window.Outcome.Status)
		assert.Equal(t, "armed 0", p.do("look"))
		return text
	}
	code, text := first.once("sass")
	assert.Equal(t, 0, code, text)
	wants(first, "pc", 0, deep.StatusCollected)
	assert.Empty(t, abstractSockets(t, first.pid), "anybody could take such a name")
	text = wants(second, "pc", 3, deep.StatusAnotherProfiler)
	assert.Contains(t, text, fmt.Sprintf("did not open: process %d samples this GPU, and holds it until it exits: end that process, or request SASS metrics\n", first.pid))
	code, text = second.once("both")
	assert.Equal(t, 0, code, text)
	assert.Contains(t, text, fmt.Sprintf("not with pc: process %d samples this GPU", first.pid))
	wants(first, "pc", 0, deep.StatusCollected)
	first.end()
	wants(second, "pc", 0, deep.StatusCollected)
	second.end()
}

// abstractSockets returns the abstract names of the Unix sockets that a process has open.
func abstractSockets(t *testing.T, pid int) (names []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", pid)
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	require.NoError(t, err)
	open := map[string]bool{}
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join(dir, "fd", e.Name())) // A descriptor may be closed meanwhile.
		open[target] = true
	}
	text, err := os.ReadFile(filepath.Join(dir, "net", "unix"))
	require.NoError(t, err)
	paths := 0
	for line := range strings.Lines(string(text)) {
		// Num RefCount Protocol Flags Type St Inode Path
		if f := strings.Fields(line); len(f) == 8 && open["socket:["+f[6]+"]"] {
			paths++
			if strings.HasPrefix(f[7], "@") {
				names = append(names, f[7])
			}
		}
	}
	require.Positive(t, paths, "the socket for requests is listed")
	return names
}

// Containers have their own network namespaces and the host's driver library.
func TestWindow_TwoNamespaces(t *testing.T) {
	board := "FAKE_CUDA_BOARD=" + strconv.Itoa(os.Getpid()<<1|1)
	one, _ := windowBench(t, append([]string{board}, anyWindow...)...)
	two, _ := windowBench(t, append([]string{board}, anyWindow...)...)
	two.attributes = syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
	}
	if err := (&exec.Cmd{Path: "/bin/true", SysProcAttr: &two.attributes}).Run(); err != nil {
		t.Skip("no namespace can be made here:", err)
	}
	shareFolder(t, one, two)
	first, second := one.startControlled(), two.startControlled()
	code, text, _ := first.ask("pc")
	assert.Equal(t, 0, code, text)
	code, text, window := second.ask("pc")
	assert.Equal(t, 3, code, text)
	assert.Equal(t, deep.StatusAnotherProfiler, window.Outcome.Status)
	assert.Contains(t, text, " samples this GPU, and holds it until it exits")
	first.end()
	code, text, _ = second.ask("pc")
	assert.Equal(t, 0, code, text)
	second.end()
}

// A window request to a program that exits meanwhile returns the results so far.
func TestWindow_RequestAtExit(t *testing.T) {
	b, line := windowBench(t, append([]string{"GPUFLIGHT_SHUTDOWN_TIMEOUT=30s"}, anyWindow...)...)
	p := b.startControlled()
	asked := make(chan outcome, 1)
	go func() { asked <- b.run(b.gpuflight, "deep", strconv.Itoa(p.pid), "--for", "60s", "--engine", "pc") }()
	process.Eventually(t, time.Minute, "the engine is armed", func() bool { return p.do("look") != "armed 0" })
	p.end()
	o := <-asked
	assert.Equal(t, 0, o.code, o.stderr)
	assert.Contains(t, o.stdout, " (exit)\n")
	assert.Equal(t, strconv.Itoa(p.pid), regexp.MustCompile(`window 1 of process (\d+) is open`).FindStringSubmatch(o.stderr)[1])
	windows, figures, _, _ := b.windowed()
	require.Len(t, windows, 1)
	assert.Equal(t, [4]any{"socket", "collected", "exit", int64(waiting)}, attrs(windows[0]))
	assert.Equal(t, int64(waiting), figures[fmt.Sprintf("plain:%d long_scoreboard", line)])
}

// A program without a context cannot be profiled.
func TestWindow_BeforeFirstContext(t *testing.T) {
	b, _ := windowBench(t, anyWindow...)
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer out.Close()
	p := &controlled{b.begin("window_contextless", in), b, out}
	require.NoError(t, in.Close())
	for _, engine := range []string{"pc", "sass"} {
		code, text, window := p.ask(engine)
		assert.Equal(t, 3, code, text)
		assert.Equal(t, deep.StatusNoContext, window.Outcome.Status)
		assert.Contains(t, text, "did not open: the process has no CUDA context yet: wait until it uses the GPU\n")
	}
	p.end()
}
