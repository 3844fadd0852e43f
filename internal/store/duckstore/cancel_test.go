// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// TestStore_WriteCanceled ends calls at many moments. The next call must succeed, also after a call that
// ended during its transaction.
func TestStore_WriteCanceled(t *testing.T) {
	s, err := Open(t.Context(), Config{Directory: t.TempDir(), Threads: 1})
	require.NoError(t, err)
	g := storetest.NewTraining(0)
	stored, canceled := int64(0), 0
	for i := range 40 {
		b := g.Batch(3)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		r, err := s.Write(ctx, []*store.Batch{b})
		cancel()
		stored += r.Written
		if err != nil {
			canceled++
			r, err = s.Write(t.Context(), []*store.Batch{b})
			require.NoError(t, err)
			stored += r.Written
		}
	}
	require.Positive(t, canceled)
	require.Equal(t, stored, s.Stats().Rows)
	require.NoError(t, s.Close(t.Context()))
}
