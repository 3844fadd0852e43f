// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"errors"
	"io/fs"
	"math"
	"slices"
	"time"
)

// pick selects the next log file as cur. It returns false if there is none now, and sets the time
// to retry.
func (s *Stream) pick() bool {
	e, blocked := s.oldestUnread(fileID{})
	switch {
	case s.parked != nil && (e == nil || s.isParked(e)):
		s.cur, s.parked = s.parked, nil
		return true
	case e == nil:
		return !blocked && s.pickLive()
	}
	s.start(e)
	s.cur.late = s.isLate(e)
	return true
}

// pickLive starts the live log file of a layout whose other files are numbered.
func (s *Stream) pickLive() bool {
	if s.group.layout != Windows {
		return false // in shifting layouts the live log file is among the others
	}
	for i := range s.files {
		if e := &s.files[i]; e.open && e.size > 0 && !s.held(e) && !s.isPublished(e) {
			if !s.group.listed.Equal(s.now()) {
				// The data in the live file may be newer than a log file that appeared after the
				// last listing.
				s.group.needList.Store(true)
				s.wait(s.now())
				return false
			}
			s.start(e)
			s.cur.hint = s.nextNumber()
			return true
		}
	}
	return false
}

// isPublished reports whether the live file still holds the log file that was last read under its
// number. C2 publishes the data of the live file before it truncates the file. The file has not
// changed since then, so it is not newer.
func (s *Stream) isPublished(e *entry) bool {
	i := slices.IndexFunc(s.files, func(o entry) bool { return o.seq == s.doneN && s.doneN > 0 })
	if i < 0 || e.mtime > s.files[i].mtime {
		return false
	}
	return slices.ContainsFunc(s.done, func(d completedFile) bool {
		return d.n == s.doneN && d.fp.n > 0 && d.size == e.size && beginsLike(e, d.fp)
	})
}

func (s *Stream) start(e *entry) { s.cur = &logFile{ent: *e, n: e.seq, stale: true} }

// nextNumber returns the number that the live log file will get: log files are numbered in order
// when they are cut.
func (s *Stream) nextNumber() uint64 {
	n := max(s.doneN, s.sidecarMax)
	for i := range s.files {
		n = max(n, s.files[i].seq)
	}
	return n + 1
}

// oldestUnread returns the oldest undelivered log file, except the live one of the Windows layout
// and the file except. nil means that there is none, or, if blocked, that an earlier one is
// awaited.
func (s *Stream) oldestUnread(except fileID) (e *entry, blocked bool) {
	if s.group.layout.shifts() {
		return s.oldestUnreadShifting(except)
	}
	return s.oldestUnreadNumbered(except)
}

func (s *Stream) oldestUnreadShifting(except fileID) (_ *entry, blocked bool) {
	oldestDone := 0
	if s.evicted {
		oldestDone = slices.IndexFunc(s.files, func(e entry) bool { return s.isDone(&e) })
	}
	for i := range s.files {
		e := &s.files[i]
		switch {
		case i < oldestDone, e.id == except, e.open && e.size == 0, s.isDone(e), s.isTwin(e):
		case s.held(e):
			if s.now().Sub(s.denied[e.path].since) < graceFactor*s.cfg().MissingGrace {
				return nil, true
			}
		default:
			return e, false
		}
	}
	return nil, false
}

// isTwin reports whether a gzip file is, or may become, the compressed form of a log file that is
// read instead. That is the live log file (C1's close), or the plain file of the same number (a
// rotation in progress).
func (s *Stream) isTwin(e *entry) bool {
	if !e.name.Compressed {
		return false
	}
	if e.name.Numbered() {
		return s.hasPlain(e) && !s.fpOf(e).known
	}
	w := s.cur
	if w == nil || !w.open {
		w = s.parked
	}
	if w == nil || !w.open {
		return false
	}
	info := s.fpOf(e)
	switch {
	case !info.known:
		return true // an existing live file has the data
	case info.fp.n <= w.fingerprint().n:
		return info.fp.matches(w.prefix)
	default:
		return beginsLike(e, w.fingerprint())
	}
}

// hasPlain reports whether the uncompressed file of the same number exists.
func (s *Stream) hasPlain(e *entry) bool {
	return slices.ContainsFunc(s.files, func(o entry) bool {
		return !o.name.Compressed && o.name.Index == e.name.Index
	})
}

