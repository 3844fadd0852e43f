// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
)

// TestAvailableInChild is not a test of its own. A process can open one CUPTI only. So each case of
// TestAvailableSaysWhy runs this in another process and reads its output.
func TestAvailableInChild(t *testing.T) {
	library, ok := os.LookupEnv("GPUFLIGHT_TEST_LIBRARY")
	if !ok {
		t.Skip("run by TestAvailableSaysWhy")
	}
	s := Available(library)
	_, err := Open(Config{Library: library})
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{}
	}
	if e.Status.Reason != s.Reason || (err == nil) != s.OK() {
		t.Errorf("Available says %+v, Open %v", s, err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("GPUFLIGHT_TEST_RESULT"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func available(t *testing.T, library string, env ...string) Status {
	t.Helper()
	result := filepath.Join(t.TempDir(), "status.json")
	cmd := exec.Command(os.Args[0], "-test.run=^TestAvailableInChild$")
	cmd.Env = append(append(os.Environ(), "GPUFLIGHT_TEST_LIBRARY="+library, "GPUFLIGHT_TEST_RESULT="+result), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	var s Status
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// compile makes a library of a C text.
func compile(t *testing.T, name, text string) string {
	t.Helper()
	dir := t.TempDir()
	source, library := filepath.Join(dir, "x.c"), filepath.Join(dir, name)
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return library
}

// failingLibrary is a CUPTI whose functions all fail.
func failingLibrary() string {
	var text strings.Builder
	for _, name := range []string{"cuptiGetVersion", "cuptiGetResultString", "cuptiActivityEnable", "cuptiActivityDisable", "cuptiActivityRegisterCallbacks",
		"cuptiActivityGetNextRecord", "cuptiActivityFlushAll", "cuptiActivityGetNumDroppedRecords", "cuptiSubscribe", "cuptiUnsubscribe"} {
		text.WriteString("int " + name + "(void) { return 999; }\n")
	}
	return text.String()
}

func TestAvailableSaysWhy(t *testing.T) {
	dir := cuptitest.Build(t)
	fake := filepath.Join(dir, "libcupti.so.13")
	path := "LD_LIBRARY_PATH=" + dir
	noFunctions := compile(t, "libcupti.so.13", "int cuptiGetVersion(unsigned *v) { *v = 130001; return 0; }")
	failing := compile(t, "libcupti.so.13", failingLibrary())
	toolkit := t.TempDir()
	lib := filepath.Join(toolkit, "extras", "CUPTI", "lib64")
	if err := os.MkdirAll(lib, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(fake, filepath.Join(lib, "libcupti.so.13")); err != nil {
		t.Fatal(err)
	}
	// A driver without CUPTI beside it.
	driver := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "libcuda.so.1"), filepath.Join(driver, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	driverOnly := "LD_LIBRARY_PATH=" + driver

	for _, c := range []struct {
		name, library string
		env           []string
		want          Reason
		says          string
		version       int
	}{
		{"all is well", fake, []string{path}, ReasonNone, "", 130001},
		{"found by the loader", "", []string{path}, ReasonNone, "", 130001},
		{"found in CUDA_HOME", "", []string{driverOnly, "CUDA_HOME=" + toolkit}, ReasonNone, "", 130001},
		{"CUDA 12", fake, []string{path, "FAKE_CUPTI_VERSION=28", "FAKE_CUDA_DRIVER=12040"}, ReasonNone, "", 28},
		{"no driver", fake, []string{"LD_LIBRARY_PATH=" + t.TempDir()}, ReasonNoDriver, "NVIDIA_DRIVER_CAPABILITIES=compute,utility", 0},
		{"no GPU", fake, []string{path, "FAKE_CUDA_DEVICES=0"}, ReasonNoDevice, "nvidia-smi", 0},
		{"no such library", "/nowhere/libcupti.so.13", []string{path}, ReasonNoLibrary, "/nowhere/libcupti.so.13", 0},
		{"no functions", noFunctions, []string{path}, ReasonVersion, "cuptiGetResultString is missing", 0},
		{"does not return its version", failing, []string{path}, ReasonFailed, "does not work with this driver: CUPTI says", 0},
		{"newer than the driver", fake, []string{path, "FAKE_CUDA_DRIVER=12080", "FAKE_CUPTI_VERSION=130001"}, ReasonVersion, "the driver supports CUDA 12.8 only", 130001},
		{"too old", fake, []string{path, "FAKE_CUPTI_VERSION=12"}, ReasonVersion, "older than CUDA 11.8", 12},
		{"another profiler", fake, []string{path, "FAKE_CUPTI_REFUSE=39"}, ReasonOtherProfiler, "another profiler", 130001},
		{"no permission", fake, []string{path, "FAKE_CUPTI_REFUSE=35"}, ReasonPermission, "NVreg_RestrictProfilingToAdminUsers=0", 130001},
		{"another error", fake, []string{path, "FAKE_CUPTI_REFUSE=999"}, ReasonFailed, "CUPTI_ERROR_UNKNOWN (999)", 130001},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want == ReasonNoDriver {
				if _, err := os.Stat("/usr/lib/x86_64-linux-gnu/libcuda.so.1"); err == nil {
					t.Skip("there is a real driver here")
				}
			}
			s := available(t, c.library, c.env...)
			if s.Reason != c.want || !strings.Contains(s.Detail, c.says) || s.Version != c.version {
				t.Errorf("status %+v, want %q saying %q, version %d", s, c.want, c.says, c.version)
			}
			if s.OK() && (!s.Kinds.Has(KindKernel) || s.Missing != 0 || s.Detail != "") {
				t.Errorf("status %+v", s)
			}
		})
	}
}
