// SPDX-License-Identifier: Apache-2.0

// Package boltcheck checks the structure of a bbolt database file without mapping it into memory.
// bbolt maps a file and follows its page numbers, so a truncated file ends the process with SIGBUS,
// which recover cannot catch. This package reads with pread and checks each number before it uses
// it. Damage is therefore an error, in the calling process, and no child process is needed.
//
// The check covers everything that bbolt follows: both meta pages, the free list and each page of
// each bucket's tree. It does not cover the values: bbolt stores no checksum for them. The layout is
// that of go.etcd.io/bbolt v1.5 (internal/common), version 2 of the file format.
package boltcheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// ErrDamaged is the error for a file whose structure is damaged. Other errors are read errors.
var ErrDamaged = errors.New("damaged")

const (
	magic   = 0xED0CDAED
	version = 2

	headerBytes  = 16
	metaBytes    = 64
	branchBytes  = 16
	leafBytes    = 16
	bucketBytes  = 16
	noFreelist   = ^uint64(0)
	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagMeta     = 0x04
	flagFreelist = 0x10
	leafBucket   = 0x01

	minPageBytes = 1 << 10
	maxPageBytes = 1 << 16 // the largest of any system; bbolt takes the page size of the system that creates the file
	maxKeyBytes  = 32768   // bbolt.MaxKeySize
	// A tree of this depth has more pages than a file can hold; a deeper one is a loop.
	maxDepth = 64
	// windowBytes of a page are read at once. Keys beyond, after large values, are read one by one.
	windowBytes = 64 << 10
)

// byteOrder is the machine's: bbolt stores its structs as they are in memory.
var byteOrder = binary.NativeEndian

// Space is what a database occupies, in bytes: pages that are in use, and pages that are free for the
// next transaction.
type Space struct{ Used, Free int64 }

// Check checks a database of the given size in bytes. It returns nil if bbolt can open, read and write
// the file. Otherwise it returns the error of r, or an error that wraps ErrDamaged and describes the
// damage.
// bucket names a key of the top level that must be a bucket if it exists; "" names none.
//
// Check reads each page's header and keys once. It needs one bit of memory for each page of the
// file, and less than 5 MiB besides. The caller must keep others from writing to the file.
func Check(r io.ReaderAt, size int64, bucket string) (Space, error) {
	c := &checker{r: r, size: size, bucket: []byte(bucket)}
	if err := c.check(); err != nil {
		return Space{}, err
	}
	return Space{Used: int64(c.used) * c.pageBytes, Free: int64(c.pages-c.used) * c.pageBytes}, nil
}

func (c *checker) check() error {
	m, err := c.meta()
	if err != nil {
		return err
	}
	if m.pages < 3 || m.pages > uint64(c.size/c.pageBytes) {
		return damaged("%d pages of %d bytes in a file of %d bytes", m.pages, c.pageBytes, c.size)
	}
	c.pages = m.pages
	c.seen = make([]byte, m.pages/8+1)
	if err := c.claim(0, 2); err != nil {
		return err
	}
	if m.freelist != noFreelist {
		if err := c.freelist(m.freelist); err != nil {
			return err
		}
	}
	return c.tree(m.root, 0, nil, nil, 0)
}

