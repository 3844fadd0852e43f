// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// longBins is the number of bins from which an operation is long. Readers spread long operations over
// bins in Go, because a row for each bin would have no bound.
const longBins = 64

// longNs is the shortest duration of an operation in gpu_long.
const longNs = longBins << 22

// binsSQL sums operations by bins of width from base. It leaves out the busy time of long operations.
// Bins may begin before base. The condition selects operations.
func binsSQL(base, width int64, condition string) string {
	return fmt.Sprintf(`SELECT Lane, Bin, toInt64(countIf(Bin = a)), sum(if(d >= %[3]d, 0, least(StartNs + d, %[1]d + (Bin + 1) * %[2]d) - greatest(StartNs, %[1]d + Bin * %[2]d))),
	-tupleElement(minIf(tuple(-d, StartNs, Shape), Bin = a) AS top, 1), tupleElement(top, 2), tupleElement(top, 3) FROM (
	SELECT Lane, Shape, StartNs, greatest(DurationNs, 0) AS d,
	intDiv(StartNs - %[1]d - if(StartNs < %[1]d, %[2]d - 1, 0), %[2]d) AS a,
	intDiv(StartNs + greatest(d - 1, 0) - %[1]d - if(StartNs + greatest(d - 1, 0) < %[1]d, %[2]d - 1, 0), %[2]d) AS z
	FROM gpu_ops FINAL%[4]s) ARRAY JOIN range(a, if(d >= %[3]d, a, z) + 1) AS Bin GROUP BY Lane, Bin`, base, width, satMul(longBins, width), condition)
}

func satMul(a, b int64) int64 {
	if b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}

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
	b := answer.NewBins(from, width, from+(to-from+width-1)/width*width)
	selected, err := v.keysOf(ctx, 1, v.sess.lanes, q.Lanes)
	if err != nil {
		return t, err
	}
	switch {
	case level > 0 && v.rollups() && !v.lacks(ctx, level):
		err = v.binsOfLevel(ctx, b, level, len(q.Lanes) > 0, selected)
	case !v.dropped:
		err = v.binsOfRows(ctx, b, len(q.Lanes) > 0, selected)
	}
	if err != nil {
		return store.Timeline{}, err
	}
	b.Finish()
	order := map[uint32]int{}
	for i, l := range lanes {
		order[l.ID] = i
	}
	for k, x := range b.Sums {
		if x.N == 0 && x.BusyNs == 0 {
			continue
		}
		bin := store.Bin{Lane: v.sess.lanes.ID(k.Lane), Index: uint32(k.Index), Count: x.N, BusyNs: x.BusyNs}
		if x.N > 0 {
			bin.TopNs, bin.TopShape, bin.TopStart = x.Top.Ns, v.sess.shapes.ID(x.Top.Shape), x.Top.StartNs
		}
		t.Bins = append(t.Bins, bin)
	}
	slices.SortFunc(t.Bins, func(a, b store.Bin) int {
		return cmp.Or(cmp.Compare(order[a.Lane], order[b.Lane]), cmp.Compare(a.Index, b.Index))
	})
	return t, nil
}

// add reads rows of binsSQL. Bin i begins at base + i*width.
func (v *view) add(ctx context.Context, b *answer.Bins, query string, args []any, base, width int64) error {
	return v.s.each(ctx, query, args, func(r driver.Rows) error {
		var lane uint64
		var index, n, busy int64
		var top answer.TopOp
		err := r.Scan(&lane, &index, &n, &busy, &top.Ns, &top.StartNs, &top.Shape)
		if start := base + index*width; start >= b.From && start < b.End {
			b.Add(lane, (start-b.From)/b.Width, n, busy, top)
		}
		return err
	})
}

func (v *view) long(ctx context.Context, b *answer.Bins, query string, args []any) error {
	return v.s.each(ctx, query, args, func(r driver.Rows) error {
		var lane uint64
		var start, dur int64
		err := r.Scan(&lane, &start, &dur)
		b.Busy(lane, start, start+dur)
		return err
	})
}

// lacks reports whether a build without the finest level has computed the sums. After retention has dropped
// the rows, there is nothing else to read.
func (v *view) lacks(ctx context.Context, level uint8) bool {
	if level != store.Levels[0] || v.dropped {
		return false
	}
	has, err := cached(v, "finest level", func() (has bool, err error) {
		f := v.filter()
		f.add("Rollup = ? AND Level = ?", v.seal.rollup, int64(level))
		return has, v.s.each(ctx, "SELECT count() > 0 FROM gpu_lod"+f.where(), f.args, func(r driver.Rows) error { return r.Scan(&has) })
	})
	return err == nil && !has
}

func (v *view) binsOfLevel(ctx context.Context, b *answer.Bins, level uint8, some bool, lanes []uint64) error {
	f := v.filter()
	f.add("Rollup = ?", v.seal.rollup)
	if some {
		f.in("Lane", lanes)
	}
	long := *f
	f.add("Level = ? AND Bin >= ? AND Bin < ?", int64(level), b.From>>level, b.End>>level)
	if err := v.add(ctx, b, "SELECT Lane, Bin, N, BusyNs, TopNs, TopStartNs, TopShape FROM gpu_lod FINAL"+f.where(), f.args, 0, 1<<level); err != nil {
		return err
	}
	long.add("DurationNs >= ? AND StartNs < ? AND StartNs + DurationNs > ?", int64(longBins)<<level, b.End, b.From)
	return v.long(ctx, b, "SELECT Lane, StartNs, DurationNs FROM gpu_long FINAL"+long.where(), long.args)
}

