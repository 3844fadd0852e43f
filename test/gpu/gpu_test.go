// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package gpu tests the programs and scripts for a machine with a GPU without one: programs with a
// fake driver and a fake CUPTI, scripts by their own checks.
package gpu

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var gpufl = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}

// run runs a command with additional environment variables and returns its standard output.
func run(t *testing.T, environ []string, command string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(t.Context(), command, args...)
	c.Env = append(os.Environ(), environ...)
	c.Stdout, c.Stderr = &stdout, &stderr
	c.WaitDelay = time.Second
	require.NoError(t, c.Run(), "%s %q\n%s%s", command, args, &stdout, &stderr)
	return stdout.String()
}

func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		process.Missing(t, "the scripts need python3")
	}
	return path
}

// TestPrograms_FakeGPU builds each program without warnings. Each must see all its launches.
func TestPrograms_FakeGPU(t *testing.T) {
	fakes := cuptitest.Build(t)
	environ, cupti := cuptitest.Environment(fakes), filepath.Join(fakes, "libcupti.so.13")
	bin := t.TempDir()
	run(t, nil, filepath.Join(process.Root(t), "test", "gpu", "build"), "--programs", bin)

	t.Run("sequence", func(t *testing.T) {
		// Five times a hundred launches at each dot. Three dots have records, and all their enter
		// and exit callbacks.
		said := run(t, environ, filepath.Join(bin, "sequence"), cupti, "SCBPYKMTI.kmKM.GgOGqrgoupGjkAaKEN.F?Z.", "100")
		assert.Contains(t, said, " {1500 records, 1000 ns, 0 without, 0 patched, 0 samples in 4 windows, 0 refused, ")
		assert.Contains(t, said, " told of 3000\n")
		assert.Equal(t, 1, strings.Count(said, "="), "%s", said) // N ends what was not begun
		assert.Contains(t, said, " N=7")
	})
	t.Run("switches", func(t *testing.T) {
		said := run(t, environ, filepath.Join(bin, "switches"), cupti, "b", "1", "3", "20")
		assert.Equal(t, 3, strings.Count(said, "] first -1, without record 0, not told 0 of 2000, inside 0;"), "%s", said)
		for _, how := range [][2]string{{"o", "0"}, {"t", "4"}, {"T", "4"}, {"p", "1"}, {"p", "4"}, {"p", "5"}, {"P", "4"}, {"q", "5"}, {"a", "7"}, {"A", "5"}} {
			said = run(t, environ, filepath.Join(bin, "switches"), cupti, how[0], how[1], "3", "5")
			assert.Equal(t, 3, strings.Count(said, "] first -1, without record 0, not told 0 of 500, inside 0;"), "%s", said)
			assert.Equal(t, strings.Contains("pPqaA", how[0]), strings.Contains(said, " started 5 times, "), "%s", said)
		}
	})
	t.Run("held", func(t *testing.T) {
		for controls, outcomes := range map[string]map[string]string{
			"":                  {"p 5 n": "not refused", "A 5 n": "not refused"},
			"refuse_start=26":   {"p 5 n": "as before", "a 5 n": "as before"},
			"counters_taken=26": {"a 1 n": "asked first, as before", "A 5 n": "asked first, as before", "p 1 n": "not refused"},
			"counters_taken=26,refuse_start=26,silent=1":                    {"a 1 n": "asked first, and harmed", "p 1 n": "harmed"},
			"refuse_start=26,start_makes_unresponsive=1,refuse_disable=999": {"p 1 n": "unresponsive", "p 1 f": "healed"},
		} {
			for way, outcome := range outcomes {
				said := run(t, append(environ, "FAKE_CUPTI_CONTROL="+controls), "python3", filepath.Join(process.Root(t), "test", "gpu", "held.py"),
					"--bin", bin, "--cupti", cupti, "--alone", "--seconds", "0.01", "--threads", "2", way)
				assert.True(t, strings.HasSuffix(said, way+": 1 processes: 1 "+outcome+"\n"), "%s: %s", controls, said)
			}
		}
	})
	// Whether records of launches and of copies are missing, because they are disabled at times or
	// have no buffers.
	for how, lost := range map[string][2]bool{
		"b": {}, "d": {}, "n": {}, "f": {}, "k": {true, false}, "w": {true, true}, "o": {true, true}, "x": {true, true}, "e": {true, true},
		"r": {true, true}, "s": {true, true}, "S": {true, true}, "X": {true, true}, "z": {true, true}, "Z": {true, true}, "i": {true, true},
	} {
		t.Run("copies "+how, func(t *testing.T) {
			said := run(t, environ, filepath.Join(bin, "copies"), cupti, how, "3", "2000", "0.5")
			var asked, patched int
			var recorded, made [2]int
			_, err := fmt.Sscanf(said, how+" 3 threads: asked %d times, %d records of %d launches, %d of %d copies, %d patched, 0 windows empty\n",
				&asked, &recorded[0], &made[0], &recorded[1], &made[1], &patched)
			require.NoError(t, err, said)
			assert.Positive(t, asked)
			assert.Equal(t, strings.Contains("sSX", how), patched > 0)
			for i := range lost {
				assert.Positive(t, recorded[i])
				assert.Equal(t, lost[i], recorded[i] < made[i], "%d of %d", recorded[i], made[i])
			}
		})
	}
	for how, left := range map[string]bool{"n": false, "u": false, "f": true} {
		t.Run("leaks "+how, func(t *testing.T) {
			said := run(t, environ, filepath.Join(bin, "leaks"), cupti, "3", "6", how)
			_, last, _ := strings.Cut(said, "and after 6 windows: ")
			_, last, _ = strings.Cut(last, "\n")
			var patched int
			var kib, pieces float64
			_, err := fmt.Sscanf(last, "%d instructions patched in all; of a window %f KiB in %f pieces are left\n", &patched, &kib, &pieces)
			require.NoError(t, err, said)
			assert.Equal(t, how != "u", patched > 0, said)
			assert.Equal(t, left, pieces > 0, said)
		})
	}
}

