// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"math"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// Busy implements [store.Reader].
func (s *Store) Busy(ctx context.Context, q store.BusyQuery) ([]int64, error) {
	return read(ctx, s, q.Project, q.Session, "read busy time", func(v *view) ([]int64, error) {
		bounds, err := answer.Bounds(&q)
		before := map[int64]int64{}
		if err == nil && len(bounds) > 0 {
			err = v.busyBefore(ctx, q.Device, bounds, before)
		}
		return answer.Busy(&q, before), err
	})
}

// busyBefore finds how long a kernel ran on the devices before each of some times, which ascend. The busy
// time of a device is the time from its first kernel to the latest end, without the gaps in between. The
// bins of gap_bins have both at their start. So it reads the kernels of the bins of the times, and those
// that gap_bins does not have yet.
func (v *view) busyBefore(ctx context.Context, device string, times []int64, before map[int64]int64) error {
	tx, err := v.s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	tail := int64(0) // the first bin that gap_bins does not have
	var ranges [][2]int64
	add := func(bin int64) {
		switch {
		case bin < tail:
			ranges = append(ranges, [2]int64{bin << gapLevel, (bin + 1) << gapLevel})
		default:
			ranges = append(ranges, [2]int64{tail << gapLevel, math.MaxInt64})
		}
	}
	err = eachRow(ctx, tx, v.tables("SELECT coalesce(max(bin), -1) + 1 FROM {gap_bins}"), nil, func(r *sql.Rows) error { return r.Scan(&tail) })
	if err == nil {
		// The first bin of each device has its first kernel.
		err = eachRow(ctx, tx, v.tables("SELECT DISTINCT min(bin) FROM {gap_bins} WHERE ? IN ('', device) GROUP BY device"), []any{device}, func(r *sql.Rows) error {
			var bin int64
			err := r.Scan(&bin)
			add(bin)
			return err
		})
	}
	if err != nil {
		return err
	}
	for i, t := range times {
		if i == 0 || t>>gapLevel != times[i-1]>>gapLevel {
			add(t >> gapLevel)
		}
	}
	// Kernels of a bin that start at one time have one state: that after all of them.
	query := "WITH t AS MATERIALIZED (SELECT x AS t, least(x >> $1, $2) AS bin FROM (SELECT unnest($4::BIGINT[]) AS x)), " +
		"g AS MATERIALIZED (SELECT device, bin, sum(sum_ns) AS idle, max(reach_ns) AS reach FROM {gap_bins} WHERE $3 IN ('', device) GROUP BY 1, 2), " +
		"c AS MATERIALIZED (SELECT device, bin, sum(idle) OVER w AS idle, max(reach) OVER w AS reach FROM g WINDOW w AS (PARTITION BY device ORDER BY bin)), " +
		"k AS MATERIALIZED (SELECT device, least(s >> $1, $2) AS bin, s, max(e) AS e FROM (" + v.kernelsSQL(rangesSQL(ranges)) + ") WHERE $3 IN ('', device) " +
		"AND (least(s >> $1, $2) IN (SELECT bin FROM t) OR (device, s >> $1) IN (SELECT device, min(bin) FROM g GROUP BY device)) GROUP BY 1, 2, 3), " +
		"b AS (SELECT p.device, p.bin, coalesce(c.idle, 0) AS idle, coalesce(c.reach, -1) AS reach FROM (SELECT DISTINCT device, bin FROM k) p " +
		"ASOF LEFT JOIN c ON c.device = p.device AND p.bin > c.bin), " +
		"x AS (SELECT k.device, k.bin, s, b.idle, greatest(b.reach, max(e) OVER (PARTITION BY k.device, k.bin ORDER BY s)) AS reach, " +
		"greatest(b.reach, coalesce(max(e) OVER (PARTITION BY k.device, k.bin ORDER BY s ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1)) AS before " +
		"FROM k JOIN b ON b.device = k.device AND b.bin = k.bin), " +
		"y AS MATERIALIZED (SELECT device, bin, s, reach, idle + sum(CASE WHEN before >= 0 THEN greatest(s - before, 0) ELSE 0 END) OVER (PARTITION BY device, bin ORDER BY s) AS idle FROM x), " +
		"d AS (SELECT device, min(s) AS first FROM k GROUP BY 1), " +
		"z AS (SELECT t.t, d.first, coalesce(y.idle, c.idle) AS idle, coalesce(y.reach, c.reach) AS reach FROM t CROSS JOIN d " +
		"ASOF LEFT JOIN y ON y.device = d.device AND y.bin = t.bin AND t.t > y.s ASOF LEFT JOIN c ON c.device = d.device AND t.bin > c.bin) " +
		"SELECT t, " + signed("CASE WHEN reach >= 0 THEN least(t, reach)::HUGEINT - first - idle ELSE 0 END") + " FROM z GROUP BY 1"
	return eachRow(ctx, tx, v.tables(query), []any{gapLevel, tail, device, times}, func(r *sql.Rows) error {
		var t, busy int64
		err := r.Scan(&t, &busy)
		before[t] = busy
		return err
	})
}
