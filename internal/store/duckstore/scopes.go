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
)

// whileFresh returns the answer from the chains. If they are stale or become so, it is from the tree, or that of a
// large session from chains that are built again.
func whileFresh[T any](ctx context.Context, v *view, fromChains, fromTree func() (T, error)) (T, error) {
	for range 3 {
		if !v.stale {
			a, err := fromChains()
			v.s.mu.RLock()
			fresh := v.sess.epoch == v.epoch
			v.s.mu.RUnlock()
			if err != nil || fresh {
				return a, err
			}
		}
		if v.spanCount() < v.s.largeTree {
			return fromTree()
		}
		if err := v.refresh(ctx); err != nil {
			return *new(T), err
		}
	}
	return *new(T), fmt.Errorf("names and parents of stored spans change: %w", store.ErrRetry)
}

// refresh builds the chains of the session again if they are stale, and opens the view again. Meanwhile the view has
// no segments: who closes them may hold Store.write. If ctx ends before that, the rebuild goes on for later calls.
func (v *view) refresh(ctx context.Context) error {
	s, sess := v.s, v.sess
	v.close()
	v.segments = nil
	err := s.exclusive(ctx, func() error {
		if s.closed || s.session(sessionKey{sess.project, sess.id}) != sess || !sess.stale() {
			return nil
		}
		return s.rebuildChains(context.WithoutCancel(ctx), sess)
	})
	if err != nil {
		return err
	}
	fresh, err := s.open(ctx, sess.project, sess.id, false)
	if err == nil {
		*v = *fresh
	}
	return err
}

// scopePaths has the paths of spans in the tree.
type scopePaths struct {
	spans map[store.SpanID][]string
	folds store.Folds
}

// pathsOf returns the paths of the spans that decide the paths of places.
func (v *view) pathsOf(ctx context.Context, places map[uint32]*store.Place) (scopePaths, error) {
	parents := map[store.SpanID]struct{}{}
	for _, p := range places {
		if p.ScopePath == "" && p.Parent != 0 {
			parents[p.Parent] = struct{}{}
		}
	}
	return v.pathsOfSpans(ctx, parents)
}