// TestScripts checks that each script describes itself, and that the checks of windows reject wrong
// results.
func TestScripts(t *testing.T) {
	interpreter := python(t)
	here := filepath.Join(process.Root(t), "test", "gpu")
	scripts, err := filepath.Glob(filepath.Join(here, "*.py"))
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	quiet := []string{"PYTHONDONTWRITEBYTECODE=1"}
	for _, script := range scripts {
		if name := filepath.Base(script); name == "places.py" || name == "where.py" {
			continue // they are for the others
		}
		assert.Contains(t, run(t, quiet, interpreter, script, "--help"), "usage: "+filepath.Base(script))
	}
	// These need PyTorch to run.
	inner, err := filepath.Glob(filepath.Join(here, "*", "*.py"))
	require.NoError(t, err)
	require.NotEmpty(t, inner)
	run(t, quiet, interpreter, append([]string{"-c", "import ast, sys\nfor f in sys.argv[1:]: ast.parse(open(f).read(), f)"}, inner...)...)

	said := run(t, quiet, interpreter, filepath.Join(here, "deep.py"), "--dry", "--bin", filepath.Dir(gpufl.Find(t)))
	assert.Contains(t, said, "all 2 checks passed")
}

var collector = process.Binary{Env: "GPUFLIGHT_COLLECTOR", Path: "bin/otelcol-gpuflight", Make: "make build"}

