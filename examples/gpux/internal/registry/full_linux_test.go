// SPDX-License-Identifier: Apache-2.0

//go:build linux

package registry

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/tmpfs"
)

// childFolder has the registry of the child process, which pulls what its argument names.
const childFolder = "GPUX_TEST_REGISTRY"

func init() {
	if os.Getenv(childFolder) != "" {
		child = pullWithLimit
	}
}

// pullWithLimit pulls while no file may have more than 100,000 bytes.
func pullWithLimit() int {
	limit := syscall.Rlimit{Cur: 100_000, Max: 100_000}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		fmt.Println("setrlimit:", err)
		return 3
	}
	r, err := New(os.Getenv(childFolder))
	if err == nil {
		_, _, err = r.Pull(context.Background(), os.Args[1], Options{})
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// A disk that is full leaves nothing, and the error says what cannot be written.
func TestPull_DiskFull(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "net.onnx"), classifier(1<<20), 0o600))
	t.Run("a limit of the size of files", func(t *testing.T) {
		home := t.TempDir()
		cmd := exec.Command(os.Args[0], dir)
		cmd.Env = append(os.Environ(), childFolder+"="+home)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, string(out))
		assert.Equal(t, 1, cmd.ProcessState.ExitCode(), string(out))
		assert.Contains(t, string(out), "net.onnx: file too large")
		assert.Empty(t, left(t, open(t, home)))
	})
	t.Run("a file system without space", func(t *testing.T) {
		r := open(t, tmpfs.Mount(t, "256k"))
		_, _, err := r.Pull(t.Context(), dir, Options{})
		require.ErrorIs(t, err, syscall.ENOSPC)
		assert.True(t, strings.HasSuffix(err.Error(), "net.onnx: no space left on device"), err.Error())
		assert.Empty(t, left(t, r))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "net.onnx"), classifier(1<<10), 0o600))
		_, _, err = r.Pull(t.Context(), dir, Options{})
		require.NoError(t, err, "a smaller model fits")
	})
}
