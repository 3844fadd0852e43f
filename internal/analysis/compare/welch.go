// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"cmp"
	"math"
	"slices"
)

const (
	// Level is the probability that a comparison of two sessions of the same behaviour finds any
	// difference.
	Level = 0.05
	// maxBlocks bounds the blocks of a session. With 10 to 30, more blocks add little (Schmeiser, "Batch
	// size effects in the analysis of simulation output", Operations Research 30, 1982).
	maxBlocks = 20
	// minBlocks is the smallest number of blocks that are tested.
	minBlocks = 3
)

// Test is a comparison of consecutive values of two sessions, such as the times of steps.
//
// Consecutive values are not independent, because clocks and caches drift. So the test uses blocks of
// L = max(floor(sqrt(n)), ceil(n/20)) values [1], where n is the number of values of the shorter session.
// Each block counts once, with its median. So single slow steps do not matter. Further tests use the mean of
// each block: the time of many slow steps in all blocks counts there. A few slow steps also increase the
// variance, so they are not significant. Both sessions have at most
// 20 blocks of this length, evenly spaced. So blocks have the same distribution, whatever the lengths of
// the sessions.
//
// The test is that of Welch [2] for the k medians or means of each session:
//
//	t = (meanB - meanA) / sqrt(f·varA/kA + f·varB/kB)
//
// with f = (1 + r) / (1 - r) for what dependence remains between blocks. The variance of the mean of a
// first-order autoregressive process grows by f [3]. r is at least 0, and 1 - V/2 for the ratio V of both
// sessions together (see neumann). A rank test would need no distribution. But with less than ten blocks
// it finds no difference, however large.
//
// The assumption is that medians and means of blocks are about normal, and that f covers their dependence. A
// session of which the clock changes once has no second sample of such changes. No test can cover that.
//
// Sources:
//
//	[1] Flegal and Jones, "Batch means and spectral variance estimators in Markov chain Monte Carlo",
//	    Annals of Statistics 38, 2010
//	[2] Welch, "The generalization of 'Student's' problem when several different population variances
//	    are involved", Biometrika 34, 1947
//	[3] Bayley and Hammersley, "The 'effective' number of independent observations in an autocorrelated
//	    time series", Supplement to the Journal of the Royal Statistical Society 8, 1946
type Test struct {
	// A and B are the means of the medians (of [Change].Mean: of the means) of blocks, BlocksA and BlocksB the numbers of blocks.
	A       float64 `json:"a"`
	B       float64 `json:"b"`
	BlocksA int     `json:"blocks_a"`
	BlocksB int     `json:"blocks_b"`
	// Shift is B - A. Low and High are its bounds at 95 %, of this test alone.
	Shift float64 `json:"shift"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	// Relative is Shift as a share of A, 0 if A is 0.
	Relative float64 `json:"relative"`
	// P is the two-sided probability of at least this difference if nothing changed.
	P float64 `json:"p"`
	// Adjusted is P after the correction of [Comparison] for all tests, at most 1. Significant says that
	// it is at most [Level].
	Adjusted    float64 `json:"p_adjusted"`
	Significant bool    `json:"significant"`
}

// values are consecutive values of a session. At is not ok if there is none.
type values struct {
	n  int
	at func(i int) (v float64, ok bool)
}

// blocks returns the medians of the blocks of two sessions, or their means. Then blocks are longer by up to
// what no block has, so that the mean is of all values. Blocks without values are left out.
func blocks(a, b values, all bool) (x, y []float64) {
	n := min(a.n, b.n)
	length := max(int(math.Sqrt(float64(n))), (n+maxBlocks-1)/maxBlocks, 1)
	return a.blocks(length, all), b.blocks(length, all)
}

func (v values) blocks(length int, all bool) []float64 {
	count := min(v.n/length, maxBlocks)
	out := make([]float64, 0, count)
	var list []float64
	for b := range count {
		list = list[:0]
		begin := 0
		if count > 1 {
			begin = b * (v.n - length) / (count - 1)
		}
		end := begin + length
		if all && count < maxBlocks {
			begin, end = b*v.n/count, (b+1)*v.n/count
		}
		for i := begin; i < end; i++ {
			if x, ok := v.at(i); ok {
				list = append(list, x)
			}
		}
		if len(list) > 0 {
			if all {
				out = append(out, mean(list))
				continue
			}
			slices.Sort(list)
			out = append(out, median(list))
		}
	}
	return out
}

func median(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// test compares the medians or means of blocks. It is nil if there are less than minBlocks of a session.
func test(a, b []float64) *Test {
	if len(a) < minBlocks || len(b) < minBlocks {
		return nil
	}
	t := &Test{BlocksA: len(a), BlocksB: len(b), A: mean(a), B: mean(b)}
	t.Shift = t.B - t.A
	if t.A != 0 {
		t.Relative = t.Shift / t.A
	}
	f := inflation(1 - neumann(a, b)/2)
	va, vb := f*variance(a)/float64(len(a)), f*variance(b)/float64(len(b))
	if va+vb == 0 { // all values of a session are equal, such as launches per step
		t.Low, t.High = t.Shift, t.Shift
		if t.Shift == 0 {
			t.P = 1
		}
	} else {
		// The degrees of freedom of Welch and Satterthwaite.
		nu := (va + vb) * (va + vb) / (va*va/float64(len(a)-1) + vb*vb/float64(len(b)-1))
		deviation := math.Sqrt(va + vb)
		t.P = studentTail(math.Abs(t.Shift)/deviation, nu)
		around := studentQuantile(0.05, nu) * deviation
		t.Low, t.High = t.Shift-around, t.Shift+around
	}
	// Later digits differ between processors.
	t.Low, t.High, t.Relative, t.P = digits(t.Low), digits(t.High), digits(t.Relative), digits(t.P)
	t.Adjusted = t.P
	return t
}

// digits rounds to nine significant digits.
func digits(v float64) float64 {
	if v == 0 {
		return 0
	}
	scale := math.Pow(10, 8-math.Floor(math.Log10(math.Abs(v))))
	if r := math.Round(v*scale) / scale; !math.IsNaN(r) && !math.IsInf(r, 0) {
		return r
	}
	return v
}

// mean is exact if all values are equal.
func mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += x - v[0]
	}
	return v[0] + sum/float64(len(v))
}

func variance(v []float64) (s float64) {
	m := mean(v)
	for _, x := range v {
		s += (x - m) * (x - m) / float64(len(v)-1)
	}
	return s
}

// inflation returns by how much a serial correlation increases the variance of a mean.
func inflation(r float64) float64 {
	const most = 0.95 // of estimates from few blocks
	r = min(max(r, 0), most)
	return (1 + r) / (1 - r)
}

// neumann returns the rank version of von Neumann's ratio of both sessions. It is the sum of squared
// differences of successive ranks over the sum of squared distances from their mean. It is about 2 - 2r
// for values with a serial correlation of r, and 2 if all values of a session are equal.
//
// Source: Bartels, "The rank version of von Neumann's ratio test for randomness", Journal of the American
// Statistical Association 77, 1982.
func neumann(sessions ...[]float64) float64 {
	var successive, square float64
	for _, v := range sessions {
		ranks := ranksOf(v)
		for i, r := range ranks {
			d := r - float64(len(v)+1)/2
			square += d * d
			if i > 0 {
				d := r - ranks[i-1]
				successive += d * d
			}
		}
	}
	if square == 0 {
		return 2
	}
	return successive / square
}

// ranksOf returns the ranks from 1, of equal values their mean.
func ranksOf(v []float64) []float64 {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(v[i], v[j]) })
	ranks := make([]float64, len(v))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && v[order[j]] == v[order[i]] {
			j++
		}
		for k := i; k < j; k++ {
			ranks[order[k]] = float64(i+1+j) / 2 // the mean of the ranks i+1 to j
		}
		i = j
	}
	return ranks
}

// holm adjusts the probabilities of tests so that the probability of any false difference is at most
// share × [Level]. It needs no assumption on how the tests depend on each other, and those of a kernel,
// its scope and its step do. Benjamini and Hochberg limit the share of false differences instead. Then
// some of the many rows would be wrong in most comparisons.
//
// Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
// Statistics 6, 1979.
func holm(tests []*Test, share float64) {
	tests = slices.Clone(tests)
	slices.SortStableFunc(tests, func(a, b *Test) int { return cmp.Compare(a.P, b.P) })
	least := 0.0
	for i, t := range tests {
		least = max(least, min(t.P*float64(len(tests)-i)/share, 1))
		t.Adjusted = digits(least)
		t.Significant = least <= Level
	}
}
