// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"math"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
)

type sums struct {
	Kernels   int64 `json:"kernels"`
	KernelNs  int64 `json:"kernel_ns"`
	QueueNs   int64 `json:"queue_ns"`
	Copies    int64 `json:"copies"`
	CopyNs    int64 `json:"copy_ns"`
	CopyBytes int64 `json:"copy_bytes"`
}

func (s *sums) add(o *sums) {
	s.Kernels += o.Kernels
	s.KernelNs += o.KernelNs
	s.QueueNs += o.QueueNs
	s.Copies += o.Copies
	s.CopyNs += o.CopyNs
	s.CopyBytes += o.CopyBytes
}

type scopeNode struct {
	Path      uint32 `json:"path"`
	Parent    uint32 `json:"parent"`
	Depth     int    `json:"depth"`
	Name      string `json:"name"`
	Instances int64  `json:"instances"`
	WallNs    int64  `json:"wall_ns"`
	P50Ns     int64  `json:"p50_ns"`
	P99Ns     int64  `json:"p99_ns"`
	Self      *sums  `json:"self"`
	Total     *sums  `json:"total"`
	// Samples is nil for a node without samples.
	Samples *sampleSums `json:"samples,omitempty"`
	IdleNs  *int64      `json:"idle_ns,omitempty"`
}

// tree adds depths and totals. Parents come before their children.
func tree(nodes []store.ScopeNode) []*scopeNode {
	list := []*scopeNode{}
	byPath := map[uint32]*scopeNode{}
	for i := range nodes {
		n := &nodes[i]
		self := sums{n.Kernels, n.KernelNs, n.QueueNs, n.Copies, n.CopyNs, n.CopyBytes}
		total := self
		p50 := percentile(n.P50Ns, n.Instances, n.WallNs, n.WallNs)
		p99 := percentile(n.P99Ns, n.Instances, n.WallNs, n.WallNs)
		node := &scopeNode{n.Path, n.Parent, 0, n.Name, n.Instances, n.WallNs, p50, p99, &self, &total, nil, nil}
		if p := byPath[n.Parent]; p != nil && i > 0 {
			node.Depth = p.Depth + 1
		}
		byPath[n.Path] = node
		list = append(list, node)
	}
	for i := len(list) - 1; i > 0; i-- {
		if p := byPath[list[i].Parent]; p != nil {
			p.Total.add(list[i].Total)
		}
	}
	return list
}

// pathNames returns the names of each path, outermost first.
func pathNames(nodes []store.ScopeNode) map[uint32][]string {
	names := map[uint32][]string{}
	for i := range nodes {
		n := &nodes[i]
		if i == 0 {
			names[n.Path] = []string{}
			continue
		}
		names[n.Path] = append(slices.Clone(names[n.Parent]), n.Name)
	}
	return names
}

func (s *server) scopes(ctx context.Context, r *request) (any, error) {
	idle := r.boolean("idle")
	if err := r.check(); err != nil {
		return nil, err
	}
	nodes, err := s.store.Scopes(ctx, r.project, r.session)
	if err != nil {
		return nil, err
	}
	list := tree(nodes)
	if err := s.addSamples(ctx, r, list); err != nil {
		return nil, err
	}
	if idle {
		err = s.addIdle(ctx, r, list)
	}
	return map[string]any{"nodes": list}, err
}

const (
	// maxIdle is the number of scopes whose idle time an answer has or sums, fewIdle that of a session with
	// more than maxIdleKernels kernels.
	maxIdle, fewIdle = 10_000, 32
	// maxIdleKernels is about the number of kernels that the store reads for it, and idleRange the interval
	// around each bound of a [store.BusyQuery] whose kernels it reads. 32 scopes of a session with 100 M kernels take
	// 0.1 s.
	maxIdleKernels = 150_000
	idleRange      = 1 << 24
)

// maxIdle returns the number of scopes of the session whose idle time an answer can have.
func (r *request) maxIdle() int {
	kernels := r.info.Operations[store.OpKernel]
	if kernels <= maxIdleKernels {
		return maxIdle
	}
	each := 2 * idleRange * float64(kernels) / float64(max(r.info.LastNs-r.info.FirstNs, idleRange))
	return int(min(fewIdle, maxIdleKernels/each))
}

