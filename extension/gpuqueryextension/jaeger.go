// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/semconv"
)

// The routes of Jaeger's api_v3. Traces are OTLP JSON in a field "result".

const (
	// maxTraceOps is the number of operations of a trace. Jaeger's UI cannot show more.
	maxTraceOps = 10_000
	// maxSearchSpans ends the list of a search's traces.
	maxSearchSpans = 100_000
	jaegerSessions = 20
	jaegerSpans    = 20_000
)

func (s *server) jaegerServices(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	names, err := s.serviceNames(ctx, r)
	return map[string]any{"services": names}, err
}

func (s *server) serviceNames(ctx context.Context, r *request) ([]string, error) {
	list, err := s.store.Sessions(ctx, store.SessionQuery{Project: r.project, Limit: 1000})
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i := range list {
		if list[i].Service != "" {
			names[list[i].Service] = true
		}
	}
	return all(slices.Sorted(maps.Keys(names))), nil
}

type jaegerOperation struct {
	Name     string `json:"name"`
	SpanKind string `json:"spanKind"`
}

func (s *server) jaegerOperations(ctx context.Context, r *request) (any, error) {
	service, kind := r.text("service", 1000), r.text("span_kind", 100)
	if service == "" {
		r.fail("service", "is required")
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	list, err := s.serviceOperations(ctx, r, service, kind)
	return map[string]any{"operations": list}, err
}

// serviceOperations returns the operations of a kind, or of all kinds for "".
func (s *server) serviceOperations(ctx context.Context, r *request, service, kind string) ([]jaegerOperation, error) {
	found := map[jaegerOperation]bool{}
	err := s.eachSession(ctx, r, store.SessionQuery{Service: service}, func(session string) (bool, error) {
		spans, err := s.store.Spans(ctx, store.SpanQuery{Project: r.project, Session: session, Limit: jaegerSpans})
		for i := range spans {
			o := jaegerOperation{spans[i].Name, nameOf(spanKinds[:], spans[i].Kind)}
			if kind == "" || strings.EqualFold(kind, o.SpanKind) {
				found[o] = true
			}
		}
		return true, err
	})
	if err != nil {
		return nil, err
	}
	list := slices.SortedFunc(maps.Keys(found), func(a, b jaegerOperation) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.SpanKind, b.SpanKind))
	})
	return all(list), nil
}

// eachSession calls f for the newest sessions until it returns false.
func (s *server) eachSession(ctx context.Context, r *request, q store.SessionQuery, f func(string) (bool, error)) error {
	q.Project, q.Limit = r.project, jaegerSessions
	list, err := s.store.Sessions(ctx, q)
	if err != nil {
		return err
	}
	for i := range list {
		more, err := f(list[i].ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) { // deleted meanwhile
			return err
		}
		if !more {
			return nil
		}
	}
	return nil
}

func (r *request) rfc3339(name string) int64 {
	v, ok := r.raw(name)
	if !ok || v == "" {
		return 0
	}
	t, err := time.Parse(time.RFC3339Nano, v)
	if err != nil || t.UnixNano() < 0 || t.Year() > 2115 {
		r.fail(name, "must be a time from 1970 to 2115 as in RFC 3339")
		return 0
	}
	return t.UnixNano()
}

func (r *request) duration(name string) int64 {
	v, ok := r.raw(name)
	if !ok || v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		r.fail(name, "must be a duration such as 1.5ms")
	}
	return int64(d)
}

// foundTrace is a trace that matches a search.
type foundTrace struct {
	id    store.TraceID
	start int64
}

// traceSearch has the parameters of a search. Of the query it uses all but the session.
type traceSearch struct {
	service string
	query   store.SpanQuery
	// longest is the longest duration in nanoseconds, or 0 for any.
	longest int64
	// most is the number of traces.
	most int
}

// interval sets the times to those of two parameters, which read reads.
func (x *traceSearch) interval(r *request, read func(string) int64, start, end string) {
	x.query.From, x.query.To = read(start), read(end)
	if x.query.To != 0 && x.query.To <= x.query.From {
		r.fail(end, "must be above %s", start)
	}
}

