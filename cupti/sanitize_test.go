// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reported is the exit code of a program in which a sanitizer found a defect.
const reported = 86

// A sanitizer is a build of the C core, the fakes and a program with checks by the compiler.
type sanitizer struct {
	name, flag string
	// options of all programs.
	// https://github.com/google/sanitizers/wiki/SanitizerCommonFlags
	options []string
	dir     string // the core and the fakes, compiled
}

var sanitizers = []sanitizer{
	{
		name: "address and undefined", flag: "-fsanitize=address,undefined",
		options: []string{"ASAN_OPTIONS=exitcode=86:detect_leaks=1", "LSAN_OPTIONS=exitcode=86",
			"UBSAN_OPTIONS=halt_on_error=1:exitcode=86:print_stacktrace=1"},
	},
	{
		name: "thread", flag: "-fsanitize=thread",
		// Programs end while threads run, and fork while threads run: that is what they test.
		options: []string{"TSAN_OPTIONS=exitcode=86:halt_on_error=1:report_thread_leaks=0:die_after_fork=0:atexit_sleep_ms=0:second_deadlock_stack=1"},
	},
}

// compile runs the compiler with the sanitizer's flags.
func (s *sanitizer) compile(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror", s.flag}, args...)
	if out, err := exec.CommandContext(t.Context(), "cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("compile with %s: %v\n%s", s.flag, err, out)
	}
}

// build compiles the core and the fakes. It skips the test where the compiler or the machine lacks
// the sanitizer.
func (s *sanitizer) build(t *testing.T) {
	t.Helper()
	s.dir = t.TempDir()
	empty := filepath.Join(s.dir, "empty.c")
	if err := os.WriteFile(empty, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cc", s.flag, "-o", filepath.Join(s.dir, "empty"), empty).CombinedOutput(); err != nil {
		t.Skipf("no compiler with %s: %v: %s", s.flag, err, out)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(s.dir, "empty")).CombinedOutput(); err != nil {
		t.Skipf("a program with %s does not run here: %v: %s", s.flag, err, out)
	}
	for library, source := range map[string]string{"libcuda.so.1": "fakecuda.c", "libcupti.so.13": "fakecupti.c"} {
		// The thread sanitizer of gcc 12 reads a wrong size for thread-local variables that glibc
		// allocates dynamically.
		s.compile(t, "-fPIC", "-ftls-model=initial-exec", "-fvisibility=hidden", "-shared", "-Wl,-soname,"+library, "-Wl,-z,nodelete", "-o", filepath.Join(s.dir, library),
			filepath.Join("..", "internal", "testing", "cuptitest", "fake", source), "-ldl", "-lpthread")
	}
	sources, err := filepath.Glob("*.c")
	if err != nil {
		t.Fatal(err)
	}
	s.compile(t, append([]string{"-D_GNU_SOURCE", "-fvisibility=hidden", "-r", "-o", filepath.Join(s.dir, "core.o")}, sources...)...)
}

// program compiles a program of testdata/core with the core.
func (s *sanitizer) program(t *testing.T, name string, flags ...string) string {
	t.Helper()
	path := filepath.Join(s.dir, name+strings.Join(flags, ""))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	s.compile(t, append([]string{"-D_GNU_SOURCE", "-I.", "-o", path, filepath.Join("testdata", "core", name+".c"),
		filepath.Join(s.dir, "core.o"), "-ldl", "-lpthread"}, flags...)...)
	return path
}