func (r *request) idle() store.BusyQuery {
	return store.BusyQuery{Project: r.project, Session: r.session, Idle: true}
}

// addIdle adds the idle time of the nodes whose instances are all among the longest spans. So a large session
// has that of its outer scopes.
func (s *server) addIdle(ctx context.Context, r *request, nodes []*scopeNode) error {
	n := r.maxIdle()
	if n == 0 {
		return nil
	}
	spans, err := s.store.Spans(ctx, store.SpanQuery{Project: r.project, Session: r.session, Longest: true, Limit: n})
	if err != nil {
		return err
	}
	found := map[uint32]int64{}
	for i := range spans {
		found[spans[i].Path]++
	}
	sums := map[uint32]*int64{}
	for _, node := range nodes {
		if node.Instances > 0 && node.Instances == found[node.Path] {
			node.IdleNs = new(int64)
			sums[node.Path] = node.IdleNs
		}
	}
	inside := r.idle()
	var to []*int64
	for i := range spans {
		if sum := sums[spans[i].Path]; sum != nil {
			inside.Intervals = append(inside.Intervals, store.Interval{From: spans[i].StartNs, To: spans[i].EndNs})
			to = append(to, sum)
		}
	}
	ns, err := s.store.Busy(ctx, inside)
	for i := range ns {
		*to[i] += ns[i]
	}
	return err
}

type instanceAnswer struct {
	Name       string `json:"name"`
	Span       string `json:"span,omitempty"`
	Parent     string `json:"parent,omitempty"`
	Trace      string `json:"trace,omitempty"`
	Start      int64  `json:"start"`
	DurationNs int64  `json:"duration_ns"`
	Kernels    int64  `json:"kernels"`
	KernelNs   int64  `json:"kernel_ns"`
	QueueNs    int64  `json:"queue_ns"`
	Copies     int64  `json:"copies"`
	CopyNs     int64  `json:"copy_ns"`
	First      *int64 `json:"first,omitempty"`
	Last       *int64 `json:"last,omitempty"`
	IdleNs     *int64 `json:"idle_ns,omitempty"`
}

func (s *server) instances(ctx context.Context, r *request) (any, error) {
	q := store.InstanceQuery{Project: r.project, Session: r.session, Path: r.id("path", r.PathValue("path"))}
	q.From, q.To = r.interval()
	q.Name = r.text("name", 10_000)
	q.Sort = store.InstanceSort(r.choice("sort", "start", "wall", "device", "queue"))
	limit := int(r.integer("limit", 100, 1, 9999))
	q.Limit = limit + 1
	idle := r.boolean("idle")
	if err := r.check(); err != nil {
		return nil, err
	}
	nodes, err := s.store.Scopes(ctx, r.project, r.session)
	if err != nil {
		return nil, err
	}
	names, ok := pathNames(nodes)[q.Path]
	if !ok {
		return nil, errNoPath
	}
	found, err := s.store.Instances(ctx, q)
	if err != nil {
		return nil, err
	}
	list := []instanceAnswer{}
	inside := r.idle()
	for _, i := range found[:min(len(found), limit)] {
		a := instanceAnswer{i.Name, parentText(i.Span), parentText(i.Parent), traceText(i.Trace), i.StartNs - r.base, max(i.EndNs-i.StartNs, 0),
			i.Kernels, i.KernelNs, i.QueueNs, i.Copies, i.CopyNs, nil, nil, nil}
		if i.Kernels+i.Copies > 0 {
			a.First, a.Last = r.offset(store.Some(i.FirstNs)), r.offset(store.Some(i.LastNs))
		}
		list = append(list, a)
		inside.Intervals = append(inside.Intervals, store.Interval{From: i.StartNs, To: i.EndNs})
	}
	if idle {
		inside.Intervals = inside.Intervals[:min(len(inside.Intervals), r.maxIdle())]
		ns, err := s.store.Busy(ctx, inside)
		if err != nil {
			return nil, err
		}
		for i := range ns {
			list[i].IdleNs = &ns[i]
		}
	}
	return map[string]any{"base": r.baseText(), "path": q.Path, "names": names, "instances": list, "truncated": len(found) > limit}, nil
}

