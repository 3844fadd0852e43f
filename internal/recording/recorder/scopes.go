// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
	"github.com/gpuflight/gpuflight/semconv"
)

const (
	// maxScopes bounds the open and ended scopes in memory: about 40 MiB.
	maxScopes = 1 << 17
	// scopeAge is how long an ended scope is kept for kernels that end later.
	scopeAge = 10 * time.Minute
	// maxPending bounds the events of Begin and End between two rounds.
	maxPending = 1 << 18
	// maxScopeNames bounds the scope names that metrics distinguish. Later names become _other: the
	// first names are usually the structure of a program, an endless sequence of later ones
	// contains numbers.
	maxScopeNames = 200
)

// scope is a scope of the application, an NVTX range, or the session itself.
type scope struct {
	id   uint64
	kind gpuevent.Kind
	name string
	// label is the index of the name in metrics.
	label uint32
	// parent is the enclosing scope, or nil.
	parent *scope
	// trace is the trace of the scope's span. The span is repeated in each later part of the trace.
	// trace is nil for spans of the application and scopes inside them, because their trace cannot
	// be split.
	trace *trace
	// first is the scope's span. cur is its span in the current part of the trace.
	first, cur      gpuevent.Ref
	firstPart, part int
	// repeats means that cur repeats first and has not been sent.
	repeats bool
	// sampled means that work in the scope has spans. A thin scope has no span itself: its work
	// belongs to the enclosing scope.
	sampled, thin, ended bool
	start, end           int64
	depth                int64
	domain               string
	collectiveBytes      uint64
	source               gpuevent.ScopeSource
	forward              gpuevent.Ref // the scope of the forward operator, on one of a backward operator
	stack                string       // of the begin, until a span of work has it
}

// trace is a trace that is split into parts.
type trace struct {
	id   gpuevent.TraceID // of part 0
	kind gpuevent.Kind
	n    uint64
	// part is the number of the current part and spans its size. first and last bound the time of
	// its work.
	part, spans int
	first, last int64
}

func (t *trace) partID(key gpuevent.SessionKey) gpuevent.TraceID {
	if t.part == 0 {
		return t.id
	}
	return key.Trace(t.kind, t.n, uint64(t.part))
}

// touch extends the time of the part.
func (t *trace) touch(start, end int64) {
	if t.first == 0 || start < t.first {
		t.first = start
	}
	t.last = max(t.last, end)
}

// scopeOp is a pending event of Begin or End.
type scopeOp struct {
	id    uint64
	begin bool
	// at is the time in Unix nanoseconds, or 0 if no rule needs it.
	at    int64
	scope Scope
}

// forgettable is an ended scope with its end by the local clock.
type forgettable struct {
	id uint64
	at int64
}

// scopes holds all known scopes. It belongs to the consumer.
type scopes struct {
	e       *engine
	byID    map[uint64]*scope
	session *scope
	// endings are the ended scopes in the order of their ends. Entries before ended are evicted.
	endings []forgettable
	ended   int
	labels  []string // by index; see maxScopeNames
	// series are the inputs of rules by label; nil for labels that no rule observes. It is empty
	// without rules.
	series []*rule.Series
	byName map[string]uint32
	lastID uint64
	last   *scope
	// forwards are the last operators of a forward pass by sequence number; see forwardOf.
	forwards map[uint64]gpuevent.Ref
	// lost counts scopes that were dropped at the bound or evicted early. leftOut counts ranges and
	// marks above the limit.
	lost, leftOut uint64
}

// The labels of work outside scopes, and of names above the bound.
const (
	labelOther   = otherIndex
	labelSession = 1
)

func newScopes(e *engine, session *scope) *scopes {
	session.label = labelSession
	s := &scopes{
		e: e, byID: map[uint64]*scope{}, session: session,
		labels: []string{otherName, ""},
		byName: map[string]uint32{otherName: labelOther, "": labelSession},
	}
	if e.figures != nil {
		s.series = []*rule.Series{e.figures.Scope(otherName), nil}
	}
	return s
}

