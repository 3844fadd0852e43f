// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// stepSQL numbers durations d so that all with one number have one bucket: 64 times a power of two, and the upper bits
// of the duration in it. If the logarithm is off by one beside a power of two, the bucket is the same.
const (
	stepSQL  = "((greatest(d, 0) >> " + scaleSQL + ") + 64 * " + scaleSQL + ")"
	scaleSQL = "(floor(log2(greatest(d, 16)))::BIGINT - 4)"
)

// bucketSQL is store.Bucket of the column d, and stepBucketSQL that of the column step.
var (
	stepBucketSQL = "((step & 63) + 16 * (step >> 6) + CASE WHEN step < 16 THEN 0 ELSE 48 END)::USMALLINT"
	bucketSQL     = strings.ReplaceAll(stepBucketSQL, "step", stepSQL)
)

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
	order   uint64
}

// kernelPart sums operations by some of lane, shape, site (or place), chain and bucket; the others are 0. Without a
// shape it has kernels only.
type kernelPart struct {
	lane, shape, place, chain uint32
	bucket                    uint16
	n, sum, max, queue, bytes int64
	key                       []byte // of the chain
}

// where is the place of a part in the tree of scopes.
type where struct{ place, chain uint32 }

func (p *kernelPart) where() where { return where{p.place, p.chain} }

// rollupParts reads the statistics of the whole session, grouped by columns of stats.
func (v *view) rollupParts(ctx context.Context, lane, path bool) ([]kernelPart, error) {
	columns := []string{"0::UINTEGER", "shape", "0::UINTEGER", "0::UINTEGER", "bucket"}
	key := "stats"
	if lane {
		columns[0], key = "lane", key+" lane"
	}
	if path {
		columns[2], columns[3], key = "site", "chain", key+" path"
	}
	query := "SELECT " + strings.Join(columns, ", ") + ", sum(n)::BIGINT, " + lowBits("sum_ns") + ", max(max_ns), " + lowBits("queue_ns") + ", " +
		lowBits("bytes") + " FROM {stats} GROUP BY 1, 2, 3, 4, 5"
	if path {
		query = "SELECT p.*, c.key FROM (" + query + ") p LEFT JOIN " + latestChains + " c ON c.id = p.chain"
	} else {
		query = "SELECT *, NULL FROM (" + query + ")"
	}
	return cached(v, key, func() ([]kernelPart, int, error) {
		out, err := v.parts(ctx, query, nil)
		return out, len(out), err
	})
}

// by selects what statistics are by. With the stack, which takes the place of the lane, they are counts and sums of durations by
// shape, of kernels.
type by struct{ lane, shape, path, stack bool }

// rowParts reads the statistics of an interval from operations, or of its kernels if they are not by shape.
func (v *view) rowParts(ctx context.Context, by by, from, to int64) ([]kernelPart, error) {
	var f filter
	f.interval("start_ns", "", from, to, false)
	query := by.parts(&f)
	return v.parts(ctx, "SELECT *, NULL FROM ("+query+")", f.args)
}

// parts selects the columns of a kernelPart, without its key, from the operations that meet a condition.
func (by by) parts(f *filter) string {
	lane, shape, place, bucket, keys := "0::UINTEGER", "0::UINTEGER", "0::UINTEGER", stepBucketSQL, "step"
	sums, bytes := "max(greatest(d, 0)) AS m, "+lowBits(queueSQL)+" AS q", "0::UBIGINT"
	if by.lane {
		lane, keys = "lane", keys+", lane"
	}
	if by.shape {
		shape, bytes, keys = "shape", lowBits("bytes"), keys+", shape"
	}
	if by.stack {
		lane, bucket, keys = "stack", "0::USMALLINT", "shape, stack"
		sums, bytes = "0::BIGINT AS m, 0::UBIGINT AS q", "0::UBIGINT"
	}
	if !by.shape || by.stack {
		f.add("shape IN (SELECT id FROM {shapes} WHERE operation = 1)")
	}
	rows := "(SELECT * FROM {ops}" + f.where() + ")"
	if by.path {
		place, keys = "place", keys+", place"
		rows = "(SELECT o.* REPLACE (coalesce(g.first, 0)::UINTEGER AS place) FROM " + rows + " o LEFT JOIN place_groups g ON g.id = o.place)"
	}
	// Most of the time is that of the groups. A constant column and the bucket of each row would make them slower.
	return "SELECT " + lane + " AS lane, " + shape + " AS shape, " + place + " AS place, 0::UINTEGER AS chain, " + bucket + " AS bucket, n, s, m, q, b FROM (SELECT " + keys +
		", count(*) AS n, " + lowBits("greatest(d, 0)") + " AS s, " + sums + ", " + bytes + " AS b FROM (SELECT *, " + stepSQL + " AS step FROM (SELECT *, dur_ns AS d FROM " + rows +
		")) GROUP BY " + keys + ")"
}

