// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// session is everything known of one session.
type session struct {
	id    string
	key   gpuevent.SessionKey
	trace gpuevent.TraceID
	span  gpuevent.SpanID
	// ev is replaced, not changed, when more becomes known: batches hold on to it.
	ev *gpuevent.Session
	// headed: init or job_start was read. tooOld: it is of an unsupported generation.
	headed, tooOld bool
	// estimated: the recorder said that its kernel times are not measured.
	estimated bool
	dicts     dictionaries
	scopes    scopeTable
	order     order
	windows   map[int64]*window
	// once holds hashes of the lines that upstream copies into every channel.
	once map[uint64]struct{}

	// seen is the newest time per channel, shut says that the channel's shutdown was read.
	seen [NumChannels]int64
	shut [NumChannels]bool
	// scopeSeen is the newest begin or end of a scope; hostSeen the newest host time of another
	// record of the scope channel.
	scopeSeen, hostSeen int64
	endTs               int64
	exit                exitState
	// live: something came since the last close.
	live, closed bool

	rows    rowQueue
	details detailTable
	held    [numLanes]itemQueue
	lost    []item
}

type exitState struct {
	crashed      bool
	code, signal gpuevent.Int
}

func newSession(id string) *session {
	key := gpuevent.KeyOf(id)
	return &session{
		id: id, key: key, trace: gpuevent.SessionTrace(id), span: key.Span(gpuevent.KindSession, 0, 0),
		ev:     &gpuevent.Session{ID: id, Distro: "gpuflight"},
		scopes: newScopeTable(), windows: map[int64]*window{}, once: map[uint64]struct{}{},
		rows: newRowQueue(), details: newDetailTable(),
	}
}

// saw notes the time of a record.
func (s *session) saw(ch Channel, ts int64) {
	s.live = true
	if ts > s.seen[ch] && ts < maxTime {
		s.seen[ch] = ts
	}
}

// learn takes what a record other than the header says of its session.
func (s *session) learn(d *Decoder, h *head) {
	ev := *s.ev
	ev.App = d.text.get(h.app)
	if h.pid.OK {
		ev.PID = h.pid
	}
	s.ev = &ev
}

// first reports whether a line that upstream copies into every channel is read for the first time.
func (s *session) first(line []byte) bool {
	h := hash64(line)
	if _, ok := s.once[h]; ok {
		return false
	}
	if len(s.once) < 4096 { // a session has a few dozen such lines
		s.once[h] = struct{}{}
	}
	return true
}

// scopeLag is how far begins and ends of scopes may come behind other host times in the scope
// channel: both are flushed each 250 ms.
const scopeLag = int64(time.Second)

// scopeMark is the time up to which all begins of scopes are known.
func (s *session) scopeMark() int64 {
	if s.shut[Scope] {
		return math.MaxInt64
	}
	return max(s.scopeSeen, s.hostSeen-scopeLag)
}

// item is one span of work whose parent is not known yet.
type item struct {
	lane lane
	// at decides the scope: the host time of the launch if exact, else the start on the device.
	at    int64
	exact bool
	// where says what is known of the scope; path is its name path if it is inPath.
	where placeKind
	path  string
	// arrived is the Decoder's time at which the record was read.
	arrived int64
	// Exactly one is set.
	kernel *gpuevent.Kernel
	copy   *gpuevent.Copy
	set    *gpuevent.Set
	sync   *gpuevent.Sync
	memory *gpuevent.Memory
	graph  *gpuevent.Graph
	nvtx   *gpuevent.Scope
}

type placeKind uint8

const (
	byTime  placeKind = iota // the record names no scope
	outside                  // the record says that it is outside every scope
	inPath                   // the record names the scope
)

// clone copies an item whose event lies in the Decoder's scratch space.
func (it *item) clone() item {
	c := *it
	switch {
	case it.kernel != nil:
		v := *it.kernel
		c.kernel = &v
	case it.copy != nil:
		v := *it.copy
		c.copy = &v
	case it.set != nil:
		v := *it.set
		c.set = &v
	case it.sync != nil:
		v := *it.sync
		c.sync = &v
	case it.memory != nil:
		v := *it.memory
		c.memory = &v
	case it.graph != nil:
		v := *it.graph
		c.graph = &v
	case it.nvtx != nil:
		v := *it.nvtx
		c.nvtx = &v
	}
	return c
}

// span returns the part that all events of work share, nil for an NVTX range.
func (it *item) spanOf() *gpuevent.Span {
	switch {
	case it.kernel != nil:
		return &it.kernel.Span
	case it.copy != nil:
		return &it.copy.Span
	case it.set != nil:
		return &it.set.Span
	case it.sync != nil:
		return &it.sync.Span
	case it.memory != nil:
		return &it.memory.Span
	case it.graph != nil:
		return &it.graph.Span
	}
	return nil
}

