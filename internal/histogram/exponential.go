// SPDX-License-Identifier: Apache-2.0

// Package histogram has histograms of device work: exponential histograms of durations, and explicit
// histograms of whole numbers. They differ from those of an SDK in three ways. Sums are whole numbers,
// so they are exact in any order of arrival. Two histograms can be merged exactly. A histogram can be
// saved and loaded. The package does not depend on pdata or the Collector. A histogram is not safe for
// concurrent use.
package histogram

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync"

	"github.com/gpuflight/gpuflight/internal/varint"
)

const (
	// MaxScale is the scale of a histogram that holds a single value, as the OpenTelemetry data
	// model suggests.
	MaxScale = 20
	// MinScale is the coarsest scale that Prometheus' native histograms know. Durations that fit an
	// int64 span 64 powers of two: with MinSize buckets it is never passed.
	MinScale = -4
	// MinSize and MaxSize bound the number of buckets.
	MinSize, MaxSize = 8, 4096
)

// ErrDamaged is returned for a state that cannot have been saved by this package.
var ErrDamaged = errors.New("histogram state is damaged")

// Exponential counts durations of 0 to 2^63−1 ns in buckets of exponential width, in seconds: bucket
// i of scale s holds the values in (b^i, b^(i+1)] with b = 2^(2^−s). The scale is the finest at which
// all values fit into the allowed number of buckets; it follows from the values alone and not from
// their order.
type Exponential struct {
	size     int32
	scale    int32
	first    int32 // index of counts[0]
	counts   []uint64
	zero     uint64
	count    uint64
	sum      uint64
	min, max int64
}

// NewExponential returns an empty histogram of at most size buckets (MinSize to MaxSize; a size
// outside is moved to the nearest of the two).
func NewExponential(size int) *Exponential {
	return &Exponential{size: int32(min(max(size, MinSize), MaxSize)), scale: MaxScale}
}

// Observe counts a duration in nanoseconds. One below zero counts as zero.
func (h *Exponential) Observe(ns int64) {
	ns = max(ns, 0)
	if h.count == 0 {
		h.min, h.max = ns, ns
	} else {
		h.min, h.max = min(h.min, ns), max(h.max, ns)
	}
	h.count++
	h.sum += uint64(ns)
	if ns == 0 {
		h.zero++
		return
	}
	i := index(float64(ns)/1e9, h.scale) - h.first
	if uint32(i) < uint32(len(h.counts)) {
		h.counts[i]++
		return
	}
	h.add(i+h.first, 1)
}

// Merge adds all that other holds; other stays as it is.
func (h *Exponential) Merge(other *Exponential) {
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
	h.zero += other.zero
	if len(other.counts) == 0 {
		return
	}
	if h.scale > other.scale {
		h.downscale(h.scale - other.scale)
	}
	// Both ends first: then the range is known and no bucket moves twice.
	ends := [2]int32{other.first, other.first + int32(len(other.counts)) - 1}
	for _, i := range ends {
		h.add(i>>(other.scale-h.scale), 0)
	}
	for k, n := range other.counts {
		if n > 0 {
			h.add((other.first+int32(k))>>(other.scale-h.scale), n)
		}
	}
}

// Count returns the number of values.
func (h *Exponential) Count() uint64 { return h.count }

// Sum returns the sum of the values in nanoseconds.
func (h *Exponential) Sum() uint64 { return h.sum }

// Min and Max return the extreme values in nanoseconds, 0 where there are none.
func (h *Exponential) Min() int64 { return h.min }

// Max returns the greatest value in nanoseconds, 0 where there are none.
func (h *Exponential) Max() int64 { return h.max }

// Zero returns how many values were 0.
func (h *Exponential) Zero() uint64 { return h.zero }

// Scale returns the scale of the buckets.
func (h *Exponential) Scale() int32 { return h.scale }

// Buckets returns the index of the first bucket and the counts from there on. The slice is valid
// until the next call that changes the histogram.
func (h *Exponential) Buckets() (first int32, counts []uint64) { return h.first, h.counts }

// add counts n values in bucket i of the present scale, and makes room for it if it must.
func (h *Exponential) add(i int32, n uint64) {
	if len(h.counts) == 0 {
		h.first = i
		h.counts = append(h.counts, n)
		return
	}
	lo, hi := min(h.first, i), max(h.first+int32(len(h.counts))-1, i)
	by := int32(0)
	for (hi>>by)-(lo>>by) >= h.size {
		by++
	}
	if by > 0 {
		h.downscale(by)
		i >>= by
	}
	if i < h.first {
		more := int(h.first - i)
		h.counts = slices.Grow(h.counts, more)
		h.counts = h.counts[:len(h.counts)+more]
		copy(h.counts[more:], h.counts)
		clear(h.counts[:more])
		h.first = i
	}
	for k := int(i - h.first); k >= len(h.counts); {
		h.counts = append(h.counts, 0)
	}
	h.counts[i-h.first] += n
}

// downscale joins 2^by neighbouring buckets each.
func (h *Exponential) downscale(by int32) {
	h.scale -= by
	if len(h.counts) == 0 {
		return
	}
	first := h.first >> by
	n := 0
	for k, c := range h.counts {
		to := int((h.first+int32(k))>>by - first)
		if to >= n { // the first that goes there
			h.counts[to] = 0
			n = to + 1
		}
		// k ≥ to, so c was read before anything is written over it.
		h.counts[to] += c
	}
	h.first, h.counts = first, h.counts[:n]
}

