// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"bytes"
	"context"
	"encoding/gob"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/keys"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// exported returns a store with one session of random data, and the file of that session.
func exported(tb testing.TB) (s *Store, session, file string) {
	ctx := context.Background()
	s, err := Open(ctx, Config{Directory: tb.TempDir()})
	require.NoError(tb, err)
	tb.Cleanup(func() { assert.NoError(tb, s.Close(ctx)) })
	batches := storetest.Generate(11, storetest.Options{Projects: 1, Sessions: 1, Ops: 300})
	for _, b := range batches {
		keys.Set(b)
	}
	_, err = s.Write(ctx, batches)
	require.NoError(tb, err)
	list, err := s.Sessions(ctx, store.SessionQuery{Project: batches[0].Project})
	require.NoError(tb, err)
	require.NotEmpty(tb, list)
	session = list[0].ID
	file = filepath.Join(tb.TempDir(), "x.duckdb")
	require.NoError(tb, s.Export(ctx, list[0].Project, session, file))
	return s, session, file
}

func TestImport_Twice(t *testing.T) {
	ctx := context.Background()
	from, session, file := exported(t)
	to := openStore(t, Config{Directory: t.TempDir()})
	var infos []store.SessionInfo
	for range 2 {
		got, err := to.Import(ctx, "team", file)
		require.NoError(t, err)
		require.Equal(t, session, got)
		info, err := to.Session(ctx, "team", session)
		require.NoError(t, err)
		assert.True(t, info.Sealed)
		assert.True(t, info.Pinned)
		deleted, err := to.Retain(ctx, store.Retention{MaxAge: time.Second})
		require.NoError(t, err)
		assert.Empty(t, deleted)
		info.Bytes = 0
		infos = append(infos, info)
	}
	want, err := from.Session(ctx, "", session)
	require.NoError(t, err)
	assert.Equal(t, want.Counts, infos[0].Counts)
	assert.Equal(t, want.Operations, infos[0].Operations)
	assert.Equal(t, want.Resource, infos[0].Resource)
	assert.Equal(t, infos[0], infos[1], "the second import changes nothing")
	assert.Zero(t, to.Stats().Rejected)
	sameRows(t, from, "", to, "team", session)
	require.NoError(t, to.Pin(ctx, "team", session, false))
	_, err = to.Import(ctx, "team", file)
	require.NoError(t, err)
	info, err := to.Session(ctx, "team", session)
	require.NoError(t, err)
	assert.False(t, info.Pinned, "of a session that existed")
}

// sameRows compares rows and statistics of a session in two projects.
func sameRows(t *testing.T, want *Store, wantProject string, got *Store, gotProject, session string) {
	ctx := context.Background()
	// The encoding also compares NaN and what pointers refer to.
	ask := func(s *Store, project string) (answers [][]byte) {
		add := func(a any, err error) {
			require.NoError(t, err)
			var b bytes.Buffer
			require.NoError(t, gob.NewEncoder(&b).Encode(a))
			answers = append(answers, b.Bytes())
		}
		page, err := s.Ops(ctx, store.OpQuery{Project: project, Session: session, Limit: 20_000})
		for i := range page.Rows {
			page.Rows[i].Lane, page.Rows[i].Shape, page.Rows[i].PlaceRef.Key = 0, 0, 0
		}
		add(page.Rows, err)
		add(s.Spans(ctx, store.SpanQuery{Project: project, Session: session, Limit: 20_000}))
		add(s.Samples(ctx, store.SampleQuery{Project: project, Session: session, ByLine: true, ByPC: true}))
		add(s.Logs(ctx, store.LogQuery{Project: project, Session: session, Limit: 10_000}))
		add(s.Scopes(ctx, project, session))
		add(s.Kernels(ctx, store.KernelQuery{Project: project, Session: session}))
		list, err := s.Series(ctx, store.SeriesQuery{Project: project, Session: session})
		add(list, err)
		for _, i := range list {
			add(s.Points(ctx, store.PointQuery{Project: project, Session: session, Series: i.Key}))
		}
		return answers
	}
	a, b := ask(got, gotProject), ask(want, wantProject)
	require.Len(t, a, len(b))
	for i := range b {
		assert.True(t, bytes.Equal(b[i], a[i]), "answer %d", i)
	}
}

// damage changes a file as a disk, a transfer or an attacker does.
func damage(r *rand.Rand, b []byte) []byte {
	b = append([]byte(nil), b...)
	for range 1 + r.IntN(3) {
		if len(b) < 100 {
			return b
		}
		at := r.IntN(len(b))
		switch r.IntN(6) {
		case 0:
			b = b[:at]
		case 1:
			at &^= 4095
			clear(b[at:min(at+4096, len(b))])
		case 2:
			b[at] ^= 1 << r.IntN(8)
		case 3:
			b[r.IntN(min(len(b), 12288))] = byte(r.Uint32()) // the headers
		case 4:
			copy(b[at:], b[r.IntN(len(b)):])
		case 5:
			for i := range b[at:min(at+64, len(b))] {
				b[at+i] = byte(r.Uint32())
			}
		}
	}
	return b
}

