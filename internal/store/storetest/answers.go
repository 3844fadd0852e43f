// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

func duration(o *store.OpRow) int64       { return end(o.StartNs, o.EndNs) - o.StartNs }
func spanDuration(p *store.SpanRow) int64 { return end(p.StartNs, p.EndNs) - p.StartNs }

// within reports whether a row is in the interval of a query.
func within(from, to, start int64) bool { return start >= from && (to == 0 || start < to) }

// touches is within for queries with Overlapping.
func touches(from, to, start, end int64, overlapping bool) bool {
	return within(from, to, start) || overlapping && start < from && end > from
}

func compareInt(a, b store.Int) int {
	if a.OK != b.OK {
		if b.OK {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.V, b.V)
}

func compareLanes(a, b *store.Lane) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), compareInt(a.DeviceIndex, b.DeviceIndex),
		compareInt(a.Context, b.Context), compareInt(a.Stream, b.Stream), cmp.Compare(a.Class, b.Class),
		cmp.Compare(a.Key, b.Key))
}

// sortedOps returns all operations by start and span. Callers do not change the list.
func (s *session) sortedOps() []*store.OpRow {
	if s.derived.ops == nil {
		s.derived.ops = slices.SortedFunc(maps.Values(s.ops), func(a, b *store.OpRow) int {
			return cmp.Or(cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.Op.Span, b.Op.Span))
		})
	}
	return s.derived.ops
}

// sortedSpans returns all spans by start and span. Callers do not change the list.
func (s *session) sortedSpans() []*store.SpanRow {
	if s.derived.spans == nil {
		s.derived.spans = slices.SortedFunc(maps.Values(s.spans), func(a, b *store.SpanRow) int {
			return cmp.Or(cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.Span.Span, b.Span.Span))
		})
	}
	return s.derived.spans
}

// Lanes implements [store.Reader].
func (m *Memory) Lanes(ctx context.Context, project, id string) ([]store.LaneInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, project, id, false)
	if err != nil {
		return nil, err
	}
	return clone(s.laneInfos()), nil
}

func (s *session) laneInfos() []store.LaneInfo {
	infos := map[uint32]*store.LaneInfo{}
	for _, o := range s.sortedOps() {
		l := infos[o.Lane]
		if l == nil {
			l = &store.LaneInfo{ID: o.Lane, Lane: *o.LaneRef, FirstNs: o.StartNs}
			infos[o.Lane] = l
		}
		l.Count++
		l.BusyNs += duration(o)
		l.LastNs = max(l.LastNs, end(o.StartNs, o.EndNs))
	}
	var list []store.LaneInfo
	for _, l := range infos {
		list = append(list, *l)
	}
	slices.SortFunc(list, func(a, b store.LaneInfo) int { return compareLanes(&a.Lane, &b.Lane) })
	return list
}

// Shapes implements [store.Reader].
func (m *Memory) Shapes(ctx context.Context, project, id string, ids []uint32) (map[uint32]*store.Shape, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, project, id, false)
	if err == nil && len(ids) > 10_000 {
		err = fmt.Errorf("%d shapes: %w", len(ids), store.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	out := map[uint32]*store.Shape{}
	for _, o := range s.sortedOps() {
		if slices.Contains(ids, o.Shape) {
			out[o.Shape] = o.ShapeRef
		}
	}
	return clone(out), nil
}

// Timeline implements [store.Reader].
func (m *Memory) Timeline(ctx context.Context, q store.TimelineQuery) (store.Timeline, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, false)
	if err != nil {
		return store.Timeline{}, err
	}
	if _, err = limits(q.From, q.To, 0, 0, 0); err == nil && (q.Bins < 1 || q.Bins > 4000) {
		err = fmt.Errorf("%d bins: %w", q.Bins, store.ErrInvalid)
	}
	if err != nil {
		return store.Timeline{}, err
	}
	from, to := q.From, q.To
	ops := s.sortedOps()
	if len(ops) > 0 && from == 0 {
		from = ops[0].StartNs
	}
	if q.To == 0 {
		for _, o := range ops {
			to = max(to, end(o.StartNs, o.EndNs)+1)
		}
	}
	if len(ops) == 0 || to <= from {
		return store.Timeline{}, nil
	}
	level, start, width := store.PlanTimeline(from, to, q.Bins)
	answer := store.Timeline{From: start, Width: width}
	if s.dropped && level == 0 {
		return answer, nil
	}
	for _, lane := range s.laneInfos() {
		if len(q.Lanes) > 0 && !slices.Contains(q.Lanes, lane.ID) {
			continue
		}
		bins := make([]store.Bin, (to-start+width-1)/width)
		keys := make([]uint64, len(bins)) // of TopShape
		for _, o := range ops {
			if o.Lane == lane.ID {
				addToBins(bins, keys, start, width, o)
			}
		}
		for i, b := range bins {
			if b.Count != 0 || b.BusyNs != 0 {
				b.Lane, b.Index = lane.ID, uint32(i)
				answer.Bins = append(answer.Bins, b)
			}
		}
	}
	return answer, nil
}

