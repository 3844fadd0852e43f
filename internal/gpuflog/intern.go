// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"bytes"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

func hash64(b []byte) uint64 { return xxhash.Sum64(b) }

// interner turns bytes into strings and gives equal bytes the same string. When it holds more than
// its limit of bytes it forgets all: what is in use comes back at once.
type interner struct {
	m     map[string]string
	bytes int
	limit int
}

func newInterner(limit int) interner { return interner{m: map[string]string{}, limit: limit} }

func (n *interner) get(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := n.m[string(b)]; ok {
		return s
	}
	if n.bytes > n.limit {
		clear(n.m)
		n.bytes = 0
	}
	key := string(b)
	s := key
	if !utf8.Valid(b) {
		s = text(b)
	}
	n.m[key] = s
	n.bytes += len(key) + 64 // and about what a map entry takes
	return s
}

// stackTable turns upstream's host stacks ("outermost|…|innermost") into ours, one frame a line and
// outermost last, once per distinct stack. Frames that upstream could not name are empty there and
// left out here.
type stackTable struct {
	m     map[string]string
	bytes int
	limit int
	// The last stack: a loop launches from the same stack repeatedly.
	lastKey, lastVal string
}

func newStackTable(limit int) stackTable { return stackTable{m: map[string]string{}, limit: limit} }

func (n *stackTable) get(b []byte) string {
	if len(b) == 0 || string(b) == globalPath {
		return ""
	}
	if string(b) == n.lastKey {
		return n.lastVal
	}
	s, ok := n.m[string(b)]
	key := ""
	if !ok {
		if n.bytes > n.limit {
			clear(n.m)
			n.bytes = 0
		}
		key = string(b)
		s = frames(b)
		n.m[key] = s
		n.bytes += len(key) + len(s) + 64
	}
	if len(b) < 256 && key != "" { // comparing a long key costs as much as hashing it
		n.lastKey, n.lastVal = key, s
	}
	return s
}

func frames(b []byte) string {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		cut := bytes.LastIndexByte(b, '|')
		if frame := b[cut+1:]; len(frame) > 0 {
			if len(out) > 0 {
				out = append(out, '\n')
			}
			out = append(out, frame...)
		}
		b = b[:max(cut, 0)]
	}
	return text(out)
}

// maxNames bounds the kernel names kept per Decoder.
const maxNames = 1 << 16

// name returns the shared forms of a function name.
func (d *Decoder) name(b []byte) *gpuevent.KernelName {
	if n, ok := d.names[string(b)]; ok {
		return n
	}
	if len(d.names) >= maxNames {
		clear(d.names)
	}
	key := string(b)
	if !utf8.Valid(b) {
		d.reject(InvalidUTF8, "name "+excerpt(b))
	}
	n := gpuevent.NewKernelName(text(b))
	d.names[key] = n
	return n
}