func (s *server) spans(ctx context.Context, r *request) (any, error) {
	q := store.SpanQuery{Project: r.project, Session: r.session, Overlapping: r.boolean("overlapping")}
	q.From, q.To = r.interval()
	q.Trace, q.Parent = r.traceID("trace"), r.spanID("parent")
	q.Name, q.Operation = r.text("name", 10_000), r.text("operation", 1000)
	q.MinNs = r.integer("min_ns", 0, 0, math.MaxInt64)
	q.Longest = r.choice("sort", "start", "duration") == 1
	limit := int(r.integer("limit", 1000, 1, 20_000))
	q.Limit = min(limit+1, 20_000)
	if err := r.check(); err != nil {
		return nil, err
	}
	found, err := s.store.Spans(ctx, q)
	if err != nil {
		return nil, err
	}
	list := []*spanAnswer{}
	for i := range found[:min(len(found), limit)] {
		list = append(list, r.span(&found[i]))
	}
	return map[string]any{"base": r.baseText(), "spans": list, "truncated": len(found) > limit || len(found) == 20_000}, nil
}

type eventAnswer struct {
	Time       int64          `json:"time"`
	Name       string         `json:"name"`
	Attributes map[string]any `json:"attributes"`
}

type linkAnswer struct {
	Trace      string         `json:"trace"`
	Span       string         `json:"span"`
	Attributes map[string]any `json:"attributes"`
}

type detailAnswer struct {
	Base            string           `json:"base"`
	Operation       *operationAnswer `json:"operation,omitempty"`
	Span            *spanAnswer      `json:"span,omitempty"`
	Shape           *shapeAnswer     `json:"shape,omitempty"`
	Lane            *laneAnswer      `json:"lane,omitempty"`
	Stack           []string         `json:"stack,omitempty"`
	Attributes      attributes       `json:"attributes"`
	Resource        attributes       `json:"resource"`
	Instrumentation string           `json:"instrumentation,omitempty"`
	Parents         []*spanAnswer    `json:"parents"`
	Previous        *operationAnswer `json:"previous,omitempty"`
	Next            *operationAnswer `json:"next,omitempty"`
	Shapes          []*shapeAnswer   `json:"shapes,omitempty"`
	Events          []eventAnswer    `json:"events,omitempty"`
	Links           []linkAnswer     `json:"links,omitempty"`
}