// addToBins adds an operation to the bins that it touches. Bin 0 begins at start.
func addToBins(bins []store.Bin, keys []uint64, start, width int64, o *store.OpRow) {
	last := end(o.StartNs, o.EndNs)
	for i := max((o.StartNs-start)/width, 0); i < int64(len(bins)); i++ {
		b, from := &bins[i], start+i*width
		if from > last {
			return
		}
		b.BusyNs += max(min(last, from+width)-max(o.StartNs, from), 0)
		if o.StartNs < from || o.StartNs >= from+width {
			continue
		}
		b.Count++
		longer := cmp.Or(cmp.Compare(duration(o), b.TopNs), cmp.Compare(b.TopStart, o.StartNs),
			cmp.Compare(keys[i], o.ShapeRef.Key))
		if b.Count == 1 || longer > 0 {
			b.TopNs, b.TopShape, b.TopStart, keys[i] = duration(o), o.Shape, o.StartNs, o.ShapeRef.Key
		}
	}
}

// Ops implements [store.Reader].
func (m *Memory) Ops(ctx context.Context, q store.OpQuery) (store.OpPage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, true)
	if err != nil {
		return store.OpPage{}, err
	}
	limit, err := limits(q.From, q.To, q.Limit, 1000, 20_000)
	if err == nil && (q.MinNs < 0 || q.MaxNs < 0 || (q.Path != nil || q.Below) && q.Session == "") {
		err = fmt.Errorf("operations: %w", store.ErrInvalid)
	}
	if err != nil || s.dropped {
		return store.OpPage{}, err
	}
	t := s.tree()
	value := func(o *store.OpRow) int64 {
		switch {
		case q.Sort == store.ByDuration:
			return duration(o)
		case q.Sort == store.ByQueue && o.QueueNs.OK:
			return o.QueueNs.V
		case q.Sort == store.ByQueue:
			return math.MinInt64
		}
		return 0
	}
	order := func(av, as int64, ai store.SpanID, bv, bs int64, bi store.SpanID) int {
		return cmp.Or(cmp.Compare(bv, av), cmp.Compare(as, bs), cmp.Compare(ai, bi))
	}
	var rows []store.OpRow
	for _, o := range s.sortedOps() {
		if !touches(q.From, q.To, o.StartNs, end(o.StartNs, o.EndNs), q.Overlapping) ||
			len(q.Operations) > 0 && !slices.Contains(q.Operations, o.ShapeRef.Operation) ||
			len(q.Lanes) > 0 && !slices.Contains(q.Lanes, o.Lane) ||
			len(q.Shapes) > 0 && !slices.Contains(q.Shapes, o.Shape) ||
			q.Name != "" && o.ShapeRef.Name != q.Name || q.Parent != 0 && o.PlaceRef.Parent != q.Parent && !(q.Below && slices.Contains(t.above(o), q.Parent)) ||
			q.Trace != (store.TraceID{}) && o.PlaceRef.Trace != q.Trace ||
			duration(o) < q.MinNs || q.MaxNs > 0 && duration(o) > q.MaxNs ||
			q.Path != nil && (q.Direct && s.path(t.opPath(o)) != *q.Path || !t.below(t.opPath(o), *q.Path)) ||
			q.Stack != nil && q.StackExact && o.StackText != *q.Stack ||
			q.Stack != nil && !q.StackExact && (o.StackText == "" || o.StackText != *q.Stack && !strings.HasSuffix(o.StackText, "\n"+*q.Stack)) {
			continue
		}
		if a := q.After; a != nil {
			after := a.Value
			if q.Sort == store.ByStart {
				after = 0
			}
			if order(value(o), o.StartNs, o.Op.Span, after, a.StartNs, a.Span) <= 0 {
				continue
			}
		}
		rows = append(rows, *o)
	}
	slices.SortFunc(rows, func(a, b store.OpRow) int {
		return order(value(&a), a.StartNs, a.Op.Span, value(&b), b.StartNs, b.Op.Span)
	})
	page := store.OpPage{Rows: first(rows, limit), More: len(rows) > limit}
	if q.Session != "" {
		page.Shapes = map[uint32]*store.Shape{}
		for _, r := range page.Rows {
			page.Shapes[r.Shape] = r.ShapeRef
		}
	}
	return clone(page), nil
}

