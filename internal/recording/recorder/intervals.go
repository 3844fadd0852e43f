// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

const (
	// patched is how long after a SASS metrics window work may still be slow: the first launch of
	// each kernel loads its original code again.
	patched = 250 * time.Millisecond
	// maxIntervals bounds the distorted intervals. Records arrive within seconds, so older
	// intervals are evicted.
	maxIntervals = 64
	// noticeable is the share of a scope's time, as 1/noticeable, from which on a window distorts
	// the duration of the scope.
	noticeable = 100
)

// interval is a time in which a window distorts work. end is math.MaxInt64 while it is open.
type interval struct {
	window     uint64
	start, end int64
}

// distortedIntervals holds the times of the last windows. It is safe for concurrent use, and
// readers do not block.
type distortedIntervals struct {
	mu  sync.Mutex
	all atomic.Pointer[[]interval] // replaced, never modified
}

func (s *distortedIntervals) list() []interval {
	if all := s.all.Load(); all != nil {
		return *all
	}
	return nil
}

// change replaces the list by the result of f on a copy, and keeps the newest entries.
func (s *distortedIntervals) change(f func([]interval) []interval) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := f(slices.Clone(s.list()))
	next = next[max(0, len(next)-maxIntervals):]
	s.all.Store(&next)
}

func (s *distortedIntervals) begin(d *deep.Window) {
	s.change(func(all []interval) []interval { return append(all, interval{d.ID, d.Start.UnixNano(), math.MaxInt64}) })
}

// end replaces the open interval by the intervals in which engines were armed.
func (s *distortedIntervals) end(d *deep.Window) {
	s.change(func(all []interval) []interval {
		all = slices.DeleteFunc(all, func(one interval) bool { return one.window == d.ID })
		for i := range d.Parts {
			p := &d.Parts[i]
			if !p.Armed {
				continue
			}
			end := p.End
			if p.Engine == deep.SASS {
				end = end.Add(patched)
			}
			all = append(all, interval{d.ID, p.Start.UnixNano(), end.UnixNano()})
		}
		return all
	})
}

// overlaps reports whether work overlapped with a distorted interval.
func (s *distortedIntervals) overlaps(start, end int64) bool {
	return slices.ContainsFunc(s.list(), func(one interval) bool { return start < one.end && end > one.start })
}

// distorts reports whether windows covered at least 1/noticeable of a scope's time.
func (s *distortedIntervals) distorts(start, end int64) bool {
	sum := int64(0)
	for _, one := range s.list() {
		sum += max(0, min(end, one.end)-max(start, one.start))
	}
	return sum > 0 && sum >= (end-start)/noticeable
}