// TestTrace_FakeGPU runs trace.py with a fake GPU, a real Collector, and a training without PyTorch. Its
// comparison with the floor means nothing here.
func TestTrace_FakeGPU(t *testing.T) {
	interpreter, here, fakes, bin, cuda := python(t), filepath.Join(process.Root(t), "test", "gpu"), cuptitest.Build(t), t.TempDir(), t.TempDir()
	library := os.Getenv("GPUFLIGHT_INJECT")
	if library == "" {
		library = filepath.Join(process.Root(t), "bin", "libgpuflight.so")
	}
	for _, file := range []string{gpufl.Find(t), collector.Find(t), library, filepath.Join(filepath.Dir(library), "libgpuflight-recorder.so")} {
		if _, err := os.Stat(file); err != nil {
			process.Missing(t, err.Error())
		}
		require.NoError(t, os.Symlink(file, filepath.Join(bin, filepath.Base(file))))
	}
	for link, file := range map[string]string{
		"include": filepath.Join(here, "testdata", "include"), "lib64/libcupti.so": filepath.Join(fakes, "libcupti.so.13"),
		"lib64/libcupti.so.13": filepath.Join(fakes, "libcupti.so.13"), "lib64/stubs/libcuda.so": filepath.Join(fakes, "libcuda.so.1"),
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(cuda, link)), 0o700))
		require.NoError(t, os.Symlink(file, filepath.Join(cuda, link)))
	}
	c := exec.CommandContext(t.Context(), interpreter, filepath.Join(here, "trace.py"), "--bin", bin, "--cuda", cuda,
		"--python", filepath.Join(here, "testdata", "train.py"), "--steps", "50", "--repetitions", "1", "--seconds", "1")
	c.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "LD_LIBRARY_PATH="+fakes, "TMPDIR="+t.TempDir())
	said, err := c.CombinedOutput()
	verdicts := map[string]int{}
	for line := range strings.Lines(string(said)) {
		verdict, sentence, _ := strings.Cut(line, " ")
		if strings.HasPrefix(sentence, "trace takes ") {
			continue
		}
		verdicts[verdict]++
	}
	assert.Zero(t, verdicts["FAIL"], "%v: %s", err, said)
	assert.Equal(t, 10, verdicts["PASS"], "%s", said)
	assert.Contains(t, string(said), "one trace a step: 60 steps with 100 kernels, 0 kernels outside steps")
	assert.Contains(t, string(said), " 47,000 launches, 47,000 in the table, 47,000 in the store; ")
}

// TestOverhead_Pairs runs a mode and its baseline concurrently and exchanges their processors. A
// mode that exceeds its limit fails.
func TestOverhead_Pairs(t *testing.T) {
	const script = `
import sys, threading
sys.path.insert(0, sys.argv[1])
import overhead
together = threading.Barrier(2, timeout=20)
class Bench:
    def __init__(self, place):
        self.place = place
    def run(self, program, mode):
        together.wait()
        return overhead.Run({"ours": 104, "floor": 100}[mode] + self.place, 0, 0, 0, 7, {})
for one, other in overhead.beside([Bench(0), Bench(10)], "ours", "floor", 2, lambda s: None):
    print(one.value, other.value)
for times, lost in ({"ours": 1.04}, 0), ({"ours": 1.06}, 0), ({"ours": 1.04}, 1), ({"ours": 1.04, "torch.profiler": 1.03}, 0), ({"ours": 1.04, "torch.profiler": 1.05}, 0), ({}, 0):
    print(overhead.told([], overhead.judged(times, {"ours": lost})))
`
	said := run(t, []string{"PYTHONDONTWRITEBYTECODE=1"}, python(t), "-c", script, filepath.Join(process.Root(t), "test", "gpu"))
	var kept []string
	for line := range strings.Lines(said) {
		if !strings.HasPrefix(line, "PASS ") && !strings.HasPrefix(line, "FAIL ") {
			kept = append(kept, strings.TrimSpace(line))
		}
	}
	assert.Equal(t, []string{"104 110", "114 100", "104 110", "114 100", "0", "1", "1", "1", "0", "1"}, kept)
}