// Kernels implements [store.Reader].
func (m *Memory) Kernels(ctx context.Context, q store.KernelQuery) ([]store.KernelStat, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, false)
	if err != nil {
		return nil, err
	}
	limit, err := limits(q.From, q.To, q.Limit, 50, 10_000)
	if err == nil && q.Group > store.GroupLane {
		err = fmt.Errorf("group %d: %w", q.Group, store.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	type key struct {
		name string
		id   uint32
	}
	type group struct {
		store.KernelStat
		buckets histogram
		first   *store.OpRow
		order   int
	}
	t := s.tree()
	groups := map[key]*group{}
	for _, o := range s.sortedOps() {
		if o.ShapeRef.Operation != store.OpKernel || !within(q.From, q.To, o.StartNs) ||
			!store.ContainsFold(o.ShapeRef.Name, q.Text) && !store.ContainsFold(o.ShapeRef.FullName, q.Text) ||
			q.Path != nil && !t.below(t.opPath(o), *q.Path) {
			continue
		}
		var k key
		switch q.Group {
		case store.GroupName:
			k.name = o.ShapeRef.Name
		case store.GroupShape:
			k = key{o.ShapeRef.Name, o.Shape}
		case store.GroupPath:
			k.id = s.path(t.opPath(o))
		case store.GroupLane:
			k.id = o.Lane
		}
		g := groups[k]
		if g == nil {
			g = &group{KernelStat: store.KernelStat{Name: k.name, ID: k.id}, buckets: histogram{}, first: o}
			groups[k] = g
		}
		g.Count++
		g.SumNs += duration(o)
		g.MaxNs = max(g.MaxNs, duration(o))
		if o.QueueNs.OK {
			g.QueueNs += o.QueueNs.V
		}
		g.buckets.add(duration(o))
	}
	if q.Group == store.GroupPath {
		for i, n := range s.scopeNodes() {
			if g := groups[key{"", n.Path}]; g != nil {
				g.order = i
			}
		}
	}
	sorted := slices.SortedFunc(maps.Values(groups), func(a, b *group) int {
		c := cmp.Or(cmp.Compare(b.SumNs, a.SumNs), cmp.Compare(a.Name, b.Name), cmp.Compare(a.order, b.order))
		switch {
		case c == 0 && q.Group == store.GroupShape:
			c = cmp.Compare(a.first.ShapeRef.Key, b.first.ShapeRef.Key)
		case c == 0 && q.Group == store.GroupLane:
			c = compareLanes(a.first.LaneRef, b.first.LaneRef)
		}
		return c
	})
	var stats []store.KernelStat
	for _, g := range first(sorted, limit) {
		g.P50Ns, g.P99Ns = g.buckets.percentile(50), g.buckets.percentile(99)
		if q.Buckets {
			for _, b := range slices.Sorted(maps.Keys(g.buckets)) {
				g.Buckets = append(g.Buckets, store.BucketCount{Bucket: b, Count: g.buckets[b]})
			}
		}
		stats = append(stats, g.KernelStat)
	}
	return clone(stats), nil
}

// histogram counts durations by bucket.
type histogram map[uint16]int64

func (h histogram) add(ns int64) { h[store.Bucket(ns)]++ }

func (h histogram) percentile(p int64) int64 {
	var total, running int64
	for _, n := range h {
		total += n
	}
	for _, b := range slices.Sorted(maps.Keys(h)) {
		if running += h[b]; running*100 >= total*p {
			return store.BucketMiddle(b)
		}
	}
	return 0
}

// tree resolves paths. A path is a list of names.
type tree struct {
	s     *session
	byID  map[store.SpanID]*store.SpanRow
	folds store.Folds
	paths map[*store.SpanRow][]string // of spanPath, nil for spans outside the tree
}

func (s *session) tree() *tree {
	if s.derived.tree != nil {
		return s.derived.tree
	}
	t := &tree{s: s, byID: map[store.SpanID]*store.SpanRow{}, paths: map[*store.SpanRow][]string{}}
	s.derived.tree = t
	names := store.NewNumbered(nil)
	for _, o := range s.ops {
		place := o.PlaceRef
		if place.ScopePath == "" {
			names.Add(place.ScopeName)
			continue
		}
		for _, n := range strings.Split(place.ScopePath, "|") {
			names.Add(n)
		}
	}
	t.folds = names.Folds()
	for _, p := range s.spans {
		if p.Operation != semconv.CUDAOperationSession && p.Operation != semconv.CUDAOperationDeepWindow {
			names.Add(p.Name)
		}
		if old := t.byID[p.Span.Span]; old == nil || p.StartNs < old.StartNs {
			t.byID[p.Span.Span] = p
		}
	}
	return t
}

// spanPath returns the path of a span, and false if it is not in the tree.
func (t *tree) spanPath(p *store.SpanRow) ([]string, bool) {
	names, ok := t.paths[p]
	if !ok {
		names = slices.Clip(t.namesOf(p))
		t.paths[p] = names
	}
	return names, len(names) > 0
}

func (t *tree) namesOf(p *store.SpanRow) []string {
	var names []string
	for p != nil && p.Operation != semconv.CUDAOperationSession && p.Operation != semconv.CUDAOperationDeepWindow {
		if len(names) == store.MaxScopeDepth {
			return nil
		}
		names = append(names, t.folds.Name(p.Name))
		if p.Parent == 0 {
			break
		}
		p = t.byID[p.Parent]
	}
	slices.Reverse(names)
	return names
}

func (t *tree) opPath(o *store.OpRow) []string {
	place := o.PlaceRef
	if place.ScopePath != "" {
		return t.folds.Names(first(strings.Split(place.ScopePath, "|"), store.MaxScopeDepth))
	}
	if p := t.byID[place.Parent]; p != nil && place.Parent != 0 {
		if names, ok := t.spanPath(p); ok {
			return names
		}
	}
	if place.ScopeName != "" {
		return []string{t.folds.Name(place.ScopeName)}
	}
	return nil
}

// above returns the spans that an operation was launched in: its parent, and the chain of that if it is
// in the tree.
func (t *tree) above(o *store.OpRow) []store.SpanID {
	id := o.PlaceRef.Parent
	if id == 0 {
		return nil
	}
	ids := []store.SpanID{id}
	p := t.byID[id]
	if p == nil {
		return ids
	}
	if _, ok := t.spanPath(p); !ok {
		return ids
	}
	for p.Parent != 0 {
		p = t.byID[p.Parent]
		if p == nil || p.Operation == semconv.CUDAOperationSession || p.Operation == semconv.CUDAOperationDeepWindow {
			break
		}
		ids = append(ids, p.Span.Span)
	}
	return ids
}

// below reports whether names is the path with the id, or below it.
func (t *tree) below(names []string, id uint32) bool {
	at := uint32(0)
	for _, n := range names {
		if at == id {
			return true
		}
		at = assign(t.s.paths, child{at, n})
	}
	return at == id
}

// path returns the id of a path. The root has 0.
func (s *session) path(names []string) (id uint32) {
	for _, n := range names {
		id = assign(s.paths, child{id, n})
	}
	return id
}

// Scopes implements [store.Reader].
func (m *Memory) Scopes(ctx context.Context, project, id string) ([]store.ScopeNode, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, project, id, false)
	if err != nil {
		return nil, err
	}
	return clone(s.scopeNodes()), nil
}

