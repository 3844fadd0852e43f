// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	schema "github.com/gpuflight/gpuflight/config/clickhouse"
	"github.com/gpuflight/gpuflight/internal/store"
)

// Store is a store on a ClickHouse server. It implements [store.Store].
type Store struct {
	conn  driver.Conn
	types map[string]map[string]string // types of columns by table

	mu       sync.Mutex
	closed   bool
	sessions map[sessionKey]*session
	version  uint64 // of the last point
}

type sessionKey struct{ project, session string }

var _ store.Store = (*Store)(nil)

var errClosed = errors.New("store is closed")

// maxSessions bounds the sessions with a cache.
const maxSessions = 256

var (
	rowTables    = []string{"gpu_ops", "gpu_spans", "gpu_samples", "gpu_logs", "gpu_points"}
	dictTables   = []string{"gpu_origins", "gpu_lanes", "gpu_shapes", "gpu_stacks", "gpu_series"}
	rollupTables = []string{"gpu_stats", "gpu_lod", "gpu_long"}
)

func allTables() []string {
	var all []string
	all = append(all, rowTables...)
	all = append(all, dictTables...)
	all = append(all, rollupTables...)
	return append(all, "gpu_sessions")
}

// Open connects to the server and checks or creates the tables.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	o, err := cfg.options()
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	conn, err := clickhouse.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	s := &Store{conn: conn, types: map[string]map[string]string{}, sessions: map[sessionKey]*session{}}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	if cfg.CreateSchema {
		for _, statement := range statements(schema.GPU) {
			if err = conn.Exec(ctx, statement); err != nil {
				return nil, fmt.Errorf("create tables: %w: %w", store.ErrRetry, err)
			}
		}
	}
	err = s.each(ctx, "SELECT table, name, type FROM system.columns WHERE database = currentDatabase() AND table LIKE 'gpu\\_%'", nil,
		func(r driver.Rows) error {
			var table, name, typ string
			err := r.Scan(&table, &name, &typ)
			if s.types[table] == nil {
				s.types[table] = map[string]string{}
			}
			s.types[table][name] = typ
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("read tables: %w: %w", store.ErrRetry, err)
	}
	if err = checkTables(s.types); err != nil {
		return nil, err
	}
	return s, nil
}

// createTable matches a statement of the schema, and column a line of it with a column. Names of indexes
// begin in lower case.
var (
	createTable = regexp.MustCompile(`(?s)^CREATE TABLE IF NOT EXISTS (\w+)\n\((.*)\n\)`)
	column      = regexp.MustCompile(`(?m)^    (\w+) [A-Z]`)
)

// checkTables reports a table or column of the schema that is absent in a database with the given columns.
func checkTables(types map[string]map[string]string) error {
	for _, statement := range statements(schema.GPU) {
		m := createTable.FindStringSubmatch(statement)
		if m == nil {
			continue
		}
		table := types[m[1]]
		if table == nil {
			return fmt.Errorf("table %s does not exist: run config/clickhouse/gpu.sql or set create_schema", m[1])
		}
		for _, c := range column.FindAllStringSubmatch(m[2], -1) {
			if table[c[1]] == "" {
				return fmt.Errorf("table %s of another build lacks the column %s: configure a new database", m[1], c[1])
			}
		}
	}
	return nil
}

// statements splits a script.
func statements(script string) []string {
	var lines, out []string
	for line := range strings.Lines(script) {
		if !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	for part := range strings.SplitSeq(strings.Join(lines, ""), ";") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// Close closes all connections.
func (s *Store) Close(context.Context) error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	if err := s.conn.Close(); err != nil {
		return fmt.Errorf("close ClickHouse: %w", err)
	}
	return nil
}

func (s *Store) check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	return nil
}

// each runs a query and calls scan for each row.
func (s *Store) each(ctx context.Context, query string, args []any, scan func(driver.Rows) error) error {
	rows, err := s.conn.Query(ctx, query, args...)
	if err != nil {
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// now returns the clock of the server in Unix nanoseconds. All processes share this clock.
func (s *Store) now(ctx context.Context) (uint64, error) {
	var ns int64
	err := s.each(ctx, "SELECT toUnixTimestamp64Nano(now64(9))", nil, func(r driver.Rows) error { return r.Scan(&ns) })
	return uint64(ns), err
}

// next returns a number that grows with each point that this process writes.
func (s *Store) next() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = max(s.version+1, uint64(time.Now().UnixNano()))
	return s.version
}

// Export implements [store.Admin]. It is not supported: the file of DuckDB needs DuckDB.
func (s *Store) Export(context.Context, string, string, string) error {
	return fmt.Errorf("export from ClickHouse: %w: store the session with the DuckDB backend", errors.ErrUnsupported)
}

// Import implements [store.Admin]. It is not supported.
func (s *Store) Import(context.Context, string, string) (string, error) {
	return "", fmt.Errorf("import into ClickHouse: %w: open the file with the DuckDB backend", errors.ErrUnsupported)
}
