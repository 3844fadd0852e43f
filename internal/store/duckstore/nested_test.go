// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// TestStore_ReadInScan reads in the callback of a scan while the holder of Store.write waits for the end of the scan.
func TestStore_ReadInScan(t *testing.T) {
	s := openJournaled(t, t.TempDir())
	s.maxExclusiveWait = 20 * time.Millisecond
	write(t, s, batch("a", 1e18, 10))
	require.EqualValues(t, 10, opsOf(t, s, "a"))
	var detached error
	var writer sync.WaitGroup
	rows := 0
	err := s.ScanOps(t.Context(), store.ScanQuery{Session: "a"}, func(*store.OpRow) error {
		if rows++; rows > 1 {
			return nil
		}
		write(t, s, batch("a", 2e18, 10)) // rows that readers move to segments
		locked := make(chan struct{})
		writer.Go(func() {
			s.write.Lock()
			defer s.write.Unlock()
			close(locked)
			detached = s.detach(t.Context(), s.session(sessionKey{"", "a"}).segments[0])
		})
		<-locked
		page, err := s.Ops(t.Context(), store.OpQuery{Session: "a"})
		require.NoError(t, err)
		assert.Len(t, page.Rows, 10)
		return nil
	})
	writer.Wait()
	require.NoError(t, err)
	require.NoError(t, detached)
	assert.Equal(t, 10, rows)
	s.maxExclusiveWait = time.Minute
	assert.EqualValues(t, 20, opsOf(t, s, "a"))
}