// TestScripts_Lanes checks that each lane has its GPUs and processors, that verdicts are reported,
// and that a timeout ends all processes of a lane.
func TestScripts_Lanes(t *testing.T) {
	interpreter := python(t)
	out := t.TempDir()
	lanes := func(arguments ...string) (string, int) {
		script := filepath.Join(process.Root(t), "test", "gpu", "lanes.py")
		c := exec.CommandContext(t.Context(), interpreter, append([]string{script, "--out", out, "--gpus", "1"}, arguments...)...)
		c.WaitDelay = time.Second
		said, err := c.CombinedOutput()
		var exit *exec.ExitError
		if err != nil {
			require.ErrorAs(t, err, &exit, "%s", said)
		}
		return string(said), c.ProcessState.ExitCode()
	}
	said, code := lanes("0 one echo no verdict; echo PASS on $CUDA_VISIBLE_DEVICES")
	assert.Zero(t, code, said)
	assert.Contains(t, said, "== one: status 0 after 0 s\nPASS on 0\n")
	said, code = lanes("--limit", "1", "0 two echo PASS; echo FAIL; sleep 600 & echo $!; wait")
	assert.Equal(t, 1, code, said)
	assert.Contains(t, said, "== two: ended after 1 s\nPASS\nFAIL\n")
	text, err := os.ReadFile(filepath.Join(out, "two.txt"))
	require.NoError(t, err)
	lines := strings.Fields(string(text))
	still, _ := os.ReadFile("/proc/" + lines[len(lines)-1] + "/cmdline") // it may be a zombie
	assert.Empty(t, still)
	for _, bad := range [][]string{{"0 three"}, {"0 a true", "0 b true"}, {"1 a true"}, {"x a true"}} {
		said, code = lanes(bad...)
		assert.Equal(t, 2, code, said)
	}
	_, code = lanes("0 four true")
	assert.Equal(t, 1, code, "it says nothing")
}

// TestPlaces_ExchangedProcessors checks that each of two processes, with all its threads, runs on
// the other's processors after each exchange.
func TestPlaces_ExchangedProcessors(t *testing.T) {
	const script = `
import json, os, subprocess, sys
sys.path.insert(0, sys.argv[1])
import places
mine = sorted(os.sched_getaffinity(0))
if len(mine) < 2:
    sys.exit(print(json.dumps(None)))
one, other = [mine[0]], [mine[1]]
program = "import threading, sys; t = threading.Thread(target=sys.stdin.read); t.start(); print(flush=True); t.join()"
both = [subprocess.Popen(["taskset", "-c", str(on[0]), sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for on in (one, other)]
for p in both:
    p.stdout.readline()
swapping, seen = places.Swapping(one, other), []
for i in range(3):
    seen.append([[sorted(os.sched_getaffinity(t)) == one for t, _ in places.threads(p.pid)] for p in both])
    swapping.swap()
for p in both:
    p.stdin.close()
    p.wait()
print(json.dumps(seen))
`
	if _, err := exec.LookPath("taskset"); err != nil {
		process.Missing(t, "the scripts need taskset")
	}
	var seen [][2][]bool
	said := run(t, []string{"PYTHONDONTWRITEBYTECODE=1"}, python(t), "-c", script, filepath.Join(process.Root(t), "test", "gpu"))
	require.NoError(t, json.Unmarshal([]byte(said), &seen))
	if seen == nil {
		t.Skip("there is only one processor")
	}
	first, second := []bool{true, true}, []bool{false, false}
	assert.Equal(t, [][2][]bool{{first, second}, {second, first}, {first, second}}, seen)
}

