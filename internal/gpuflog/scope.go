// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"strconv"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// scopeEvent decodes scope_begin and scope_end of A2 (format document, section 3.5). They carry a
// snapshot of the host and of every device too.
func (d *Decoder) scopeEvent(r *record) bool {
	var name, tag, full []byte
	var depth gpuevent.Int
	m := d.meters()
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "name":
			ok = r.strInto(&name)
		case "tag":
			ok = r.strInto(&tag)
		case "user_scope":
			ok = r.strInto(&full)
		case "scope_depth":
			ok = r.intInto(&depth)
		case "host", "devices":
			ok = m.take(r, key)
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	if r.head.ts.V < minTime || r.head.ts.V > maxTime || len(name) == 0 {
		d.reject(MissingField, recordNames[r.typ]+" without name or ts_ns")
		return true
	}
	s := d.owner(&r.head, r.head.ts.V)
	if s == nil {
		return true
	}
	ts := r.head.ts.V
	d.snapshot(s, ts, m)
	if len(full) == 0 {
		full = name
	}
	if r.typ == recScopeEnd {
		s.endA2(d, full, depth.V, ts)
	} else {
		p := s.scopes.a2Path(d.text.get(full), d.text.get(name))
		x := &scope{
			num: hash64(full) ^ uint64(ts), path: p, depth: depth.V, start: ts, tag: d.text.get(tag),
		}
		if s.scopes.byNum[x.num] != nil { // the same record once more
			return true
		}
		if depth.V > 0 {
			x.parent = s.scopeAbove(d, depth.V)
		}
		s.openScope(d, x)
	}
	s.scopeSeen = max(s.scopeSeen, ts)
	s.drain(d)
	return true
}

// endA2 ends the youngest open instance of a path and depth.
func (s *session) endA2(d *Decoder, full []byte, depth, ts int64) {
	if p := s.scopes.paths[pathKey(string(full))]; p != nil {
		for i := len(p.insts) - 1; i >= 0; i-- {
			if x := p.insts[i]; x.open && x.depth == depth {
				s.closeScope(d, x, ts, false)
				return
			}
		}
	}
	d.reject(ScopeWithoutBegin, text(full))
}

// The values of event_type in scope_event_batch.
const (
	scopeBegins     = 0
	scopeEnds       = 1
	scopeGoesOn     = 2 // reopened in a new segment
	scopeIsCut      = 3 // closed by the end of a segment
	largestInstance = int64(1) << 62
)

// scopeBatch decodes scope_event_batch (format document, section 4.6).
func (d *Decoder) scopeBatch(r *record) bool {
	var b batch
	s, ok := d.batch(r, &b)
	if s == nil {
		return ok
	}
	for b.next(d) {
		t, ok := b.time(d)
		if !ok {
			continue
		}
		s.saw(d.channel, t)
		num := b.row.get(colScopeInstance)
		if !b.row.has[colScopeInstance] || num <= 0 || num > largestInstance {
			d.reject(BadRow, "scope without instance")
			continue
		}
		switch b.row.get(colEventType) {
		case scopeBegins, scopeGoesOn:
			s.beginScope(d, &b, num, t)
		case scopeEnds, scopeIsCut:
			s.endScope(d, &b, num, t)
		default:
			d.reject(BadRow, "event_type "+strconv.FormatInt(b.row.get(colEventType), 10))
		}
		s.scopeSeen = max(s.scopeSeen, t)
	}
	s.drain(d)
	return true
}

// scopeAbove returns the parent of a scope that begins at a depth. A scope below maxLevels others
// becomes a sibling of its parent and is counted: each part of a trace repeats the spans above it.
func (s *session) scopeAbove(d *Decoder, depth int64) *scope {
	parent := s.scopes.parentAt(depth - 1)
	levels := 0
	for x := parent; x != nil; x = x.parent {
		levels++
	}
	if levels < maxLevels {
		return parent
	}
	d.reject(ScopesFull, "scope at depth "+strconv.FormatInt(depth, 10))
	return parent.parent
}

func (s *session) beginScope(d *Decoder, b *batch, num, t int64) *scope {
	if s.scopes.byNum[uint64(num)] != nil {
		return nil // the same row once more
	}
	name, ok := s.dicts.lookup(dictScope, b.row.get(colNameID))
	if !ok {
		d.reject(UnknownID, "scope name "+strconv.FormatInt(b.row.get(colNameID), 10))
		name = "scope " + strconv.FormatInt(b.row.get(colNameID), 10)
	}
	x := &scope{
		num: uint64(num), depth: b.row.get(colDepth), start: t, instance: gpuevent.Some(num),
		repeat: b.row.optPos(colRepeat), warm: b.row.optPos(colWarmup),
	}
	if o := b.row.get(colOriginalStart); b.row.has[colOriginalStart] && o >= minTime && o < t {
		x.original = gpuevent.Some(o)
	}
	var above *path
	if x.depth > 0 {
		if x.parent = s.scopeAbove(d, x.depth); x.parent != nil {
			above = x.parent.path
		}
	}
	x.path = s.scopes.child(above, name)
	s.openScope(d, x)
	return x
}

func (s *session) endScope(d *Decoder, b *batch, num, t int64) {
	x := s.scopes.byNum[uint64(num)]
	if x == nil {
		// The begin was not read, but since version 3 the end says when it was.
		o := b.row.get(colOriginalStart)
		if !b.row.has[colOriginalStart] || o < minTime || o > t {
			d.reject(ScopeWithoutBegin, "instance "+strconv.FormatInt(num, 10))
			return
		}
		if x = s.beginScope(d, b, num, o); x == nil {
			return
		}
	}
	if x.open {
		s.closeScope(d, x, t, false)
	}
}

// nvtx decodes nvtx_marker_event: a range is a scope, an instant a log record. A range is written when
// it ends. Its work was sent before, as a child of GPU Flight's own scopes.
func (d *Decoder) nvtx(r *record) bool {
	var name, domain []byte
	var start, end, id gpuevent.Int
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "name":
			ok = r.strInto(&name)
		case "domain":
			ok = r.strInto(&domain)
		case "start_ns":
			ok = r.intInto(&start)
		case "end_ns":
			ok = r.intInto(&end)
		case "marker_id":
			ok = r.intInto(&id)
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	if !start.OK || !plausible(start.V, end.V) {
		d.reject(MissingField, "nvtx_marker_event without times")
		return true
	}
	s := d.owner(&r.head, start.V)
	if s == nil {
		return true
	}
	s.hostSeen = max(s.hostSeen, start.V)
	if end.V <= start.V {
		attrs := []gpuevent.Attr{gpuevent.Str(semconv.CUDAMarkerName, d.text.get(name))}
		if len(domain) > 0 {
			attrs = append(attrs, gpuevent.Str(semconv.CUDANVTXDomain, d.text.get(domain)))
		}
		if id.OK {
			attrs = append(attrs, gpuevent.I(semconv.CUDAMarkerID, id.V))
		}
		s.record(d, start.V, s.refAt(start.V), semconv.EventCUDAMarker, d.text.get(name), attrs...)
		return true
	}
	it := &item{lane: hostLane, at: start.V, exact: true, nvtx: &gpuevent.Scope{
		Ref:     gpuevent.Ref{Span: s.key.Span(gpuevent.KindNVTX, uint64(start.V), uint64(id.V)^hash64(name))},
		StartNs: start.V, EndNs: end.V, Name: d.text.get(name), Source: gpuevent.ScopeNVTX,
		Domain: d.text.get(domain), Instance: id,
	}}
	s.submit(d, it)
	return true
}
