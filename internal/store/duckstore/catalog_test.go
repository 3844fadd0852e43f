// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// TestCatalog_Derived opens a store with its catalogue, without it, with a damaged one, and with one that
// is older than a segment. The sessions are the same, and the catalogue saves opening segments.
func TestCatalog_Derived(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s, err := Open(ctx, Config{Directory: dir, SegmentOps: 100})
	require.NoError(t, err)
	for i := range int64(3) {
		for _, id := range []string{"a", "b", ""} {
			_, err = s.Write(ctx, []*store.Batch{batch(id, 1e18+i*1e9, 100)})
			require.NoError(t, err)
		}
	}
	require.NoError(t, s.Pin(ctx, "", "a", true))
	require.NoError(t, s.Seal(ctx, "", "b"))
	want, err := s.Sessions(ctx, store.SessionQuery{})
	require.NoError(t, err)
	require.Len(t, want, 2)
	require.NoError(t, s.Close(ctx))
	catalog := filepath.Join(dir, catalogFile)
	whole, err := os.ReadFile(catalog)
	require.NoError(t, err)
	segments := 7
	for name, test := range map[string]struct {
		prepare func() error
		known   int
	}{
		"whole":     {func() error { return nil }, segments},
		"absent":    {func() error { return os.Remove(catalog) }, 0},
		"truncated": {func() error { return os.WriteFile(catalog, whole[:len(whole)/2], 0o600) }, 0},
		"changed": {func() error {
			b := slices.Clone(whole)
			b[len(b)/2]++
			return os.WriteFile(catalog, b, 0o600)
		}, 0},
		"older": {func() error {
			return os.Chtimes(filepath.Join(dir, "_", "sessions", "a", "1.duckdb"), time.Time{}, time.Now())
		}, segments - 1},
	} {
		t.Run(name, func(t *testing.T) {
			// Close writes the catalogue again.
			require.NoError(t, openStore(t, Config{Directory: dir}).Close(ctx))
			require.NoError(t, test.prepare())
			probe := &Store{dir: dir}
			assert.Len(t, probe.readCatalog(), test.known)
			s := openStore(t, Config{Directory: dir})
			got, err := s.Sessions(ctx, store.SessionQuery{})
			require.NoError(t, err)
			for i := range got {
				want[i].Bytes, got[i].Bytes = 0, 0
			}
			assert.Equal(t, want, got)
			assert.EqualValues(t, segments, s.Stats().Segments)
			// The writer knows the newest rows.
			r, err := s.Write(ctx, []*store.Batch{batch("a", 1e18+2e9, 100)})
			require.NoError(t, err)
			assert.Zero(t, r.Written)
			assert.NotZero(t, r.Duplicates)
		})
	}
}

// BenchmarkCatalog opens a store of 1,000 sessions (10,000 with GPUFLIGHT_SOAK=1) with and without its
// catalogue, and lists sessions.
func BenchmarkCatalog(b *testing.B) {
	ctx := context.Background()
	sessions := 1000
	if os.Getenv("GPUFLIGHT_SOAK") == "1" {
		sessions = 10_000
	}
	dir := b.TempDir()
	s, err := Open(ctx, Config{Directory: dir})
	require.NoError(b, err)
	for i := range sessions {
		x := batch("session"+strconv.Itoa(i), 1e18+int64(i)*1e9, 10)
		x.Origins[1].Resource = store.Attrs{{Key: "host.name", Value: store.Value{Kind: store.KindString, Str: "host" + strconv.Itoa(i%100)}}}
		_, err = s.Write(ctx, []*store.Batch{x})
		require.NoError(b, err)
	}
	require.NoError(b, s.Close(ctx))
	for _, name := range []string{"Without", "With"} {
		if name == "Without" {
			require.NoError(b, os.Remove(filepath.Join(dir, catalogFile)))
		}
		begin := time.Now()
		s, err = Open(ctx, Config{Directory: dir})
		require.NoError(b, err)
		took := time.Since(begin)
		require.EqualValues(b, sessions, s.Stats().Sessions)
		b.Run("Open/"+name, func(b *testing.B) {
			b.ReportMetric(float64(took.Milliseconds()), "ms")
			b.ReportMetric(0, "ns/op")
		})
		if name == "With" {
			for _, q := range []store.SessionQuery{{}, {Limit: 1000}, {Host: "host7"}, {Text: "session999"}} {
				b.Run(fmt.Sprintf("Sessions/limit=%d,host=%s,text=%s", q.Limit, q.Host, q.Text), func(b *testing.B) {
					var times []time.Duration
					for b.Loop() {
						begin := time.Now()
						_, err := s.Sessions(ctx, q)
						require.NoError(b, err)
						times = append(times, time.Since(begin))
					}
					slices.Sort(times)
					b.ReportMetric(float64(times[len(times)*95/100].Microseconds())/1000, "ms-p95")
				})
			}
		}
		require.NoError(b, s.Close(ctx))
	}
}
