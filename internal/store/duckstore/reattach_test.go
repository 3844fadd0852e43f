// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// TestStore_WriteAfterDelete deletes a session directly after its queries were cancelled, and writes it again.
func TestStore_WriteAfterDelete(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	s.write.Lock()
	s.directSessions = math.MaxInt
	s.write.Unlock()
	const rows = 1000
	var canceled, read atomic.Int64
	for range 3 {
		_, err := s.Write(t.Context(), []*store.Batch{batch("again", 1e18, rows)})
		require.NoError(t, err)
		var queries sync.WaitGroup
		for q := range 4 {
			queries.Go(func() {
				for i := range 51 {
					limit := time.Duration(q+i*i) * 20 * time.Microsecond
					if i == 50 {
						limit = time.Minute // also on a busy machine, one is read
					}
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					_, err := s.Gaps(ctx, store.GapQuery{Session: "again", From: 1e18 + 100, To: 1e18 + 1e7})
					cancel()
					if errors.Is(err, context.DeadlineExceeded) {
						canceled.Add(1)
					} else if assert.NoError(t, err) {
						read.Add(1)
					}
				}
			})
		}
		queries.Wait()
		page, err := s.Ops(t.Context(), store.OpQuery{Session: "again", Limit: rows})
		require.NoError(t, err)
		assert.Len(t, page.Rows, rows)
		require.NoError(t, s.Delete(t.Context(), "", "again"))
	}
	assert.Positive(t, canceled.Load())
	assert.Positive(t, read.Load())
}