func (s *scopes) label(name string) uint32 {
	l, ok := s.byName[name]
	if !ok {
		if len(s.labels) >= maxScopeNames+2 {
			return labelOther
		}
		l = uint32(len(s.labels))
		s.labels = append(s.labels, name)
		if f := s.e.figures; f != nil {
			s.series = append(s.series, f.Scope(name))
		}
		s.byName[name] = l
	}
	return l
}

// find returns the scope with an id, or nil.
func (s *scopes) find(id uint64) *scope {
	if id == s.lastID {
		return s.last
	}
	found := s.byID[id]
	s.lastID, s.last = id, found
	return found
}

// add stores a new scope. It returns false if the bound is reached.
func (s *scopes) add(c *scope) bool {
	for len(s.byID) >= maxScopes {
		if s.ended == len(s.endings) {
			s.lost++
			return false
		}
		s.lost++
		s.forgetOldest()
	}
	s.byID[c.id] = c
	s.lastID, s.last = c.id, c
	return true
}

func (s *scopes) forgetOldest() {
	delete(s.byID, s.endings[s.ended].id)
	s.lastID, s.last = 0, nil
	s.ended++
	if s.ended > len(s.endings)/2 {
		s.endings = append(s.endings[:0], s.endings[s.ended:]...)
		s.ended = 0
	}
}

// forget evicts scopes that ended more than scopeAge ago.
func (s *scopes) forget(now int64) {
	for s.ended < len(s.endings) && s.endings[s.ended].at < now-int64(scopeAge) {
		s.forgetOldest()
	}
}

func (s *scopes) endsAt(c *scope, now int64) {
	c.ended = true
	s.endings = append(s.endings, forgettable{c.id, now})
}

// observe reports an ended scope to rules. Names above the bound count as _other.
func (s *scopes) observe(c *scope, end int64) {
	if int(c.label) < len(s.series) {
		s.series[c.label].Observe(max(0, end-c.start))
	}
}

// apply applies pending events of Begin and End in order.
func (s *scopes) apply(ops []scopeOp, now int64) {
	for i := range ops {
		op := &ops[i]
		if !op.begin {
			if c := s.byID[op.id]; c != nil && !c.ended {
				s.endsAt(c, now)
				s.observe(c, op.at)
			}
			continue
		}
		s.addSpan(op.id, op.at, op.scope)
	}
}

// addSpan stores a scope whose span the application sends.
func (s *scopes) addSpan(id uint64, start int64, span Scope) {
	s.add(&scope{
		id: id, kind: gpuevent.KindScope, name: span.Name, label: s.label(span.Name),
		sampled: span.Sampled, start: start, stack: span.Stack,
		first: span.Ref, cur: span.Ref,
		// Without a span of its own, the work of the scope belongs to the session.
		thin: span.Ref.Trace == gpuevent.TraceID{} || span.Ref.Span == gpuevent.SpanID{},
	})
}

// nvtx applies NVTX events and those of a program's tasks, in order for each thread.
func (s *scopes) nvtx(events []cupti.ScopeEvent, now int64) {
	for i := range events {
		ev := &events[i]
		s.e.seen(ev.TimeNs)
		switch ev.What {
		case cupti.ScopeBegin:
			s.beginRange(ev)
		case cupti.ScopeSpan:
			if s.byID[ev.ID] != nil {
				s.lost++ // a duplicate id is a fault of the source
				continue
			}
			s.addSpan(ev.ID, ev.TimeNs, Scope{Ref: ev.Span, Sampled: ev.Sampled, Name: ev.Name})
		case cupti.ScopeEnd:
			c := s.byID[ev.ID]
			if c == nil || c.ended {
				continue
			}
			end := max(ev.TimeNs, c.start)
			if c.kind == gpuevent.KindNVTX {
				c.end = end
			}
			s.endsAt(c, now)
			s.observe(c, end)
			if c.kind == gpuevent.KindNVTX {
				s.finish(c, false)
			}
		case cupti.ScopeMark:
			s.mark(ev)
		}
	}
}

