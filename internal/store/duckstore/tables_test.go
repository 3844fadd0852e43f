// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

// readParquet runs a query over a Parquet file in an instance of its own.
func readParquet(t *testing.T, file, query string, into ...any) {
	t.Helper()
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	require.NoError(t, db.QueryRow(strings.ReplaceAll(query, "{file}", "read_parquet("+quote(file)+")")).Scan(into...))
}

func TestTables_Parquet(t *testing.T) {
	ctx := t.Context()
	for _, segments := range []int64{0, 50} {
		s := openStore(t, Config{Directory: t.TempDir(), SegmentOps: segments})
		_, err := s.Write(ctx, storetest.Generate(5, storetest.Options{Projects: 1, Sessions: 2, Ops: 300, Hostile: true}))
		require.NoError(t, err)
		list, err := s.Sessions(ctx, store.SessionQuery{})
		require.NoError(t, err)
		require.NotEmpty(t, list)
		for _, info := range list {
			for table, counted := range map[string]string{"operations": "ops", "spans": "spans", "samples": "samples", "logs": "logs", "points": "points"} {
				file := filepath.Join(t.TempDir(), "x.parquet")
				require.NoError(t, s.WriteParquet(ctx, store.TableQuery{Session: info.ID, Table: table}, file), table)
				var rows int64
				readParquet(t, file, "SELECT count(*) FROM {file}", &rows)
				assert.Equal(t, info.Counts[counted], rows, table)
				if table != "operations" {
					continue
				}
				var kernels, ns int64
				readParquet(t, file, "SELECT count(*), coalesce(sum(duration_ns), 0)::BIGINT FROM {file} WHERE operation = 'kernel'", &kernels, &ns)
				assert.Equal(t, info.Operations[store.OpKernel], kernels)
				assert.Equal(t, info.KernelNs, ns)
			}
		}
		entries, err := os.ReadDir(filepath.Join(s.dir, "tmp"))
		require.NoError(t, err)
		assert.Empty(t, entries)
	}
}

func TestTables_ParquetColumns(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	_, err := s.Write(t.Context(), []*store.Batch{batch("a", 1e18, 10)})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "x.parquet")
	require.NoError(t, s.WriteParquet(t.Context(), store.TableQuery{Session: "a", Table: "operations", From: 1e18 + 2100, To: 1e18 + 5000}, file))
	var n, start, queue, launch, stream int64
	var name, device, scope, trace, span, parent, grid string
	readParquet(t, file, `SELECT count(*), min(start_ns), min(queue_ns), min(launch_start_ns), min(stream), any_value(name), any_value(device),
		any_value(scope_path), any_value(trace_id), min(span_id), any_value(parent_id), any_value(grid)::VARCHAR FROM {file}`,
		&n, &start, &queue, &launch, &stream, &name, &device, &scope, &trace, &span, &parent, &grid)
	assert.EqualValues(t, 3, n, "one operation ends in the interval and two start in it")
	assert.Equal(t, int64(1e18)+2000, start)
	assert.EqualValues(t, 40, queue)
	assert.Equal(t, int64(1e18)+1900, launch)
	assert.EqualValues(t, 7, stream)
	assert.Equal(t, []string{"gemm", "GPU-1", "train|step", "[4, 1, 1]"}, []string{name, device, scope, grid})
	assert.Equal(t, "09000000000000000000000000000000", trace)
	assert.Equal(t, "8000000000000000", parent)
	assert.Equal(t, "8de0b6b3a76407d0", span)

	require.ErrorIs(t, s.WriteParquet(t.Context(), store.TableQuery{Session: "a", Table: "meta"}, file+"2"), store.ErrInvalid)
	require.ErrorIs(t, s.WriteParquet(t.Context(), store.TableQuery{Session: "b", Table: "spans"}, file+"2"), store.ErrNotFound)
	require.ErrorIs(t, s.WriteParquet(t.Context(), store.TableQuery{Session: "a", Table: "spans", From: 2, To: 1}, file+"2"), store.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.WriteParquet(ctx, store.TableQuery{Session: "a", Table: "spans"}, file+"2"), context.Canceled)
}

func runStatement(t *testing.T, s *Store, statement string) (store.SQLAnswer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return s.SQL(ctx, store.SQLQuery{Session: "a", Statement: statement, Rows: 100, Bytes: 1 << 20})
}

func joined(rows [][]byte) string {
	var lines []string
	for _, r := range rows {
		lines = append(lines, string(r))
	}
	return strings.Join(lines, "\n")
}

