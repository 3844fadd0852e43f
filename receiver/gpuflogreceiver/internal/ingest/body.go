// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// Limits bound one body.
type Limits struct {
	// Bytes bounds the body both as sent and decompressed.
	Bytes int64
	// LineBytes bounds a line. Longer lines are skipped.
	LineBytes int
}

// Body is the body of a request, held as sent.
type Body struct {
	raw    []byte
	gzip   bool
	limits Limits
	budget *Budget
	taken  int64
	// unpacked counts the bytes that Check has decompressed.
	unpacked int64
}

// blockBytes is how much of a body is read before more of the budget is reserved. A client that
// announces much and sends little then holds little.
const pieceBytes = 64 << 10

// Read reads the body of a request. Every error is a *Refusal. The caller must close the Body.
func Read(r *http.Request, limits Limits, budget *Budget) (*Body, error) {
	b := &Body{limits: limits, budget: budget}
	switch enc := strings.ToLower(strings.TrimSpace(strings.Join(r.Header.Values("Content-Encoding"), ", "))); enc {
	case "", "identity":
	case "gzip", "x-gzip":
		b.gzip = true
	default:
		return nil, &Refusal{Status: http.StatusUnsupportedMediaType, Reason: fmt.Sprintf("Content-Encoding %q is not supported: send gzip or none", enc)}
	}
	if r.ContentLength > limits.Bytes {
		return nil, tooLarge("as sent", limits.Bytes)
	}
	if err := b.fill(r); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Body) fill(r *http.Request) error {
	for {
		if len(b.raw) == cap(b.raw) {
			// Doubling limits the copies. The budget counts the reserved bytes.
			more := max(int64(cap(b.raw)), pieceBytes)
			if r.ContentLength > 0 {
				more = min(more, max(r.ContentLength+1-int64(cap(b.raw)), 1))
			}
			if err := b.budget.reserve(more, b.taken); err != nil {
				return err
			}
			b.taken += more
			grown := make([]byte, len(b.raw), int64(cap(b.raw))+more)
			copy(grown, b.raw)
			b.raw = grown
		}
		n, err := r.Body.Read(b.raw[len(b.raw):cap(b.raw)])
		b.raw = b.raw[:len(b.raw)+n]
		if int64(len(b.raw)) > b.limits.Bytes {
			return tooLarge("as sent", b.limits.Bytes)
		}
		if err == nil {
			continue
		}
		var large *http.MaxBytesError
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &large):
			return tooLarge("as sent", large.Limit)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &Refusal{Status: http.StatusRequestTimeout, Reason: "timeout while reading the body"}
		}
		return Unreadable("the body ended after %d bytes: %v", len(b.raw), err)
	}
}

// Close returns the body's bytes to the budget.
func (b *Body) Close() {
	b.budget.Give(b.taken)
	b.taken, b.raw = 0, nil
}

// Size is the number of bytes as sent.
func (b *Body) Size() int64 { return int64(len(b.raw)) }

// Unpacked is the number of bytes that Check has decompressed, also of a rejected body.
func (b *Body) Unpacked() int64 { return b.unpacked }

// Raw is the body as sent, valid until Close.
func (b *Body) Raw() []byte { return b.raw }

// CRC32 is the checksum of the bytes as sent.
func (b *Body) CRC32() uint32 { return crc32.ChecksumIEEE(b.raw) }

// Sum identifies a content independent of its compression.
type Sum [16]byte

// Content is the result of Check.
type Content struct {
	Sum Sum
	// Bytes is the unpacked size.
	Bytes int64
	// Longest is the length of the longest line.
	Longest int
	// Channel is the channel of the records. known is false if all of them may appear in every
	// channel.
	Channel gpuflog.Channel
	Known   bool
	// Session is the session that the first line with a session names.
	Session string
}

// everywhere is a record type of the scope channel. One kind of it, the source map, appears in
// every channel (format document, section 4.6). It determines the channel only if no other record
// does.
const everywhere = "profile_sample_batch"

// Check reads the complete content without keeping it. Every error is a *Refusal.
func (b *Body) Check() (Content, error) {
	src, err := b.open()
	if err != nil {
		return Content{}, err
	}
	var c Content
	h := sha256.New()
	buf := make([]byte, 32<<10)
	samples := false
	line := 0 // bytes of the line in progress
	scanner := heads{found: func(line []byte) bool {
		if c.Session == "" {
			c.Session = gpuflog.SessionOf(line)
		}
		typ := gpuflog.TypeOf(line)
		switch ch, ok := gpuflog.ChannelOf(typ); {
		case typ == everywhere:
			samples = true
		case ok && !c.Known:
			c.Channel, c.Known = ch, true
		}
		return c.Known && c.Session != ""
	}}
	for {
		n, err := src.Read(buf)
		b.unpacked += int64(n)
		if c.Bytes = b.unpacked; c.Bytes > b.limits.Bytes {
			return Content{}, tooLarge("unpacked", b.limits.Bytes)
		}
		h.Write(buf[:n])
		line = c.longest(buf[:n], line)
		scanner.write(buf[:n])
		if errors.Is(err, io.EOF) {
			scanner.end()
			if samples && !c.Known {
				c.Channel, c.Known = gpuflog.ChannelOf(everywhere)
			}
			copy(c.Sum[:], h.Sum(nil))
			return c, nil
		}
		if err != nil {
			return Content{}, Unreadable("the body is not complete gzip: %v", err)
		}
	}
}

// longest updates Longest with a block of lines. begun is the length of the unfinished line before
// the block. It returns the length of the unfinished line at its end.
func (c *Content) longest(piece []byte, begun int) int {
	for {
		n := bytes.IndexByte(piece, '\n')
		if n < 0 {
			begun += len(piece)
			c.Longest = max(c.Longest, begun)
			return begun
		}
		c.Longest = max(c.Longest, begun+n)
		piece, begun = piece[n+1:], 0
	}
}

func (b *Body) open() (io.Reader, error) {
	if !b.gzip {
		return bytes.NewReader(b.raw), nil
	}
	z, err := gzip.NewReader(bytes.NewReader(b.raw))
	if err != nil {
		return nil, Unreadable("the body is not gzip: %v", err)
	}
	return z, nil
}

// heads passes the beginnings of lines to found until found needs no more.
type heads struct {
	found func(head []byte) bool
	done  bool
	head  []byte
	skip  bool // the rest of a line whose beginning was handed on
}

// headBytes covers the type and the session of every record that the recorder writes.
const headBytes = 1 << 10

func (h *heads) write(p []byte) {
	for len(p) > 0 && !h.done {
		n := bytes.IndexByte(p, '\n')
		part := p
		if n >= 0 {
			part = p[:n]
		}
		if !h.skip {
			h.head = append(h.head, part[:min(len(part), headBytes-len(h.head))]...)
			if len(h.head) == headBytes {
				h.end()
				h.skip = true
			}
		}
		if n < 0 {
			return
		}
		if !h.skip {
			h.end()
		}
		h.skip = false
		p = p[n+1:]
	}
}

func (h *heads) end() {
	if len(h.head) > 0 && !h.done {
		h.done = h.found(h.head)
	}
	h.head = h.head[:0]
}