func (s *scopes) beginRange(ev *cupti.ScopeEvent) {
	if s.byID[ev.ID] != nil {
		s.lost++ // a duplicate id is a fault of the source
		return
	}
	c := &scope{
		id: ev.ID, kind: gpuevent.KindNVTX, name: ev.Name, label: s.label(ev.Name),
		start: ev.TimeNs, domain: ev.Domain, collectiveBytes: ev.CollectiveBytes, part: -1, source: gpuevent.ScopeNVTX,
	}
	if ev.Program {
		c.source = gpuevent.ScopeSDK
	}
	if p := s.byID[ev.Parent]; p != nil && ev.Parent != 0 {
		c.parent, c.depth = p, p.depth+1
	}
	if !s.add(c) {
		return
	}
	around := s.e.visible(c.parent)
	if around == s.session && ev.Nested {
		// Each top-level range has a trace of its own.
		c.sampled = around.sampled
		c.trace = &trace{id: s.e.key.Trace(gpuevent.KindNVTX, c.id, 0), kind: gpuevent.KindNVTX, n: c.id}
	} else {
		c.sampled, c.trace = around.sampled, around.trace
	}
	switch {
	case !c.sampled:
	case s.e.ranges.available(s.e.now) < 1:
		c.thin = true
		s.leftOut++
	default:
		s.e.ranges.take(1)
		s.e.place(c)
		if c.trace != nil {
			c.trace.touch(c.start, c.start)
		}
		s.linkForward(c)
	}
}

// maxForwards bounds the remembered operators: 4 MiB. A training step of a large model has some 10,000.
const maxForwards = 1 << 16

// linkForward joins the range of a backward operator to that of its forward operator. Ranges of
// PyTorch's emit_nvtx have a number: a forward operator has that of the next node of the graph, and the
// backward operator that of its node. So the last forward operator with the number created the node.
// https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.profiler.emit_nvtx
func (s *scopes) linkForward(c *scope) {
	_, rest, ok := strings.Cut(c.name, ", seq = ")
	if !ok {
		return
	}
	digits, _, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return
	}
	operator, _, _ := strings.Cut(c.name, ",")
	if strings.Contains(operator, "Backward") {
		c.forward = s.forwards[n]
		return
	}
	if c.parent != nil && strings.Contains(c.parent.name, "Backward") {
		return // the number is one of the thread of the backward pass
	}
	if s.forwards == nil || len(s.forwards) >= maxForwards {
		s.forwards = map[uint64]gpuevent.Ref{}
	}
	s.forwards[n] = c.first
}

// finish sends the spans of a range that has ended, or of an unfinished one.
func (s *scopes) finish(c *scope, unfinished bool) {
	if !c.sampled || c.thin {
		return
	}
	c.end = max(c.end, c.start)
	s.span(c, c.first, gpuevent.Int{}, unfinished)
	if c.repeats {
		s.repeat(c, unfinished)
	}
}

// repeat sends the span that continues the scope in a later part of its trace.
func (s *scopes) repeat(c *scope, unfinished bool) {
	c.repeats = false
	s.span(c, c.cur, gpuevent.Some(int64(c.part)), unfinished)
}

func (s *scopes) span(c *scope, ref gpuevent.Ref, part gpuevent.Int, unfinished bool) {
	end := c.end
	if !c.ended {
		end = max(c.start, s.e.lastSeen)
	}
	var link gpuevent.Ref
	switch {
	case part.OK:
		link = c.first
	case ref.Parent == gpuevent.SpanID{}:
		link = s.session.first
	}
	var bytes gpuevent.Int
	if c.collectiveBytes > 0 {
		bytes = gpuevent.Some(int64(c.collectiveBytes))
	}
	s.e.spans.Scopes++
	s.e.batch.Scope(s.e.session, &gpuevent.Scope{
		Ref: ref, StartNs: c.start, EndNs: end, Name: c.name, Source: c.source,
		Instance: gpuevent.Some(int64(c.id)), Depth: gpuevent.Some(c.depth), Domain: c.domain, CollectiveBytes: bytes,
		Part: part, Link: link, Forward: c.forward, Unfinished: unfinished, Estimated: s.e.distorted.distorts(c.start, end),
	})
	s.e.sendIfFull()
}