// pathsOfSpans returns the paths of the spans with some ids.
func (v *view) pathsOfSpans(ctx context.Context, parents map[store.SpanID]struct{}) (scopePaths, error) {
	found := scopePaths{map[store.SpanID][]string{}, v.folds}
	if len(parents) == 0 {
		return found, nil
	}
	return whileFresh(ctx, v, func() (scopePaths, error) {
		ids := make([]uint64, 0, len(parents))
		for id := range parents {
			ids = append(ids, uint64(id))
		}
		err := v.each(ctx, "SELECT span, key FROM (SELECT span, arg_min(chain, start_ns) AS chain FROM {spans} WHERE span IN (SELECT unnest(?::UBIGINT[])) GROUP BY 1) s JOIN "+
			latestChains+" c ON c.id = s.chain WHERE state = 0", []any{ids}, func(r *sql.Rows) error {
			var id store.SpanID
			var key []byte
			err := r.Scan(&id, &key)
			found.spans[id] = v.folds.Names(splitKey(string(key)))
			return err
		})
		return found, err
	}, func() (scopePaths, error) {
		t, err := v.tree(ctx)
		if err != nil {
			return found, err
		}
		clear(found.spans)
		for id := range parents {
			if p := t.byID[id]; p != nil {
				if names, ok := t.path(p); ok {
					found.spans[id] = names
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
		return s.folds.Names(names[:min(len(names), store.MaxScopeDepth)])
	}
	if names, ok := s.spans[p.Parent]; ok && p.Parent != 0 {
		return names
	}
	if p.ScopeName != "" {
		return []string{s.folds.Name(p.ScopeName)}
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
	return whileFresh(ctx, v, func() (out []pathSum, err error) {
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
		n := get(v.folds.Names(p.names))
		n.Instances += p.n
		n.WallNs += p.ns
		n.buckets[p.bucket] += p.n
	}
	of, err := v.pathParts(ctx, by{shape: true}, 0, 0)
	if err != nil {
		return nil, err
	}
	shapeIDs := idSet{}
	for i := range of.parts {
		shapeIDs.add(of.parts[i].shape)
	}
	shapes, err := v.shapes(ctx, shapeIDs)
	if err != nil {
		return nil, err
	}
	for _, p := range of.parts {
		n := get(of.paths[p.where()])
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
	_, tx, end, err := v.s.beginTx(ctx)
	if err != nil {
		return nil, false, err
	}
	defer end()
	each := func(query string, args []any, scan func(*sql.Rows) error) error {
		return eachRow(ctx, tx, v.tables(query), args, scan)
	}
	var ids []string
	twins := false
	err = each("SELECT id, state, key FROM "+latestChains+" WHERE key = $1 OR $2", []any{[]byte(key), len(v.folds) > 0}, func(r *sql.Rows) error {
		var id uint32
		var state uint8
		var of []byte
		err := r.Scan(&id, &state, &of)
		if pathKey(v.folds.Names(splitKey(string(of)))) != key {
			return err
		}
		ids = append(ids, strconv.FormatUint(uint64(id), 10))
		twins = twins || state == chainTwin
		return err
	})
	if err != nil || twins || len(ids) == 0 {
		return nil, !twins, err
	}
	var f filter
	chained := "chain IN (" + strings.Join(ids, ", ") + ")"
	f.add(chained)
	f.interval("start_ns", "", q.From, q.To, false)
	if q.Name != "" {
		f.add("(start_ns, span) IN (SELECT (start_ns, span) FROM {spans} WHERE name = ? AND "+chained+")", q.Name)
	}
	order, value := "", "0"
	switch q.Sort {
	case store.InstancesByWall:
		order, value = "value DESC, ", "sum(wall_ns)"
	case store.InstancesByDevice:
		order, value = "value DESC, ", signedSum("sum(kernel_ns) + sum(copy_ns)")
	case store.InstancesByQueue:
		order, value = "value DESC, ", signed("queue_ns")
	}
	index := map[rowKey]int{}
	var starts []string
	err = each("SELECT start_ns, span FROM (SELECT start_ns, span, "+value+" AS value FROM {scope_sums}"+f.where()+" GROUP BY 1, 2) ORDER BY "+order+
		"start_ns, span LIMIT "+strconv.Itoa(n), f.args, func(r *sql.Rows) error {
		var i store.Instance
		err := r.Scan(&i.StartNs, &i.Span)
		index[rowKey{i.StartNs, uint64(i.Span)}] = len(list)
		starts = append(starts, strconv.FormatInt(i.StartNs, 10))
		list = append(list, i)
		return err
	})
	if err != nil || len(list) == 0 {
		return nil, true, err
	}
	// Sums of those alone take a fifth of the time. A list of literals skips blocks without these times.
	in := " WHERE start_ns IN (" + strings.Join(starts, ", ") + ")"
	err = each("SELECT start_ns, span, sum(kernels)::BIGINT, "+lowBits("kernel_ns")+", "+lowBits("queue_ns")+", sum(copies)::BIGINT, "+lowBits("copy_ns")+
		", coalesce(min(first_ns), 0), coalesce(max(last_ns), 0) FROM {scope_sums}"+in+" AND "+chained+" GROUP BY 1, 2", nil, func(r *sql.Rows) error {
		var i store.Instance
		err := r.Scan(&i.StartNs, &i.Span, &i.Kernels, wrapped{&i.KernelNs}, wrapped{&i.QueueNs}, &i.Copies, wrapped{&i.CopyNs}, &i.FirstNs, &i.LastNs)
		if at, ok := index[rowKey{i.StartNs, uint64(i.Span)}]; ok {
			list[at] = i
		}
		return err
	})
	if err != nil {
		return nil, true, err
	}
	err = each("SELECT start_ns, span, end_ns, parent, trace, name FROM {spans}"+in, nil, func(r *sql.Rows) error {
		var i store.Instance
		err := r.Scan(&i.StartNs, &i.Span, &i.EndNs, &i.Parent, traceID{(*[16]byte)(&i.Trace)}, &i.Name)
		if at, ok := index[rowKey{i.StartNs, uint64(i.Span)}]; ok {
			list[at].EndNs, list[at].Parent, list[at].Trace, list[at].Name = i.EndNs, i.Parent, i.Trace, i.Name
		}
		return err
	})
	return list, true, err
}
