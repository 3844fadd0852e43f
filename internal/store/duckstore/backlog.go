// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
)

// A transaction of a session takes 7 ms of CPU time while its segment is open, and 30 ms more to open and
// close it. An open segment needs 4 MB and more of DuckDB's memory, so that those of hundreds of sessions
// cannot stay open. Hence the rows of many sessions go to the journal, which takes one write and one
// fsync for all. The store moves those of one session after the other to its segment.
const (
	// directSessions is the number of sessions within activeFor up to which rows go to segments directly.
	directSessions = 12
	activeFor      = 30 * time.Second
	// directRows of a session in one call go to its segment directly.
	directRows = 20_000
	// settleInterval is the time from one session to the next: 30 ms each are a tenth of a core.
	settleInterval = 300 * time.Millisecond
	// settleRows is the number of rows of a transaction that moves rows from the journal.
	settleRows = 50_000
	// retryInterval is the time after a failure of a move.
	retryInterval = 5 * time.Second
	// maxJournal is the size of the journal from which each writer moves the rows of a session. From half
	// of it on, moves do not wait, and from twice of it on, writers fail.
	maxJournal = 512 << 20
	// closeTime bounds the moves in Close. The next process does the others.
	closeTime = 5 * time.Second
	// listedBacklog is the number of sessions in the journal up to which a list of sessions includes
	// their rows.
	listedBacklog = 4
)

// defers reports whether the rows of this call go to the journal. The caller holds Store.write.
func (s *Store) defers(groups map[sessionKey][]*store.Batch) bool {
	now := time.Now()
	for k := range groups {
		s.recent[k] = now
	}
	for k, at := range s.recent {
		if now.Sub(at) > activeFor {
			delete(s.recent, k)
		}
	}
	return len(s.recent) > s.directSessions
}

// writeJournal makes the rows of sessions durable, and removes these sessions from groups. It leaves
// large groups and sessions without rows.
func (s *Store) writeJournal(groups map[sessionKey][]*store.Batch, total *store.Result) error {
	var batches []*store.Batch
	var moved []sessionKey
	var result store.Result
	for k, group := range groups {
		if sess := s.session(k); sess != nil && sess.dropped {
			continue
		}
		rows := int64(0)
		for _, b := range group {
			rows += int64(b.Rows())
		}
		if rows >= directRows {
			continue
		}
		moved = append(moved, k)
		valid, rejected := validRows(group)
		result.Rejected += rejected
		result.Deferred += rows - rejected
		if !valid.empty() {
			batches = append(batches, group...)
		}
	}
	if len(batches) > 0 {
		if err := s.relieve(context.Background()); err != nil {
			return err
		}
		if err := s.journal.append(batches); err != nil {
			return fmt.Errorf("%w: write journal: %w", store.ErrRetry, err)
		}
	}
	for _, k := range moved {
		delete(groups, k)
	}
	total.Rejected += result.Rejected
	total.Deferred += result.Deferred
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

func (s *Store) session(k sessionKey) *session {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sessions[k]
}

// relieve slows writers down while the journal is large. A file of the journal stays until all its rows
// are moved, so a call cannot wait until the journal is small.
func (s *Store) relieve(ctx context.Context) error {
	size := s.journal.size.Load()
	k, ok := s.oldest()
	if size <= s.maxJournal || !ok {
		return nil
	}
	err := s.settleClosed(ctx, k)
	if err == nil && s.journal.size.Load() > 2*s.maxJournal {
		err = fmt.Errorf("%w: it waits for segments", store.ErrRetry)
	}
	if err != nil {
		s.journal.postpone(k)
		return fmt.Errorf("the journal has %d MiB: %w", size>>20, err)
	}
	return nil
}

// settle moves the rows of a session from the journal to its segments. The caller holds Store.write.
func (s *Store) settle(ctx context.Context, k sessionKey) error {
	if s.closed {
		return errClosed
	}
	for {
		l := s.journal.backlog(k)
		if l == nil {
			return nil
		}
		var batches []*store.Batch
		rows, n := 0, 0
		for n < len(l.records) && (n == 0 || rows+l.records[n].rows <= settleRows) {
			b, err := l.records[n].read()
			if err != nil {
				return fmt.Errorf("%w: %w", store.ErrRetry, err)
			}
			batches = append(batches, b)
			rows += l.records[n].rows
			n++
		}
		if err := s.settleRecords(ctx, k, batches); err != nil {
			return err
		}
		if sess := s.session(k); sess != nil {
			s.shortenTail(ctx, sess)
		}
		if err := s.journal.done(k, n, false); err != nil {
			s.failures.Add(1) // the rows are stored, and are duplicates if they come back
		}
	}
}

// settleRecords writes batches that were acknowledged. If the segments cannot hold some of them, these are
// counted as rejected.
func (s *Store) settleRecords(ctx context.Context, k sessionKey, batches []*store.Batch) error {
	_, invalid := validRows(batches) // counted when they were delivered
	result := store.Result{Rejected: -invalid}
	err := s.writeSession(ctx, k, batches, &result)
	if err != nil {
		s.failures.Add(1)
		retry := ctx.Err() != nil || errors.Is(err, store.ErrRetry)
		switch {
		case retry:
			err = fmt.Errorf("write session %q: %w", k.session, err)
		case len(batches) > 1:
			err = nil
			for _, b := range batches {
				if err = s.settleRecords(ctx, k, []*store.Batch{b}); err != nil {
					break
				}
			}
			return err
		default:
			result.Rejected = int64(batches[0].Rows()) - invalid - result.Written - result.Duplicates - result.Replaced
			err = nil
		}
	}
	s.count(&result)
	if s.cfg.Settled != nil {
		s.cfg.Settled(result)
	}
	return err
}

// loadJournal opens the journal. Sessions that have no segments get them now, so that readers find them.
func (s *Store) loadJournal(ctx context.Context) (err error) {
	if s.journal, err = openJournal(s.dir, s.reportDamaged); err != nil {
		return err
	}
	s.write.Lock()
	defer s.write.Unlock()
	for _, k := range s.journal.keys() {
		if s.session(k) != nil {
			continue
		}
		// A full disk may have space again later.
		if err := s.settleClosed(ctx, k); err != nil && !errors.Is(err, store.ErrRetry) {
			return err
		}
	}
	return ctx.Err()
}

// ready moves the rows of a session, if it has any in the journal, before they are read. If the disk is
// full, readers find the rows that are in segments. A session without a segment cannot be read then.
func (s *Store) ready(ctx context.Context, k sessionKey) error {
	if s.readOnly || s.journal.backlog(k) == nil {
		return nil
	}
	err := s.exclusive(ctx, func() error { return s.settle(ctx, k) })
	if err != nil && (s.session(k) == nil || !errors.Is(err, store.ErrRetry)) {
		return err
	}
	return ctx.Err()
}

// maxExclusiveWait is how long a reader waits for Store.write.
const maxExclusiveWait = 30 * time.Second

// exclusive calls f with Store.write held. It returns before the end of f when ctx ends. The caller may be a scan that
// holds segments, and the holder of Store.write may wait for these: so it returns [store.ErrRetry] if it waits too long.
func (s *Store) exclusive(ctx context.Context, f func() error) error {
	s.mu.RLock()
	closed := s.closed
	if !closed {
		s.checks.Add(1)
	}
	s.mu.RUnlock()
	if closed {
		return errClosed
	}
	locked, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer s.checks.Done()
		s.write.Lock()
		defer s.write.Unlock()
		close(locked)
		done <- f()
	}()
	wait := time.After(s.maxExclusiveWait)
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-locked:
			locked, wait = nil, nil
		case <-wait:
			return fmt.Errorf("writers of the store have not ended for %s: %w", s.maxExclusiveWait, store.ErrRetry)
		}
	}
}

