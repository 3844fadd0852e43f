// SPDX-License-Identifier: Apache-2.0

package store

import "math/bits"

// Levels are the levels of detail of the timeline. A bin of level L covers 2^L ns: 4.2 ms, 16.8 ms, 268 ms
// and 4.29 s. Timelines that need smaller bins read rows.
var Levels = [...]uint8{22, 24, 28, 32}

// Bucket returns the histogram bucket of a duration in nanoseconds. Durations below 16 ns have
// their own bucket. Above, each power of two has 16 buckets, so a value differs from the middle of
// its bucket by at most 3.2 %. A negative duration counts as 0. The largest bucket is 1007.
func Bucket(ns int64) uint16 {
	if ns < 16 {
		return uint16(max(ns, 0))
	}
	e := bits.Len64(uint64(ns)) - 1
	return uint16(e*16 + int(uint64(ns)>>(e-4)&15))
}

// BucketBounds returns the smallest and the largest duration of a bucket. No duration has the buckets 16 to
// 63, but a damaged file may; they are those of as many nanoseconds.
func BucketBounds(bucket uint16) (lo, hi int64) {
	if bucket < 64 {
		return int64(bucket), int64(bucket)
	}
	e := int(bucket) / 16
	width := int64(1) << (e - 4)
	lo = (16 + int64(bucket)%16) * width
	return lo, lo + (width - 1)
}

// BucketMiddle returns the middle of a bucket, the value that percentiles report.
func BucketMiddle(bucket uint16) int64 {
	lo, hi := BucketBounds(bucket)
	return lo + (hi-lo)/2
}

// PlanTimeline returns how all stores answer a [TimelineQuery]: from bins of a level, or from rows if
// level is 0. The interval of the answer begins at start, at or before from, and has bins of width
// ns, at most bins+1 of them. For a level, start and width are multiples of its bin, so that the sums
// are exact. From is less than to, and bins is positive.
func PlanTimeline(from, to int64, bins int) (level uint8, start, width int64) {
	width = max((to-from+int64(bins)-1)/int64(bins), 1)
	for _, l := range Levels {
		if width < 1<<l {
			break
		}
		level = l
	}
	if level == 0 {
		return 0, from, width
	}
	width = (width + 1<<level - 1) >> level << level
	return level, from >> level << level, width
}
