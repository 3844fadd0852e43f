// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/semconv"
)

// readOnly hides what else a store can do.
type readOnly struct{ store.Reader }

func openTraining(t *testing.T, steps int) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{Directory: t.TempDir(), SegmentOps: 1500})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(t.Context())) })
	writeTraining(t, steps, s)
	return s
}

// writeTraining writes steps of a training to stores, each in a batch of its own.
func writeTraining(t *testing.T, steps int, stores ...*Store) {
	t.Helper()
	g := storetest.NewTraining(0)
	for range steps {
		b := g.Batch(1)
		for _, s := range stores {
			_, err := s.Write(t.Context(), []*store.Batch{b})
			require.NoError(t, err)
		}
	}
}

func TestStore_ScanEqualsPages(t *testing.T) {
	s := openTraining(t, 5)
	info, err := s.Session(t.Context(), "", "training")
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	// Scopes that arrive late, and not by start: the first rows of the files are not the first scopes.
	late := storetest.NewTraining(0).Batch(1)
	late.Ops, late.Spans = nil, nil
	for i := range 60 {
		start := info.FirstNs + rng.Int64N(info.LastNs-info.FirstNs)
		late.Spans = append(late.Spans, store.Span{
			StartNs: start, EndNs: start + rng.Int64N(info.LastNs-start), Trace: store.TraceID{1}, Span: store.SpanID(1<<40 + i), Name: "layer1.late",
			Operation: semconv.CUDAOperationScope,
		})
	}
	_, err = s.Write(t.Context(), []*store.Batch{late})
	require.NoError(t, err)
	for range 10 {
		q := store.ScanQuery{Session: "training", Overlapping: rng.IntN(2) == 0, Places: rng.IntN(2) == 0}
		if rng.IntN(4) > 0 {
			q.From = info.FirstNs + rng.Int64N(info.LastNs-info.FirstNs)
		}
		if rng.IntN(4) > 0 {
			q.To = max(info.FirstNs, q.From) + 1 + rng.Int64N(info.LastNs-info.FirstNs)
		}
		page, err := s.Ops(t.Context(), store.OpQuery{Session: q.Session, From: q.From, To: q.To, Overlapping: q.Overlapping, Limit: 20_000})
		require.NoError(t, err)
		var ops []store.OpRow
		require.NoError(t, s.ScanOps(t.Context(), q, func(o *store.OpRow) error { ops = append(ops, *o); return nil }))
		require.Len(t, ops, len(page.Rows))
		for i := range ops {
			want := &page.Rows[i]
			want.Correlation = store.Int{}
			if !q.Places {
				want.PlaceRef = store.Place{}
			}
			require.Equal(t, want, &ops[i])
		}
		if q.From > 0 && q.To > 0 && q.Overlapping {
			n := 0
			require.NoError(t, analysis.FromReader(s, "", "training").Ops(t.Context(), q.From, q.To, func(o *store.OpRow) error {
				require.Equal(t, page.Rows[n].Span, o.Span)
				require.NotEmpty(t, o.PlaceRef.ScopePath)
				n++
				return nil
			}))
			require.Len(t, page.Rows, n)
		}
		list, err := s.Spans(t.Context(), store.SpanQuery{
			Session: q.Session, From: q.From, To: q.To, Overlapping: q.Overlapping, Operation: semconv.CUDAOperationScope, Limit: 20_000,
		})
		require.NoError(t, err)
		for _, prefixes := range [][]string{nil, {"step", "layer1"}} {
			var want, got []store.Span
			for i := range list {
				x := &list[i].Span
				if prefixes == nil || x.Name == "step" || strings.HasPrefix(x.Name, "layer1") {
					want = append(want, store.Span{StartNs: x.StartNs, EndNs: x.EndNs, Span: x.Span, Parent: x.Parent, Name: x.Name})
					if strings.HasPrefix(x.Name, "nccl") {
						want[len(want)-1].Attrs = x.Attrs
					}
				}
			}
			if q.Limit = rng.IntN(3) * 40; q.Limit > 0 {
				want = want[:min(q.Limit, len(want))]
			}
			require.NoError(t, s.ScanScopes(t.Context(), q, prefixes, func(x *store.Span) error { got = append(got, *x); return nil }))
			require.Equal(t, want, got)
		}
		want, err := analysis.Run(t.Context(), analysis.FromReader(readOnly{s}, "", q.Session), analysis.Options{From: q.From, To: q.To})
		require.NoError(t, err)
		got, err := analysis.Run(t.Context(), analysis.FromReader(s, "", q.Session), analysis.Options{From: q.From, To: q.To})
		require.NoError(t, err)
		require.Equal(t, analysis.NewAnswer(want, 0), analysis.NewAnswer(got, 0))
	}
	want, err := analysis.NewProfile(t.Context(), analysis.FromReader(readOnly{s}, "", "training"), analysis.Options{})
	require.NoError(t, err)
	got, err := analysis.NewProfile(t.Context(), analysis.FromReader(s, "", "training"), analysis.Options{})
	require.NoError(t, err)
	assert.NotEmpty(t, got.Scopes)
	assert.ElementsMatch(t, want.Scopes, got.Scopes)
	assert.ElementsMatch(t, want.Kernels, got.Kernels)
	assert.Equal(t, want.Steps, got.Steps)
	assert.ErrorIs(t, s.ScanOps(t.Context(), store.ScanQuery{Session: "other"}, nil), store.ErrNotFound)
	assert.ErrorIs(t, s.ScanScopes(t.Context(), store.ScanQuery{Session: "training", From: -1}, nil, nil), store.ErrInvalid)
}

