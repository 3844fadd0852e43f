// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

const (
	// maxDone bounds the stored finished log files in layouts that shift: a rotation keeps at most
	// 100 (log format 5.1).
	maxDone = 128
	// maxDoneNumbered suffices for layouts with fixed numbers. It serves only log files without a
	// known number.
	maxDoneNumbered = 8
	// maxHoles bounds the stored ranges of missing log files.
	maxHoles = 64
	// maxFiles bounds the files listed per stream.
	maxFiles = 4096
	// maxDenied bounds the stored unreadable files per stream.
	maxDenied = 64
	// retryAfter is the delay between attempts to open an unreadable file.
	retryAfter = 2 * time.Second
	// graceFactor times MissingGrace bounds how long an unreadable or missing log file blocks later
	// ones.
	graceFactor = 5
	// recent is the age up to which a complete file, judged by its name, is checked for growth: it
	// may be a copy in progress.
	recent = 10 * time.Second
)

// Stream is one channel of one group: its log files in time order. The zero value is not usable;
// groups create streams.
type Stream struct {
	group *Group
	ch    gpuflog.Channel

	mu      sync.Mutex
	files   []entry // oldest first
	looked  []int   // indexes of files that poll checks
	gen     uint64  // generation of files, without growth of a live one
	seenGen uint64  // gen of the last search for older log files
	cur     *logFile
	parked  *logFile // a live log file that waits for late older ones

	done    []completedFile
	evicted bool // a finished log file with a file was evicted: all older ones are finished
	doneN   uint64
	holes   []span // missing numbers up to doneN, ascending

	sidecarMax uint64
	losses     []uint64
	gapFirst   time.Time
	gapStart   time.Time
	gapGen     uint64

	fps      map[fileKey]fpInfo
	denied   map[string]denial
	reported map[reportedKey]struct{}
	problems []Problem
	dirty    bool
	wakeAt   time.Time // end of the current delay
	retryAt  time.Time // time to retry an unreadable file
	re       *rereader
}

// denial is a file that could not be opened.
type denial struct {
	id           fileID
	since, again time.Time
}

// Channel returns the stream's channel.
func (s *Stream) Channel() gpuflog.Channel { return s.ch }

// Group returns the group of the stream.
func (s *Stream) Group() *Group { return s.group }

// Changed reports whether Next may return something new.
func (s *Stream) Changed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirty || len(s.problems) > 0
}

// Exhausted reports whether everything present was delivered, except an unterminated tail of a live
// file, and nothing is awaited. Unreadable files do not count.
func (s *Stream) Exhausted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	undecided := s.group.layout == Undecided && s.group.goneSince.IsZero()
	return !s.dirty && s.wakeAt.IsZero() && !undecided
}

// Backlog estimates the undelivered bytes on disk, compressed ones as stored.
func (s *Stream) Backlog() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum int64
	if w := s.cur; w != nil && !w.ent.name.Compressed {
		sum += max(w.ent.size-w.off, 0)
	}
	at := -1
	if s.cur != nil {
		at = slices.IndexFunc(s.files, func(e entry) bool { return e.path == s.cur.ent.path })
	}
	for i := at + 1; i < len(s.files); i++ {
		e := &s.files[i]
		switch {
		case e.seq > 0 && e.seq <= s.doneN, e.seq > 0 && s.cur != nil && e.seq == s.cur.n:
		case at < 0 && s.group.layout.shifts() && s.isDone(e):
		default:
			sum += e.size
		}
	}
	return sum
}

// now is the time of the last scan.
func (s *Stream) now() time.Time { return s.group.set.now }

func (s *Stream) cfg() *Config { return &s.group.set.cfg }

func (s *Stream) wait(until time.Time) {
	if s.wakeAt.IsZero() || until.Before(s.wakeAt) {
		s.wakeAt = until
	}
}

func (s *Stream) retry(at time.Time) {
	if s.retryAt.IsZero() || at.Before(s.retryAt) {
		s.retryAt = at
	}
}

func (s *Stream) problem(p Problem) {
	p.Channel = s.ch
	s.problems = addProblem(s.problems, p)
}

// reportOnce reports a problem with a path that would occur at every scan.
func (s *Stream) reportOnce(p Problem) {
	key := reportedKey{p.Path, p.Reason}
	if _, ok := s.reported[key]; ok {
		return
	}
	if s.reported == nil || len(s.reported) >= maxDenied {
		s.reported = make(map[reportedKey]struct{})
	}
	s.reported[key] = struct{}{}
	s.problem(p)
}

