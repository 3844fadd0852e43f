// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
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

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// observeVariable makes this test binary observe one folder's libraries and print its first
// Snapshot.
const observeVariable = "GPUFLIGHT_TEST_OBSERVE"

type observation struct {
	Error    string
	Snapshot *Snapshot
}

// TestObserver is no test but what the next one runs as another user.
func TestObserver(t *testing.T) {
	library := os.Getenv(observeVariable)
	if library == "" {
		t.Skip("for TestPrivileges_ThreeCapabilities")
	}
	p := New(Options{})
	// The library's neighbours too, so that those that cannot be read are tried.
	p.only = func(path string) bool { return strings.Contains(path, filepath.Dir(filepath.Dir(library))) }
	defer p.Close()
	say := func(o observation) { require.NoError(t, json.NewEncoder(os.Stdout).Encode(o)) }
	if err := p.Start(t.Context()); err != nil {
		say(observation{Error: err.Error()})
		return
	}
	say(observation{})
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	s, err := p.Snapshot()
	require.NoError(t, err)
	say(observation{Snapshot: s})
}

// observer runs TestObserver as nobody with some capabilities.
func observer(t *testing.T, library string, capabilities ...uintptr) (first observation, second func() observation) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "observer") // the test's own folder is root's
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	program, err := os.ReadFile(self)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "probe.test"), program, 0o755))
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "probe.test"), "-test.run", "^TestObserver$")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), observeVariable+"="+library)
	cmd.Stderr = os.Stderr
	const nobody = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, AmbientCaps: capabilities}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = in.Close(); _, _ = io.Copy(io.Discard, out); _ = cmd.Wait() })
	answers := json.NewDecoder(out)
	require.NoError(t, answers.Decode(&first))
	return first, func() (o observation) {
		_, err := fmt.Fprintln(in)
		require.NoError(t, err)
		require.NoError(t, answers.Decode(&o))
		return o
	}
}

func TestPrivileges_ThreeCapabilities(t *testing.T) {
	l := stubcuda.Build(t)
	require.NoError(t, started(t, l, New(Options{})).Close()) // skips where eBPF is not allowed
	c := l.Start(t)
	c.Must("open %s", l.Library)
	c.Must("launch 5 1 2 32")

	for dir := filepath.Dir(l.Library); dir != filepath.Clean(os.TempDir()); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	first, second := observer(t, l.Library, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_PTRACE)
	require.Empty(t, first.Error)
	c.Must("launch 7 1 2 32")
	s := second().Snapshot
	require.NotNil(t, s)
	got := s.of(c.PID())
	require.NotNil(t, got, "another user's process")
	assert.EqualValues(t, 7, got.Launches[0].Calls)
	began, alive := startOf(fmt.Sprintf("/proc/%d/stat", c.PID()))
	assert.True(t, alive)
	assert.Equal(t, began, got.ID.Start)
}

func TestPrivileges_MissingCapabilities(t *testing.T) {
	l := stubcuda.Build(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	began := time.Now()
	first, _ := observer(t, l.Library)
	assert.Contains(t, first.Error, "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE")
	assert.Less(t, time.Since(began), time.Minute)
}
