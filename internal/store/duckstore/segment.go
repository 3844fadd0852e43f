// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// segment is one file. Its identity does not change; Store.attach guards alias, refs and used.
type segment struct {
	file string
	n    int64
	from int64 // rows of the session from this time on are in this or a later segment

	alias string // "" if not attached
	refs  int
	used  uint64

	// Of the writer: the newest time of each table (-1 for none), and the number of operations.
	newest  [len(rowTables)]int64
	ops     int64
	summary summary
	traces  traceSet
	cache   *cache                                // of the session
	dropped bool                                  // its rows were dropped
	stale   bool                                  // see staleChains
	coarse  bool                                  // see coarse
	known   *[len(dictTables)]map[uint32]struct{} // dictionary entries in the file; nil if not loaded
	// The numbers of rollup rows, and those after the last merge.
	partial, merged mergeCounts
	// The mark of top_ops, nil for none, and the number of operations when it was moved.
	top    atomic.Pointer[topMark]
	topOps int64
	// The rows of lod before this time are merged. It is 0 if unknown.
	lodFrom int64
	// The last bin in gap_bins, -1 for none, and the number of operations when it was found.
	gapBin, gapOps int64
	gapTail        gapTailKernels
}

// acquire attaches the segment. The caller releases it.
func (s *Store) acquire(ctx context.Context, seg *segment) error {
	s.attach.Lock()
	defer s.attach.Unlock()
	if seg.alias == "" {
		alias := "s" + strconv.FormatUint(s.sequence, 10)
		s.sequence++
		mode := ""
		if _, err := os.Stat(seg.file); err != nil {
			return err // DuckDB would create it
		}
		if s.readOnly {
			mode = " (READ_ONLY)"
		}
		if _, err := s.db.ExecContext(context.WithoutCancel(ctx), "ATTACH "+quote(seg.file)+" AS "+alias+mode); err != nil {
			return fmt.Errorf("open %s: %w", seg.file, err)
		}
		seg.alias = alias
		s.attached[seg] = struct{}{}
	}
	seg.refs++
	s.sequence++
	seg.used = s.sequence
	s.evictLocked(ctx)
	return nil
}

func (s *Store) release(seg *segment) {
	s.attach.Lock()
	defer s.attach.Unlock()
	seg.refs--
	s.released.Broadcast()
}

// reopen closes the files of a session after an error, so that the next write opens them again: after
// some errors DuckDB refuses all further transactions of a file.
func (s *Store) reopen(sess *session) {
	s.attach.Lock()
	defer s.attach.Unlock()
	for _, seg := range sess.segments {
		if seg.refs == 0 {
			_ = s.detachLocked(context.Background(), seg)
		}
	}
}

// evictLocked detaches the segments that were used least recently.
func (s *Store) evictLocked(ctx context.Context) {
	for len(s.attached) > s.cfg.MaxAttached {
		var oldest *segment
		for seg := range s.attached {
			if seg.refs == 0 && (oldest == nil || seg.used < oldest.used) {
				oldest = seg
			}
		}
		if oldest == nil || s.detachLocked(context.WithoutCancel(ctx), oldest) != nil {
			return
		}
	}
}

// detachLocked closes the file of a segment, which also checkpoints it.
func (s *Store) detachLocked(ctx context.Context, seg *segment) error {
	if seg.alias == "" {
		return nil
	}
	if _, err := s.db.ExecContext(ctx, "DETACH "+seg.alias); err != nil {
		// A failed checkpoint is an error, but DuckDB has closed the file. Its log has the rows.
		var open bool
		query := "SELECT count(*) > 0 FROM duckdb_databases() WHERE database_name = ?"
		if s.db.QueryRowContext(ctx, query, seg.alias).Scan(&open) != nil || open {
			return fmt.Errorf("close %s: %w", seg.file, err)
		}
	}
	seg.alias = ""
	if seg.cache != nil {
		seg.cache.clear()
	}
	delete(s.attached, seg)
	return nil
}

// detach waits for running queries and closes the file of a segment.
func (s *Store) detach(ctx context.Context, seg *segment) error {
	s.attach.Lock()
	defer s.attach.Unlock()
	for seg.refs > 0 {
		s.released.Wait()
	}
	return s.detachLocked(ctx, seg)
}

// createSegment creates the file of a new segment. The file appears under its name complete.
func (s *Store) createSegment(ctx context.Context, sess *session, n, from int64) (*segment, error) {
	if err := os.MkdirAll(sess.dir, 0o700); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	seg := &segment{file: filepath.Join(sess.dir, strconv.FormatInt(n, 10)+".duckdb"), n: n, from: from}
	building := seg.file + ".new"
	if err := removeFile(building); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	meta := map[string]string{
		"schema_version": strconv.Itoa(schemaVersion()), "project": sess.project, "session": sess.id,
		"segment": strconv.FormatInt(n, 10), "from_ns": strconv.FormatInt(from, 10),
	}
	if err := s.createFile(ctx, building, meta, nil); err != nil {
		_ = removeFile(building)
		return nil, fmt.Errorf("create segment: %w", err)
	}
	if err := os.Rename(building, seg.file); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	if err := syncDirectory(sess.dir); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	return seg, nil
}