func (s *session) scopeNodes() []store.ScopeNode {
	type node struct {
		store.ScopeNode
		names   []string
		buckets histogram
	}
	nodes := map[uint32]*node{0: {buckets: histogram{}}}
	get := func(names []string) *node {
		parent := uint32(0)
		for n := range names {
			id := assign(s.paths, child{parent, names[n]})
			if nodes[id] == nil {
				nodes[id] = &node{store.ScopeNode{Path: id, Parent: parent, Name: names[n]}, names[:n+1], histogram{}}
			}
			parent = id
		}
		return nodes[parent]
	}
	t := s.tree()
	for _, p := range s.spans {
		if names, ok := t.spanPath(p); ok {
			n := get(names)
			n.Instances++
			n.WallNs += spanDuration(p)
			n.buckets.add(spanDuration(p))
		}
	}
	for _, o := range s.ops {
		n := get(t.opPath(o))
		switch o.ShapeRef.Operation {
		case store.OpKernel:
			n.Kernels++
			n.KernelNs += duration(o)
			if o.QueueNs.OK {
				n.QueueNs += o.QueueNs.V
			}
		case store.OpCopy:
			n.Copies++
			n.CopyNs += duration(o)
			if o.Bytes.OK {
				n.CopyBytes += o.Bytes.V
			}
		}
	}
	var list []store.ScopeNode
	for _, n := range slices.SortedFunc(maps.Values(nodes), func(a, b *node) int { return slices.Compare(a.names, b.names) }) {
		n.P50Ns, n.P99Ns = n.buckets.percentile(50), n.buckets.percentile(99)
		list = append(list, n.ScopeNode)
	}
	return list
}

