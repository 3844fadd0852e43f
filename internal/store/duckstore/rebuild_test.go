// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// TestRebuildChains delivers random sessions in disorder, in one or several segments, and makes their chains stale. The
// chains and sums that are built again are those that the rows give.
func TestRebuildChains(t *testing.T) {
	ctx := context.Background()
	states, rebuilt := map[uint8]bool{}, 0
	for seed := range uint64(6) {
		s := openStore(t, Config{Directory: t.TempDir(), SegmentOps: int64(20 + 1000*(seed%2)), Threads: 1})
		s.rebuildPart = int64(10 + 1000*(seed%3))
		for _, call := range storetest.Deliver(storetest.Generate(seed, storetest.Options{Projects: 1, Sessions: 1, Ops: 200}), seed) {
			_, err := s.Write(ctx, call)
			require.NoError(t, err)
		}
		for k, sess := range s.sessions {
			if k.session == "" {
				continue
			}
			// Twice: a rebuild of chains that are right keeps them.
			for range 2 {
				require.NoError(t, s.rebuildChains(ctx, sess))
				assert.False(t, sess.stale())
				compareChains(t, s, k, fmt.Sprintf("seed %d", seed))
			}
			v, err := s.open(ctx, k.project, k.session, false)
			require.NoError(t, err)
			for _, state := range table(t, v, "SELECT DISTINCT state FROM {spans} JOIN "+latestChains+" c ON c.id = chain") {
				states[state[0]-'0'] = true
			}
			v.close()
			rebuilt++
		}
	}
	assert.Equal(t, 6, rebuilt)
	assert.Equal(t, map[uint8]bool{chainInside: true, chainOutside: true, chainBoundary: true, chainTwin: true}, states)
}

// TestStore_RenamedSpans changes the names and parents of stored spans of a session that is too large for a tree in
// memory. Readers get what a store has that received the final spans at once, also after the store was opened again,
// and after rows were lost.
func TestStore_RenamedSpans(t *testing.T) {
	ctx := context.Background()
	cfg := Config{Directory: t.TempDir(), SegmentOps: 10_000}
	s, want := openStore(t, cfg), openStore(t, Config{Directory: t.TempDir()})
	s.largeTree, s.rebuildPart = 100, 500
	g, r := storetest.NewTraining(0), rand.New(rand.NewPCG(1, 2))
	for range 30 {
		b := g.Batch(1)
		final := *b
		final.Spans = slices.Clone(b.Spans)
		for i := range final.Spans {
			p := &final.Spans[i]
			switch r.IntN(10) {
			case 0:
				p.Name = "renamed"
			case 1:
				p.Parent = b.Spans[r.IntN(len(b.Spans))].Span // a cycle too
			default:
				continue
			}
			p.EndNs++
		}
		for _, call := range []struct {
			s *Store
			b *store.Batch
		}{{s, b}, {s, &final}, {want, &final}} {
			_, err := call.s.Write(ctx, []*store.Batch{call.b})
			require.NoError(t, err)
		}
	}
	sess := s.sessions[sessionKey{"", "training"}]
	require.Greater(t, len(sess.segments), 1)
	require.True(t, sess.stale())
	sameAnswers(t, s, want)
	assert.False(t, sess.stale(), "the reader has waited for the rebuild")
	assert.Zero(t, s.Stats().Failures)
	rollupsEqualRows(t, s, "training")

	logs := map[string]bool{sess.segments[1].file: true}
	require.NoError(t, s.distrustChains(ctx, sess, logs))
	require.False(t, sess.stale(), "the session is large")
	s.largeTree = largeTree
	require.NoError(t, s.distrustChains(ctx, sess, logs))
	require.True(t, sess.stale())
	require.NoError(t, s.Close(ctx))
	s = openStore(t, cfg)
	s.largeTree = 100
	require.True(t, s.sessions[sessionKey{"", "training"}].stale(), "a crash leaves it stale")
	ended, cancel := context.WithTimeout(ctx, time.Nanosecond)
	defer cancel()
	_, err := s.Scopes(ended, "", "training")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	sameAnswers(t, s, want)
	require.False(t, s.sessions[sessionKey{"", "training"}].stale())
	rollupsEqualRows(t, s, "training")
}

// TestRebuildChains_LostSegment opens a store without one of its files, and then with it again.
func TestRebuildChains_LostSegment(t *testing.T) {
	ctx := context.Background()
	cfg := Config{Directory: t.TempDir(), SegmentOps: 5000}
	s, want := openStore(t, cfg), openStore(t, Config{Directory: t.TempDir()})
	writeTraining(t, 20, s, want)
	key := sessionKey{"", "training"}
	require.Greater(t, len(s.sessions[key].segments), 2)
	file := s.sessions[key].segments[1].file
	require.NoError(t, s.Close(ctx))

	require.NoError(t, os.Rename(file, file+".lost"))
	s = openStore(t, cfg)
	s.largeTree = 1
	require.True(t, s.sessions[key].stale())
	_, err := s.Scopes(ctx, "", "training")
	require.NoError(t, err)
	require.False(t, s.sessions[key].stale())
	compareChains(t, s, key, "lost")
	require.NoError(t, s.Close(ctx))

	require.NoError(t, os.Rename(file+".lost", file))
	s = openStore(t, cfg)
	s.largeTree = 1
	require.True(t, s.sessions[key].stale(), "the segment has chains that others do not know")
	sameAnswers(t, s, want)
	rollupsEqualRows(t, s, "training")
}
