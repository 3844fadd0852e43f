// SPDX-License-Identifier: Apache-2.0

package varint_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/varint"
)

func TestReader(t *testing.T) {
	b := binary.AppendUvarint(nil, math.MaxUint64)
	b = binary.AppendVarint(b, math.MinInt64)
	b = varint.AppendBytes(b, "text")
	b = binary.LittleEndian.AppendUint64(b, 1<<63)
	b = append(b, 7, 3, 1, 2, 3)
	read := func(r *varint.Reader) (uint64, int64, string, uint64, byte, int, []byte) {
		return r.Uint(), r.Int(), string(r.Sized()), r.Fixed(), r.Byte(), r.Count(1), r.Bytes(3)
	}
	t.Run("values", func(t *testing.T) {
		r := varint.Reader{Rest: b}
		u, i, s, f, c, n, p := read(&r)
		assert.Equal(t, []any{uint64(math.MaxUint64), int64(math.MinInt64), "text", uint64(1 << 63), byte(7), 3, []byte{1, 2, 3}},
			[]any{u, i, s, f, c, n, p})
		assert.True(t, r.OK())
		assert.Empty(t, r.Rest)
	})
	t.Run("every shorter state fails", func(t *testing.T) {
		for n := range b {
			r := varint.Reader{Rest: b[:n]}
			read(&r)
			assert.NotEmpty(t, r.Problem, "%d bytes", n)
			assert.Nil(t, r.Rest, "%d bytes", n)
			assert.Zero(t, r.Uint(), "%d bytes", n)
		}
	})
	t.Run("limits", func(t *testing.T) {
		r := varint.Reader{Rest: []byte{5}}
		assert.Equal(t, uint64(5), r.Max(5))
		r = varint.Reader{Rest: []byte{6, 1}}
		assert.Zero(t, r.Max(5))
		assert.Equal(t, "a number exceeds its limit", r.Problem)
		r = varint.Reader{Rest: []byte{2, 0, 0, 0}}
		assert.Zero(t, r.Count(2), "two elements of two bytes do not fit in three bytes")
		assert.False(t, r.OK())
		r = varint.Reader{Rest: []byte{1, 0, 0}}
		assert.Equal(t, 1, r.Count(2))
	})
	t.Run("the first problem stays", func(t *testing.T) {
		r := varint.Reader{Rest: []byte{1}}
		r.Fail("first")
		r.Fail("second")
		assert.Equal(t, "first", r.Problem)
	})
}
