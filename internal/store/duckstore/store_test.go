// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

func openStore(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close(context.Background())) })
	return s
}

// batch has n kernels of one shape from a start on, one each µs, and a log.
func batch(session string, start int64, n int) *store.Batch {
	b := &store.Batch{
		Session: session, Origins: []store.Origin{{}, {Key: 1, ScopeName: "test"}},
		Lanes:  []store.Lane{{}, {Key: 2, Device: "GPU-1", Stream: store.Some(7)}},
		Shapes: []store.Shape{{}, {Key: 3, Operation: store.OpKernel, Name: "gemm", Grid: []int64{4, 1, 1}}},
		Places: []store.Place{{}, {Key: 4, Trace: store.TraceID{9}, Parent: 1 << 63, ScopePath: "train|step"}},
		Extras: []store.Extra{{}}, Stacks: []store.Stack{{}}, Series: []store.Series{{}},
		Logs: []store.Log{{UID: store.UID{1}, TimeNs: start, Body: store.Value{Kind: store.KindString, Str: "x"}}},
	}
	for i := range n {
		at := start + int64(i)*1000
		b.Ops = append(b.Ops, store.Op{
			StartNs: at, EndNs: at + 500, Span: store.SpanID(1<<63 + uint64(at)), Lane: 1, Shape: 1, Place: 1, Origin: 1,
			LaunchStartNs: store.Some(at - 100), LaunchEndNs: store.Some(at - 40), QueueNs: store.Some(40),
		})
	}
	return b
}

func TestStore_SpanInSegments(t *testing.T) {
	ctx := context.Background()
	s := openStore(t, Config{Directory: t.TempDir(), SegmentOps: 10})
	const id = store.SpanID(77)
	for i := range int64(3) {
		b := batch("a", 1e18+i*1e6, 10)
		if i > 0 {
			b.Ops[3].Span = id
		}
		write(t, s, b)
	}
	require.Len(t, s.sessions[sessionKey{"", "a"}].segments, 3)
	for name, c := range map[string]struct {
		id        store.SpanID
		at, start int64
	}{
		"first segment":                {1<<63 + 1e18 + 5000, 0, 1e18 + 5000},
		"last segment":                 {1<<63 + 1e18 + 2e6 + 9000, 0, 1e18 + 2e6 + 9000},
		"two segments":                 {id, 0, 1e18 + 1e6 + 3000},
		"two segments, with the start": {id, 1e18 + 2e6 + 3000, 1e18 + 2e6 + 3000},
		"none":                         {78, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			op, _, err := s.Span(ctx, "", "a", c.id, c.at)
			if c.start == 0 {
				require.ErrorIs(t, err, store.ErrNotFound)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.start, op.StartNs)
		})
	}
}

func TestStore_Restart(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s, err := Open(ctx, Config{Directory: dir})
	require.NoError(t, err)
	b := batch("a/b", 1e18, 1000)
	r, err := s.Write(ctx, []*store.Batch{b})
	require.NoError(t, err)
	assert.Positive(t, r.Bytes)
	r.Bytes = 0
	assert.Equal(t, store.Result{Written: 1001}, r)
	before, err := s.Session(ctx, "", "a/b")
	require.NoError(t, err)
	_, err = Open(ctx, Config{Directory: dir})
	require.ErrorIs(t, err, store.ErrInUse)
	require.NoError(t, s.Close(ctx))

	s = openStore(t, Config{Directory: dir})
	after, err := s.Session(ctx, "", "a/b")
	require.NoError(t, err)
	before.Bytes, after.Bytes = 0, 0
	assert.Equal(t, before, after)
	r, err = s.Write(ctx, []*store.Batch{b, batch("a/b", 1e18+1e6, 1)})
	require.NoError(t, err)
	r.Bytes = 0
	assert.Equal(t, store.Result{Written: 1, Duplicates: 1002}, r, "the log has the same id")
	op, _, err := s.Span(ctx, "", "a/b", b.Ops[5].Span, 0)
	require.NoError(t, err)
	assert.Equal(t, b.Ops[5].LaunchStartNs, op.LaunchStartNs)
	assert.Equal(t, b.Ops[5].LaunchEndNs, op.LaunchEndNs)
	assert.Equal(t, "train|step", op.PlaceRef.ScopePath)
}