func TestSQL_Answers(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	_, err := s.Write(t.Context(), []*store.Batch{batch("a", 1e18, 500), batch("b", 1e18, 3)})
	require.NoError(t, err)
	for _, tt := range []struct{ name, statement, want string }{
		{"sums", "SELECT name, count(*) AS n, sum(duration_ns)::BIGINT FROM operations GROUP BY ALL;", `["gemm",500,250000]`},
		{"order", "SELECT start_ns FROM operations ORDER BY start_ns DESC LIMIT 2 -- the last", "[1000000000000499000]\n[1000000000000498000]"},
		{"types", "SELECT 1.5, NULL, [1, 2], {'a': 'b'}, 170141183460469231731687303715884105727, true, 'NaN'::DOUBLE, '\\x01'::BLOB, DATE '2020-01-02', 1.25::DECIMAL(5,2)",
			`[1.5,null,[1,2],{"a":"b"},170141183460469231731687303715884105727,true,"NaN","01","2020-01-02T00:00:00Z",1.25]`},
		{"tables", "SELECT count(*) FROM (SHOW TABLES)", "[5]"},
		{"other tables", "SELECT (SELECT count(*) FROM spans), (SELECT count(*) FROM logs), (SELECT count(*) FROM samples), (SELECT count(*) FROM points)", "[0,1,0,0]"},
		{"with", "WITH x AS (SELECT 1 AS a) SELECT a + 1 FROM x", "[2]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := runStatement(t, s, tt.statement)
			require.NoError(t, err)
			assert.Equal(t, tt.want, joined(a.Rows))
			assert.False(t, a.Truncated)
		})
	}
	t.Run("row limit", func(t *testing.T) {
		a, err := runStatement(t, s, "SELECT * FROM range(10000000000)")
		require.NoError(t, err)
		assert.Len(t, a.Rows, 100)
		assert.True(t, a.Truncated)
		assert.Equal(t, []store.SQLColumn{{Name: "range", Type: "BIGINT"}}, a.Columns)
	})
	t.Run("byte limit", func(t *testing.T) {
		a, err := runStatement(t, s, "SELECT repeat('x', 300000) FROM range(10)")
		require.NoError(t, err)
		assert.Len(t, a.Rows, 3)
		assert.True(t, a.Truncated)
	})
	t.Run("new rows", func(t *testing.T) {
		_, err := s.Write(t.Context(), []*store.Batch{batch("a", 2e18, 1)})
		require.NoError(t, err)
		a, err := runStatement(t, s, "SELECT count(*) FROM operations")
		require.NoError(t, err)
		assert.Equal(t, "[501]", joined(a.Rows))
	})
	t.Run("no session", func(t *testing.T) {
		_, err := s.SQL(t.Context(), store.SQLQuery{Session: "c", Statement: "SELECT 1", Rows: 1, Bytes: 100})
		require.ErrorIs(t, err, store.ErrNotFound)
		_, err = s.SQL(t.Context(), store.SQLQuery{Project: "other", Session: "a", Statement: "SELECT 1", Rows: 1, Bytes: 100})
		require.ErrorIs(t, err, store.ErrNotFound)
	})
	assert.Len(t, s.snapshots.list, 2)
	require.NoError(t, s.Delete(t.Context(), "", "a"))
	assert.Empty(t, s.snapshots.list)
	entries, err := os.ReadDir(filepath.Join(s.dir, "tmp"))
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestSQL_Sandbox(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	_, err := s.Write(t.Context(), []*store.Batch{batch("a", 1e18, 10), batch("b", 1e18, 10)})
	require.NoError(t, err)
	secret := filepath.Join(t.TempDir(), "secret.csv")
	require.NoError(t, os.WriteFile(secret, []byte("secret\n1\n"), 0o600))
	other := s.sessions[sessionKey{"", "b"}].segments[0].file
	_, err = runStatement(t, s, "SELECT 1")
	require.NoError(t, err)
	own := s.snapshots.list[0].file
	target := filepath.Join(t.TempDir(), "written")
	for _, tt := range []struct{ name, statement, want string }{
		{"read a file", "SELECT * FROM read_csv('" + secret + "')", "Permission Error"},
		{"read a file as table", "SELECT * FROM '" + secret + "'", "Permission Error"},
		{"read text", "SELECT * FROM read_text('" + secret + "')", "Permission Error"},
		{"read bytes", "SELECT * FROM read_blob('/etc/passwd')", "Permission Error"},
		{"list files", "SELECT * FROM glob('/etc/*')", "Permission Error"},
		{"read another session", "SELECT * FROM read_duckdb('" + other + "')", "rror"},
		{"attach", "ATTACH '" + other + "' AS x (READ_ONLY)", "only SELECT"},
		{"attach memory", "ATTACH ':memory:' AS x", "only SELECT"},
		{"copy to", "COPY (SELECT 1) TO '" + target + "'", "rror"},
		{"copy to the own file", "COPY (SELECT 1) TO '" + own + "'", "only SELECT"},
		{"export", "EXPORT DATABASE '" + target + "'", "rror"},
		{"insert", "INSERT INTO session.operations (name) VALUES ('x')", "only SELECT"},
		{"delete", "DELETE FROM operations", "rror"},
		{"create", "CREATE TABLE x (a INTEGER)", "only SELECT"},
		{"drop", "DROP VIEW operations", "only SELECT"},
		{"load", "LOAD httpfs", "only SELECT"},
		{"install", "INSTALL httpfs", "only SELECT"},
		{"set", "SET memory_limit='10GB'", "only SELECT"},
		{"reset", "RESET lock_configuration", "only SELECT"},
		{"pragma", "PRAGMA database_list", "Parser Error"},
		{"call", "CALL pragma_version()", "only SELECT"},
		{"explain", "EXPLAIN ANALYZE SELECT 1", "only SELECT"},
		{"two statements", "SELECT 1; CREATE TABLE x (a INTEGER)", "one SELECT"},
		{"closing bracket", "SELECT 1) ; DROP VIEW operations; SELECT (1", "rror"},
		{"network", "SELECT * FROM read_csv('https://example.com/x.csv')", "rror"},
		{"environment", "SELECT getenv('HOME')", "rror"},
		{"parameters", "SELECT ?", "has parameters"},
		{"empty", "", "one SELECT"},
		{"syntax", "SELEC 1", "Parser Error"},
		{"unknown column", "SELECT nothing FROM operations", "Binder Error"},
		{"memory", "SELECT list(r ORDER BY random()) FROM (SELECT repeat('x', 1000) || range AS r FROM range(100000000))", ""},
		{"one value", "SELECT length(repeat('x', 3000000000))", ""},
		{"memory that DuckDB does not limit", "SELECT quantile_cont(random(), 0.5) FROM range(2000000000)", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.name, "does not limit") && os.Getenv("GPUFLIGHT_SOAK") != "1" {
				t.Skip("slow: set GPUFLIGHT_SOAK=1")
			}
			_, err := runStatement(t, s, tt.statement)
			require.Error(t, err)
			if tt.want != "" {
				require.ErrorIs(t, err, store.ErrInvalid)
			}
			assert.Contains(t, err.Error(), tt.want)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
	assert.NoFileExists(t, target)
	a, err := runStatement(t, s, "SELECT count(*) FROM operations")
	require.NoError(t, err, "the next statement works")
	assert.Equal(t, "[10]", joined(a.Rows))
}

// statement runs a statement until it waits for a copy. The channel gets its error.
func statement(ctx context.Context, t *testing.T, s *Store) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := s.SQL(ctx, store.SQLQuery{Session: "a", Statement: "SELECT 1", Rows: 1, Bytes: 100})
		done <- err
	}()
	require.Eventually(t, func() bool {
		s.snapshots.mu.Lock()
		defer s.snapshots.mu.Unlock()
		return len(s.snapshots.list) == 1
	}, time.Minute, time.Millisecond)
	return done
}

