// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
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

func (v *view) tree(ctx context.Context) (*tree, error) {
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

// pathID returns the id of a list of names: a hash, so that it is the same in each process.
func pathID(names []string) uint32 {
	if len(names) == 0 {
		return 0
	}
	h := fnv.New32a()
	for _, n := range names {
		fmt.Fprintf(h, "%d:%s", len(n), n)
	}
	return max(h.Sum32(), 1)
}

// span returns the path of a span: that of its earliest version in the tree.
func (t *tree) span(start int64, id store.SpanID) uint32 {
	i, ok := slices.BinarySearchFunc(t.all, treeSpan{start: start, id: id}, func(p *treeSpan, k treeSpan) int {
		return cmp.Or(cmp.Compare(p.start, k.start), cmp.Compare(p.id, k.id))
	})
	if !ok {
		return 0
	}
	names, _ := t.path(t.all[i])
	return pathID(names)
}

// scopeNode is a node with what its percentiles and order need.
type scopeNode struct {
	store.ScopeNode
	names   []string
	buckets histogram
}

// placeSum is the sum of operations of one kind at one place.
type placeSum struct {
	place     uint32
	operation store.Operation
	n, ns     int64
	queue     int64
	bytes     int64
	first     int64
	last      int64
}

func (v *view) placeSums(ctx context.Context) ([]placeSum, map[uint32]*store.Place, error) {
	var sums []placeSum
	ids := idSet{}
	err := v.each(ctx, `SELECT place, coalesce(any_value(s.operation), 0), sum(n)::BIGINT, WRAP(ns), WRAP(q), WRAP(b),
		min(a), max(z) FROM (SELECT place, shape, count(*) AS n, sum(greatest(dur_ns, 0)) AS ns, coalesce(sum(queue_ns), 0) AS q,
		coalesce(sum(bytes), 0) AS b, min(start_ns) AS a, max(start_ns + greatest(dur_ns, 0)) AS z FROM {ops} GROUP BY 1, 2) o
		LEFT JOIN (SELECT DISTINCT ON (id) id, operation FROM {shapes}) s ON s.id = shape GROUP BY place, s.operation`, nil,
		func(r *sql.Rows) error {
			var p placeSum
			err := r.Scan(&p.place, &p.operation, &p.n, &p.ns, &p.queue, &p.bytes, &p.first, &p.last)
			ids.add(p.place)
			sums = append(sums, p)
			return err
		})
	if err != nil {
		return nil, nil, err
	}
	places, err := v.places(ctx, ids)
	return sums, places, err
}

func (v *view) nodes(ctx context.Context, t *tree) ([]*scopeNode, error) {
	nodes := map[uint32]*scopeNode{0: {buckets: histogram{}}}
	get := func(names []string) *scopeNode {
		parent := uint32(0)
		for n := range names {
			id := pathID(names[:n+1])
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
	sums, places, err := v.placeSums(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range sums {
		n := get(t.place(orEmpty(places[p.place])))
		switch p.operation {
		case store.OpKernel:
			n.Kernels += p.n
			n.KernelNs += p.ns
			n.QueueNs += p.queue
		case store.OpCopy:
			n.Copies += p.n
			n.CopyNs += p.ns
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
	sums, places, err := v.placeSums(ctx)
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	children := map[store.SpanID][]placeSum{}
	for _, p := range sums {
		if parent := orEmpty(places[p.place]).Parent; parent != 0 && (p.operation == store.OpKernel || p.operation == store.OpCopy) {
			children[parent] = append(children[parent], p)
		}
	}
	var list []store.Instance
	for _, p := range t.all {
		names, ok := t.path(p)
		if !ok || pathID(names) != q.Path || p.start < q.From || q.To != 0 && p.start >= q.To {
			continue
		}
		i := store.Instance{StartNs: p.start, EndNs: p.end, Span: p.id, Parent: p.parent, Trace: p.trace}
		for j, c := range children[p.id] {
			if c.operation == store.OpKernel {
				i.Kernels += c.n
				i.KernelNs += c.ns
				i.QueueNs += c.queue
			} else {
				i.Copies += c.n
				i.CopyNs += c.ns
			}
			if j == 0 || c.first < i.FirstNs {
				i.FirstNs = c.first
			}
			i.LastNs = max(i.LastNs, c.last)
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
