// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/testsink/process"
)

// hostUser has no other processes, so that RLIMIT_NPROC counts the host's threads only.
const hostUser = 61357

// TestAHostAtItsLimitsRunsAsWithoutTheLibrary compares exit code and output of a host with and without
// the library. Stderr may have one line of ours.
func TestAHostAtItsLimitsRunsAsWithoutTheLibrary(t *testing.T) {
	lib := library(t)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) //nolint:gosec // Another user runs the host.
	host := filepath.Join(dir, "limits")
	out, err := exec.Command("cc", "-Wall", "-Wextra", "-Werror", "-o", host, "testdata/limits.c", "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", out)

	var counts, sizes []uint64
	for n := uint64(1); n <= 64; n++ {
		counts = append(counts, n)
	}
	for mib := uint64(64); mib <= 2048; mib += 64 {
		sizes = append(sizes, mib<<20)
	}
	for _, l := range []struct {
		name     string
		resource int
		values   []uint64
	}{
		{"threads", unix.RLIMIT_NPROC, counts},
		{"descriptors", unix.RLIMIT_NOFILE, counts},
		{"address space", unix.RLIMIT_AS, sizes},
	} {
		t.Run(l.name, func(t *testing.T) {
			user := os.Getuid()
			if l.resource == unix.RLIMIT_NPROC {
				if user != 0 {
					t.Skip("another user for the host needs root")
				}
				user = hostUser
				if in, err := os.Stat(lib); err != nil || in.Mode().Perm()&0o004 == 0 {
					t.Skip("the library is not readable by other users")
				}
			}
			silent := 0
			for _, value := range l.values {
				code, stdout, _ := runHost(t, user, host, "-", l.resource, value)
				gotCode, gotStdout, gotStderr := runHost(t, user, host, lib, l.resource, value)
				assert.Equal(t, code, gotCode, "limit %d: %s", value, gotStderr)
				assert.Equal(t, stdout, gotStdout, "limit %d", value)
				assert.LessOrEqual(t, strings.Count(gotStderr, "\n"), 1, "limit %d: %s", value, gotStderr)
				if gotStderr == "" {
					silent++
				}
			}
			t.Logf("%d limits; at %d of them nothing was said", len(l.values), silent)
		})
	}
}

func runHost(t *testing.T, user int, host, lib string, resource int, value uint64) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, host, lib, fmt.Sprint(resource), fmt.Sprint(value))
	cmd.Dir, cmd.Env = "/", []string{"GPUFL_LOG_LEVEL=none", "GPUFL_DISABLED=1"}
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if user != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		process.Missing(t, err.Error())
	}
	require.NoError(t, ctx.Err())
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}
