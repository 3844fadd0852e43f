// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"fmt"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Bounds checks a [store.BusyQuery]. It returns the times at which its intervals begin and end, each once
// and ascending. Errors wrap [store.ErrInvalid].
func Bounds(q *store.BusyQuery) ([]int64, error) {
	if len(q.Intervals) > store.MaxIntervals {
		return nil, fmt.Errorf("%d intervals: %w: at most %d", len(q.Intervals), store.ErrInvalid, store.MaxIntervals)
	}
	var times []int64
	for _, i := range q.Intervals {
		if !inTime(i.From) || !inTime(i.To) {
			return nil, fmt.Errorf("interval [%d, %d): %w", i.From, i.To, store.ErrInvalid)
		}
		if i.From < i.To {
			times = append(times, i.From, i.To)
		}
	}
	slices.Sort(times)
	return slices.Compact(times), nil
}

// Busy returns the answer to a [store.BusyQuery]. Before has the busy or idle time before each of the bounds.
func Busy(q *store.BusyQuery, before map[int64]int64) []int64 {
	out := make([]int64, len(q.Intervals))
	for n, i := range q.Intervals {
		if i.From < i.To {
			out[n] = before[i.To] - before[i.From]
		}
	}
	return out
}
