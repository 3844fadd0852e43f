// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/gpuflight/gpuflight/internal/store"
)

// A statement runs in a process of its own, because DuckDB's limits do not bound all memory, and
// because an error in native code must not end the Collector. The process has a copy of the tables
// of one session and no access to other files. It can write none.

const (
	// sqlMemory is DuckDB's memory_limit, sqlData the limit of the process for its data.
	sqlMemory = 512 << 20
	sqlData   = 3 << 29
	// maxSnapshots is the number of copies that are kept for the next statement.
	maxSnapshots = 4
)

// sqlRequest is a statement for a child.
type sqlRequest struct {
	Statement   string
	Rows, Bytes int
}

// snapshots are copies of the tables of sessions, most recently used last.
type snapshots struct {
	mu       sync.Mutex
	list     []*snapshot
	building sync.Mutex // one copy is made at a time
	// ctx ends with the store; nil before the first copy.
	ctx    context.Context
	cancel context.CancelFunc
}

type snapshot struct {
	key     sessionKey
	version uint64
	file    string
	refs    int
	removed bool
	ready   chan struct{} // closed after the copy is made; err is set before
	err     error
}

// SQL implements [store.Tables].
func (s *Store) SQL(ctx context.Context, q store.SQLQuery) (store.SQLAnswer, error) {
	snap, err := s.snapshot(ctx, sessionKey{q.Project, q.Session})
	if err != nil {
		return store.SQLAnswer{}, fmt.Errorf("query session %q: %w", q.Session, err)
	}
	defer s.releaseSnapshot(snap)
	var out store.SQLAnswer
	r := request{Files: []string{snap.file}, SQL: &sqlRequest{Statement: q.Statement, Rows: q.Rows, Bytes: q.Bytes}}
	err = readFiles(ctx, r, func(_ int, a *response) error {
		if strings.HasPrefix(a.Err, errChild.Error()) {
			return fmt.Errorf("the statement ended the process that ran it, probably for lack of memory: %w", store.ErrInvalid)
		}
		if a.Err != "" {
			return fmt.Errorf("%s: %w", a.Err, store.ErrInvalid)
		}
		out = *a.SQL
		return nil
	})
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

// snapshot returns a copy of the tables of a session as they are now. A copy of a large session takes
// longer than a statement may, so it is completed after ctx has ended, for the next statement.
func (s *Store) snapshot(ctx context.Context, key sessionKey) (*snapshot, error) {
	v, err := s.open(ctx, key.project, key.session, false)
	if err != nil {
		return nil, err
	}
	if v.dropped {
		v.close()
		return nil, fmt.Errorf("the session has sums only, because retention removed its rows: %w", store.ErrInvalid)
	}
	x, err := s.findSnapshot(v, key)
	if err != nil {
		return nil, err
	}
	select {
	case <-x.ready:
		err = x.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.releaseSnapshot(x)
		return nil, err
	}
	return x, nil
}

// findSnapshot returns the copy of a view, and starts to make it if there is none. It closes the view.
func (s *Store) findSnapshot(v *view, key sessionKey) (*snapshot, error) {
	l := &s.snapshots
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range l.list {
		if x.key == key && x.version == v.version {
			l.list = append(append(l.list[:i], l.list[i+1:]...), x)
			x.refs++
			v.close()
			return x, nil
		}
	}
	file, err := s.scratch(".duckdb")
	if err != nil {
		v.close()
		return nil, err
	}
	if l.ctx == nil {
		l.ctx, l.cancel = context.WithCancel(context.Background())
	}
	x := &snapshot{key: key, version: v.version, file: file, refs: 2, ready: make(chan struct{})} // for the caller and the copy
	l.list = append(l.list, x)
	for len(l.list) > maxSnapshots {
		l.removeLocked(0)
	}
	ctx := l.ctx
	s.checks.Go(func() {
		l.building.Lock()
		x.err = ctx.Err()
		if x.err == nil {
			x.err = v.copyTables(ctx, file)
		}
		l.building.Unlock()
		v.close()
		if x.err != nil {
			s.removeSnapshots(func(y *snapshot) bool { return y == x })
		}
		close(x.ready)
		s.releaseSnapshot(x)
	})
	return x, nil
}

func (l *snapshots) removeLocked(i int) {
	x := l.list[i]
	l.list = append(l.list[:i], l.list[i+1:]...)
	x.removed = true
	if x.refs == 0 {
		_ = removeFile(x.file)
	}
}

// removeSnapshots removes copies. Statements that use one end first.
func (s *Store) removeSnapshots(which func(*snapshot) bool) {
	s.snapshots.mu.Lock()
	defer s.snapshots.mu.Unlock()
	for i := len(s.snapshots.list) - 1; i >= 0; i-- {
		if which(s.snapshots.list[i]) {
			s.snapshots.removeLocked(i)
		}
	}
}

// closeSnapshots ends copies in progress and removes all.
func (s *Store) closeSnapshots() {
	s.snapshots.mu.Lock()
	if s.snapshots.cancel != nil {
		s.snapshots.cancel()
	}
	s.snapshots.mu.Unlock()
	s.removeSnapshots(func(*snapshot) bool { return true })
}

func (s *Store) releaseSnapshot(x *snapshot) {
	s.snapshots.mu.Lock()
	defer s.snapshots.mu.Unlock()
	if x.refs--; x.refs == 0 && x.removed {
		_ = removeFile(x.file)
	}
}

// copyTables writes the tables of a view to a new file.
func (v *view) copyTables(ctx context.Context, file string) (err error) {
	v.s.attach.Lock()
	v.s.sequence++
	alias := fmt.Sprintf("s%d", v.s.sequence)
	v.s.attach.Unlock()
	if _, err = v.s.db.ExecContext(ctx, "ATTACH "+quote(file)+" AS "+alias); err != nil {
		return err
	}
	defer func() {
		_, detachErr := v.s.db.ExecContext(context.WithoutCancel(ctx), "DETACH "+alias)
		err = errors.Join(err, detachErr)
	}()
	for _, name := range store.TableNames {
		query, err := v.table(name, 0, 0)
		if err != nil {
			return err
		}
		err = v.s.withTx(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "CREATE TABLE "+alias+"."+name+" AS "+query)
			return err
		})
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
	return nil
}

