// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
)

// lockSession locks the writer and moves the rows of a session from the journal.
func (s *Store) lockSession(ctx context.Context, project, id string) error {
	s.write.Lock()
	err := s.settle(ctx, sessionKey{project, id})
	if err != nil {
		s.write.Unlock()
	}
	return err
}

// named returns a session that is not the data without a session.
func (s *Store) named(ctx context.Context, project, id string) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if id == "" {
		return nil, fmt.Errorf("session %q: %w", id, store.ErrNotFound)
	}
	return s.lookup(project, id)
}

// mark sets a property of all segments of a session.
func (s *Store) mark(ctx context.Context, sess *session, key, value string, checkpoint bool) error {
	for _, seg := range sess.segments {
		if err := s.acquire(ctx, seg); err != nil {
			return err
		}
		err := s.setMeta(ctx, seg, key, value)
		if err == nil && checkpoint {
			_, err = s.db.ExecContext(ctx, "FORCE CHECKPOINT "+seg.alias)
		}
		s.release(seg)
		if err != nil {
			return err
		}
	}
	return nil
}

// Pin implements [store.Admin].
func (s *Store) Pin(ctx context.Context, project, id string, pinned bool) error {
	if err := s.lockSession(ctx, project, id); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	defer s.write.Unlock()
	sess, err := s.named(ctx, project, id)
	if err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	value := "0"
	if pinned {
		value = "1"
	}
	if err = s.mark(ctx, sess, "pinned", value, false); err != nil {
		return fmt.Errorf("pin session %q: %w", id, s.failed(ctx, sess, err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sess.pinned = pinned
	return nil
}

// Seal implements [store.Admin].
func (s *Store) Seal(ctx context.Context, project, id string) error {
	if err := s.lockSession(ctx, project, id); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	defer s.write.Unlock()
	sess, err := s.named(ctx, project, id)
	if err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	if sess.sealed {
		return nil
	}
	s.refreshChains(ctx, sess, true)
	for _, seg := range sess.segments {
		if err = s.merge(ctx, sess, seg); err != nil {
			return fmt.Errorf("seal session %q: %w", id, s.failed(ctx, sess, err))
		}
	}
	if !sess.dropped {
		if err = s.extendGaps(ctx, sess, true); err != nil {
			return fmt.Errorf("seal session %q: %w", id, s.failed(ctx, sess, err))
		}
	}
	if err = s.mark(ctx, sess, "sealed", "1", true); err != nil {
		return fmt.Errorf("seal session %q: %w", id, s.failed(ctx, sess, err))
	}
	sess.forget()
	s.mu.Lock()
	defer s.mu.Unlock()
	sess.sealed = true
	return nil
}

func (s *Store) merge(ctx context.Context, sess *session, seg *segment) error {
	if err := s.acquire(ctx, seg); err != nil {
		return err
	}
	defer s.release(seg)
	return s.mergeRollups(ctx, sess, seg, true)
}

// Delete implements [store.Admin].
func (s *Store) Delete(ctx context.Context, project, id string) error {
	s.write.Lock()
	defer s.write.Unlock()
	k := sessionKey{project, id}
	if s.session(k) == nil {
		// All its rows may be in the journal.
		if err := s.settle(ctx, k); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
	}
	sess, err := s.named(ctx, project, id)
	if err == nil {
		err = s.remove(ctx, sess, sess.segments)
	}
	if err == nil {
		err = s.removeBaselines(k)
	}
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// remove deletes segments of a session. Running queries end first. After an error, the session has the
// segments that are left.
func (s *Store) remove(ctx context.Context, sess *session, segments []*segment) error {
	k := sessionKey{sess.project, sess.id}
	if l := s.journal.backlog(k); l != nil && sess.id != "" {
		if err := s.journal.done(k, len(l.records), true); err != nil {
			return err
		}
	}
	s.mu.Lock()
	sess.dicts, sess.numbered = nil, nil
	sess.paths.reload()
	sess.segments = slices.DeleteFunc(slices.Clone(sess.segments), func(x *segment) bool { return slices.Contains(segments, x) })
	sess.summarize()
	sess.version++
	if len(sess.segments) == 0 {
		delete(s.sessions, k)
	}
	s.mu.Unlock()
	s.removeSnapshots(func(x *snapshot) bool { return x.key == sessionKey{sess.project, sess.id} })
	for i, seg := range segments {
		err := s.detach(context.WithoutCancel(ctx), seg)
		if err == nil {
			err = removeFile(seg.file)
		}
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			sess.segments = slices.Concat(sess.segments, segments[i:])
			slices.SortFunc(sess.segments, func(a, b *segment) int { return cmp.Compare(a.from, b.from) })
			sess.summarize()
			sess.version++
			s.sessions[k] = sess
			return err
		}
	}
	if len(sess.segments) == 0 {
		if err := s.removeKept(sess.dir); err != nil {
			return err
		}
	}
	if err := os.Remove(sess.dir); err != nil && len(sess.segments) == 0 && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	return nil
}

// unit is what retention deletes: a session, or a day of data without one.
type unit struct {
	sess     *session
	segments []*segment
	last     int64
}

func (u *unit) size() (n int64) {
	for _, seg := range u.segments {
		n += sizeOf(seg.file)
	}
	return n
}

func (u *unit) dropped() bool {
	return !slices.ContainsFunc(u.segments, func(seg *segment) bool { return !seg.dropped })
}

// rawMaxAge is the reason for which only rows are deleted.
const rawMaxAge = "raw_max_age"

// dropRows writes the segments of a session without operations and samples. After a crash between
// two segments, readers find no rows in either, and the next call does the rest.
func (s *Store) dropRows(ctx context.Context, u unit) error {
	s.mu.Lock()
	u.sess.dropped = true
	u.sess.version++
	s.mu.Unlock()
	u.sess.forget()
	for _, seg := range u.segments {
		if seg.dropped {
			continue
		}
		if err := s.dropSegment(ctx, u.sess, seg); err != nil {
			return err
		}
		seg.dropped = true
		u.sess.paths.forget()
	}
	return nil
}

func (s *Store) dropSegment(ctx context.Context, sess *session, seg *segment) error {
	building := seg.file + ".new"
	if err := removeFile(building); err != nil {
		return err
	}
	if err := s.acquire(ctx, seg); err != nil {
		return err
	}
	meta, err := s.readMeta(ctx, seg)
	if err == nil {
		meta["rows_dropped"] = "1"
		delete(meta, topProperty)
		err = s.createFile(ctx, building, meta, &view{s: s, sess: sess, segments: []*segment{seg}, dropped: true})
	}
	s.release(seg)
	if err == nil {
		err = s.replace(ctx, seg, building)
	}
	if err != nil {
		_ = removeFile(building)
		return err
	}
	return syncDirectory(sess.dir)
}

// replace puts another file in the place of a segment. Running queries end first.
func (s *Store) replace(ctx context.Context, seg *segment, file string) error {
	s.attach.Lock()
	defer s.attach.Unlock()
	for seg.refs > 0 {
		s.released.Wait()
	}
	if err := s.detachLocked(context.WithoutCancel(ctx), seg); err != nil {
		return err
	}
	if _, err := os.Stat(seg.file + ".wal"); err == nil {
		return fmt.Errorf("replace %s: it has a write-ahead log", seg.file)
	}
	return os.Rename(file, seg.file)
}

func (s *Store) units() []unit {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var units []unit
	for k, sess := range s.sessions {
		if k.session == "" {
			for _, seg := range sess.segments {
				units = append(units, unit{sess, []*segment{seg}, seg.from + dayNs - 1})
			}
		} else if sess.sealed && !sess.pinned && !s.isBaseline(k) && s.journal.backlog(k) == nil {
			units = append(units, unit{sess, sess.segments, sess.info.LastNs})
		}
	}
	slices.SortFunc(units, func(a, b unit) int {
		return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.sess.project, b.sess.project), cmp.Compare(a.sess.id, b.sess.id))
	})
	return units
}

// Retain implements [store.Admin]. A session that it cannot delete does not keep it from deleting others.
func (s *Store) Retain(ctx context.Context, l store.Retention) ([]store.Deleted, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("retain: %w", err)
	}
	s.write.Lock()
	defer s.write.Unlock()
	// Days of data without a session that are in the journal only count too. A full disk may prevent their
	// move, and then needs the deletions below.
	for _, k := range s.journal.keys() {
		if k.session != "" {
			continue
		}
		if err := s.settleClosed(ctx, k); err != nil && !errors.Is(err, store.ErrRetry) {
			return nil, fmt.Errorf("retain: %w", err)
		}
	}
	var deleted []store.Deleted
	var failed error // the first
	now := time.Now().UnixNano()
	var total int64
	if l.MaxSize > 0 {
		total = s.Stats().Bytes
	}
	for _, rule := range []struct {
		reason   string
		exceeded func(u unit) (bool, error)
	}{
		{"max_age", func(u unit) (bool, error) { return l.MaxAge > 0 && u.last < now-int64(l.MaxAge), nil }},
		{"max_size", func(unit) (bool, error) { return l.MaxSize > 0 && total > l.MaxSize, nil }},
		{"min_free", func(unit) (bool, error) {
			if l.MinFree <= 0 {
				return false, nil
			}
			var st syscall.Statfs_t
			err := syscall.Statfs(s.dir, &st)
			return int64(st.Bavail)*int64(st.Bsize) < l.MinFree, err //nolint:unconvert // uint32 on macOS
		}},
		{rawMaxAge, func(u unit) (bool, error) {
			return l.RawMaxAge > 0 && u.last < now-int64(l.RawMaxAge) && u.sess.id != "" && !u.dropped(), nil
		}},
	} {
		for _, u := range s.units() {
			exceeded, err := rule.exceeded(u)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return deleted, fmt.Errorf("retain: %w", err)
			}
			if !exceeded {
				continue
			}
			size := u.size()
			switch rule.reason {
			case rawMaxAge:
				if err = s.dropRows(ctx, u); err != nil {
					err = s.failed(ctx, u.sess, err)
				}
			default:
				err = s.remove(ctx, u.sess, u.segments)
			}
			size -= u.size()
			total -= size
			if err != nil {
				failed = cmp.Or(failed, fmt.Errorf("retain: session %q of project %q: %w", u.sess.id, u.sess.project, err))
				continue
			}
			s.deleted.Add(1)
			deleted = append(deleted, store.Deleted{Project: u.sess.project, Session: u.sess.id, Reason: rule.reason, Bytes: size})
		}
	}
	return deleted, failed
}

