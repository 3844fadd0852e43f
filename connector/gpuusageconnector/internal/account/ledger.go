// SPDX-License-Identifier: Apache-2.0

package account

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sort"
)

// Class says what a work is.
type Class uint8

const (
	// Kernel is work of the multiprocessors. While kernels run, they pay.
	Kernel Class = iota
	// Copy is a copy or a set on the device. Copies pay while no kernel runs.
	Copy
	// Wait is a wait of the host for the device. It never pays; it explains gaps.
	Wait
)

// Cause says what a gap between the kernels of a stream waited for last.
type Cause uint8

const (
	// AfterHost is a gap in which nothing known ended: the host had given the stream nothing to do.
	AfterHost Cause = iota
	// AfterSync is a gap in which a wait of the stream's process ended, after all copies that did.
	AfterSync
	// AfterCopy is a gap in which a copy of the same stream ended, after all waits that did.
	AfterCopy
)

// Work is one interval of a device's work, or of a host's wait for it.
type Work struct {
	// Start and End are Unix nanoseconds, not negative and less than MaxInt64. They may be equal.
	Start, End int64
	// Key orders works that start at once, so that the result does not depend on their order of
	// arrival. The key of the span will do.
	Key uint64
	// Payer is handed back with what the work pays.
	Payer uint32
	// Stream is the caller's number of process, context and stream; Process that of the process.
	Stream, Process uint32
	Class           Class
	// Arrived is the wall clock at arrival, Unix nanoseconds.
	Arrived int64
	// Request is a trace id, handed back with what the work pays.
	Request [16]byte
}

// Options are the settings of a [Ledger]. Durations are nanoseconds; what is negative counts as
// zero, and a bound below one as one.
type Options struct {
	// SettleAfter is how long a work waits for others that belong before it or beside it. What
	// arrives within it, in whatever order, is accounted as if it had come sorted. It should be
	// longer than the longest kernel and than the longest delay between sources: see [Ledger].
	SettleAfter int64
	// IdleGap is the longest time without work that counts as idle. Longer times are not accounted:
	// the device was off, or not observed.
	IdleGap int64
	// LiveWithin is the longest time between the end of a work and its arrival with which a device
	// counts as live. The idle time of a live device grows with the clock. That of a replayed device
	// ends with its works.
	LiveWithin int64
	// MaxPending bounds the works that wait. See [Ledger.Full].
	MaxPending int
	// GapThreshold is the length up to which gaps of a stream are not reported.
	GapThreshold int64
	// MaxStreams bounds the streams, and the processes, whose last works are remembered.
	MaxStreams int
	// MaxIntervals bounds the number of intervals of accounted time.
	MaxIntervals int
}

// Sink receives what a ledger settles. It must not call the ledger.
type Sink interface {
	// Pay books ns > 0 nanoseconds of the device on a payer, once for each work and call of Settle.
	Pay(payer uint32, request [16]byte, ns int64)
	// Idle books ns > 0 nanoseconds in which the device was observed and had nothing to do.
	Idle(ns int64)
	// Gap reports a gap [start, end) between two kernels of a stream.
	Gap(stream, process uint32, after Cause, start, end int64)
	// Late reports that ns > 0 nanoseconds of a work are in time that was already accounted, to
	// another payer or as idle. They are not accounted again.
	Late(payer uint32, ns int64)
}

// Ledger keeps the accounts of one device: who pays for each nanosecond, which were idle, and how
// long its streams had no kernel to run.
//
// At each instant the running kernels share the device equally. If no kernel runs, the copies share
// it; if nothing runs, the device is idle. Shares are whole nanoseconds. The remainder of a division is
// given to each work in turn, so the sum of all Pay and Idle is exactly the accounted time.
//
// The accounted time is a set of intervals. If the time between two works is at most IdleGap, both
// works are in one interval, and the time between them is idle. The order of settling does not matter.
// The set, and [Ledger.Observed] with it, therefore depends only on the works and not on their order,
// as long as no bound is reached. Sessions that are further apart have intervals of their own.
//
// A work waits for SettleAfter by the wall clock, then it is ripe. Time is accounted up to the start of
// the first work that is not ripe. A work that ends later is split there, and its rest waits. Accounted
// time stays accounted: the part of a later work that is in it is late.
//
// The last interval of a live device grows with the clock, up to SettleAfter ago. It ends at the latest
// at the start of the first work that is not ripe, and IdleGap after the newest work. A kernel that
// runs longer than SettleAfter arrives too late: its time was booked as idle. Delaying idle time until
// the next work would be right for such a kernel. But an abandoned device would then cost nothing after
// its last work, and that cost is what users want to find. The remedy is a larger SettleAfter.
type Ledger struct {
	o Options

	// pending[head:] are the works that wait, in the order of compare; fresh are those that came
	// out of that order by more than a few places.
	pending, fresh []Work
	head           int
	forced         int64

	// intervals is the accounted time: intervals, joined over gaps of up to IdleGap.
	intervals Union
	// newestEnd is the latest end of settled work, -1 if there was none, newestLag how long after
	// it that work arrived.
	newestEnd, newestLag int64

	// streams keep the latest end of a kernel and of a copy, processes that of a wait.
	streams, processes recent

	sweep sweep
}

