// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

var keep = flag.Bool("keep", false, "write the files of testdata of this schema version")

// keptSession is the session of the kept files.
const keptSession = "session-00"

// answersOf asks for everything that a session has.
func answersOf(t *testing.T, s *Store) []byte {
	t.Helper()
	ctx := context.Background()
	var all []any
	add := func(a any, err error) {
		t.Helper()
		require.NoError(t, err)
		all = append(all, a)
	}
	info, err := s.Session(ctx, "", keptSession)
	info.Bytes, info.Sealed = 0, false
	add(info, err)
	add(s.Lanes(ctx, "", keptSession))
	for group := store.GroupName; group <= store.GroupLane; group++ {
		add(s.Kernels(ctx, store.KernelQuery{Session: keptSession, Group: group, Buckets: true, Limit: 1000}))
	}
	add(s.Scopes(ctx, "", keptSession))
	add(s.Timeline(ctx, store.TimelineQuery{Session: keptSession, Bins: 50}))
	add(s.Gaps(ctx, store.GapQuery{Session: keptSession, Limit: 100}))
	add(s.Ops(ctx, store.OpQuery{Session: keptSession, Limit: 1000}))
	add(s.Spans(ctx, store.SpanQuery{Session: keptSession, Limit: 1000}))
	add(s.Samples(ctx, store.SampleQuery{Session: keptSession, Limit: 1000}))
	add(s.Logs(ctx, store.LogQuery{Session: keptSession, Limit: 1000}))
	list, err := s.Series(ctx, store.SeriesQuery{Session: keptSession, Limit: 1000})
	add(list, err)
	for i := range list {
		add(s.Points(ctx, store.PointQuery{Session: keptSession, Series: list[i].Key, Points: 1000}))
	}
	var b bytes.Buffer
	for _, a := range all {
		render(&b, reflect.ValueOf(a))
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// render writes a value without addresses, and floating point numbers exactly.
func render(b *bytes.Buffer, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			b.WriteString("nil")
			return
		}
		render(b, v.Elem())
	case reflect.Struct:
		b.WriteString("{")
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				b.WriteString(" " + v.Type().Field(i).Name + ":")
				render(b, v.Field(i))
			}
		}
		b.WriteString("}")
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			fmt.Fprintf(b, "%x", v.Interface())
			return
		}
		b.WriteString("[")
		for i := range v.Len() {
			b.WriteString("\n ")
			render(b, v.Index(i))
		}
		b.WriteString("]")
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(x, y reflect.Value) int { return strings.Compare(fmt.Sprint(x), fmt.Sprint(y)) })
		for _, k := range keys {
			fmt.Fprintf(b, " %v=", k)
			render(b, v.MapIndex(k))
		}
	case reflect.Float64:
		fmt.Fprintf(b, "%v/%x", v.Float(), math.Float64bits(v.Float()))
	case reflect.String:
		fmt.Fprintf(b, "%q", v.String())
	default:
		fmt.Fprint(b, v.Interface())
	}
}

func kept(name string) string { return filepath.Join("testdata", name) }

// writeKept writes the files that TestMigrate_Kept opens.
func writeKept(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := openStore(t, Config{Directory: dir})
	var batches []*store.Batch
	for _, b := range storetest.Generate(11, storetest.Options{Sessions: 1, Ops: 24}) {
		if b.Session == keptSession {
			b.Project = ""
			batches = append(batches, b)
		}
	}
	require.Len(t, batches, 1)
	write(t, s, batches...)
	require.NoError(t, s.Seal(ctx, "", keptSession))
	require.NoError(t, s.Close(ctx))
	file, err := os.ReadFile(segmentOf(dir, keptSession))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll("testdata", 0o755))
	name := kept(fmt.Sprintf("v%d.duckdb.gz", schemaVersion()))
	require.NoError(t, os.WriteFile(name, zipped(t, file), 0o644))
	s = openStore(t, Config{Directory: openKept(t, name)})
	require.NoError(t, os.WriteFile(answersFile(name), zipped(t, answersOf(t, s)), 0o644))
}

