// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
)

// coreDir is where coreObjects compiled the core, "" if it did not.
var coreDir string

func removeCoreObjects() {
	if coreDir != "" {
		os.RemoveAll(coreDir)
	}
}

// coreObjects compiles the C core once, for all programs.
var coreObjects = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gpufl-core-")
	if err != nil {
		return "", err
	}
	coreDir = dir
	sources, err := filepath.Glob("*.c")
	if err != nil {
		return "", err
	}
	library := filepath.Join(dir, "core.o")
	args := []string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-r", "-o", library}
	if out, err := exec.Command("cc", append(args, sources...)...).CombinedOutput(); err != nil {
		return dir, fmt.Errorf("compile the core: %w\n%s", err, out)
	}
	return dir, nil
})

// program compiles a program of testdata/core with the C core, and with these flags besides, and
// returns its path and the folder of the fakes.
func program(t *testing.T, name string, flags ...string) (path, fakes string) {
	t.Helper()
	fakes = cuptitest.Build(t) // skips where there is no compiler
	objects, err := coreObjects()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), name)
	args := append([]string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I.", "-o", path,
		filepath.Join("testdata", "core", name+".c"), filepath.Join(objects, "core.o"), "-ldl", "-lpthread"}, flags...)
	out, err := exec.Command("cc", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("compile %s: %v\n%s", name, err, out)
	}
	return path, fakes
}

func run(t *testing.T, path string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", filepath.Base(path), strings.Join(args, " "), err, out)
	}
}

func TestForkWhileRecording(t *testing.T) {
	path, fakes := program(t, "fork")
	run(t, path, fakes)
}

func TestNVTX(t *testing.T) {
	path, fakes := program(t, "nvtx")
	run(t, path, fakes)
}

func TestNVTXPayload(t *testing.T) {
	path, fakes := program(t, "payload")
	run(t, path, fakes)
}

func TestInferredScopes(t *testing.T) {
	path, fakes := program(t, "inferred")
	run(t, path, fakes)
}

func TestContexts(t *testing.T) {
	path, fakes := program(t, "context")
	run(t, path, fakes)
}

func TestBarrier(t *testing.T) {
	path, _ := program(t, "barrier")
	run(t, path)
}

func TestWhatIsRareAndAllowed(t *testing.T) {
	path, fakes := program(t, "edge_cases")
	for _, what := range []string{"cancel", "keys", "given_up", "released", "loading", "reading", "flushing", "capture", "unresponsive", "unresponsive_early"} {
		t.Run(what, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_DEVICES", "2")
			run(t, path, fakes, what)
		})
	}
}

func TestLibraryWithTheLeast(t *testing.T) {
	path, fakes := program(t, "minimal")
	// Its clock stays, which the core falls back on.
	dir := fakesWithout(t, fakes, "cuptiActivityRegisterTimestampCallback", "cuptiActivitySetAttribute", "cuptiEnableCallback", "cuptiGetCallbackName", "cuptiFinalize")
	run(t, path, dir)
}

// TestDeviceProgram runs on the fake what is meant for a real GPU, so that it does not rot.
func TestDeviceProgram(t *testing.T) {
	path, fakes := program(t, "device")
	t.Setenv("LD_LIBRARY_PATH", fakes)
	run(t, path, filepath.Join(fakes, "libcupti.so.13"), "1000")
}

func TestExitInAnyOrder(t *testing.T) {
	path, fakes := program(t, "exit")
	for _, how := range []string{"exit", "_exit", "quick_exit", "closed", "atexit-before", "atexit-after"} {
		t.Run(how, func(t *testing.T) {
			for range 5 {
				run(t, path, fakes, how)
			}
		})
	}
}

