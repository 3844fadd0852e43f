// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// segmentOf returns the only segment of a session in a store directory.
func segmentOf(dir, session string) string {
	return filepath.Join(dir, "_", "sessions", session, "1.duckdb")
}

// TestOpen_Damaged changes the file or the log of a session before the store opens. The other session
// works, and the session gets its data again.
func TestOpen_Damaged(t *testing.T) {
	ctx := context.Background()
	// The directory of a store in use has logs, as after a kill.
	source := t.TempDir()
	used := openStore(t, Config{Directory: source})
	for _, id := range []string{"good", "bad"} {
		_, err := used.Write(ctx, []*store.Batch{batch(id, 1e18, 2000)})
		require.NoError(t, err)
	}
	require.NoError(t, used.Close(ctx))
	used = openStore(t, Config{Directory: source})
	for _, id := range []string{"good", "bad"} {
		_, err := used.Write(ctx, []*store.Batch{batch(id, 1e18+1e10, 2000)})
		require.NoError(t, err)
	}
	require.FileExists(t, segmentOf(source, "bad")+".wal")

	type change func(file string, b []byte) []byte
	whole := map[string]change{
		"empty":    func(string, []byte) []byte { return nil },
		"one byte": func(_ string, b []byte) []byte { return b[:1] },
		"garbage":  func(_ string, b []byte) []byte { _, _ = rand.NewChaCha8([32]byte{1}).Read(b); return b },
		"text":     func(string, []byte) []byte { return []byte("not a database") },
		"foreign": func(_ string, b []byte) []byte {
			return bytes.Replace(b, []byte("schema_version"), []byte("schema-version"), 1)
		},
	}
	rounds := uint64(6)
	if os.Getenv("GPUFLIGHT_SOAK") == "1" {
		rounds = 300
	}
	for seed := range rounds {
		whole[fmt.Sprintf("damage %d", seed)] = func(_ string, b []byte) []byte { return damage(rand.New(rand.NewPCG(seed, 9)), b) }
		whole[fmt.Sprintf("truncated %d", seed)] = func(_ string, b []byte) []byte {
			return b[:rand.New(rand.NewPCG(seed, 10)).IntN(len(b))]
		}
	}
	for _, suffix := range []string{"", ".wal"} {
		for name, change := range whole {
			t.Run(fmt.Sprintf("%s%s", name, suffix), func(t *testing.T) {
				dir := t.TempDir()
				require.NoError(t, os.CopyFS(filepath.Join(dir, "_"), os.DirFS(filepath.Join(source, "_"))))
				file := segmentOf(dir, "bad") + suffix
				b, err := os.ReadFile(file)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(file, change(file, b), 0o600))
				var named []string
				s := openStore(t, Config{Directory: dir, Damaged: func(file string, reason error) {
					named = append(named, file)
					t.Log(file, reason)
				}})
				assert.EqualValues(t, len(named), s.Stats().Damaged)
				for _, f := range named {
					assert.FileExists(t, f)
					assert.True(t, strings.HasPrefix(f, segmentOf(dir, "bad")+".damaged"), f)
				}
				info, err := s.Session(ctx, "", "good")
				require.NoError(t, err)
				assert.EqualValues(t, 4000, info.Counts["ops"])
				// The sender delivers everything again.
				for _, start := range []int64{1e18, 1e18 + 1e10} {
					_, err = s.Write(ctx, []*store.Batch{batch("bad", start, 2000)})
					if err != nil {
						require.ErrorIs(t, err, store.ErrRetry)
						_, err = s.Write(ctx, []*store.Batch{batch("bad", start, 2000)})
						require.NoError(t, err)
					}
				}
				info, err = s.Session(ctx, "", "bad")
				require.NoError(t, err)
				assert.EqualValues(t, 4000, info.Counts["ops"])
				rollupsEqualRows(t, s, "bad")
			})
		}
	}
}