// createFile writes a segment with the rows of a view; nil means an empty one.
func (s *Store) createFile(ctx context.Context, file string, meta map[string]string, from *view) error {
	s.attach.Lock()
	alias := "s" + strconv.FormatUint(s.sequence, 10)
	s.sequence++
	s.attach.Unlock()
	ctx = context.WithoutCancel(ctx)
	// Smaller blocks do not hold what DuckDB packs at once, so that it would not compress integers.
	if _, err := s.db.ExecContext(ctx, "ATTACH "+quote(file)+" AS "+alias+" (BLOCK_SIZE 65536)"); err != nil {
		return err
	}
	err := func() error {
		if _, err := s.db.ExecContext(ctx, strings.ReplaceAll(currentSchema(), "{db}", alias)); err != nil {
			return err
		}
		for k, v := range meta {
			if _, err := s.db.ExecContext(ctx, "INSERT INTO "+alias+".meta VALUES (?, ?)", k, v); err != nil {
				return err
			}
		}
		if from != nil {
			if err := s.withTx(ctx, func(tx *sql.Tx) error { return from.copyRows(ctx, tx, alias) }); err != nil {
				return err
			}
		}
		_, err := s.db.ExecContext(ctx, "CHECKPOINT "+alias)
		return err
	}()
	_, detachErr := s.db.ExecContext(ctx, "DETACH "+alias)
	return errors.Join(err, detachErr)
}

