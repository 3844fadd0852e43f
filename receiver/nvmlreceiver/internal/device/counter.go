// SPDX-License-Identifier: Apache-2.0

package device

import "time"

// total follows a counter that the driver keeps.
type total struct {
	since time.Time
	last  time.Time
	value uint64
}

// read takes the counter's value at a time and returns since when it counts: start at first, and
// from the moment it was last seen whole when it falls, because then the driver began anew.
func (t *total) read(value uint64, start, now time.Time) time.Time {
	if t.since.IsZero() {
		t.since = start
	} else if value < t.value {
		t.since = t.last
	}
	t.value, t.last = value, now
	return t.since
}

// sum is a counter of our own, made of the steps of one that wraps or of a rate.
type sum struct {
	since time.Time
	value float64
	// raw is the last value of the counter that wraps, if known.
	raw   uint64
	known bool
}

// start begins to count, if that has not happened yet.
func (s *sum) start(now time.Time) {
	if s.since.IsZero() {
		s.since = now
	}
}

// step takes the value of a counter that counts in units and wraps at the given number of bits, 32
// or 64. The first value is where it begins.
func (s *sum) step(raw uint64, bits int, unit float64, now time.Time) {
	s.start(now)
	switch {
	case !s.known:
	case raw >= s.raw:
		s.value += float64(raw-s.raw) * unit
	case bits == 32 || s.raw < 1<<32 && s.raw >= 1<<31:
		// Drivers give 32-bit counters as 64-bit values too: one that falls from the upper half of
		// 32 bits has wrapped.
		s.value += float64(raw+1<<32-s.raw) * unit
	default:
		s.value += float64(raw) * unit // began anew
	}
	s.raw, s.known = raw, true
}

// rate adds what passed at a rate.
func (s *sum) rate(perSecond float64, d time.Duration, now time.Time) {
	s.start(now)
	s.value += perSecond * d.Seconds()
	s.known = false // the raw counter was not looked at in between
}

// forget drops the raw value: the next one is of another session.
func (s *sum) forget() { s.known = false }

// mean is the mean of samples since it was last taken.
type mean struct {
	sum   float64
	count int
	// last is the driver's time of the newest sample, in µs.
	last uint64
	// read is when it was filled last.
	read time.Time
}

func (m *mean) take() (v float64, ok bool) {
	if m.count == 0 {
		return 0, false
	}
	v = m.sum / float64(m.count)
	m.sum, m.count = 0, 0
	return v, true
}
