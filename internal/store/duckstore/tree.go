// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

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
			p.inside = insideTree(operation)
			add(p)
			return err
		})
}

func insideTree(operation string) bool {
	return operation != semconv.CUDAOperationSession && operation != semconv.CUDAOperationDeepWindow
}

// whileFresh returns the answer from the chains, or from the tree if they are stale or become so.
func whileFresh[T any](v *view, fromChains, fromTree func() (T, error)) (T, error) {
	if !v.stale {
		a, err := fromChains()
		v.s.mu.RLock()
		fresh := v.sess.epoch == v.epoch
		v.s.mu.RUnlock()
		if err != nil || fresh {
			return a, err
		}
	}
	return fromTree()
}

// scopePaths has the names of spans in the tree.
type scopePaths map[store.SpanID][]string

// pathsOf returns the paths of the spans that decide the paths of places.
func (v *view) pathsOf(ctx context.Context, places map[uint32]*store.Place) (scopePaths, error) {
	parents := scopePaths{}
	for _, p := range places {
		if p.ScopePath == "" && p.Parent != 0 {
			parents[p.Parent] = nil
		}
	}
	if len(parents) == 0 {
		return nil, nil
	}
	return whileFresh(v, func() (scopePaths, error) {
		ids := make([]uint64, 0, len(parents))
		for id := range parents {
			ids = append(ids, uint64(id))
		}
		found := scopePaths{}
		err := v.each(ctx, "SELECT span, key FROM (SELECT span, arg_min(chain, start_ns) AS chain FROM {spans} WHERE span IN (SELECT unnest(?::UBIGINT[])) GROUP BY 1) s JOIN "+
			latestChains+" c ON c.id = s.chain WHERE state = 0", []any{ids}, func(r *sql.Rows) error {
			var id store.SpanID
			var key []byte
			err := r.Scan(&id, &key)
			found[id] = splitKey(string(key))
			return err
		})
		return found, err
	}, func() (scopePaths, error) {
		t, err := v.tree(ctx)
		if err != nil {
			return nil, err
		}
		found := scopePaths{}
		for id := range parents {
			if p := t.byID[id]; p != nil {
				if names, ok := t.path(p); ok {
					found[id] = names
				}
			}
		}
		return found, nil
	})
}

// place returns the names of a place.
func (s scopePaths) place(p *store.Place) []string {
	if p.ScopePath != "" {
		names := strings.Split(p.ScopePath, "|")
		return names[:min(len(names), store.MaxScopeDepth)]
	}
	if names, ok := s[p.Parent]; ok && p.Parent != 0 {
		return names
	}
	if p.ScopeName != "" {
		return []string{p.ScopeName}
	}
	return nil
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

// scopeNode is a node with what its percentiles and order need.
type scopeNode struct {
	store.ScopeNode
	names   []string
	buckets answer.Histogram
}

// pathSum sums up the spans of a path whose durations are in one bucket.
type pathSum struct {
	names  []string
	bucket uint16
	n, ns  int64
}

// pathSums reads the sums of all spans in the tree.
func (v *view) pathSums(ctx context.Context) ([]pathSum, error) {
	return whileFresh(v, func() (out []pathSum, err error) {
		return cached(v, "paths", func() ([]pathSum, int, error) {
			err = v.each(ctx, "SELECT key, bucket, sum(n)::BIGINT, "+lowBits("wall_ns")+" FROM {span_sums} s JOIN "+latestChains+
				" c ON c.id = s.chain WHERE state = 0 GROUP BY 1, 2 HAVING sum(n) != 0", nil, func(r *sql.Rows) error {
				var p pathSum
				var key []byte
				err := r.Scan(&key, &p.bucket, &p.n, wrapped{&p.ns})
				p.names = splitKey(string(key))
				out = append(out, p)
				return err
			})
			return out, len(out), err
		})
	}, func() (out []pathSum, err error) {
		t, err := v.tree(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range t.all {
			if names, ok := t.path(p); ok {
				out = append(out, pathSum{names, store.Bucket(p.duration()), 1, p.duration()})
			}
		}
		return out, nil
	})
}

func (v *view) nodes(ctx context.Context) ([]*scopeNode, error) {
	sums, err := v.pathSums(ctx)
	if err != nil {
		return nil, err
	}
	nodes := map[uint32]*scopeNode{0: {buckets: answer.Histogram{}}}
	get := func(names []string) *scopeNode {
		parent := uint32(0)
		for n := range names {
			id := v.pathID(names[:n+1])
			if nodes[id] == nil {
				nodes[id] = &scopeNode{store.ScopeNode{Path: id, Parent: parent, Name: names[n]}, names[:n+1], answer.Histogram{}}
			}
			parent = id
		}
		return nodes[parent]
	}
	for _, p := range sums {
		n := get(p.names)
		n.Instances += p.n
		n.WallNs += p.ns
		n.buckets[p.bucket] += p.n
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
	paths, err := v.pathsOf(ctx, sites)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		n := get(paths.place(orEmpty(sites[p.place])))
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
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read scopes: %w", err)
	}
	var out []store.ScopeNode
	for _, n := range nodes {
		n.P50Ns, n.P99Ns = n.buckets.Percentile(50), n.buckets.Percentile(99)
		out = append(out, n.ScopeNode)
	}
	return out, nil
}

// Instances implements [store.Reader].
func (s *Store) Instances(ctx context.Context, q store.InstanceQuery) ([]store.Instance, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 100, 10_000)
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, false)
	if err != nil {
		return nil, err
	}
	defer v.close()
	if v.sess.paths.key(q.Path) == "" {
		// The id is from an answer whose paths could not be stored, or does not exist.
		if _, err = v.nodes(ctx); err != nil {
			return nil, fmt.Errorf("read instances: %w", err)
		}
	}
	key := v.sess.paths.key(q.Path)
	if key == "" {
		return nil, nil
	}
	list, err := whileFresh(v, func() ([]store.Instance, error) {
		return v.instances(ctx, q, n, "chain IN (SELECT id FROM "+latestChains+" WHERE state = 0 AND key = ?::BLOB)", []byte(key))
	}, func() ([]store.Instance, error) {
		t, err := v.tree(ctx)
		if err != nil {
			return nil, err
		}
		starts, ids := []int64{}, []uint64{}
		for _, p := range t.all {
			if names, ok := t.path(p); ok && pathKey(names) == key {
				starts, ids = append(starts, p.start), append(ids, uint64(p.id))
			}
		}
		return v.instances(ctx, q, n, "(start_ns, span) IN (SELECT (a, b) FROM (SELECT unnest(?::BIGINT[]) AS a, unnest(?::UBIGINT[]) AS b))", starts, ids)
	})
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	return list, nil
}

