// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// coder writes or reads a checkpoint: one description of the layout serves both directions, so
// they cannot drift apart. Numbers are varints, strings carry their length.
type coder struct {
	b []byte
	// reading: b is consumed; otherwise b is appended to.
	reading bool
	err     error
}

var errState = errors.New("checkpoint is damaged")

func (c *coder) fail() {
	if c.err == nil {
		c.err = errState
	}
	c.b = nil
}

func (c *coder) uint(v *uint64) {
	if !c.reading {
		c.b = binary.AppendUvarint(c.b, *v)
		return
	}
	u, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail()
		return
	}
	*v, c.b = u, c.b[n:]
}

func (c *coder) int(v *int64) {
	if !c.reading {
		c.b = binary.AppendVarint(c.b, *v)
		return
	}
	u, n := binary.Varint(c.b)
	if n <= 0 {
		c.fail()
		return
	}
	*v, c.b = u, c.b[n:]
}

func (c *coder) bool(v *bool) {
	u := uint64(0)
	if *v {
		u = 1
	}
	c.uint(&u)
	*v = u != 0
}

func (c *coder) str(v *string) {
	n := c.count(len(*v), 1)
	if !c.reading {
		c.b = append(c.b, *v...)
		return
	}
	*v = string(c.b[:n])
	c.b = c.b[n:]
}

// count codes the length of a list whose elements take at least size bytes each, so that a damaged
// count cannot ask for more memory than the checkpoint has bytes.
func (c *coder) count(n, size int) int {
	u := uint64(n)
	c.uint(&u)
	if c.reading && u > uint64(len(c.b)/size) {
		c.fail()
		return 0
	}
	return int(u)
}

func (c *coder) bytes(v []byte) {
	if !c.reading {
		c.b = append(c.b, v...)
		return
	}
	if len(c.b) < len(v) {
		c.fail()
		return
	}
	copy(v, c.b)
	c.b = c.b[len(v):]
}

func (c *coder) optInt(v *gpuevent.Int) {
	c.bool(&v.OK)
	if v.OK {
		c.int(&v.V)
	}
}

func (c *coder) optFloat(v *gpuevent.Float) {
	c.bool(&v.OK)
	if v.OK {
		u := math.Float64bits(v.V)
		c.uint(&u)
		v.V = math.Float64frombits(u)
	}
}

func (c *coder) ref(r *gpuevent.Ref) {
	c.bytes(r.Trace[:])
	c.bytes(r.Span[:])
	c.bytes(r.Parent[:])
}

// list codes a slice.
func list[T any](c *coder, s *[]T, size int, each func(*T)) {
	n := c.count(len(*s), size)
	if c.reading {
		*s = make([]T, 0, min(n, 1024))
	}
	for i := 0; i < n && c.err == nil; i++ {
		if c.reading {
			var v T
			*s = append(*s, v)
		}
		each(&(*s)[i])
	}
}

// table codes a map in the order of its keys.
func table[K int64 | uint64, V any](c *coder, m *map[K]V, key func(*K), each func(*V)) {
	n := c.count(len(*m), 2)
	if !c.reading {
		for _, k := range sortedKeys(*m) {
			v := (*m)[k]
			key(&k)
			each(&v)
		}
		return
	}
	*m = make(map[K]V, min(n, 1024))
	for i := 0; i < n && c.err == nil; i++ {
		var k K
		var v V
		key(&k)
		each(&v)
		(*m)[k] = v
	}
}