// TestStore_ReservedProjects has projects with names that the store uses in its directory.
func TestStore_ReservedProjects(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s, err := Open(ctx, Config{Directory: dir})
	require.NoError(t, err)
	projects := []string{"tmp", "lock", "catalog", "catalog.new", "baselines.json", "baselines.json.new", "baselines.json.damaged", "Catalog", "catalog2"}
	for _, project := range projects {
		b := batch("a", 1e18, 10)
		b.Project = project
		write(t, s, b)
		require.NoError(t, s.SetBaseline(ctx, project, "main", "a"))
	}
	assert.DirExists(t, filepath.Join(dir, "catalog2", "sessions"))
	require.NoError(t, s.Close(ctx))
	// An earlier build had this folder.
	require.NoError(t, os.Rename(filepath.Join(dir, hashed("catalog.new")), filepath.Join(dir, "catalog.new")))
	s = openStore(t, Config{Directory: dir})
	assert.Zero(t, s.Stats().Damaged)
	for _, project := range projects {
		page, err := s.Ops(ctx, store.OpQuery{Project: project, Session: "a", Limit: 100})
		require.NoError(t, err, project)
		assert.Len(t, page.Rows, 10, project)
		list, err := s.Baselines(ctx, project)
		require.NoError(t, err)
		assert.Equal(t, []store.Baseline{{Name: "main", Session: "a"}}, list, project)
	}
}

func TestStore_DamagedFile(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s, err := Open(ctx, Config{Directory: dir})
	require.NoError(t, err)
	for _, id := range []string{"good", "bad"} {
		_, err = s.Write(ctx, []*store.Batch{batch(id, 1e18, 100)})
		require.NoError(t, err)
	}
	require.NoError(t, s.Close(ctx))
	file := filepath.Join(dir, "_", "sessions", "bad", "1.duckdb")
	require.NoError(t, os.WriteFile(file, []byte("not a database"), 0o600))

	var named []string
	s = openStore(t, Config{Directory: dir, Damaged: func(file string, _ error) { named = append(named, file) }})
	assert.Len(t, named, 1)
	assert.EqualValues(t, 1, s.Stats().Damaged)
	_, err = s.Session(ctx, "", "good")
	require.NoError(t, err)
	_, err = s.Session(ctx, "", "bad")
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = s.Write(ctx, []*store.Batch{batch("bad", 1e18, 100)})
	require.NoError(t, err)
	lanes, err := s.Lanes(ctx, "", "bad")
	require.NoError(t, err)
	assert.EqualValues(t, 100, lanes[0].Count)
}

// TestStore_Segments splits a session after 100 operations. Rows that come again or late meet the
// segment of their time.
func TestStore_Segments(t *testing.T) {
	ctx := context.Background()
	s := openStore(t, Config{Directory: t.TempDir(), SegmentOps: 100, MaxAttached: 2})
	for i := range int64(10) {
		b := batch("a", 1e18+i*1e9, 60)
		b.Logs = nil
		_, err := s.Write(ctx, []*store.Batch{b})
		require.NoError(t, err)
	}
	assert.EqualValues(t, 5, s.Stats().Segments)
	for i := range int64(10) {
		b := batch("a", 1e18+i*1e9, 61)
		b.Logs = nil
		r, err := s.Write(ctx, []*store.Batch{b})
		require.NoError(t, err)
		r.Bytes = 0
		assert.Equal(t, store.Result{Written: 1, Duplicates: 60}, r)
	}
	page, err := s.Ops(ctx, store.OpQuery{Session: "a", Limit: 20_000})
	require.NoError(t, err)
	assert.Len(t, page.Rows, 610)
	stats, err := s.Kernels(ctx, store.KernelQuery{Session: "a", Group: store.GroupShape})
	require.NoError(t, err)
	require.Len(t, stats, 1, "all segments share the id of the shape")
	assert.EqualValues(t, 610*500, stats[0].SumNs)

	file := filepath.Join(t.TempDir(), "x.duckdb")
	require.NoError(t, s.Export(ctx, "", "a", file))
	require.FileExists(t, file)
	require.NoError(t, s.Delete(ctx, "", "a"))
	assert.Zero(t, s.Stats().Segments)
	_, err = s.Session(ctx, "", "a")
	require.ErrorIs(t, err, store.ErrNotFound)
}

