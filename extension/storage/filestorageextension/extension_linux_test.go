// SPDX-License-Identifier: Apache-2.0

//go:build linux

package filestorageextension

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"

	"github.com/gpuflight/gpuflight/internal/testing/tmpfs"
)

// TestGetClient_DamagedInUse has a damaged file that another process has locked, as while it writes.
// Only that process may replace it.
func TestGetClient_DamagedInUse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "receiver_gpuflog_a~002Fb")
	require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	s := start(t, dir, nil)
	_, err = s.GetClient(t.Context(), component.KindReceiver, owner, "")
	require.ErrorIs(t, err, errInUse)
	assert.Equal(t, []string{path}, files(t, dir))

	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_UN))
	require.NoError(t, s.client(t).Close(t.Context()))
	assert.Len(t, files(t, dir), 2, "it was set aside")
}

// TestGetClient_FullDisk opens a file of requests on a full disk. They have no room to move.
func TestGetClient_FullDisk(t *testing.T) {
	dir := tmpfs.Mount(t, "8m")
	state := filepath.Join(dir, "state")
	require.NoError(t, os.Mkdir(state, 0o700))
	s := start(t, state, nil)
	c := s.client(t)
	ops := make([]*storage.Operation, 100)
	for i := range ops {
		ops[i] = storage.SetOperation(fmt.Sprint(i), bytes.Repeat([]byte("v"), 10_000))
	}
	require.NoError(t, c.Batch(t.Context(), ops...))
	require.NoError(t, c.Close(t.Context()))

	filler := filepath.Join(dir, "filler")
	require.ErrorIs(t, os.WriteFile(filler, make([]byte, 8<<20), 0o600), syscall.ENOSPC)
	_, err := s.GetClient(t.Context(), component.KindReceiver, owner, "")
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.Regexp(t, `^open \S+/receiver_gpuflog_a~002Fb: no space left on device: \d+ bytes are free, \d+ are needed: make room$`, err.Error())

	require.NoError(t, os.Remove(filler))
	c = s.client(t)
	v, err := c.Get(t.Context(), "99")
	require.NoError(t, err)
	assert.Len(t, v, 10_000)
	require.NoError(t, c.Close(t.Context()))
}
