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

	"github.com/gpuflight/gpuflight/internal/cuptitest"
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

// program compiles a program of testdata/core with the C core and returns its path and the folder of the
// fakes.
func program(t *testing.T, name string) (path, fakes string) {
	t.Helper()
	fakes = cuptitest.Build(t) // skips where there is no compiler
	objects, err := coreObjects()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), name)
	out, err := exec.Command("cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I.", "-o", path,
		filepath.Join("testdata", "core", name+".c"), filepath.Join(objects, "core.o"), "-ldl", "-lpthread").CombinedOutput()
	if err != nil {
		t.Fatalf("compile %s: %v\n%s", name, err, out)
	}
	return path, fakes
}

func run(t *testing.T, path string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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

func TestInferredScopes(t *testing.T) {
	path, fakes := program(t, "inferred")
	run(t, path, fakes)
}

func TestLibraryWithTheLeast(t *testing.T) {
	path, fakes := program(t, "minimal")
	dir := t.TempDir()
	// The fake under other names than these functions have: it then lacks them. Its clock stays, which the
	// core falls back on.
	args := []string{"-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete", "-o", filepath.Join(dir, "libcupti.so.13")}
	for _, name := range []string{"cuptiActivityRegisterTimestampCallback", "cuptiActivitySetAttribute", "cuptiEnableCallback", "cuptiGetCallbackName", "cuptiFinalize"} {
		args = append(args, "-D"+name+"=without_"+name)
	}
	args = append(args, filepath.Join("..", "internal", "cuptitest", "fake", "fakecupti.c"), "-ldl", "-lpthread")
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Symlink(filepath.Join(fakes, "libcuda.so.1"), filepath.Join(dir, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
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