// partsByPath is statistics with the paths that they refer to.
type partsByPath struct {
	parts []kernelPart
	paths map[where][]string
}

// pathParts reads the statistics of an interval by path, or of the whole session. While chains are stale,
// it reads operations.
func (v *view) pathParts(ctx context.Context, by by, from, to int64) (p partsByPath, err error) {
	if from == 0 && to == 0 && (!v.stale || v.dropped) {
		if p.parts, err = v.rollupParts(ctx, by.lane, true); err == nil {
			p.paths, err = v.partPaths(ctx, p.parts)
		}
		return p, err
	}
	return v.windowParts(ctx, by, from, to)
}

// windowParts reads the statistics of an interval from operations, by path.
func (v *view) windowParts(ctx context.Context, by by, from, to int64) (partsByPath, error) {
	return cached(v, fmt.Sprint("paths ", by, from, " ", to), func() (p partsByPath, n int, err error) {
		p, err = whileFresh(ctx, v, func() (partsByPath, error) { return v.rowPartsByPath(ctx, by, from, to, true) },
			func() (partsByPath, error) { return v.rowPartsByPath(ctx, by, from, to, false) })
		return p, len(p.parts), err
	})
}

// manyPlaces is the number of ids of places from which on it is faster to find the places of an interval first.
const manyPlaces = 1 << 17

