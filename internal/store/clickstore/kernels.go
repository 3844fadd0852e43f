// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// tree reads the tree of scopes.
func (v *view) tree(ctx context.Context) (*answer.Tree, error) {
	return cached(v, "tree", func() (*answer.Tree, error) {
		f := v.filter()
		var spans []answer.ScopeSpan
		err := v.s.each(ctx, "SELECT StartNs, toInt64(EndNs), Span, Parent, Trace, Name, Operation FROM gpu_spans FINAL"+f.where()+" ORDER BY StartNs, Span",
			f.args, func(r driver.Rows) error {
				var p answer.ScopeSpan
				err := r.Scan(&p.StartNs, &p.EndNs, (*uint64)(&p.ID), (*uint64)(&p.Parent), (*[16]byte)(&p.Trace), &p.Name, &p.Operation)
				spans = append(spans, p)
				return err
			})
		if err != nil {
			return nil, err
		}
		table := "gpu_ops"
		if v.rollups() {
			table = "gpu_stats"
			f.add("Rollup = ?", v.seal.rollup)
		}
		var sites []answer.Site
		err = v.s.each(ctx, "SELECT DISTINCT if(ScopePath = '', ScopeName, ''), ScopePath FROM "+table+f.where(), f.args, func(r driver.Rows) error {
			var s answer.Site
			err := r.Scan(&s.ScopeName, &s.ScopePath)
			sites = append(sites, s)
			return err
		})
		return answer.NewTree(spans, sites), err
	})
}

// Kernels implements [store.Reader].
func (s *Store) Kernels(ctx context.Context, q store.KernelQuery) ([]store.KernelStat, error) {
	return read(ctx, s, q.Project, q.Session, "read kernels", func(v *view) ([]store.KernelStat, error) {
		n, err := answer.Limits(q.From, q.To, q.Limit, 50, 10_000)
		if err != nil {
			return nil, err
		}
		if q.Group > store.GroupLane {
			return nil, fmt.Errorf("group %d: %w", q.Group, store.ErrInvalid)
		}
		out, err := v.kernels(ctx, q)
		return out[:min(n, len(out))], err
	})
}

type kernelKey struct {
	name string
	id   uint32
}

type kernelGroup struct {
	store.KernelStat
	buckets answer.Histogram
	shape   uint64
	names   []string
	lane    *store.Lane
}

func (v *view) kernels(ctx context.Context, q store.KernelQuery) ([]store.KernelStat, error) {
	sums, err := v.sums(ctx, q.From, q.To)
	if err != nil {
		return nil, err
	}
	lanes, shapes := keys{}, keys{}
	for i := range sums {
		lanes[sums[i].lane], shapes[sums[i].shape] = struct{}{}, struct{}{}
	}
	shapeOf, err := v.shapes(ctx, shapes)
	if err != nil {
		return nil, err
	}
	laneOf, err := v.lanes(ctx, lanes)
	if err != nil {
		return nil, err
	}
	byPath := q.Group == store.GroupPath || q.Path != nil
	var tree *answer.Tree
	if byPath {
		if tree, err = v.tree(ctx); err != nil {
			return nil, err
		}
	}
	groups := map[kernelKey]*kernelGroup{}
	for i := range sums {
		x := &sums[i]
		shape := orEmpty(shapeOf[x.shape])
		if x.operation != store.OpKernel || !store.ContainsFold(shape.Name, q.Text) && !store.ContainsFold(shape.FullName, q.Text) {
			continue
		}
		var names []string
		if byPath {
			names = tree.Path(x.site)
			if q.Path != nil && !v.below(names, *q.Path) {
				continue
			}
		}
		var k kernelKey
		switch q.Group {
		case store.GroupName:
			k.name = shape.Name
		case store.GroupShape:
			k = kernelKey{shape.Name, v.sess.shapes.ID(x.shape)}
		case store.GroupPath:
			k.id = v.sess.paths.ID(names)
		case store.GroupLane:
			k.id = v.sess.lanes.ID(x.lane)
		}
		g := groups[k]
		if g == nil {
			g = &kernelGroup{KernelStat: store.KernelStat{Name: k.name, ID: k.id}, buckets: answer.Histogram{}, names: names, lane: &store.Lane{}}
			switch q.Group {
			case store.GroupShape:
				g.shape = x.shape
			case store.GroupLane:
				g.lane = orEmpty(laneOf[x.lane])
			}
			groups[k] = g
		}
		g.Count += x.n
		g.SumNs += x.ns
		g.MaxNs = max(g.MaxNs, x.longest)
		g.QueueNs += x.queue
		g.buckets[x.bucket] += x.n
	}
	var out []store.KernelStat
	for _, g := range slices.SortedFunc(maps.Values(groups), func(a, b *kernelGroup) int {
		c := cmp.Or(cmp.Compare(b.SumNs, a.SumNs), cmp.Compare(a.Name, b.Name), cmp.Compare(a.shape, b.shape), answer.CompareLanes(a.lane, b.lane))
		if c == 0 && q.Group == store.GroupPath {
			c = slices.Compare(a.names, b.names)
		}
		return c
	}) {
		g.P50Ns, g.P99Ns = g.buckets.Percentile(50), g.buckets.Percentile(99)
		if q.Buckets {
			for _, b := range slices.Sorted(maps.Keys(g.buckets)) {
				g.Buckets = append(g.Buckets, store.BucketCount{Bucket: b, Count: g.buckets[b]})
			}
		}
		out = append(out, g.KernelStat)
	}
	return out, nil
}

