// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// TestStore_TopOps compares pages of a store with those of one that keeps no top_ops and reads all operations.
// Durations grow, many are equal, and late operations change the first segment. Some operations have the path of a
// parent that arrives later.
func TestStore_TopOps(t *testing.T) {
	ctx := context.Background()
	r := rand.New(rand.NewPCG(1, 2))
	cfg := Config{Directory: t.TempDir(), SegmentOps: 300}
	tune := func(s *Store) *Store {
		s.keptTop, s.keptGroup, s.fewOps, s.topPart, s.gapLag = 20, 16, 60, 60, 1e6
		return s
	}
	got, want := tune(openStore(t, cfg)), openStore(t, Config{Directory: t.TempDir()})
	pages := func(s *Store, q store.OpQuery) (all [][]store.OpRow) {
		for range 4 {
			page, err := s.Ops(ctx, q)
			require.NoError(t, err)
			for i := range page.Rows {
				o := &page.Rows[i] // ids of dictionaries depend on the store
				*o = store.OpRow{Op: store.Op{StartNs: o.StartNs, EndNs: o.EndNs, Span: o.Op.Span, QueueNs: o.QueueNs}}
			}
			if all = append(all, page.Rows); !page.More {
				break
			}
			last := &page.Rows[len(page.Rows)-1]
			q.After = &store.OpCursor{Value: last.EndNs - last.StartNs, StartNs: last.StartNs, Span: last.Op.Span}
			if q.Sort == store.ByQueue {
				q.After.Value = -1 << 63
				if last.QueueNs.OK {
					q.After.Value = last.QueueNs.V
				}
			}
		}
		return all
	}
	var paths []uint32
	queries := func() (list []store.OpQuery) {
		for _, sort := range []store.OpSort{store.ByDuration, store.ByQueue} {
			for _, limit := range []int{3, 15, 50} {
				list = append(list, store.OpQuery{Session: "a", Sort: sort, Limit: limit}, store.OpQuery{Session: "a", Sort: sort, Limit: limit, Name: "gemm"},
					store.OpQuery{Session: "a", Sort: sort, Limit: limit, Name: "other"}, store.OpQuery{Session: "a", Sort: sort, Limit: limit, To: 1e18 + 5e6})
				for path := range paths {
					if limit != 15 {
						break
					}
					list = append(list, store.OpQuery{Session: "a", Sort: sort, Limit: limit, Path: &paths[path], Direct: path%2 > 0})
				}
			}
		}
		return list
	}
	for i := range int64(24) {
		b := batch("a", 1e18+i*1e6, 50)
		if i%7 == 6 {
			b = batch("a", 1e18+3e5+i, 50)
		}
		b.Shapes = append(b.Shapes, store.Shape{Key: 4, Operation: store.OpKernel, Name: "other"})
		for j := range b.Ops {
			o := &b.Ops[j]
			o.EndNs, o.QueueNs = o.StartNs+r.Int64N(30)+i, store.Int{}
			if r.IntN(4) > 0 {
				o.QueueNs = store.Some(r.Int64N(1000) - 20)
			}
			o.Shape = 1 + r.Uint32N(2)
			// Paths differ in their durations, as those of programs do.
			if o.Place = r.Uint32N(6); o.Place > 1 {
				o.EndNs += int64(o.Place) * 20
			}
		}
		id := store.SpanID(i + 1)
		b.Places = append(b.Places, store.Place{Key: 5, ScopePath: "train|other"}, store.Place{Key: 6, Parent: 1, ScopeName: "lost"},
			store.Place{Key: 100 + uint64(i), Parent: id, ScopeName: "layer"}, store.Place{Key: 7, ScopePath: "eval"})
		for _, p := range []store.SpanID{id, id - 2} { // that of the last write but one arrives now
			if p > 1 && (p == id) == (i%2 == 0) {
				b.Spans = append(b.Spans, store.Span{StartNs: b.Ops[0].StartNs, EndNs: b.Ops[49].EndNs, Span: p, Name: "layer", Operation: "scope"})
			}
		}
		write(t, got, b)
		write(t, want, b)
		nodes, err := want.Scopes(ctx, "", "a")
		require.NoError(t, err)
		_, err = got.Scopes(ctx, "", "a")
		require.NoError(t, err)
		paths = paths[:0]
		for _, n := range nodes {
			paths = append(paths, n.Path)
		}
		for _, q := range queries() {
			if i > 2 && i%5 != 0 {
				break
			}
			require.Equal(t, pages(want, q), pages(got, q), "write %d: %+v", i, q)
		}
		if i == 15 {
			require.NoError(t, got.Close(ctx))
			got = tune(openStore(t, cfg))
		}
	}
	require.NoError(t, got.Seal(ctx, "", "a"))
	// The first pages need no other operations, and all pages of a path with few operations. A later page does.
	var first []store.OpQuery
	for _, sort := range []store.OpSort{store.ByDuration, store.ByQueue} {
		first = append(first, store.OpQuery{Session: "a", Sort: sort, Limit: 12})
		for path := range paths {
			first = append(first, store.OpQuery{Session: "a", Sort: sort, Limit: 12, Path: &paths[path]})
		}
	}
	var expected [][]store.OpRow
	for _, q := range first {
		expected = append(expected, pages(want, q)[0])
	}
	sess := got.sessions[sessionKey{"", "a"}]
	require.Greater(t, len(sess.segments), 2)
	for _, seg := range sess.segments {
		require.NotNil(t, seg.top.Load())
		require.NoError(t, got.acquire(ctx, seg))
		var kept int64
		require.NoError(t, got.db.QueryRowContext(ctx, "SELECT count(*) FROM "+seg.alias+".top_ops").Scan(&kept))
		assert.Less(t, kept, seg.ops)
		_, err := got.db.ExecContext(ctx, "DELETE FROM "+seg.alias+".ops")
		got.release(seg)
		require.NoError(t, err)
	}
	for i, q := range first {
		assert.Equal(t, expected[i], pages(got, q)[0], "%+v", q)
	}
	q := store.OpQuery{Session: "a", Sort: store.ByDuration, Limit: 1000}
	assert.NotEqual(t, pages(want, q), pages(got, q))
}

