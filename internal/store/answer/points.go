// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"math"

	"github.com/gpuflight/gpuflight/internal/store"
)

// M4 reduces points as [store.Reader] documents. Add them in the order of time.
type M4 struct {
	// FromNs is the start of the first part, WidthNs the length of each.
	FromNs, WidthNs int64
	// Out has the points after Flush.
	Out []store.PointRow

	part int64
	// Of the current part: its first and last, smallest and largest point; nil for none.
	first, last, low, high *store.PointRow
}

func number(p *store.PointRow) float64 {
	switch {
	case p.Int.OK:
		return float64(p.Int.V)
	case p.HasDouble:
		return p.Double
	}
	return 0
}

// Add adds a point.
func (m *M4) Add(p store.PointRow) {
	if part := (p.TimeNs - m.FromNs) / m.WidthNs; m.first == nil || part != m.part {
		m.Flush()
		m.part, m.first = part, &p
	}
	m.last = &p
	if v := number(&p); !math.IsNaN(v) {
		if m.low == nil || v < number(m.low) {
			m.low = &p
		}
		if m.high == nil || v > number(m.high) {
			m.high = &p
		}
	}
}

// Flush ends the current part.
func (m *M4) Flush() {
	low, high := m.low, m.high
	if low != nil && high.TimeNs < low.TimeNs {
		low, high = high, low
	}
	var previous *store.PointRow
	for _, p := range []*store.PointRow{m.first, low, high, m.last} {
		if p != nil && p != previous {
			m.Out = append(m.Out, *p)
			previous = p
		}
	}
	m.first, m.last, m.low, m.high = nil, nil, nil, nil
}
