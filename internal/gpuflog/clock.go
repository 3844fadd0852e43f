// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"math"
	"time"
)

// began is the base of all times of this process.
var began = time.Now()

// Now returns t in Unix nanoseconds for [Decoder.Feed] and [Step]. The time runs with the monotonic
// clock from the process's start on, so a change of the wall clock does not move it. A t without a
// monotonic reading is returned as it is. Safe from any goroutine.
func Now(t time.Time) int64 { return began.UnixNano() + int64(t.Sub(began)) }

// Resume says that the Decoder continues at now, in Unix nanoseconds. Call it after LoadState, and
// after the stored steps were repeated, before anything new is fed. What waits then waits as if no
// time had passed since the newest item came, whichever way the wall clock was set meanwhile.
func (d *Decoder) Resume(now int64) {
	newest := int64(math.MinInt64)
	d.eachWaiting(func(it *item) { newest = max(newest, it.arrived) })
	d.eachWaiting(func(it *item) { it.arrived += now - newest })
	d.now = now
}

// eachWaiting calls f with each item that waits for its scope.
func (d *Decoder) eachWaiting(f func(*item)) {
	for _, s := range d.sessions {
		for l := range s.held {
			q := &s.held[l]
			for i := q.first; i < len(q.items); i++ {
				f(&q.items[i])
			}
		}
		for i := range s.lost {
			f(&s.lost[i])
		}
	}
}

// setNow moves the Decoder's time. A little earlier time counts as the time that is: callers take it
// before they wait for a lock. Beyond that a clock was set back, and what waits moves with it. Items
// of a restored state that are from the future arrived now.
func (d *Decoder) setNow(now int64) {
	switch {
	case d.now == 0:
		d.eachWaiting(func(it *item) { it.arrived = min(it.arrived, now) })
	case now >= d.now:
	case d.now-now < int64(time.Second):
		return
	default:
		by := now - d.now
		d.eachWaiting(func(it *item) { it.arrived += by })
	}
	d.now = now
}