// settleClosed is settle, and closes the segments of the session again.
func (s *Store) settleClosed(ctx context.Context, k sessionKey) error {
	sess, open := s.session(k), false
	if sess != nil {
		s.attach.Lock()
		open = slices.ContainsFunc(sess.segments, func(seg *segment) bool { return seg.alias != "" })
		s.attach.Unlock()
	}
	err := s.settle(ctx, k)
	if sess = s.session(k); sess != nil && !open {
		s.reopen(sess)
	}
	return err
}

// oldest returns the session whose rows wait longest in the journal. Sessions that readers do not find
// yet come first.
func (s *Store) oldest() (oldest sessionKey, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	var since time.Time
	fresh := false
	for k, l := range s.journal.sessions {
		isNew := s.sessions[k] == nil
		if !ok || isNew && !fresh || isNew == fresh && l.since.Before(since) {
			oldest, since, fresh, ok = k, l.since, isNew, true
		}
	}
	return oldest, ok
}

// settleLoop moves the rows of one session after the other until ctx ends.
func (s *Store) settleLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait, empty := s.settleNext(context.WithoutCancel(ctx))
		if empty {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			}
			s.write.Lock()
			wait = s.settleInterval
			s.write.Unlock()
		}
		timer.Reset(wait)
	}
}

// settleNext moves the rows of the session that waits longest, and returns how long the next one waits.
func (s *Store) settleNext(ctx context.Context) (wait time.Duration, empty bool) {
	s.write.Lock()
	defer s.write.Unlock()
	k, ok := s.oldest()
	if !ok {
		return 0, true
	}
	fresh := s.session(k) == nil
	if err := s.settleClosed(ctx, k); err != nil {
		s.journal.postpone(k)
		return retryInterval, false
	}
	if fresh || s.journal.size.Load() > s.maxJournal/2 {
		return 0, false // a fresh session so that readers find it
	}
	return s.settleInterval, false
}

// closeJournal moves what it can within closeTime. The caller holds Store.write.
func (s *Store) closeJournal() error {
	if s.journal == nil {
		return nil
	}
	for until := time.Now().Add(closeTime); time.Now().Before(until); {
		k, ok := s.oldest()
		if !ok || s.settle(context.Background(), k) != nil {
			break
		}
	}
	return s.journal.close()
}
