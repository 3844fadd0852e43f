// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

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
	return v.pathsOfSpans(ctx, parents)
}

// pathsOfSpans returns the paths of the spans with some ids.
func (v *view) pathsOfSpans(ctx context.Context, parents scopePaths) (scopePaths, error) {
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
				" c ON c.id = s.chain WHERE state IN (0, 3) GROUP BY 1, 2 HAVING sum(n) != 0", nil, func(r *sql.Rows) error {
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
	return read(ctx, s, project, session, "read scopes", func(v *view) (out []store.ScopeNode, err error) {
		nodes, err := v.nodes(ctx)
		for _, n := range nodes {
			n.P50Ns, n.P99Ns = n.buckets.Percentile(50), n.buckets.Percentile(99)
			out = append(out, n.ScopeNode)
		}
		return out, err
	})
}

// chainedInstances returns the first n instances of a path from the chains. It is not ok if several spans
// have the id of an instance.
func (v *view) chainedInstances(ctx context.Context, q store.InstanceQuery, n int) (list []store.Instance, ok bool, err error) {
	key := v.sess.paths.key(q.Path)
	if key == "" {
		// The id is from an answer whose paths could not be stored, or does not exist.
		if _, err := v.nodes(ctx); err != nil {
			return nil, false, err
		}
		if key = v.sess.paths.key(q.Path); key == "" {
			return nil, true, nil
		}
	}
	// The chains of the path and of those below it.
	var ids, below []string
	twins := false
	err = v.each(ctx, "SELECT id, key, state FROM "+latestChains+" WHERE starts_with(hex(key), ?)", []any{strings.ToUpper(hex.EncodeToString([]byte(key)))},
		func(r *sql.Rows) error {
			var id uint32
			var k []byte
			var state uint8
			err := r.Scan(&id, &k, &state)
			text := strconv.FormatUint(uint64(id), 10)
			switch {
			case len(k) == len(key):
				ids = append(ids, text)
				twins = twins || state == chainTwin
			case state == chainInside:
				below = append(below, text)
			}
			return err
		})
	if err != nil || twins || len(ids) == 0 {
		return nil, !twins, err
	}
	var f filter
	f.add("chain IN (" + strings.Join(ids, ", ") + ")")
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
	tops := "d AS (SELECT DISTINCT span AS top, span AS id FROM i WHERE span != 0)"
	if len(below) > 0 {
		tops = "d AS (SELECT DISTINCT span AS top, span AS id FROM i WHERE span != 0 UNION ALL SELECT d.top, c.span FROM d JOIN (SELECT span, parent FROM {spans} " +
			"WHERE span != 0 AND chain IN (" + strings.Join(below, ", ") + ")) c ON c.parent = d.id)"
	}
	err = v.each(ctx, "WITH RECURSIVE i AS MATERIALIZED "+spans+", "+tops+", s AS (SELECT top, sum(kernels)::BIGINT AS kernels, "+
		signed("kernel_ns")+" AS kernel_ns, "+signed("queue_ns")+" AS queue_ns, sum(copies)::BIGINT AS copies, "+signed("copy_ns")+
		" AS copy_ns, min(first_ns) AS first_ns, max(last_ns) AS last_ns FROM d JOIN {scope_sums} s ON s.parent = d.id GROUP BY 1) "+
		"SELECT start_ns, end_ns, span, parent, trace, coalesce(kernels, 0), coalesce(kernel_ns, 0), coalesce(queue_ns, 0), coalesce(copies, 0), "+
		"coalesce(copy_ns, 0), coalesce(first_ns, 0), coalesce(last_ns, 0) FROM i LEFT JOIN s ON s.top = i.span ORDER BY "+order+
		" LIMIT "+strconv.Itoa(n), f.args, func(r *sql.Rows) error {
		var i store.Instance
		err := r.Scan(&i.StartNs, &i.EndNs, &i.Span, &i.Parent, traceID{(*[16]byte)(&i.Trace)}, &i.Kernels, &i.KernelNs, &i.QueueNs,
			&i.Copies, &i.CopyNs, &i.FirstNs, &i.LastNs)
		list = append(list, i)
		return err
	})
	return list, true, err
}
