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
	// Bytes bounds the body as it comes and also what it unpacks to.
	Bytes int64
	// LineBytes bounds a line; longer ones are left out.
	LineBytes int
}

// Body is the content of a request, held as it came.
type Body struct {
	raw    []byte
	gzip   bool
	limits Limits
	budget *Budget
	taken  int64
	// unpacked counts the bytes that Check has unpacked.
	unpacked int64
}

// pieceBytes is how much is read of a body before more is asked of the budget, so that a client
// that announces much and sends little holds little.
const pieceBytes = 64 << 10

// Read takes the body of a request. Every error is a *Refusal. The Body must be closed.
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
			// Doubling keeps the copies few; the budget counts what is reserved, not what is used.
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
			return &Refusal{Status: http.StatusRequestTimeout, Reason: "the body did not come in time"}
		}
		return Unreadable("the body broke off after %d bytes: %v", len(b.raw), err)
	}
}

// Close gives the body's bytes back to the budget.
func (b *Body) Close() {
	b.budget.Give(b.taken)
	b.taken, b.raw = 0, nil
}

// Size is the number of bytes as sent.
func (b *Body) Size() int64 { return int64(len(b.raw)) }

// Unpacked is the number of bytes that Check has unpacked, also of a body that it refuses.
func (b *Body) Unpacked() int64 { return b.unpacked }

// Raw is the body as sent, valid until Close.
func (b *Body) Raw() []byte { return b.raw }

// CRC32 is the checksum of the bytes as sent.
func (b *Body) CRC32() uint32 { return crc32.ChecksumIEEE(b.raw) }

// Sum identifies a content, whichever way it is compressed.
type Sum [16]byte

// Content is what Check finds.
type Content struct {
	Sum Sum
	// Bytes is the unpacked size.
	Bytes int64
	// Longest is the length of the longest line.
	Longest int
	// Channel is the one whose records the lines are; known is false if all of them stand in
	// every channel.
	Channel gpuflog.Channel
	Known   bool
	// Session is the one that the first line that names any names.
	Session string
}

// everywhere is a record type of the scope channel of which one kind, the map of the source, stands in
// every channel (format document, section 4.6): it tells the channel only where nothing else does.
const everywhere = "profile_sample_batch"

// Check walks over the whole content without keeping it. Every error is a *Refusal.
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
	look := heads{found: func(line []byte) bool {
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
		look.write(buf[:n])
		if errors.Is(err, io.EOF) {
			look.end()
			if samples && !c.Known {
				c.Channel, c.Known = gpuflog.ChannelOf(everywhere)
			}
			copy(c.Sum[:], h.Sum(nil))
			return c, nil
		}
		if err != nil {
			return Content{}, Unreadable("the body is not whole gzip: %v", err)
		}
	}
}

// longest notes the lines of a piece, whose first line has begun with so many bytes. It returns with
// how many its last line begins.
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

// heads hands the beginnings of lines to found until that has what it looks for.
type heads struct {
	found func(head []byte) bool
	done  bool
	head  []byte
	skip  bool // the rest of a line whose beginning was handed on
}

// headBytes is enough for the type and the session of every record that the recorder writes.
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
