// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Store is a store of DuckDB files. It implements [store.Store].
//
// Locks are taken in this order: write, mu, attach.
type Store struct {
	cfg      Config
	dir      string // absolute
	readOnly bool   // in the process that reads files
	lock     *os.File
	db       *sql.DB

	write  sync.Mutex // one transaction at a time
	writer *sql.Conn

	mu        sync.RWMutex // the fields below and the contents of all sessions
	sessions  map[sessionKey]*session
	baselines []baselineEntry // written with write too
	closed    bool
	loaded    bool // all segments of the directory are known

	attach   sync.Mutex // attachments of segments
	released *sync.Cond
	attached map[*segment]struct{}
	sequence uint64

	journal *journal
	recent  map[sessionKey]time.Time // when sessions were written, guarded by write
	writers map[*session]uint64      // of which the writer remembers entries, with their order; guarded by write
	written uint64                   // the last order
	wake    chan struct{}            // the journal has rows
	stop    context.CancelFunc       // ends settleLoop
	settles sync.WaitGroup           // of settleLoop

	gapTail, gapLag, gapPart, denseTail, smallTree, largeTree, maxChained, rebuildPart, fewOps, keptTop, keptGroup, topPart, manyPlaces int64 // see the constants; tests change them
	maxPartial                                                                                                                          int
	maxRemembered                                                                                                                       int64
	maxTails                                                                                                                            int
	directSessions                                                                                                                      int
	listedBacklog                                                                                                                       int
	settleInterval, maxExclusiveWait                                                                                                    time.Duration
	maxJournal                                                                                                                          int64
	checks                                                                                                                              sync.WaitGroup // of suspect
	snapshots                                                                                                                           snapshots
	catalogSaved                                                                                                                        time.Time // guarded by write

	rows, duplicates, replaced, rejected atomic.Int64
	commits, commitNs, failures          atomic.Int64
	damaged, deleted                     atomic.Int64
}

type sessionKey struct{ project, session string }

var _ store.Store = (*Store)(nil)

// Open opens the store in cfg.Directory and creates it if absent. The directory belongs to one
// process: a second one gets an error that wraps [store.ErrInUse].
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	cfg.defaults()
	dir, err := filepath.Abs(cfg.Directory)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if dir, err = resolved(dir); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{cfg: cfg, dir: dir, sessions: map[sessionKey]*session{}, attached: map[*segment]struct{}{},
		gapTail: gapTail, gapLag: gapLag, gapPart: maxGapPart, denseTail: denseTail, smallTree: smallTree, largeTree: largeTree, maxChained: maxChained, rebuildPart: rebuildPart, fewOps: fewOps, keptTop: keptTop, keptGroup: keptGroup, topPart: topPart, manyPlaces: manyPlaces, maxPartial: maxPartial, directSessions: directSessions, listedBacklog: listedBacklog, settleInterval: settleInterval, maxExclusiveWait: maxExclusiveWait,
		maxRemembered: maxRemembered, maxTails: maxTails, writers: map[*session]uint64{},
		maxJournal: maxJournal, recent: map[sessionKey]time.Time{}, wake: make(chan struct{}, 1)}
	s.released = sync.NewCond(&s.attach)
	if s.lock, err = lockDirectory(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.Close(ctx)
		}
	}()
	if err = s.moveReserved(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if s.db, err = openInstance(cfg, dir); err != nil {
		return nil, fmt.Errorf("open DuckDB: %w", err)
	}
	if s.writer, err = s.db.Conn(ctx); err != nil {
		return nil, fmt.Errorf("open DuckDB: %w", err)
	}
	if err = errors.Join(s.load(ctx), s.loadBaselines()); err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	s.loaded, s.catalogSaved = true, time.Now()
	if err = s.loadJournal(ctx); err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.settles.Go(func() { s.settleLoop(running) })
	return s, nil
}

// resolved creates a directory and returns its path without symbolic links.
func resolved(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("open store %s: %w: stop it or configure another directory", dir, store.ErrInUse)
		}
		return nil, fmt.Errorf("lock store %s: %w", dir, err)
	}
	return f, nil
}

// openInstance opens a DuckDB instance that reads and writes files below dir only.
func openInstance(cfg Config, dir string) (*sql.DB, error) {
	temp := filepath.Join(dir, "tmp")
	// What a process left that was killed.
	if err := os.RemoveAll(temp); err != nil {
		return nil, err
	}
	return openDuckDB(cfg, "temp_directory="+quote(temp), "allowed_directories=["+quote(dir+"/")+"]")
}

