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
		l.key = pathKey(v.folds.Names(splitKey(string(key))))
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
	compareSums(t, v, tree, msg)
}

// compareSums compares scope_sums with the operations and the tree.
func compareSums(t *testing.T, v *view, tree *tree, msg string) {
	t.Helper()
	ctx := context.Background()
	own, gotOwn := map[store.SpanID]scopeSum{}, map[store.SpanID]scopeSum{}
	require.NoError(t, v.each(ctx, "SELECT parent, count(*) FILTER (operation = 1), coalesce(sum(d) FILTER (operation = 1), 0)::BIGINT, coalesce(sum(q) FILTER (operation = 1), 0)::BIGINT, "+
		"count(*) FILTER (operation = 2), coalesce(sum(d) FILTER (operation = 2), 0)::BIGINT, min(start_ns), max(start_ns + d) FROM "+
		"(SELECT *, greatest(dur_ns, 0) AS d, "+queueSQL+" AS q FROM {ops}) o JOIN "+v.dict(places)+" p ON p.id = place JOIN "+v.dict(shapes)+" h ON h.id = shape "+
		"WHERE parent != 0 AND operation IN (1, 2) GROUP BY 1", nil, func(r *sql.Rows) error {
		var id store.SpanID
		var x scopeSum
		err := r.Scan(&id, &x.kernels, &x.kernelNs, &x.queue, &x.copies, &x.copyNs, &x.first, &x.last)
		own[id] = x
		return err
	}))
	require.NoError(t, v.readSums(ctx, v.s.db, "own", nil, func(id store.SpanID, x *scopeSum) {
		if !x.empty() {
			gotOwn[id] = *x
		}
	}))
	require.Equal(t, own, gotOwn, msg)
	want, got := map[rowKey]scopeSum{}, map[rowKey]scopeSum{}
	tops := map[store.SpanID]bool{}
	for _, p := range tree.all {
		tops[p.id] = true
		if l := tree.limb(p); l.state == chainInside {
			want[rowKey{p.start, uint64(p.id)}] = scopeSum{wall: p.duration()}
		}
	}
	tree.below(tops, func(span, top store.SpanID) {
		x := own[span]
		k := rowKey{tree.byID[top].start, uint64(top)}
		sum := want[k]
		sum.add(&x)
		want[k] = sum
	})
	require.NoError(t, v.each(ctx, "SELECT s.start_ns, s.span, sum(wall_ns)::BIGINT, sum(kernels)::BIGINT, sum(kernel_ns)::BIGINT, sum(queue_ns)::BIGINT, sum(copies)::BIGINT, sum(copy_ns)::BIGINT, "+
		"coalesce(min(first_ns), 0), coalesce(max(last_ns), 0), count(DISTINCT s.chain), any_value(s.chain) = any_value(p.chain) FROM {scope_sums} s JOIN "+latestChains+" c ON c.id = s.chain "+
		"JOIN {spans} p ON p.start_ns = s.start_ns AND p.span = s.span WHERE state = 0 GROUP BY 1, 2", nil, func(r *sql.Rows) error {
		var k rowKey
		var x scopeSum
		var n int
		var same bool
		err := r.Scan(&k.at, &k.id, &x.wall, &x.kernels, &x.kernelNs, &x.queue, &x.copies, &x.copyNs, &x.first, &x.last, &n, &same)
		require.Equal(t, 1, n, "chains of a span")
		require.True(t, same, "the chain of the span")
		got[k] = x
		return err
	}))
	require.Equal(t, want, got, msg)
}

// limb returns the chain of a span.
func (t *tree) limb(p *treeSpan) limb {
	if !p.inside {
		return limb{state: chainBoundary}
	}
	names, ok := t.path(p)
	if !ok {
		return limb{state: chainOutside}
	}
	top := p
	for range len(names) - 1 {
		top = t.byID[top.parent]
	}
	l := limb{key: pathKey(names), depth: len(names)}
	if p.id != 0 && t.byID[p.id] != p {
		l.state = chainTwin
	}
	if top.parent != 0 && t.byID[top.parent] == nil {
		l.anchor = top.parent
	}
	return l
}