// TestOpen_Newer opens a store with a file of a newer schema version. A store of such files is an error.
// Beside others, the file is set aside as it is, and a build that knows its version would use it again.
func TestOpen_Newer(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s, err := Open(ctx, Config{Directory: dir})
	require.NoError(t, err)
	_, err = s.Write(ctx, []*store.Batch{batch("a", 1e18, 10)})
	require.NoError(t, err)
	seg := s.sessions[sessionKey{"", "a"}].segments[0]
	require.NoError(t, s.setMeta(ctx, seg, "schema_version", "99"))
	require.NoError(t, s.Close(ctx))
	file := segmentOf(dir, "a")
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, catalogFile)))
	_, err = Open(ctx, Config{Directory: dir})
	require.EqualError(t, err, "open store "+dir+": "+file+": schema version 99: newer than this build, which reads 1 to "+fmt.Sprint(schemaVersion())+": use the build that wrote it or another directory")
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got))
	other := t.TempDir()
	s = openStore(t, Config{Directory: other})
	write(t, s, batch("b", 1e18, 10))
	require.NoError(t, s.Close(ctx))
	require.NoError(t, os.CopyFS(filepath.Join(dir, "_", "sessions", "b"), os.DirFS(filepath.Join(other, "_", "sessions", "b"))))
	for range 2 {
		// Another build does not use the catalogue of this one.
		_ = os.Remove(filepath.Join(dir, catalogFile))
		var reasons []string
		s, err = Open(ctx, Config{Directory: dir, Damaged: func(name string, reason error) {
			assert.Equal(t, file+".newer", name)
			reasons = append(reasons, reason.Error())
		}})
		require.NoError(t, err)
		assert.Equal(t, []string{"schema version 99: newer than this build, which reads 1 to " + fmt.Sprint(schemaVersion())}, reasons)
		require.NoError(t, s.Close(ctx))
		got, err := os.ReadFile(file + ".newer")
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want, got))
	}
}

// TestStore_DamagedInUse changes the file of a session while the store is open.
func TestStore_DamagedInUse(t *testing.T) {
	ctx := context.Background()
	for name, attached := range map[string]bool{"attached": true, "closed": false} {
		for _, missing := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, missing %v", name, missing), func(t *testing.T) {
				dir := t.TempDir()
				s := openStore(t, Config{Directory: dir})
				for _, id := range []string{"good", "bad"} {
					_, err := s.Write(ctx, []*store.Batch{batch(id, 1e18, 2000)})
					require.NoError(t, err)
					require.NoError(t, s.Seal(ctx, "", id))
				}
				seg := s.sessions[sessionKey{"", "bad"}].segments[0]
				require.NoError(t, s.detach(ctx, seg))
				if attached {
					require.NoError(t, s.acquire(ctx, seg))
					s.release(seg)
				}
				file := segmentOf(dir, "bad")
				if missing {
					require.NoError(t, os.Remove(file))
				} else {
					b, err := os.ReadFile(file)
					require.NoError(t, err)
					_, _ = rand.NewChaCha8([32]byte{1}).Read(b[4096*3:])
					require.NoError(t, os.WriteFile(file, b, 0o600))
				}
				// What DuckDB has in memory may still be answered.
				_, _ = s.Ops(ctx, store.OpQuery{Session: "bad"})
				_, _ = s.Lanes(ctx, "", "bad")
				s.checks.Wait()
				for range 3 {
					_, _ = s.Write(ctx, []*store.Batch{batch("bad", 1e18, 2000)})
				}
				page, err := s.Ops(ctx, store.OpQuery{Session: "good", Limit: 20_000})
				require.NoError(t, err)
				assert.Len(t, page.Rows, 2000)
				if !missing || !attached { // an open file keeps its content after it is removed
					page, err = s.Ops(ctx, store.OpQuery{Session: "bad", Limit: 20_000})
					require.NoError(t, err)
					assert.Len(t, page.Rows, 2000)
					assert.EqualValues(t, 1, s.Stats().Damaged)
				}
			})
		}
	}
}

// TestPaths_Restart gives two lists of names the same hash. Their ids stay the same after a restart, in
// whichever order readers ask for them.
func TestPaths_Restart(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	same := func(string) uint32 { return 7 }
	ask := func(lists ...[]string) (ids []uint32) {
		s, err := Open(ctx, Config{Directory: dir})
		require.NoError(t, err)
		_, err = s.Write(ctx, []*store.Batch{batch("a", 1e18, 1)})
		require.NoError(t, err)
		v, err := s.open(ctx, "", "a", false)
		require.NoError(t, err)
		for _, names := range lists {
			ids = append(ids, v.sess.paths.id(names, same))
		}
		v.close()
		require.NoError(t, s.Close(ctx))
		return ids
	}
	first := ask([]string{"a", "b"}, []string{"ab"})
	assert.Equal(t, []uint32{7, 8}, first)
	assert.Equal(t, []uint32{9, 8, 7}, ask([]string{"new"}, []string{"ab"}, []string{"a", "b"}))
	assert.Equal(t, []uint32{7, 9}, ask([]string{"a", "b"}, []string{"new"}))
}