// TestPlaces_ProcessorTime checks processor time by thread, file and function.
func TestPlaces_ProcessorTime(t *testing.T) {
	const script = `
import json, os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import where
p = subprocess.Popen([sys.argv[2], "-c", "import hashlib\nprint(flush=True)\nwhile True: hashlib.sha256(bytes(1 << 20))"], stdout=subprocess.PIPE)
p.stdout.readline()
def used():
    with open(f"/proc/{p.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")
watches = []
spent = []
for i in range(2):
    before = used()
    with where.Watch(sys.argv[3], p.pid) as w:
        began = used()
        time.sleep(1)
        meanwhile = used() - began
    watches.append(w)
    spent.append([meanwhile, used() - before])
p.kill()
files = where.by_file(watches[0].spent)
print(json.dumps({"code": [w.process.returncode for w in watches], "said": sum(files.values()), "used": spent[0], "roles": sorted({k[0] for k in files}),
    "functions": len(where.by_function(watches[0].spent, where.Symbols())), "same": where.differences(files, files, 1, 0.001),
    "twice": where.differences(files, {k: 2 * v for k, v in files.items()}, 1, max(files.values()))}))
`
	bin := t.TempDir()
	run(t, nil, filepath.Join(process.Root(t), "test", "gpu", "build"), "--programs", bin)
	var got struct {
		Code        []int
		Said        float64
		Used        [2]float64 // while it was watched for certain, and at most
		Roles       []string
		Functions   int
		Same, Twice []string
	}
	interpreter := python(t)
	said := run(t, []string{"PYTHONDONTWRITEBYTECODE=1"}, interpreter, "-c", script, filepath.Join(process.Root(t), "test", "gpu"), interpreter, filepath.Join(bin, "where"))
	require.NoError(t, json.Unmarshal([]byte(said), &got))
	if got.Code[0] != 0 {
		t.Skip("a process may not be watched here")
	}
	assert.Equal(t, []int{0, 0}, got.Code)
	// The kernel reports processor time in ticks of 10 ms.
	assert.GreaterOrEqual(t, got.Said, 0.9*got.Used[0]-20)
	assert.LessOrEqual(t, got.Said, 1.1*got.Used[1]+20)
	assert.Positive(t, got.Used[0])
	assert.Equal(t, []string{"main"}, got.Roles)
	assert.Positive(t, got.Functions)
	assert.Empty(t, got.Same)
	assert.Len(t, got.Twice, 1)
}

// TestCrash_Stack checks that with crash.so a crashing thread reports and waits, and that its stack
// can be read.
func TestCrash_Stack(t *testing.T) {
	const program = `
#include <pthread.h>
__attribute__((noinline)) int inner(int *p) { return *p + 1; }
__attribute__((noinline)) int outer(int *p) { return 2 * inner(p); }
static void *run(void *p) { return (void *)(long)outer(p); }
int main(void) {
  pthread_t thread;
  pthread_create(&thread, 0, run, (void *)8);
  return pthread_join(thread, 0);
}
`
	const script = `
import json, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import where
p = subprocess.Popen([sys.argv[2]], stderr=subprocess.PIPE, text=True, env={"LD_PRELOAD": sys.argv[3]})
said = [p.stderr.readline()]
while said[-1] != "crash.so: it waits\n":
    said.append(p.stderr.readline())
symbols = where.Symbols()
try:
    for _ in range(100):  # a thread that has a processor, as the main one may before it waits, has no stack to be read
        found = [[who, [symbols.name(file, offset) for file, offset in frames if file == sys.argv[2]]] for who, state, frames in where.stacks(p.pid)]
        if all(names for _, names in found):
            break
        time.sleep(0.1)
finally:
    p.kill()
print(json.dumps([said, found]))
`
	here, bin := filepath.Join(process.Root(t), "test", "gpu"), t.TempDir()
	path := filepath.Join(bin, "crashes")
	require.NoError(t, os.WriteFile(path+".c", []byte(program), 0o600))
	run(t, nil, "cc", "-O1", "-fno-optimize-sibling-calls", "-o", path, path+".c", "-lpthread")
	library := filepath.Join(bin, "crash.so")
	run(t, nil, "cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", library, filepath.Join(here, "deep", "crash.c"))
	said := run(t, []string{"PYTHONDONTWRITEBYTECODE=1"}, python(t), "-c", script, here, path, library)
	var got [2]any
	require.NoError(t, json.Unmarshal([]byte(said), &got))
	told := got[0].([]any)
	assert.Regexp(t, `^crash\.so: thread \d+ of process \d+: signal 11 at 0x8\n$`, told[0])
	if runtime.GOARCH != "amd64" {
		return // there each word on the stack may be an address that is returned to
	}
	assert.Regexp(t, `^crash\.so: rip [0-9a-f]+ = `+regexp.QuoteMeta(path)+`\+[0-9a-f]+: [0-9a-f ]+\n$`, told[1])
	assert.Contains(t, told, "crash.so: rdi 8\n")
	threads := got[1].([]any)
	require.Len(t, threads, 2)
	assert.Equal(t, []any{"main 0", []any{"main", "_start"}}, threads[0])
	assert.Equal(t, []any{"outer", "run"}, threads[1].([]any)[1])
}
