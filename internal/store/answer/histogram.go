// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"maps"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Histogram counts durations by [store.Bucket].
type Histogram map[uint16]int64

// Percentile returns the middle of the bucket of percentile p, 0 without durations.
func (h Histogram) Percentile(p int64) int64 {
	var total, running int64
	for _, n := range h {
		total += n
	}
	for _, b := range slices.Sorted(maps.Keys(h)) {
		if running += h[b]; running*100 >= total*p {
			return store.BucketMiddle(b)
		}
	}
	return 0
}
