// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// TestStore_ChainsEqualRows delivers random sessions in disorder. After each call, the chain of each span
// and the sums of chains are those that the rows give, also in several segments and if the writer forgets
// chains.
func TestStore_ChainsEqualRows(t *testing.T) {
	ctx := context.Background()
	checks, moves, stale := 0, 0, 0
	for seed := range uint64(6) {
		s := openStore(t, Config{Directory: t.TempDir(), SegmentOps: int64(20 + 1000*(seed%2)), Threads: 1})
		if seed%3 > 0 {
			s.maxChained = 40
		}
		for _, call := range storetest.Deliver(storetest.Generate(seed, storetest.Options{Projects: 1, Sessions: 1, Ops: 200}), seed) {
			_, err := s.Write(ctx, call)
			require.NoError(t, err)
			for k, sess := range s.sessions {
				if sess.chains != nil {
					moves += len(sess.chains.moved)
				}
				switch {
				case k.session == "":
				case sess.stale():
					stale++
				default:
					compareChains(t, s, k, fmt.Sprintf("seed %d", seed))
					checks++
				}
			}
		}
	}
	assert.Greater(t, checks, 100)
	assert.Positive(t, moves, "chains that were replaced")
	assert.Positive(t, stale)
}

func compareChains(t *testing.T, s *Store, k sessionKey, msg string) {
	t.Helper()
	ctx := context.Background()
	v, err := s.open(ctx, k.project, k.session, false)
	require.NoError(t, err)
	defer v.close()
	tree, err := v.readTree(ctx)
	require.NoError(t, err)
	type place struct {
		start int64
		id    store.SpanID
	}
	want, got := map[place]limb{}, map[place]limb{}
	type bucket struct {
		limb   limb
		bucket uint16
	}
	wantSums, gotSums := map[bucket]chainSum{}, map[bucket]chainSum{}
	for _, p := range tree.all {
		l := tree.limb(p)
		want[place{p.start, p.id}] = l
		b := wantSums[bucket{l, store.Bucket(p.duration())}]
		wantSums[bucket{l, store.Bucket(p.duration())}] = chainSum{b.n + 1, b.ns + p.duration()}
	}
	scan := func(r *sql.Rows, l *limb, more ...any) {
		var key []byte
		require.NoError(t, r.Scan(append([]any{&l.anchor, &key, &l.depth, &l.state}, more...)...))
		l.key = string(key)
	}
	require.NoError(t, v.each(ctx, "SELECT anchor, key, depth, state, start_ns, span FROM {spans} JOIN "+latestChains+" c ON c.id = chain", nil,
		func(r *sql.Rows) error {
			var l limb
			var p place
			scan(r, &l, &p.start, &p.id)
			got[p] = l
			return nil
		}))
	require.Equal(t, want, got, msg)
	require.NoError(t, v.each(ctx, "SELECT anchor, key, depth, state, bucket, n, wall_ns FROM {span_sums} JOIN "+latestChains+" c ON c.id = chain", nil,
		func(r *sql.Rows) error {
			var b bucket
			var sum chainSum
			scan(r, &b.limb, &b.bucket, &sum.n, &sum.ns)
			if old := gotSums[b]; old.n+sum.n == 0 {
				delete(gotSums, b)
			} else {
				gotSums[b] = chainSum{old.n + sum.n, old.ns + sum.ns}
			}
			return nil
		}))
	require.Equal(t, wantSums, gotSums, msg)
}