// pathPages returns the spans of short and long first pages of each path by duration, with all below it.
func pathPages(t *testing.T, s *Store) map[string][]store.SpanID {
	nodes, err := s.Scopes(t.Context(), "", "a")
	require.NoError(t, err)
	pages := map[string][]store.SpanID{}
	for i, n := range nodes {
		for _, limit := range []int{12, 100} {
			page, err := s.Ops(t.Context(), store.OpQuery{Session: "a", Sort: store.ByDuration, Limit: limit, Path: &n.Path})
			require.NoError(t, err)
			name := fmt.Sprint(i, " ", n.Name, " ", limit)
			pages[name] = []store.SpanID{}
			for _, o := range page.Rows {
				pages[name] = append(pages[name], o.Op.Span)
			}
		}
	}
	return pages
}

// The chain of a group is replaced by another one when a parent arrives. A writer that reads the chains again gives its
// id to no new one.
func TestStore_TopOpsOfReplacedChain(t *testing.T) {
	got, want := openStore(t, Config{Directory: t.TempDir()}), openStore(t, Config{Directory: t.TempDir()})
	got.keptTop, got.keptGroup, got.fewOps, got.topPart, got.gapLag = 20, 16, 60, 60, 1e6
	put := func(at int64, n int, parent store.SpanID, dur int64, spans ...store.Span) {
		b := batch("a", at, n)
		for _, p := range spans {
			p.StartNs, p.EndNs, p.Operation = at, at+1e5, "scope"
			b.Spans = append(b.Spans, p)
		}
		b.Places = append(b.Places, store.Place{Key: uint64(at), Parent: parent})
		for i := range b.Ops {
			b.Ops[i].Place, b.Ops[i].EndNs = uint32(len(b.Places)-1), b.Ops[i].StartNs+dur+int64(i)
		}
		write(t, got, b)
		write(t, want, b)
	}
	put(1e18, 30, 2, 10, store.Span{Span: 1, Name: "train"}, store.Span{Span: 2, Parent: 1, Name: "layer"})
	put(1e18+1e6, 80, 11, 1000, store.Span{Span: 11, Parent: 10, Name: "layer"})
	put(1e18+20e6, 70, 0, 1)
	put(1e18+21e6, 1, 0, 1) // moves the mark
	put(1e18+22e6, 1, 0, 1, store.Span{Span: 10, Name: "train"})
	require.Equal(t, pathPages(t, want), pathPages(t, got))
	got.write.Lock()
	got.sessions[sessionKey{"", "a"}].forget()
	got.write.Unlock()
	put(1e18+23e6, 1, 0, 1, store.Span{Span: 20, Name: "eval"})
	assert.Equal(t, pathPages(t, want), pathPages(t, got))
}

// The groups of many paths keep no more than their share.
func TestStore_TopShare(t *testing.T) {
	got, want := openStore(t, Config{Directory: t.TempDir()}), openStore(t, Config{Directory: t.TempDir()})
	got.keptTop, got.keptGroup, got.fewOps, got.topPart = 2, 10, 60, 60
	b := batch("a", 1e18, 3000)
	for i := range 100 {
		b.Places = append(b.Places, store.Place{Key: 100 + uint64(i), ScopePath: fmt.Sprint("train|", string(rune('a'+i%26)), string(rune('a'+i/26)))})
	}
	for i := range b.Ops {
		b.Ops[i].Place, b.Ops[i].EndNs = uint32(len(b.Places)-1-i%100), b.Ops[i].StartNs+int64(i*i%997)
	}
	write(t, got, b)
	write(t, want, b)
	require.NoError(t, got.Seal(t.Context(), "", "a"))
	seg := got.sessions[sessionKey{"", "a"}].segments[0]
	require.NoError(t, got.acquire(t.Context(), seg))
	defer got.release(seg)
	var kept int
	require.NoError(t, got.db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+seg.alias+".top_ops").Scan(&kept))
	assert.Equal(t, 80, kept, "10 of each of 8 paths, by duration only: a sixteenth of 3,000 is less than 9 times 2 times 11")
	assert.Equal(t, pathPages(t, want), pathPages(t, got))
}