// run runs a program and returns its exit code and output. The environment is added to that of the
// test.
func (s *sanitizer) run(t *testing.T, environment []string, path string, args ...string) (code int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(append(append(os.Environ(), "LD_LIBRARY_PATH="+s.dir), s.options...), environment...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// defects are those of defect.c, by the sanitizer that must report each. The first is none.
var defects = []struct{ name, sanitizer, report string }{
	{"none", "", ""},
	{"OVERFLOW", "address", "heap-buffer-overflow"},
	{"RELEASED", "address", "heap-use-after-free"},
	{"UNDEFINED", "undefined", "signed integer overflow"},
	{"LEAK", "address", "77 byte(s) in 1 object(s)"},
	{"RACE", "thread", "data race"},
}

// TestSanitizers runs the programs of testdata/core with the address, undefined behavior and thread
// sanitizers of the compiler. GPUFLIGHT_SOAK adds those that take long with a sanitizer. Each
// sanitizer must report the defects of defect.c.
func TestSanitizers(t *testing.T) {
	full := soak()
	type test struct {
		program string
		args    []string // after the folder with the fakes
		env     []string
		flags   []string // of the compiler
		soak    bool
		alone   bool // no folder
		single  bool // it has one thread
		// abandons: the program ends while others use memory, or its children do. All memory is
		// then a leak.
		abandons bool
	}
	var tests []test
	add := func(tt test) { tests = append(tests, tt) }
	add(test{program: "nvtx"})
	add(test{program: "payload"})
	add(test{program: "inferred"})
	add(test{program: "detach"})
	add(test{program: "window_capacity", single: true})
	add(test{program: "concurrent", env: []string{"FAKE_CUDA_DEVICES=2"}})
	add(test{program: "barrier", alone: true})
	add(test{program: "stacks", alone: true, flags: []string{"-rdynamic"}})
	for _, what := range []string{"cancel", "keys", "given_up", "released", "loading", "reading", "flushing", "capture", "unresponsive", "unresponsive_early"} {
		add(test{program: "edge_cases", args: []string{what}, env: []string{"FAKE_CUDA_DEVICES=2"}, abandons: true, soak: what == "reading"})
	}
	for _, how := range []string{"exit", "_exit", "quick_exit", "closed", "atexit-before", "atexit-after"} {
		add(test{program: "exit", args: []string{how}, abandons: true})
	}
	for _, how := range []string{"exit", "_exit", "quick_exit", "fork"} {
		for _, engine := range []string{"pc", "sass"} {
			add(test{program: "windowexit", args: []string{how, engine}, abandons: true, soak: how == "fork"})
		}
	}
	add(test{program: "fork", abandons: true, soak: true})

	for i := range sanitizers {
		s := sanitizers[i]
		t.Run(s.name, func(t *testing.T) {
			s.build(t)
			for _, d := range defects {
				if !strings.Contains(s.flag, d.sanitizer) {
					continue
				}
				t.Run("defect "+d.name, func(t *testing.T) {
					var flags []string
					want := 0
					if d.report != "" {
						flags, want = append(flags, "-DDEFECT_"+d.name), reported
					}
					code, out := s.run(t, nil, s.program(t, "defect", flags...), s.dir)
					if code != want || !strings.Contains(out, d.report) {
						t.Errorf("exit code %d, want %d and %q in\n%s", code, want, d.report, out)
					}
				})
			}
			for _, tt := range tests {
				if !tt.soak || full {
					s.program(t, tt.program, tt.flags...)
				}
			}
			for _, tt := range tests {
				if tt.single && strings.Contains(s.flag, "thread") {
					continue
				}
				t.Run(strings.Join(append([]string{tt.program}, tt.args...), " "), func(t *testing.T) {
					if tt.soak && !full {
						t.Skip("a long test: set GPUFLIGHT_SOAK=1")
					}
					t.Parallel()
					args := tt.args
					if !tt.alone {
						args = append([]string{s.dir}, args...)
					}
					env := tt.env
					if tt.abandons && strings.HasPrefix(s.options[0], "ASAN") {
						env = append([]string{s.options[0] + ":detect_leaks=0"}, env...)
					}
					began := time.Now()
					if code, out := s.run(t, env, s.program(t, tt.program, tt.flags...), args...); code != 0 {
						t.Errorf("exit code %d\n%s", code, out)
					} else {
						t.Logf("%.1f s %s", time.Since(began).Seconds(), out)
					}
				})
			}
		})
	}
}