func (s *Stream) oldestUnreadNumbered(except fileID) (_ *entry, blocked bool) {
	var unreadable uint64 // the last log file that was skipped because it cannot be opened
	for i := range s.files {
		e := &s.files[i]
		if e.seq == 0 || e.id == except || (e.open && e.size == 0) {
			continue
		}
		late := s.inHole(e.seq)
		if !late && e.seq <= s.doneN {
			continue
		}
		if s.wasUnnumbered(e) {
			s.mark(e.seq)
			continue
		}
		if s.held(e) {
			if s.now().Sub(s.denied[e.path].since) < graceFactor*s.cfg().MissingGrace {
				return nil, true
			}
			unreadable = e.seq
			continue
		}
		s.markMissing(unreadable)
		if !late && s.group.layout == Windows && !s.gapOver(e.seq) {
			return nil, true
		}
		return e, false
	}
	if !slices.ContainsFunc(s.files, func(e entry) bool { return e.open }) {
		s.passLosses(math.MaxUint64)
	}
	s.gapStart, s.gapFirst = time.Time{}, time.Time{}
	return nil, false
}

// gapOver reports whether the file of number next may be read although earlier log files are missing: they
// are reported lost, or nothing has arrived for a while.
func (s *Stream) gapOver(next uint64) bool {
	s.passLosses(next)
	if next == s.doneN+1 {
		s.gapStart, s.gapFirst = time.Time{}, time.Time{}
		return true
	}
	now, grace := s.now(), s.cfg().MissingGrace
	if s.gapFirst.IsZero() {
		s.gapFirst = now
	}
	if s.gapStart.IsZero() || s.gapGen != s.gen {
		s.gapStart, s.gapGen = now, s.gen
	}
	until := s.gapStart.Add(grace)
	if last := s.gapFirst.Add(graceFactor * grace); last.Before(until) {
		until = last
	}
	if now.Before(until) {
		s.wait(until)
		return false
	}
	s.gapStart, s.gapFirst = time.Time{}, time.Time{}
	s.markMissing(next - 1)
	return true
}

// passLosses skips the log files before next that a loss marker names.
func (s *Stream) passLosses(next uint64) {
	for s.doneN+1 < next && slices.Contains(s.losses, s.doneN+1) {
		s.doneN++
		s.problem(Problem{Reason: WindowLost, Path: s.group.path, Number: s.doneN})
	}
}

// mark records that a numbered log file is finished, and that the log files skipped before it are
// missing.
func (s *Stream) mark(n uint64) {
	if n > s.doneN {
		if s.group.layout == Windows {
			s.passLosses(n)
			s.markMissing(n - 1)
		}
		s.doneN = n
		return
	}
	for i, h := range s.holes {
		if n < h.from || n > h.to {
			continue
		}
		var rest []span
		if h.from < n {
			rest = append(rest, span{h.from, n - 1})
		}
		if n < h.to {
			rest = append(rest, span{n + 1, h.to})
		}
		s.holes = slices.Replace(s.holes, i, i+1, rest...)
		s.trimHoles()
		return
	}
}

// markMissing records that the log files up to and including to are missing. They are read if they
// appear later.
func (s *Stream) markMissing(to uint64) {
	if to <= s.doneN {
		return
	}
	from := s.doneN + 1
	s.holes = append(s.holes, span{from, to})
	s.trimHoles()
	s.doneN = to
	s.problem(Problem{Reason: WindowMissing, Path: s.group.path, Number: from, Count: int(to - from + 1)})
}

func (s *Stream) trimHoles() {
	if n := len(s.holes) - maxHoles; n > 0 {
		s.holes = slices.Delete(s.holes, 0, n)
	}
}

func (s *Stream) inHole(n uint64) bool {
	return slices.ContainsFunc(s.holes, func(h span) bool { return h.from <= n && n <= h.to })
}

// wasUnnumbered reports whether a numbered file is a log file that was finished before its number
// was known.
func (s *Stream) wasUnnumbered(e *entry) bool {
	for _, d := range s.done {
		if d.n == 0 && s.fpOf(e).known && s.fpOf(e).fp == d.fp && hasSize(e, d.size) {
			return true
		}
	}
	return false
}

// isDone reports whether a file of a shifting layout is a finished log file.
func (s *Stream) isDone(e *entry) bool {
	if !e.open && !e.name.Compressed && e.size == 0 {
		return true
	}
	if len(s.done) == 0 {
		return false
	}
	info := s.fpOf(e)
	if !info.known {
		return false
	}
	if info.fp.n == 0 {
		return !e.open
	}
	return slices.ContainsFunc(s.done, func(d completedFile) bool {
		// A plain file that is longer than the delivered data was read while it was still being
		// copied.
		return d.fp == info.fp && (e.name.Compressed || e.size <= d.size)
	})
}

