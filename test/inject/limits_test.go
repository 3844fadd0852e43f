// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

const (
	// hostUser has no other processes, so that RLIMIT_NPROC counts the host's threads only.
	hostUser = 61357
	launches = 500
)

// limitedHost is a C program that uses the fake driver under a limit; see testdata/limits.c.
type limitedHost struct {
	dir, path, library, output string
}

func newLimitedHost(t *testing.T) *limitedHost {
	t.Helper()
	lib, fakes := library(t), cuptitest.Build(t)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	require.NoError(t, os.Chmod(dir, 0o777))
	h := &limitedHost{dir: dir, path: filepath.Join(dir, "limits"), output: filepath.Join(dir, "out.otlp.jsonl")}
	// Copies, because another user may not read the originals.
	for _, path := range []string{
		lib, filepath.Join(filepath.Dir(lib), "libgpuflight-recorder.so"),
		filepath.Join(fakes, "libcuda.so.1"), filepath.Join(fakes, "libcupti.so.13"),
	} {
		copyFile(t, path, filepath.Join(dir, filepath.Base(path)))
	}
	h.library = filepath.Join(dir, filepath.Base(lib))
	out, err := exec.Command("cc", "-Wall", "-Wextra", "-Werror", "-o", h.path, "testdata/limits.c", "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return h
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, errors.Join(err, out.Close()))
}

type hostOutcome struct {
	code           int
	stdout, stderr string
	recorded       bool // all launches are in the recording
}

// run starts the host with a library, unless its path is empty, and with a preceding command, if
// any.
func (h *limitedHost) run(t *testing.T, user int, lib string, resource int, value uint64, before ...string) hostOutcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := os.Remove(h.output); err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	args := slices.Concat(before, []string{h.path, fmt.Sprint(resource), fmt.Sprint(value), fmt.Sprint(launches)})
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(cuptitest.Environment(h.dir), "GPUFLIGHT_LOG_LEVEL=off", "GPUFLIGHT_SHUTDOWN_TIMEOUT=20s", "GPUFLIGHT_OUTPUT="+h.output, "GPUFLIGHT_DEEP=true")
	if lib != "" {
		cmd.Env = append(cmd.Env, "CUDA_INJECTION64_PATH="+lib)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if user != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		process.Missing(t, err.Error())
	}
	require.NoError(t, ctx.Err())
	text, err := os.ReadFile(h.output)
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	return hostOutcome{
		cmd.ProcessState.ExitCode(), stdout.String(), stderr.String(),
		bytes.Count(text, []byte(`"gemm"`)) >= launches,
	}
}

// compare runs the host with and without the library. Exit code and output must be the same. Either
// the host is recorded and stderr is the same, or stderr has one additional line of ours.
func (h *limitedHost) compare(t *testing.T, user, resource int, value uint64, before ...string) (recorded bool) {
	t.Helper()
	baseline := h.run(t, user, "", resource, value, before...)
	got := h.run(t, user, h.library, resource, value, before...)
	assert.Equal(t, baseline.code, got.code, "limit %d: %s", value, got.stderr)
	assert.Equal(t, baseline.stdout, got.stdout, "limit %d: %s", value, got.stderr)
	ours, found := strings.CutPrefix(got.stderr, baseline.stderr)
	assert.True(t, found, "limit %d: %s", value, got.stderr)
	switch {
	case got.recorded:
		assert.Empty(t, ours, "limit %d", value)
	case strings.HasPrefix(baseline.stdout, "no driver"):
		assert.Empty(t, ours, "limit %d: the driver did not start", value)
	default:
		assert.Regexp(t, `^(gpuflight: nothing is recorded: [^\n]+\n|fake libcuda: [^\n]+\n)$`, ours, "limit %d", value)
	}
	return got.recorded
}