// submit sends an item, or holds it until its scope is known. Items of a lane keep their order.
func (s *session) submit(d *Decoder, it *item) {
	q := &s.held[it.lane]
	if q.len() == 0 && s.ready(it) {
		s.send(d, it, false)
		return
	}
	c := it.clone()
	c.arrived = d.now
	q.push(c)
	if q.len() > d.opt.MaxHeld {
		d.stats.HeldOverflow++
		head := q.pop()
		s.send(d, &head, false)
	}
}

func (s *session) ready(it *item) bool { return it.where == outside || it.at <= s.scopeMark() }

// drain sends what the scope channel's progress has made ready.
func (s *session) drain(d *Decoder) {
	for l := range s.held {
		q := &s.held[l]
		for q.len() > 0 && s.ready(q.head()) && d.room() {
			it := q.pop()
			s.send(d, &it, false)
		}
	}
	if len(s.lost) > 0 {
		s.retryLost(d, false)
	}
}

// retryLost tries the items again whose scope was not found; last sends them all.
func (s *session) retryLost(d *Decoder, last bool) {
	keep := s.lost[:0]
	for i := range s.lost {
		it := &s.lost[i]
		expired := last || d.now-it.arrived > int64(d.opt.JoinTimeout)
		if (!expired && s.scopes.paths[pathKey(it.path)] == nil) || !d.room() {
			keep = append(keep, *it)
			continue
		}
		s.send(d, it, true)
	}
	clear(s.lost[len(keep):])
	s.lost = keep
}

// send finds an item's scope and sends it. An item whose scope is named but not known waits once
// more, unless it must go.
func (s *session) send(d *Decoder, it *item, must bool) {
	var x *scope
	switch it.where {
	case byTime:
		x = s.scopes.containing(it.at)
	case inPath:
		if p := s.scopes.paths[pathKey(it.path)]; p != nil {
			if it.exact {
				x = launchedAt(p, it.at)
				p.launched = true
			} else {
				x = s.order.pick(&s.scopes, p, it.at, it.spanOf().EndNs)
			}
		}
		if x == nil {
			if !must && !s.shut[Scope] && len(s.lost) < d.opt.MaxHeld {
				if it.arrived == 0 {
					*it = it.clone()
					it.arrived = d.now
				}
				s.lost = append(s.lost, *it)
				return
			}
			d.stats.ScopesMissed++
			it.spanOf().ScopePath = it.path
			if it.exact { // a scope whose begin was lost still lies within others
				x = s.scopes.containing(it.at)
			}
		}
	}
	if it.nvtx != nil {
		s.sendNVTX(d, it, x)
		return
	}
	sp := it.spanOf()
	sp.ScopeName = scopeName(x, sp.ScopePath)
	sp.Trace, sp.Parent = s.placeUnder(d, x, it.lane, sp.StartNs, sp.EndNs)
	switch {
	case it.kernel != nil:
		d.out.Kernel(s.ev, it.kernel)
	case it.copy != nil:
		d.out.Copy(s.ev, it.copy)
	case it.set != nil:
		d.out.Set(s.ev, it.set)
	case it.sync != nil:
		d.out.Sync(s.ev, it.sync)
	case it.memory != nil:
		d.out.Memory(s.ev, it.memory)
	case it.graph != nil:
		d.out.Graph(s.ev, it.graph)
	}
}

// scopeName returns the name of the innermost scope: x, or where that could not be found, the last
// of the path that names it.
func scopeName(x *scope, path string) string {
	if path != "" {
		return path[strings.LastIndexByte(path, '|')+1:]
	}
	if x != nil {
		return x.path.name
	}
	return ""
}

func (s *session) sendNVTX(d *Decoder, it *item, x *scope) {
	it.nvtx.Trace, it.nvtx.Parent = s.placeUnder(d, x, it.lane, it.nvtx.StartNs, it.nvtx.EndNs)
	d.out.Scope(s.ev, it.nvtx)
}

// placeUnder places a span under a scope, or under the window of its start.
func (s *session) placeUnder(d *Decoder, x *scope, l lane, start, end int64) (gpuevent.TraceID, gpuevent.SpanID) {
	if x == nil {
		return s.place(d, &s.windowAt(start).family, nil, l, start, end)
	}
	return s.place(d, x.root.family, x, l, start, end)
}

// openScope enters a new instance and finds the part of its trace that will hold its span.
func (s *session) openScope(d *Decoder, x *scope) {
	if x.parent != nil {
		x.root = x.parent.root
		s.scopes.add(x)
		x.span = s.key.Span(gpuevent.KindScope, x.num, 0)
		x.homePart = math.MaxUint64 // not native anywhere while its place is sought
		x.trace, x.above = s.place(d, x.root.family, x.parent, scopeLane, x.start, x.start)
		x.homePart = x.root.family.lanes[scopeLane].part
	} else {
		x.root = x
		x.family = &family{kind: gpuevent.KindScope, num: x.num}
		x.family.lanes[scopeLane].used = 1
		s.scopes.add(x)
		x.trace, x.span = s.key.Trace(gpuevent.KindScope, x.num, 0), s.key.Span(gpuevent.KindScope, x.num, 0)
	}
	if len(s.scopes.all) > s.scopes.sweepAt {
		s.sweep(d, false)
	}
}