// TestRetain_Undeletable has a session whose file cannot be removed. Others are deleted, and it stays
// until its file can be removed.
func TestRetain_Undeletable(t *testing.T) {
	ctx := context.Background()
	s := openStore(t, Config{Directory: t.TempDir()})
	for i, id := range []string{"a", "b"} {
		write(t, s, batch(id, 1e18+int64(i)*1e9, 10))
		require.NoError(t, s.Seal(ctx, "", id))
	}
	// A folder that is not empty cannot be removed as a file.
	block := filepath.Join(s.dir, "_", "sessions", "a", "1.duckdb.wal.recovery")
	require.NoError(t, os.MkdirAll(filepath.Join(block, "x"), 0o700))
	deleted, err := s.Retain(ctx, store.Retention{MaxAge: time.Second})
	require.ErrorContains(t, err, `retain: session "a" of project "": remove `+block)
	require.Len(t, deleted, 1)
	assert.Equal(t, "b", deleted[0].Session)
	info, err := s.Session(ctx, "", "a")
	require.NoError(t, err)
	assert.EqualValues(t, 10, info.Counts["ops"])
	require.NoError(t, os.RemoveAll(block))
	page, err := s.Ops(ctx, store.OpQuery{Session: "a", Limit: 100})
	require.NoError(t, err)
	assert.Len(t, page.Rows, 10)
	deleted, err = s.Retain(ctx, store.Retention{MaxAge: time.Second})
	require.NoError(t, err)
	require.Len(t, deleted, 1)
	assert.Equal(t, "a", deleted[0].Session)
	assert.NoDirExists(t, filepath.Join(s.dir, "_", "sessions", "a"))
}

// TestExport_Scratch checks that an export builds its file in the folder that each start empties.
func TestExport_Scratch(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := openStore(t, Config{Directory: dir})
	write(t, s, batch("a", 1e18, 10))
	tmp := filepath.Join(dir, "tmp")
	require.NoError(t, os.RemoveAll(tmp))
	require.NoError(t, os.WriteFile(tmp, nil, 0o600))
	file := filepath.Join(t.TempDir(), "x.duckdb")
	require.ErrorContains(t, s.Export(ctx, "", "a", file), "export: mkdir "+tmp+": not a directory")
	require.NoError(t, os.Remove(tmp))
	require.NoError(t, s.Export(ctx, "", "a", file))
	require.NoError(t, s.Close(ctx))
	left := filepath.Join(tmp, "export-1.new")
	require.NoError(t, os.MkdirAll(tmp, 0o700))
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	openStore(t, Config{Directory: dir})
	assert.NoFileExists(t, left)
}

func TestStore_Sandbox(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	outside := filepath.Join(t.TempDir(), "x.duckdb")
	for _, query := range []string{
		"ATTACH " + quote(outside), "SELECT * FROM read_text('/etc/hostname')", "INSTALL httpfs",
		"SET memory_limit = '1GB'", "COPY (SELECT 1) TO " + quote(outside),
	} {
		_, err := s.db.Exec(query)
		assert.Error(t, err, query)
	}
}

// TestStore_Limits reads the limits of each instance of DuckDB.
func TestStore_Limits(t *testing.T) {
	ctx := context.Background()
	s := openStore(t, Config{Directory: t.TempDir()})
	write(t, s, batch("a", 1e18, 10))
	reader, err := openReader(&request{Directory: s.dir})
	require.NoError(t, err)
	defer func() { assert.NoError(t, reader.db.Close()) }()
	const query = `SELECT concat_ws(', ', current_setting('memory_limit'), current_setting('max_temp_directory_size'),
		current_setting('threads'), current_setting('temp_directory'))`
	for want, db := range map[string]*sql.DB{
		fmt.Sprintf("256.0 MiB, 4.0 GiB, %d, %s", DefaultThreads(), filepath.Join(s.dir, "tmp")): s.db,
		"512.0 MiB, 4.0 GiB, 1, ": reader.db,
	} {
		var got string
		require.NoError(t, db.QueryRow(query).Scan(&got))
		assert.Equal(t, want, got)
	}
	answer, err := s.SQL(ctx, store.SQLQuery{Session: "a", Statement: query, Rows: 1, Bytes: 1000})
	require.NoError(t, err)
	assert.Equal(t, `["512.0 MiB, 1 byte, 2, "]`, string(answer.Rows[0]))
}

func TestThreads(t *testing.T) {
	for processors, want := range map[int]int{1: 2, 2: 2, 8: 2, 12: 3, 16: 4, 128: 4} {
		assert.Equal(t, want, threads(processors), processors)
	}
}

// TestPaths_Collision gives two lists of names the same hash.
func TestPaths_Collision(t *testing.T) {
	p := newPaths()
	hash := func(string) uint32 { return 7 }
	a, b := p.id([]string{"a", "b"}, hash), p.id([]string{"ab"}, hash)
	assert.NotEqual(t, a, b)
	assert.Equal(t, a, p.id([]string{"a", "b"}, hash))
	assert.Equal(t, b, p.id([]string{"ab"}, hash))
	assert.Zero(t, p.id(nil, hash))
}
