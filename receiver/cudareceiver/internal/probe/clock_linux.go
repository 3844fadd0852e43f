// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"math"

	"golang.org/x/sys/unix"
)

// clock turns times of CLOCK_MONOTONIC, which programs in the kernel have, into those of the machine's clock. Both
// are slewed alike, so the offset between them changes only when the machine's clock is set; until then the first
// measurement holds, and the order of events with it. What was called before the clock was set and is read after
// has the new clock's time.
type clock struct {
	// offset is what to add, in ns, known to bound.
	offset, bound int64
	// monotonic and real are the two clocks, in ns.
	monotonic, real func() int64
}

// unmeasured is a bound that every measurement is better than.
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

// measure compares the clocks: the machine's is read between two looks at the other, so that it is wrong by half
// of what lies between at most. The best of some tries counts, since a thread may be interrupted.
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

// wall returns the machine's time, in ns since 1970.
func (c *clock) wall(monotonic uint64) int64 { return int64(monotonic) + c.offset }