// mark makes a log record of an NVTX mark, in the enclosing scope.
func (s *scopes) mark(ev *cupti.ScopeEvent) {
	around := s.session
	if p := s.byID[ev.Parent]; p != nil {
		around = s.e.visible(p)
	}
	if !around.sampled {
		return
	}
	if s.e.ranges.available(s.e.now) < 1 {
		s.leftOut++
		return
	}
	s.e.ranges.take(1)
	r := gpuevent.Record{
		Ref: s.e.place(around), UID: s.e.uid(), TimeNs: ev.TimeNs, Event: semconv.EventCUDAMarker, Body: ev.Name,
		Attrs: []gpuevent.Attr{gpuevent.Str(semconv.CUDAMarkerName, ev.Name), gpuevent.Str(semconv.CUDANVTXDomain, ev.Domain)},
	}
	if ev.Color != 0 {
		r.Attrs = append(r.Attrs, gpuevent.Str(semconv.CUDAMarkerColor, fmt.Sprintf("#%06x", ev.Color&0xffffff)))
	}
	s.e.batch.Record(s.e.session, &r)
	s.e.sendIfFull()
}

// visible returns the innermost scope with a span, from s outwards, or the session.
func (e *engine) visible(s *scope) *scope {
	for s != nil && s.thin {
		s = s.parent
	}
	if s == nil {
		return e.scopes.session
	}
	return s
}

// room starts the next part of the scope's trace if the current one is full.
func (e *engine) room(s *scope) {
	t := s.trace
	if t == nil || t.spans < e.cfg.MaxSpansPerTrace {
		return
	}
	// An ended range has sent its repeated span, and closeSessionPart sends that of the session. An
	// open range sends its repeated span when it moves to the next part or ends.
	if t == e.scopes.session.trace {
		e.closeSessionPart()
	}
	t.part++
	t.spans = 0
	t.first, t.last = 0, 0
}

// place returns the scope's span in the current part of its trace. If the scope began in an earlier
// part, it marks the span for repetition. The scope must have a span.
func (e *engine) place(s *scope) gpuevent.Ref {
	t := s.trace
	if t == nil && s.kind == gpuevent.KindScope || t != nil && s.part == t.part {
		return s.cur
	}
	if t == nil { // a range inside a span of the application
		if s.part < 0 {
			around := e.visible(s.parent)
			s.first = gpuevent.Ref{
				Trace: around.cur.Trace, Span: e.key.Span(s.kind, s.id, 0), Parent: around.cur.Span,
			}
			s.cur, s.part = s.first, 0
		}
		return s.cur
	}
	if s.part < 0 {
		e.room(s)
	}
	ref := gpuevent.Ref{Trace: t.partID(e.key), Span: e.key.Span(s.kind, s.id, uint64(t.part))}
	switch around := e.visible(s.parent); {
	case s == e.scopes.session:
	case around.trace == t:
		ref.Parent = e.place(around).Span
	}
	if s.part < 0 {
		s.first, s.firstPart = ref, t.part
	} else {
		if s.repeats {
			e.scopes.repeat(s, false)
		}
		s.repeats = s != e.scopes.session
	}
	s.cur, s.part = ref, t.part
	t.spans++
	if s.repeats && s.ended {
		e.scopes.repeat(s, false)
	}
	return ref
}

// closeSessionPart sends the root span of a part of the session's trace. The root of part 0 is the
// session's own span, which is sent at the end.
func (e *engine) closeSessionPart() {
	s := e.scopes.session
	if s.part == 0 || s.part != s.trace.part || !s.sampled {
		return
	}
	e.spans.Scopes++
	e.batch.SessionSpan(e.session, &gpuevent.SessionSpan{
		Ref: s.cur, StartNs: s.trace.first, EndNs: s.trace.last,
		Part: gpuevent.Some(int64(s.part)), Link: s.first,
	})
}