// closeScope ends an instance and sends its span.
func (s *session) closeScope(d *Decoder, x *scope, end int64, unfinished bool) {
	s.scopes.close(x, end)
	s.sendScope(d, x, x.end, unfinished)
}

func (s *session) sendScope(d *Decoder, x *scope, end int64, unfinished bool) {
	var link gpuevent.Ref
	if x.above == (gpuevent.SpanID{}) {
		link = gpuevent.Ref{Trace: s.trace, Span: s.span}
	}
	d.out.Scope(s.ev, &gpuevent.Scope{
		Ref: gpuevent.Ref{Trace: x.trace, Span: x.span, Parent: x.above}, Link: link,
		StartNs: x.start, EndNs: max(x.start, end), Name: x.path.name, Source: gpuevent.ScopeGPUFlight,
		Instance: x.instance, Depth: gpuevent.Some(x.depth), Tag: x.tag,
		Repeat: x.repeat, Warmup: x.warm, OriginalStartNs: x.original, Unfinished: unfinished,
	})
}

// sweep forgets the scopes to which no device work can come any more.
func (s *session) sweep(d *Decoder, idle bool) {
	grace := int64(d.opt.JoinTimeout)
	mark := min(s.mark(Device), s.mark(Scope))
	dropped := s.scopes.sweep(d.opt.MaxScopes, func(x *scope) bool {
		if x.open || s.hasChildren(x) {
			return false
		}
		return x.end < mark-grace || (idle && x.end < d.now-int64(d.opt.SessionTimeout))
	}, func(x *scope) {
		if x.family != nil {
			s.closeFamily(d, x.family)
		}
	})
	for range dropped {
		d.reject(ScopesFull, "session "+s.id)
	}
	// Open scopes cannot be told from leaked ones: beyond the bound the oldest is closed.
	for len(s.scopes.all) > d.opt.MaxScopes {
		x := s.scopes.all[0]
		s.closeScope(d, x, s.newest(), true)
		d.reject(ScopesFull, "open scope "+x.path.full)
		s.scopes.all = s.scopes.all[1:]
		s.scopes.forget(x)
		if x.family != nil {
			s.closeFamily(d, x.family)
		}
	}
}

// hasChildren keeps a root as long as one of its descendants is open.
func (s *session) hasChildren(x *scope) bool {
	if x.family == nil {
		return false
	}
	for _, o := range s.scopes.open {
		if o.root == x {
			return true
		}
	}
	return false
}

// mark is how far a channel has been read.
func (s *session) mark(ch Channel) int64 {
	if s.shut[ch] {
		return math.MaxInt64
	}
	return s.seen[ch]
}

// timeIn is the time of a record without one: the newest before it in its channel.
func (s *session) timeIn(ch Channel) int64 {
	if s.seen[ch] == 0 {
		return s.ev.StartNs
	}
	return s.seen[ch]
}

func (s *session) newest() int64 { return slices.Max(s.seen[:]) }

// endStep does what time and the end of the files bring about.
func (s *session) endStep(d *Decoder, st *Step) {
	if s.tooOld {
		return
	}
	s.drain(d) // what an earlier call had no room for
	s.expireRows(d, s.seen[Device]-int64(d.opt.JoinTimeout))
	if st.Flush {
		s.flush(d)
	}
	if st.AtEnd[Scope] {
		for l := range s.held {
			q := &s.held[l]
			for q.len() > 0 && (s.ready(q.head()) || st.Now-q.head().arrived >= int64(d.opt.ScopeWait)) && d.room() {
				it := q.pop()
				s.send(d, &it, false)
			}
		}
	}
	if len(s.lost) > 0 {
		s.retryLost(d, st.AtEnd[Scope] && st.Quiet >= dataEnd)
	}
	atEnd := st.AtEnd == [NumChannels]bool{true, true, true, true}
	if atEnd && (st.Quiet >= dataEnd || st.Gone) {
		s.expireRows(d, math.MaxInt64)
		s.details.expire(math.MaxInt64, func() { d.reject(DetailWithoutRow, "") })
	}
	if !d.room() {
		return // the next step continues
	}
	s.closeWindows(d, st)
	if s.live {
		if how := s.ending(d, st, atEnd); how != goesOn {
			s.close(d, how)
		}
	}
}

// ending says how a session stands at the end of a step.
type ending uint8

