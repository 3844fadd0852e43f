// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A FIFO simulates an environment that is mapped from a file that nobody serves: opening it blocks.
func TestProcess_UnresponsiveEnvironment(t *testing.T) {
	root := t.TempDir()
	process := func(pid, uid int) (fifo string) {
		dir := filepath.Join(root, "proc", fmt.Sprint(pid))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		stat := fmt.Sprintf("%d (train) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 500 0 0", pid)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "status"), fmt.Appendf(nil, "Uid:\t%d\t0\t0\t0\n", uid), 0o600))
		fifo = filepath.Join(dir, "environ")
		require.NoError(t, unix.Mkfifo(fifo, 0o600))
		return fifo
	}
	r := New(root)
	var fifos []string
	for pid := range 5 {
		fifos = append(fifos, process(pid+1, 1000))
	}
	victim := process(6, 1001)
	require.NoError(t, os.Remove(victim))
	require.NoError(t, os.WriteFile(victim, []byte("OTEL_SERVICE_NAME=train\x00"), 0o600))

	began := time.Now()
	for pid := range 5 {
		p, ok := r.Process(int32(pid+1), 500*10_000_000, Known{})
		assert.True(t, ok)
		assert.Equal(t, "train", p.Executable)
		assert.Empty(t, p.ServiceName)
	}
	assert.Less(t, time.Since(began), 10*environLimit, "only two of five processes of a user are waited for")
	assert.Equal(t, 2, r.dog.Pending())
	p, ok := r.Process(6, 500*10_000_000, Known{})
	assert.True(t, ok)
	assert.Equal(t, "train", p.ServiceName, "another user")

	// The abandoned calls return after the files are served.
	for _, fifo := range fifos {
		if f, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			require.NoError(t, f.Close())
		}
	}
	require.Eventually(t, func() bool { return r.dog.Pending() == 0 }, time.Minute, time.Millisecond)
}