const (
	// nearby is the number of places by which an arriving work is moved to the front. The spans of a
	// few streams arrive in the order of their ends, so they are out of place by about this number.
	nearby = 32
	// roomKept is the room for works that a ledger keeps when it has emptied: 64 KiB.
	roomKept = 1 << 10
)

// NewLedger returns an empty ledger.
func NewLedger(o Options) *Ledger {
	o.SettleAfter = max(o.SettleAfter, 0)
	o.IdleGap = max(o.IdleGap, 0)
	o.LiveWithin = max(o.LiveWithin, 0)
	o.GapThreshold = max(o.GapThreshold, 0)
	o.MaxPending = max(o.MaxPending, 1)
	o.MaxStreams = max(o.MaxStreams, 1)
	o.MaxIntervals = max(o.MaxIntervals, 1)
	return &Ledger{
		o:         o,
		intervals: Union{limit: o.MaxIntervals, join: o.IdleGap},
		newestEnd: -1,
		streams:   recent{limit: o.MaxStreams},
		processes: recent{limit: o.MaxStreams},
	}
}

// Add takes a work. One that starts before 1970, ends before it starts or at MaxInt64, or is of no
// known class is the caller's to reject and count; here it is ignored.
func (l *Ledger) Add(w Work) {
	if w.Start < 0 || w.End < w.Start || w.End == math.MaxInt64 || w.Class > Wait {
		return
	}
	if w.Class == Wait {
		// Only where it ends matters, and so only that makes others wait for it.
		w.Start = w.End
	}
	p := l.pending
	i := len(p)
	if i > l.head && compare(&w, &p[i-1]) < 0 {
		if i-nearby >= l.head && compare(&w, &p[i-nearby]) < 0 {
			l.fresh = append(l.fresh, w)
			return
		}
		for i--; i > l.head && compare(&w, &p[i-1]) < 0; {
			i--
		}
	}
	p = append(p, w)
	if i < len(p)-1 {
		copy(p[i+1:], p[i:])
		p[i] = w
	}
	l.pending = p
}

// Pending returns how many works wait to be settled, those included of which a part was.
func (l *Ledger) Pending() int { return len(l.pending) - l.head + len(l.fresh) }

// Full says that more than MaxPending works wait. Only Settle makes them fewer, so who adds works
// without end asks for it, and calls Settle when it is so: that settles at least a quarter of them.
func (l *Ledger) Full() bool { return l.Pending() > l.o.MaxPending }

// Forced returns how many works were settled before they were ripe, because the ledger was full.
func (l *Ledger) Forced() int64 { return l.forced }

// Observed returns the nanoseconds accounted so far: exactly the sum of all Pay and all Idle.
func (l *Ledger) Observed() int64 { return l.intervals.Total() }