const (
	goesOn  ending = iota
	silent         // nothing came for so long that it counts as ended; it may go on all the same
	crashed        // its writer is gone without a shutdown record
	ended
)

// ending reports whether the session has ended and everything of it has been read.
func (s *session) ending(d *Decoder, st *Step, atEnd bool) ending {
	shut, all := false, true
	for ch := range s.shut {
		shut = shut || s.shut[ch]
		// The sass channel holds nothing that others wait for, and A and B have none.
		all = all && (s.shut[ch] || (Channel(ch) == Sass && st.AtEnd[Sass]))
	}
	switch {
	case all, shut && atEnd && (st.Quiet >= dataEnd || st.Gone):
		return ended
	case !shut && atEnd && st.Gone:
		return crashed
	case !shut && atEnd && st.Quiet >= d.opt.SessionTimeout:
		return silent
	}
	return goesOn
}

// waits reports whether any row or item has not been sent yet.
func (s *session) waits() bool {
	for l := range s.held {
		if s.held[l].len() > 0 {
			return true
		}
	}
	return s.rows.len() > 0 || len(s.lost) > 0
}

// closeWindows sends the spans of the windows to which no more work will come.
func (s *session) closeWindows(d *Decoder, st *Step) {
	if len(s.windows) == 0 || s.waits() {
		return // what waits may belong to a window that looks complete
	}
	mark := min(s.mark(Device), s.mark(Scope))
	if s.seen[Scope] == 0 || s.seen[Device] == 0 || mark == math.MaxInt64 {
		mark = s.newest() // one of the two channels only, or both at their end
	}
	for _, i := range sortedKeys(s.windows) {
		if end := (i + 1) * windowNs; end+int64(d.opt.JoinTimeout) < mark ||
			(st.AtEnd[Device] && st.AtEnd[Scope] && end+int64(d.opt.SessionTimeout) < st.Now && st.Quiet >= dataEnd) {
			s.closeWindow(d, s.windows[i])
		}
	}
}

// close sends everything that still waits, the open scopes and the session's span. A session that
// is only silent keeps its scopes: if it goes on after all, they and the session are sent again when
// they end, with the same ids.
func (s *session) close(d *Decoder, how ending) {
	if s.flush(d); d.stopped {
		return // the next step closes it
	}
	end := s.endTs
	if end == 0 {
		end = s.newest()
	}
	if how == silent {
		for i := len(s.scopes.open) - 1; i >= 0; i-- {
			s.sendScope(d, s.scopes.open[i], end, true)
		}
	} else {
		for len(s.scopes.open) > 0 {
			if !d.room() {
				return
			}
			s.closeScope(d, s.scopes.open[len(s.scopes.open)-1], end, true)
		}
		s.scopes.sweep(0, func(*scope) bool { return true }, func(x *scope) {
			if x.family != nil {
				s.closeFamily(d, x.family)
			}
		})
		s.order.last = nil
	}
	for _, i := range sortedKeys(s.windows) {
		s.closeWindow(d, s.windows[i])
	}
	start := s.ev.StartNs
	if start == 0 {
		start = end
	}
	if !s.closed || s.headed {
		d.out.SessionSpan(s.ev, &gpuevent.SessionSpan{
			Ref:     gpuevent.Ref{Trace: s.trace, Span: s.span},
			StartNs: start, EndNs: max(start, end), Unfinished: how != ended,
			Crashed: s.exit.crashed, ExitCode: s.exit.code, Signal: s.exit.signal,
		})
	}
	s.live, s.closed = false, true
}

// flush sends every row and item that waits.
func (s *session) flush(d *Decoder) {
	s.expireRows(d, math.MaxInt64)
	for l := range s.held {
		for q := &s.held[l]; q.len() > 0 && d.room(); {
			it := q.pop()
			s.send(d, &it, true)
		}
	}
	s.retryLost(d, true)
}

// logRef is the span that a log record of the session belongs to.
func (s *session) logRef() gpuevent.Ref { return gpuevent.Ref{Trace: s.trace, Span: s.span} }

// refAt is the scope that was open at t, or the session.
func (s *session) refAt(t int64) gpuevent.Ref { return s.refOf(s.scopes.containing(t)) }

func (s *session) refOf(x *scope) gpuevent.Ref {
	if x == nil {
		return s.logRef()
	}
	return gpuevent.Ref{Trace: x.trace, Span: x.span}
}

// record sends a log record about the session.
func (s *session) record(d *Decoder, ts int64, ref gpuevent.Ref, event, body string, attrs ...gpuevent.Attr) {
	if ts < minTime {
		ts = s.timeIn(d.channel)
	}
	d.out.Record(s.ev, &gpuevent.Record{Ref: ref, UID: d.uids.next(s.key), TimeNs: ts, Event: event, Body: body, Attrs: attrs})
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