// Instances implements [store.Reader].
func (m *Memory) Instances(ctx context.Context, q store.InstanceQuery) ([]store.Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, false)
	if err != nil {
		return nil, err
	}
	limit, err := limits(q.From, q.To, q.Limit, 100, 10_000)
	if err != nil {
		return nil, err
	}
	t := s.tree()
	children := map[store.SpanID][]*store.OpRow{}
	for _, o := range s.sortedOps() {
		for _, id := range t.above(o) {
			children[id] = append(children[id], o)
		}
	}
	var list []store.Instance
	for _, p := range s.sortedSpans() {
		names, ok := t.spanPath(p)
		if !ok || s.path(names) != q.Path || !within(q.From, q.To, p.StartNs) || q.Name != "" && q.Name != p.Name {
			continue
		}
		list = append(list, instance(p, children[p.Span.Span]))
	}
	value := func(i store.Instance) int64 {
		switch q.Sort {
		case store.InstancesByWall:
			return end(i.StartNs, i.EndNs) - i.StartNs
		case store.InstancesByDevice:
			return i.KernelNs + i.CopyNs
		case store.InstancesByQueue:
			return i.QueueNs
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b store.Instance) int { return cmp.Compare(value(b), value(a)) })
	return clone(first(list, limit)), nil
}

// instance sums the operations of a span, which are sorted by start.
func instance(p *store.SpanRow, ops []*store.OpRow) store.Instance {
	i := store.Instance{StartNs: p.StartNs, EndNs: p.EndNs, Span: p.Span.Span, Parent: p.Parent, Trace: p.Trace, Name: p.Name}
	for _, o := range ops {
		switch o.ShapeRef.Operation {
		case store.OpKernel:
			i.Kernels++
			i.KernelNs += duration(o)
			if o.QueueNs.OK {
				i.QueueNs += o.QueueNs.V
			}
		case store.OpCopy:
			i.Copies++
			i.CopyNs += duration(o)
		default:
			continue
		}
		if i.Kernels+i.Copies == 1 {
			i.FirstNs = o.StartNs
		}
		i.LastNs = max(i.LastNs, end(o.StartNs, o.EndNs))
	}
	return i
}

// spanRow returns the answer for a span.
func (s *session) spanRow(t *tree, p *store.SpanRow) store.SpanRow {
	row := *p
	names, _ := t.spanPath(p)
	row.Path = s.path(names)
	return row
}

// Span implements [store.Reader].
func (m *Memory) Span(ctx context.Context, project, session string, id store.SpanID, at int64) (*store.OpRow, *store.SpanRow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, project, session, true)
	if err != nil {
		return nil, nil, err
	}
	for _, o := range s.sortedOps() {
		if o.Op.Span == id && id != 0 && (at == 0 || at == o.StartNs) && !s.dropped {
			return clone(o), nil, nil
		}
	}
	for _, p := range s.sortedSpans() {
		if p.Span.Span == id && id != 0 && (at == 0 || at == p.StartNs) {
			row := s.spanRow(s.tree(), p)
			return nil, clone(&row), nil
		}
	}
	return nil, nil, fmt.Errorf("span %016x: %w", uint64(id), store.ErrNotFound)
}

