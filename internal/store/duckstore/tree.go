// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
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
	name             string
	inside           bool // not a session or deep window
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
	names := map[string]string{}
	err := v.each(ctx, "SELECT start_ns, end_ns, span, parent, trace, name, operation FROM {spans} ORDER BY start_ns, span", nil,
		func(r *sql.Rows) error {
			p := &treeSpan{}
			var operation string
			err := r.Scan(&p.start, &p.end, &p.id, &p.parent, traceID{(*[16]byte)(&p.trace)}, &p.name, &operation)
			if n, ok := names[p.name]; ok {
				p.name = n
			} else {
				names[p.name] = p.name
			}
			p.inside = operation != semconv.CUDAOperationSession && operation != semconv.CUDAOperationDeepWindow
			if t.byID[p.id] == nil {
				t.byID[p.id] = p
			}
			t.all = append(t.all, p)
			return err
		})
	return t, err
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

// place returns the names of a place.
func (t *tree) place(p *store.Place) []string {
	if p.ScopePath != "" {
		names := strings.Split(p.ScopePath, "|")
		return names[:min(len(names), store.MaxScopeDepth)]
	}
	if q := t.byID[p.Parent]; q != nil && p.Parent != 0 {
		if names, ok := t.path(q); ok {
			return names
		}
	}
	if p.ScopeName != "" {
		return []string{p.ScopeName}
	}
	return nil
}

// span returns the names of a span; none if it is not in the tree.
func (t *tree) span(start int64, id store.SpanID) []string {
	i, ok := slices.BinarySearchFunc(t.all, treeSpan{start: start, id: id}, func(p *treeSpan, k treeSpan) int {
		return cmp.Or(cmp.Compare(p.start, k.start), cmp.Compare(p.id, k.id))
	})
	if !ok {
		return nil
	}
	names, _ := t.path(t.all[i])
	return names
}

// scopeNode is a node with what its percentiles and order need.
type scopeNode struct {
	store.ScopeNode
	names   []string
	buckets histogram
}

// scopeSums reads the sums of the operations of each parent.
func (v *view) scopeSums(ctx context.Context) (map[store.SpanID]*scopeSum, error) {
	return cached(v, "scopes", func() (map[store.SpanID]*scopeSum, int, error) {
		out := map[store.SpanID]*scopeSum{}
		err := v.each(ctx, "SELECT parent, sum(kernels)::BIGINT, "+lowBits("kernel_ns")+", "+lowBits("queue_ns")+", sum(copies)::BIGINT, "+
			lowBits("copy_ns")+", min(first_ns), max(last_ns) FROM {scope_sums} GROUP BY 1", nil, func(r *sql.Rows) error {
			var id store.SpanID
			s := &scopeSum{}
			err := r.Scan(&id, &s.kernels, wrapped{&s.kernelNs}, wrapped{&s.queue}, &s.copies, wrapped{&s.copyNs}, &s.first, &s.last)
			out[id] = s
			return err
		})
		return out, len(out), err
	})
}

func (v *view) nodes(ctx context.Context, t *tree) ([]*scopeNode, error) {
	nodes := map[uint32]*scopeNode{0: {buckets: histogram{}}}
	get := func(names []string) *scopeNode {
		parent := uint32(0)
		for n := range names {
			id := v.pathID(names[:n+1])
			if nodes[id] == nil {
				nodes[id] = &scopeNode{store.ScopeNode{Path: id, Parent: parent, Name: names[n]}, names[:n+1], histogram{}}
			}
			parent = id
		}
		return nodes[parent]
	}
	for _, p := range t.all {
		if names, ok := t.path(p); ok {
			n := get(names)
			n.Instances++
			n.WallNs += p.duration()
			n.buckets[store.Bucket(p.duration())]++
		}
	}
	parts, err := v.rollupParts(ctx, false, true)
	if err != nil {
		return nil, err
	}
	siteIDs, shapeIDs := idSet{}, idSet{}
	for i := range parts {
		siteIDs.add(parts[i].place)
		shapeIDs.add(parts[i].shape)
	}
	sites, err := v.sites(ctx, siteIDs)
	if err != nil {
		return nil, err
	}
	shapes, err := v.shapes(ctx, shapeIDs)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		n := get(t.place(orEmpty(sites[p.place])))
		switch orEmpty(shapes[p.shape]).Operation {
		case store.OpKernel:
			n.Kernels += p.n
			n.KernelNs += p.sum
			n.QueueNs += p.queue
		case store.OpCopy:
			n.Copies += p.n
			n.CopyNs += p.sum
			n.CopyBytes += p.bytes
		}
	}
	return slices.SortedFunc(maps.Values(nodes), func(a, b *scopeNode) int { return slices.Compare(a.names, b.names) }), nil
}

// Scopes implements [store.Reader].
func (s *Store) Scopes(ctx context.Context, project, session string) ([]store.ScopeNode, error) {
	v, err := s.open(ctx, project, session, false)
	if err != nil {
		return nil, err
	}
	defer v.close()
	t, err := v.tree(ctx)
	if err != nil {
		return nil, fmt.Errorf("read scopes: %w", err)
	}
	nodes, err := v.nodes(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("read scopes: %w", err)
	}
	var out []store.ScopeNode
	for _, n := range nodes {
		n.P50Ns, n.P99Ns = n.buckets.percentile(50), n.buckets.percentile(99)
		out = append(out, n.ScopeNode)
	}
	return out, nil
}

// Instances implements [store.Reader].
func (s *Store) Instances(ctx context.Context, q store.InstanceQuery) ([]store.Instance, error) {
	n, err := limits(q.From, q.To, q.Limit, 100, 10_000)
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, false)
	if err != nil {
		return nil, err
	}
	defer v.close()
	t, err := v.tree(ctx)
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	sums, err := v.scopeSums(ctx)
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	var list []store.Instance
	for _, p := range t.all {
		names, ok := t.path(p)
		if !ok || v.pathID(names) != q.Path || p.start < q.From || q.To != 0 && p.start >= q.To {
			continue
		}
		i := store.Instance{StartNs: p.start, EndNs: p.end, Span: p.id, Parent: p.parent, Trace: p.trace}
		if c := sums[p.id]; c != nil {
			i.Kernels, i.KernelNs, i.QueueNs, i.Copies, i.CopyNs = c.kernels, c.kernelNs, c.queue, c.copies, c.copyNs
			i.FirstNs, i.LastNs = c.first, c.last
		}
		list = append(list, i)
	}
	value := func(i store.Instance) int64 {
		switch q.Sort {
		case store.InstancesByWall:
			return max(i.EndNs-i.StartNs, 0)
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