// fpOf returns the fingerprint of a file, cached while the file does not change.
func (s *Stream) fpOf(e *entry) fpInfo {
	if info, ok := s.fps[e.key()]; ok {
		return info
	}
	info, err := readInfo(e)
	if err != nil {
		return fpInfo{} // reported when it is opened for reading
	}
	if !e.open {
		s.fps[e.key()] = info
	}
	return info
}

// isLate reports whether newer data than e was already delivered.
func (s *Stream) isLate(e *entry) bool {
	if s.parked != nil || (e.seq > 0 && e.seq <= s.doneN) {
		return true
	}
	if !s.group.layout.shifts() || len(s.done) == 0 {
		return false
	}
	i := slices.IndexFunc(s.files, func(o entry) bool { return o.path == e.path })
	return slices.ContainsFunc(s.files[i+1:], func(o entry) bool { return !o.open && o.size > 0 && s.isDone(&o) })
}

// isParked reports whether e is the log file that was set aside.
func (s *Stream) isParked(e *entry) bool {
	w := s.parked
	switch {
	case w.src != nil && w.src.id == e.id:
		return true
	case e.seq > 0 && max(w.n, w.hint) > 0:
		return e.seq >= max(w.n, w.hint) // a later one comes after it
	}
	return beginsLike(e, w.fingerprint())
}

// parkForOlder sets the live log file aside if older unread log files appeared: files may be copied
// in any order. It checks only when the files have changed.
func (s *Stream) parkForOlder() bool {
	if s.seenGen == s.gen || s.parked != nil {
		return false
	}
	s.seenGen = s.gen
	live := s.cur
	e, blocked := s.oldestUnread(live.src.id)
	if blocked {
		s.seenGen = 0 // check again after the delay
	}
	if e == nil {
		return false
	}
	if live.off == 0 {
		s.detach(live) // nothing was read from it, so it has no state
		s.cur = nil
		return true
	}
	s.cur, s.parked = nil, live
	return true
}

// held reports whether a file could recently not be opened.
func (s *Stream) held(e *entry) bool {
	d, ok := s.denied[e.path]
	if !ok || d.id != e.id || !s.now().Before(d.again) {
		return false
	}
	s.retry(d.again)
	return true
}

// deny records that a file cannot be opened, and reports it once.
func (s *Stream) deny(e *entry, err error) {
	d, ok := s.denied[e.path]
	if !ok || d.id != e.id {
		d = denial{id: e.id, since: s.now()}
	}
	d.again = s.now().Add(retryAfter)
	if s.denied == nil || len(s.denied) >= maxDenied {
		s.denied = make(map[string]denial)
	}
	s.denied[e.path] = d
	s.retry(d.again)
	s.reportOnce(Problem{Reason: errorReason(err), Path: e.path, Number: e.seq, Err: err})
}

// result is the result of one step.
type result uint8

const (
	again result = iota // something changed: continue
	data                // a chunk is ready
	idle                // nothing more before the next scan
)

// attach opens cur's file.
func (s *Stream) attach() result {
	w := s.cur
	if w.off > 0 {
		return s.resume(w)
	}
	e := w.ent
	src, err := openSource(e.path, e.id, e.name.Compressed)
	switch {
	case err == nil:
		w.adopt(src, e)
		s.relocate(w)
		if w.late {
			w.late = false
			s.problem(Problem{Reason: OutOfOrder, Path: e.path, Number: e.seq})
		}
		return again
	case errors.Is(err, errMoved), errors.Is(err, fs.ErrNotExist):
		// A rotation is in progress: select again from a new listing.
		s.cur = nil
		s.group.needList.Store(true)
		s.wait(s.now())
		return idle
	default:
		s.cur = nil
		s.deny(&e, err)
		return again
	}
}

// resume finds the file that holds the data of a partially read log file.
func (s *Stream) resume(w *logFile) result {
	unsure := false
	for i := range s.files {
		e := s.files[i]
		if !s.canBe(w, &e) {
			continue
		}
		if s.held(&e) {
			return idle
		}
		ok, sure, err := tryResume(w, e)
		switch {
		case ok:
			s.relocate(w)
			return again
		case errors.Is(err, errMoved), errors.Is(err, fs.ErrNotExist):
			s.group.needList.Store(true)
			unsure = true
		case err != nil:
			s.deny(&e, err)
			return idle
		case !sure:
			unsure = true
		}
		if unsure {
			break // an older file may be the log file; a newer one must not count as it
		}
	}
	now, grace := s.now(), s.cfg().MissingGrace
	if unsure {
		grace = max(grace, s.cfg().GzipGrace)
	}
	if w.missing.IsZero() {
		w.missing = now
	}
	if until := w.missing.Add(grace); now.Before(until) {
		s.group.needList.Store(true)
		s.wait(until)
		return idle
	}
	s.giveUp(w)
	return again
}

