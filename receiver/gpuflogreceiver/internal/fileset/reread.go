// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/varint"
)

// Segment identifies a chunk's bytes, so that they can be read again after a restart, wherever the
// logFile is stored then. It is comparable and a plain value.
type Segment struct {
	// Number is the log file's number if the layout has one and it was known, otherwise 0.
	Number uint64
	// From and To are offsets in the uncompressed log file.
	From, To int64
	// Tail means that the last line has no newline.
	Tail bool

	fp  fingerprint // of the log file's first min(To, prefixBytes) bytes
	crc uint32      // of the bytes
}

const segmentVersion = 1

// Append appends the segment in its stored form, at most 50 bytes.
func (g Segment) Append(b []byte) []byte {
	flags := byte(0)
	if g.Tail {
		flags = 1
	}
	b = append(b, segmentVersion, flags)
	b = binary.AppendUvarint(b, g.Number)
	b = binary.AppendUvarint(b, uint64(g.From))
	b = binary.AppendUvarint(b, uint64(g.To-g.From))
	b = append(b, g.fp.sum[:]...)
	return binary.LittleEndian.AppendUint32(b, g.crc)
}

// ParseSegment parses the result of Append, and returns the rest of b.
func ParseSegment(b []byte) (Segment, []byte, error) {
	d := decoder{varint.Reader{Rest: b}}
	version, flags := d.Byte(), d.Byte()
	var g Segment
	g.Number = d.Max(gpuflog.MaxFileIndex + 1)
	g.From = int64(d.Max(maxOffset))
	length := int64(d.Max(maxOffset))
	g.To, g.Tail = g.From+length, flags&1 != 0
	copy(g.fp.sum[:], d.Bytes(len(g.fp.sum)))
	g.fp.n = uint16(min(g.To, prefixBytes))
	if p := d.Bytes(4); len(p) == 4 {
		g.crc = binary.LittleEndian.Uint32(p)
	}
	if !d.OK() || version != segmentVersion || flags > 1 || length == 0 || g.To > maxOffset {
		return Segment{}, b, errors.New("segment: malformed")
	}
	return g, d.Rest, nil
}

// ErrGone means that no file holds a segment's bytes any more.
var ErrGone = errors.New("segment is in no file any more")

// rereader is the file of the last Reread, so that segments in order decompress a gzip file once.
type rereader struct {
	src *source
	fp  fingerprint
}

// Reread returns exactly the bytes of a segment that Next returned earlier, also before a restart.
// It requires a Scan after New. The error is ErrGone if no file has the bytes, or the reason why a
// file cannot be read.
func (s *Stream) Reread(g Segment, buf []byte) (data, newBuf []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.group.set.closed {
		return nil, buf, ErrClosed
	}
	size := g.To - g.From
	if g.From < 0 || size <= 0 || size > int64(s.cfg().MaxLineBytes)+1 {
		return nil, buf, fmt.Errorf("segment of %d bytes: %w", size, errors.ErrUnsupported)
	}
	buf = resize(buf, int(size), 0)
	p := buf[:size]
	for _, w := range [...]*logFile{s.cur, s.parked} {
		// An open raw file may be the only remaining source.
		if w == nil || w.src == nil || w.src.gz {
			continue
		}
		if begin, err := w.src.prefix(int(g.fp.n)); err == nil && g.fp.matches(begin) && w.src.readAt(p, g) {
			return p, buf, nil
		}
	}
	if s.re != nil && s.re.fp == g.fp && s.re.src.readAt(p, g) {
		return p, buf, nil
	}
	s.closeReread()
	var failed error
	for pass := range 2 {
		for i := range s.files {
			e := &s.files[i]
			// A number narrows the search, but the log file may have got it later.
			if (pass == 0) != (g.Number == 0 || e.seq == g.Number) {
				continue
			}
			src, err := openSource(e.path, e.id, e.name.Compressed)
			if err != nil {
				if !errors.Is(err, fs.ErrNotExist) {
					failed = fmt.Errorf("reread: %w", err)
				}
				continue
			}
			begin, err := src.prefix(int(g.fp.n))
			if err == nil && g.fp.matches(begin) && src.readAt(p, g) {
				s.re = &rereader{src: src, fp: g.fp}
				return p, buf, nil
			}
			src.close()
		}
	}
	if failed == nil {
		failed = ErrGone
	}
	return nil, buf, failed
}

// readAt fills p with the bytes from g.From on and reports whether they are the segment's.
func (src *source) readAt(p []byte, g Segment) bool {
	if !src.gz {
		n, err := src.h.preadFull(p, g.From)
		return err == nil && n == len(p) && crc32.Checksum(p, crcTable) == g.crc
	}
	if g.From < src.pos-int64(len(src.carry)) {
		return false
	}
	src.skipTo(g.From)
	return src.fetch(p) == len(p) && crc32.Checksum(p, crcTable) == g.crc
}

func (s *Stream) closeReread() {
	if s.re != nil {
		s.re.src.close()
		s.re = nil
	}
}
