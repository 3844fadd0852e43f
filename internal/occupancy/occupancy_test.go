// SPDX-License-Identifier: Apache-2.0

package occupancy

import (
	"bufio"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestComputeAgreesWithCUDA compares with the results of CUDA's API on an H200.
func TestComputeAgreesWithCUDA(t *testing.T) {
	f, err := os.Open(filepath.Join("..", "testing", "testdata", "occupancy-h200.csv"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	l, err := LimitsOf(Capability{9, 0})
	require.NoError(t, err)
	rows, zero := 0, 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if line == "" || line[0] < '0' || line[0] > '9' {
			continue
		}
		var n [5]int64
		for i, text := range strings.Split(line, ",") {
			n[i], err = strconv.ParseInt(text, 10, 64)
			require.NoError(t, err, line)
		}
		got, err := l.Compute(Launch{Registers: n[0], Shared: n[1] + n[2], Threads: n[3]})
		require.NoError(t, err, line)
		assert.Equal(t, int(n[4]), got.Blocks, "registers, static, dynamic, threads, blocks: %s", line)
		rows++
		if n[4] == 0 {
			zero++
		}
	}
	assert.Equal(t, 2397, rows)
	assert.Equal(t, 320, zero)
}

func randomLaunch(rng *rand.Rand, l *Limits) Launch {
	k := Launch{
		Threads:   1 + rng.Int64N(1024),
		Registers: rng.Int64N(256),
		Shared:    rng.Int64N(int64(l.SharedPerBlock) + 1),
	}
	if rng.IntN(2) == 0 {
		k.Shared = rng.Int64N(8 * kib) // where several blocks fit
	}
	if rng.IntN(2) == 0 {
		k.Carveout = int64(l.Carveouts[rng.IntN(len(l.Carveouts))])
	}
	return k
}

func TestResultsStayWithinEveryLimit(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 1))
	for range 50_000 {
		l := &table[rng.IntN(len(table))]
		k := randomLaunch(rng, l)
		r, err := l.Compute(k)
		require.NoError(t, err)
		threads, blocks := int64(r.Warps)*WarpSize, int64(r.Blocks)
		ok := assert.LessOrEqual(t, r.Blocks, l.Blocks, "slots") &&
			assert.LessOrEqual(t, r.Warps, l.Warps, "warps") &&
			assert.LessOrEqual(t, threads*k.Registers, int64(l.Registers), "registers") &&
			assert.LessOrEqual(t, blocks*(k.Shared+int64(l.SharedReserved)), int64(l.Shared), "shared memory") &&
			assert.GreaterOrEqual(t, threads, blocks*k.Threads, "all threads have a place") &&
			assert.NotZero(t, r.Limiter, "something limits") &&
			assert.InDelta(t, float64(r.Warps)/float64(l.Warps), r.Theoretical, 1e-12)
		if k.Carveout > 0 && blocks > 1 {
			// One block may lift the carveout; a second is only there if it fits.
			ok = ok && assert.LessOrEqual(t, blocks*(k.Shared+int64(l.SharedReserved)), max(k.Carveout, int64(l.Carveouts[0])), "carveout")
		}
		if !ok {
			t.Fatalf("%s %+v: %+v", l.Capability, k, r)
		}
	}
}

func TestMoreOfAResourceNeverGivesMoreBlocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	for range 50_000 {
		l := &table[rng.IntN(len(table))]
		k := randomLaunch(rng, l)
		// Where the carveout does not hold one block, the driver sets it higher: more shared memory
		// may then give more blocks, see TestCarveoutIsLiftedToHoldOneBlock.
		k.Carveout = 0
		r, err := l.Compute(k)
		require.NoError(t, err)
		for name, more := range map[string]Launch{
			"registers":     {k.Threads, k.Registers + 1 + rng.Int64N(300), k.Shared, 0, 0},
			"shared memory": {k.Threads, k.Registers, k.Shared + 1 + rng.Int64N(300*kib), 0, 0},
			"threads":       {k.Threads + 1 + rng.Int64N(1100), k.Registers, k.Shared, 0, 0},
		} {
			s, err := l.Compute(more)
			require.NoError(t, err)
			if s.Blocks > r.Blocks {
				t.Fatalf("%s, more %s: %+v gives %+v, %+v gives %+v", l.Capability, name, k, r, more, s)
			}
		}
	}
}