// TestImport_Damaged imports changed files. A file either gives an error that names it, or all its rows.
func TestImport_Damaged(t *testing.T) {
	ctx := context.Background()
	from, session, file := exported(t)
	want, err := from.Session(ctx, "", session)
	require.NoError(t, err)
	sound, err := os.ReadFile(file)
	require.NoError(t, err)
	to := openStore(t, Config{Directory: t.TempDir()})
	rounds, failed := 40, 0
	if os.Getenv("GPUFLIGHT_SOAK") == "1" {
		rounds = 2000
	}
	for seed := range uint64(rounds) {
		path := filepath.Join(t.TempDir(), "damaged.duckdb")
		require.NoError(t, os.WriteFile(path, damage(rand.New(rand.NewPCG(seed, 5)), sound), 0o600))
		got, err := to.Import(ctx, "", path)
		if err != nil {
			failed++
			require.ErrorContains(t, err, path, "seed %d", seed)
			require.NotContains(t, err.Error(), "\n", "seed %d", seed)
			continue
		}
		info, err := to.Session(ctx, "", got)
		require.NoError(t, err, "seed %d", seed)
		require.Equal(t, want.Counts, info.Counts, "seed %d", seed)
	}
	t.Logf("%d of %d files failed", failed, rounds)
	assert.Greater(t, failed, rounds/4)
	_, err = to.Import(ctx, "", file)
	require.NoError(t, err, "the store works")
}

func TestImport_Foreign(t *testing.T) {
	ctx := context.Background()
	_, _, file := exported(t)
	sound, err := os.ReadFile(file)
	require.NoError(t, err)
	to := openStore(t, Config{Directory: t.TempDir()})
	for name, test := range map[string]struct{ script, message string }{
		"no table":       {"DROP TABLE {db}.ops", "table ops is not that"},
		"another table":  {"CREATE TABLE {db}.other (a INTEGER)", "unknown table"},
		"another column": {"ALTER TABLE {db}.ops ADD COLUMN x INTEGER", "table ops is not that"},
		"view":           {"CREATE VIEW {db}.v AS SELECT 1 AS a", "views"},
		"macro":          {"CREATE MACRO {db}.m(x) AS x + 1", "functions"},
		"newer":          {"UPDATE {db}.meta SET value = '99' WHERE key = 'schema_version'", "newer than this build"},
		"no version":     {"DELETE FROM {db}.meta", "schema version"},
		"no session":     {"UPDATE {db}.meta SET value = '' WHERE key = 'session'", "without a session"},
		"time":           {"UPDATE {db}.ops SET start_ns = -5", "outside the limits"},
		"reference":      {"DELETE FROM {db}.shapes", "absent entry of shapes"},
		"null":           {"UPDATE {db}.ops SET span = NULL", ""},
		"attributes":     {"UPDATE {db}.spans SET attrs = 'x'::BLOB", ""},
		"overflow":       {"UPDATE {db}.ops SET dur_ns = 9223372036854775807", "outside the limits"},
	} {
		t.Run(name, func(t *testing.T) {
			// DuckDB writes below the directory of the store only.
			path := filepath.Join(to.dir, "changed.duckdb")
			require.NoError(t, os.WriteFile(path, sound, 0o600))
			defer func() { require.NoError(t, removeFile(path)) }()
			seg := &segment{file: path}
			require.NoError(t, to.acquire(ctx, seg))
			_, err := to.writer.ExecContext(ctx, strings.ReplaceAll(test.script, "{db}", seg.alias))
			require.NoError(t, err)
			to.release(seg)
			require.NoError(t, to.detach(ctx, seg))
			_, err = to.Import(ctx, "", path)
			require.ErrorContains(t, err, test.message)
			require.ErrorContains(t, err, path)
			t.Log(err)
		})
	}
	for name, content := range map[string][]byte{"empty": {}, "text": []byte("not a database")} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.duckdb")
			require.NoError(t, os.WriteFile(path, content, 0o600))
			_, err := to.Import(ctx, "", path)
			require.ErrorContains(t, err, path)
			t.Log(err)
		})
	}
	_, err = to.Import(ctx, "", to.dir)
	require.ErrorContains(t, err, "not a regular file")
	assert.Zero(t, to.Stats().Sessions)
}

// FuzzImport imports changed files.
func FuzzImport(f *testing.F) {
	ctx := context.Background()
	_, _, file := exported(f)
	sound, err := os.ReadFile(file)
	require.NoError(f, err)
	to, err := Open(ctx, Config{Directory: f.TempDir()})
	require.NoError(f, err)
	f.Cleanup(func() { assert.NoError(f, to.Close(ctx)) })
	for seed := range uint64(4) {
		f.Add(seed, []byte{}, uint32(0))
	}
	f.Fuzz(func(t *testing.T, seed uint64, patch []byte, at uint32) {
		b := sound
		if seed != 0 {
			b = damage(rand.New(rand.NewPCG(seed, 6)), sound)
		}
		b = append([]byte(nil), b...)
		if len(b) > 0 {
			copy(b[int(at)%len(b):], patch)
		}
		path := filepath.Join(t.TempDir(), "x.duckdb")
		require.NoError(t, os.WriteFile(path, b, 0o600))
		if _, err := to.Import(ctx, "", path); err != nil {
			require.ErrorContains(t, err, path)
		}
	})
}
