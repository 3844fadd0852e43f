// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"
)

// window is what one live file was or is, under whatever name and compression its data is found now.
type window struct {
	ent  entry  // where it was last seen; after a restart only its id is known
	n    uint64 // window number if known, else 0
	hint uint64 // number that a live window is expected to get, or 0

	late bool // newer data was delivered before it; to be reported once it is open

	off    int64 // next uncompressed byte to deliver
	size   int64 // largest size of the raw file seen; 0 if it was never read raw
	prefix []byte
	fp     fingerprint // of prefix, unless stale
	stale  bool

	skipping bool  // inside a line that is too long
	skipFrom int64 // its beginning
	tail     bool  // an unterminated tail was delivered, off is behind it

	src      *source // nil while closed
	open     bool    // may be appended to
	wasOpen  bool    // was seen while it could be appended to
	unlinked bool    // the open file has no name among the group's files any more
	ended    bool    // the last read of a raw file came to its end
	scanned  int64   // no newline between off and here

	missing time.Time // since when it cannot be found
	stall   stall
}

// stall watches an end that may not be the end: a broken gzip file, a closed file without its last newline.
type stall struct {
	active      bool
	changed     bool // the file has changed since it was read
	size, mtime int64
	since       time.Time // of the last change seen
}

// fingerprint identifies the window by what was delivered or skipped so far.
func (w *window) fingerprint() fingerprint {
	if w.stale {
		w.fp, w.stale = fingerprintOf(w.prefix), false
	}
	return w.fp
}

// advance notes that p, which begins at off, was delivered or skipped.
func (w *window) advance(p []byte) {
	if have := len(w.prefix); have < prefixBytes && int64(have) == w.off {
		w.prefix = append(w.prefix, p[:min(len(p), prefixBytes-have)]...)
		w.stale = true
	}
	w.off += int64(len(p))
	w.scanned = max(w.scanned, w.off)
}

// verify says whether an open raw file still begins as it did: it could have been rewritten in place.
func (w *window) verify() bool {
	var b [prefixBytes]byte
	n, err := w.src.h.preadFull(b[:len(w.prefix)], 0)
	return err == nil && bytes.Equal(b[:n], w.prefix)
}

// adopt takes over an opened file that e names.
func (w *window) adopt(src *source, e entry) {
	w.src, w.ent, w.open = src, e, e.open
	w.wasOpen = w.wasOpen || e.open
	w.unlinked = false
	w.ended, w.scanned = false, w.off
	w.missing = time.Time{}
	if e.seq > 0 {
		w.n = e.seq
	}
}

// restart is the same file from its beginning, as a new window.
func (w *window) restart() *window {
	return &window{
		ent: w.ent, n: w.n, hint: w.hint, src: w.src, open: w.open, wasOpen: w.wasOpen, unlinked: w.unlinked,
		stale: true,
	}
}

// settled says whether a file has been unchanged for grace; else until tells when to ask again.
func (w *window) settled(st *unix.Stat_t, now time.Time, grace time.Duration) (ok bool, until time.Time) {
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

// doneWindow remembers a window that was read to its end.
type doneWindow struct {
	fp   fingerprint
	size int64  // uncompressed
	n    uint64 // window number, or 0
}

// span is a range of window numbers, both ends included.
type span struct{ from, to uint64 }

// fileKey names a state of a file; another content under the same key would need the same inode, size and time.
type fileKey struct {
	id          fileID
	size, mtime int64
}

func (e *entry) key() fileKey { return fileKey{e.id, e.size, e.mtime} }

// fpInfo is the fingerprint of a whole file's beginning; known is false for a gzip file that stops before that.
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

// beginsLike says whether the file's data begins as the fingerprint says.
func beginsLike(e *entry, fp fingerprint) bool {
	src, err := openSource(e.path, e.id, e.name.Compressed)
	if err != nil {
		return false
	}
	defer src.close()
	p, err := src.prefix(int(fp.n))
	return err == nil && fp.matches(p)
}

// dataSize is a file's uncompressed size, modulo 2^32 for gzip, where it holds for a single member only.
func dataSize(e *entry) (size int64, ok bool) {
	if !e.name.Compressed {
		return e.size, true
	}
	n, ok := gzipSizeMod32(e.path, e.id)
	return int64(n), ok
}

// hasSize says whether the file's uncompressed size can be size.
func hasSize(e *entry, size int64) bool {
	got, ok := dataSize(e)
	if e.name.Compressed {
		size &= 1<<32 - 1
	}
	return ok && got == size
}
