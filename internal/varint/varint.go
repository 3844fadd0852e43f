// SPDX-License-Identifier: Apache-2.0

// Package varint reads stored state of numbers and byte strings. Numbers are varints as
// encoding/binary writes them. A byte string follows its length.
package varint

import "encoding/binary"

// AppendBytes appends the length of v and v to b. [Reader.Sized] reads them.
func AppendBytes[T ~string | ~[]byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// Reader reads values from the front of Rest. After the first failure Rest is nil, Problem is set and
// every value is zero. A Reader belongs to one goroutine.
type Reader struct {
	// Rest holds the bytes that are not read yet. Results of Bytes and Sized share its memory.
	Rest []byte
	// Problem describes the first failure. It is empty while there is none.
	Problem string
}

// OK returns whether every value up to now was valid.
func (r *Reader) OK() bool { return r.Problem == "" }

// Fail sets Problem if it is empty, and discards the rest.
func (r *Reader) Fail(problem string) {
	if r.Problem == "" {
		r.Problem = problem
	}
	r.Rest = nil
}

// Uint reads an unsigned number.
func (r *Reader) Uint() uint64 {
	if len(r.Rest) > 0 && r.Rest[0] < 0x80 { // most numbers are small
		v := r.Rest[0]
		r.Rest = r.Rest[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(r.Rest)
	if n <= 0 {
		r.Fail("the state is too short or a number exceeds 64 bits")
		return 0
	}
	r.Rest = r.Rest[n:]
	return v
}

// Int reads a signed number.
func (r *Reader) Int() int64 {
	v := r.Uint()
	return int64(v>>1) ^ -int64(v&1) // as binary.Varint
}

// Max reads an unsigned number of at most limit.
func (r *Reader) Max(limit uint64) uint64 {
	v := r.Uint()
	if v > limit {
		r.Fail("a number exceeds its limit")
		return 0
	}
	return v
}

// Count reads the number of elements that follow, each of at least size bytes. A damaged count
// cannot request more memory than the state has bytes.
func (r *Reader) Count(size int) int {
	v := r.Uint()
	if v > uint64(len(r.Rest)/size) {
		r.Fail("a count exceeds the rest of the state")
		return 0
	}
	return int(v)
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if p := r.Bytes(1); p != nil {
		return p[0]
	}
	return 0
}

// Bytes reads n bytes. It returns nil if there are fewer.
func (r *Reader) Bytes(n int) []byte {
	if n > len(r.Rest) {
		r.Fail("the state is too short")
		return nil
	}
	p := r.Rest[:n]
	r.Rest = r.Rest[n:]
	return p
}

// Sized reads what [AppendBytes] wrote.
func (r *Reader) Sized() []byte { return r.Bytes(r.Count(1)) }

// Fixed reads 8 bytes, the least significant first.
func (r *Reader) Fixed() uint64 {
	if p := r.Bytes(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}
