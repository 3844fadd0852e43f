// SPDX-License-Identifier: Apache-2.0

package account

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrState is wrapped by every error of LoadState.
var ErrState = errors.New("corrupt or foreign state")

// reader takes numbers off the front of saved state. After the first that does not fit, all are
// zero and bad says what was wrong.
type reader struct {
	b   []byte
	bad string
}

func (r *reader) fail(why string) {
	if r.bad == "" {
		r.bad = why
	}
	r.b = nil
}

// err is nil while all went well.
func (r *reader) err(of string) error {
	if r.bad == "" {
		return nil
	}
	return fmt.Errorf("%s: %w: %s", of, ErrState, r.bad)
}

func (r *reader) version(want byte) {
	if v := r.byte(); r.bad == "" && v != want {
		r.fail(fmt.Sprintf("version %d, not %d", v, want))
	}
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail("cut short")
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) fixed() uint64 {
	if len(r.b) < 8 {
		r.fail("cut short")
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("cut short, or a number beyond 64 bits")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("cut short, or a number beyond 64 bits")
		return 0
	}
	r.b = r.b[n:]
	return v
}

// natural is a number of [0, MaxInt64].
func (r *reader) natural() int64 {
	v := r.uvarint()
	if v > math.MaxInt64 {
		r.fail("a number beyond 63 bits")
		return 0
	}
	return int64(v)
}

// id is a number of 32 bits.
func (r *reader) id() uint32 {
	v := r.uvarint()
	if v > math.MaxUint32 {
		r.fail("an id beyond 32 bits")
		return 0
	}
	return uint32(v)
}

// count is how many items follow, each of at least size bytes. So memory that is reserved for them
// is bounded by the bytes that are there.
func (r *reader) count(size int) int {
	v := r.uvarint()
	if v > uint64(len(r.b)/size) {
		r.fail("more items than bytes")
		return 0
	}
	return int(v)
}

// plus is a+b for b not negative, at most MaxInt64.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// minus is a-b, kept within int64.
func minus(a, b int64) int64 {
	d := a - b
	switch {
	case b > 0 && d > a:
		return math.MinInt64
	case b < 0 && d < a:
		return math.MaxInt64
	}
	return d
}