func answersFile(name string) string { return strings.Replace(name, ".duckdb.gz", ".txt.gz", 1) }

func zipped(t *testing.T, data []byte) []byte {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	require.NoError(t, err)
	_, err = z.Write(data)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func unzipped(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	b, err := io.ReadAll(z)
	require.NoError(t, err)
	return b
}

// openKept returns a directory of a store with a kept file.
func openKept(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Dir(segmentOf(dir, keptSession)), 0o700))
	require.NoError(t, os.WriteFile(segmentOf(dir, keptSession), unzipped(t, name), 0o600))
	return dir
}

// checkKept opens a kept file, imports it into another store, and compares the answers with those of the
// build that wrote it. Then it writes to the session.
func checkKept(t *testing.T, name string) {
	ctx := context.Background()
	want := unzipped(t, answersFile(name))
	dir := openKept(t, name)
	file := filepath.Join(t.TempDir(), "import.duckdb")
	require.NoError(t, copyNew(segmentOf(dir, keptSession), file))
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	s := openStore(t, Config{Directory: dir})
	assert.Equal(t, string(want), string(answersOf(t, s)), "open")
	assert.Zero(t, s.Stats().Damaged)
	key := sessionKey{"", keptSession}
	assert.False(t, s.sessions[key].stale())
	compareChains(t, s, key, "open")
	seg := s.sessions[sessionKey{"", keptSession}].segments[0]
	require.NoError(t, s.acquire(ctx, seg))
	meta, err := s.readMeta(ctx, seg)
	s.release(seg)
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprint(schemaVersion()), meta["schema_version"])
	r := write(t, s, batch(keptSession, 2e18, 10))
	assert.EqualValues(t, 11, r.Written)
	compareChains(t, s, key, "write")
	require.NoError(t, s.Seal(ctx, "", keptSession))
	compareChains(t, s, key, "seal")

	imported := openStore(t, Config{Directory: t.TempDir()})
	id, err := imported.Import(ctx, "", file)
	require.NoError(t, err)
	assert.Equal(t, keptSession, id)
	info, err := imported.Session(ctx, "", keptSession)
	require.NoError(t, err)
	wantInfo, err := s.Session(ctx, "", keptSession)
	require.NoError(t, err)
	assert.Equal(t, wantInfo.Counts["ops"]-10, info.Counts["ops"])
	assert.Equal(t, wantInfo.KernelNs-5000, info.KernelNs)
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(before, after), "import does not change the file")
}

// TestMigrate_Kept opens a file of each released version. Run it with -args -keep to write that of this
// version.
func TestMigrate_Kept(t *testing.T) {
	if *keep {
		writeKept(t)
	}
	for v := range versions {
		t.Run(fmt.Sprintf("version %d", v+1), func(t *testing.T) { checkKept(t, kept(fmt.Sprintf("v%d.duckdb.gz", v+1))) })
	}
}

// TestMigrate_NextVersion adds a version after the current one and opens the same files.
func TestMigrate_NextVersion(t *testing.T) {
	before := versions
	defer func() { versions = before }()
	versions = append(versions[:len(versions):len(versions)], version{
		schema:  strings.Replace(currentSchema(), "symbol VARCHAR", "new_symbol VARCHAR", 1) + "CREATE TABLE {db}.next (x BIGINT);",
		migrate: []string{"ALTER TABLE {db}.shapes RENAME COLUMN symbol TO new_symbol", "CREATE TABLE {db}.next (x BIGINT)", "INSERT INTO {db}.next VALUES (7)"},
	})
	dir := openKept(t, kept("v1.duckdb.gz"))
	s := openStore(t, Config{Directory: dir})
	seg := s.sessions[sessionKey{"", keptSession}].segments[0]
	require.NoError(t, s.acquire(context.Background(), seg))
	defer s.release(seg)
	var x int64
	require.NoError(t, s.db.QueryRow("SELECT x FROM "+seg.alias+".next").Scan(&x))
	assert.EqualValues(t, 7, x)
	meta, err := s.readMeta(context.Background(), seg)
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprint(len(versions)), meta["schema_version"])
}