type checker struct {
	r         io.ReaderAt
	size      int64
	bucket    []byte
	pageBytes int64
	pages     uint64
	used      uint64 // pages of the headers, the free list and the trees
	seen      []byte // one bit for each page that is free or in a tree
	windows   [][]byte
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

// read fills b. A file that ends early is damaged.
func (c *checker) read(b []byte, at int64) error {
	if n, err := c.r.ReadAt(b, at); n < len(b) {
		if errors.Is(err, io.EOF) {
			return damaged("the file ends at byte %d", at+int64(n))
		}
		return err
	}
	return nil
}

type meta struct {
	pageBytes             int64
	root, freelist, pages uint64
	transaction           uint64
}

// meta returns the meta page that bbolt uses: the newer one of those that are whole. bbolt takes the
// page size from the first meta page or, if that is damaged, looks for the second one.
func (c *checker) meta() (meta, error) {
	first, firstErr := c.metaAt(0)
	if firstErr != nil && !errors.Is(firstErr, ErrDamaged) {
		return meta{}, firstErr
	}
	if firstErr == nil {
		c.pageBytes = first.pageBytes
		second, err := c.metaAt(c.pageBytes)
		switch {
		case err == nil && second.transaction > first.transaction:
			return second, nil
		case err == nil || errors.Is(err, ErrDamaged):
			return first, nil
		default:
			return meta{}, err
		}
	}
	for at := int64(minPageBytes); at <= maxPageBytes && at < c.size-minPageBytes; at *= 2 {
		second, err := c.metaAt(at)
		if err == nil && second.pageBytes == at {
			c.pageBytes = at
			return second, nil
		}
		if err != nil && !errors.Is(err, ErrDamaged) {
			return meta{}, err
		}
	}
	return meta{}, firstErr
}

func (c *checker) metaAt(at int64) (meta, error) {
	var b [headerBytes + metaBytes]byte
	if err := c.read(b[:], at); err != nil {
		return meta{}, err
	}
	d := b[headerBytes:]
	sum := fnv.New64a()
	sum.Write(d[:metaBytes-8])
	m := meta{
		pageBytes: int64(byteOrder.Uint32(d[8:])), root: byteOrder.Uint64(d[16:]), freelist: byteOrder.Uint64(d[32:]),
		pages: byteOrder.Uint64(d[40:]), transaction: byteOrder.Uint64(d[48:]),
	}
	switch {
	case byteOrder.Uint32(d) != magic || byteOrder.Uint32(d[4:]) != version:
		return meta{}, damaged("no header of a bbolt database at byte %d", at)
	case byteOrder.Uint64(d[56:]) != sum.Sum64():
		return meta{}, damaged("wrong checksum of the header at byte %d", at)
	case m.pageBytes < minPageBytes || m.pageBytes > maxPageBytes || m.pageBytes&(m.pageBytes-1) != 0:
		return meta{}, damaged("pages of %d bytes", m.pageBytes)
	}
	return m, nil
}

// claim marks n pages from id on as used. A page that is used twice is damage: bbolt would
// overwrite one use with the other.
func (c *checker) claim(id, n uint64) error {
	if id >= c.pages || n > c.pages-id {
		return damaged("pages %d to %d of %d", id, id+n-1, c.pages)
	}
	c.used += n
	for ; n > 0; id, n = id+1, n-1 {
		if c.seen[id/8]&(1<<(id%8)) != 0 {
			return damaged("page %d is used twice", id)
		}
		c.seen[id/8] |= 1 << (id % 8)
	}
	return nil
}

// page is a page with its overflow pages, or the page inside an inline bucket.
type page struct {
	c     *checker
	id    uint64
	at    int64 // of the first byte in the file
	bytes int64
	flags uint16
	count int
	head  []byte // its first bytes
}

// open reads and claims a page. Its window is valid until another page is opened at that depth.
func (c *checker) open(id uint64, depth int) (*page, error) {
	if id >= c.pages {
		return nil, damaged("page %d of %d", id, c.pages)
	}
	if depth == len(c.windows) {
		c.windows = append(c.windows, make([]byte, c.pageBytes))
	}
	p := &page{c: c, id: id, at: int64(id) * c.pageBytes}
	head := c.windows[depth][:c.pageBytes]
	if err := c.read(head, p.at); err != nil {
		return nil, err
	}
	overflow := uint64(byteOrder.Uint32(head[12:]))
	if own := byteOrder.Uint64(head); own != id {
		return nil, damaged("page %d has number %d", id, own)
	}
	if err := c.claim(id, overflow+1); err != nil {
		return nil, err
	}
	p.bytes = int64(overflow+1) * c.pageBytes
	if n := min(p.bytes, windowBytes); n > c.pageBytes && byteOrder.Uint16(head[10:]) > 1 {
		if int64(cap(head)) < n {
			head = append(make([]byte, 0, n), head...)
			c.windows[depth] = head
		}
		rest := head[c.pageBytes:n]
		if err := c.read(rest, p.at+c.pageBytes); err != nil {
			return nil, err
		}
		head = head[:n]
	}
	p.parse(head)
	return p, nil
}

func (p *page) parse(head []byte) {
	p.head = head
	p.flags, p.count = byteOrder.Uint16(head[8:]), int(byteOrder.Uint16(head[10:]))
}

// slice returns bytes of the page. n is at most about 1 MiB.
func (p *page) slice(at, n int64) ([]byte, error) {
	if at < 0 || n < 0 || at > p.bytes || n > p.bytes-at {
		return nil, damaged("page %d: bytes %d to %d of %d", p.id, at, at+n, p.bytes)
	}
	if at+n <= int64(len(p.head)) {
		return p.head[at : at+n], nil
	}
	b := make([]byte, n)
	return b, p.c.read(b, p.at+at)
}

func (c *checker) freelist(id uint64) error {
	p, err := c.open(id, 0)
	if err != nil {
		return err
	}
	if p.flags != flagFreelist {
		return damaged("page %d is no free list: type %#x", id, p.flags)
	}
	n, at := uint64(p.count), int64(headerBytes)
	if n == 0xFFFF { // The number does not fit, and stands in front of the list.
		b, err := p.slice(at, 8)
		if err != nil {
			return err
		}
		n, at = byteOrder.Uint64(b), at+8
	}
	if n > uint64(p.bytes-at)/8 {
		return damaged("page %d: %d free pages in %d bytes", id, n, p.bytes)
	}
	last := uint64(0)
	for ; n > 0; n, at = n-1, at+8 {
		b, err := p.slice(at, 8)
		if err != nil {
			return err
		}
		free := byteOrder.Uint64(b)
		if free <= last {
			return damaged("page %d: the free list is not in order", id)
		}
		if err := c.claim(free, 1); err != nil {
			return err
		}
		c.used--
		last = free
	}
	return nil
}

// tree checks the pages from id down. The first key must be low, all must be in order and below high;
// nil is no bound.
func (c *checker) tree(id uint64, depth int, low, high []byte, level int) error {
	if depth >= maxDepth {
		return damaged("page %d: a tree of more than %d levels", id, maxDepth)
	}
	p, err := c.open(id, depth)
	if err != nil {
		return err
	}
	switch p.flags {
	case flagBranch:
		return c.branch(p, depth, low, high, level)
	case flagLeaf:
		return c.leaf(p, depth, low, high, level)
	default:
		return damaged("page %d is of type %#x", id, p.flags)
	}
}

// key returns a copy of a key that must come after the one before. If it is the first one and low is not
// nil, it must be low itself: bbolt finds a page in its parent by the first key of the page.
func (p *page) key(at, n int64, first bool, low, high []byte) ([]byte, error) {
	if n == 0 && p.flags == flagLeaf || n > maxKeyBytes {
		return nil, damaged("page %d: a key of %d bytes", p.id, n)
	}
	b, err := p.slice(at, n)
	if err != nil {
		return nil, err
	}
	order := bytes.Compare(b, low)
	if first && low != nil && order != 0 || !first && order <= 0 || high != nil && bytes.Compare(b, high) >= 0 {
		return nil, damaged("page %d: keys are not in order", p.id)
	}
	return bytes.Clone(b), nil
}

func (c *checker) branch(p *page, depth int, low, high []byte, level int) error {
	if p.count < 2 { // bbolt replaces a branch by its only child.
		return damaged("page %d is a branch with %d children", p.id, p.count)
	}
	elements, err := p.slice(headerBytes, int64(p.count)*branchBytes)
	if err != nil {
		return err
	}
	elements = bytes.Clone(elements)
	room := p.bytes - headerBytes - int64(len(elements))
	key := func(i int, low []byte) ([]byte, uint64, error) {
		e := elements[i*branchBytes:]
		at, n := headerBytes+int64(i)*branchBytes+int64(byteOrder.Uint32(e)), int64(byteOrder.Uint32(e[4:]))
		if room -= n; room < 0 {
			return nil, 0, damaged("page %d: a key of %d bytes", p.id, n)
		}
		k, err := p.key(at, n, i == 0, low, high)
		return k, byteOrder.Uint64(e[8:]), err
	}
	from, child, err := key(0, low)
	for i := 0; err == nil && i < p.count; i++ {
		to, next := high, uint64(0)
		if i+1 < p.count {
			if to, next, err = key(i+1, from); err != nil {
				return err
			}
		}
		err = c.tree(child, depth+1, from, to, level)
		from, child = to, next
	}
	return err
}

func (c *checker) leaf(p *page, depth int, low, high []byte, level int) error {
	elements, err := p.slice(headerBytes, int64(p.count)*leafBytes)
	if err != nil {
		return err
	}
	if p.count == 0 && low != nil {
		return damaged("page %d has no keys", p.id)
	}
	room := p.bytes - headerBytes - int64(len(elements))
	for i := range p.count {
		e := elements[i*leafBytes:]
		flags := byteOrder.Uint32(e)
		at := headerBytes + int64(i)*leafBytes + int64(byteOrder.Uint32(e[4:]))
		keyBytes, valueBytes := int64(byteOrder.Uint32(e[8:])), int64(byteOrder.Uint32(e[12:]))
		k, err := p.key(at, keyBytes, i == 0, low, high)
		if err != nil {
			return err
		}
		low = k
		// Entries that share bytes would let a small page have many large keys.
		if room -= keyBytes + valueBytes; room < 0 || valueBytes > p.bytes-at-keyBytes {
			return damaged("page %d: a value of %d bytes", p.id, valueBytes)
		}
		switch {
		case flags == leafBucket:
			if err := c.child(p, depth, at+keyBytes, valueBytes, level); err != nil {
				return err
			}
		case flags != 0:
			return damaged("page %d: an entry of type %#x", p.id, flags)
		case level == 0 && len(c.bucket) > 0 && bytes.Equal(k, c.bucket):
			return damaged("page %d: %q is no bucket", p.id, c.bucket)
		}
	}
	return nil
}

// child checks a bucket that is the value at a place of a leaf.
func (c *checker) child(p *page, depth int, at, n int64, level int) error {
	if n < bucketBytes {
		return damaged("page %d: a bucket of %d bytes", p.id, n)
	}
	b, err := p.slice(at, bucketBytes)
	if err != nil {
		return err
	}
	if root := byteOrder.Uint64(b); root != 0 {
		return c.tree(root, depth+1, nil, nil, level+1)
	}
	// The bucket is inline: its only page follows.
	if n < bucketBytes+headerBytes || n > c.pageBytes {
		return damaged("page %d: an inline bucket of %d bytes", p.id, n)
	}
	if b, err = p.slice(at+bucketBytes, n-bucketBytes); err != nil {
		return err
	}
	inline := &page{c: c, id: p.id, at: p.at + at + bucketBytes, bytes: n - bucketBytes}
	inline.parse(b)
	if inline.flags != flagLeaf || byteOrder.Uint64(b) != 0 {
		return damaged("page %d: an inline bucket of type %#x", p.id, inline.flags)
	}
	return c.leaf(inline, depth, nil, nil, level+1)
}