func TestCarveoutIsLiftedToHoldOneBlock(t *testing.T) {
	l, err := LimitsOf(Capability{9, 0})
	require.NoError(t, err)
	blocks := func(shared, carveout int64) int {
		r, err := l.Compute(Launch{Threads: 32, Registers: 16, Shared: shared, Carveout: carveout})
		require.NoError(t, err)
		return r.Blocks
	}
	assert.Equal(t, 1, blocks(14*kib, 16*kib), "15 KiB of 16")
	assert.Equal(t, 1, blocks(16*kib, 16*kib), "17 KiB do not fit; the next is 32")
	assert.Equal(t, 7, blocks(8*kib, 64*kib), "9 KiB of 64")
	assert.Equal(t, 2, blocks(15*kib+128, 33*kib-1), "16512 of 33791: a size that is no supported carveout is taken as it is")
}

func TestRefusedLaunchesHaveNoBlocks(t *testing.T) {
	l, err := LimitsOf(Capability{9, 0})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		launch  Launch
		limiter Limiter
	}{
		"block":     {Launch{Threads: 1025, Registers: 16}, Warps},
		"registers": {Launch{Threads: 32, Registers: 256}, Registers},
		"shared":    {Launch{Threads: 32, Registers: 16, Shared: 227*kib + 1}, SharedMemory},
		"all, to the end of the range": {
			Launch{Threads: math.MaxInt64, Registers: math.MaxInt64, Shared: math.MaxInt64},
			Warps | Registers | SharedMemory,
		},
		"huge block of few registers": {Launch{Threads: math.MaxInt64, Registers: 1}, Warps | Registers},
	} {
		r, err := l.Compute(c.launch)
		require.NoError(t, err, name)
		assert.Equal(t, Result{Limiter: c.limiter}, r, name)
	}
}

func TestWhatIsNoLaunchIsAnError(t *testing.T) {
	l, err := LimitsOf(Capability{8, 0})
	require.NoError(t, err)
	var cache Cache
	for want, launches := range map[error][]Launch{
		ErrNegative: {
			{}, {Threads: -1}, {Threads: 32, Registers: -1}, {Threads: 32, Shared: -1}, {Threads: 32, Carveout: -1},
			{Threads: math.MinInt64},
		},
		ErrCarveout: {{Threads: 32, Carveout: 164*kib + 1}, {Threads: 32, Carveout: 165 * kib}, {Threads: 32, Carveout: math.MaxInt64}},
	} {
		for _, k := range launches {
			_, err := l.Compute(k)
			assert.ErrorIs(t, err, want, "%+v", k)
			_, err = cache.Compute(l, k)
			assert.ErrorIs(t, err, want, "%+v", k)
		}
	}
}

// TestClusters has what a kernel that counts its resident blocks saw on an H200, docs/internals/measurements.md.
func TestClusters(t *testing.T) {
	l, err := LimitsOf(Capability{9, 0})
	require.NoError(t, err)
	var cache Cache
	for _, c := range []struct {
		threads, cluster int64
		blocks           int
		limiter          Limiter
	}{
		{64, 0, 32, Warps | Blocks}, // 64 warps / 2
		{64, 1, 32, Warps | Blocks},
		{64, 2, 8, Blocks},
		{192, 0, 10, Warps},
		{192, 16, 8, Blocks},
		{256, 4, 8, Warps | Blocks}, // 64 warps / 8
		{512, 2, 4, Warps},
	} {
		k := Launch{Threads: c.threads, Registers: 12, Cluster: c.cluster}
		for range 2 { // the second time past the cache, which holds the same launch without a cluster
			got, err := cache.Compute(l, k)
			require.NoError(t, err)
			assert.Equal(t, c.blocks, got.Blocks, "%+v", k)
			assert.Equal(t, c.limiter, got.Limiter, "%+v", k)
			_, err = cache.Compute(l, Launch{Threads: c.threads, Registers: 12})
			require.NoError(t, err)
		}
	}
	// Where it has not been measured, a cluster changes nothing.
	blackwell, err := LimitsOf(Capability{10, 0})
	require.NoError(t, err)
	got, err := blackwell.Compute(Launch{Threads: 64, Registers: 12, Cluster: 8})
	require.NoError(t, err)
	assert.Equal(t, 32, got.Blocks)
}

