// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxSteps bounds the log files without data that one call of Next skips.
	maxSteps = 256
	// maxSkipBlocks bounds how much of a line above the limit one call skips, in buffers.
	maxSkipBlocks = 64
	// reprobeBytes is the length from which an unterminated tail is no longer reread completely
	// when it grows.
	reprobeBytes = 64 << 10
)

var crcTable = crc32.MakeTable(crc32.Castagnoli) // a processor instruction, so that checking costs next to nothing

// Chunk is the result of one call of Next.
type Chunk struct {
	// Data is complete lines of one log file with their newlines, in the buffer that Next returns.
	// With Seg.Tail its end is unterminated. It is empty if there are only problems.
	Data []byte
	// Seg is the source of Data. It is valid only if Data is not empty.
	Seg Segment
	// Path is the file's name in the last listing, for messages. The file may have been renamed
	// since then.
	Path string
	// AtEnd means that nothing more is available before the next Scan. Data is empty then.
	AtEnd    bool
	Problems []Problem
}

// Next returns the next chunk: at most Config.ChunkBytes, or one longer line. It reads into buf,
// which it replaces if necessary; the caller passes the returned buffer to the next call. Problems
// with files are in Problems. The error is ErrClosed or nil.
func (s *Stream) Next(buf []byte) (Chunk, []byte, error) { return s.next(buf, false) }

// TakeTail is Next, but at the end of a live file it also returns the unterminated tail, with
// Seg.Tail set. The caller has decided that the writer will not continue. If it does, the rest of
// the line is reported as TextAfterTail and delivered.
func (s *Stream) TakeTail(buf []byte) (Chunk, []byte, error) { return s.next(buf, true) }

func (s *Stream) next(buf []byte, takeTail bool) (Chunk, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c Chunk
	if s.group.set.closed {
		return c, buf, ErrClosed
	}
	s.closeReread()
	s.wakeAt = time.Time{}
	if !s.now().Before(s.retryAt) {
		s.retryAt = time.Time{}
	}
	r := again
	for i := 0; i < maxSteps && r == again; i++ {
		buf, r = s.step(&c, buf, takeTail)
	}
	if r == idle {
		c.AtEnd = true
		s.dirty = false
	}
	c.Problems, s.problems = s.problems, nil
	return c, buf, nil
}

// Pending returns the unterminated tail of the live file without consuming it: up to MaxLineBytes,
// read into buf, and its complete size. It is the rest after the last Next at the end, or 0.
func (s *Stream) Pending(buf []byte) (tail []byte, size int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.group.set.closed {
		return nil, 0, ErrClosed
	}
	w := s.cur
	if w == nil || w.src == nil || w.src.gz || !w.ended || w.scanned <= w.off {
		return nil, 0, nil
	}
	size = w.scanned - w.off
	n := int(min(size, int64(s.cfg().MaxLineBytes)))
	buf = resize(buf, n, 0)
	k, err := w.src.h.preadFull(buf[:n], w.off)
	return buf[:k], size, err
}

// resize returns a slice of length n that begins with the first keep bytes of buf.
func resize(buf []byte, n, keep int) []byte {
	if cap(buf) >= n {
		return buf[:n]
	}
	b := make([]byte, n)
	copy(b, buf[:keep])
	return b
}

func (s *Stream) step(c *Chunk, buf []byte, takeTail bool) ([]byte, result) {
	if s.cur == nil && !s.pick() {
		return buf, idle
	}
	w := s.cur
	if w.src == nil {
		if r := s.attach(); r != again || s.cur == nil || s.cur.src == nil {
			return buf, r
		}
	}
	s.group.set.pool.use(s)
	buf = resize(buf, s.cfg().ChunkBytes, 0)
	switch {
	case w.skipping:
		return buf, s.skipLine(w, buf)
	case w.src.gz:
		return s.readGzip(c, w, buf)
	default:
		return s.readRaw(c, w, buf, takeTail)
	}
}

// grown returns the next size of a buffer that is too small for a line. One byte above the limit
// distinguishes a line of the maximum length and its newline from a longer one.
func (s *Stream) grown(n int) int { return min(2*n, s.cfg().MaxLineBytes+1) }

