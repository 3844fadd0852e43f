// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// BenchmarkStore_Busy asks for the busy time of 2,000 steps of 1,000 kernels.
func BenchmarkStore_Busy(b *testing.B) {
	ctx := context.Background()
	s, err := Open(ctx, Config{Directory: b.TempDir()})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close(ctx)) }()
	g := storetest.NewTraining(0)
	q := store.BusyQuery{Session: "training"}
	for range 100 {
		batch := g.Batch(20)
		_, err := s.Write(ctx, []*store.Batch{batch})
		require.NoError(b, err)
		for i := range batch.Spans {
			if p := &batch.Spans[i]; p.Name == "step" {
				q.Intervals = append(q.Intervals, store.Interval{From: p.StartNs, To: p.EndNs})
			}
		}
	}
	for b.Loop() {
		busy, err := s.Busy(ctx, q)
		require.NoError(b, err)
		require.Positive(b, busy[len(busy)/2])
	}
}
