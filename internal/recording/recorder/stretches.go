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
	// patched is how long after a window of SASS metrics work may still be unusual: the first launch of
	// each kernel brings its own code back to the device.
	patched = 250 * time.Millisecond
	// maxStretches bounds the stretches of time in which work is not as usual. Records come within seconds, so
	// older ones can go.
	maxStretches = 64
	// noticeable is the part of a scope's time from which on a window has changed how long it took. One of a second in an epoch
	// of an hour has not.
	noticeable = 100
)

// stretch is a time in which work is not as usual; end is math.MaxInt64 while it goes on.
type stretch struct {
	window     uint64
	start, end int64
}

// stretches are the times of the last windows. It is safe for concurrent use; who looks does not wait.
type stretches struct {
	mu  sync.Mutex
	all atomic.Pointer[[]stretch] // never changed, but replaced
}

func (s *stretches) list() []stretch {
	if all := s.all.Load(); all != nil {
		return *all
	}
	return nil
}

// change replaces the list by what f makes of a copy of it; the last ones are kept.
func (s *stretches) change(f func([]stretch) []stretch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := f(slices.Clone(s.list()))
	next = next[max(0, len(next)-maxStretches):]
	s.all.Store(&next)
}

func (s *stretches) begin(d *deep.Window) {
	s.change(func(all []stretch) []stretch { return append(all, stretch{d.ID, d.Start.UnixNano(), math.MaxInt64}) })
}

// end replaces what was known while the window was open by when engines were at work.
func (s *stretches) end(d *deep.Window) {
	s.change(func(all []stretch) []stretch {
		all = slices.DeleteFunc(all, func(one stretch) bool { return one.window == d.ID })
		for i := range d.Parts {
			p := &d.Parts[i]
			if !p.Armed {
				continue
			}
			end := p.End
			if p.Engine == deep.SASS {
				end = end.Add(patched)
			}
			all = append(all, stretch{d.ID, p.Start.UnixNano(), end.UnixNano()})
		}
		return all
	})
}

// unusual says whether work was going on while an engine was at work.
func (s *stretches) unusual(start, end int64) bool {
	return slices.ContainsFunc(s.list(), func(one stretch) bool { return start < one.end && end > one.start })
}

// distorts says whether engines were at work for so much of a scope's time that this tells little.
func (s *stretches) distorts(start, end int64) bool {
	sum := int64(0)
	for _, one := range s.list() {
		sum += max(0, min(end, one.end)-max(start, one.start))
	}
	return sum > 0 && sum >= (end-start)/noticeable
}