// instances reads the first n of the spans that meet a condition, with the sums of their operations.
func (v *view) instances(ctx context.Context, q store.InstanceQuery, n int, where string, args ...any) ([]store.Instance, error) {
	var f filter
	f.add(where, args...)
	f.interval("start_ns", "", q.From, q.To, false)
	spans := "(SELECT start_ns, end_ns, span, parent, trace FROM {spans}" + f.where() + ")"
	order := "start_ns, span"
	switch q.Sort {
	case store.InstancesByWall:
		order = "greatest(end_ns - start_ns, 0) DESC, " + order
		fallthrough
	case store.InstancesByStart:
		spans = "(FROM " + spans + " ORDER BY " + order + " LIMIT " + strconv.Itoa(n) + ")"
	case store.InstancesByDevice:
		order = "coalesce(" + signedSum("kernel_ns::HUGEINT + copy_ns") + ", 0) DESC, " + order
	case store.InstancesByQueue:
		order = "coalesce(queue_ns, 0) DESC, " + order
	}
	var list []store.Instance
	err := v.each(ctx, "WITH i AS MATERIALIZED "+spans+", s AS (SELECT parent AS id, sum(kernels)::BIGINT AS kernels, "+signed("kernel_ns")+" AS kernel_ns, "+
		signed("queue_ns")+" AS queue_ns, sum(copies)::BIGINT AS copies, "+signed("copy_ns")+" AS copy_ns, min(first_ns) AS first_ns, max(last_ns) AS last_ns "+
		"FROM {scope_sums} WHERE parent IN (SELECT span FROM i) GROUP BY 1) SELECT start_ns, end_ns, span, parent, trace, coalesce(kernels, 0), "+
		"coalesce(kernel_ns, 0), coalesce(queue_ns, 0), coalesce(copies, 0), coalesce(copy_ns, 0), coalesce(first_ns, 0), coalesce(last_ns, 0) "+
		"FROM i LEFT JOIN s ON s.id = i.span ORDER BY "+order+" LIMIT "+strconv.Itoa(n), f.args, func(r *sql.Rows) error {
		var i store.Instance
		err := r.Scan(&i.StartNs, &i.EndNs, &i.Span, &i.Parent, traceID{(*[16]byte)(&i.Trace)}, &i.Kernels, &i.KernelNs, &i.QueueNs,
			&i.Copies, &i.CopyNs, &i.FirstNs, &i.LastNs)
		list = append(list, i)
		return err
	})
	return list, err
}