// TestRealLibraryHasTheEngines: no function is called by a name that NVIDIA's does not have.
func TestRealLibraryHasTheEngines(t *testing.T) {
	library, err := filepath.Abs(filepath.Join("..", ".tools", "cuda-tools", "13.0", "lib", "libcupti.so.13"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(library); err != nil {
		t.Skip("scripts/cuda-tools has not fetched it: ", err)
	}
	path, _ := program(t, "reallibrary")
	run(t, path, library)
}

// fakesWithout compiles a fake CUPTI that lacks functions, and returns a folder with it and the
// fake driver.
func fakesWithout(t *testing.T, fakes string, functions ...string) string {
	t.Helper()
	dir := t.TempDir()
	// Under other names than these functions have it lacks them.
	args := []string{"-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete", "-o", filepath.Join(dir, "libcupti.so.13")}
	for _, name := range functions {
		args = append(args, "-D"+name+"=without_"+name)
	}
	args = append(args, filepath.Join("..", "internal", "testing", "cuptitest", "fake", "fakecupti.c"), "-ldl", "-lpthread")
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Symlink(filepath.Join(fakes, "libcuda.so.1"), filepath.Join(dir, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLibraryWithoutEngines(t *testing.T) {
	path, fakes := program(t, "window_minimal")
	const has, lacks = "0", "-20"
	for _, test := range []struct {
		name      string
		functions []string
		pc, sass  string
	}{
		{"both", nil, has, has},
		{"no PC sampling", []string{"cuptiPCSamplingGetData"}, lacks, has},
		{"no SASS metrics", []string{"cuptiSassMetricsFlushData"}, has, lacks},
		{"no profiler", []string{"cuptiProfilerInitialize"}, has, lacks},
		{"neither", []string{"cuptiGetDeviceId"}, lacks, lacks},
		{"no names of calls", []string{"cuptiGetCallbackName"}, lacks, lacks},
		{"no callbacks", []string{"cuptiEnableCallback"}, lacks, lacks},
	} {
		t.Run(test.name, func(t *testing.T) {
			run(t, path, fakesWithout(t, fakes, test.functions...), test.pc, test.sass)
		})
	}
	t.Run("older than CUDA 12.4", func(t *testing.T) {
		t.Setenv("FAKE_CUPTI_VERSION", "21")
		run(t, path, fakes, lacks, lacks)
	})
}

func TestRowsComeInPortions(t *testing.T) {
	path, fakes := program(t, "window_capacity")
	t.Setenv("LD_LIBRARY_PATH", fakes)
	run(t, path, fakes)
}

func TestEndInAWindow(t *testing.T) {
	path, fakes := program(t, "windowexit")
	t.Setenv("LD_LIBRARY_PATH", fakes)
	for _, engine := range []string{"pc", "sass"} {
		for _, how := range []string{"exit", "_exit", "quick_exit", "fork"} {
			t.Run(engine+" "+how, func(t *testing.T) {
				for range 3 {
					run(t, path, fakes, how, engine)
				}
			})
		}
	}
}

// TestWindowsProgram runs on the fake what is meant for a real GPU, and replays what it recorded.
func TestWindowsProgram(t *testing.T) {
	path, fakes := program(t, "windows")
	t.Setenv("LD_LIBRARY_PATH", fakes)
	t.Setenv("FAKE_CUDA_SYNCHRONIZE_US", "1000") // as many launches as on a device, and not a thousand times that
	dir := t.TempDir()
	run(t, path, filepath.Join(fakes, "libcupti.so.13"), dir, "0.3")
	for _, engine := range []Engine{EnginePCSampling, EngineSASS} {
		t.Run(engine.String(), func(t *testing.T) {
			file := filepath.Join(dir, [...]string{"pc.txt", "sass.txt"}[engine])
			want := recorded(t, file)
			if len(want) == 0 {
				t.Fatalf("%s has no rows", file)
			}
			fake, c, _ := openDeep(t, Config{})
			fake.Replay(t, file)
			w := openWindow(t, c, DeepConfig{Engine: engine})
			fake.Launch(windowKernel, 10) // which is not what comes
			equalFigures(t, figures(closeWindow(t, w)), want)
		})
	}
}

// recorded reads the rows of a recording as figures returns them.
func recorded(t *testing.T, path string) map[string]uint64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]uint64{}
	names, functions := map[string]string{}, map[string]string{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 3 && f[0] == "name":
			names[f[1]] = strings.TrimPrefix(f[2], reasonPrefix)
		case len(f) == 3 && f[0] == "function":
			functions[f[1]] = f[2]
		case len(f) == 8 && f[0] == "row":
			var crc, pc, value uint64
			if _, err := fmt.Sscan(f[2]+" "+f[3]+" "+f[7], &crc, &pc, &value); err != nil {
				t.Fatal(err)
			}
			all[fmt.Sprintf("%s %08x %s+%x %s %s", f[1], crc, functions[f[4]], pc, names[f[5]], f[6])] += value
		}
	}
	return all
}
