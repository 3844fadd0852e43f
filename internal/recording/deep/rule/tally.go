// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"math"
	"slices"
	"time"

	"github.com/gpuflight/gpuflight/internal/histogram"
)

const (
	// slots is in how many pieces a figure forgets the time that it looks at.
	slots = 10
	// buckets of the histograms: 8 for each power of two over a million to one, and some for the
	// ends. The middle of a bucket is within 5 % of its values.
	buckets = 192
)

// tally is what a figure has counted, in slots of time, the last one open.
type tally struct {
	over     time.Duration
	quantile float64

	slots []slot
	// since is the time from which on everything was seen.
	since time.Time
	// seen says that there has been something to count, ever: 0 is a value from then on.
	seen bool
}

type slot struct {
	start, end time.Time // end is zero while the slot is open
	count      uint64
	durations  *histogram.Exponential // of quantiles only
}

func newTally(r *Rule) tally {
	t := tally{over: r.Over, quantile: r.Quantile}
	t.open(time.Time{})
	return t
}

func (t *tally) open(now time.Time) {
	s := slot{start: now}
	if t.quantile > 0 {
		s.durations = histogram.NewExponential(buckets)
	}
	t.slots = append(t.slots, s)
}

func (t *tally) observe(ns int64) {
	s := &t.slots[len(t.slots)-1]
	t.seen = true
	s.count++
	if s.durations != nil {
		s.durations.Observe(ns)
	}
}

// forget begins again at a time.
func (t *tally) forget(now time.Time) {
	t.since = now
	t.slots = t.slots[:0]
	t.open(now)
}

// value returns the figure, if it is known, of the time up to now, and moves on to a new slot if it
// is time.
func (t *tally) value(now time.Time) (v float64, known bool) {
	for len(t.slots) > 1 && !t.slots[0].end.After(now.Add(-t.over)) {
		t.slots = slices.Delete(t.slots, 0, 1)
	}
	if now.Sub(t.since) >= t.over {
		v, known = t.sum(now)
	}
	if last := &t.slots[len(t.slots)-1]; now.Sub(last.start) >= t.over/slots {
		last.end = now
		t.open(now)
	}
	return v, known
}

func (t *tally) sum(now time.Time) (v float64, known bool) {
	seconds := now.Sub(t.slots[0].start).Seconds()
	if seconds <= 0 {
		return 0, false
	}
	var count uint64
	for i := range t.slots {
		count += t.slots[i].count
	}
	switch {
	case t.quantile == 0:
		return float64(count) / seconds, t.seen
	case count == 0:
		return 0, false
	}
	all := histogram.NewExponential(buckets)
	for i := range t.slots {
		all.Merge(t.slots[i].durations)
	}
	return quantile(all, t.quantile), true
}

// quantile returns the q-quantile in seconds of a histogram that is not empty: the value of nearest
// rank, to within half a bucket.
func quantile(h *histogram.Exponential, q float64) float64 {
	rank := uint64(math.Ceil(q * float64(h.Count())))
	if rank <= h.Zero() {
		return 0
	}
	least, most := float64(h.Min())/1e9, float64(h.Max())/1e9
	n := h.Zero()
	first, counts := h.Buckets()
	for i, c := range counts {
		if n += c; n >= rank {
			// The middle, on the scale of the buckets.
			v := math.Exp2((float64(first) + float64(i) + 0.5) * math.Exp2(-float64(h.Scale())))
			return min(max(v, least), most)
		}
	}
	return most
}

const (
	// baselineLooks is how many looks the median is over, baselineEvery the time between two, and
	// baselineLeast the number without which there is none.
	baselineLooks = 600
	baselineEvery = time.Second
	baselineLeast = 10
)

// baseline is the median of a figure in quiet time.
type baseline struct {
	looks  []float64 // a ring once it is full
	next   int
	last   time.Time
	sorted []float64
}

// look takes a value if the last look is long enough ago.
func (b *baseline) look(now time.Time, v float64) {
	if len(b.looks) > 0 && now.Sub(b.last) < baselineEvery {
		return
	}
	b.last = now
	if len(b.looks) < baselineLooks {
		b.looks = append(b.looks, v)
	} else {
		b.looks[b.next] = v
		b.next = (b.next + 1) % baselineLooks
	}
	b.sorted = append(b.sorted[:0], b.looks...)
	slices.Sort(b.sorted)
}

// value returns the baseline, if there is one.
func (b *baseline) value() (float64, bool) {
	n := len(b.sorted)
	if n < baselineLeast {
		return 0, false
	}
	v := b.sorted[n/2]
	if n%2 == 0 {
		v = (v + b.sorted[n/2-1]) / 2
	}
	return v, v > 0
}
