// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxIntervals bounds what is kept of a device between two ticks, 64 KiB.
	maxIntervals = 4096
	// maxDevices bounds the devices; no process sees more. Work of others is not counted.
	maxDevices = 64
)

// Busy takes the times in which kernels ran.
type Busy struct{ meters *meters }

// Add says that a kernel ran on a device, by its ordinal, from start to end, in nanoseconds of one
// clock. Kernels may overlap and come in any order. A nil Busy counts nothing.
func (b *Busy) Add(device int, start, end int64) {
	if b == nil || device < 0 || device >= maxDevices {
		return
	}
	m := b.meters
	if m.devices[device] == nil {
		m.devices[device] = &meter{}
		m.count++
	}
	m.devices[device].add(start, end)
}

// meters are one for each device that has run a kernel.
type meters struct {
	devices [maxDevices]*meter
	count   int
}

// take returns the time in which devices were busy, summed over them, as far as it became known
// since the last call.
func (m *meters) take() (busy time.Duration, devices int) {
	for _, d := range m.devices {
		if d != nil {
			busy += d.take()
		}
	}
	return busy, m.count
}

// meter measures the union of intervals on one device. It is exact except for intervals that arrive
// after a later one has been counted. That happens in an earlier tick, or in the same one after
// maxIntervals that do not touch. The earlier part of such an interval is taken as counted already.
type meter struct {
	intervals []interval
	// counted is the end of what has been counted, busy what has been since the last take.
	counted int64
	busy    int64
}

type interval struct{ start, end int64 }

func (m *meter) add(start, end int64) {
	start = max(start, m.counted)
	if end <= start {
		return
	}
	// Most come in order and touch.
	if n := len(m.intervals); n > 0 {
		if last := &m.intervals[n-1]; start >= last.start && start <= last.end {
			last.end = max(last.end, end)
			return
		}
		if n >= maxIntervals {
			m.join()
			m.settle(max(0, len(m.intervals)-maxIntervals/2))
			start = max(start, m.counted)
			if end <= start {
				return
			}
		}
	}
	m.intervals = append(m.intervals, interval{start, end})
}

// join sorts the intervals and makes one of those that touch.
func (m *meter) join() {
	if len(m.intervals) == 0 {
		return
	}
	slices.SortFunc(m.intervals, func(a, b interval) int { return cmp.Compare(a.start, b.start) })
	n := 0
	for _, i := range m.intervals[1:] {
		if last := &m.intervals[n]; i.start <= last.end {
			last.end = max(last.end, i.end)
		} else {
			n++
			m.intervals[n] = i
		}
	}
	m.intervals = m.intervals[:n+1]
}

// settle counts the first n intervals, which are joined.
func (m *meter) settle(n int) {
	for _, i := range m.intervals[:n] {
		m.busy += i.end - i.start
		m.counted = i.end
	}
	m.intervals = slices.Delete(m.intervals, 0, n)
}

func (m *meter) take() time.Duration {
	m.join()
	m.settle(len(m.intervals))
	busy := m.busy
	m.busy = 0
	return time.Duration(busy)
}
