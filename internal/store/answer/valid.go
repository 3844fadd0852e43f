// SPDX-License-Identifier: Apache-2.0

package answer

import "github.com/gpuflight/gpuflight/internal/store"

// MaxSession is the longest id of a session, in bytes.
const MaxSession = 256

// Valid says which rows of a batch a store can hold: those with valid times and with references to
// existing entries (see [store.Batch]).
type Valid struct{ B *store.Batch }

func inTime(t int64) bool { return t >= 0 && t <= store.MaxTimeNs }

func in(i uint32, n int) bool { return i == 0 || int(i) < n }

// Op reports whether an operation is valid.
func (v Valid) Op(o *store.Op) bool {
	b := v.B
	return inTime(o.StartNs) && inTime(o.EndNs) && in(o.Lane, len(b.Lanes)) && in(o.Shape, len(b.Shapes)) &&
		in(o.Place, len(b.Places)) && in(o.Stack, len(b.Stacks)) && in(o.Origin, len(b.Origins)) && in(o.Extra, len(b.Extras))
}

// Span reports whether a span is valid.
func (v Valid) Span(p *store.Span) bool {
	return inTime(p.StartNs) && inTime(p.EndNs) && in(p.Origin, len(v.B.Origins))
}

// Sample reports whether a sample is valid.
func (v Valid) Sample(p *store.Sample) bool {
	return inTime(p.TimeNs) && in(p.Origin, len(v.B.Origins)) && in(p.Extra, len(v.B.Extras))
}

// Log reports whether a log record is valid.
func (v Valid) Log(p *store.Log) bool { return inTime(p.TimeNs) && in(p.Origin, len(v.B.Origins)) }

// Point reports whether a point is valid.
func (v Valid) Point(p *store.Point) bool {
	return inTime(p.TimeNs) && in(p.Series, len(v.B.Series)) && (p.Series == 0 || in(v.B.Series[p.Series].Origin, len(v.B.Origins)))
}
