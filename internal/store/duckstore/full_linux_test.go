// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package duckstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/testing/tmpfs"
)

// TestStore_DiskFull fills the disk while the store loads, compacts and seals. What it acknowledged stays,
// and the senders deliver the rest when the disk has space again.
func TestStore_DiskFull(t *testing.T) {
	for _, journal := range []bool{false, true} {
		t.Run(fmt.Sprintf("journal %v", journal), func(t *testing.T) {
			ctx := context.Background()
			dir := tmpfs.Mount(t, "12m")
			open := func() *Store {
				s := openStore(t, Config{Directory: dir, SegmentOps: 25_000})
				s.write.Lock()
				defer s.write.Unlock()
				s.maxPartial = 5000
				if journal {
					s.directSessions = 0
				}
				return s
			}
			s := open()
			g := storetest.NewTraining(0)
			var refused *store.Batch
			acked, rows := int64(0), 0
			for refused == nil {
				b := g.Batch(3)
				rows += b.Rows()
				r, err := s.Write(ctx, []*store.Batch{b})
				if err != nil {
					require.ErrorIs(t, err, store.ErrRetry)
					assert.ErrorContains(t, err, "no space left")
					assert.NotContains(t, err.Error(), "\n")
					refused = b
				}
				if acked == 0 { // the session gets its first segment before the disk is full
					_, err := s.Lanes(ctx, "", "training")
					require.NoError(t, err)
				}
				acked += r.Written + r.Deferred
				require.Less(t, acked, int64(10_000_000))
			}
			check := func(rows int64) {
				t.Helper()
				info, err := s.Session(ctx, "", "training")
				require.NoError(t, err)
				assert.Equal(t, rows, info.Counts["ops"]+info.Counts["spans"])
			}
			// Neither sealing nor a restart on the full disk loses anything.
			for range 3 {
				if err := s.Seal(ctx, "", "training"); err != nil {
					require.ErrorIs(t, err, store.ErrRetry)
				}
				_, err := s.Lanes(ctx, "", "training")
				require.NoError(t, err, "readers")
				r, err := s.Write(ctx, []*store.Batch{refused})
				acked += r.Written + r.Deferred
				if err == nil {
					break
				}
			}
			if err := s.Close(ctx); err != nil {
				assert.ErrorContains(t, err, "no space left on device")
			}
			tmpfs.Resize(t, dir, "256m")
			s = open()
			assert.Zero(t, s.Stats().Damaged)
			r, err := s.Write(ctx, []*store.Batch{refused})
			require.NoError(t, err)
			if !journal {
				acked += r.Written
			}
			check(int64(rows))
			rollupsEqualRows(t, s, "training")
			require.NoError(t, s.Seal(ctx, "", "training"))
			check(int64(rows))
			rollupsEqualRows(t, s, "training")
			if !journal {
				assert.EqualValues(t, rows, acked, "rows count once")
			}
		})
	}
}

// killChildren kills the processes that this one started.
func killChildren(t *testing.T) {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it ended
		}
		var pid, parent int
		var state string
		_, after, _ := strings.Cut(string(b), ") ")
		_, err = fmt.Sscan(after, &state, &parent)
		require.NoError(t, err)
		_, err = fmt.Sscan(string(b), &pid)
		require.NoError(t, err)
		if parent == os.Getpid() {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
}

// TestReadFiles_Killed kills a process that reads a file. That says nothing about the file.
func TestReadFiles_Killed(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, Config{Directory: dir})
	write(t, s, batch("a", 1e18, 100_000)) // more than a pipe holds
	require.NoError(t, s.Close(t.Context()))
	var last response
	batches := 0
	err := readFiles(t.Context(), request{Files: []string{segmentOf(dir, "a")}, Rows: true}, func(_ int, a *response) error {
		if batches++; batches == 1 {
			killChildren(t)
		}
		last = *a
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, response{Err: "DuckDB cannot read it: its process was killed, probably for lack of memory", Temporary: true}, last)
}

// TestRetain_MinFree has one pinned and two other sessions on a small disk, and asks for the space of one more.
func TestRetain_MinFree(t *testing.T) {
	ctx := context.Background()
	dir := tmpfs.Mount(t, "64m")
	s := openStore(t, Config{Directory: dir})
	for i, id := range []string{"pinned", "oldest", "newest"} {
		write(t, s, batch(id, 1e18+int64(i)*1e9, 20_000))
		require.NoError(t, s.Seal(ctx, "", id))
	}
	require.NoError(t, s.Pin(ctx, "", "pinned", true))
	require.NoError(t, s.detach(ctx, s.sessions[sessionKey{"", "pinned"}].segments[0])) // writes its log to its file
	var st syscall.Statfs_t
	require.NoError(t, syscall.Statfs(dir, &st))
	free := int64(st.Bavail) * st.Bsize
	deleted, err := s.Retain(ctx, store.Retention{MinFree: free})
	require.NoError(t, err)
	assert.Empty(t, deleted)
	deleted, err = s.Retain(ctx, store.Retention{MinFree: free + 1})
	require.NoError(t, err)
	require.Len(t, deleted, 1)
	assert.Positive(t, deleted[0].Bytes)
	deleted[0].Bytes = 0
	assert.Equal(t, store.Deleted{Session: "oldest", Reason: "min_free"}, deleted[0])
	deleted, err = s.Retain(ctx, store.Retention{MinFree: 1 << 40})
	require.NoError(t, err)
	require.Len(t, deleted, 1)
	assert.Equal(t, "newest", deleted[0].Session)
	_, err = s.Session(ctx, "", "pinned")
	require.NoError(t, err)
}