// groupedParts is rowParts by path. There can be one place for each kernel, so the database groups places by what
// decides their path: the chain of the parent or, if chains are stale, the parent. One place stands for each group.
func (v *view) groupedParts(ctx context.Context, by by, from, to int64, chained bool) (out []kernelPart, err error) {
	conn, tx, end, err := v.s.beginTx(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	var f filter
	f.interval("start_ns", "", from, to, false)
	// Ids grow with time, so that the bounds skip most of a large dictionary.
	var first, last int64
	window := f.where()
	if err := tx.QueryRowContext(ctx, v.tables("SELECT coalesce(min(place), 0), coalesce(max(place), 0) FROM {ops}"+window), f.args...).Scan(&first, &last); err != nil {
		return nil, err
	}
	args, in := []any{first, last}, ""
	if last-first > v.s.manyPlaces {
		args, in = append(args, f.args...), " AND id IN (SELECT place FROM {ops}"+window+")"
	}
	parents := "(SELECT span, arg_min(chain, start_ns) AS chain FROM {spans} WHERE span IN (SELECT parent FROM p WHERE scope_path = '' AND parent != 0) GROUP BY 1)"
	if !chained {
		parents = "(SELECT DISTINCT parent AS span, parent AS chain FROM p)"
	}
	by.path = true
	query := "WITH p AS MATERIALIZED (SELECT DISTINCT id, parent, scope_name, scope_path FROM {places} WHERE id BETWEEN ? AND ?" + in + "), " +
		"c AS MATERIALIZED (SELECT min(id) AS first, list(id) AS ids, CASE WHEN scope_path = '' THEN chain END AS chain FROM p LEFT JOIN " + parents +
		" s ON s.span = p.parent GROUP BY scope_path, CASE WHEN scope_path = '' THEN scope_name END, 3), " +
		"place_groups AS (SELECT first, unnest(ids) AS id FROM c) "
	rows := by.parts(&f)
	if chained {
		query += "SELECT r.*, k.key FROM (" + rows + ") r LEFT JOIN c ON c.first = r.place LEFT JOIN " + latestChains + " k ON k.id = c.chain AND k.state = 0"
	} else {
		query += "SELECT *, NULL FROM (" + rows + ")"
	}
	err = scanOn(ctx, v, conn, query, append(args, f.args...), fillPart, appendTo(&out))
	return out, err
}

// rowPartsByPath is groupedParts with the paths.
func (v *view) rowPartsByPath(ctx context.Context, by by, from, to int64, chained bool) (p partsByPath, err error) {
	if p.parts, err = v.groupedParts(ctx, by, from, to, chained); err != nil {
		return p, err
	}
	ids := idSet{}
	for i := range p.parts {
		ids.add(p.parts[i].place)
	}
	places, err := v.places(ctx, ids)
	if err != nil {
		return p, err
	}
	t := scopePaths{map[store.SpanID][]string{}, v.folds}
	if !chained {
		if t, err = v.pathsOf(ctx, places); err != nil {
			return p, err
		}
	}
	p.paths = map[where][]string{}
	for i := range p.parts {
		x := &p.parts[i]
		if _, ok := p.paths[x.where()]; ok {
			continue
		}
		place := orEmpty(places[x.place])
		if x.key != nil {
			t.spans[place.Parent] = v.folds.Names(splitKey(string(x.key)))
		}
		p.paths[x.where()] = t.place(place)
	}
	return p, nil
}

// partPaths returns the paths of parts of rollups.
func (v *view) partPaths(ctx context.Context, parts []kernelPart) (map[where][]string, error) {
	ids := idSet{}
	for i := range parts {
		ids.add(parts[i].place)
	}
	places, err := v.sites(ctx, ids)
	if err != nil {
		return nil, err
	}
	paths, err := v.pathsOf(ctx, places)
	if err != nil {
		return nil, err
	}
	out := map[where][]string{}
	for i := range parts {
		p := &parts[i]
		if _, ok := out[p.where()]; ok {
			continue
		}
		if p.chain != 0 {
			out[p.where()] = v.folds.Names(splitKey(string(p.key)))
		} else {
			out[p.where()] = paths.place(orEmpty(places[p.place]))
		}
	}
	return out, nil
}

// partColumns are the columns of a kernelPart before its key.
var partColumns = [...]string{"lane", "shape", "place", "chain", "bucket", "n", "sum_ns", "max_ns", "queue_ns", "bytes"}

// partColumn returns a value of partColumns. If it has another type, it sets err.
func partColumn[T any](values []driver.Value, i int, err *error) T {
	x, ok := values[i].(T)
	if !ok {
		*err = fmt.Errorf("the column %s of the statistics is %T", partColumns[i], values[i])
	}
	return x
}

func fillPart(p *kernelPart, values []driver.Value) (err error) {
	p.lane, p.shape = partColumn[uint32](values, 0, &err), partColumn[uint32](values, 1, &err)
	p.place, p.chain = partColumn[uint32](values, 2, &err), partColumn[uint32](values, 3, &err)
	p.bucket, p.n, p.max = partColumn[uint16](values, 4, &err), partColumn[int64](values, 5, &err), partColumn[int64](values, 7, &err)
	// The low 64 bits.
	p.sum, p.queue, p.bytes = int64(partColumn[uint64](values, 6, &err)), int64(partColumn[uint64](values, 8, &err)), int64(partColumn[uint64](values, 9, &err))
	p.key, _ = values[10].([]byte)
	return err
}

func (v *view) parts(ctx context.Context, query string, args []any) (out []kernelPart, err error) {
	err = scan(ctx, v, query, args, fillPart, appendTo(&out))
	return out, err
}

// appendTo returns a function that appends blocks to a list.
func appendTo[T any](list *[]T) func([]T) error {
	return func(block []T) error {
		*list = append(*list, block...)
		return nil
	}
}

// kernelParts returns the statistics that a query needs, and their paths if the query has paths.
func (v *view) kernelParts(ctx context.Context, q *store.KernelQuery) (parts []kernelPart, names map[where][]string, err error) {
	by := by{lane: q.Group == store.GroupLane, shape: q.Group == store.GroupName || q.Group == store.GroupShape || q.Text != ""}
	switch {
	case q.Group == store.GroupPath || q.Path != nil:
		p, err := v.pathParts(ctx, by, q.From, q.To)
		return p.parts, p.paths, err
	case q.From != 0 || q.To != 0:
		parts, err = cached(v, fmt.Sprint("kernels ", by, q.From, " ", q.To), func() ([]kernelPart, int, error) {
			out, err := v.rowParts(ctx, by, q.From, q.To)
			return out, len(out), err
		})
	default:
		parts, err = v.rollupParts(ctx, by.lane, false)
	}
	return parts, nil, err
}

func (v *view) kernels(ctx context.Context, q store.KernelQuery) ([]store.KernelStat, error) {
	parts, names, err := v.kernelParts(ctx, &q)
	if err != nil {
		return nil, err
	}
	laneIDs, shapeIDs := idSet{}, idSet{}
	for i := range parts {
		laneIDs.add(parts[i].lane)
		shapeIDs.add(parts[i].shape)
	}
	shapes, err := v.shapes(ctx, shapeIDs)
	if err != nil {
		return nil, err
	}
	order := map[uint32]uint64{} // of lanes and paths
	paths, below := map[where]uint32{}, map[where]bool{}
	v.kernelPaths(q, names, paths, below, order)
	if q.Group == store.GroupLane {
		if err := v.orderLanes(ctx, laneIDs, order); err != nil {
			return nil, err
		}
	}
	groups := map[kernelKey]*kernelGroup{}
	for _, p := range parts {
		shape := orEmpty(shapes[p.shape])
		kernel := p.shape == 0 || shape.Operation == store.OpKernel && (store.ContainsFold(shape.Name, q.Text) || store.ContainsFold(shape.FullName, q.Text))
		if !kernel || q.Path != nil && !below[p.where()] {
			continue
		}
		var k kernelKey
		var o uint64
		switch q.Group {
		case store.GroupName:
			k.name = shape.Name
		case store.GroupShape:
			k, o = kernelKey{shape.Name, p.shape}, shape.Key
		case store.GroupPath:
			k.id = paths[p.where()]
			o = order[k.id]
		case store.GroupLane:
			k.id, o = p.lane, order[p.lane]
		}
		g := groups[k]
		if g == nil {
			g = &kernelGroup{store.KernelStat{Name: k.name, ID: k.id}, answer.Histogram{}, o}
			groups[k] = g
		}
		g.Count += p.n
		g.SumNs += p.sum
		g.MaxNs = max(g.MaxNs, p.max)
		g.QueueNs += p.queue
		g.buckets[p.bucket] += p.n
	}
	var out []store.KernelStat
	for _, g := range slices.SortedFunc(maps.Values(groups), func(a, b *kernelGroup) int {
		return cmp.Or(cmp.Compare(b.SumNs, a.SumNs), cmp.Compare(a.Name, b.Name), cmp.Compare(a.order, b.order))
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

// orderLanes finds the order of lanes.
func (v *view) orderLanes(ctx context.Context, ids idSet, order map[uint32]uint64) error {
	entries, err := v.lanes(ctx, ids)
	if err != nil {
		return err
	}
	sorted := slices.SortedFunc(maps.Keys(ids), func(a, b uint32) int {
		return answer.CompareLanes(orEmpty(entries[a]), orEmpty(entries[b]))
	})
	for i, id := range sorted {
		order[id] = uint64(i) + 1
	}
	return nil
}

// kernelPaths finds the id of each path, whether it is below the path of the query, and the order of
// paths.
func (v *view) kernelPaths(q store.KernelQuery, names map[where][]string, paths map[where]uint32, below map[where]bool, order map[uint32]uint64) {
	all := map[uint32][]string{}
	for at, names := range names {
		paths[at] = v.pathID(names)
		all[paths[at]] = names
		for n := range len(names) + 1 {
			below[at] = below[at] || q.Path != nil && v.pathID(names[:n]) == *q.Path
		}
	}
	sorted := slices.SortedFunc(maps.Keys(all), func(a, b uint32) int { return slices.Compare(all[a], all[b]) })
	for i, id := range sorted {
		order[id] = uint64(i) + 1
	}
}
