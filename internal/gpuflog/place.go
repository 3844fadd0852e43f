// SPDX-License-Identifier: Apache-2.0

package gpuflog

import "github.com/gpuflight/gpuflight/internal/gpuevent"

// lane is a kind of records whose order is given by one file. A trace's budget of spans is counted per
// lane, in that order. The part of a trace that a record belongs to therefore depends only on its place
// in its channel, and not on the order in which channels are read.
type lane uint8

const (
	deviceLane lane = iota // kernels, copies, sets: the device channel
	hostLane               // synchronisations, memory, graphs, NVTX ranges: the scope channel
	scopeLane              // the scopes themselves: the scope channel
	numLanes
)

// family is a trace with all its parts. Part 0 is shared by the lanes, each with a share of the
// budget; further parts belong to one lane and have the whole budget.
type family struct {
	kind  gpuevent.Kind
	num   uint64
	lanes [numLanes]laneState
	// window is set on the family of a session window, nil on that of a top-level scope.
	window *window
}

// laneState is where a lane stands in its family.
type laneState struct {
	part uint64
	used int
	// reps are the scopes repeated in the current part, by scope number; 0 is the window's root.
	reps map[uint64]*rep
}

// rep is a scope's span repeated in a part that does not hold the scope's own span. It covers the
// time of that part's records under it and is sent when the lane leaves the part.
type rep struct {
	name         string
	span, parent gpuevent.SpanID
	link         gpuevent.Ref
	start, end   int64
	instance     gpuevent.Int
	depth        gpuevent.Int
	session      bool
	window       gpuevent.Int
}

// window is a time slice of a session; work outside every scope is a child of its span.
type window struct {
	index       int64
	family      family
	first, last int64
}

// windowNs is the length of a window. Windows are counted from the Unix epoch, so that a record's
// window is known without its session's header.
const windowNs = int64(60e9)

func code(part uint64, l lane) uint64 { return part*uint64(numLanes) + uint64(l) }

// share is a lane's share of the budget of part 0. Device work has half of it, as in the recordings;
// records of host calls have three quarters of the rest.
func share(budget int, l lane) int {
	switch l {
	case deviceLane:
		return budget / 2
	case hostLane:
		return budget * 3 / 8
	default:
		return budget - budget/2 - budget*3/8
	}
}

func (s *session) traceOf(f *family, l lane, part uint64) gpuevent.TraceID {
	if part == 0 {
		return s.key.Trace(f.kind, f.num, 0)
	}
	return s.key.Trace(f.kind, f.num, code(part, l))
}

// native reports whether x's own span lies in this part of its family.
func (x *scope) native(l lane, part uint64) bool {
	return x.homePart == part && (part == 0 || l == scopeLane)
}

// place finds room for one span of work in [start, end] in the family f under x (nil: under the
// window's root). It returns the trace and the parent.
func (s *session) place(d *Decoder, f *family, x *scope, l lane, start, end int64) (gpuevent.TraceID, gpuevent.SpanID) {
	st := &f.lanes[l]
	need := 1 + s.missing(f, x, l)
	quota := d.opt.MaxSpansPerTrace
	if st.part == 0 {
		quota = share(quota, l)
	}
	if st.used+need > quota && (st.used > 0 || st.part == 0) {
		s.leavePart(d, f, l)
		need = 1 + s.missing(f, x, l)
	}
	st.used += need
	trace := s.traceOf(f, l, st.part)
	return trace, s.parentIn(f, x, l, trace, start, end)
}

// missing counts the ancestors that the current part has to repeat for a record under x.
func (s *session) missing(f *family, x *scope, l lane) (n int) {
	st := &f.lanes[l]
	for ; x != nil; x = x.parent {
		if x.native(l, st.part) {
			return n // and so are its ancestors, or they are repeated already
		}
		if st.reps[x.num] != nil {
			return n
		}
		n++
	}
	if f.window != nil && st.part > 0 && st.reps[0] == nil {
		n++
	}
	return n
}

