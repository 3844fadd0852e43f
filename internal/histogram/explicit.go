// SPDX-License-Identifier: Apache-2.0

package histogram

import (
	"encoding/binary"
	"math"
	"sort"

	"github.com/gpuflight/gpuflight/internal/varint"
)

// Explicit counts whole numbers of 0 and more between given bounds. A value equal to a bound is in
// the bucket below it.
type Explicit struct {
	bounds   []int64
	counts   []uint64
	sum      uint64
	count    uint64
	min, max int64
}

// NewExplicit returns an empty histogram with the given bounds, which rise and are shared with the
// caller.
func NewExplicit(bounds []int64) *Explicit {
	return &Explicit{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

// Observe counts a value. One below zero counts as zero.
func (h *Explicit) Observe(v int64) {
	v = max(v, 0)
	if h.count == 0 {
		h.min, h.max = v, v
	} else {
		h.min, h.max = min(h.min, v), max(h.max, v)
	}
	h.count++
	h.sum += uint64(v)
	h.counts[sort.Search(len(h.bounds), func(i int) bool { return v <= h.bounds[i] })]++
}

// Merge adds all that other holds, which has the same bounds; other stays as it is.
func (h *Explicit) Merge(other *Explicit) {
	if other.count == 0 {
		return
	}
	if h.count == 0 {
		h.min, h.max = other.min, other.max
	} else {
		h.min, h.max = min(h.min, other.min), max(h.max, other.max)
	}
	h.count += other.count
	h.sum += other.sum
	for i, n := range other.counts {
		h.counts[i] += n
	}
}

// Count returns the number of values.
func (h *Explicit) Count() uint64 { return h.count }

// Sum returns the sum of the values.
func (h *Explicit) Sum() uint64 { return h.sum }

// Min returns the least value, 0 where there are none.
func (h *Explicit) Min() int64 { return h.min }

// Max returns the greatest value, 0 where there are none.
func (h *Explicit) Max() int64 { return h.max }

// Counts returns the counts: one more than there are bounds. The slice is valid until the next call
// that changes the histogram.
func (h *Explicit) Counts() []uint64 { return h.counts }

// AppendState appends the histogram's state to b.
func (h *Explicit) AppendState(b []byte) []byte {
	b = binary.AppendUvarint(b, h.count)
	if h.count == 0 {
		return b
	}
	b = binary.AppendUvarint(b, h.sum)
	b = binary.AppendUvarint(b, uint64(h.min))
	b = binary.AppendUvarint(b, uint64(h.max))
	return appendCounts(b, h.counts)
}

// LoadState reads a state that AppendState wrote into a histogram of the same bounds and returns what
// follows it. After an error the histogram is empty.
func (h *Explicit) LoadState(b []byte) (rest []byte, err error) {
	*h = Explicit{bounds: h.bounds, counts: make([]uint64, len(h.bounds)+1)}
	d := varint.Reader{Rest: b}
	count := d.Uint()
	if count == 0 {
		if !d.OK() {
			return nil, ErrDamaged
		}
		return d.Rest, nil
	}
	sum, lo, hi := d.Uint(), d.Uint(), d.Uint()
	counts := loadCounts(&d, len(h.counts))
	var total uint64
	for _, c := range counts {
		total += c
	}
	if !d.OK() || lo > hi || hi > math.MaxInt64 || len(counts) != len(h.counts) || total != count {
		return nil, ErrDamaged
	}
	h.counts, h.count, h.sum, h.min, h.max = counts, count, sum, int64(lo), int64(hi)
	return d.Rest, nil
}