// Spans implements [store.Reader].
func (m *Memory) Spans(ctx context.Context, q store.SpanQuery) ([]store.SpanRow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, true)
	if err != nil {
		return nil, err
	}
	limit, err := limits(q.From, q.To, q.Limit, 1000, 20_000)
	if err == nil && q.MinNs < 0 {
		err = fmt.Errorf("duration %d: %w", q.MinNs, store.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	t := s.tree()
	var rows []store.SpanRow
	for _, p := range s.sortedSpans() {
		if touches(q.From, q.To, p.StartNs, end(p.StartNs, p.EndNs), q.Overlapping) &&
			(q.Trace == store.TraceID{} || p.Trace == q.Trace) && (q.Parent == 0 || p.Parent == q.Parent) &&
			(q.Name == "" || p.Name == q.Name) && (q.Operation == "" || p.Operation == q.Operation) && spanDuration(p) >= q.MinNs {
			rows = append(rows, s.spanRow(t, p))
		}
	}
	if q.Longest {
		slices.SortStableFunc(rows, func(a, b store.SpanRow) int { return cmp.Compare(spanDuration(&b), spanDuration(&a)) })
	}
	return clone(first(rows, limit)), nil
}

// Gaps implements [store.Reader].
func (m *Memory) Gaps(ctx context.Context, q store.GapQuery) (store.Gaps, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, false)
	if err != nil {
		return store.Gaps{}, err
	}
	limit, err := limits(q.From, q.To, q.Limit, 100, 10_000)
	if err != nil {
		return store.Gaps{}, err
	}
	var answer store.Gaps
	before := map[string]*store.OpRow{} // by device, the kernel with the largest end
	for _, o := range s.sortedOps() {
		if o.ShapeRef.Operation != store.OpKernel {
			continue
		}
		device := o.LaneRef.Device
		b := before[device]
		if b == nil || end(o.StartNs, o.EndNs) > end(b.StartNs, b.EndNs) {
			before[device] = o
		}
		if b == nil || o.StartNs <= end(b.StartNs, b.EndNs) {
			continue
		}
		g := store.Gap{
			Device: device, StartNs: end(b.StartNs, b.EndNs), EndNs: o.StartNs,
			BeforeStart: b.StartNs, AfterStart: o.StartNs, Before: b.Op.Span, After: o.Op.Span, AfterShape: o.Shape,
		}
		reaches := q.Overlapping && g.StartNs < q.From && g.EndNs > q.From
		if !reaches && !within(q.From, q.To, g.StartNs) || q.Device != "" && q.Device != device {
			continue
		}
		answer.Count++
		answer.SumNs += g.EndNs - g.StartNs
		if q.Overlapping {
			answer.SumNs -= max(q.From-g.StartNs, 0)
			if q.To != 0 {
				answer.SumNs -= max(g.EndNs-q.To, 0)
			}
		}
		if g.EndNs-g.StartNs >= max(q.MinNs, store.MinGapNs) {
			answer.Longest = append(answer.Longest, g)
		}
	}
	slices.SortFunc(answer.Longest, func(a, b store.Gap) int {
		return cmp.Or(cmp.Compare(b.EndNs-b.StartNs, a.EndNs-a.StartNs), cmp.Compare(a.StartNs, b.StartNs),
			cmp.Compare(a.Device, b.Device))
	})
	answer.Longest = first(answer.Longest, limit)
	return clone(answer), nil
}

// Busy implements [store.Reader].
func (m *Memory) Busy(ctx context.Context, q store.BusyQuery) ([]int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, false)
	if err != nil {
		return nil, err
	}
	out := make([]int64, len(q.Intervals))
	for n, i := range q.Intervals {
		if i.From < 0 || i.To < 0 || i.From > store.MaxTimeNs || i.To > store.MaxTimeNs || len(q.Intervals) > store.MaxIntervals {
			return nil, fmt.Errorf("busy: %w", store.ErrInvalid)
		}
		covered := map[string]int64{} // by device, the latest end of its kernels
		for _, o := range s.sortedOps() {
			device := o.LaneRef.Device
			if o.ShapeRef.Operation != store.OpKernel || q.Device != "" && q.Device != device {
				continue
			}
			last, later := covered[device]
			from, to := max(o.StartNs, i.From, last), min(end(o.StartNs, o.EndNs), i.To)
			if q.Idle {
				from, to = max(last, i.From), min(o.StartNs, i.To)
			}
			if from < to && (later || !q.Idle) {
				out[n] += to - from
			}
			covered[device] = max(last, end(o.StartNs, o.EndNs))
		}
	}
	return out, nil
}