func (v *view) below(names []string, path uint32) bool {
	for n := range len(names) + 1 {
		if v.sess.paths.ID(names[:n]) == path {
			return true
		}
	}
	return false
}

type node struct {
	store.ScopeNode
	names   []string
	buckets answer.Histogram
}

// Scopes implements [store.Reader].
func (s *Store) Scopes(ctx context.Context, project, session string) ([]store.ScopeNode, error) {
	return read(ctx, s, project, session, "read scopes", func(v *view) ([]store.ScopeNode, error) { return v.nodes(ctx) })
}

func (v *view) nodes(ctx context.Context) ([]store.ScopeNode, error) {
	tree, err := v.tree(ctx)
	if err != nil {
		return nil, err
	}
	sums, err := v.sums(ctx, 0, 0)
	if err != nil {
		return nil, err
	}
	nodes := map[uint32]*node{0: {buckets: answer.Histogram{}}}
	get := func(names []string) *node {
		parent := uint32(0)
		for n := range names {
			id := v.sess.paths.ID(names[:n+1])
			if nodes[id] == nil {
				nodes[id] = &node{store.ScopeNode{Path: id, Parent: parent, Name: names[n]}, names[:n+1], answer.Histogram{}}
			}
			parent = id
		}
		return nodes[parent]
	}
	for i := range tree.Spans {
		p := &tree.Spans[i]
		if names, ok := p.Names(); ok {
			n := get(names)
			n.Instances++
			n.WallNs += p.Duration()
			n.buckets[store.Bucket(p.Duration())]++
		}
	}
	for i := range sums {
		x := &sums[i]
		n := get(tree.Path(x.site))
		switch x.operation {
		case store.OpKernel:
			n.Kernels += x.n
			n.KernelNs += x.ns
			n.QueueNs += x.queue
		case store.OpCopy:
			n.Copies += x.n
			n.CopyNs += x.ns
			n.CopyBytes += x.bytes
		}
	}
	var out []store.ScopeNode
	for _, n := range slices.SortedFunc(maps.Values(nodes), func(a, b *node) int { return slices.Compare(a.names, b.names) }) {
		n.P50Ns, n.P99Ns = n.buckets.Percentile(50), n.buckets.Percentile(99)
		out = append(out, n.ScopeNode)
	}
	return out, nil
}

// Instances implements [store.Reader].
func (s *Store) Instances(ctx context.Context, q store.InstanceQuery) ([]store.Instance, error) {
	return read(ctx, s, q.Project, q.Session, "read instances", func(v *view) ([]store.Instance, error) {
		n, err := answer.Limits(q.From, q.To, q.Limit, 100, 10_000)
		if err != nil {
			return nil, err
		}
		list, err := v.instances(ctx, q)
		return list[:min(n, len(list))], err
	})
}

func (v *view) instances(ctx context.Context, q store.InstanceQuery) ([]store.Instance, error) {
	tree, err := v.tree(ctx)
	if err != nil {
		return nil, err
	}
	sums, err := cached(v, "instances", func() (map[store.SpanID]store.Instance, error) {
		out := map[store.SpanID]store.Instance{}
		f := v.filter()
		f.add("Parent != 0 AND Operation IN (1, 2)")
		err := v.s.each(ctx, `SELECT Parent, toInt64(countIf(Operation = 1)), sumIf(d, Operation = 1), sumIf(ifNull(QueueNs, 0), Operation = 1),
			toInt64(countIf(Operation = 2)), sumIf(d, Operation = 2), min(StartNs), max(StartNs + d) FROM (SELECT *, greatest(DurationNs, 0) AS d
			FROM gpu_ops FINAL`+f.where()+`) GROUP BY Parent`, f.args, func(r driver.Rows) error {
			var id uint64
			var i store.Instance
			err := r.Scan(&id, &i.Kernels, &i.KernelNs, &i.QueueNs, &i.Copies, &i.CopyNs, &i.FirstNs, &i.LastNs)
			out[store.SpanID(id)] = i
			return err
		})
		return out, err
	})
	if err != nil {
		return nil, err
	}
	var list []store.Instance
	ids := map[store.SpanID]bool{}
	for j := range tree.Spans {
		p := &tree.Spans[j]
		names, ok := p.Names()
		if !ok || v.sess.paths.ID(names) != q.Path || p.StartNs < q.From || q.To != 0 && p.StartNs >= q.To ||
			q.Name != "" && q.Name != p.Name {
			continue
		}
		list = append(list, store.Instance{StartNs: p.StartNs, EndNs: p.EndNs, Span: p.ID, Parent: p.Parent, Trace: p.Trace, Name: p.Name})
		ids[p.ID] = true
	}
	total := map[store.SpanID]*store.Instance{}
	add := func(span, top store.SpanID) {
		if total[top] == nil {
			total[top] = &store.Instance{}
		}
		i := sums[span]
		answer.AddSums(total[top], &i)
	}
	for id := range ids {
		add(id, id)
	}
	tree.Below(ids, func(span, top store.SpanID) {
		if span != top {
			add(span, top)
		}
	})
	for j := range list {
		answer.AddSums(&list[j], total[list[j].Span])
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
	return list, nil
}
