// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// gapLevel is the level of the bins of gap_bins: 16.8 ms.
const gapLevel = 24

// gapTail is the number of operations after which the writer extends gap_bins. gapLag is the time
// before the newest operation that it leaves to readers, because kernels arrive late.
const (
	gapTail = 50_000
	gapLag  = int64(1) << 30
)

// kernelsSQL selects the kernels of rows of ops, which replace {rows}.
const kernelsSQL = "SELECT coalesce(l.device, '') AS device, start_ns AS s, start_ns + greatest(dur_ns, 0) AS e, span, shape FROM {rows} " +
	"LEFT JOIN {lanes_of_session} l ON l.id = lane WHERE shape IN (SELECT id FROM {shapes} WHERE operation = 1)"

func (v *view) kernelsSQL(rows string) string {
	return strings.NewReplacer("{rows}", rows, "{lanes_of_session}", v.dict(lanes)).Replace(kernelsSQL)
}

// extendGaps adds the bins of a session that gap_bins lacks: all bins, or those before gapLag.
//
// A row of gap_bins has the kernels that start in bin: how many end a gap that starts in from_bin, and
// the sum and the maximum of these gaps. before_ns is the largest end of all kernels before the bin,
// reach_ns that of the kernels of the row. The bins are complete up to the largest one in the last
// segment that has any.
func (s *Store) extendGaps(ctx context.Context, sess *session, all bool) error {
	v := &view{s: s, sess: sess}
	defer v.close()
	for i, seg := range sess.segments {
		if err := s.acquire(ctx, seg); err != nil {
			return err
		}
		v.segments = append(v.segments, seg)
		to := int64(math.MaxInt64)
		if i == len(sess.segments)-1 && !all {
			to = max(seg.newest[0]-s.gapLag, 0) >> gapLevel << gapLevel
		}
		one := &view{s: s, sess: sess, segments: []*segment{seg}}
		query := "INSERT INTO " + seg.alias + ".gap_bins WITH k AS (" +
			one.tables(v.kernelsSQL("(FROM {ops} WHERE start_ns >= $1 AND start_ns < $2)")) +
			"), g AS (SELECT device, s, e, s >> $3 AS bin, max(e) OVER (PARTITION BY device ORDER BY s ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS b " +
			"FROM (SELECT device, s, e FROM k UNION ALL SELECT device, -1, max(reach_ns) FROM {gap_bins} GROUP BY 1)) " +
			"SELECT device, CASE WHEN s > b THEN b >> $3 ELSE bin END AS from_bin, bin, count(*) FILTER (s > b), " +
			"coalesce(sum(s - b) FILTER (s > b), 0)::BIGINT, coalesce(max(s - b) FILTER (s > b), 0), " +
			"min(coalesce(min(b), -1)) OVER (PARTITION BY device, bin), max(e) FROM g WHERE s >= 0 GROUP BY 1, 2, 3 ORDER BY bin"
		from := (seg.gapBin + 1) << gapLevel
		if from >= to {
			continue
		}
		_, err := s.writer.ExecContext(ctx, v.tables(query), from, to, gapLevel)
		if err == nil {
			err = s.countGaps(ctx, seg)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// countGaps finds the last bin in gap_bins of a segment, -1 for none.
func (s *Store) countGaps(ctx context.Context, seg *segment) error {
	seg.gapOps = seg.ops
	return s.each(ctx, "SELECT coalesce(max(bin), -1) FROM "+seg.alias+".gap_bins", nil, func(r *sql.Rows) error {
		return r.Scan(&seg.gapBin)
	})
}

// clearGaps removes all bins of gap_bins of an attached segment.
func (s *Store) clearGaps(ctx context.Context, seg *segment) error {
	_, err := s.db.ExecContext(ctx, "DELETE FROM "+seg.alias+".gap_bins")
	if err == nil {
		seg.gapBin = -1
	}
	return err
}

// lateGaps removes the bins of gap_bins that a new kernel changes. Bins of later segments go first and
// in their own transactions: fewer bins are always correct.
func (w *transaction) lateGaps(ctx context.Context, tx *sql.Tx) error {
	if w.earliest == math.MaxInt64 {
		return nil
	}
	i := slices.Index(w.sess.segments, w.seg)
	for _, later := range slices.Backward(w.sess.segments[i+1:]) {
		if later.gapBin < 0 {
			continue
		}
		if err := w.s.acquire(ctx, later); err != nil {
			return err
		}
		err := w.s.clearGaps(ctx, later)
		w.s.release(later)
		if err != nil {
			return err
		}
	}
	if bin := w.earliest >> gapLevel; bin <= w.seg.gapBin {
		if _, err := tx.ExecContext(ctx, "DELETE FROM "+w.seg.alias+".gap_bins WHERE bin >= ?", bin); err != nil {
			return err
		}
	}
	return nil
}

// Gaps implements [store.Reader].
func (s *Store) Gaps(ctx context.Context, q store.GapQuery) (store.Gaps, error) {
	n, err := answer.Limits(q.From, q.To, q.Limit, 100, 10_000)
	if err != nil {
		return store.Gaps{}, fmt.Errorf("read gaps: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, false)
	if err != nil {
		return store.Gaps{}, err
	}
	defer v.close()
	answer, err := v.gaps(ctx, q, n)
	if err != nil {
		return store.Gaps{}, fmt.Errorf("read gaps: %w", err)
	}
	return answer, nil
}

// gapBin is a bin whose kernels are read, for one device.
type gapBin struct {
	device      string
	bin, before int64
}

// gaps sums the bins of gap_bins. It reads the kernels of the bins where the interval begins and ends,
// of those with the longest gaps, and of those that gap_bins does not have yet.
func (v *view) gaps(ctx context.Context, q store.GapQuery, n int) (store.Gaps, error) {
	var answer store.Gaps
	tx, err := v.s.db.BeginTx(ctx, nil)
	if err != nil {
		return answer, err
	}
	defer func() { _ = tx.Rollback() }()
	each := func(query string, scan func(*sql.Rows) error, args ...any) error {
		return eachRow(ctx, tx, v.tables(query), args, scan)
	}
	first, last, to := int64(-1), int64(math.MaxInt64), int64(math.MaxInt64)
	if q.From != 0 {
		first = q.From >> gapLevel
	}
	if q.To != 0 {
		last, to = q.To>>gapLevel, q.To
	}
	shortest := max(q.MinNs, store.MinGapNs)
	var complete int64
	var bins []gapBin
	err = each("WITH c AS (FROM {gap_bins} WHERE $1 = '' OR device = $1), i AS (FROM c WHERE from_bin > $2 AND from_bin < $3), "+
		"t AS (SELECT longest_ns, from_bin FROM i WHERE longest_ns >= $4 ORDER BY 1 DESC, 2 LIMIT 1 OFFSET $5) "+
		"SELECT 0, '', coalesce(sum(n), 0)::BIGINT, "+signed("sum_ns")+" FROM i UNION ALL "+
		"SELECT 1, '', coalesce(max(bin), -1), 0 FROM {gap_bins} UNION ALL "+
		"SELECT DISTINCT 2, device, bin, before_ns FROM c WHERE n > 0 AND (from_bin IN ($2, $3) OR $6 AND (from_bin < $2 AND bin >= $2 OR from_bin < $3 AND bin >= $3) OR from_bin > $2 AND from_bin < $3 AND longest_ns >= $4 AND "+
		"coalesce((SELECT c.longest_ns > t.longest_ns OR c.longest_ns = t.longest_ns AND c.from_bin <= t.from_bin FROM t), true)) UNION ALL "+
		"SELECT 3, device, -1, max(reach_ns) FROM c GROUP BY device", func(r *sql.Rows) error {
		var kind int
		var b gapBin
		if err := r.Scan(&kind, &b.device, &b.bin, &b.before); err != nil {
			return err
		}
		switch kind {
		case 0:
			answer.Count, answer.SumNs = b.bin, b.before
		case 1:
			complete = b.bin
		default:
			bins = append(bins, b)
		}
		return nil
	}, q.Device, first, last, shortest, n-1, q.Overlapping)
	if err != nil {
		return answer, err
	}
	tail := complete + 1
	var ranges [][2]int64
	values := []string{"('', -9, -1)"}
	for i := range bins {
		if bins[i].bin < 0 {
			bins[i].bin = tail
		} else {
			ranges = append(ranges, [2]int64{bins[i].bin << gapLevel, (bins[i].bin + 1) << gapLevel})
		}
		values = append(values, fmt.Sprintf("(%s, %d, %d)", textSQL(bins[i].device), bins[i].bin, bins[i].before))
	}
	// The bins of the first query have the other gaps.
	const counted = "s >> $1 >= $2 OR b >> $1 IN ($6, $7) OR b < $4"
	query := "WITH bins(device, bin, before) AS (VALUES " + strings.Join(values, ", ") + "), part AS (SELECT k.*, $2 AS bin FROM (" +
		v.kernelsSQL(rangesSQL([][2]int64{{tail << gapLevel, math.MaxInt64}})) + ") k WHERE $3 = '' OR device = $3 " +
		"UNION ALL SELECT k.*, s >> $1 FROM (" + v.kernelsSQL(rangesSQL(ranges)) + ") k SEMI JOIN bins ON bins.device = k.device AND bins.bin = s >> $1 " +
		"UNION ALL SELECT device, -1, before, 0, 0, bin FROM bins), g AS MATERIALIZED (SELECT device, b, s, span, shape FROM (SELECT *, max(e) OVER " +
		"(PARTITION BY device, bin ORDER BY s, span ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS b FROM part) " +
		"WHERE b >= 0 AND s > b AND (b >= $4 OR $10 AND s > $4) AND b < $5) SELECT true, '', count(*) FILTER (" + counted + "), " +
		signed("CASE WHEN "+counted+" THEN s - b ELSE 0 END - CASE WHEN $10 THEN greatest(s - $5, 0) + greatest($4 - b, 0) ELSE 0 END") +
		", 0::UBIGINT, 0::UINTEGER FROM g " +
		"UNION ALL (SELECT false, device, b, s, span, shape FROM g WHERE s - b >= $8 ORDER BY s - b DESC, b, device LIMIT $9)"
	err = each(query, func(r *sql.Rows) error {
		var g store.Gap
		var total bool
		err := r.Scan(&total, &g.Device, &g.StartNs, &g.EndNs, &g.After, &g.AfterShape)
		if total {
			answer.Count += g.StartNs
			answer.SumNs += g.EndNs
			return err
		}
		g.AfterStart = g.EndNs
		answer.Longest = append(answer.Longest, g)
		return err
	}, gapLevel, tail, q.Device, q.From, to, first, last, shortest, n, q.Overlapping)
	if err != nil || len(answer.Longest) == 0 {
		return answer, err
	}
	type key struct {
		device string
		end    int64
	}
	values, ranges = nil, nil
	for _, g := range answer.Longest {
		values = append(values, "("+textSQL(g.Device)+", "+strconv.FormatInt(g.StartNs, 10)+")")
		ranges = append(ranges, [2]int64{g.StartNs - shortNs, g.StartNs + 1})
	}
	before := map[key]rowKey{}
	ends := "ends(device, e) AS (VALUES " + strings.Join(values, ", ") + ")"
	err = each("WITH "+ends+" SELECT device, e, f.s, f.span FROM (SELECT device, e, min({'s': s, 'span': span}) AS f FROM ("+
		v.kernelsSQL(rangesSQL(ranges))+" UNION ALL "+
		v.kernelsSQL("(FROM {ops} WHERE start_ns IN (SELECT start_ns FROM {long_ops} WHERE end_ns IN (SELECT e FROM ends)))")+
		") SEMI JOIN ends USING (device, e) GROUP BY 1, 2)", func(r *sql.Rows) error {
		var k key
		var f rowKey
		err := r.Scan(&k.device, &k.end, &f.at, &f.id)
		before[k] = f
		return err
	})
	for i := range answer.Longest {
		g := &answer.Longest[i]
		f := before[key{g.Device, g.StartNs}]
		g.BeforeStart, g.Before = f.at, store.SpanID(f.id)
	}
	slices.SortFunc(answer.Longest, func(a, b store.Gap) int {
		return cmp.Or(cmp.Compare(b.EndNs-b.StartNs, a.EndNs-a.StartNs), cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.Device, b.Device))
	})
	return answer, err
}

// textSQL returns a literal of a string that may have a NUL, which quote cannot express.
func textSQL(s string) string { return "decode(from_hex('" + hex.EncodeToString([]byte(s)) + "'))" }

// maxRanges bounds the scans of one query: planning one takes about 0.2 ms.
const maxRanges = 128

// rangesSQL selects the operations that start in one of the ranges, or in the interval that includes
// all of them if they are many. Each range is a scan, because DuckDB skips row groups by the bounds of
// a scan only.
func rangesSQL(ranges [][2]int64) string {
	slices.SortFunc(ranges, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	var merged [][2]int64
	for _, r := range ranges {
		if n := len(merged); n > 0 && r[0] <= merged[n-1][1] {
			merged[n-1][1] = max(merged[n-1][1], r[1])
		} else {
			merged = append(merged, r)
		}
	}
	if n := len(merged); n > maxRanges {
		merged = [][2]int64{{merged[0][0], merged[n-1][1]}}
	}
	parts := []string{"SELECT * FROM {ops} WHERE false"}
	for _, r := range merged {
		parts = append(parts, fmt.Sprintf("SELECT * FROM {ops} WHERE start_ns >= %d AND start_ns < %d", r[0], r[1]))
	}
	return "(" + strings.Join(parts, " UNION ALL ") + ")"
}