// TestStore_ScanCollectives reads the size of a collective, which only scopes of NCCL have.
func TestStore_ScanCollectives(t *testing.T) {
	s := openTraining(t, 1)
	b := storetest.NewTraining(0).Batch(1)
	b.Spans = nil
	for i, name := range []string{"ncclAllReduce", "ncclGroupEnd", "step"} {
		x := store.Span{StartNs: int64(1 + i), EndNs: 9, Trace: store.TraceID{1}, Span: store.SpanID(1000 + i), Name: name, Operation: semconv.CUDAOperationScope}
		if name != "ncclGroupEnd" {
			x.Attrs = store.Attrs{
				{Key: semconv.CUDACollectiveSize, Value: store.Value{Kind: store.KindInt, Int: 4096}},
				{Key: semconv.CUDAScopeInstanceID, Value: store.Value{Kind: store.KindInt, Int: 7}},
			}
		}
		b.Spans = append(b.Spans, x)
	}
	_, err := s.Write(t.Context(), []*store.Batch{b})
	require.NoError(t, err)
	var got []store.Span
	q := store.ScanQuery{Session: "training", From: 1, To: 9}
	require.NoError(t, s.ScanScopes(t.Context(), q, nil, func(x *store.Span) error { got = append(got, *x); return nil }))
	require.Len(t, got, 3)
	assert.Equal(t, b.Spans[0].Attrs, got[0].Attrs)
	assert.Empty(t, got[1].Attrs)
	assert.Empty(t, got[2].Attrs)
	scopes, _, err := analysis.FromReader(s, "", "training").Scopes(t.Context(), 1, 9, 10)
	require.NoError(t, err)
	require.Len(t, scopes, 3)
	assert.Equal(t, []int64{4096, 7}, []int64{scopes[0].CollectiveBytes, scopes[0].Instance})
}

// TestStore_OpPages reads pages whose ends are known from the timeline.
func TestStore_OpPages(t *testing.T) {
	s := openTraining(t, 15)
	info, err := s.Session(t.Context(), "", "training")
	require.NoError(t, err)
	for _, q := range []store.OpQuery{
		{Limit: 700},
		{Limit: 3000, From: info.FirstNs + (info.LastNs-info.FirstNs)/3, Overlapping: true},
		{Limit: 50, From: info.FirstNs + (info.LastNs-info.FirstNs)/10, To: info.LastNs - (info.LastNs-info.FirstNs)/10},
	} {
		t.Run(fmt.Sprint(q.Limit), func(t *testing.T) {
			q.Session = "training"
			var want, got []store.SpanID
			require.NoError(t, s.ScanOps(t.Context(), store.ScanQuery{Session: q.Session, From: q.From, To: q.To, Overlapping: q.Overlapping}, func(o *store.OpRow) error {
				want = append(want, o.Span)
				return nil
			}))
			v, err := s.open(t.Context(), "", "training", false)
			require.NoError(t, err)
			defer v.close()
			bounded := 0
			for more := true; more; {
				end, err := v.pageEnd(t.Context(), &q, q.Limit)
				require.NoError(t, err)
				page, err := s.Ops(t.Context(), q)
				require.NoError(t, err)
				for i := range page.Rows {
					got = append(got, page.Rows[i].Span)
				}
				last := &page.Rows[len(page.Rows)-1]
				if end > 0 {
					bounded++
					require.Less(t, last.StartNs, end)
				}
				q.After, more = &store.OpCursor{StartNs: last.StartNs, Span: last.Span}, page.More
			}
			assert.Equal(t, want, got)
			assert.Positive(t, bounded)
		})
	}
}