// Samples implements [store.Reader].
func (m *Memory) Samples(ctx context.Context, q store.SampleQuery) ([]store.SampleSum, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, true)
	if err != nil {
		return nil, err
	}
	limit, err := limits(q.From, q.To, q.Limit, 10_000, 100_000)
	if err == nil && q.ByPath && q.Session == "" {
		err = fmt.Errorf("samples: %w", store.ErrInvalid)
	}
	if err != nil || s.dropped {
		return nil, err
	}
	t := s.tree()
	paths := map[uint32][]string{}
	sums := map[store.SampleSum]*store.SampleSum{}
	for _, p := range s.samples {
		if !within(q.From, q.To, p.TimeNs) || q.Kind != 0 && p.Kind != q.Kind ||
			q.Function != "" && p.Function != q.Function {
			continue
		}
		k := store.SampleSum{Kind: p.Kind, Kernel: p.Kernel, Function: p.Function, File: p.File, What: p.What}
		if q.ByLine {
			k.Line = p.Line
		}
		if q.ByPC {
			k.PC = p.PC
		}
		if q.ByPath && p.Span != 0 {
			names, _ := t.spanPath(t.byID[p.Span])
			k.Path = s.path(names)
			paths[k.Path] = names
		}
		sum := sums[k]
		if sum == nil {
			c := k
			sum = &c
			sums[k] = sum
		}
		sum.Rows++
		sum.Value += p.Value
	}
	sorted := slices.SortedFunc(maps.Values(sums), func(a, b *store.SampleSum) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Kernel, b.Kernel),
			cmp.Compare(a.Function, b.Function), cmp.Compare(a.File, b.File), compareInt(a.Line, b.Line),
			compareInt(a.PC, b.PC), cmp.Compare(a.What, b.What), slices.Compare(paths[a.Path], paths[b.Path]))
	})
	var list []store.SampleSum
	for _, sum := range first(sorted, limit) {
		list = append(list, *sum)
	}
	return clone(list), nil
}

// Stacks implements [store.Reader].
func (m *Memory) Stacks(ctx context.Context, q store.StackQuery) ([]store.StackSum, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, false)
	if err != nil {
		return nil, err
	}
	limit, err := limits(q.From, q.To, q.Limit, 10_000, 100_000)
	if err != nil || s.dropped {
		return nil, err
	}
	t := s.tree()
	paths := map[uint32][]string{}
	sums := map[store.StackSum]*store.StackSum{}
	for _, o := range s.ops {
		if o.ShapeRef.Operation != store.OpKernel || !within(q.From, q.To, o.StartNs) {
			continue
		}
		k := store.StackSum{Stack: o.StackText, Path: s.path(t.opPath(o)), Name: o.ShapeRef.Name}
		paths[k.Path] = t.opPath(o)
		sum := sums[k]
		if sum == nil {
			c := k
			sum = &c
			sums[k] = sum
		}
		sum.Count++
		sum.SumNs += duration(o)
	}
	sorted := slices.SortedFunc(maps.Values(sums), func(a, b *store.StackSum) int {
		return cmp.Or(cmp.Compare(b.SumNs, a.SumNs), cmp.Compare(a.Stack, b.Stack), slices.Compare(paths[a.Path], paths[b.Path]), cmp.Compare(a.Name, b.Name))
	})
	var list []store.StackSum
	for _, sum := range first(sorted, limit) {
		list = append(list, *sum)
	}
	return clone(list), nil
}

// Logs implements [store.Reader].
func (m *Memory) Logs(ctx context.Context, q store.LogQuery) ([]store.LogRow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, true)
	if err != nil {
		return nil, err
	}
	limit, err := limits(q.From, q.To, q.Limit, 1000, 10_000)
	if err != nil {
		return nil, err
	}
	var rows []store.LogRow
	for _, l := range s.logs {
		if within(q.From, q.To, l.TimeNs) && (q.Event == "" || l.Event == q.Event) &&
			(q.Trace == store.TraceID{} || l.Trace == q.Trace) &&
			(q.After == nil || cmp.Or(cmp.Compare(l.TimeNs, q.After.TimeNs), bytes.Compare(l.UID[:], q.After.UID[:])) > 0) {
			rows = append(rows, *l)
		}
	}
	slices.SortFunc(rows, func(a, b store.LogRow) int {
		return cmp.Or(cmp.Compare(a.TimeNs, b.TimeNs), bytes.Compare(a.UID[:], b.UID[:]))
	})
	return clone(first(rows, limit)), nil
}