func (s *Stream) readRaw(c *Chunk, w *logFile, buf []byte, takeTail bool) ([]byte, result) {
	st, err := w.src.h.stat()
	if err != nil {
		return buf, s.readFailed(w, err)
	}
	if st.Size < w.off {
		if s.emptied(w) {
			return buf, again
		}
		s.problem(Problem{Reason: FileShrunk, Path: w.ent.path, Offset: w.off, Length: st.Size, Number: w.n})
		s.cur = w.restart()
		return buf, again
	}
	w.size = max(w.size, st.Size)
	if w.ended {
		if st.Size == w.scanned && w.open && !takeTail {
			return buf, s.liveEnd()
		}
		w.ended = false
		if !w.verify() {
			if s.emptied(w) {
				return buf, again
			}
			s.problem(Problem{Reason: FileReplaced, Path: w.ent.path, Offset: w.off, Number: w.n})
			s.cur = w.restart()
			return buf, again
		}
		if !takeTail && w.open && st.Size > w.scanned && w.scanned-w.off >= reprobeBytes {
			if found, err := s.probe(w, buf); err != nil {
				return buf, s.readFailed(w, err)
			} else if !found {
				w.ended = true
				return buf, s.liveEnd()
			}
		}
	}
	filled := 0
	for {
		n, err := w.src.h.pread(buf[filled:], w.off+int64(filled))
		if err != nil {
			return buf, s.readFailed(w, err)
		}
		if n == 0 {
			break
		}
		if i := bytes.LastIndexByte(buf[filled:filled+n], '\n'); i >= 0 {
			return buf, s.deliver(c, w, buf[:filled+i+1], false)
		}
		if filled += n; filled > s.cfg().MaxLineBytes {
			s.beginSkip(w)
			return buf, again
		}
		if filled == len(buf) {
			buf = resize(buf, s.grown(filled), filled)
		}
	}
	w.ended, w.scanned = true, w.off+int64(filled)
	if w.open {
		if takeTail && filled > 0 {
			return buf, s.deliver(c, w, buf[:filled], true)
		}
		return buf, s.liveEnd()
	}
	return buf, s.closedEnd(c, w, buf[:filled], &st)
}

// emptied reports whether C2 may have truncated a live file with a changed beginning. C2 publishes
// the log file as a gzip file, truncates the live file and writes to it again. The log file is then
// searched under its new name. If it does not appear, resume gives it up.
func (s *Stream) emptied(w *logFile) bool {
	if s.group.layout != Windows || !(w.open || w.unlinked) || w.off == 0 {
		return false
	}
	s.detach(w)
	w.ended = false
	s.group.needList.Store(true)
	return true
}

// probe searches for a newline in the data appended to a long unterminated tail.
func (s *Stream) probe(w *logFile, buf []byte) (found bool, err error) {
	for {
		if w.scanned-w.off > int64(s.cfg().MaxLineBytes) {
			return true, nil // the reading will find it too long
		}
		n, err := w.src.h.pread(buf, w.scanned)
		if err != nil || n == 0 {
			return false, err
		}
		if bytes.IndexByte(buf[:n], '\n') >= 0 {
			return true, nil
		}
		w.scanned += int64(n)
	}
}

// liveEnd handles the end of a file that may grow.
func (s *Stream) liveEnd() result {
	if s.parkForOlder() {
		return again
	}
	return idle
}

// closedEnd handles the end of a raw file that will not grow under its name. tail is the data
// without a newline.
func (s *Stream) closedEnd(c *Chunk, w *logFile, tail []byte, st *unix.Stat_t) result {
	if w.unlinked {
		// The gzip file that replaced it can hold more: salvaging a crashed session adds a closing
		// record to the last log file.
		if e := s.twin(w); e != nil {
			if e.seq > 0 {
				w.n = e.seq
			}
			if !hasSize(e, w.off+int64(len(tail))) {
				s.detach(w)
				w.ent = *e
				return again
			}
		}
	} else if !w.wasOpen || len(tail) > 0 {
		// The close was not observed, so it may be a copy in progress.
		if ok, until := w.settled(st, s.now(), s.cfg().GzipGrace); !ok {
			s.wait(until)
			return idle
		}
	}
	if len(tail) > 0 {
		return s.deliver(c, w, tail, true)
	}
	s.finish()
	return again
}

func (s *Stream) readGzip(c *Chunk, w *logFile, buf []byte) ([]byte, result) {
	src := w.src
	filled, checked := 0, 0
	for {
		filled += src.fetch(buf[filled:])
		if i := bytes.LastIndexByte(buf[checked:filled], '\n'); i >= 0 {
			end := checked + i + 1
			src.keep(buf[end:filled])
			return buf, s.deliver(c, w, buf[:end], false)
		}
		if checked = filled; filled > s.cfg().MaxLineBytes {
			src.keep(buf[:filled])
			s.beginSkip(w)
			return buf, again
		}
		if filled < len(buf) {
			break // src.err says why
		}
		buf = resize(buf, s.grown(filled), filled)
	}
	src.keep(buf[:filled])
	if src.badGzip() {
		return buf, s.gzipBroken(w)
	}
	if src.pos < w.off {
		// Only a tail that was read from a crashed session and dropped when it was salvaged may be
		// missing.
		if !w.tail {
			s.problem(Problem{Reason: FileShrunk, Path: w.ent.path, Offset: w.off, Length: src.pos, Number: w.n})
		}
	} else if filled > 0 {
		src.carry = nil
		return buf, s.deliver(c, w, buf[:filled], true)
	}
	s.finish()
	return buf, again
}

