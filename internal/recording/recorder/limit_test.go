// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/semconv"
)

// TestLimit_SpansAndLeftOut checks, for any launches and limit, that spans and omitted launches add
// up to all launches of a name, and that metrics count all.
func TestLimit_SpansAndLeftOut(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		limit := 1 + random.IntN(200)
		f := newFixture(t, Config{MaxSpansPerSecond: limit, MaxSpansPerTrace: 2 + random.IntN(100)})
		launched := map[string]float64{}
		total := 0
		var ids [3]uint64
		for i := range ids {
			ids[i] = f.r.Begin(Scope{Ref: refOf(byte(i+1), 1), Sampled: i > 0, Name: fmt.Sprint("scope", i)})
		}
		for range 1 + random.IntN(12) {
			var heads []cupti.Head
			for range random.IntN(100) {
				total++
				correlation := uint32(total)
				var scope uint64
				if k := random.IntN(5); k < len(ids) {
					scope = ids[k]
				}
				if random.IntN(10) == 0 {
					heads = append(heads, in(scope, copyHead("DtoH", 8, correlation, int64(total), random.Int64N(1000))))
					launched["memcpy|"]++
					continue
				}
				name := fmt.Sprint("kernel", min(random.IntN(8), random.IntN(8)))
				heads = append(heads, in(scope, kernel(name, correlation, int64(total), random.Int64N(1000))))
				launched["kernel|"+name+"|"]++
			}
			f.src.deliver(heads...)
		}
		f.start()
		s := f.stop()
		require.Equal(t, uint64(total), s.Spans.Emitted+s.Spans.LeftOut+s.Spans.Unsampled, "seed %d", seed)
		require.LessOrEqual(t, s.Spans.Emitted, uint64(limit)+uint64(limit)*5, "seed %d", seed)
		got := f.sink.points(semconv.MetricGpuflightSpansLeftOut)
		for _, x := range f.sink.spans {
			switch attr(x.Attributes(), semconv.CUDAOperation) {
			case "kernel":
				got["kernel|"+attr(x.Attributes(), semconv.CUDAKernelName)+"|"]++
			case "memcpy":
				got["memcpy|"]++
			}
		}
		require.Equal(t, launched, got, "seed %d", seed)
		require.Equal(t, s.KernelCount, f.sink.total(semconv.MetricGPUCUDAKernelLaunchCalls))
		require.Equal(t, s.KernelCount, f.sink.total(semconv.MetricGPUCUDAKernelDuration))
	}
}

func candidates(random *rand.Rand, n, names int) []candidate {
	all := make([]candidate, n)
	for i := range all {
		all[i] = candidate{ns: random.Int64N(50), index: uint32(i), group: uint32(random.IntN(names) * random.IntN(names) / names)}
	}
	return all
}

func TestChooser_LongestAndFairShare(t *testing.T) {
	var c chooser
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		all := candidates(random, 1+random.IntN(500), 1+random.IntN(20))
		budget := random.IntN(600)
		again := slices.Clone(all)
		n := c.choose(all, 20, budget)
		require.Equal(t, min(budget, len(all)), n, "the budget is not used completely")
		chosen := 0
		for i := range all {
			if all[i].chosen {
				chosen++
			}
		}
		require.Equal(t, n, chosen)
		c.choose(again, 20, budget)
		require.Equal(t, all, again, "the selection is not deterministic")
		if budget >= len(all) {
			continue
		}

		// The longest half of the budget is selected.
		sorted := slices.Clone(all)
		slices.SortStableFunc(sorted, func(a, b candidate) int { return int(b.ns - a.ns) })
		for _, x := range sorted[:budget/2] {
			require.True(t, x.chosen, "one of the longest is missing")
		}
		// The rest is fair: except for rounding, no name with more candidates has fewer spans than
		// another.
		want, have := map[uint32]int{}, map[uint32]int{}
		for _, x := range sorted[budget/2:] {
			want[x.group]++
			if x.chosen {
				have[x.group]++
			}
		}
		for a := range want {
			for b := range want {
				if have[a] < want[a] {
					require.GreaterOrEqual(t, have[a]+1, have[b], "seed %d: %d has %d of %d, %d has %d", seed, a, have[a], want[a], b, have[b])
				}
			}
		}
	}
}

func TestSelectLongest_EqualsSorting(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 4))
		all := candidates(random, 1+random.IntN(300), 3)
		for _, limit := range []int{0, 1, 3, 64} {
			n := 1 + random.IntN(len(all))
			order := make([]uint32, len(all))
			for i := range order {
				order[i] = uint32(i)
			}
			selectLongest(all, order, n, limit)
			got := slices.Sorted(slices.Values(order[:n]))
			slices.SortFunc(order, func(a, b uint32) int {
				return cmp.Or(cmp.Compare(all[b].ns, all[a].ns), cmp.Compare(a, b))
			})
			require.Equal(t, slices.Sorted(slices.Values(order[:n])), got)
		}
	}
}

func TestChooser_EqualDurations(t *testing.T) {
	var c chooser
	// With quadratic work, the test would not end.
	assert.Equal(t, 1001, c.choose(make([]candidate, 2_000_000), 1, 1001))
}

func TestBucket_Capacity(t *testing.T) {
	at := time.Unix(1000, 0)
	b := newBucket(100, at)
	assert.Equal(t, 100, b.available(at))
	b.take(100)
	assert.Equal(t, 0, b.available(at))
	assert.Equal(t, 50, b.available(at.Add(500*time.Millisecond)))
	assert.Equal(t, 50, b.available(at), "a clock that goes back adds no tokens")
	assert.Equal(t, 100, b.available(at.Add(time.Hour)))
	none := newBucket(-1, at)
	assert.Equal(t, 0, none.available(at.Add(time.Hour)))
}
