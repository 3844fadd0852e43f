// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// Busy implements [store.Reader].
func (s *Store) Busy(ctx context.Context, q store.BusyQuery) ([]int64, error) {
	return read(ctx, s, q.Project, q.Session, "read busy time", func(v *view) ([]int64, error) {
		bounds, err := answer.Bounds(&q)
		if err != nil {
			return nil, err
		}
		before := map[int64]int64{}
		// The text of a query has at most 256 KiB.
		for times := range slices.Chunk(bounds, 10_000) {
			if err := v.busyBefore(ctx, &q, times, before); err != nil {
				return nil, err
			}
		}
		return answer.Busy(&q, before), nil
	})
}

// busyBefore finds how long a kernel ran on the devices before each of some times, or how long their gaps are
// before these times. Without the gaps in between, a device is busy from its first kernel to the latest end.
func (v *view) busyBefore(ctx context.Context, q *store.BusyQuery, times []int64, before map[int64]int64) error {
	f := v.filter()
	f.add("Operation = 1")
	sum := "least(d.t, y.reach) - y.begin - y.idle"
	if q.Idle {
		sum = "y.idle + greatest(least(d.t, y.last) - y.reach, 0)"
	} else {
		f.add("StartNs < ?", times[len(times)-1])
	}
	args := append(f.args, v.key.project, v.key.session)
	where := ""
	if q.Device != "" {
		where = " WHERE l.Device = ?"
		args = append(args, q.Device)
	}
	var list strings.Builder
	for i, t := range times {
		if i > 0 {
			list.WriteByte(',')
		}
		list.WriteString(strconv.FormatInt(t, 10))
	}
	const rows = "PARTITION BY device ORDER BY s ROWS BETWEEN UNBOUNDED PRECEDING AND "
	query := `WITH k AS (SELECT l.Device AS device, o.StartNs AS s, max(o.StartNs + greatest(o.DurationNs, 0)) AS e FROM
		(SELECT StartNs, DurationNs, Lane FROM gpu_ops FINAL` + f.where() + `) AS o LEFT JOIN
		(SELECT Key, any(Device) AS Device FROM gpu_lanes WHERE Project = ? AND Session = ? GROUP BY Key) AS l ON l.Key = o.Lane` + where + `
		GROUP BY device, s),
		x AS (SELECT device, s, max(e) OVER (` + rows + `CURRENT ROW) AS reach, max(e) OVER (` + rows + `1 PRECEDING) AS past,
		count() OVER (` + rows + `1 PRECEDING) AS n, min(s) OVER (` + rows + `CURRENT ROW) AS begin,
		max(e) OVER (PARTITION BY device) AS last FROM k),
		y AS (SELECT device, s, reach, begin, last, sum(if(n > 0, greatest(s - past, 0), 0)) OVER (` + rows + `CURRENT ROW) AS idle FROM x),
		d AS (SELECT arrayJoin(CAST([` + list.String() + `] AS Array(Int64))) AS t, device FROM (SELECT DISTINCT device FROM k))
		SELECT d.t, sum(` + sum + `) FROM d ASOF INNER JOIN y ON y.device = d.device AND d.t > y.s GROUP BY d.t`
	return v.s.each(ctx, query, args, func(r driver.Rows) error {
		var t, busy int64
		err := r.Scan(&t, &busy)
		before[t] = busy
		return err
	})
}
