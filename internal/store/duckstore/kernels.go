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
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// bucketSQL is store.Bucket of the column d.
const bucketSQL = `CASE WHEN d < 16 THEN d ELSE (length(bin(d)) - 1) * 16 + ((d >> (length(bin(d)) - 5)::BIGINT) & 15) END::USMALLINT`

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

// kernelPart sums operations by some of lane, shape, site (or place) and bucket; the others are 0.
type kernelPart struct {
	lane, shape, place        uint32
	bucket                    uint16
	n, sum, max, queue, bytes int64
}

// rollupParts reads the statistics of the whole session, grouped by columns of stats.
func (v *view) rollupParts(ctx context.Context, lane, site bool) ([]kernelPart, error) {
	columns, key := "0::UINTEGER, shape, 0::UINTEGER, bucket", "stats"
	if lane {
		columns, key = strings.Replace(columns, "0::UINTEGER", "lane", 1), key+" lane"
	}
	if site {
		columns, key = strings.Replace(columns, "shape, 0::UINTEGER", "shape, site", 1), key+" site"
	}
	return cached(v, key, func() ([]kernelPart, int, error) {
		out, err := v.parts(ctx, "SELECT "+columns+", sum(n)::BIGINT, "+lowBits("sum_ns")+", max(max_ns), "+lowBits("queue_ns")+", "+
			lowBits("bytes")+" FROM {stats} GROUP BY 1, 2, 3, 4", nil)
		return out, len(out), err
	})
}

func (v *view) parts(ctx context.Context, query string, args []any) ([]kernelPart, error) {
	var out []kernelPart
	err := v.each(ctx, query, args, func(r *sql.Rows) error {
		var p kernelPart
		err := r.Scan(&p.lane, &p.shape, &p.place, &p.bucket, &p.n, wrapped{&p.sum}, &p.max, wrapped{&p.queue}, wrapped{&p.bytes})
		out = append(out, p)
		return err
	})
	return out, err
}

func (v *view) kernels(ctx context.Context, q store.KernelQuery) ([]store.KernelStat, error) {
	byPath := q.Group == store.GroupPath || q.Path != nil
	placesOf := v.sites
	var parts []kernelPart
	var err error
	if q.From == 0 && q.To == 0 {
		parts, err = v.rollupParts(ctx, q.Group == store.GroupLane, byPath)
	} else {
		var f filter
		f.interval("start_ns", "", q.From, q.To, false)
		lane, place := "0::UINTEGER", "0::UINTEGER"
		if q.Group == store.GroupLane {
			lane = "lane"
		}
		if byPath {
			place = "place"
		}
		placesOf = v.places
		parts, err = cached(v, fmt.Sprint("kernels ", lane, place, q.From, " ", q.To), func() ([]kernelPart, int, error) {
			out, err := v.parts(ctx, "SELECT "+lane+", shape, "+place+", "+bucketSQL+", count(*), "+lowBits("d")+", max(d), "+lowBits(queueSQL)+
				", 0::UBIGINT FROM (SELECT *, greatest(dur_ns, 0) AS d FROM {ops}"+f.where()+") GROUP BY 1, 2, 3, 4", f.args)
			return out, len(out), err
		})
	}
	if err != nil {
		return nil, err
	}
	laneIDs, shapeIDs, placeIDs := idSet{}, idSet{}, idSet{}
	for i := range parts {
		laneIDs.add(parts[i].lane)
		shapeIDs.add(parts[i].shape)
		placeIDs.add(parts[i].place)
	}
	shapes, err := v.shapes(ctx, shapeIDs)
	if err != nil {
		return nil, err
	}
	order := map[uint32]uint64{} // of lanes and paths
	paths, below := map[uint32]uint32{}, map[uint32]bool{}
	if byPath {
		places, err := placesOf(ctx, placeIDs)
		if err == nil {
			err = v.kernelPaths(ctx, q, places, paths, below, order)
		}
		if err != nil {
			return nil, err
		}
	}
	if q.Group == store.GroupLane {
		entries, err := v.lanes(ctx, laneIDs)
		if err != nil {
			return nil, err
		}
		sorted := slices.SortedFunc(maps.Keys(laneIDs), func(a, b uint32) int {
			return answer.CompareLanes(orEmpty(entries[a]), orEmpty(entries[b]))
		})
		for i, id := range sorted {
			order[id] = uint64(i) + 1
		}
	}
	groups := map[kernelKey]*kernelGroup{}
	for _, p := range parts {
		shape := orEmpty(shapes[p.shape])
		if shape.Operation != store.OpKernel || !store.ContainsFold(shape.Name, q.Text) && !store.ContainsFold(shape.FullName, q.Text) ||
			q.Path != nil && !below[p.place] {
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
			k.id = paths[p.place]
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

// kernelPaths finds the path of each place, whether it is below the path of the query, and the order
// of paths.
func (v *view) kernelPaths(ctx context.Context, q store.KernelQuery, places map[uint32]*store.Place, paths map[uint32]uint32,
	below map[uint32]bool, order map[uint32]uint64) error {
	t, err := v.pathsOf(ctx, places)
	if err != nil {
		return err
	}
	all := map[uint32][]string{}
	resolve := func(id uint32) {
		names := t.place(orEmpty(places[id]))
		paths[id] = v.pathID(names)
		all[paths[id]] = names
		for n := range len(names) + 1 {
			below[id] = below[id] || q.Path != nil && v.pathID(names[:n]) == *q.Path
		}
	}
	resolve(0)
	for id := range places {
		resolve(id)
	}
	sorted := slices.SortedFunc(maps.Keys(all), func(a, b uint32) int { return slices.Compare(all[a], all[b]) })
	for i, id := range sorted {
		order[id] = uint64(i) + 1
	}
	return nil
}
