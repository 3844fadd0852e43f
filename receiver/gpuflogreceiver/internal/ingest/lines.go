// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bytes"
	"errors"
	"io"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// Lines iterates over the lines of a content.
type Lines struct {
	src  io.Reader
	max  int
	buf  []byte
	from int // where the next line begins in buf
	end  bool
	// next is the place of the next line.
	next Place
}

// Place is a place between two lines of a content.
type Place struct {
	// Line counts the lines before it, blank ones included.
	Line int64
	// Offset counts the unpacked bytes before it.
	Offset int64
}

// Lines returns the lines of a checked content, starting at a place that an earlier Lines of the
// same content returned.
func (b *Body) Lines(from Place) (*Lines, error) {
	src, err := b.open()
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, src, from.Offset); err != nil {
		return nil, Unreadable("the body ends before byte %d, to which it was read before", from.Offset)
	}
	return &Lines{src: src, max: b.limits.LineBytes, next: from}, nil
}

// headerWithin bounds the search for the header. The recorder writes at most a few records before
// it.
const headerWithin = 256 << 10

// Header returns the line that describes the session (init or job_start) and its number, counted
// from 1. The number is 0 if the line is not among the first ones.
func (b *Body) Header() ([]byte, int64) {
	lines, err := b.Lines(Place{})
	for err == nil && lines.Place().Offset < headerWithin {
		var line []byte
		if line, err = lines.Next(); err != nil {
			break
		}
		if typ := gpuflog.TypeOf(line); typ == "job_start" || typ == "init" {
			return line, lines.Place().Line
		}
	}
	return nil, 0
}

// readBytes is the size of a read of the content.
const readBytes = 64 << 10

// ErrLineTooLong is returned for a line above the limit. The lines after it can be read.
var ErrLineTooLong = errors.New("the line is too long")

// Next returns the next line without its line end, valid until the next call. The error is io.EOF
// at the end, ErrLineTooLong, or a *Refusal.
func (l *Lines) Next() ([]byte, error) {
	searched := 0 // bytes of the line that are known to hold no line end
	for {
		if n := bytes.IndexByte(l.buf[l.from+searched:], '\n'); n >= 0 {
			return l.cut(l.from+searched+n, 1)
		}
		searched = len(l.buf) - l.from
		switch {
		case l.end && searched == 0:
			return nil, io.EOF
		case l.end:
			return l.cut(len(l.buf), 0)
		case searched > l.max:
			return nil, l.discard()
		}
		if err := l.more(); err != nil {
			return nil, err
		}
	}
}

// more reads further data of the current line.
func (l *Lines) more() error {
	if l.from > 0 {
		l.buf = l.buf[:copy(l.buf, l.buf[l.from:])]
		l.from = 0
	}
	if cap(l.buf)-len(l.buf) < readBytes {
		grown := make([]byte, len(l.buf), max(min(2*cap(l.buf), l.max+2*readBytes), len(l.buf)+2*readBytes))
		copy(grown, l.buf)
		l.buf = grown
	}
	n, err := l.src.Read(l.buf[len(l.buf):cap(l.buf)])
	l.buf = l.buf[:len(l.buf)+n]
	if errors.Is(err, io.EOF) {
		l.end = true
		return nil
	}
	if err != nil { // Check read it without one
		return Unreadable("the body cannot be read again: %v", err)
	}
	return nil
}

// discard skips the rest of a line above the limit and releases its memory.
func (l *Lines) discard() error {
	l.next.Offset += int64(len(l.buf) - l.from)
	l.buf, l.from = make([]byte, 0, 2*readBytes), 0
	for !l.end {
		if err := l.more(); err != nil {
			return err
		}
		if n := bytes.IndexByte(l.buf, '\n'); n >= 0 {
			l.from = n + 1
			l.next.Offset += int64(n) + 1
			break
		}
		l.next.Offset += int64(len(l.buf))
		l.buf = l.buf[:0]
	}
	l.next.Line++
	return ErrLineTooLong
}

// Place returns the place of the next line.
func (l *Lines) Place() Place { return l.next }

func (l *Lines) cut(end, newline int) ([]byte, error) {
	line := l.buf[l.from:end]
	l.next.Line++
	l.next.Offset += int64(len(line) + newline)
	l.from = end + newline
	if len(line) > l.max {
		return nil, ErrLineTooLong
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}