// openDuckDB opens a DuckDB instance that loads no extensions and opens only the files that a setting
// allows. Statements cannot change the settings.
func openDuckDB(cfg Config, settings ...string) (*sql.DB, error) {
	// A checkpoint rewrites the end of each table. At the default of 16 MiB they take a third of the
	// time of a load.
	settings = slices.Concat(settings, []string{
		"autoinstall_known_extensions=false", "autoload_known_extensions=false",
		fmt.Sprintf("memory_limit='%dB'", cfg.MemoryLimit), fmt.Sprintf("threads=%d", cfg.Threads),
		// By default the allocator keeps what was freed for up to 128 MiB of each thread.
		"allocator_background_threads=true", "allocator_flush_threshold='16MiB'",
		// It lets a scan for ORDER BY and LIMIT begin at the row group with the first value. If another transaction
		// has begun to append that row group, it has no rows yet, and DuckDB 1.5.6 ends the scan there.
		"disabled_optimizers='row_group_pruner'",
		fmt.Sprintf("max_temp_directory_size='%dB'", cfg.TempLimit),
		"preserve_insertion_order=true", "checkpoint_threshold='64MiB'", "enable_external_access=false", "lock_configuration=true",
	})
	var once sync.Once
	connector, err := duckdb.NewConnector("", func(conn driver.ExecerContext) (err error) {
		once.Do(func() {
			for _, set := range settings {
				if _, err = conn.ExecContext(context.Background(), "SET GLOBAL "+set, nil); err != nil {
					err = fmt.Errorf("set %s: %w", set, err)
					return
				}
			}
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(8)
	db.SetMaxOpenConns(32)
	return db, nil
}

// Close waits for running calls and closes all files.
func (s *Store) Close(context.Context) error {
	if s.stop != nil {
		s.stop()
		s.settles.Wait()
	}
	defer s.checks.Wait()
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.RLock()
	closed := s.closed
	s.mu.RUnlock()
	if closed {
		return nil
	}
	errs := []error{s.closeJournal()}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.closeSnapshots()
	if s.db != nil {
		s.attach.Lock()
		for seg := range s.attached {
			for seg.refs > 0 {
				s.released.Wait()
			}
			errs = append(errs, s.detachLocked(context.Background(), seg))
		}
		s.attach.Unlock()
		if s.loaded {
			errs = append(errs, s.saveCatalog())
		}
		if s.writer != nil {
			errs = append(errs, s.writer.Close())
		}
		errs = append(errs, s.db.Close())
	}
	errs = append(errs, s.lock.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// Stats returns counters.
func (s *Store) Stats() Stats {
	sessions, rows := s.journal.waiting()
	st := Stats{
		Waiting: rows, WaitingSessions: sessions,
		Rows: s.rows.Load(), Duplicates: s.duplicates.Load(), Replaced: s.replaced.Load(),
		Rejected: s.rejected.Load(), Commits: s.commits.Load(),
		CommitTime: time.Duration(s.commitNs.Load()), Failures: s.failures.Load(),
		Damaged: s.damaged.Load(), Deleted: s.deleted.Load(),
	}
	s.mu.RLock()
	st.Sessions = int64(len(s.sessions))
	var files []string
	for _, sess := range s.sessions {
		st.Segments += int64(len(sess.segments))
		for _, seg := range sess.segments {
			files = append(files, seg.file)
		}
	}
	s.mu.RUnlock()
	st.Bytes = s.journal.size.Load()
	for _, f := range files {
		st.Bytes += sizeOf(f)
	}
	s.attach.Lock()
	st.Attached = int64(len(s.attached))
	s.attach.Unlock()
	return st
}

// sizeOf returns the size of a segment and its write-ahead logs on disk.
func sizeOf(file string) int64 {
	var n int64
	for _, suffix := range segmentFiles {
		if fi, err := os.Stat(file + suffix); err == nil {
			n += fi.Size()
		}
	}
	return n
}

// temporary reports whether an error of DuckDB says nothing about the file: it may succeed later.
func temporary(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	text := err.Error()
	if strings.Contains(text, "Could not read enough bytes") {
		return false // the file is too short
	}
	for _, part := range []string{
		"No space left", "Too many open files", "Out of Memory", "could not allocate", "Permission denied", "Could not set lock",
		"Disk quota", "INTERRUPT", "Read-only file system", "File too large", "max_temp_directory_size",
		"Input/output error", "Could not write", "Could not read", "Could not truncate", "fsync",
	} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// failed prepares a session for the next call after an error of DuckDB, and returns the error. It wraps
// [store.ErrRetry] if the call may succeed later.
func (s *Store) failed(ctx context.Context, sess *session, err error) error {
	s.reopen(sess)
	switch {
	case ctx.Err() != nil || !temporary(err) || errors.Is(err, store.ErrRetry):
		return err
	case strings.Contains(err.Error(), "No space left"):
		return fmt.Errorf("%w: no space left on the disk of %s", store.ErrRetry, s.dir)
	}
	return fmt.Errorf("%w: %w", store.ErrRetry, err)
}

// damaging reports whether an error of DuckDB says that a file is damaged or missing.
func damaging(err error) bool {
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	text := err.Error()
	for _, part := range []string{
		"Corrupt", "corrupt", "Could not read enough bytes", "Serialization Error", "INTERNAL Error", "FATAL Error",
		"not a valid DuckDB database file", "Failure while replaying WAL", "has been invalidated",
	} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
