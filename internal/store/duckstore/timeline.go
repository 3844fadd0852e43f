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

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// Timeline implements [store.Reader].
func (s *Store) Timeline(ctx context.Context, q store.TimelineQuery) (store.Timeline, error) {
	return read(ctx, s, q.Project, q.Session, "read timeline", func(v *view) (store.Timeline, error) {
		if _, err := answer.Limits(q.From, q.To, 0, 0, 0); err != nil {
			return store.Timeline{}, err
		}
		if q.Bins < 1 || q.Bins > 4000 {
			return store.Timeline{}, fmt.Errorf("%d bins: %w", q.Bins, store.ErrInvalid)
		}
		return v.timeline(ctx, q)
	})
}

type binSum struct {
	lane           uint32
	index, n, busy int64
	top            topOp
}

// bins are the bins of a timeline. Bin i begins at from + i*width.
type bins struct {
	from, width, end int64
	sums             []binSum
	places           map[uint64]int32 // in sums, by lane and index
	// whole has, by lane and bin, the change of the number of operations that cover bins entirely.
	whole map[uint32]map[int64]int64
}

// add adds the operations of a bin.
func (b *bins) add(s *binSum) {
	key := uint64(s.lane)<<32 | uint64(s.index)
	i, ok := b.places[key]
	if !ok {
		b.places[key] = int32(len(b.sums))
		b.sums = append(b.sums, *s)
		return
	}
	old := &b.sums[i]
	if s.n > 0 && (old.n == 0 || s.top.before(&old.top)) {
		old.top = s.top
	}
	old.n += s.n
	old.busy += s.busy
}

// busy adds the time from start to end to the bins that it touches.
func (b *bins) busy(lane uint32, start, end int64) {
	start, end = max(start, b.from), min(end, b.end)
	if end <= start {
		return
	}
	first, last := (start-b.from)/b.width, (end-1-b.from)/b.width
	add := func(i int64) {
		begin := b.from + i*b.width
		b.add(&binSum{lane: lane, index: i, busy: min(end, begin+b.width) - max(start, begin)})
	}
	add(first)
	if last > first {
		add(last)
	}
	if last > first+1 {
		if b.whole[lane] == nil {
			b.whole[lane] = map[int64]int64{}
		}
		b.whole[lane][first+1]++
		b.whole[lane][last]--
	}
}

// finish adds the operations that cover bins entirely.
func (b *bins) finish() {
	for lane, changes := range b.whole {
		cover := int64(0)
		indices := slices.Sorted(maps.Keys(changes))
		for n, i := range indices {
			if cover += changes[i]; cover == 0 {
				continue
			}
			for j := i; j < indices[n+1]; j++ {
				b.add(&binSum{lane: lane, index: j, busy: cover * b.width})
			}
		}
	}
}

func (v *view) timeline(ctx context.Context, q store.TimelineQuery) (store.Timeline, error) {
	lanes, err := v.laneInfos(ctx)
	if err != nil || len(lanes) == 0 {
		return store.Timeline{}, err
	}
	from, to := q.From, q.To
	if from == 0 {
		from = slices.MinFunc(lanes, func(a, b store.LaneInfo) int { return cmp.Compare(a.FirstNs, b.FirstNs) }).FirstNs
	}
	if to == 0 {
		to = slices.MaxFunc(lanes, func(a, b store.LaneInfo) int { return cmp.Compare(a.LastNs, b.LastNs) }).LastNs + 1
	}
	if to <= from {
		return store.Timeline{}, nil
	}
	level, from, width := store.PlanTimeline(from, to, q.Bins)
	t := store.Timeline{From: from, Width: width}
	b := &bins{
		from: from, width: width, end: from + (to-from+width-1)/width*width, places: map[uint64]int32{},
		whole: map[uint32]map[int64]int64{},
	}
	inLanes := ""
	if len(q.Lanes) > 0 {
		inLanes = " AND lane IN (" + joinIDs(q.Lanes) + ")"
	}
	switch {
	case level > store.Levels[0] || level > 0 && !v.coarse:
		err = v.binsOfLevel(ctx, b, level, inLanes)
	case !v.dropped:
		err = v.binsOfRows(ctx, b, inLanes)
	}
	if err != nil {
		return store.Timeline{}, err
	}
	b.finish()
	order := map[uint32]uint64{}
	for i, l := range lanes {
		order[l.ID] = uint64(i)
	}
	// There can be 100,000 bins, so the order is of numbers.
	type placed struct {
		key uint64
		sum *binSum
	}
	list := make([]placed, 0, len(b.sums))
	for i := range b.sums {
		if s := &b.sums[i]; s.n != 0 || s.busy != 0 {
			list = append(list, placed{order[s.lane]<<32 | uint64(s.index), s})
		}
	}
	slices.SortFunc(list, func(a, b placed) int { return cmp.Compare(a.key, b.key) })
	t.Bins = make([]store.Bin, len(list))
	for i, p := range list {
		s := p.sum
		t.Bins[i] = store.Bin{
			Lane: s.lane, Index: uint32(s.index), Count: s.n, BusyNs: s.busy,
			TopNs: s.top.ns, TopShape: s.top.shape, TopStart: s.top.start,
		}
	}
	return t, nil
}