func (s *server) jaegerSearch(ctx context.Context, r *request) ([]foundTrace, error) {
	x := traceSearch{service: r.text("query.service_name", 1000)}
	if x.service == "" {
		r.fail("query.service_name", "is required")
	}
	x.query.Name = r.text("query.operation_name", 10_000)
	if name := r.text("query.span_name", 10_000); name != "" { // as newer versions of the UI send it
		x.query.Name = name
	}
	x.interval(r, r.rfc3339, "query.start_time_min", "query.start_time_max")
	x.query.MinNs = r.duration("query.duration_min")
	x.longest = r.duration("query.duration_max")
	x.most = int(r.integer("query.num_traces", 20, 1, 1000))
	if _, ok := r.values["query.search_depth"]; ok {
		x.most = int(r.integer("query.search_depth", 20, 1, 1000))
	}
	r.noAttributes("query.attributes")
	r.boolean("query.raw_traces")
	if err := r.check(); err != nil {
		return nil, err
	}
	return s.findTraces(ctx, r, &x)
}

func (r *request) noAttributes(name string) {
	if v := r.text(name, 10_000); v != "" && v != "{}" {
		r.fail(name, "is not supported")
	}
}

// findTraces returns the newest traces first.
func (s *server) findTraces(ctx context.Context, r *request, x *traceSearch) ([]foundTrace, error) {
	q := x.query
	q.Project, q.Limit = r.project, jaegerSpans
	traces := map[store.TraceID]int64{}
	err := s.eachSession(ctx, r, store.SessionQuery{Service: x.service, From: q.From, To: q.To}, func(session string) (bool, error) {
		q.Session = session
		spans, err := s.store.Spans(ctx, q)
		for i := range spans {
			p := &spans[i]
			if p.Trace == (store.TraceID{}) || x.longest != 0 && p.EndNs-p.StartNs > x.longest {
				continue
			}
			if start, ok := traces[p.Trace]; !ok || p.StartNs < start {
				traces[p.Trace] = p.StartNs
			}
		}
		return len(traces) < x.most, err
	})
	if err != nil {
		return nil, err
	}
	var list []foundTrace
	for id, start := range traces {
		list = append(list, foundTrace{id, start})
	}
	slices.SortFunc(list, func(a, b foundTrace) int {
		return cmp.Or(cmp.Compare(b.start, a.start), slices.Compare(a.id[:], b.id[:]))
	})
	return list[:min(len(list), x.most)], nil
}

func (s *server) jaegerTraces(ctx context.Context, r *request) (any, error) {
	list, err := s.jaegerSearch(ctx, r)
	if err != nil {
		return nil, err
	}
	td := ptrace.NewTraces()
	for _, t := range list {
		if err := s.appendTrace(ctx, r, t.id, td); err != nil {
			return nil, err
		}
		if td.SpanCount() >= s.searchSpans {
			break
		}
	}
	return resultOf(td)
}

type jaegerService struct {
	Name           string `json:"name"`
	SpanCount      int    `json:"spanCount"`
	ErrorSpanCount int    `json:"errorSpanCount"`
}

// jaegerSummary is TraceSummary of api_v3. The UI reads the id as traceID, the description has traceId.
type jaegerSummary struct {
	TraceID         string           `json:"traceID"`
	ID              string           `json:"traceId"`
	RootService     string           `json:"rootServiceName"`
	RootOperation   string           `json:"rootOperationName"`
	MinStart        uint64           `json:"minStartTimeUnixNano,string"`
	MaxEnd          uint64           `json:"maxEndTimeUnixNano,string"`
	SpanCount       int              `json:"spanCount"`
	ErrorSpanCount  int              `json:"errorSpanCount"`
	OrphanSpanCount int              `json:"orphanSpanCount"`
	Services        []*jaegerService `json:"services"`
}

func (s *server) jaegerSummaries(ctx context.Context, r *request) (any, error) {
	list, err := s.jaegerSearch(ctx, r)
	if err != nil {
		return nil, err
	}
	summaries := []*jaegerSummary{}
	for _, t := range list {
		td := ptrace.NewTraces()
		if err := s.appendTrace(ctx, r, t.id, td); err != nil {
			return nil, err
		}
		summaries = append(summaries, summarize(hex.EncodeToString(t.id[:]), td))
	}
	return map[string]any{"summaries": summaries}, nil
}

