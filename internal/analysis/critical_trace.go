// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Bounds of the spans of a path.
const (
	maxPathSpans    = 20_000
	maxPathSessions = 50
	maxPathLinks    = 16
	spanKindClient  = 3 // SpanKind of OTLP
)

// pathSpan is a span that is no operation.
type pathSpan struct {
	session    string
	start, end int64
	id, parent store.SpanID
	trace      store.TraceID
	name       string
	client     bool
	links      []byte
	children   []*pathSpan // by end, the last one first
}

// selfTime is a time in which no span below a span determined the path.
type selfTime struct {
	from, to int64
	span     *pathSpan
}

// SpanLink is a link of a span.
type SpanLink struct {
	Trace store.TraceID
	Span  store.SpanID
}

// SpanPath returns the critical path of a request or scope: why its span took so long, through the spans
// of its trace in all sessions of the project. Where a session has operations of the trace, they are
// parts. A span with links to spans of other traces, such as that of a batch, has these below it; links
// decodes the field Links of spans. It returns [ErrPathTooLong] if there are too many operations, and
// errors of the store.
func SpanPath(ctx context.Context, r store.Reader, project, session string, root *store.SpanRow, links func([]byte) []SpanLink) (*CriticalPath, error) {
	from, to := root.StartNs, max(root.StartNs, root.EndNs)
	t := pathTrace{r: r, project: project, from: from, to: to, spans: map[store.SpanID]*pathSpan{}}
	if err := t.load(ctx, root.Trace); err != nil {
		return nil, err
	}
	top := t.spans[root.Span.Span]
	if top == nil { // beyond the bounds
		top = &pathSpan{session: session, start: from, end: to, id: root.Span.Span, name: root.Name, trace: root.Trace, client: root.Kind == spanKindClient, links: root.Links}
		t.spans[top.id] = top
	}
	if err := t.follow(ctx, links); err != nil {
		return nil, err
	}
	t.connect()
	var self []selfTime // the last one first
	t.descend(top, from, to, map[*pathSpan]bool{}, &self)

	missing := map[string]*Missing{}
	var most *Missing
	var parts []PathPart // the last one first
	for i := 0; i < len(self); {
		j := i + 1
		for j < len(self) && self[j].span.session == self[i].span.session {
			j++
		}
		run, err := t.walk(ctx, self[i:j])
		if err != nil {
			return nil, err
		}
		id := self[i].span.session
		m, ok := missing[id]
		if !ok {
			if m, err = MissingWork(ctx, FromReader(r, project, id)); err != nil {
				return nil, err
			}
			missing[id] = m
		}
		if m != nil {
			assume(run)
			if most == nil || m.Share > most.Share {
				most = m
			}
		}
		parts = append(parts, run...)
		i = j
	}
	slices.Reverse(parts)
	c := newPath(from, to, parts)
	c.Missing = most
	return c, nil
}

type pathTrace struct {
	r        store.Reader
	project  string
	from, to int64
	spans    map[store.SpanID]*pathSpan
	order    []*pathSpan // as loaded
	traces   []store.TraceID
}

// load adds the spans of a trace that overlap the path.
func (t *pathTrace) load(ctx context.Context, trace store.TraceID) error {
	if slices.Contains(t.traces, trace) || trace == (store.TraceID{}) || t.from == t.to {
		return nil
	}
	t.traces = append(t.traces, trace)
	refs, err := t.r.Trace(ctx, t.project, trace)
	if err != nil {
		return err
	}
	for _, ref := range refs[:min(len(refs), maxPathSessions)] {
		if ref.FirstNs >= t.to || ref.LastNs < t.from {
			continue
		}
		rows, err := t.r.Spans(ctx, store.SpanQuery{
			Project: t.project, Session: ref.Session, Trace: trace, From: t.from, To: t.to, Overlapping: true, Limit: maxPathSpans,
		})
		if err != nil {
			return err
		}
		for i := range rows {
			x := &rows[i]
			if t.spans[x.Span.Span] != nil || len(t.order) >= maxPathSpans || x.Operation == semconv.CUDAOperationSession || x.Operation == semconv.CUDAOperationDeepWindow {
				continue
			}
			s := &pathSpan{
				session: ref.Session, start: x.StartNs, end: max(x.StartNs, x.EndNs), id: x.Span.Span, parent: x.Parent, trace: trace, name: x.Name,
				client: x.Kind == spanKindClient, links: x.Links,
			}
			t.spans[s.id] = s
			t.order = append(t.order, s)
		}
	}
	return nil
}