// canBe reports whether a file may hold the log file, judged by its name.
func (s *Stream) canBe(w *logFile, e *entry) bool {
	switch {
	case s.parked != nil && s.parked.src != nil && s.parked.src.id == e.id:
		return false
	case s.group.layout.shifts():
		return !s.isDone(e)
	case w.n > 0:
		return e.seq == w.n
	case e.seq > 0:
		return e.seq > s.doneN || s.inHole(e.seq)
	default:
		return e.open
	}
}

// tryResume opens e at the log file's offset if it holds the log file's data. sure is false if that
// is not known yet.
func tryResume(w *logFile, e entry) (ok, sure bool, err error) {
	if !e.name.Compressed && e.size < w.off {
		return false, true, nil
	}
	src, err := openSource(e.path, e.id, e.name.Compressed)
	if err != nil {
		return false, false, err
	}
	fp := w.fingerprint()
	p, err := src.prefix(int(fp.n))
	if err != nil || !fp.matches(p) {
		sure = err != nil || len(p) == int(fp.n) || !src.badGzip()
		src.close()
		return false, sure, err
	}
	w.prefix = slices.Clone(p)
	if src.gz {
		src.skipTo(w.off)
	}
	w.adopt(src, e)
	return true, true, nil
}

// giveUp reports a log file that can no longer be found, and removes it.
func (s *Stream) giveUp(w *logFile) {
	reason, path, length := FileVanished, w.ent.path, max(w.size-w.off, 0)
	for i := range s.files {
		if e := &s.files[i]; e.open {
			reason, path = FileReplaced, e.path
			if e.size < w.off && e.id == w.ent.id {
				reason, length = FileShrunk, e.size
			}
		}
	}
	if path == "" {
		path = s.group.path
	}
	if reason == FileShrunk || w.size != w.off { // otherwise it was read to its end
		s.problem(Problem{Reason: reason, Path: path, Offset: w.off, Length: length, Number: w.n})
	}
	if n := w.n; n > 0 && !s.group.layout.shifts() {
		s.mark(n)
	}
	s.cur = nil
}

// finish records that cur was read to its end.
func (s *Stream) finish() {
	w := s.cur
	shifts := s.group.layout.shifts()
	if w.off > 0 {
		limit := maxDoneNumbered
		if shifts {
			limit = maxDone
		}
		if len(s.done) >= limit {
			s.evictDone(shifts)
		}
		s.done = append(s.done, completedFile{fp: w.fingerprint(), size: w.off, n: w.n})
	}
	if !shifts {
		switch {
		case w.n > 0:
			s.mark(w.n)
		case w.hint > s.doneN && !slices.ContainsFunc(s.files, func(e entry) bool { return e.seq == w.hint }):
			s.mark(w.hint) // rotated, published and deleted since the last listing
		}
	}
	s.cur = nil
	s.detach(w)
}

// evictDone evicts one finished log file, if possible one whose file is gone.
func (s *Stream) evictDone(shifts bool) {
	if !shifts {
		s.done = slices.Delete(s.done, 0, 1)
		return
	}
	for i, d := range s.done {
		if !slices.ContainsFunc(s.files, func(e entry) bool {
			info := s.fpOf(&e)
			return !e.open && info.known && info.fp == d.fp
		}) {
			s.done = slices.Delete(s.done, i, i+1)
			return
		}
	}
	s.evicted = true
	s.done = slices.Delete(s.done, 0, 1)
}

// twin returns the gzip file that has the data of a log file whose open file was unlinked.
func (s *Stream) twin(w *logFile) *entry {
	fp := w.fingerprint()
	for pass := range 2 {
		for i := range s.files {
			e := &s.files[i]
			switch {
			case e.open, !s.canBe(w, e):
				continue
			case s.group.layout.shifts():
			case w.n == 0 && (pass == 0) != (e.seq == w.hint):
				continue // the expected number first
			}
			if beginsLike(e, fp) {
				return e
			}
		}
	}
	return nil
}