func TestCapabilities(t *testing.T) {
	assert.Len(t, Known(), 20)
	for _, c := range Known() {
		parsed, err := ParseCapability(c.String())
		require.NoError(t, err)
		assert.Equal(t, c, parsed)
		l, err := LimitsOf(c)
		require.NoError(t, err)
		assert.Equal(t, c, l.Capability)
	}
	for _, c := range []Capability{{}, {3, 5}, {9, 1}, {13, 0}} {
		_, err := LimitsOf(c)
		assert.ErrorIs(t, err, ErrUnknownCapability)
		assert.ErrorContains(t, err, c.String())
	}
	for _, s := range []string{"", "9", "9.", ".0", "sm_90", "9.0a", "-9.0", "+9.0", " 9.0", "9.0.0", "900.0", "9.000"} {
		_, err := ParseCapability(s)
		assert.Error(t, err, "%q", s)
	}
}

func TestSpread(t *testing.T) {
	for name, c := range map[string]struct {
		grid        Grid
		resident    int64
		waves, fill float64
	}{
		// An H200 has 132 multiprocessors.
		"a few blocks":            {Grid{Blocks: 20, PerMultiprocessor: 8, Multiprocessors: 132}, 1056, 20.0 / 1056, 20.0 / 1056},
		"exactly one wave":        {Grid{Blocks: 1056, PerMultiprocessor: 8, Multiprocessors: 132}, 1056, 1, 1},
		"one block too many":      {Grid{Blocks: 1057, PerMultiprocessor: 8, Multiprocessors: 132}, 1056, 1057.0 / 1056, 1057.0 / 2112},
		"many waves":              {Grid{Blocks: 16384, PerMultiprocessor: 8, Multiprocessors: 132}, 1056, 16384.0 / 1056, 16384.0 / (16 * 1056)},
		"clusters of 2":           {Grid{Blocks: 132, PerMultiprocessor: 1, Multiprocessors: 132, Cluster: 2}, 132, 1, 1},
		"clusters leave a rest":   {Grid{Blocks: 128, PerMultiprocessor: 1, Multiprocessors: 132, Cluster: 16}, 128, 1, 1},
		"cluster of one":          {Grid{Blocks: 66, PerMultiprocessor: 1, Multiprocessors: 132, Cluster: 1}, 132, 0.5, 0.5},
		"cluster too large":       {Grid{Blocks: 128, PerMultiprocessor: 1, Multiprocessors: 132, Cluster: 17}, 0, 0, 0},
		"cluster above the whole": {Grid{Blocks: 16, PerMultiprocessor: 1, Multiprocessors: 8, Cluster: 16}, 0, 0, 0},
		"nothing fits":            {Grid{Blocks: 20, PerMultiprocessor: 0, Multiprocessors: 132}, 0, 0, 0},
		"no blocks":               {Grid{PerMultiprocessor: 8, Multiprocessors: 132}, 1056, 0, 0},
		"the largest grid":        {Grid{Blocks: math.MaxInt64, PerMultiprocessor: 32, Multiprocessors: 1}, 32, float64(math.MaxInt64) / 32, 1},
	} {
		assert.Equal(t, c.resident, c.grid.Resident(), name)
		waves, fill := c.grid.Spread()
		assert.InEpsilon(t, 1+c.waves, 1+waves, 1e-12, name)
		assert.InDelta(t, c.fill, fill, 1e-12, name)
	}
}

// TestCacheGivesWhatIsComputed runs more shapes than there are places through one cache from
// several goroutines.
func TestCacheGivesWhatIsComputed(t *testing.T) {
	var cache Cache
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(4, uint64(g)))
			for range 50_000 {
				l := &table[rng.IntN(len(table))]
				k := randomLaunch(rng, l)
				switch rng.IntN(20) {
				case 0:
					k.Threads += 1100 // beyond what a block may have, and what the cache can hold
				case 1:
					k.Registers = 250 + rng.Int64N(400)
				case 2:
					k.Shared += 300 * kib
				case 3:
					k.Carveout = rng.Int64N(int64(l.Shared))
				}
				want, errWant := l.Compute(k)
				for range 2 {
					got, err := cache.Compute(l, k)
					if got != want || (err == nil) != (errWant == nil) {
						t.Errorf("%s %+v: %+v, %v from the cache, %+v, %v computed", l.Capability, k, got, err, want, errWant)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkCompute(b *testing.B) {
	l, err := LimitsOf(Capability{9, 0})
	require.NoError(b, err)
	rng := rand.New(rand.NewPCG(4, 4))
	launches := make([]Launch, 256)
	for i := range launches {
		launches[i] = randomLaunch(rng, l)
	}
	var cache Cache
	var sum int
	b.Run("computed", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			r, _ := l.Compute(launches[i%256])
			sum += r.Blocks
		}
	})
	b.Run("cached", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			r, _ := cache.Compute(l, launches[i%256])
			sum += r.Blocks
		}
	})
	require.Positive(b, sum)
}
