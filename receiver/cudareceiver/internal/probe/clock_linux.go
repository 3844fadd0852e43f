// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"math"

	"golang.org/x/sys/unix"
)

// clock converts times of CLOCK_MONOTONIC, which kernel programs use, to wall time. Both clocks are
// slewed equally, so their offset changes only when the wall clock is set. Until then the first
// measurement is kept, and with it the order of events. A call before such a change that is read
// after it gets the new clock's time.
type clock struct {
	// offset is added to monotonic times, in ns. Its error is at most bound.
	offset, bound int64
	// monotonic and real read the two clocks, in ns.
	monotonic, real func() int64
}

// unmeasured is a bound above that of every measurement.
const unmeasured = math.MaxInt64 / 4

func newClock() clock {
	read := func(id int32) func() int64 {
		return func() int64 {
			var t unix.Timespec
			if unix.ClockGettime(id, &t) != nil {
				return 0 // Linux has both clocks
			}
			return t.Nano()
		}
	}
	c := clock{bound: unmeasured, monotonic: read(unix.CLOCK_MONOTONIC), real: read(unix.CLOCK_REALTIME)}
	c.measure()
	return c
}

// measure compares the clocks. It reads the wall clock between two reads of the other one. The
// error is at most half of the time between these. The best of several tries counts, because a
// thread may be interrupted.
func (c *clock) measure() {
	offset, bound := int64(0), int64(unmeasured)
	for range 5 {
		before := c.monotonic()
		now := c.real()
		after := c.monotonic()
		if half := (after-before)/2 + 1; half < bound {
			offset, bound = now-before-(after-before)/2, half
		}
	}
	difference := max(offset-c.offset, c.offset-offset)
	if difference > bound+c.bound || c.bound == unmeasured {
		c.offset, c.bound = offset, bound
	}
}

// wall returns the wall time, in ns since 1970.
func (c *clock) wall(monotonic uint64) int64 { return int64(monotonic) + c.offset }