func (v *view) binsOfRows(ctx context.Context, b *answer.Bins, some bool, lanes []uint64) error {
	f := v.filter()
	if some {
		f.in("Lane", lanes)
	}
	// An operation at the first moment of the bins counts, also if it has no length.
	f.add("StartNs < ? AND StartNs + greatest(DurationNs, 0) >= ?", b.End, b.From)
	if err := v.add(ctx, b, binsSQL(b.From, b.Width, f.where()), f.args, b.From, b.Width); err != nil {
		return err
	}
	f.add("DurationNs >= ?", satMul(longBins, b.Width))
	return v.long(ctx, b, "SELECT Lane, StartNs, DurationNs FROM gpu_ops FINAL"+f.where(), f.args)
}

// Gaps implements [store.Reader].
func (s *Store) Gaps(ctx context.Context, q store.GapQuery) (store.Gaps, error) {
	return read(ctx, s, q.Project, q.Session, "read gaps", func(v *view) (store.Gaps, error) {
		n, err := answer.Limits(q.From, q.To, q.Limit, 100, 10_000)
		if err != nil {
			return store.Gaps{}, err
		}
		return v.gaps(ctx, q, n)
	})
}

// gaps reads the kernels that start in the interval of the query, the largest end of those before it,
// and the first kernels after it.
func (v *view) gaps(ctx context.Context, q store.GapQuery, n int) (store.Gaps, error) {
	to := q.To
	if to == 0 {
		to = math.MaxInt64
	}
	f := v.filter()
	f.add("Operation = 1")
	if q.Device != "" {
		f.add("Lane IN (SELECT Key FROM gpu_lanes WHERE Project = ? AND Session = ? AND Device = ?)", v.key.project, v.key.session, q.Device)
	}
	// The device of lane 0 is unknown. The largest x is that of the kernel that ended last, of several the
	// first.
	kernels := `k AS (SELECT o.StartNs AS s, o.Span AS span, o.Shape AS shape, l.Device AS device, tuple(s + greatest(o.DurationNs, 0), -s, bitNot(span)) AS x FROM
		(SELECT StartNs, DurationNs, Span, Shape, Lane FROM gpu_ops FINAL` + f.where() + `) AS o LEFT JOIN
		(SELECT Key, any(Device) AS Device FROM gpu_lanes WHERE Project = ? AND Session = ? GROUP BY Key) AS l ON l.Key = o.Lane)`
	args := append(f.args, v.key.project, v.key.session)
	part := fmt.Sprintf("SELECT s, x, span, shape, device FROM k WHERE s >= %d AND s < %d", q.From, to)
	if q.From != 0 {
		part += fmt.Sprintf(" UNION ALL SELECT toInt64(-1), max(x), toUInt64(0), toUInt64(0), device FROM k WHERE s < %d GROUP BY device", q.From)
	}
	if q.To != 0 {
		part += fmt.Sprintf(" UNION ALL SELECT s, x, span, shape, device FROM k WHERE (device, s) IN (SELECT device, min(s) FROM k WHERE s >= %d GROUP BY device)", q.To)
	}
	reaches, inside := fmt.Sprintf("begin >= %d", q.From), "s - begin"
	if q.Overlapping {
		reaches, inside = fmt.Sprintf("s > %d", q.From), fmt.Sprintf("least(s, %d) - greatest(begin, %d)", to, q.From)
	}
	query := "WITH " + kernels + fmt.Sprintf(`, g AS (SELECT device, s, span, shape, tupleElement(b, 1) AS begin, b FROM (
		SELECT device, s, span, shape, max(x) OVER w AS b, count() OVER w AS n FROM (%s)
		WINDOW w AS (PARTITION BY device ORDER BY s, span ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
		WHERE n > 0 AND s > begin AND %s AND begin < %d)
	SELECT n, total, device, begin, -tupleElement(b, 2), bitNot(tupleElement(b, 3)), s, span, shape FROM (SELECT toInt64(count()) AS n, sum(%s) AS total,
		groupArraySortedIf(%d)(tuple(begin - s, begin, device, s, span, shape, b), s - begin >= %d) AS longest FROM g)
	LEFT ARRAY JOIN longest.2 AS begin, longest.3 AS device, longest.4 AS s, longest.5 AS span, longest.6 AS shape, longest.7 AS b`,
		part, reaches, to, inside, n, max(q.MinNs, store.MinGapNs))
	var a store.Gaps
	err := v.s.each(ctx, query, args, func(r driver.Rows) error {
		var g store.Gap
		var shape uint64
		err := r.Scan(&a.Count, &a.SumNs, &g.Device, &g.StartNs, &g.BeforeStart, (*uint64)(&g.Before), &g.EndNs, (*uint64)(&g.After), &shape)
		if g.EndNs == 0 {
			return err // no gap is that long
		}
		g.AfterStart, g.AfterShape = g.EndNs, v.sess.shapes.ID(shape)
		a.Longest = append(a.Longest, g)
		return err
	})
	return a, err
}