// Series implements [store.Reader].
func (m *Memory) Series(ctx context.Context, q store.SeriesQuery) ([]store.SeriesInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, true)
	if err != nil {
		return nil, err
	}
	limit, err := limits(q.From, q.To, q.Limit, 1000, 10_000)
	if err != nil {
		return nil, err
	}
	infos := map[uint64]*store.SeriesInfo{}
	for _, p := range s.points {
		hw, _ := p.series.Attrs.Get(semconv.HWID)
		if !within(q.From, q.To, p.TimeNs) || q.Metric != "" && p.series.Metric != q.Metric ||
			q.Device != "" && (hw.Kind != store.KindString || hw.Str != q.Device) {
			continue
		}
		i := infos[p.series.Key]
		if i == nil {
			i = &store.SeriesInfo{Series: *p.series, OriginRef: p.origin, FirstNs: p.TimeNs}
			infos[p.series.Key] = i
		}
		i.Count++
		i.FirstNs, i.LastNs = min(i.FirstNs, p.TimeNs), max(i.LastNs, p.TimeNs)
	}
	var list []store.SeriesInfo
	for _, i := range infos {
		list = append(list, *i)
	}
	slices.SortFunc(list, func(a, b store.SeriesInfo) int {
		return cmp.Or(cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Key, b.Key))
	})
	return clone(first(list, limit)), nil
}

// Points implements [store.Reader].
func (m *Memory) Points(ctx context.Context, q store.PointQuery) ([]store.PointRow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.find(ctx, q.Project, q.Session, true)
	if err != nil {
		return nil, err
	}
	limit, err := limits(q.From, q.To, q.Points, 2000, 20_000)
	if err == nil && limit < 4 {
		err = fmt.Errorf("%d points: %w", limit, store.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	var rows []store.PointRow
	found := false
	for id, p := range s.points {
		found = found || id.series == q.Series
		if id.series == q.Series && within(q.From, q.To, p.TimeNs) {
			rows = append(rows, store.PointRow{Point: p.Point})
		}
	}
	if !found {
		return nil, fmt.Errorf("series %016x: %w", q.Series, store.ErrNotFound)
	}
	slices.SortFunc(rows, func(a, b store.PointRow) int { return cmp.Compare(a.TimeNs, b.TimeNs) })
	if len(rows) > limit {
		rows = m4(rows, q.From, q.To, int64(limit/4))
	}
	return clone(rows), nil
}

// m4 returns the first, last, smallest and largest point of each of n parts.
func m4(rows []store.PointRow, from, to, n int64) []store.PointRow {
	if from == 0 {
		from = rows[0].TimeNs
	}
	if to == 0 {
		to = rows[len(rows)-1].TimeNs + 1
	}
	width := (to - from + n - 1) / n
	number := func(p store.PointRow) float64 {
		switch {
		case p.Int.OK:
			return float64(p.Int.V)
		case p.HasDouble:
			return p.Double
		}
		return 0
	}
	var out []store.PointRow
	for len(rows) > 0 {
		part := (rows[0].TimeNs - from) / width
		k := slices.IndexFunc(rows, func(p store.PointRow) bool { return (p.TimeNs-from)/width != part })
		if k < 0 {
			k = len(rows)
		}
		keep := map[int]bool{0: true, k - 1: true}
		lowest, highest := -1, -1
		for i, p := range rows[:k] {
			if v := number(p); !math.IsNaN(v) {
				if lowest < 0 || v < number(rows[lowest]) {
					lowest = i
				}
				if highest < 0 || v > number(rows[highest]) {
					highest = i
				}
			}
		}
		keep[lowest], keep[highest] = true, true
		for i, p := range rows[:k] {
			if keep[i] {
				out = append(out, p)
			}
		}
		rows = rows[k:]
	}
	return out
}
