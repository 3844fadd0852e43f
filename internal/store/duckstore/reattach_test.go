// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// TestStore_WriteAfterDelete writes a session again while a transaction of a query that was cancelled has not ended.
func TestStore_WriteAfterDelete(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	s.write.Lock()
	s.directSessions = math.MaxInt
	s.write.Unlock()
	_, err := s.Write(t.Context(), []*store.Batch{batch("again", 1e18, 3)})
	require.NoError(t, err)
	s.attach.Lock()
	require.Len(t, s.attached, 1)
	var alias string
	for seg := range s.attached {
		alias = seg.alias
	}
	s.attach.Unlock()
	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var n int64
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT count(*) FROM "+alias+".ops").Scan(&n))
	require.Equal(t, int64(3), n)
	require.NoError(t, s.Delete(t.Context(), "", "again"))
	ended := make(chan error)
	go func() {
		time.Sleep(200 * time.Millisecond)
		ended <- tx.Rollback()
	}()
	_, err = s.Write(t.Context(), []*store.Batch{batch("again", 1e18, 2)})
	require.NoError(t, err)
	require.NoError(t, <-ended)
	page, err := s.Ops(t.Context(), store.OpQuery{Session: "again"})
	require.NoError(t, err)
	assert.Len(t, page.Rows, 2)
}