// follow loads the traces to which spans of the first one link, and puts the linked spans below them.
func (t *pathTrace) follow(ctx context.Context, decode func([]byte) []SpanLink) error {
	followed := 0
	for _, s := range slices.Clone(t.order) {
		if len(s.links) == 0 || s.end <= t.from || s.start >= t.to {
			continue
		}
		for _, l := range decode(s.links) {
			if followed++; followed > maxPathLinks {
				return nil
			}
			if err := t.load(ctx, l.Trace); err != nil {
				return err
			}
			if to := t.spans[l.Span]; to != nil && to.trace != s.trace && to.parent != s.id {
				to.parent = s.id
			}
		}
	}
	return nil
}

// connect sorts the children of each span.
func (t *pathTrace) connect() {
	for _, s := range t.order {
		if p := t.spans[s.parent]; p != nil && p != s && s.parent != 0 {
			p.children = append(p.children, s)
		}
	}
	for _, s := range t.order {
		slices.SortStableFunc(s.children, func(a, b *pathSpan) int {
			return cmp.Or(cmp.Compare(b.end, a.end), cmp.Compare(b.start, a.start))
		})
	}
}

// descend adds the self times of a span and of those below it in [from, to), the last one first. The
// child that ends last determines when its parent could go on.
func (t *pathTrace) descend(s *pathSpan, from, to int64, above map[*pathSpan]bool, out *[]selfTime) {
	if len(above) >= store.MaxScopeDepth || above[s] {
		*out = append(*out, selfTime{from, to, s})
		return
	}
	above[s] = true
	for _, c := range s.children {
		if c.start >= to || c.end <= c.start {
			continue
		}
		end := min(c.end, to)
		if end <= from {
			break
		}
		if end < to {
			*out = append(*out, selfTime{end, to, s})
		}
		start := max(c.start, from)
		t.descend(c, start, end, above, out)
		if to = start; to <= from {
			break
		}
	}
	if to > from {
		*out = append(*out, selfTime{from, to, s})
	}
	delete(above, s)
}

// walk returns the parts of an interval in which the path is in one session, the last one first. The self
// times are a partition of it.
func (t *pathTrace) walk(ctx context.Context, self []selfTime) ([]PathPart, error) {
	session, from, to := self[0].span.session, self[len(self)-1].from, self[0].to
	w := &walker{session: session, from: from}
	shapes := map[*store.Shape]*shapeInfo{}
	for _, trace := range t.traces {
		q := store.OpQuery{Project: t.project, Session: session, Trace: trace, From: from, To: to, Overlapping: true, Limit: pageRows}
		for {
			page, err := t.r.Ops(ctx, q)
			if err != nil {
				return nil, err
			}
			for i := range page.Rows {
				row := &page.Rows[i]
				if shapes[row.ShapeRef] == nil {
					info := infoOf(row.ShapeRef)
					shapes[row.ShapeRef] = &info
				}
				w.add(row, shapes[row.ShapeRef])
			}
			if len(w.ops)+len(w.calls) > maxPathOps {
				return nil, ErrPathTooLong
			}
			if !page.More || len(page.Rows) == 0 {
				break
			}
			last := &page.Rows[len(page.Rows)-1]
			q.After = &store.OpCursor{StartNs: last.StartNs, Span: last.Span}
		}
	}
	slices.SortStableFunc(w.ops, func(a, b pathOp) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.ref.Span, b.ref.Span))
	})
	w.prepare()
	if o, end := w.host(to, false); o != nil {
		w.run(o, end)
	}
	// Time of the host belongs to the spans around it.
	var parts []PathPart
	at := 0
	for _, p := range w.parts {
		if len(p.Spans) > 0 {
			parts = append(parts, p)
			continue
		}
		for at < len(self) && self[at].from >= p.EndNs {
			at++
		}
		for i := at; i < len(self) && self[i].to > p.StartNs; i++ {
			s := &self[i]
			q := p
			q.StartNs, q.EndNs = max(p.StartNs, s.from), min(p.EndNs, s.to)
			q.Name, q.Spans = s.span.name, []Ref{{s.span.id, s.span.start, s.span.name}}
			if s.span.client && q.Kind == PathKind(Host) {
				q.Kind = PathRemote
			}
			parts = append(parts, q)
		}
	}
	return parts, nil
}
