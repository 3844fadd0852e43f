// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Table top_ops of a segment with at least fewOps operations has copies of the keptTop longest ones, of the
// keptTop ones with the longest queue times, and of others. A page of a whole session by one of these values then
// reads no other operations, if enough of them meet its conditions. More kept operations need a new version of the
// schema. The writer does not fill top_ops of a segment of an earlier version with maxTopFill operations: this takes
// 50 ms for a million.
const (
	keptTop    = 4096
	maxTopFill = 1 << 23
)

const (
	durationSQL = "greatest(dur_ns, 0)"
	// queueOrderSQL is the queue time by which operations are ordered, and unknownQueue that of one without.
	queueOrderSQL = "coalesce(" + queueSQL + ", -9223372036854775808)"
	unknownQueue  = math.MinInt64
)

// topOpsSQL selects the rows of top_ops among the rows of a table.
func topOpsSQL(table string, kept int64) string {
	top := func(value string) string {
		return fmt.Sprintf("(FROM %s ORDER BY %s DESC LIMIT %d)", table, value, kept)
	}
	return top(durationSQL) + " UNION " + top(queueOrderSQL)
}

// leastTop is SQL for a value that no operation exceeds that top_ops of a segment lacks.
func (s *Store) leastTop(seg *segment, value string) string {
	return fmt.Sprintf("coalesce((SELECT %s AS v FROM %s.top_ops ORDER BY v DESC LIMIT 1 OFFSET %d), %d)", value, seg.alias, s.keptTop-1, int64(math.MaxInt64))
}

// findLeast reads the values from which on operations need not be in top_ops of a segment.
func (s *Store) findLeast(ctx context.Context, seg *segment) error {
	return s.each(ctx, "SELECT "+s.leastTop(seg, durationSQL)+", "+s.leastTop(seg, queueOrderSQL), nil, func(r *sql.Rows) error {
		seg.least = new([2]int64)
		return r.Scan(&seg.least[0], &seg.least[1])
	})
}

// keepTop appends an operation to top_ops if it may be among the first ones. The values are those of its row of ops.
func (w *transaction) keepTop(o *store.Op, values []driver.Value) error {
	queue := int64(unknownQueue)
	if o.QueueNs.OK {
		queue = o.QueueNs.V
	}
	if least := w.seg.least; least == nil || max(o.EndNs-o.StartNs, 0) <= least[0] && queue <= least[1] {
		return nil
	}
	w.rollup.tops++
	return w.append("top_ops", values...)
}

// topOps selects operations of a session that include all whose value exceeds a bound. It returns "" if no segment
// has top_ops, or a large one lacks it.
func (v *view) topOps(value string) (rows, bound string) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	var parts, bounds []string
	for _, seg := range v.segments {
		switch {
		case seg.topped.Load():
			parts = append(parts, "SELECT * FROM "+seg.alias+".top_ops")
			bounds = append(bounds, v.s.leastTop(seg, value))
		case seg.ops < 2*v.s.fewOps:
			parts = append(parts, "SELECT * FROM "+seg.alias+".ops")
		default:
			return "", ""
		}
	}
	if len(bounds) == 0 {
		return "", ""
	}
	return "(" + strings.Join(parts, " UNION ALL ") + ")", "greatest(" + strings.Join(bounds, ", ") + ")"
}