func TestSQL_CopyContinues(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	_, err := s.Write(t.Context(), []*store.Batch{batch("a", 1e18, 10)})
	require.NoError(t, err)
	s.snapshots.building.Lock() // a copy that takes long
	ctx, cancel := context.WithCancel(t.Context())
	done := statement(ctx, t, s)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	s.snapshots.building.Unlock()
	require.Len(t, s.snapshots.list, 1)
	x := s.snapshots.list[0]
	<-x.ready
	require.NoError(t, x.err)
	a, err := runStatement(t, s, "SELECT count(*) FROM operations")
	require.NoError(t, err)
	assert.Equal(t, "[10]", joined(a.Rows))
	assert.Same(t, x, s.snapshots.list[0], "the next statement uses it")
}

func TestSQL_CloseEndsCopy(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), Config{Directory: dir})
	require.NoError(t, err)
	_, err = s.Write(t.Context(), []*store.Batch{batch("a", 1e18, 10)})
	require.NoError(t, err)
	s.snapshots.building.Lock()
	done := statement(context.Background(), t, s)
	s.snapshots.cancel()
	s.snapshots.building.Unlock()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, s.Close(context.Background()))
	entries, err := os.ReadDir(filepath.Join(dir, "tmp"))
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestSQL_Ends(t *testing.T) {
	s := openStore(t, Config{Directory: t.TempDir()})
	_, err := s.Write(t.Context(), []*store.Batch{batch("a", 1e18, 10)})
	require.NoError(t, err)
	// It needs no memory.
	const forever = "SELECT count(*) FROM range(4000000000000000000) r WHERE r.range % 7 = 9"
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	_, err = s.SQL(ctx, store.SQLQuery{Session: "a", Statement: forever, Rows: 1, Bytes: 100})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	_, err = s.SQL(ctx, store.SQLQuery{Session: "a", Statement: forever, Rows: 1, Bytes: 100})
	require.ErrorIs(t, err, context.Canceled)
}