// removeFile removes a segment and the other files that DuckDB has for it.
func removeFile(file string) error {
	for _, suffix := range segmentFiles {
		if err := os.Remove(file + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}

// Errors of files that another build has written.
var (
	errNewer = errors.New("newer than this build")
	errOther = errors.New("written by a development build")
)

// readMeta reads the properties of an attached segment.
func (s *Store) readMeta(ctx context.Context, seg *segment) (map[string]string, error) {
	meta := map[string]string{}
	err := s.each(ctx, "SELECT key, value FROM "+seg.alias+".meta", nil, func(r *sql.Rows) error {
		var k, v string
		err := r.Scan(&k, &v)
		meta[k] = v
		return err
	})
	return meta, err
}

// versionOf returns the schema version of a segment, which is one of the first n.
func versionOf(meta map[string]string, n int) (int, error) {
	v, err := strconv.Atoi(meta["schema_version"])
	if err != nil || v < 1 {
		return 0, fmt.Errorf("schema version %q", meta["schema_version"])
	}
	if v > n {
		return 0, fmt.Errorf("schema version %d: %w, which reads 1 to %d", v, errNewer, n)
	}
	return v, nil
}

// migrate changes a file to the current schema, one version at a time. Another process has checked that
// it has the tables of its version.
func (s *Store) migrate(ctx context.Context, file string) (err error) {
	seg := &segment{file: file}
	if err := s.acquire(ctx, seg); err != nil {
		return err
	}
	defer func() {
		s.release(seg)
		err = errors.Join(err, s.detach(ctx, seg))
	}()
	meta, err := s.readMeta(ctx, seg)
	if err != nil {
		return err
	}
	from, err := versionOf(meta, schemaVersion())
	for v := from + 1; err == nil && v <= schemaVersion(); v++ {
		err = s.migrateTo(ctx, seg, v)
	}
	return err
}

func (s *Store) migrateTo(ctx context.Context, seg *segment, v int) error {
	_, tx, end, err := s.beginTx(ctx)
	if err != nil {
		return err
	}
	defer end()
	for _, q := range append(slices.Clone(versions[v-1].migrate), fmt.Sprintf("UPDATE {db}.meta SET value = '%d' WHERE key = 'schema_version'", v)) {
		if _, err := tx.ExecContext(ctx, strings.ReplaceAll(q, "{db}", seg.alias)); err != nil {
			return fmt.Errorf("migrate to schema version %d: %w", v, err)
		}
	}
	return tx.Commit()
}

// setMeta changes properties of an attached segment.
func (s *Store) setMeta(ctx context.Context, seg *segment, key, value string) error {
	tx, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err = tx.ExecContext(ctx, "DELETE FROM "+seg.alias+".meta WHERE key = ?", key); err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, "INSERT INTO "+seg.alias+".meta VALUES (?, ?)", key, value); err != nil {
		return err
	}
	return tx.Commit()
}

// newerSuffix is that of files with a newer schema version.
const newerSuffix = ".newer"

// renameSegment renames a segment and the other files that DuckDB has for it. The file itself is the
// last.
func renameSegment(file, name string) error {
	for _, suffix := range segmentFiles {
		if err := os.Rename(file+suffix, name+suffix); err != nil && (suffix == "" || !errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// setAside renames a file that cannot be used, with its logs.
func (s *Store) setAside(file, name string, reason error) error {
	// Somebody may have removed the file.
	if err := renameSegment(file, name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s.reportDamaged(name, reason)
	return nil
}

// setAsideLog renames the write-ahead logs of a file, and reports whether there were any.
func setAsideLog(file, name string) (moved bool, err error) {
	for _, suffix := range segmentFiles {
		if suffix == "" {
			continue
		}
		err := os.Rename(file+suffix, name+suffix)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return moved, err
		}
		moved = moved || err == nil
	}
	return moved, nil
}

// suspect checks the segments of a session after an error of DuckDB that names damage, and sets aside
// those that are damaged. It returns before that: callers may hold locks and segments.
func (s *Store) suspect(sess *session, err error) {
	if err == nil || s.readOnly || !damaging(err) {
		return
	}
	s.checks.Add(1)
	go func() {
		defer s.checks.Done()
		s.write.Lock()
		defer s.write.Unlock()
		s.mu.RLock()
		closed := s.closed
		s.mu.RUnlock()
		if !closed {
			s.checkSession(context.Background(), sess, err)
		}
	}()
}

// checkSession reads the segments of a session completely in another process. The caller holds
// Store.write.
func (s *Store) checkSession(ctx context.Context, sess *session, reason error) {
	for _, seg := range slices.Clone(sess.segments) {
		if err := s.detach(ctx, seg); err != nil {
			continue
		}
		damaged := false
		err := readFiles(ctx, request{Directory: s.dir, Files: []string{seg.file}, Verify: true}, func(_ int, a *response) error {
			damaged = a.Err != "" && !a.Temporary
			return nil
		})
		if err != nil || !damaged {
			continue
		}
		s.mu.Lock()
		sess.dicts, sess.chains, sess.numbered = nil, nil, nil
		sess.paths.reload()
		sess.epoch++
		sess.segments = slices.DeleteFunc(slices.Clone(sess.segments), func(x *segment) bool { return x == seg })
		sess.summarize()
		sess.version++
		if len(sess.segments) == 0 {
			delete(s.sessions, sessionKey{sess.project, sess.id})
		}
		sess.rebuiltLost = false
		s.mu.Unlock()
		if s.distrustChains(ctx, sess, nil) != nil {
			s.failures.Add(1)
		}
		// A query that has opened the session before may attach the segment once more.
		if s.detach(ctx, seg) == nil {
			if err := s.setAside(seg.file, unused(seg.file, ".damaged"), reason); err != nil {
				s.failures.Add(1)
			}
		}
	}
}

func (s *Store) reportDamaged(name string, reason error) {
	s.damaged.Add(1)
	if s.cfg.Damaged != nil {
		s.cfg.Damaged(name, reason)
	}
}

// unused returns a name for a file that is set aside. Neither it nor that of its logs exists.
func unused(file, suffix string) string {
	name := file + suffix
	for i := 1; ; i++ {
		taken := false
		for _, s := range segmentFiles {
			_, err := os.Lstat(name + s)
			taken = taken || !errors.Is(err, os.ErrNotExist)
		}
		if !taken {
			return name
		}
		name = file + "." + strconv.FormatInt(time.Now().Unix(), 10) + "-" + strconv.Itoa(i) + suffix
	}
}

// each runs a query and calls scan for each row. It replaces {db} by db.
func (s *Store) each(ctx context.Context, query string, args []any, scan func(*sql.Rows) error, db ...string) error {
	if len(db) > 0 {
		query = strings.ReplaceAll(query, "{db}", db[0])
	}
	return eachRow(ctx, s.db, query, args, scan)
}

// withTx calls run in a transaction, and commits it unless run returns an error.
//
// DuckDB plans a statement without parameters when it is prepared, with the statistics of that moment. Outside of
// a transaction, it runs in a later one: of rows that are committed meanwhile, its answer lacks some or has wrong
// values (https://github.com/duckdb/duckdb/issues/23704). A statement with parameters is planned when it runs.
func (s *Store) withTx(ctx context.Context, run func(*sql.Tx) error) error {
	_, tx, end, err := s.beginTx(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := run(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// beginTx begins a transaction on a connection of its own, for the reason that withTx gives. End ends both, and
// rolls back what is not committed.
//
// The end of ctx ends the statements, not the transaction: database/sql would roll back in another goroutine, while
// the segments are already released. After a detachment, DuckDB keeps a file until the last transaction that used
// it has ended.
func (s *Store) beginTx(ctx context.Context) (conn *sql.Conn, tx *sql.Tx, end func(), err error) {
	if conn, err = s.db.Conn(ctx); err != nil {
		return nil, nil, nil, err
	}
	if tx, err = conn.BeginTx(context.WithoutCancel(ctx), nil); err != nil {
		return nil, nil, nil, errors.Join(err, conn.Close())
	}
	return conn, tx, func() {
		_ = tx.Rollback()
		_ = conn.Close()
	}, nil
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func eachRow(ctx context.Context, q querier, query string, args []any, scan func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, query, args...)
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
