// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/semconv"
)

// interpreters returns the Pythons of version 3.9 or later on PATH and of pyenv, by version.
func interpreters(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	names, _ := filepath.Glob(filepath.Join(os.Getenv("HOME"), ".pyenv", "versions", "3.*", "bin", "python3"))
	for minor := 9; minor <= 15; minor++ {
		names = append(names, fmt.Sprintf("python3.%d", minor), fmt.Sprintf("python3.%dt", minor))
	}
	for _, name := range append(names, "python3") {
		// The name may be that of a shim for a version that is not selected.
		out, err := exec.Command(name, "-c", "import sys, sysconfig; print('%d.%02d%s' % (*sys.version_info[:2], 't' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''))").Output()
		if version := strings.TrimSpace(string(out)); err == nil && version >= "3.09" && len(version) < 6 {
			found[version] = name
		}
	}
	return found
}

// stackRun is what one run of stacks.py recorded.
type stackRun struct {
	// launches and stacks are counted by the name of the kernel, delays are by name and function.
	launches, stacks map[string]int
	delays           map[string]bool
	whole            string // functions of a stack of the main thread
}

var (
	kernelSite = regexp.MustCompile(`^(.+)_(\d+)$`)
	frame      = regexp.MustCompile(`^(?:.*\.)?(\S+) \((.+):(\d+)\)$`)
)

// runStacks runs stacks.py and asserts that each stack is that of its launch.
func (b *bench) runStacks(python string, functions ...string) stackRun {
	t := b.t
	t.Helper()
	file := filepath.Join(t.TempDir(), "out.otlp.jsonl")
	script := filepath.Join(filepath.Dir(b.work), "stacks.py")
	environ := b.environ
	b.environ = append(slices.Clone(environ), "CUDA_INJECTION64_PATH="+library(t), "GPUFLIGHT_STACKS=true", "GPUFLIGHT_OUTPUT="+file,
		"GPUFLIGHT_MAX_SPANS_PER_SECOND=unlimited", "PYTHONFAULTHANDLER=1", "PYTHONWARNINGS=ignore")
	out := b.run(python, append([]string{script}, functions...)...)
	b.environ = environ
	require.Equal(t, "done\n", out.stdout, out.stderr)
	require.Empty(t, out.stderr)
	require.Zero(t, out.code)
	require.Zero(t, out.signal)

	r := stackRun{map[string]int{}, map[string]int{}, map[string]bool{}, ""}
	_, err := otlp.ReadFile(file, otlp.Handler{Traces: func(td ptrace.Traces) {
		for _, rs := range td.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					r.add(t, s, script)
				}
			}
		}
	}})
	require.NoError(t, err)
	return r
}

func (r *stackRun) add(t *testing.T, s ptrace.Span, script string) {
	t.Helper()
	if v, _ := s.Attributes().Get(semconv.CUDAOperation); v.Str() != semconv.CUDAOperationKernel {
		return
	}
	r.launches[s.Name()]++
	if v, ok := s.Attributes().Get(semconv.CUDALaunchDelayStacktrace); ok {
		innermost, _, _ := strings.Cut(v.Str(), "\n")
		r.delays[s.Name()+" after "+frame.ReplaceAllString(innermost, "$1")] = true
	}
	v, ok := s.Attributes().Get(semconv.CodeStacktrace)
	if !ok {
		return
	}
	r.stacks[s.Name()]++
	frames := strings.Split(v.Str(), "\n")
	site, got := kernelSite.FindStringSubmatch(s.Name()), frame.FindStringSubmatch(frames[0])
	if assert.NotNil(t, site, s.Name()) && assert.NotNil(t, got, frames[0]) {
		assert.Equal(t, []string{site[1], script, site[2]}, got[1:], "the innermost frame of %s", s.Name())
	}
	if site != nil && site[1] == "call" && strings.Contains(frames[len(frames)-1], "<module>") {
		var functions []string
		for _, f := range frames {
			functions = append(functions, frame.ReplaceAllString(f, "$1"))
		}
		r.whole = strings.Join(functions, " ")
	}
}

// delayed says whether a launch of late came after the function.
func (r *stackRun) delayed(function string) bool {
	for d := range r.delays {
		if strings.HasPrefix(d, "late_") && strings.HasSuffix(d, " after "+function) {
			return true
		}
	}
	return false
}

// TestStacks_Lines checks that each stack is exact, in each version of Python. A busy machine answers
// a part of the requests too late, so the number of stacks is checked over several runs.
func TestStacks_Lines(t *testing.T) {
	b := newBench(t)
	for version, python := range interpreters(t) {
		t.Run(version, func(t *testing.T) {
			b.t = t
			if strings.HasSuffix(version, "t") {
				r := b.runStacks(python, "rounds")
				assert.Empty(t, r.stacks, "without a GIL there is no exact stack")
				return
			}
			all := stackRun{map[string]int{}, map[string]int{}, map[string]bool{}, ""}
			var missing []string
			for range 8 {
				r := b.runStacks(python, "rounds", "workers", "foreign", "forks", "audited", "late")
				assert.Equal(t, 8000, r.launches["foreign"])
				assert.Zero(t, r.stacks["foreign"], "a thread without Python has no frames")
				maps.Copy(all.stacks, r.stacks)
				maps.Copy(all.delays, r.delays)
				all.whole = cmp.Or(r.whole, all.whole)
				missing = missing[:0]
				for name := range r.launches {
					if r.launches[name] > 50 && name != "foreign" && all.stacks[name] == 0 {
						missing = append(missing, name)
					}
				}
				for _, function := range []string{"prepare", "late"} { // late sleeps
					if !all.delayed(function) {
						missing = append(missing, function+" before a launch")
					}
				}
				if len(missing) == 0 && all.whole != "" {
					assert.Regexp(t, "^call rounds ((audited|forks) )?<module>$", all.whole)
					return
				}
			}
			t.Errorf("no stack in eight runs: %v", missing)
		})
	}
}

// TestStacks_Safety checks that the program notices nothing.
func TestStacks_Safety(t *testing.T) {
	b := newBench(t)
	for version, python := range interpreters(t) {
		for _, functions := range [][]string{{"daemons"}, {"holds", "garbage"}} {
			t.Run(version+" "+functions[0], func(t *testing.T) {
				b.t = t
				r := b.runStacks(python, functions...)
				for name, n := range r.stacks {
					assert.False(t, strings.HasPrefix(name, "holds"), "%d stacks of a thread that holds the GIL", n)
				}
			})
		}
	}
}