// TestStore_ScanHostStacks checks that a scan reads the stacks before launches, unless the session has
// many different attributes.
func TestStore_ScanHostStacks(t *testing.T) {
	for name, c := range map[string]struct{ batches, different, want int }{
		"few":  {1, 3, 900},
		"many": {5, 900, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), Config{Directory: t.TempDir()})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close(t.Context())) })
			g := storetest.NewTraining(0)
			for n := range c.batches {
				b := g.Batch(1)
				for i := range c.different {
					text := store.Value{Kind: store.KindString, Str: fmt.Sprintf("load (train.py:%d)", n*c.different+i)}
					b.Extras = append(b.Extras, store.Extra{
						Key: uint64(n*c.different + i + 1), Attrs: store.Attrs{{Key: semconv.CUDALaunchDelayStacktrace, Value: text}},
					})
				}
				for i := range 900 {
					b.Ops[i].Extra = uint32(i%c.different + 1)
				}
				_, err := s.Write(t.Context(), []*store.Batch{b})
				require.NoError(t, err)
			}
			got := 0
			require.NoError(t, s.ScanOps(t.Context(), store.ScanQuery{Session: "training"}, func(o *store.OpRow) error {
				if len(o.Attrs) > 0 {
					require.Equal(t, semconv.CUDALaunchDelayStacktrace, o.Attrs[0].Key)
					got++
				}
				return nil
			}))
			require.Equal(t, c.want, got)
		})
	}
}

func TestStore_ScopeSums(t *testing.T) {
	s := openTraining(t, 2)
	sums := func() (list []store.ScopeSum) {
		require.NoError(t, s.ScopeSums(t.Context(), store.ScanQuery{Session: "training"}, 24, func(x *store.ScopeSum) error {
			list = append(list, *x)
			return nil
		}))
		return list
	}
	before := sums()
	var starts, ends uint64
	for i, x := range before {
		assert.True(t, i == 0 || x.FromNs > before[i-1].FromNs)
		starts ^= x.Starts
		ends ^= x.Ends
	}
	assert.Equal(t, starts, ends)
	assert.NotZero(t, starts)
	late := store.Span{StartNs: before[1].FromNs, EndNs: before[2].FromNs, Span: 7, Name: "late", Operation: semconv.CUDAOperationScope}
	for range 2 { // the second one is a repetition
		_, err := s.Write(t.Context(), []*store.Batch{{Session: "training", Spans: []store.Span{late}}})
		require.NoError(t, err)
		after := sums()
		assert.NotEqual(t, before[1].Starts, after[1].Starts)
		assert.Equal(t, before[1].Ends, after[1].Ends)
		assert.Equal(t, before[1].Starts^after[1].Starts, before[2].Ends^after[2].Ends)
		assert.Equal(t, before[3:], after[3:])
	}
}

func TestStore_Keep(t *testing.T) {
	s := openTraining(t, 1)
	ctx := t.Context()
	require.ErrorIs(t, s.Keep(ctx, "", "other", "a", []byte{1}), store.ErrNotFound)
	require.ErrorIs(t, s.Keep(ctx, "", "training", "../a", []byte{1}), store.ErrInvalid)
	for _, name := range []string{"b", "a-1", "b"} {
		require.NoError(t, s.Keep(ctx, "", "training", name, []byte(name+"!")))
	}
	names, err := s.Kept(ctx, "", "training")
	require.NoError(t, err)
	assert.Equal(t, []string{"a-1", "b"}, names)
	dir := s.dir
	require.NoError(t, s.Close(ctx))
	s, err = Open(ctx, Config{Directory: dir})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close(ctx)) }()
	b, err := s.KeptValue(ctx, "", "training", "b")
	require.NoError(t, err)
	assert.Equal(t, "b!", string(b))
	for range 2 {
		require.NoError(t, s.Keep(ctx, "", "training", "b", nil))
	}
	b, err = s.KeptValue(ctx, "", "training", "b")
	require.NoError(t, err)
	assert.Nil(t, b)
	require.NoError(t, s.Delete(ctx, "", "training"))
	left, err := filepath.Glob(filepath.Join(dir, "_", "sessions", "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
	_, err = os.Stat(dir)
	require.NoError(t, err)
}

// TestBucketSQL compares the buckets of DuckDB with those of Go around each power of two.
func TestBucketSQL(t *testing.T) {
	s := openTraining(t, 1)
	rng := rand.New(rand.NewPCG(1, 2))
	times := []int64{-1, 0, store.MaxTimeNs}
	for e := range 62 {
		p := int64(1) << e
		times = append(times, p-1, p, p+1, p+rng.Int64N(p), p+rng.Int64N(p))
	}
	n := 0
	err := eachRow(t.Context(), s.db, "SELECT d, "+bucketSQL+" FROM (SELECT unnest(?::BIGINT[]) AS d)", []any{times}, func(r *sql.Rows) error {
		var d int64
		var bucket uint16
		err := r.Scan(&d, &bucket)
		assert.Equal(t, store.Bucket(d), bucket, d)
		n++
		return err
	})
	require.NoError(t, err)
	assert.Len(t, times, n)
}
