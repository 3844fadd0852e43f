// SPDX-License-Identifier: Apache-2.0

package device

import "time"

// total follows a counter of the driver.
type total struct {
	since time.Time
	last  time.Time
	value uint64
}

// read returns the start time of a counter with the given value. It is the initial start until the
// value decreases, which means that the driver restarted. Then it is the time of the last reading
// before that.
func (t *total) read(value uint64, start, now time.Time) time.Time {
	if t.since.IsZero() {
		t.since = start
	} else if value < t.value {
		t.since = t.last
	}
	t.value, t.last = value, now
	return t.since
}

// sum is our own counter, built from the steps of one that wraps or from a rate.
type sum struct {
	since time.Time
	value float64
	// raw is the last value of the wrapping counter, if known.
	raw   uint64
	known bool
}

// start starts to count, unless it has started.
func (s *sum) start(now time.Time) {
	if s.since.IsZero() {
		s.since = now
	}
}

// step adds the step to the value of a counter that wraps at the given number of bits, 32 or 64.
// The first value is the base.
func (s *sum) step(raw uint64, bits int, unit float64, now time.Time) {
	s.start(now)
	switch {
	case !s.known:
	case raw >= s.raw:
		s.value += float64(raw-s.raw) * unit
	case bits == 32 || s.raw < 1<<32 && s.raw >= 1<<31:
		// Drivers return 32-bit counters as 64-bit values too. A counter that decreases from the
		// upper half of 32 bits has wrapped.
		s.value += float64(raw+1<<32-s.raw) * unit
	default:
		s.value += float64(raw) * unit // restarted
	}
	s.raw, s.known = raw, true
}

// rate adds the amount of a rate.
func (s *sum) rate(perSecond float64, d time.Duration, now time.Time) {
	s.start(now)
	s.value += perSecond * d.Seconds()
	s.known = false // the raw counter was not read in between
}

// forget drops the raw value: the next one is of another session.
func (s *sum) forget() { s.known = false }

// mean is the mean of the samples since the last reading.
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