// Settle accounts the works that are ripe at now, in Unix nanoseconds by the clock of [Work.Arrived].
// With all set, it accounts all pending works. The result depends on the pending works, not on the
// order in which they arrived.
//
// If more than MaxPending works wait, Settle also settles works that are not ripe, the earliest ends
// first, until three quarters of MaxPending are left. Each is settled together with all known works of
// its time. Only works that arrive later for that time will be late.
func (l *Ledger) Settle(now int64, all bool, to Sink) {
	l.gather()
	ripe := minus(now, l.o.SettleAfter)
	works := l.pending[l.head:]
	cut, count := int64(math.MaxInt64), len(works)
	if !all {
		// The works are sorted by start: the first that is not ripe starts first of them.
		for i := range works {
			if works[i].Arrived > ripe {
				cut = works[i].Start
				break
			}
		}
		if len(works) > l.o.MaxPending {
			cut = max(cut, l.force(works, ripe))
		}
		count = sort.Search(len(works), func(i int) bool { return works[i].Start >= cut })
	}
	if count > 0 {
		l.account(works[:count], cut, to)
		l.keep(count, cut)
	}
	l.trim(len(works))
	l.extend(min(cut, ripe), to)
}

// force returns the cut that leaves three quarters of MaxPending works.
func (l *Ledger) force(works []Work, ripe int64) int64 {
	ends := make([]int64, len(works))
	for i := range works {
		ends[i] = works[i].End
	}
	slices.Sort(ends)
	last := ends[len(works)-(l.o.MaxPending-l.o.MaxPending/4)-1]
	for i := range works {
		if works[i].End <= last && works[i].Arrived > ripe {
			l.forced++
		}
	}
	return plus(last, 1)
}

// gather puts all pending works into one sorted slice.
func (l *Ledger) gather() {
	if len(l.fresh) == 0 {
		return
	}
	slices.SortFunc(l.fresh, func(a, b Work) int { return compare(&a, &b) })
	// From the end backwards, so that what is sorted is moved at most once.
	i, j := len(l.pending)-1, len(l.fresh)-1
	l.pending = append(l.pending, l.fresh...)
	for k := len(l.pending) - 1; j >= 0; k-- {
		if i >= l.head && compare(&l.pending[i], &l.fresh[j]) > 0 {
			l.pending[k] = l.pending[i]
			i--
		} else {
			l.pending[k] = l.fresh[j]
			j--
		}
	}
	if cap(l.fresh) > roomKept {
		l.fresh = nil
	}
	l.fresh = l.fresh[:0]
}

// keep takes the first count pending works out, except for the parts of them that lie after cut.
func (l *Ledger) keep(count int, cut int64) {
	rest := l.sweep.rest
	l.head += count - len(rest)
	copy(l.pending[l.head:], rest)
	if n := len(rest); n > 0 {
		// They start at the cut now, like perhaps some of those that follow.
		works := l.pending[l.head:]
		for n < len(works) && works[n].Start == cut {
			n++
		}
		slices.SortFunc(works[:n], func(a, b Work) int { return compare(&a, &b) })
	}
	if cap(rest) > roomKept {
		l.sweep.rest = nil
	}
	if n := len(l.pending) - l.head; l.head > n {
		copy(l.pending, l.pending[l.head:])
		l.pending, l.head = l.pending[:n], 0
	}
}

// trim releases memory that neither the current works nor those before the last settling need.
func (l *Ledger) trim(before int) {
	if room := max(4*before, roomKept); cap(l.pending) > room {
		l.pending = append(make([]Work, 0, room/2), l.pending[l.head:]...)
		l.head = 0
	}
}

// extend extends the last interval of a live device to a time.
func (l *Ledger) extend(until int64, to Sink) {
	last := l.intervals.last()
	if last == nil || l.newestEnd < 0 || l.newestLag > l.o.LiveWithin {
		return
	}
	until = min(until, plus(l.newestEnd, l.o.IdleGap))
	if until > last.end {
		added, _ := l.intervals.Add(last.end, until)
		to.Idle(added)
	}
}

// compare orders works by start, then waits, copies, kernels: at the same instant, what explains a
// gap comes before the kernel that ends it. Works that it holds for equal are interchangeable.
func compare(a, b *Work) int {
	if a.Start != b.Start {
		return cmp.Compare(a.Start, b.Start)
	}
	if a.Class != b.Class {
		return cmp.Compare(b.Class, a.Class)
	}
	if a.Key != b.Key {
		return cmp.Compare(a.Key, b.Key)
	}
	// Keys are the same only by chance, or where spans have no ids.
	return cmp.Or(
		cmp.Compare(a.End, b.End),
		cmp.Compare(a.Payer, b.Payer),
		cmp.Compare(a.Stream, b.Stream),
		cmp.Compare(a.Process, b.Process),
		bytes.Compare(a.Request[:], b.Request[:]),
	)
}