// TestLimits_Rlimits checks limits that are too low, and that recording works from the limit at
// which the library starts.
func TestLimits_Rlimits(t *testing.T) {
	h := newLimitedHost(t)
	var counts, sizes []uint64
	for n := uint64(1); n <= 64; n++ {
		counts = append(counts, n)
	}
	for n := uint64(72); n <= 128; n += 8 {
		counts = append(counts, n) // enough for a recording
	}
	step := uint64(64)
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		step = 16
	}
	for mib := uint64(64); mib <= 2048; mib += step {
		sizes = append(sizes, mib<<20)
	}
	for mib := uint64(4096); mib <= 5120; mib += 4 * step {
		sizes = append(sizes, mib<<20)
	}
	for _, l := range []struct {
		name     string
		resource int
		values   []uint64
		// least is the lowest number of limits at which the host must be recorded.
		least int
	}{
		{"threads", unix.RLIMIT_NPROC, counts, 8},
		{"descriptors", unix.RLIMIT_NOFILE, counts, 7},
		{"address space", unix.RLIMIT_AS, sizes, 3},
		{"data", unix.RLIMIT_DATA, append(slices.Clone(sizes[:len(sizes)/2]), 1<<30, 4<<30), 2},
	} {
		t.Run(l.name, func(t *testing.T) {
			user := os.Getuid()
			if l.resource == unix.RLIMIT_NPROC {
				if user != 0 {
					t.Skip("another user for the host needs root")
				}
				user = hostUser
			}
			recorded := 0
			var first uint64
			for _, value := range l.values {
				if h.compare(t, user, l.resource, value) {
					if recorded == 0 {
						first = value
					}
					recorded++
				} else {
					assert.Zero(t, recorded, "limit %d: recorded at %d but not here", value, first)
				}
			}
			t.Logf("%d limits; recorded at %d of them, from %d", len(l.values), recorded, first)
			assert.GreaterOrEqual(t, recorded, l.least)
		})
	}
}

// TestLimits_Cgroup is the same for pids.max, which limits threads as RLIMIT_NPROC does, also for
// root.
func TestLimits_Cgroup(t *testing.T) {
	h := newLimitedHost(t)
	var group string
	var err error
	for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		group = filepath.Join(root, fmt.Sprintf("gpuflight-test-%d", os.Getpid()))
		if err = os.Mkdir(group, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() { assert.NoError(t, os.Remove(group)) })
		if _, err = os.Stat(filepath.Join(group, "pids.max")); err == nil {
			break
		}
	}
	if err != nil {
		t.Skip("no cgroup with pids.max can be made: ", err)
	}
	recorded := 0
	for n := uint64(1); n <= 96; n++ {
		require.NoError(t, os.WriteFile(filepath.Join(group, "pids.max"), fmt.Append(nil, n), 0o600))
		// The shell moves itself into the group and then execs the host.
		if h.compare(t, os.Getuid(), -1, n, "/bin/sh", "-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, group) {
			recorded++
		} else {
			assert.Zero(t, recorded, "limit %d", n)
		}
	}
	t.Logf("recorded at %d of 96 limits", recorded)
	assert.GreaterOrEqual(t, recorded, 8)
}

// TestLibrary_RecorderMissing expects one line on stderr with the missing file.
func TestLibrary_RecorderMissing(t *testing.T) {
	h := newLimitedHost(t)
	assert.True(t, h.compare(t, os.Getuid(), -1, 0))
	recorder := filepath.Join(h.dir, "libgpuflight-recorder.so")
	for _, tc := range []struct {
		name   string
		change func() error
	}{
		{"missing", func() error { return os.Remove(recorder) }},
		{"not a library", func() error { return os.WriteFile(recorder, []byte("text\nof two lines"), 0o600) }},
		{"a folder", func() error { return errors.Join(os.Remove(recorder), os.Mkdir(recorder, 0o700)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.NoError(t, tc.change())
			assert.False(t, h.compare(t, os.Getuid(), -1, 0))
			got := h.run(t, os.Getuid(), h.library, -1, 0)
			assert.Contains(t, got.stderr, recorder)
			t.Log(got.stderr)
		})
	}
}

// TestLibrary_StartupTime logs the time of a host with and without the library.
func TestLibrary_StartupTime(t *testing.T) {
	h := newLimitedHost(t)
	const rounds = 20
	took := map[string][]time.Duration{}
	for range rounds {
		for _, lib := range []string{"", h.library} {
			began := time.Now()
			require.Equal(t, 3, h.run(t, os.Getuid(), lib, -1, 0).code)
			took[lib] = append(took[lib], time.Since(began))
		}
	}
	for _, lib := range []string{"", h.library} {
		slices.Sort(took[lib])
	}
	baseline, with := took[""][rounds/2], took[h.library][rounds/2]
	t.Logf("median of %d: %v without the library, %v with it", rounds, baseline, with)
	assert.Less(t, with-baseline, 5*time.Second)
}

// TestLibrary_EntryPoints compares the recorder's entry points for the driver and NVTX with those
// of the library that programs load.
func TestLibrary_EntryPoints(t *testing.T) {
	entries := func(path string) (names []string) {
		f, err := elf.Open(path)
		require.NoError(t, err)
		defer f.Close()
		symbols, err := f.DynamicSymbols()
		require.NoError(t, err)
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, "InitializeInjection") {
				names = append(names, s.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	lib := library(t)
	want := []string{"InitializeInjection", "InitializeInjectionNvtx2", "InitializeInjectionNvtxExtension"}
	assert.Equal(t, want, entries(filepath.Join(filepath.Dir(lib), "libgpuflight-recorder.so")))
	assert.Equal(t, want, entries(lib))
}
