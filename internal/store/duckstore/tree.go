// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql"
	"maps"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
	"github.com/gpuflight/gpuflight/semconv"
)

// tree is the tree of scopes of a session, from all its spans.
type tree struct {
	byID map[store.SpanID]*treeSpan
	all  []*treeSpan
}

type treeSpan struct {
	start, end       int64
	id, parent       store.SpanID
	trace            store.TraceID
	exact, name      string // as it is, and in paths
	inside           bool   // not a session or deep window
	names            []string
	resolved, inTree bool
}

func (p *treeSpan) duration() int64 { return max(p.end-p.start, 0) }

// tree reads the tree of scopes. All paths are resolved.
func (v *view) tree(ctx context.Context) (*tree, error) {
	return cached(v, "tree", func() (*tree, int, error) {
		t, err := v.readTree(ctx)
		if err != nil {
			return nil, 0, err
		}
		for _, p := range t.all {
			t.path(p)
		}
		return t, len(t.all), nil
	})
}

func (v *view) readTree(ctx context.Context) (*tree, error) {
	t := &tree{byID: map[store.SpanID]*treeSpan{}}
	err := v.treeSpans(ctx, "", nil, func(p *treeSpan) {
		if t.byID[p.id] == nil {
			t.byID[p.id] = p
		}
		t.all = append(t.all, p)
	})
	return t, err
}

// treeSpans calls add for the spans of the session that meet a condition, by start and span.
func (v *view) treeSpans(ctx context.Context, where string, args []any, add func(*treeSpan)) error {
	names := map[string]string{}
	return v.each(ctx, "SELECT start_ns, end_ns, span, parent, trace, name, operation FROM {spans}"+where+" ORDER BY start_ns, span", args,
		func(r *sql.Rows) error {
			p := &treeSpan{}
			var operation string
			err := r.Scan(&p.start, &p.end, &p.id, &p.parent, traceID{(*[16]byte)(&p.trace)}, &p.name, &operation)
			if n, ok := names[p.name]; ok {
				p.name = n
			} else {
				names[p.name] = p.name
			}
			p.exact, p.inside = p.name, insideTree(operation)
			p.name = v.folds.Name(p.name)
			add(p)
			return err
		})
}

func insideTree(operation string) bool {
	return operation != semconv.CUDAOperationSession && operation != semconv.CUDAOperationDeepWindow
}

const (
	// smallTree is the number of spans up to which readers keep the tree of a session.
	smallTree = 1 << 14
	// largeTree is the number of spans from which no reader reads a tree, of about 250 bytes a span.
	largeTree = 1 << 20
)

func (v *view) hasSmallTree() bool { return v.spanCount() <= v.s.smallTree }

// spanCount returns the number of spans of the session.
func (v *view) spanCount() int64 {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	return v.sess.info.Counts["spans"]
}

