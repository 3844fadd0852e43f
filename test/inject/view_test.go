// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestTrace_View checks that the recording is in the UI after the command, and that the command's
// exit code remains.
func TestTrace_View(t *testing.T) {
	b := newBench(t)
	path, temp := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(process.Collector.Find(t), filepath.Join(path, "otelcol-gpuflight")))
	args := slices.Concat([]string{"trace", "--view"}, b.flags, []string{"--", "sh", "-c", `"$@"; exit 3`, "sh", b.python, b.work, "plain"})
	cmd := exec.Command(b.gpuflight, args...)
	cmd.Env = append(slices.Clone(b.environ), "PATH="+path+":"+os.Getenv("PATH"), "TMPDIR="+temp)
	var out process.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })

	var address string
	process.Eventually(t, 2*time.Minute, "the address of the UI is printed", func() bool {
		if m := regexp.MustCompile(`(?m)^  (http://\S+)$`).FindStringSubmatch(out.String()); m != nil {
			address = m[1]
		}
		select {
		case err := <-done:
			t.Fatalf("gpuflight ended: %v: %s", err, out.String())
		default:
		}
		return address != ""
	})
	resp, err := http.Get(address + "/api/v1/sessions")
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	var list struct {
		Sessions []struct{ Operations map[string]int64 }
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&list))
	kernels := int64(0)
	for _, s := range list.Sessions {
		kernels += s.Operations["kernel"]
	}
	assert.Positive(t, kernels)

	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	var exit *exec.ExitError
	require.ErrorAs(t, <-done, &exit)
	code, signal := ended(cmd)
	assert.Equal(t, 3, code)
	assert.Zero(t, signal)
	left, err := filepath.Glob(filepath.Join(temp, "gpuflight-*"))
	require.NoError(t, err)
	assert.Empty(t, left, "no recording and no store remain")
}
