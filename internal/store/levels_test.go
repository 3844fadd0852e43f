// SPDX-License-Identifier: Apache-2.0

package store

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBucket_Bounds(t *testing.T) {
	assert.EqualValues(t, 0, Bucket(-5))
	assert.EqualValues(t, 15, Bucket(15))
	assert.EqualValues(t, 64, Bucket(16))
	assert.EqualValues(t, 1007, Bucket(math.MaxInt64))
	next := int64(0)
	for b := range uint16(1008) {
		if b >= 16 && b < 64 {
			assert.EqualValues(t, b, BucketMiddle(b), "of a damaged file")
			continue
		}
		lo, hi := BucketBounds(b)
		require.Equal(t, next, lo, "bucket %d", b)
		require.Equal(t, b, Bucket(lo))
		require.Equal(t, b, Bucket(hi))
		mid := BucketMiddle(b)
		require.LessOrEqual(t, float64(hi-mid), 0.032*float64(hi))
		require.LessOrEqual(t, float64(mid-lo), 0.032*float64(mid))
		next = hi + 1
	}
	assert.EqualValues(t, math.MinInt64, next, "the buckets cover all of int64")
}

func TestPlanTimeline_Covers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		from := r.Int64N(1 << 61)
		to := from + 1 + r.Int64N(1<<r.IntN(50))
		bins := 1 + r.IntN(4000)
		level, start, width := PlanTimeline(from, to, bins)
		require.LessOrEqual(t, start, from)
		require.GreaterOrEqual(t, start+width*int64(bins+1), to)
		if level == 0 {
			require.Equal(t, from, start)
			continue
		}
		require.Zero(t, start&(1<<level-1))
		require.Zero(t, width&(1<<level-1))
		require.GreaterOrEqual(t, (to-from)/int64(bins)+1, int64(1)<<level, "the level is not too coarse")
	}
}