// ancestors returns a tree that has the spans above some spans. It reads them level by level, unless
// the tree is small.
func (v *view) ancestors(ctx context.Context, spans []*treeSpan) (*tree, error) {
	if v.hasSmallTree() {
		return v.tree(ctx)
	}
	t := &tree{byID: map[store.SpanID]*treeSpan{}}
	asked := map[store.SpanID]bool{0: true}
	for depth := 0; len(spans) > 0 && depth <= store.MaxScopeDepth; depth++ {
		var ids []uint64
		for _, p := range spans {
			if p.inside && !asked[p.parent] {
				asked[p.parent] = true
				ids = append(ids, uint64(p.parent))
			}
		}
		spans = nil
		if len(ids) == 0 {
			break
		}
		err := v.treeSpans(ctx, " WHERE span IN (SELECT unnest(?::UBIGINT[]))", []any{ids}, func(p *treeSpan) {
			if t.byID[p.id] == nil {
				t.byID[p.id] = p
				spans = append(spans, p)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return t, nil
}

// treeBelow returns a tree that has some spans, all spans above them and all below. It reads them level
// by level, unless the tree is small.
func (v *view) treeBelow(ctx context.Context, ids map[store.SpanID]bool) (*tree, error) {
	if v.hasSmallTree() {
		return v.tree(ctx)
	}
	t := &tree{byID: map[store.SpanID]*treeSpan{}}
	level := make([]uint64, 0, len(ids))
	for id := range ids {
		level = append(level, uint64(id))
	}
	var tops []*treeSpan
	where := " WHERE span IN (SELECT unnest(?::UBIGINT[]))"
	for depth := 0; len(level) > 0 && depth <= store.MaxScopeDepth; depth++ {
		var next []uint64
		err := v.treeSpans(ctx, where, []any{level}, func(p *treeSpan) {
			if p.id != 0 && t.byID[p.id] == nil {
				t.byID[p.id] = p
				next = append(next, uint64(p.id))
			}
		})
		if err != nil {
			return nil, err
		}
		if depth == 0 {
			tops = slices.Collect(maps.Values(t.byID))
		}
		level, where = next, " WHERE span IN (SELECT span FROM {spans} WHERE parent IN (SELECT unnest(?::UBIGINT[])))"
	}
	above, err := v.ancestors(ctx, tops)
	if err != nil {
		return nil, err
	}
	for id, p := range above.byID {
		if t.byID[id] == nil {
			t.byID[id] = p
		}
	}
	return t, nil
}

// below calls f for each id of a span in the tree and each of ids in its chain.
func (t *tree) below(ids map[store.SpanID]bool, f func(span, top store.SpanID)) {
	for id, p := range t.byID {
		names, ok := t.path(p)
		q := p
		for n := range names {
			if n > 0 {
				q = t.byID[q.parent]
			}
			if id != 0 && ok && ids[q.id] {
				f(id, q.id)
			}
		}
	}
}

// path returns the names of a span in the tree.
func (t *tree) path(p *treeSpan) ([]string, bool) {
	if p.resolved {
		return p.names, p.inTree
	}
	var names []string
	for q := p; q != nil && q.inside; q = t.byID[q.parent] {
		if len(names) == store.MaxScopeDepth {
			p.resolved = true
			return nil, false
		}
		names = append(names, q.name)
		if q.parent == 0 {
			break
		}
	}
	slices.Reverse(names)
	p.names, p.resolved, p.inTree = names, true, len(names) > 0
	return names, p.inTree
}

// Instances implements [store.Reader].
func (s *Store) Instances(ctx context.Context, q store.InstanceQuery) ([]store.Instance, error) {
	return read(ctx, s, q.Project, q.Session, "read instances", func(v *view) ([]store.Instance, error) {
		n, err := answer.Limits(q.From, q.To, q.Limit, 100, 10_000)
		if err != nil {
			return nil, err
		}
		return whileFresh(ctx, v, func() ([]store.Instance, error) {
			list, ok, err := v.chainedInstances(ctx, q, n)
			if ok || err != nil {
				return list, err
			}
			return v.sortedInstances(ctx, q, n)
		}, func() ([]store.Instance, error) { return v.sortedInstances(ctx, q, n) })
	})
}

// sortedInstances returns the first n instances of a path from single spans.
func (v *view) sortedInstances(ctx context.Context, q store.InstanceQuery, n int) ([]store.Instance, error) {
	list, err := v.instances(ctx, q, n)
	if err != nil {
		return nil, err
	}
	// The order by start or duration is that of instances.
	value := func(i store.Instance) int64 {
		switch q.Sort {
		case store.InstancesByDevice:
			return i.KernelNs + i.CopyNs
		case store.InstancesByQueue:
			return i.QueueNs
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b store.Instance) int { return cmp.Compare(value(b), value(a)) })
	return list[:min(n, len(list))], nil
}

// instances returns the instances of a path, the first n ones if the order does not need their sums. Only
// spans whose name is the last one of the path are read.
func (v *view) instances(ctx context.Context, q store.InstanceQuery, n int) ([]store.Instance, error) {
	name, ok := v.sess.paths.last(q.Path)
	if !ok {
		// The path is from an earlier start of the process, or does not exist.
		t, err := v.tree(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range t.all {
			names, _ := t.path(p)
			for n := range names {
				v.pathID(names[:n+1])
			}
		}
		if name, ok = v.sess.paths.last(q.Path); !ok {
			return nil, nil
		}
	}
	var f filter
	if q.Name != "" {
		name = q.Name
	}
	if q.Name != "" || !v.folds.Has(name) {
		f.add("name = ?", name)
	}
	f.interval("start_ns", "", q.From, q.To, false)
	var spans []*treeSpan
	if err := v.treeSpans(ctx, f.where(), f.args, func(p *treeSpan) { spans = append(spans, p) }); err != nil {
		return nil, err
	}
	t, err := v.ancestors(ctx, spans)
	if err != nil {
		return nil, err
	}
	spans = slices.DeleteFunc(spans, func(p *treeSpan) bool {
		names, ok := t.path(p)
		return !ok || v.pathID(names) != q.Path
	})
	var list []store.Instance
	for _, p := range spans {
		list = append(list, store.Instance{StartNs: p.start, EndNs: p.end, Span: p.id, Parent: p.parent, Trace: p.trace, Name: p.exact})
	}
	if q.Sort == store.InstancesByWall {
		slices.SortStableFunc(list, func(a, b store.Instance) int {
			return cmp.Compare(max(b.EndNs-b.StartNs, 0), max(a.EndNs-a.StartNs, 0))
		})
	}
	if q.Sort == store.InstancesByWall || q.Sort == store.InstancesByStart {
		list = list[:min(n, len(list))]
	}
	return list, v.instanceSums(ctx, list)
}

// instanceSums adds the sums of what was launched in some instances or below them.
func (v *view) instanceSums(ctx context.Context, list []store.Instance) error {
	tops := map[store.SpanID]bool{}
	for _, i := range list {
		tops[i.Span] = true
	}
	t, err := v.treeBelow(ctx, tops)
	if err != nil {
		return err
	}
	ids := map[store.SpanID][]store.SpanID{} // the tops of each span
	for id := range tops {
		ids[id] = []store.SpanID{id}
	}
	t.below(tops, func(span, top store.SpanID) {
		if span != top {
			ids[span] = append(ids[span], top)
		}
	})
	spans := make([]uint64, 0, len(ids))
	for id := range ids {
		spans = append(spans, uint64(id))
	}
	sums := map[store.SpanID]*scopeSum{}
	err = v.readSums(ctx, v.s.db, "own AND span IN (SELECT unnest(?::UBIGINT[]))", []any{spans}, func(id store.SpanID, s *scopeSum) { sums[id] = s })
	if err != nil {
		return err
	}
	total := map[store.SpanID]*store.Instance{}
	for id, c := range sums {
		if c.empty() {
			continue
		}
		for _, top := range ids[id] {
			if total[top] == nil {
				total[top] = &store.Instance{}
			}
			answer.AddSums(total[top], &store.Instance{Kernels: c.kernels, KernelNs: c.kernelNs, QueueNs: c.queue,
				Copies: c.copies, CopyNs: c.copyNs, FirstNs: c.first, LastNs: c.last})
		}
	}
	for j := range list {
		if i := total[list[j].Span]; i != nil {
			answer.AddSums(&list[j], i)
		}
	}
	return nil
}
