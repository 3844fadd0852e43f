// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"bufio"
	"errors"
	"io"
	"slices"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"
)

// handle is an open regular file. It is a raw descriptor instead of an os.File: no finalizer, no
// poller, and a FIFO in place of a file cannot block the open.
type handle int

var (
	errNotRegular = errors.New("not a regular file")
	errMoved      = errors.New("another file has this name now")
)

// fileID identifies a file as long as it exists. The kernel reuses inode numbers, so it does not
// identify a file that is not open.
type fileID struct{ dev, ino uint64 }

func statID(st *unix.Stat_t) fileID { return fileID{dev: st.Dev, ino: st.Ino} }

func mtimeOf(st *unix.Stat_t) int64 { return st.Mtim.Nano() }

func openRegular(path string) (handle, unix.Stat_t, error) {
	var st unix.Stat_t
	var fd int
	err := retryEINTR(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		return err
	})
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotRegular
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, st, err
	}
	return handle(fd), st, nil
}

func (h handle) close() { _ = unix.Close(int(h)) }

func (h handle) stat() (st unix.Stat_t, err error) {
	err = unix.Fstat(int(h), &st)
	return st, err
}

// pread reads once. 0 bytes without an error mean the end of the file.
func (h handle) pread(p []byte, off int64) (n int, err error) {
	err = retryEINTR(func() (err error) {
		n, err = unix.Pread(int(h), p, off)
		return err
	})
	return max(n, 0), err
}

// preadFull reads until p is full or the file ends.
func (h handle) preadFull(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		k, err := h.pread(p[n:], off+int64(n))
		if err != nil || k == 0 {
			return n, err
		}
		n += k
	}
	return n, nil
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// sequential reads a handle from its beginning, and keeps the position.
type sequential struct {
	h   handle
	off int64
}

func (s *sequential) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := s.h.pread(p, s.off)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	s.off += int64(n)
	return n, nil
}

// gzipBufBytes keeps reads large, and many open files cheap.
const gzipBufBytes = 64 << 10

// source is an open log file: a raw file, read at any offset, or a gzip stream, read forward only.
type source struct {
	h  handle
	id fileID
	gz bool

	// Only for gzip.
	in    *sequential
	zr    *gzip.Reader
	pos   int64  // uncompressed bytes taken out of zr
	err   error  // why zr gives no more; io.EOF at a proper end
	carry []byte // bytes before pos that no chunk had yet
}

// openSource opens a listed file. It returns errMoved if the name belongs to another file now.
func openSource(path string, id fileID, gz bool) (*source, error) {
	h, st, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	if statID(&st) != id {
		h.close()
		return nil, errMoved
	}
	src := &source{h: h, id: id, gz: gz}
	if gz {
		src.in = &sequential{h: h}
		src.zr, src.err = gzip.NewReader(bufio.NewReaderSize(src.in, gzipBufBytes))
		if errors.Is(src.err, io.EOF) { // an empty file: not even a header
			src.err = io.ErrUnexpectedEOF
		}
	}
	return src, nil
}

func (src *source) close() {
	src.h.close()
	src.zr, src.carry = nil, nil
}

// inflate fills p as far as the gzip stream goes. src.err tells why it stopped early.
func (src *source) inflate(p []byte) (n int) {
	for n < len(p) && src.err == nil {
		k, err := src.zr.Read(p[n:])
		n += k
		src.err = err
	}
	src.pos += int64(n)
	return n
}

// prefix reads the first bytes, for a fingerprint. A gzip source must be fresh, and keeps them in
// carry.
func (src *source) prefix(n int) ([]byte, error) {
	p := make([]byte, n)
	if !src.gz {
		k, err := src.h.preadFull(p, 0)
		return p[:k], err
	}
	p = p[:src.inflate(p)]
	src.carry = p
	return p, nil
}

// fetch is inflate, but returns the carried bytes first.
func (src *source) fetch(p []byte) int {
	n := copy(p, src.carry)
	src.carry = src.carry[n:]
	return n + src.inflate(p[n:])
}

// keep stores fetched bytes for the next fetch. They must not be in carry's own memory.
func (src *source) keep(p []byte) {
	switch {
	case len(src.carry) > 0:
		src.carry = append(slices.Clone(p), src.carry...)
	case cap(src.carry) > 1<<20 && len(p) < cap(src.carry)/4:
		src.carry = slices.Clone(p) // one long line does not pin its memory
	default:
		src.carry = append(src.carry[:0], p...)
	}
}

// skipTo discards decompressed bytes before off. It may stop early, with src.err set.
func (src *source) skipTo(off int64) {
	if start := src.pos - int64(len(src.carry)); off < src.pos {
		src.carry = src.carry[max(off-start, 0):]
		return
	}
	src.carry = nil
	var scratch [32 << 10]byte
	for src.pos < off && src.err == nil {
		src.inflate(scratch[:min(int64(len(scratch)), off-src.pos)])
	}
}

// badGzip reports whether the stream stopped before its proper end.
func (src *source) badGzip() bool { return src.gz && src.err != nil && !errors.Is(src.err, io.EOF) }

// gzipReason distinguishes a truncated file from a corrupt one.
func gzipReason(err error) Reason {
	var errno unix.Errno
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return TruncatedGzip
	case errors.As(err, &errno):
		return ReadError
	default:
		return CorruptGzip
	}
}

// gzipSizeMod32 reads the size field at the end of a gzip file: the last member's uncompressed
// length modulo 2^32.
func gzipSizeMod32(path string, id fileID) (uint32, bool) {
	h, st, err := openRegular(path)
	if err != nil {
		return 0, false
	}
	defer h.close()
	var b [4]byte
	// 18 bytes are the header and trailer of any gzip file.
	if statID(&st) != id || st.Size < 18 {
		return 0, false
	}
	if n, err := h.preadFull(b[:], st.Size-4); err != nil || n != 4 {
		return 0, false
	}
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24, true
}