// TestMigrate_Fails keeps a file whose migration fails, and opens it again.
func TestMigrate_Fails(t *testing.T) {
	before := versions
	defer func() { versions = before }()
	dir := openKept(t, kept("v1.duckdb.gz"))
	versions = append(versions[:len(versions):len(versions)], version{schema: currentSchema(), migrate: []string{
		"DELETE FROM {db}.ops", "ALTER TABLE {db}.absent RENAME TO x",
	}})
	_, err := Open(context.Background(), Config{Directory: dir})
	require.ErrorContains(t, err, fmt.Sprintf("migrate to schema version %d: ", len(versions)))
	versions = before
	want := unzipped(t, kept("v1.txt.gz"))
	s := openStore(t, Config{Directory: dir})
	assert.True(t, bytes.Equal(want, answersOf(t, s)), "nothing changed")
}

// TestOpen_DevelopmentBuild opens a store of a build whose tables had the number of a released version.
func TestOpen_DevelopmentBuild(t *testing.T) {
	dir := openKept(t, kept("v1.duckdb.gz"))
	s := openStore(t, Config{Directory: dir})
	seg := s.sessions[sessionKey{"", keptSession}].segments[0]
	require.NoError(t, s.acquire(context.Background(), seg))
	_, err := s.db.Exec("ALTER TABLE " + seg.alias + ".ops DROP COLUMN address")
	s.release(seg)
	require.NoError(t, err)
	require.NoError(t, s.Close(context.Background()))
	require.NoError(t, os.Remove(filepath.Join(dir, catalogFile)))
	_, err = Open(context.Background(), Config{Directory: dir})
	require.EqualError(t, err, "open store "+dir+": "+segmentOf(dir, keptSession)+
		fmt.Sprintf(": table ops is not that of schema version %d: ", schemaVersion())+"written by a development build: use the build that wrote it or another directory")
	assert.FileExists(t, segmentOf(dir, keptSession))
}

// TestSchema_Documented compares the tables of docs/internals/schema.md with those of a segment.
func TestSchema_Documented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/internals/schema.md")
	require.NoError(t, err)
	assert.Contains(t, string(doc), fmt.Sprintf("Schema version: %d.", schemaVersion()))
	var got []string
	table := ""
	heading, row := regexp.MustCompile("^### `([a-z_]+)`$"), regexp.MustCompile("^\\| `([a-z_]+)` \\| ([A-Z]+(?:\\[\\])?) \\| (.+) \\|$")
	for line := range strings.Lines(string(doc)) {
		line = strings.TrimSpace(line)
		if m := heading.FindStringSubmatch(line); m != nil {
			table = m[1]
		} else if m := row.FindStringSubmatch(line); m != nil {
			got = append(got, table+"."+m[1]+" "+m[2])
		}
	}
	s := openStore(t, Config{Directory: t.TempDir()})
	write(t, s, batch("a", 1e18, 1))
	seg := s.sessions[sessionKey{"", "a"}].segments[0]
	require.NoError(t, s.acquire(context.Background(), seg))
	defer s.release(seg)
	rows, err := s.db.Query("SELECT table_name || '.' || column_name || ' ' || data_type FROM duckdb_columns() WHERE database_name = ?", seg.alias)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	var want []string
	for rows.Next() {
		var c string
		require.NoError(t, rows.Scan(&c))
		want = append(want, c)
	}
	require.NoError(t, rows.Err())
	assert.ElementsMatch(t, want, got)
}
