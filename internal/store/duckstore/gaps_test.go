// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// TestStore_GapsOfSegments writes kernels to many segments, some of them late, and extends the rollup
// after each call. A store with one segment and without the rollup answers the same.
func TestStore_GapsOfSegments(t *testing.T) {
	ctx := context.Background()
	got := openStore(t, Config{Directory: t.TempDir(), SegmentOps: 150})
	got.gapTail, got.gapLag = 1, 1e6
	want := openStore(t, Config{Directory: t.TempDir()})
	r := rand.New(rand.NewPCG(5, 6))
	for i := range int64(24) {
		at := i
		if i > 6 && i%3 == 0 {
			at = r.Int64N(i) // between kernels that are stored
		}
		b := batch("a", 1e18+at*1e8+r.Int64N(1e8), 60)
		b.Logs = nil
		if i%5 == 0 {
			b.Ops[59].EndNs += r.Int64N(4e8) // reaches into later segments
		}
		for _, s := range []*Store{got, want} {
			_, err := s.Write(ctx, []*store.Batch{b})
			require.NoError(t, err)
		}
		for _, q := range []store.GapQuery{
			{}, {Limit: 3}, {MinNs: 5e7}, {From: 1e18 + i*5e7, To: 1e18 + i*9e7 + 1}, {From: 1e18 + i*7e7}, {To: 1e18 + i*7e7 + 1},
		} {
			q.Session = "a"
			answer, err := got.Gaps(ctx, q)
			require.NoError(t, err)
			expected, err := want.Gaps(ctx, q)
			require.NoError(t, err)
			for _, list := range [][]store.Gap{answer.Longest, expected.Longest} {
				for j := range list {
					list[j].AfterShape = 0
				}
			}
			require.Equal(t, expected, answer, "call %d, %+v", i, q)
		}
	}
	assert.Greater(t, got.Stats().Segments, int64(3))
	bins := got.sessions[sessionKey{"", "a"}].segments[1].gapBin
	assert.Positive(t, bins, "the rollup of the second segment has bins")
}

// TestStore_CatchUp writes a late kernel, and nothing after it. The first reader of gaps or busy time adds what gap_bins
// lacks.
func TestStore_CatchUp(t *testing.T) {
	ctx := context.Background()
	for name, read := range map[string]func(*Store) (any, error){
		"gaps": func(s *Store) (any, error) { return s.Gaps(ctx, store.GapQuery{Session: "a"}) },
		"busy": func(s *Store) (any, error) {
			return s.Busy(ctx, store.BusyQuery{Session: "a", Idle: true, Intervals: []store.Interval{{From: 1e18, To: 1e18 + 2e9}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := openStore(t, Config{Directory: t.TempDir(), SegmentOps: 500}), openStore(t, Config{Directory: t.TempDir()})
			got.gapTail, got.gapLag, got.gapPart = 1, 1e6, 100
			for i := range int64(20) {
				at := 1e18 + i*1e8
				if i == 19 {
					at = 1e18 + 25e7
				}
				b := batch("a", at, 60)
				b.Logs = nil
				write(t, got, b)
				write(t, want, b)
			}
			_, behind := got.gapsBehind(sessionKey{"", "a"})
			require.True(t, behind)
			answer, err := read(got)
			require.NoError(t, err)
			expected, err := read(want)
			require.NoError(t, err)
			assert.Equal(t, expected, answer)
			_, behind = got.gapsBehind(sessionKey{"", "a"})
			assert.False(t, behind)
		})
	}
}

// TestOpen_LostGaps loses the end of the log of a segment, with the gaps that it had.
func TestOpen_LostGaps(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := openStore(t, Config{Directory: dir, SegmentOps: 150})
	for i := range int64(12) {
		b := batch("a", 1e18+i*1e8, 60)
		b.Logs = nil
		write(t, s, b)
	}
	require.NoError(t, s.Seal(ctx, "", "a"))
	want, err := s.Gaps(ctx, store.GapQuery{Session: "a"})
	require.NoError(t, err)
	require.EqualValues(t, 12*60-1, want.Count)
	segments := s.sessions[sessionKey{"", "a"}].segments
	require.Greater(t, len(segments), 2)
	_, err = s.db.Exec("DELETE FROM " + segments[1].alias + ".gap_bins")
	require.NoError(t, err)
	torn := filepath.Join(t.TempDir(), "torn")
	require.NoError(t, os.CopyFS(torn, os.DirFS(dir))) // with the log, which has the rows of a moment
	require.FileExists(t, filepath.Join(torn, "_", "sessions", "a", "2.duckdb.wal"))
	s = openStore(t, Config{Directory: torn})
	got, err := s.Gaps(ctx, store.GapQuery{Session: "a"})
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// TestStore_GapsAtBoundary starts segments in the middle of a bin, and extends the rollup before the last
// segment has one.
func TestStore_GapsAtBoundary(t *testing.T) {
	ctx := context.Background()
	for _, seal := range []bool{false, true} {
		got := openStore(t, Config{Directory: t.TempDir(), SegmentOps: 100})
		got.gapTail, got.gapLag = 1, 1e8
		want := openStore(t, Config{Directory: t.TempDir()})
		for i := range int64(30) {
			b := batch("a", 1e18+i*3e6, 60)
			b.Logs = nil
			write(t, got, b)
			write(t, want, b)
			if seal && i%4 == 3 {
				require.NoError(t, got.Seal(ctx, "", "a"))
			}
			answer, err := got.Gaps(ctx, store.GapQuery{Session: "a"})
			require.NoError(t, err)
			expected, err := want.Gaps(ctx, store.GapQuery{Session: "a"})
			require.NoError(t, err)
			require.Equal(t, expected, answer, "call %d", i)
		}
	}
}

// TestStore_GapsUntil has many kernels in a tenth of the lag.
func TestStore_GapsUntil(t *testing.T) {
	s := &Store{gapLag: gapLag, denseTail: 1000}
	var list []gapKernel
	for i := range int64(4000) {
		list = append(list, gapKernel{start: 1e18 + i*gapLag/40_000})
	}
	newest := list[len(list)-1].start
	tail := func(late int64) (n int) {
		to := s.gapsUntil(&session{late: late}, newest, list[:3000], list[3000:])
		for _, k := range list {
			if k.start >= to {
				n++
			}
		}
		return n
	}
	bin := 40_000 >> (30 - gapLevel)
	assert.InDelta(t, 1000+bin/2, tail(0), float64(bin/2+1))
	assert.InDelta(t, 2000+bin/2, tail(gapLag/40), float64(bin/2+1), "late kernels")
	s.denseTail = 4000
	assert.Equal(t, 4000, tail(0))
}