// index returns the bucket of v, a normal number above 0, at a scale: ceil(log2(v)·2^scale) − 1. It is
// exact at powers of two. For other values it is exact with respect to the bound of the bucket rounded
// to a float64. An index shifted right is therefore the index at a coarser scale.
func index(v float64, scale int32) int32 {
	if scale > 0 && scale <= tableScale {
		return tables[scale]().index(v)
	}
	frac, exp := math.Frexp(v) // frac in [0.5, 1)
	if scale <= 0 {
		e := int32(exp) - 1
		if frac == 0.5 {
			e-- // upper bounds belong to the bucket
		}
		return e >> -scale
	}
	if frac == 0.5 {
		return (int32(exp)-1)<<scale - 1
	}
	width := float64(int64(1) << scale)
	y := math.Log(frac) * (math.Log2E * width) // in (−2^scale, 0)
	i := math.Ceil(y) - 1
	// The logarithm is good to 2^scale·2^−52; closer to a bound than 1e-6 the bound itself decides.
	if r := math.Round(y); math.Abs(y-r) < 1e-6 {
		if frac <= bound(int(r), width) {
			i = r - 1
		} else {
			i = r
		}
	}
	return int32(exp)<<scale + int32(i)
}

// bound returns 2^(i/width). The quotient is exact, so it is the same at every scale.
func bound(i int, width float64) float64 { return math.Exp2(float64(i) / width) }

// tableScale is the finest scale with a table. A histogram of the usual size (160 buckets) has a
// coarser scale as soon as its values span more than a factor of 2^(160/2^10) = 1.11.
const tableScale = 10

// table finds the bucket within a power of two without a logarithm, at a fifth of the time.
type table struct {
	scale int32
	// bounds are the upper bounds of the buckets, as mantissas.
	bounds []uint64
	// first is, for each of 2^(scale+1) equal parts of the power of two, the bucket in which it
	// begins. A part is narrower than the narrowest bucket, so it ends there or in the next one.
	first []uint16
}

// tables are by scale, and made when they are first needed. They are safe for concurrent use.
var tables = func() (t [tableScale + 1]func() *table) {
	for scale := range t {
		t[scale] = sync.OnceValue(func() *table { return newTable(int32(scale)) })
	}
	return t
}()

const mantissa = 1<<52 - 1

func newTable(scale int32) *table {
	n := 1 << scale
	t := &table{scale: scale, bounds: make([]uint64, n), first: make([]uint16, 2*n)}
	for j := range n - 1 {
		t.bounds[j] = math.Float64bits(bound(j+1-n, float64(n))) & mantissa
	}
	t.bounds[n-1] = mantissa // the power of two itself is looked at before
	j := 0
	for part := range t.first {
		least := uint64(part)<<(52-scale-1) + 1 // 0 is a power of two
		for least > t.bounds[j] {
			j++
		}
		t.first[part] = uint16(j)
	}
	return t
}

func (t *table) index(v float64) int32 {
	bits := math.Float64bits(v)
	m := bits & mantissa
	e := int32(bits>>52) - 1023
	if m == 0 {
		return e<<t.scale - 1
	}
	j := t.first[m>>(52-t.scale-1)]
	if m > t.bounds[j] {
		j++
	}
	return e<<t.scale + int32(j)
}

// AppendState appends the histogram's state to b.
func (h *Exponential) AppendState(b []byte) []byte {
	b = binary.AppendUvarint(b, h.count)
	if h.count == 0 {
		return b
	}
	b = binary.AppendUvarint(b, h.sum)
	b = binary.AppendUvarint(b, h.zero)
	b = binary.AppendUvarint(b, uint64(h.min))
	b = binary.AppendUvarint(b, uint64(h.max))
	b = binary.AppendVarint(b, int64(h.scale))
	b = binary.AppendVarint(b, int64(h.first))
	return appendCounts(b, h.counts)
}

// LoadState reads a state that AppendState wrote into a histogram of the same size and returns what
// follows it. After an error the histogram is empty.
func (h *Exponential) LoadState(b []byte) (rest []byte, err error) {
	*h = Exponential{size: h.size, scale: MaxScale}
	d := varint.Reader{Rest: b}
	n := Exponential{size: h.size, scale: MaxScale}
	if n.count = d.Uint(); n.count == 0 {
		if !d.OK() {
			return nil, ErrDamaged
		}
		return d.Rest, nil
	}
	n.sum, n.zero = d.Uint(), d.Uint()
	lo, hi := d.Uint(), d.Uint()
	scale, first := d.Int(), d.Int()
	n.counts = loadCounts(&d, int(h.size))
	var total uint64
	for _, c := range n.counts {
		total += c
	}
	if !d.OK() || lo > hi || hi > math.MaxInt64 || scale < MinScale || scale > MaxScale ||
		first < -1<<30 || first > 1<<30 || total+n.zero != n.count {
		return nil, ErrDamaged
	}
	n.min, n.max, n.scale, n.first = int64(lo), int64(hi), int32(scale), int32(first)
	*h = n
	return d.Rest, nil
}

func appendCounts(b []byte, counts []uint64) []byte {
	b = binary.AppendUvarint(b, uint64(len(counts)))
	for _, c := range counts {
		b = binary.AppendUvarint(b, c)
	}
	return b
}

func loadCounts(d *varint.Reader, limit int) []uint64 {
	n := d.Count(1)
	if n > limit {
		d.Fail("too many buckets")
		return nil
	}
	if n == 0 {
		return nil
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = d.Uint()
	}
	return out
}