// Export implements [store.Admin]. It merges the segments of the session. The file must not exist.
func (s *Store) Export(ctx context.Context, project, id, file string) error {
	v, err := s.open(ctx, project, id, false)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer v.close()
	// DuckDB may only write below the directory of the store.
	building, err := s.scratch(".new")
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer func() { _ = removeFile(building) }()
	meta := map[string]string{"schema_version": strconv.Itoa(schemaVersion()), "project": "", "session": id,
		"segment": "1", "from_ns": "0", "sealed": "1"}
	if v.dropped {
		meta["rows_dropped"] = "1"
	}
	if v.stale {
		meta[staleChains] = "1"
	}
	if v.coarse {
		meta[coarse] = "1"
	}
	if err = s.createFile(ctx, building, meta, v); err == nil {
		err = copyNew(building, file)
	}
	if err != nil {
		return fmt.Errorf("export session %q: %w", id, err)
	}
	return nil
}

// copyNew copies a file to a new name and syncs it.
func copyNew(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = out.ReadFrom(in)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		_ = os.Remove(to)
	}
	return err
}

// copyRows copies the tables of a view into an attached file, except those of the first operations.
func (v *view) copyRows(ctx context.Context, tx *sql.Tx, alias string) error {
	for _, t := range slices.Concat(rowTables[:], dictTables[:], rollupTables[:], []string{pathTable}) {
		if t == "top_ops" || t == "top_groups" || v.dropped && (t == "ops" || t == "samples") {
			continue
		}
		var parts []string
		for _, seg := range v.segments {
			parts = append(parts, "SELECT * FROM "+seg.alias+"."+t)
		}
		query := strings.Join(parts, " UNION ALL ")
		if t == pathTable || slices.Contains(dictTables[:], t) {
			query = "SELECT DISTINCT ON (id) * FROM (" + query + ")"
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+alias+"."+t+" "+query); err != nil {
			return err
		}
	}
	return nil
}
