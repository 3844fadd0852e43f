// SPDX-License-Identifier: Apache-2.0

package account

import "math"

// sweep is the state of one pass over sorted works, in the order of time, up to the cut. A segment is the
// time between two instants at which a work starts or ends, or accounted time begins or ends. The set
// of running works is constant in it. Dividing each segment among its works would take quadratic time
// with thousands of works. Instead, the sweep adds each segment to a sum: what a work would have paid
// if it had run from the beginning. A work's share is the growth of the sum from its start to its end.
type sweep struct {
	works []Work
	cut   int64
	to    Sink

	kernels, copies queue
	// perKernel and perCopy are those sums, late is that of accounted time, all in nanoseconds.
	perKernel, perCopy, late int64
	// round moves on with each nanosecond of a remainder.
	round int64
	// accounted is the first interval of accounted time that ends after the present, or one at the
	// end of time.
	accounted interval

	// paid is the time that was paid for, spans where it lies, joined over silences of IdleGap.
	paid  int64
	spans []interval
	// rest are the works that reach past the cut, from there on.
	rest []Work
}

// running is a work that runs at the present of the sweep.
type running struct {
	end int64
	// share and late are the sums at its start; extra is what it has of remainders.
	share, late, extra int64
	work               int
}

// account settles sorted works up to the cut. All of them start before it, or it is the end of time.
func (l *Ledger) account(works []Work, cut int64, to Sink) {
	s := &l.sweep
	*s = sweep{
		works: works, cut: cut, to: to,
		kernels: s.kernels[:0], copies: s.copies[:0], spans: s.spans[:0], rest: s.rest[:0],
		accounted: interval{math.MinInt64, math.MinInt64},
	}
	now := works[0].Start
	for i := 0; ; {
		next := cut
		if i < len(works) {
			next = works[i].Start
		}
		if len(s.kernels)+len(s.copies) > 0 {
			next = min(next, s.kernels.end(), s.copies.end())
			l.advance(now, next)
		} else if i == len(works) {
			break
		}
		now = next
		for len(s.kernels) > 0 && s.kernels.end() <= now {
			l.finish(s.kernels.pop(), s.perKernel)
		}
		for len(s.copies) > 0 && s.copies.end() <= now {
			l.finish(s.copies.pop(), s.perCopy)
		}
		for ; i < len(works) && works[i].Start == now; i++ {
			l.begin(i)
		}
		if i == len(works) && now == cut {
			break
		}
	}
	// What still runs reaches past the cut.
	for len(s.kernels) > 0 {
		l.finish(s.kernels.pop(), s.perKernel)
	}
	for len(s.copies) > 0 {
		l.finish(s.copies.pop(), s.perCopy)
	}

	var added int64
	for _, iv := range s.spans {
		n, _ := l.intervals.Add(iv.start, iv.end)
		added += n
	}
	if idle := added - s.paid; idle > 0 {
		to.Idle(idle)
	}
	s.works, s.to = nil, nil
	s.shrink()
}

// advance shares out the time from now to next, during which no work starts or ends.
func (l *Ledger) advance(now, next int64) {
	s := &l.sweep
	for now < next {
		if now >= s.accounted.end {
			var ok bool
			if s.accounted, ok = l.intervals.coveredAfter(now); !ok {
				s.accounted = interval{math.MaxInt64, math.MaxInt64}
			}
		}
		if now >= s.accounted.start {
			end := min(next, s.accounted.end)
			s.late += end - now
			now = end
			continue
		}
		end := min(next, s.accounted.start)
		if len(s.kernels) > 0 {
			s.perKernel += s.share(s.kernels, end-now)
		} else {
			s.perCopy += s.share(s.copies, end-now)
		}
		s.paid += end - now
		if n := len(s.spans); n > 0 && now-s.spans[n-1].end <= l.o.IdleGap {
			s.spans[n-1].end = end
		} else {
			s.spans = append(s.spans, interval{now, end})
		}
		now = end
	}
}

// share returns the share of each running work in n nanoseconds. It also distributes the remainder: one
// nanosecond per work, beginning where the last remainder ended. At most 64 works get a part of it, to
// bound the time per segment with a thousand running works. Each of these 64 may then get more than one
// nanosecond, but never more than the length of the segment.
func (s *sweep) share(q queue, n int64) int64 {
	k := int64(len(q))
	if k == 1 {
		return n
	}
	each, left := n/k, n%k
	if left == 0 {
		return each
	}
	const most = 64
	give, more := left/most, left%most
	at := s.round % k
	for i := range min(left, most) {
		q[at].extra += give
		if i < more {
			q[at].extra++
		}
		if at++; at == k {
			at = 0
		}
	}
	s.round += min(left, most)
	return each
}

// begin starts a work.
func (l *Ledger) begin(i int) {
	s := &l.sweep
	w := &s.works[i]
	r := running{end: w.End, late: s.late, work: i}
	switch w.Class {
	case Wait:
		l.waitEnds(w)
		return
	case Kernel:
		l.kernelStarts(w)
		if w.End > w.Start {
			r.share = s.perKernel
			s.kernels.push(r)
		}
	default:
		if w.End > w.Start {
			r.share = s.perCopy
			s.copies.push(r)
		} else {
			l.copyEnds(w)
		}
	}
}

// finish books a work, at its end or at the cut, given the sum at the present.
func (l *Ledger) finish(r running, share int64) {
	s := &l.sweep
	w := &s.works[r.work]
	if ns := share - r.share + r.extra; ns > 0 {
		s.to.Pay(w.Payer, w.Request, ns)
	}
	if ns := s.late - r.late; ns > 0 {
		s.to.Late(w.Payer, ns)
	}

	end, lag := min(w.End, s.cut), minus(w.Arrived, w.End)
	if end > l.newestEnd || end == l.newestEnd && lag < l.newestLag {
		l.newestEnd, l.newestLag = end, lag
	}
	switch {
	case w.End > s.cut:
		rest := *w
		rest.Start = s.cut
		s.rest = append(s.rest, rest)
	case w.Class == Copy:
		l.copyEnds(w)
	}
}

// shrink releases memory that only a burst needed.
func (s *sweep) shrink() {
	if cap(s.kernels) > roomKept {
		s.kernels = nil
	}
	if cap(s.copies) > roomKept {
		s.copies = nil
	}
	if cap(s.spans) > roomKept {
		s.spans = nil
	}
}

// queue is a heap of works: the first ends first, and of those that end at once it comes first.
type queue []running

// end is when the first ends, the end of time if there is none.
func (q queue) end() int64 {
	if len(q) == 0 {
		return math.MaxInt64
	}
	return q[0].end
}

func (r *running) before(o *running) bool {
	return r.end < o.end || r.end == o.end && r.work < o.work
}

func (q *queue) push(r running) {
	h := append(*q, r)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !r.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = r
	*q = h
}

func (q *queue) pop() running {
	h := *q
	first := h[0]
	n := len(h) - 1
	r := h[n]
	h = h[:n]
	*q = h
	for i := 0; n > 0; {
		down := 2*i + 1
		if down+1 < n && h[down+1].before(&h[down]) {
			down++
		}
		if down >= n || !h[down].before(&r) {
			h[i] = r
			break
		}
		h[i] = h[down]
		i = down
	}
	return first
}