// summarize sums up a trace. Its root is the earliest span whose parent is not in the trace, and
// preferably one without a parent.
func summarize(id string, td ptrace.Traces) *jaegerSummary {
	out := &jaegerSummary{TraceID: id, ID: id, MinStart: math.MaxUint64}
	known := map[pcommon.SpanID]bool{}
	services := map[string]*jaegerService{}
	each := func(f func(service string, p ptrace.Span)) {
		for _, rs := range td.ResourceSpans().All() {
			service := ""
			if v, ok := rs.Resource().Attributes().Get(semconv.ServiceName); ok {
				service = v.AsString()
			}
			for _, ss := range rs.ScopeSpans().All() {
				for _, p := range ss.Spans().All() {
					f(service, p)
				}
			}
		}
	}
	each(func(_ string, p ptrace.Span) { known[p.SpanID()] = true })
	rootStart, rootIsTop := uint64(math.MaxUint64), false
	each(func(service string, p ptrace.Span) {
		x := services[service]
		if x == nil {
			x = &jaegerService{Name: service}
			services[service] = x
		}
		x.SpanCount++
		out.SpanCount++
		if p.Status().Code() == ptrace.StatusCodeError {
			x.ErrorSpanCount++
			out.ErrorSpanCount++
		}
		start := uint64(p.StartTimestamp())
		out.MinStart = min(out.MinStart, start)
		out.MaxEnd = max(out.MaxEnd, uint64(p.EndTimestamp()))
		top := p.ParentSpanID().IsEmpty()
		if !top && known[p.ParentSpanID()] {
			return
		}
		if !top {
			out.OrphanSpanCount++
		}
		if top && !rootIsTop || top == rootIsTop && start < rootStart {
			rootStart, rootIsTop = start, top
			out.RootService, out.RootOperation = service, p.Name()
		}
	})
	out.Services = slices.SortedFunc(maps.Values(services), func(a, b *jaegerService) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (s *server) jaegerTrace(ctx context.Context, r *request) (any, error) {
	id := r.jaegerTraceID("trace_id", r.PathValue("trace"))
	r.rfc3339("start_time")
	r.rfc3339("end_time")
	r.boolean("raw_traces")
	if err := r.check(); err != nil {
		return nil, err
	}
	td, err := s.traceByID(ctx, r, id)
	if err != nil {
		return nil, err
	}
	return resultOf(td)
}

// jaegerTraceID reads an id as Jaeger's UI writes it: without leading zeros.
func (r *request) jaegerTraceID(name, v string) store.TraceID {
	return r.traceOf(name, strings.Repeat("0", max(32-len(v), 0))+v)
}

// traceByID returns a trace, or an error that unwraps to status 404.
func (s *server) traceByID(ctx context.Context, r *request, id store.TraceID) (ptrace.Traces, error) {
	td := ptrace.NewTraces()
	if err := s.appendTrace(ctx, r, id, td); err != nil {
		return td, err
	}
	if td.SpanCount() == 0 {
		return td, notFound("the trace %s does not exist", hex.EncodeToString(id[:]))
	}
	return td, nil
}

func resultOf(td ptrace.Traces) (any, error) {
	body, err := (&ptrace.JSONMarshaler{}).MarshalTraces(td)
	if err != nil {
		return nil, err
	}
	return map[string]json.RawMessage{"result": body}, nil
}

// appendTrace adds the spans of a trace, and at most maxTraceOps operations of each session.
func (s *server) appendTrace(ctx context.Context, r *request, id store.TraceID, td ptrace.Traces) error {
	refs, err := s.store.Trace(ctx, r.project, id)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		groups := map[string]ptrace.SpanSlice{}
		into := func(o *store.Origin) ptrace.Span {
			key := string(o.Resource.Append(nil)) + "\x00" + o.ScopeName + "\x00" + o.ScopeVersion
			list, ok := groups[key]
			if !ok {
				rs := td.ResourceSpans().AppendEmpty()
				ss := rs.ScopeSpans().AppendEmpty()
				rows.AppendOrigin(o, rs.Resource(), ss.Scope())
				list = ss.Spans()
				groups[key] = list
			}
			return list.AppendEmpty()
		}
		spans, err := s.store.Spans(ctx, store.SpanQuery{Project: r.project, Session: ref.Session, Trace: id, Limit: jaegerSpans})
		if err != nil {
			return err
		}
		for i := range spans {
			if err := rows.AppendSpan(&spans[i], into(spans[i].OriginRef)); err != nil {
				return err
			}
		}
		page, err := s.store.Ops(ctx, store.OpQuery{Project: r.project, Session: ref.Session, Trace: id, Limit: maxTraceOps})
		if err != nil {
			return err
		}
		for i := range page.Rows {
			rows.AppendOp(&page.Rows[i], into(page.Rows[i].OriginRef))
		}
	}
	return nil
}
