// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"
)

// logFile is the data of one live file, whatever its current name and compression.
type logFile struct {
	ent  entry  // last known entry; after a restart only its id is known
	n    uint64 // file number if known, else 0
	hint uint64 // number that a live log file is expected to get, or 0

	late bool // newer data was delivered before; reported once it is open

	off    int64 // next uncompressed byte to deliver
	size   int64 // largest size of the raw file; 0 if it was never read raw
	prefix []byte
	fp     fingerprint // of prefix, unless stale
	stale  bool

	skipping bool  // inside a line above the limit
	skipFrom int64 // its beginning
	tail     bool  // an unterminated tail before off was delivered

	src      *source // Nil while closed.
	open     bool    // May be appended to.
	wasOpen  bool    // Was once open.
	unlinked bool    // The open file has no name in the group.
	ended    bool    // The last read of a raw file reached its end.
	scanned  int64   // no newline between off and here

	missing time.Time // since when it cannot be found
	stall   stall
}

// stall tracks an end that may not be final: a broken gzip file, or a closed file without its last
// newline.
type stall struct {
	active      bool
	changed     bool // the file has changed since it was read
	size, mtime int64
	since       time.Time // time of the last change
}

// fingerprint returns the fingerprint of the data that was delivered or skipped so far.
func (w *logFile) fingerprint() fingerprint {
	if w.stale {
		w.fp, w.stale = fingerprintOf(w.prefix), false
	}
	return w.fp
}

// advance records that p, which begins at off, was delivered or skipped.
func (w *logFile) advance(p []byte) {
	if have := len(w.prefix); have < prefixBytes && int64(have) == w.off {
		w.prefix = append(w.prefix, p[:min(len(p), prefixBytes-have)]...)
		w.stale = true
	}
	w.off += int64(len(p))
	w.scanned = max(w.scanned, w.off)
}

// verify reports whether an open raw file still has its beginning: it could have been rewritten in
// place.
func (w *logFile) verify() bool {
	var b [prefixBytes]byte
	n, err := w.src.h.preadFull(b[:len(w.prefix)], 0)
	return err == nil && bytes.Equal(b[:n], w.prefix)
}

// adopt sets the open file of the log file. e names it.
func (w *logFile) adopt(src *source, e entry) {
	w.src, w.ent, w.open = src, e, e.open
	w.wasOpen = w.wasOpen || e.open
	w.unlinked = false
	w.ended, w.scanned = false, w.off
	w.missing = time.Time{}
	if e.seq > 0 {
		w.n = e.seq
	}
}

// restart returns a new log file for the same file from its beginning.
func (w *logFile) restart() *logFile {
	return &logFile{
		ent: w.ent, n: w.n, hint: w.hint, src: w.src, open: w.open, wasOpen: w.wasOpen, unlinked: w.unlinked,
		stale: true,
	}
}

// settled reports whether a file was unchanged for grace. Otherwise until is the time for the next
// check.
func (w *logFile) settled(st *unix.Stat_t, now time.Time, grace time.Duration) (ok bool, until time.Time) {
	mtime := mtimeOf(st)
	if now.Sub(time.Unix(0, mtime)) >= grace {
		return true, time.Time{}
	}
	if !w.stall.active || w.stall.size != st.Size || w.stall.mtime != mtime {
		w.stall = stall{active: true, size: st.Size, mtime: mtime, since: now}
	}
	until = w.stall.since.Add(grace)
	return !now.Before(until), until
}

// completedFile is a log file that was read to its end.
type completedFile struct {
	fp   fingerprint
	size int64  // uncompressed
	n    uint64 // file number, or 0
}

// span is a range of file numbers, both ends included.
type span struct{ from, to uint64 }

// fileKey identifies a state of a file. Another content with the same key would require the same
// inode, size and time.
type fileKey struct {
	id          fileID
	size, mtime int64
}

func (e *entry) key() fileKey { return fileKey{e.id, e.size, e.mtime} }

// fpInfo is the fingerprint of a file's beginning. known is false for a gzip file that stops before
// it.
type fpInfo struct {
	fp    fingerprint
	known bool
}

// readInfo computes fpInfo by opening the file.
func readInfo(e *entry) (fpInfo, error) {
	src, err := openSource(e.path, e.id, e.name.Compressed)
	if err != nil {
		return fpInfo{}, err
	}
	defer src.close()
	p, err := src.prefix(prefixBytes)
	if err != nil {
		return fpInfo{}, err
	}
	return fpInfo{fp: fingerprintOf(p), known: len(p) == prefixBytes || !src.badGzip()}, nil
}

// beginsLike reports whether the file's data matches the fingerprint.
func beginsLike(e *entry, fp fingerprint) bool {
	src, err := openSource(e.path, e.id, e.name.Compressed)
	if err != nil {
		return false
	}
	defer src.close()
	p, err := src.prefix(int(fp.n))
	return err == nil && fp.matches(p)
}

// dataSize returns a file's uncompressed size. For gzip it is modulo 2^32, and valid for a single
// member only.
func dataSize(e *entry) (size int64, ok bool) {
	if !e.name.Compressed {
		return e.size, true
	}
	n, ok := gzipSizeMod32(e.path, e.id)
	return int64(n), ok
}

// hasSize reports whether the file's uncompressed size can be size.
func hasSize(e *entry, size int64) bool {
	got, ok := dataSize(e)
	if e.name.Compressed {
		size &= 1<<32 - 1
	}
	return ok && got == size
}
