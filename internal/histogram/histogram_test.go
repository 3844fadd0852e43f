// SPDX-License-Identifier: Apache-2.0

package histogram

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// slowIndex finds the bucket by whole powers: v is in (2^(i/n), 2^((i+1)/n)] where v^n is in
// (2^i, 2^(i+1)], with n = 2^scale. Precision grows with n, so nothing is rounded.
func slowIndex(v float64, scale int32) int32 {
	if scale <= 0 {
		e := int32(math.MinInt32)
		for i := int32(-1100); i < 1100; i++ {
			if v > math.Ldexp(1, int(i)) && v <= math.Ldexp(1, int(i+1)) {
				e = i
			}
		}
		return int32(math.Floor(float64(e) / math.Ldexp(1, int(-scale))))
	}
	x := new(big.Float).SetPrec(uint(64 << scale)).SetFloat64(v)
	for range scale {
		x.Mul(x, x)
	}
	mant := new(big.Float)
	exp := x.MantExp(mant) // mant in [0.5, 1)
	if mant.Cmp(big.NewFloat(0.5)) == 0 {
		return int32(exp) - 2
	}
	return int32(exp) - 1
}

func TestIndexIsExactAtEveryScale(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for scale := int32(MinScale); scale <= 8; scale++ {
		for e := -31; e <= 34; e++ {
			p := math.Ldexp(1, e)
			for _, v := range []float64{p, math.Nextafter(p, 0), math.Nextafter(p, math.Inf(1)), p * 1.5, p * math.Sqrt2} {
				require.Equal(t, slowIndex(v, scale), index(v, scale), "v=%v scale=%d", v, scale)
			}
		}
		for range 300 {
			v := math.Exp2(r.Float64()*64 - 30)
			require.Equal(t, slowIndex(v, scale), index(v, scale), "v=%v scale=%d", v, scale)
		}
	}
	assert.Equal(t, int32(-1), index(1, 20), "1 is the upper bound of bucket −1")
	assert.Equal(t, int32(0), index(math.Nextafter(1, 2), 20))
	assert.Equal(t, int32(1<<20-1), index(2, 20))
}

func TestTablesAgreeWithTheLogarithm(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for scale := int32(1); scale <= tableScale; scale++ {
		width := float64(int(1) << scale)
		for i := -int(width); i <= int(width); i++ { // each bound and its neighbours
			b := bound(i, width)
			for _, v := range []float64{b, math.Nextafter(b, 0), math.Nextafter(b, 8), b * (1 + r.Float64()/width)} {
				require.Equal(t, index(v, MaxScale)>>(MaxScale-scale), index(v, scale), "v=%v scale=%d", v, scale)
			}
		}
	}
}

func TestIndexAtOneScaleShiftedIsTheIndexAtACoarserOne(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		ns := r.Int64() >> r.IntN(63)
		if ns == 0 {
			continue
		}
		// Values next to a bound are where a logarithm could slip.
		v := float64(ns) / 1e9
		if r.IntN(2) == 0 {
			v = math.Exp2(float64(index(v, 10)) / 1024)
		}
		fine := index(v, MaxScale)
		for scale := int32(MinScale); scale < MaxScale; scale++ {
			require.Equal(t, fine>>(MaxScale-scale), index(v, scale), "v=%v scale=%d", v, scale)
		}
	}
}

// check compares a histogram with all its values at once.
func check(t *testing.T, h *Exponential, values []int64, size int) {
	t.Helper()
	var sum, zero uint64
	lo, hi := int64(math.MaxInt64), int64(0)
	var least float64
	for _, v := range values {
		sum += uint64(v)
		lo, hi = min(lo, v), max(hi, v)
		if v == 0 {
			zero++
		} else if s := float64(v) / 1e9; least == 0 || s < least {
			least = s
		}
	}
	require.Equal(t, uint64(len(values)), h.Count())
	require.Equal(t, sum, h.Sum())
	require.Equal(t, zero, h.Zero())
	if len(values) > 0 {
		require.Equal(t, lo, h.Min())
		require.Equal(t, hi, h.Max())
	}
	if hi == 0 {
		_, counts := h.Buckets()
		require.Empty(t, counts)
		return
	}
	scale := int32(MaxScale)
	for index(float64(hi)/1e9, scale)-index(least, scale) >= int32(size) {
		scale--
	}
	require.Equal(t, scale, h.Scale(), "the finest scale at which all fit")
	want := map[int32]uint64{}
	for _, v := range values {
		if v > 0 {
			want[index(float64(v)/1e9, scale)]++
		}
	}
	first, counts := h.Buckets()
	require.LessOrEqual(t, len(counts), size)
	got := map[int32]uint64{}
	for i, n := range counts {
		if n > 0 {
			got[first+int32(i)] = n
		}
	}
	require.Equal(t, want, got)
}

func TestExponentialAgainstAllValuesAtOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for round := range 300 {
		size := []int{MinSize, 20, 160}[round%3]
		values := make([]int64, r.IntN(200))
		spread := r.IntN(63) + 1
		for i := range values {
			values[i] = r.Int64() >> (63 - spread) >> r.IntN(spread)
		}
		whole := NewExponential(size)
		parts := []*Exponential{NewExponential(size), NewExponential(size), NewExponential(size)}
		for _, v := range values {
			whole.Observe(v)
			parts[r.IntN(3)].Observe(v)
		}
		check(t, whole, values, size)
		require.GreaterOrEqual(t, whole.Scale(), int32(MinScale))

		merged := NewExponential(size)
		for _, i := range r.Perm(3) {
			merged.Merge(parts[i])
		}
		check(t, merged, values, size)

		loaded := NewExponential(size)
		rest, err := loaded.LoadState(append(merged.AppendState(nil), 7))
		require.NoError(t, err)
		require.Equal(t, []byte{7}, rest)
		check(t, loaded, values, size)
		loaded.Observe(12345)
		check(t, loaded, slices.Concat(values, []int64{12345}), size)
	}
}

func TestTheWholeRangeFitsTheSmallestSize(t *testing.T) {
	h := NewExponential(1)
	values := []int64{0, 1, math.MaxInt64, 1000}
	for _, v := range values {
		h.Observe(v)
	}
	h.Observe(-5)
	require.Equal(t, uint64(2), h.Zero(), "below zero counts as zero")
	require.GreaterOrEqual(t, h.Scale(), int32(MinScale))
	_, counts := h.Buckets()
	require.LessOrEqual(t, len(counts), MinSize)
}

func TestExplicit(t *testing.T) {
	bounds := []int64{10, 100}
	a, b := NewExplicit(bounds), NewExplicit(bounds)
	for _, v := range []int64{0, 10, 11} {
		a.Observe(v)
	}
	for _, v := range []int64{100, 101, -1} {
		b.Observe(v)
	}
	a.Merge(b)
	a.Merge(NewExplicit(bounds))
	assert.Equal(t, []uint64{3, 2, 1}, a.Counts())
	assert.Equal(t, uint64(6), a.Count())
	assert.Equal(t, uint64(222), a.Sum())
	assert.Equal(t, int64(0), a.Min())
	assert.Equal(t, int64(101), a.Max())
	c := NewExplicit(bounds)
	rest, err := c.LoadState(a.AppendState(nil))
	require.NoError(t, err)
	assert.Empty(t, rest)
	assert.Equal(t, a, c)
	_, err = NewExplicit([]int64{1}).LoadState(a.AppendState(nil))
	assert.ErrorIs(t, err, ErrDamaged)
}

func FuzzLoadState(f *testing.F) {
	h := NewExponential(160)
	x := NewExplicit([]int64{10, 100})
	f.Add(h.AppendState(nil))
	for i := range int64(50) {
		h.Observe(i * i * 1000)
		x.Observe(i)
	}
	f.Add(h.AppendState(nil))
	f.Add(x.AppendState(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		alloctest.Limit{PerByte: 1 << 5, Constant: 1 << 16}.Check(t, len(b), func() {
			_, _ = NewExponential(160).LoadState(b)
			_, _ = NewExplicit([]int64{10, 100}).LoadState(b)
		})
		h := NewExponential(160)
		if _, err := h.LoadState(b); err == nil {
			h.Observe(1)
			h.Observe(math.MaxInt64)
			_, counts := h.Buckets()
			var n uint64
			for _, c := range counts {
				n += c
			}
			if n+h.Zero() != h.Count() || len(counts) > 160 {
				t.Fatal("a state was loaded that does not add up")
			}
		}
		x := NewExplicit([]int64{10, 100})
		if _, err := x.LoadState(b); err == nil {
			x.Observe(5)
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	values := make([]int64, 4096)
	for i := range values {
		values[i] = int64(math.Exp(r.NormFloat64()+10) + 1)
	}
	b.Run("exponential", func(b *testing.B) {
		h := NewExponential(160)
		for i := 0; b.Loop(); i++ {
			h.Observe(values[i&4095])
		}
		require.NotZero(b, h.Count())
	})
	b.Run("explicit", func(b *testing.B) {
		h := NewExplicit([]int64{1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10})
		for i := 0; b.Loop(); i++ {
			h.Observe(values[i&4095])
		}
		require.NotZero(b, h.Count())
	})
}