// gzipBroken handles a gzip file that stops early: a copy in progress, or a damaged file.
func (s *Stream) gzipBroken(w *logFile) result {
	src, now, grace := w.src, s.now(), s.cfg().GzipGrace
	if w.unlinked {
		s.detach(w) // replaced by a complete one, or gone
		if w.off == 0 {
			s.cur = nil
		}
		return again
	}
	st, err := src.h.stat()
	if err != nil {
		return s.readFailed(w, err)
	}
	settled := false
	if old := w.stall; !old.active || old.size != st.Size || old.mtime != mtimeOf(&st) {
		// At first sight the file has changed if it has data after the position that was read.
		grew := old.active || (errors.Is(src.err, io.ErrUnexpectedEOF) && src.in.off < st.Size)
		w.stall = stall{active: true, changed: grew, size: st.Size, mtime: mtimeOf(&st), since: now}
		settled = !grew && now.Sub(time.Unix(0, w.stall.mtime)) >= grace
	}
	var until time.Time
	if w.stall.changed {
		// Continuing requires decompression from the start, so wait until the growth has paused.
		if until = w.stall.since.Add(grace / 6); !now.Before(until) {
			w.stall.changed = false
			s.detach(w)
			return again
		}
	} else if until = w.stall.since.Add(grace); settled || !now.Before(until) {
		s.problem(Problem{Reason: gzipReason(src.err), Path: w.ent.path, Offset: src.pos, Number: w.n, Err: src.err})
		src.err = io.EOF // what there is counts as all of it
		return again
	}
	s.wait(until)
	return idle
}

// readFailed closes a file that cannot be read. It is opened again later.
func (s *Stream) readFailed(w *logFile, err error) result {
	e := w.ent
	s.detach(w)
	if w.off == 0 {
		s.cur = nil
	}
	s.deny(&e, err)
	return idle
}

func (s *Stream) beginSkip(w *logFile) {
	w.skipping, w.skipFrom = true, w.off
	w.ended = false
}

// skipLine skips the rest of a line above the limit, without holding it.
func (s *Stream) skipLine(w *logFile, buf []byte) result {
	for range maxSkipBlocks {
		p, err := w.peek(buf)
		if err != nil {
			return s.readFailed(w, err)
		}
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			w.take(p[:i+1])
			s.endSkip(w)
			return again
		}
		w.take(p)
		if len(p) > 0 {
			continue
		}
		switch {
		case w.src.badGzip():
			return s.gzipBroken(w)
		case w.src.gz:
		case w.open:
			w.ended = true
			return s.liveEnd()
		case !w.unlinked:
			st, err := w.src.h.stat()
			if err != nil {
				return s.readFailed(w, err)
			}
			if ok, until := w.settled(&st, s.now(), s.cfg().GzipGrace); !ok {
				s.wait(until)
				return idle
			}
		}
		s.endSkip(w)
		return again
	}
	return data // nothing to give, but more to come: let the caller breathe
}

func (s *Stream) endSkip(w *logFile) {
	s.problem(Problem{
		Reason: LineTooLong, Path: w.ent.path, Offset: w.skipFrom, Length: w.off - w.skipFrom, Number: w.n,
	})
	w.skipping = false
}

// peek reads the bytes from off on without consuming them. No bytes and no error mean the end.
func (w *logFile) peek(buf []byte) ([]byte, error) {
	if !w.src.gz {
		n, err := w.src.h.pread(buf, w.off)
		return buf[:n], err
	}
	if len(w.src.carry) == 0 {
		w.src.keep(buf[:w.src.inflate(buf)])
	}
	return w.src.carry, nil
}

// take consumes p, which peek returned.
func (w *logFile) take(p []byte) {
	w.advance(p)
	if w.src.gz {
		w.src.carry = w.src.carry[len(p):]
	}
}

// deliver returns p, which begins at off, as the chunk.
func (s *Stream) deliver(c *Chunk, w *logFile, p []byte, tail bool) result {
	if w.tail {
		w.tail = false
		switch {
		case p[0] == '\n':
			w.advance(p[:1])
			p = p[1:]
		case len(p) > 1 && p[0] == '\r' && p[1] == '\n':
			w.advance(p[:2])
			p = p[2:]
		default:
			s.problem(Problem{Reason: TextAfterTail, Path: w.ent.path, Offset: w.off, Number: w.n})
		}
		if len(p) == 0 {
			return again
		}
	}
	from := w.off
	w.advance(p)
	w.tail = tail
	w.stall.active = false
	c.Data, c.Path = p, w.ent.path
	c.Seg = Segment{
		From: from, To: w.off, Tail: tail, Number: w.n,
		fp: w.fingerprint(), crc: crc32.Checksum(p, crcTable),
	}
	return data
}