// openSandbox returns an instance that reads one file.
func openSandbox(file string) (*sql.DB, error) {
	// A limit for files that cannot grow: DuckDB may open its own file for COPY.
	_ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{})
	_ = syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: sqlData, Max: sqlData})
	var paths []string
	for _, suffix := range segmentFiles {
		paths = append(paths, quote(file+suffix))
	}
	db, err := openDuckDB(Config{MemoryLimit: sqlMemory, TempLimit: 1, Threads: 2}, "temp_directory=''", "allowed_paths=["+strings.Join(paths, ",")+"]")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // attachments and views belong to the instance, the search path to the connection
	if _, err = db.Exec("ATTACH " + quote(file) + " AS session (READ_ONLY)"); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	for _, name := range store.TableNames {
		if _, err := db.Exec("CREATE VIEW " + name + " AS FROM session." + name); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// runSQL runs a statement in a child.
func runSQL(ctx context.Context, file string, r *sqlRequest) (*store.SQLAnswer, error) {
	db, err := openSandbox(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	statement := strings.TrimRight(strings.TrimSpace(r.Statement), "; \n\t")
	if err := checkSelect(ctx, db, statement); err != nil {
		return nil, err
	}
	// One row more than the limit shows that rows are missing.
	rows, err := db.QueryContext(ctx, fmt.Sprintf("SELECT * FROM (\n%s\n) LIMIT %d", statement, r.Rows+1))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	types, err := rows.ColumnTypes()
	if err != nil {
		return nil, err
	}
	out := &store.SQLAnswer{}
	for _, t := range types {
		out.Columns = append(out.Columns, store.SQLColumn{Name: t.Name(), Type: t.DatabaseTypeName()})
	}
	values := make([]any, len(types))
	into := make([]any, len(types))
	for i := range values {
		into[i] = &values[i]
	}
	size := 0
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		line, err := json.Marshal(plainList(values))
		if err != nil {
			return nil, err
		}
		if size += len(line); len(out.Rows) == r.Rows || size > r.Bytes {
			out.Truncated = true
			break
		}
		out.Rows = append(out.Rows, line)
	}
	return out, rows.Err()
}

// checkSelect reports an error unless the text is one SELECT. It prepares the statement without
// running anything.
func checkSelect(ctx context.Context, db *sql.DB, statement string) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return conn.Raw(func(c any) error {
		prepared, err := c.(*duckdb.Conn).Prepare(statement)
		if native := (*duckdb.Error)(nil); err != nil && !errors.As(err, &native) {
			return errors.New("the text must be one SELECT")
		}
		if err != nil {
			return err
		}
		defer func() { _ = prepared.Close() }()
		kind, err := prepared.(*duckdb.Stmt).StatementType()
		if err == nil && kind != duckdb.STATEMENT_TYPE_SELECT {
			err = errors.New("only SELECT is allowed")
		}
		if err == nil && prepared.NumInput() > 0 {
			err = errors.New("the statement has parameters")
		}
		return err
	})
}

func plainList(values []any) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = plain(v)
	}
	return out
}

// plain returns a value that encodes as JSON.
func plain(v any) any {
	switch v := v.(type) {
	case nil, bool, string, int8, int16, int32, int64, uint8, uint16, uint32, uint64:
		return v
	case float32:
		return plain(float64(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
		return v
	case *big.Int:
		return json.Number(v.String())
	case duckdb.Decimal:
		return json.Number(v.String())
	case []byte:
		return hex.EncodeToString(v)
	case time.Time:
		return v.Format(time.RFC3339Nano)
	case []any:
		return plainList(v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = plain(x)
		}
		return out
	default:
		return fmt.Sprint(v)
	}
}

// sqlError returns what to tell about an error of a statement.
func sqlError(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return strings.ToValidUTF8(text[:min(len(text), 500)], "?")
}

// serveSQL answers a request with a statement.
func serveSQL(r *request) response {
	file := r.Files[0]
	if _, err := os.Stat(file); err != nil {
		return response{Err: err.Error()}
	}
	out, err := runSQL(context.Background(), file, r.SQL)
	if err != nil {
		return response{Err: sqlError(err)}
	}
	return response{SQL: out}
}