// binsOfLevel reads a level of detail. Bins begin and end with bins of the level.
func (v *view) binsOfLevel(ctx context.Context, b *bins, level uint8, inLanes string) error {
	query := "SELECT lane, (bin * $1 - $2) // $3 AS b, sum(n)::BIGINT, " + lowBits("busy_ns") + ", " + topSQL + " AS top FROM {lod}" +
		" WHERE level = $4 AND bin >= $5 AND bin < $6" + inLanes + " GROUP BY 1, 2"
	query = "SELECT * EXCLUDE (top), coalesce(top.d, 0), coalesce(top.shape, 0)::UINTEGER, coalesce(top.k, 0)::UBIGINT, coalesce(top.s, 0) FROM (" + query + ")"
	if b.width < 1<<(64-rankBits) {
		query = fmt.Sprintf("WITH k AS ("+v.ranksSQL()+"), o AS (SELECT *, (bin * $1 - $2) // $3 AS b FROM {lod} LEFT JOIN k ON k.id = top_shape WHERE level = $4 AND bin >= $5 AND bin < $6"+inLanes+
			") SELECT lane, b, n, busy, coalesce((top >> 64)::BIGINT, 0), coalesce(id, 0)::UINTEGER, coalesce(key, 0)::UBIGINT, coalesce($2 + (b + 1) * $3 - ((top & 18446744073709551615::HUGEINT) >> %[1]d)::BIGINT, 0) FROM ("+
			"SELECT lane, b, sum(n)::BIGINT AS n, "+lowBits("busy_ns")+" AS busy, max((top_ns::HUGEINT << 64) + ((($2 + (b + 1) * $3 - top_start)::HUGEINT << %[1]d) + coalesce(rank, 0))) FILTER (n > 0) AS top "+
			"FROM o GROUP BY 1, 2) LEFT JOIN k ON k.rank = (top & ((1 << %[1]d) - 1))::BIGINT", rankBits)
	}
	args := []any{int64(1) << level, b.from, b.width, int64(level), b.from >> level, b.end >> level}
	if err := v.each(ctx, query, args, func(r *sql.Rows) error {
		s, err := scanBin(r)
		b.add(&s)
		return err
	}); err != nil {
		return err
	}
	return v.each(ctx, "SELECT lane, start_ns, end_ns FROM {long_ops} WHERE level >= ? AND start_ns < ? AND end_ns > ?"+inLanes,
		[]any{int64(level), b.end, b.from}, func(r *sql.Rows) error {
			var o longOp
			err := r.Scan(&o.lane, &o.start, &o.end)
			b.busy(o.lane, o.start, o.end)
			return err
		})
}

func scanBin(r *sql.Rows) (s binSum, err error) {
	err = r.Scan(&s.lane, &s.index, &s.n, wrapped{&s.busy}, &s.top.ns, &s.top.shape, &s.top.key, &s.top.start)
	return s, err
}

// rankBits is the number of bits for the rank of a shape in the order of keys.
const rankBits = 26

// ranksSQL selects shapes with their ranks: the largest one has the smallest key.
func (v *view) ranksSQL() string {
	return fmt.Sprintf("SELECT id, key, (1 << %d) - row_number() OVER (ORDER BY key, id) AS rank FROM %s", rankBits, v.dict(shapes))
}

// binsOfRows reads operations: sums of those within one bin, and the others one by one.
//
// The longest operation of a bin, here and in binsOfLevel, has the largest number of its duration, the
// time from its start to an end, and its rank. An aggregate of a structure takes ten times as long.
func (v *view) binsOfRows(ctx context.Context, b *bins, inLanes string) error {
	ops := "SELECT lane, shape, start_ns AS s, greatest(dur_ns, 0) AS d FROM {ops} WHERE start_ns >= $4 AND start_ns < $3 AND (start_ns >= $1 OR start_ns + dur_ns > $1)" + inLanes
	const within = "s >= $1 AND (s + greatest(d - 1, 0) - $1) // $2 = (s - $1) // $2"
	query := fmt.Sprintf("WITH k AS ("+v.ranksSQL()+"), o AS MATERIALIZED ("+ops+
		") SELECT lane, b, n, busy, (top >> 64)::BIGINT, coalesce(id, 0)::UINTEGER, coalesce(key, 0)::UBIGINT, $3 - ((top & 18446744073709551615::HUGEINT) >> %[1]d)::BIGINT FROM ("+
		"SELECT lane, (s - $1) // $2 AS b, count(*) AS n, "+lowBits("d")+" AS busy, max((d::HUGEINT << 64) + ((($3 - s) << %[1]d) + coalesce(rank, 0))) AS top "+
		"FROM o LEFT JOIN k ON k.id = shape WHERE "+within+" GROUP BY 1, 2) LEFT JOIN k ON k.rank = (top & ((1 << %[1]d) - 1))::BIGINT "+
		"UNION ALL SELECT lane, -1, 1, 0::UBIGINT, d, shape, coalesce(key, 0)::UBIGINT, s FROM o LEFT JOIN k ON k.id = shape WHERE NOT ("+within+") "+
		"UNION ALL SELECT lane, -1, 1, 0::UBIGINT, end_ns - start_ns, 0::UINTEGER, 0::UBIGINT, start_ns FROM {long_ops} WHERE start_ns < $4 AND end_ns > $1"+inLanes, rankBits)
	return v.each(ctx, query, []any{b.from, b.width, b.end, b.from - shortNs}, func(r *sql.Rows) error {
		s, err := scanBin(r)
		if err != nil {
			return err
		}
		if s.index >= 0 {
			b.add(&s)
			return nil
		}
		start, end := s.top.start, s.top.start+s.top.ns
		if start >= b.from {
			s.index = (start - b.from) / b.width
			b.add(&s)
		}
		b.busy(s.lane, start, end)
		return nil
	})
}
