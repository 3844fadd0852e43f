// SPDX-License-Identifier: Apache-2.0

package account

import (
	"errors"
	"fmt"
	"math"

	"github.com/gpuflight/gpuflight/internal/varint"
)

// ErrState is wrapped by every error of LoadState.
var ErrState = errors.New("corrupt or foreign state")

// reader reads saved state.
type reader struct{ varint.Reader }

func newReader(b []byte) *reader { return &reader{varint.Reader{Rest: b}} }

// err returns nil if every value was valid.
func (r *reader) err(of string) error {
	if r.OK() {
		return nil
	}
	return fmt.Errorf("%s: %w: %s", of, ErrState, r.Problem)
}

func (r *reader) version(want byte) {
	if v := r.Byte(); r.OK() && v != want {
		r.Fail(fmt.Sprintf("version %d, not %d", v, want))
	}
}

// natural reads a number of at most MaxInt64.
func (r *reader) natural() int64 { return int64(r.Max(math.MaxInt64)) }

// id reads a number of 32 bits.
func (r *reader) id() uint32 { return uint32(r.Max(math.MaxUint32)) }

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