// parentIn returns the span of x in the lane's current part, repeating x there if need be.
func (s *session) parentIn(f *family, x *scope, l lane, trace gpuevent.TraceID, start, end int64) gpuevent.SpanID {
	st := &f.lanes[l]
	if x == nil {
		w := f.window
		if w == nil {
			return gpuevent.SpanID{}
		}
		w.first, w.last = min(w.first, start), max(w.last, end)
		root := s.key.Span(gpuevent.KindWindow, f.num, 0)
		if st.part == 0 {
			return root
		}
		r := st.reps[0]
		if r == nil {
			r = st.repeat(0, &rep{
				name: s.ev.App, span: s.key.Span(gpuevent.KindWindow, f.num, code(st.part, l)+1),
				link:  gpuevent.Ref{Trace: s.traceOf(f, l, 0), Span: root},
				start: start, end: end, session: true, window: gpuevent.Some(w.index),
			})
		}
		r.start, r.end = min(r.start, start), max(r.end, end)
		return r.span
	}
	if x.native(l, st.part) {
		return x.span
	}
	r := st.reps[x.num]
	if r == nil {
		var above gpuevent.SpanID
		if x.parent != nil || f.window != nil {
			above = s.parentIn(f, x.parent, l, trace, start, end)
		}
		r = st.repeat(x.num, &rep{
			name: x.path.name, span: s.key.Span(gpuevent.KindScope, x.num, code(st.part, l)+1),
			parent: above, link: gpuevent.Ref{Trace: x.trace, Span: x.span},
			start: start, end: end, instance: x.instance, depth: gpuevent.Some(x.depth),
		})
	} else if x.parent != nil {
		s.parentIn(f, x.parent, l, trace, start, end) // extends the ancestors too
	}
	r.start, r.end = min(r.start, start), max(r.end, end)
	return r.span
}

func (st *laneState) repeat(num uint64, r *rep) *rep {
	if st.reps == nil {
		st.reps = map[uint64]*rep{}
	}
	st.reps[num] = r
	return r
}

// leavePart sends what the lane repeated in its current part and turns to the next.
func (s *session) leavePart(d *Decoder, f *family, l lane) {
	s.flushReps(d, f, l)
	st := &f.lanes[l]
	st.part++
	st.used = 0
}

func (s *session) flushReps(d *Decoder, f *family, l lane) {
	st := &f.lanes[l]
	trace := s.traceOf(f, l, st.part)
	for _, num := range sortedKeys(st.reps) {
		r := st.reps[num]
		ref := gpuevent.Ref{Trace: trace, Span: r.span, Parent: r.parent}
		if r.session {
			d.out.SessionSpan(s.ev, &gpuevent.SessionSpan{
				Ref: ref, StartNs: r.start, EndNs: r.end, Window: r.window,
				Part: gpuevent.Some(int64(st.part)), Link: r.link,
			})
			continue
		}
		d.out.Scope(s.ev, &gpuevent.Scope{
			Ref: ref, StartNs: r.start, EndNs: r.end, Name: r.name, Source: gpuevent.ScopeGPUFlight,
			Instance: r.instance, Depth: r.depth, Part: gpuevent.Some(int64(st.part)), Link: r.link,
		})
	}
	clear(st.reps)
}

func (s *session) closeFamily(d *Decoder, f *family) {
	for l := deviceLane; l < numLanes; l++ {
		s.flushReps(d, f, l)
	}
}

// windowAt returns the window that holds t.
func (s *session) windowAt(t int64) *window {
	i := t / windowNs
	w := s.windows[i]
	if w == nil {
		w = &window{index: i, first: t, last: t}
		w.family = family{kind: gpuevent.KindWindow, num: uint64(i), window: w}
		w.family.lanes[scopeLane].used = 1 // its root
		s.windows[i] = w
	}
	return w
}

// closeWindow sends the window's root span.
func (s *session) closeWindow(d *Decoder, w *window) {
	s.closeFamily(d, &w.family)
	d.out.SessionSpan(s.ev, &gpuevent.SessionSpan{
		Ref:     gpuevent.Ref{Trace: s.traceOf(&w.family, deviceLane, 0), Span: s.key.Span(gpuevent.KindWindow, w.family.num, 0)},
		StartNs: w.first, EndNs: w.last, Window: gpuevent.Some(w.index),
		Link: gpuevent.Ref{Trace: s.trace, Span: s.span},
	})
	delete(s.windows, w.index)
}
