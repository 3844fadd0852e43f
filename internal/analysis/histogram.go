// SPDX-License-Identifier: Apache-2.0

package analysis

import "github.com/gpuflight/gpuflight/internal/store"

// histogram counts durations by [store.Bucket]. The zero value is empty.
type histogram []int64

// maxBuckets is the number of buckets of the store.
const maxBuckets = 1008

func (h *histogram) add(ns int64) {
	b := int(store.Bucket(ns))
	if b >= len(*h) {
		*h = append(*h, make([]int64, b+1-len(*h))...)
	}
	(*h)[b]++
}

func (h *histogram) merge(o histogram) {
	if n := len(o) - len(*h); n > 0 {
		*h = append(*h, make([]int64, n)...)
	}
	for b, n := range o {
		(*h)[b] += n
	}
}

// quantile returns the middle of the bucket with a percentile, -1 without values.
func (h histogram) quantile(percent int64) int64 {
	all, k := h.count(), int64(0)
	for b, n := range h {
		if k += n; n > 0 && k*100 >= all*percent {
			return store.BucketMiddle(uint16(b))
		}
	}
	return -1
}

func (h histogram) count() (all int64) {
	for _, n := range h {
		all += n
	}
	return all
}

func (c *codec) histogram(h *histogram) {
	elements(c, (*[]int64)(h), func(n *int64) { c.ints(n) })
	if c.reads() && len(*h) > maxBuckets {
		c.in.Fail("a histogram has too many buckets")
		*h = nil
	}
}