// setFiles sets the files of a listing, in time order.
func (s *Stream) setFiles(es []entry, sidecarMax uint64, losses []uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	es = slices.DeleteFunc(es, func(e entry) bool {
		switch {
		case e.irreg:
			s.reportOnce(Problem{Reason: NotRegular, Path: e.path})
			return true
		case s.group.layout == Flat || s.group.layout == C1, e.seq > 0, e.open:
			return false
		case !e.tmp: // .tmp may briefly hold an unfinished gzip of the live file
			s.reportOnce(Problem{Reason: UnexpectedName, Path: e.path})
		}
		return true
	})
	if extra := len(es) - maxFiles; extra > 0 {
		s.reportOnce(Problem{Reason: TooManyWindows, Path: es[0].path, Count: extra})
		// Drop finished files first. Otherwise keep the oldest, because they are next.
		es = slices.DeleteFunc(es, func(e entry) bool {
			drop := extra > 0 && e.seq > 0 && e.seq <= s.doneN
			if drop {
				extra--
			}
			return drop
		})
		es = es[:min(len(es), maxFiles)]
	}
	if !slices.EqualFunc(s.files, es, func(a, b entry) bool {
		return a.path == b.path && a.id == b.id && a.open == b.open && (a.open || a.key() == b.key())
	}) {
		s.gen++
		s.dirty = true
	}
	if !slices.EqualFunc(s.files, es, func(a, b entry) bool { return a.size == b.size }) {
		s.dirty = true
	}
	if sidecarMax > s.sidecarMax || len(losses) != len(s.losses) {
		s.dirty = true
	}
	s.files, s.sidecarMax, s.losses = es, max(sidecarMax, s.sidecarMax), losses
	s.looked = s.looked[:0]
	for i := range es {
		if e := &es[i]; e.open || e.size == 0 || now.Sub(time.Unix(0, e.mtime)) < recent {
			s.looked = append(s.looked, i)
		}
	}
	for _, w := range [...]*logFile{s.cur, s.parked} {
		if w != nil && w.src != nil {
			s.relocate(w)
		}
	}
	present := make(map[fileKey]bool, len(es))
	for i := range es {
		present[es[i].key()] = true
	}
	for k := range s.fps {
		if !present[k] {
			delete(s.fps, k)
		}
	}
}

// rearrange sorts the files by a layout that was found after the listing.
func (s *Stream) rearrange() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.files {
		s.files[i].open, s.files[i].seq = false, 0
	}
	s.files = s.group.arrange(s.files)
	s.looked = s.looked[:0] // indexes of the old order; the next listing sets them
	s.gen++
}

// relocate finds the current name of an open file.
func (s *Stream) relocate(w *logFile) {
	open, unlinked := w.open, w.unlinked
	w.open, w.unlinked = false, true
	for i := range s.files {
		if e := &s.files[i]; e.id == w.src.id && e.name.Compressed == w.src.gz {
			w.ent, w.open, w.unlinked = *e, e.open, false
			if e.seq > 0 {
				w.n = e.seq
			}
			break
		}
	}
	if open != w.open || unlinked != w.unlinked {
		s.dirty = true
	}
}

// poll checks files that can grow, and reports whether one did.
func (s *Stream) poll(now time.Time, check bool) (grew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wakeAt.IsZero() && !now.Before(s.wakeAt) {
		s.dirty = true
	}
	if !s.retryAt.IsZero() && !now.Before(s.retryAt) {
		s.dirty, s.seenGen = true, 0
	}
	if !check {
		return false
	}
	for _, i := range s.looked {
		e := &s.files[i]
		var st unix.Stat_t
		err := retryEINTR(func() error { return unix.Stat(e.path, &st) })
		if err != nil || statID(&st) != e.id {
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				s.group.needList.Store(true)
			}
			continue
		}
		if st.Size != e.size || mtimeOf(&st) != e.mtime {
			e.size, e.mtime = st.Size, mtimeOf(&st)
			if !e.open {
				s.gen++
			}
			s.dirty, grew = true, true
		}
	}
	return grew
}

// busy reports whether the stream has an open or pending log file.
func (s *Stream) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur != nil || s.parked != nil || len(s.problems) > 0
}

// release closes all files.
func (s *Stream) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeReread()
	for _, w := range [...]*logFile{s.cur, s.parked} {
		if w != nil && w.src != nil {
			w.src.close()
			w.src = nil
		}
	}
	s.group.set.pool.drop(s)
}

// closeIdle closes the files unless one of them is unlinked and could not be opened again. The
// caller holds mu and removes the stream from the pool.
func (s *Stream) closeIdle() bool {
	for _, w := range [...]*logFile{s.cur, s.parked} {
		if w != nil && w.src != nil && w.unlinked {
			return false
		}
	}
	for _, w := range [...]*logFile{s.cur, s.parked} {
		if w != nil && w.src != nil {
			w.src.close()
			w.src = nil
		}
	}
	s.closeReread()
	return true
}

// detach closes a log file's file.
func (s *Stream) detach(w *logFile) {
	if w.src != nil {
		w.src.close()
		w.src = nil
	}
	if s.parked == nil || s.parked.src == nil {
		s.group.set.pool.drop(s)
	}
}
