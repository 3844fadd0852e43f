// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"encoding/binary"
	"math"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/varint"
)

// coder writes or reads a checkpoint. One description of the layout serves both directions, so they
// cannot differ. Package varint defines the format of numbers and strings.
type coder struct {
	// Reader holds the input while reading is true.
	varint.Reader
	reading bool
	// b is the output while reading is false.
	b []byte
}

func (c *coder) fail() { c.Fail("a value is out of range") }

func (c *coder) uint(v *uint64) {
	if c.reading {
		*v = c.Uint()
		return
	}
	c.b = binary.AppendUvarint(c.b, *v)
}

func (c *coder) int(v *int64) {
	if c.reading {
		*v = c.Int()
		return
	}
	c.b = binary.AppendVarint(c.b, *v)
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
	if c.reading {
		*v = string(c.Sized())
		return
	}
	c.b = varint.AppendBytes(c.b, *v)
}

// count codes the length of a list whose elements need at least size bytes each. See
// [varint.Reader.Count].
func (c *coder) count(n, size int) int {
	if c.reading {
		return c.Count(size)
	}
	c.b = binary.AppendUvarint(c.b, uint64(n))
	return n
}

func (c *coder) bytes(v []byte) {
	if c.reading {
		copy(v, c.Bytes(len(v)))
		return
	}
	c.b = append(c.b, v...)
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
	for i := 0; i < n && c.OK(); i++ {
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
	for i := 0; i < n && c.OK(); i++ {
		var k K
		var v V
		key(&k)
		each(&v)
		(*m)[k] = v
	}
}