func (s *server) span(ctx context.Context, r *request) (any, error) {
	id := store.SpanID(r.number("span", r.PathValue("span")))
	at := int64(0)
	if _, ok := r.values["at"]; ok {
		at = r.integer("at", 0, -r.base, store.MaxTimeNs-r.base) + r.base
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	op, span, err := s.store.Span(ctx, r.project, r.session, id, at)
	if err != nil {
		return nil, err
	}
	a := &detailAnswer{Base: r.baseText()}
	if span != nil {
		a.Span = r.span(span)
		a.Attributes, a.Resource, a.Instrumentation = attributes(span.Attrs), attributes(span.OriginRef.Resource), span.OriginRef.ScopeName
		a.Parents, err = s.parents(ctx, r, span.Trace, span.Parent, span.StartNs)
		if err == nil {
			err = r.eventsAndLinks(a, span)
		}
		return a, err
	}
	a.Operation, a.Shape = r.operation(op), shape(op.Shape, op.ShapeRef)
	a.Attributes, a.Resource, a.Instrumentation = attributes(op.Attrs), attributes(op.OriginRef.Resource), op.OriginRef.ScopeName
	if op.StackText != "" {
		a.Stack = strings.Split(op.StackText, "\n")
	}
	started := op.StartNs
	if op.LaunchStartNs.OK {
		started = op.LaunchStartNs.V
	}
	if a.Parents, err = s.parents(ctx, r, op.PlaceRef.Trace, op.PlaceRef.Parent, started); err != nil {
		return nil, err
	}
	lanes, err := s.store.Lanes(ctx, r.project, r.session)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(lanes, func(l store.LaneInfo) bool { return l.ID == op.Lane }); i >= 0 {
		a.Lane = r.lane(&lanes[i])
	}
	return a, s.neighbours(ctx, r, a, op)
}

// neighbours finds the operations before and after one in its lane.
func (s *server) neighbours(ctx context.Context, r *request, a *detailAnswer, op *store.OpRow) error {
	shapes := map[uint32]*store.Shape{}
	q := store.OpQuery{Project: r.project, Session: r.session, Lanes: []uint32{op.Lane}, Limit: 1,
		From: op.StartNs, After: &store.OpCursor{StartNs: op.StartNs, Span: op.Op.Span}}
	page, err := s.store.Ops(ctx, q)
	if err != nil {
		return err
	}
	if len(page.Rows) > 0 {
		a.Next = r.operation(&page.Rows[0])
		shapes[page.Rows[0].Shape] = page.Rows[0].ShapeRef
	}
	// The store has no descending order, so the interval before the operation grows until it has one.
	for reach := int64(100_000); op.StartNs > 0; reach *= 16 {
		q = store.OpQuery{Project: r.project, Session: r.session, Lanes: q.Lanes, Limit: 20_000, From: max(op.StartNs-reach, 0), To: op.StartNs}
		if page, err = s.store.Ops(ctx, q); err != nil {
			return err
		}
		if n := len(page.Rows); n > 0 && !page.More {
			a.Previous = r.operation(&page.Rows[n-1])
			shapes[page.Rows[n-1].Shape] = page.Rows[n-1].ShapeRef
		}
		if len(page.Rows) > 0 || op.StartNs-reach < r.info.FirstNs {
			break
		}
	}
	a.Shapes = shapeList(shapes)
	return nil
}

// parents returns the enclosing spans, outermost first. Spans of other sessions are absent.
func (s *server) parents(ctx context.Context, r *request, trace store.TraceID, parent store.SpanID, at int64) ([]*spanAnswer, error) {
	chain := []*spanAnswer{}
	if parent == 0 || trace == (store.TraceID{}) {
		return chain, nil
	}
	var byID map[store.SpanID]*store.SpanRow
	// Most enclosing spans are open at this time. The whole trace is the second try.
	for _, interval := range [][2]int64{{max(at, 1), at + 1}, {0, 0}} {
		found, err := s.store.Spans(ctx, store.SpanQuery{Project: r.project, Session: r.session, Trace: trace, Overlapping: true,
			From: interval[0], To: interval[1], Limit: 20_000})
		if err != nil {
			return nil, err
		}
		byID = map[store.SpanID]*store.SpanRow{}
		for i := range found {
			if byID[found[i].Span.Span] == nil {
				byID[found[i].Span.Span] = &found[i]
			}
		}
		if byID[parent] != nil {
			break
		}
	}
	for p := byID[parent]; p != nil && len(chain) < store.MaxScopeDepth; p = byID[p.Parent] {
		chain = append(chain, r.span(p))
		if p.Parent == 0 {
			break
		}
	}
	slices.Reverse(chain)
	return chain, nil
}

func (r *request) eventsAndLinks(a *detailAnswer, p *store.SpanRow) error {
	span := ptrace.NewSpan()
	if err := rows.DecodeEvents(p.Events, span.Events()); err != nil {
		return err
	}
	if err := rows.DecodeLinks(p.Links, span.Links()); err != nil {
		return err
	}
	for _, e := range span.Events().All() {
		a.Events = append(a.Events, eventAnswer{int64(e.Timestamp()) - r.base, e.Name(), plainMap(e.Attributes())})
	}
	for _, l := range span.Links().All() {
		a.Links = append(a.Links, linkAnswer{l.TraceID().String(), l.SpanID().String(), plainMap(l.Attributes())})
	}
	return nil
}

// plainMap returns attributes for JSON.
func plainMap(m pcommon.Map) map[string]any {
	out := map[string]any{}
	for k, v := range m.All() {
		if v.Type() == pcommon.ValueTypeDouble {
			out[k] = finite(v.Double())
			continue
		}
		if v.Type() == pcommon.ValueTypeInt || v.Type() == pcommon.ValueTypeBool {
			out[k] = v.AsRaw()
			continue
		}
		out[k] = v.AsString()
	}
	return out
}
