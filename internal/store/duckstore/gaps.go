// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
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
	// denseTail is the number of kernels from which gapLag becomes shorter, because readers need 0.1 s for
	// so many.
	denseTail = 1 << 16
)

// maxGapPart is the number of operations from which the writer computes gaps in one query. It bounds the
// memory and the time of a write.
const maxGapPart = 1 << 18

// kernelsSQL selects the kernels of rows of ops, which replace {rows}.
const kernelsSQL = "SELECT coalesce(l.device, '') AS device, start_ns AS s, start_ns + greatest(dur_ns, 0) AS e, span, shape FROM {rows} " +
	"LEFT JOIN {lanes_of_session} l ON l.id = lane WHERE shape IN (SELECT id FROM {shapes} WHERE operation = 1)"

func (v *view) kernelsSQL(rows string) string {
	return strings.NewReplacer("{rows}", rows, "{lanes_of_session}", v.dict(lanes)).Replace(kernelsSQL)
}

// keptGaps is the number of gaps of a row of gap_bins that gaps has.
const keptGaps = 4

// reachSQL packs the end and the duration of a kernel into a HUGEINT. The largest one has the latest end,
// and of several with this end, the earliest start.
func reachSQL(end, dur string) string {
	return "(" + end + "::HUGEINT * " + reachUnit + " + " + dur + ")"
}

const reachUnit = "4611686018427387904" // MaxTimeNs + 1

// reachEnd and reachDur are SQL for the parts of a reach. Divisions take 20 times as long.
func reachEnd(p string) string { return "(" + p + " >> 62)::BIGINT" }
func reachDur(p string) string { return "(" + p + " & " + reachUnit + "::HUGEINT - 1)::BIGINT" }

// precedingSQL adds to kernels the largest reach of those before, which is in the column p. The kernels
// have the columns s, e, t (the start), span, shape and those of the partition.
func precedingSQL(kernels, partition string) string {
	return "(SELECT *, " + reachEnd("p") + " AS b, " + reachDur("p") + " AS d FROM (SELECT *, max(" + reachSQL("e", "(e - t)") + ") OVER (PARTITION BY " +
		partition + " ORDER BY s, span ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS p FROM (" + kernels + ")))"
}

// reach is the latest end of the kernels of a device, and the duration of the kernel that has it.
type reach struct {
	device   string
	end, dur int64
}

// reaches returns the kernels of gap_bins with the latest ends, by device.
func (v *view) reaches(ctx context.Context, q querier) (out []reach, err error) {
	// This takes a quarter of the time of a maximum of HUGEINT.
	return out, eachRow(ctx, q, v.tables("SELECT device, reach_ns, max(reach_dur) FROM {gap_bins} JOIN (SELECT device AS d, max(reach_ns) AS r FROM {gap_bins} GROUP BY 1) "+
		"ON d = device AND r = reach_ns GROUP BY 1, 2"), nil, func(r *sql.Rows) error {
		var x reach
		err := r.Scan(&x.device, &x.end, &x.dur)
		out = append(out, x)
		return err
	})
}

// extendGaps adds the bins of a session that gap_bins lacks: all bins, or those before gapLag.
//
// A row of gap_bins has the kernels that start in bin: how many end a gap that starts in from_bin, and
// the sum of these gaps. Table gaps has the longest keptGaps of them; least_ns is the shortest of these,
// or 0 if there are fewer. before_ns is the largest end of all kernels before the bin, before_dur the
// duration of that kernel; reach_ns and reach_dur are those of the kernels of the row. The bins are
// complete up to the largest one of all segments.
func (s *Store) extendGaps(ctx context.Context, sess *session, all bool) error {
	v, err := s.writerView(ctx, sess)
	if err != nil {
		return err
	}
	defer v.close()
	to := int64(math.MaxInt64)
	if !all {
		last := sess.segments[len(sess.segments)-1]
		to = s.gapsUntil(sess, last.newest[0], last.gapTail.list)
	}
	for _, seg := range sess.segments {
		for from := (seg.gapBin + 1) << gapLevel; from < to; {
			until := to
			err := v.extendFromTail(ctx, seg, from, to)
			if errors.Is(err, errIncomplete) {
				sess.lastKernels = nil
				until = min(to, seg.gapPart(from, s.gapPart))
				err = v.extendSegment(ctx, seg, from, until)
			}
			if err == nil {
				err = s.countGaps(ctx, seg)
			}
			if err != nil {
				return err
			}
			// No kernel starts between the last bin and the end of the interval, but one may arrive.
			seg.gapTail.drop((seg.gapBin + 1) << gapLevel)
			if from = until; from < to && !all && from <= seg.newest[0] {
				seg.gapOps = 0 // the next write goes on
				return nil
			}
		}
	}
	return nil
}

// gapPart returns the end of a part of a segment that has about so many operations. A late kernel
// makes all bins after it incomplete, which may be those of millions of kernels.
func (seg *segment) gapPart(from, operations int64) int64 {
	first, last := max(from, seg.summary.FirstNs), seg.newest[0]
	if first > last || seg.ops <= operations {
		return math.MaxInt64
	}
	part := (last - seg.summary.FirstNs) / (seg.ops / operations)
	return (first+part)>>gapLevel<<gapLevel + 1<<gapLevel
}

// gapKernel is a kernel that gap_bins does not have yet.
type gapKernel struct {
	device     string
	start, end int64
	span       store.SpanID
	shape      uint32
}

// gapTailKernels is the kernels of a segment that start at from or later, because the writer need not
// read again what it has written. It takes a fifth of the time.
type gapTailKernels struct {
	from int64
	list []gapKernel
}

// maxGapTail is the number of kernels from which the writer reads them instead.
const maxGapTail = 1 << 18

func (t *gapTailKernels) add(list []gapKernel, newest int64) {
	if len(t.list)+len(list) > maxGapTail {
		t.forget(newest)
		return
	}
	t.list = append(t.list, list...)
}

// drop removes the kernels that start before a time.
func (t *gapTailKernels) drop(before int64) {
	t.from = max(t.from, before)
	t.list = slices.DeleteFunc(t.list, func(k gapKernel) bool { return k.start < t.from })
	if cap(t.list) > 2*len(t.list) {
		t.list = slices.Clone(t.list)
	}
}

// forget removes all kernels. Newest is the latest start that is stored.
func (t *gapTailKernels) forget(newest int64) { t.list, t.from = nil, newest+1 }

// gapGroup is a row of gap_bins.
type gapGroup struct {
	device       string
	fromBin, bin int64
	n, sum       int64
	before       reach
	reach        reach
	longest      []storedGap
}

type storedGap struct {
	start, end, beforeStart int64
	before, after           store.SpanID
	shape                   uint32
}

func (g *gapGroup) add(s storedGap) {
	g.n++
	g.sum += s.end - s.start
	if s.end-s.start < store.MinGapNs {
		return
	}
	i, _ := slices.BinarySearchFunc(g.longest, s, func(a, b storedGap) int {
		return cmp.Or(cmp.Compare(b.end-b.start, a.end-a.start), cmp.Compare(a.start, b.start))
	})
	if i < keptGaps {
		g.longest = slices.Insert(g.longest[:min(len(g.longest), keptGaps-1)], i, s)
	}
}

// between returns the kernels that start in an interval, by their start.
func (t *gapTailKernels) between(more []gapKernel, from, to int64) (list []gapKernel) {
	for _, l := range [][]gapKernel{t.list, more} {
		for _, k := range l {
			if k.start >= from && k.start < to {
				list = append(list, k)
			}
		}
	}
	slices.SortFunc(list, func(a, b gapKernel) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.span, b.span))
	})
	return list
}

// lastKernels returns the kernels of gap_bins with the latest ends, then the earliest starts, then the
// smallest spans, by device.
func (v *view) lastKernels(ctx context.Context) (map[string]gapKernel, error) {
	before, err := v.reaches(ctx, v.s.db)
	last := map[string]gapKernel{}
	if err != nil || len(before) == 0 {
		return last, err
	}
	var starts [][2]int64
	for _, r := range before {
		last[r.device] = gapKernel{device: r.device, start: r.end - r.dur, end: r.end}
		starts = append(starts, [2]int64{r.end - r.dur, r.end - r.dur + 1})
	}
	return last, v.each(ctx, "SELECT device, s, e, min(span) FROM ("+v.kernelsSQL(v.rangesSQL(starts))+") GROUP BY 1, 2, 3", nil, func(r *sql.Rows) error {
		var k gapKernel
		err := r.Scan(&k.device, &k.start, &k.end, &k.span)
		if l := last[k.device]; l.start == k.start && l.end == k.end {
			last[k.device] = k
		}
		return err
	})
}

// gapGroups returns the rows of gap_bins for the next kernels, and changes last accordingly.
func gapGroups(last map[string]gapKernel, list []gapKernel) (order []*gapGroup) {
	type key struct {
		device       string
		fromBin, bin int64
	}
	groups := map[key]*gapGroup{}
	first := map[key]reach{} // before the kernels of a bin
	for _, k := range list {
		l, ok := last[k.device]
		if !ok {
			l = gapKernel{start: -1, end: -1}
		}
		bin := k.start >> gapLevel
		id := key{k.device, bin, bin}
		if _, ok := first[id]; !ok {
			first[id] = reach{k.device, l.end, l.end - l.start}
		}
		gap := l.end >= 0 && k.start > l.end
		if gap {
			id.fromBin = l.end >> gapLevel
		}
		g := groups[id]
		if g == nil {
			g = &gapGroup{device: k.device, fromBin: id.fromBin, bin: bin, before: first[key{k.device, bin, bin}], reach: reach{end: -1}}
			groups[id] = g
			order = append(order, g)
		}
		if gap {
			g.add(storedGap{l.end, k.start, l.start, l.span, k.span, k.shape})
		}
		if d := k.end - k.start; k.end > g.reach.end || k.end == g.reach.end && d > g.reach.dur {
			g.reach = reach{k.device, k.end, d}
		}
		if k.end > l.end {
			last[k.device] = k
		}
	}
	return order
}

func (w *transaction) writeGaps(groups []*gapGroup) error {
	for _, g := range groups {
		least := int64(0)
		if len(g.longest) == keptGaps {
			least = g.longest[keptGaps-1].end - g.longest[keptGaps-1].start
		}
		err := w.append("gap_bins", g.device, g.fromBin, g.bin, g.n, g.sum, least, g.before.end, g.before.dur, g.reach.end, g.reach.dur)
		if err != nil {
			return err
		}
		for _, s := range g.longest {
			err := w.append("gaps", g.device, g.bin, g.fromBin, s.start, s.end, s.beforeStart, uint64(s.before), uint64(s.after), s.shape)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// gapsUntil returns the end of the bins that are old enough for gap_bins: older than gapLag, or than the
// newest denseTail kernels if none has arrived later. Lists have the newest kernels.
func (s *Store) gapsUntil(sess *session, newest int64, lists ...[]gapKernel) int64 {
	lag := s.gapLag
	n, oldest := int64(0), int64(0) // kernels within the lag, and the age of the oldest one
	for _, l := range lists {
		for i := range l {
			if age := newest - l[i].start; age < lag {
				n++
				oldest = max(oldest, age)
			}
		}
	}
	if n > s.denseTail {
		lag = min(lag, max(oldest/n*s.denseTail, 2*sess.late))
	}
	return max(newest-lag, 0) >> gapLevel << gapLevel
}

// extendGaps adds the bins of new kernels that are old enough. If kernels are not in memory or belong to an
// earlier segment, Store.extendGaps does it later.
func (w *transaction) extendGaps() error {
	if w.earliest < w.seg.newest[0] {
		w.sess.late = max(w.sess.late, w.seg.newest[0]-w.earliest)
	}
	from, to := (w.seg.gapBin+1)<<gapLevel, w.s.gapsUntil(w.sess, w.newest[0], w.seg.gapTail.list, w.kernels)
	segments := w.sess.segments
	if w.sess.id == "" || w.sess.lastKernels == nil || w.seg != segments[len(segments)-1] || w.seg.gapTail.from > from || w.earliest < from {
		return nil
	}
	for _, seg := range segments[:len(segments)-1] {
		if len(seg.gapTail.list) > 0 || seg.gapTail.from > (seg.gapBin+1)<<gapLevel {
			return nil
		}
	}
	w.lastKernels = maps.Clone(w.sess.lastKernels)
	w.gaps = gapGroups(w.lastKernels, w.seg.gapTail.between(w.kernels, from, to))
	return w.writeGaps(w.gaps)
}

// keepGaps notes what a transaction that is committed has added.
func (w *transaction) keepGaps() {
	seg := w.seg
	if w.sess.id == "" {
		return
	}
	if w.earliest != math.MaxInt64 {
		seg.gapBin = min(seg.gapBin, w.earliest>>gapLevel-1)
	}
	seg.gapTail.add(w.kernels, w.newest[0])
	if w.lastKernels == nil {
		return
	}
	w.sess.lastKernels, seg.gapOps = w.lastKernels, seg.ops
	if n := len(w.gaps); n > 0 {
		seg.gapBin = w.gaps[n-1].bin
	}
	seg.gapTail.drop((seg.gapBin + 1) << gapLevel)
}

var errIncomplete = errors.New("kernels are not in memory")

// extendFromTail does what extendSegment does, with the kernels in memory.
func (v *view) extendFromTail(ctx context.Context, seg *segment, from, to int64) (err error) {
	if seg.gapTail.from > from {
		return errIncomplete
	}
	if v.sess.lastKernels == nil {
		if v.sess.lastKernels, err = v.lastKernels(ctx); err != nil {
			v.sess.lastKernels = nil
			return err
		}
	}
	last := maps.Clone(v.sess.lastKernels)
	groups := gapGroups(last, seg.gapTail.between(nil, from, to))
	err = v.s.inTransaction(ctx, v.sess, seg, func(w *transaction, _ *sql.Tx) error { return w.writeGaps(groups) })
	if err == nil {
		v.sess.lastKernels = last
	}
	return err
}

// extendSegment adds the bins of kernels of a segment that start in an interval.
func (v *view) extendSegment(ctx context.Context, seg *segment, from, to int64) error {
	one := &view{s: v.s, sess: v.sess, segments: []*segment{seg}}
	tx, err := v.s.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	before, err := v.reaches(ctx, tx)
	if err != nil {
		return err
	}
	kernels := one.tables(one.kernelsSQL(fmt.Sprintf("(FROM {ops} WHERE start_ns >= %d AND start_ns < %d)", from, to)))
	rows := "SELECT device, s, s AS t, e, span, shape FROM (" + kernels + ")"
	var starts [][2]int64
	for _, r := range before {
		rows += fmt.Sprintf(" UNION ALL SELECT %s, -1, %d, %d, 0::UBIGINT, 0::UINTEGER", textSQL(r.device), r.end-r.dur, r.end)
		starts = append(starts, [2]int64{r.end - r.dur, r.end - r.dur + 1})
	}
	const bin = "(s >> 24)"
	for _, q := range []string{
		"CREATE OR REPLACE TEMP TABLE gap_kernels AS " + rows,
		// A window for each row of gap_bins takes ten times as long as one window.
		"CREATE OR REPLACE TEMP TABLE gap_ends AS WITH g AS (SELECT *, row_number() OVER (ORDER BY device, from_bin, " + bin + ", gap DESC, b) AS n FROM (" +
			"SELECT *, CASE WHEN gap > 0 THEN (b >> 24) ELSE " + bin + " END AS from_bin FROM (SELECT *, CASE WHEN b >= 0 THEN s - b ELSE -1 END AS gap FROM (" +
			"SELECT device, s, e, span, shape, coalesce(b, -1) AS b, coalesce(d, 0) AS d FROM " + precedingSQL("FROM gap_kernels", "device") +
			" WHERE s >= 0)))), f AS (SELECT device, from_bin, " + bin + " AS bin, min(n) AS n FROM g GROUP BY 1, 2, 3) SELECT g.*, g.n - f.n + 1 AS rank " +
			"FROM g JOIN f ON f.device = g.device AND f.from_bin = g.from_bin AND bin = " + bin,
		"INSERT INTO " + seg.alias + ".gap_bins SELECT device, from_bin, bin, n, sum_ns, least_ns, " + reachEnd("p") + ", " + reachDur("p") +
			", " + reachEnd("r") + ", " + reachDur("r") + " FROM (SELECT device, from_bin, " + bin + " AS bin, " +
			"count(*) FILTER (gap > 0) AS n, coalesce(sum(gap) FILTER (gap > 0), 0)::BIGINT AS sum_ns, " +
			fmt.Sprintf("coalesce(max(gap) FILTER (rank = %d AND gap >= %d), 0) AS least_ns, ", keptGaps, store.MinGapNs) +
			"min(min(" + reachSQL("b", "d") + ")) OVER (PARTITION BY device, " + bin + ") AS p, max(" + reachSQL("e", "(e - s)") + ") AS r " +
			"FROM gap_ends GROUP BY 1, 2, 3) ORDER BY bin",
		"INSERT INTO " + seg.alias + ".gaps SELECT device, bin, from_bin, b, s, b - d, coalesce(min(k.span), 0), any_value(g.span), any_value(g.shape) FROM (SELECT *, " + bin +
			fmt.Sprintf(" AS bin FROM gap_ends WHERE gap >= %d AND rank <= %d) g ", store.MinGapNs, keptGaps) +
			"LEFT JOIN (SELECT device AS kd, s AS ks, e AS ke, span FROM gap_kernels WHERE s >= 0 UNION ALL SELECT device, s, e, span FROM (" +
			v.tables(v.kernelsSQL(v.rangesSQL(starts))) + ")) k ON kd = device AND ks = b - d AND ke = b GROUP BY device, bin, from_bin, b, s, d ORDER BY bin, b",
		"DROP TABLE gap_kernels", "DROP TABLE gap_ends",
	} {
		if _, err := tx.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// countGaps finds the last bin in gap_bins of a segment, -1 for none.
func (s *Store) countGaps(ctx context.Context, seg *segment) error {
	seg.gapOps = seg.ops
	var bin int64
	err := s.each(ctx, "SELECT coalesce(max(bin), -1) FROM "+seg.alias+".gap_bins", nil, func(r *sql.Rows) error { return r.Scan(&bin) })
	if err == nil {
		s.setGapBin(seg, bin)
	}
	return err
}

func (s *Store) setGapBin(seg *segment, bin int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seg.gapBin = bin
}

// trimGaps removes the gaps from a bin on, of all segments of a session but one. Each segment is a
// transaction, later ones first: fewer bins are always correct. The bin in which a segment ends is in the
// next one too.
func (s *Store) trimGaps(ctx context.Context, sess *session, except *segment, bin int64) error {
	for _, seg := range slices.Backward(sess.segments) {
		if seg == except || seg.gapBin < bin {
			continue
		}
		sess.lastKernels = nil
		if err := s.acquire(ctx, seg); err != nil {
			return err
		}
		err := s.trimSegment(ctx, seg, bin)
		s.release(seg)
		if err != nil {
			return err
		}
		s.setGapBin(seg, bin-1)
	}
	return nil
}

func (s *Store) trimSegment(ctx context.Context, seg *segment, bin int64) error {
	_, tx, end, err := s.beginTx(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := deleteGaps(ctx, tx, seg, bin); err != nil {
		return err
	}
	return tx.Commit()
}

func deleteGaps(ctx context.Context, tx *sql.Tx, seg *segment, bin int64) error {
	for _, table := range []string{"gap_bins", "gaps"} {
		if _, err := tx.ExecContext(ctx, "DELETE FROM "+seg.alias+"."+table+" WHERE bin >= ?", bin); err != nil {
			return err
		}
	}
	return nil
}

// lateGaps removes the bins of gap_bins that a new kernel changes.
func (w *transaction) lateGaps(ctx context.Context, tx *sql.Tx) error {
	if w.earliest == math.MaxInt64 {
		return nil
	}
	bin := w.earliest >> gapLevel
	if err := w.s.trimGaps(ctx, w.sess, w.seg, bin); err != nil {
		return err
	}
	if bin <= w.seg.gapBin {
		w.sess.lastKernels = nil
		return deleteGaps(ctx, tx, w.seg, bin)
	}
	return nil
}

// catchUp adds what gap_bins lacks of a session, if that is more than a write adds. Late kernels make all bins after
// them incomplete, and no write may follow. A reader would need seconds for some millions of kernels, each time.
func (s *Store) catchUp(ctx context.Context, project, session string) {
	k := sessionKey{project, session}
	for at := int64(math.MinInt64); ctx.Err() == nil && session != "" && !s.readOnly; {
		bins, behind := s.gapsBehind(k)
		if !behind || bins == at {
			return
		}
		at = bins
		s.write.Lock()
		if sess := s.session(k); sess != nil && !sess.dropped {
			if err := s.extendGaps(ctx, sess, false); err != nil {
				_ = s.failed(ctx, sess, err) // the rows are enough for the answer
				s.failures.Add(1)
			}
		}
		s.write.Unlock()
	}
}

// gapsBehind says whether gap_bins lacks more operations of a segment than a write adds. Bins changes when some are
// added.
func (s *Store) gapsBehind(k sessionKey) (bins int64, behind bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if sess := s.sessions[k]; sess != nil && !sess.sealed {
		for _, seg := range sess.segments {
			bins += seg.gapBin
			behind = behind || seg.gapPart((seg.gapBin+1)<<gapLevel, s.gapPart) <= seg.newest[0]
		}
	}
	return bins, behind
}

// Gaps implements [store.Reader].
func (s *Store) Gaps(ctx context.Context, q store.GapQuery) (store.Gaps, error) {
	s.catchUp(ctx, q.Project, q.Session)
	return read(ctx, s, q.Project, q.Session, "read gaps", func(v *view) (store.Gaps, error) {
		n, err := answer.Limits(q.From, q.To, q.Limit, 100, 10_000)
		if err != nil {
			return store.Gaps{}, err
		}
		return v.gaps(ctx, q, n)
	})
}

// gapBin is a bin whose kernels are read, for one device.
type gapBin struct {
	reach // of the kernels before it
	bin   int64
}

// gaps sums the bins of gap_bins and reads the longest gaps. It reads the kernels of the bins where the
// interval begins or ends, and of bins that may have more long gaps than the table gaps has. It also
// reads those that gap_bins does not have yet.
func (v *view) gaps(ctx context.Context, q store.GapQuery, n int) (store.Gaps, error) {
	var answer store.Gaps
	_, tx, end, err := v.s.beginTx(ctx)
	if err != nil {
		return answer, err
	}
	defer end()
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
	type key struct {
		device string
		end    int64
	}
	found := map[key]bool{}
	err = each("SELECT device, start_ns, end_ns, before_start, before, after, after_shape FROM {gaps} WHERE ($1 = '' OR device = $1) AND from_bin > $2 AND "+
		"from_bin < $3 AND end_ns - start_ns >= $4 ORDER BY end_ns - start_ns DESC, start_ns, device LIMIT $5", func(r *sql.Rows) error {
		var g store.Gap
		err := r.Scan(&g.Device, &g.StartNs, &g.EndNs, &g.BeforeStart, &g.Before, &g.After, &g.AfterShape)
		g.AfterStart = g.EndNs
		found[key{g.Device, g.EndNs}] = true
		answer.Longest = append(answer.Longest, g)
		return err
	}, q.Device, first, last, shortest, n)
	if err != nil {
		return answer, err
	}
	least := shortest
	if len(answer.Longest) == n {
		least = answer.Longest[n-1].EndNs - answer.Longest[n-1].StartNs
	}
	complete, bins, err := gapBins(each, &q, &answer, first, last, least)
	if err != nil {
		return answer, err
	}
	tail := complete + 1
	reaches, err := v.reaches(ctx, tx)
	if err != nil {
		return answer, err
	}
	// A gap that ends in the tail starts at a reach, or in the tail.
	tailed := to > tail<<gapLevel
	for _, r := range reaches {
		if q.Device == "" || r.device == q.Device {
			bins = append(bins, gapBin{r, tail})
			tailed = tailed || r.end < to
		}
	}
	tailRows := [][2]int64{{tail << gapLevel, math.MaxInt64}}
	if !tailed {
		tailRows = nil
	}
	var ranges [][2]int64
	values := []string{"('', -9, -1, 0)"}
	for _, b := range bins {
		if b.bin < tail {
			ranges = append(ranges, [2]int64{b.bin << gapLevel, (b.bin + 1) << gapLevel})
		}
		values = append(values, fmt.Sprintf("(%s, %d, %d, %d)", textSQL(b.device), b.bin, b.end, b.dur))
	}
	part := "SELECT *, s AS t, $2 AS bin FROM (" + v.kernelsSQL(v.rangesSQL(tailRows)) + ") WHERE $3 = '' OR device = $3 " +
		"UNION ALL SELECT k.*, s, s >> $1 FROM (" + v.kernelsSQL(v.rangesSQL(ranges)) + ") k SEMI JOIN bins ON bins.device = k.device AND bins.bin = s >> $1 " +
		"UNION ALL SELECT device, -1, before, 0, 0, before - dur, bin FROM bins"
	// The bins of the first query have the other gaps.
	const counted = "s >> $1 >= $2 OR b >> $1 IN ($6, $7) OR b < $4"
	query := "WITH bins(device, bin, before, dur) AS (VALUES " + strings.Join(values, ", ") + "), g AS MATERIALIZED (SELECT device, b, d, s, span, shape FROM " +
		precedingSQL(part, "device, bin") + " WHERE b >= 0 AND s > b AND (b >= $4 OR $10 AND s > $4) AND b < $5) " +
		"SELECT true, '', count(*) FILTER (" + counted + "), " +
		signed("CASE WHEN "+counted+" THEN s - b ELSE 0 END - CASE WHEN $10 THEN greatest(s - $5, 0) + greatest($4 - b, 0) ELSE 0 END") +
		", 0, 0::UBIGINT, 0::UINTEGER FROM g " +
		"UNION ALL (SELECT false, device, b, s, b - d, span, shape FROM g WHERE s - b >= $8 ORDER BY s - b DESC, b, device LIMIT $9)"
	err = each(query, func(r *sql.Rows) error {
		var g store.Gap
		var total bool
		err := r.Scan(&total, &g.Device, &g.StartNs, &g.EndNs, &g.BeforeStart, &g.After, &g.AfterShape)
		if total {
			answer.Count += g.StartNs
			answer.SumNs += g.EndNs
			return err
		}
		if k := (key{g.Device, g.EndNs}); !found[k] {
			g.AfterStart = g.EndNs
			answer.Longest = append(answer.Longest, g)
		}
		return err
	}, gapLevel, tail, q.Device, q.From, to, first, last, least, n, q.Overlapping)
	if err != nil {
		return answer, err
	}
	slices.SortFunc(answer.Longest, func(a, b store.Gap) int {
		return cmp.Or(cmp.Compare(b.EndNs-b.StartNs, a.EndNs-a.StartNs), cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.Device, b.Device))
	})
	answer.Longest = answer.Longest[:min(n, len(answer.Longest))]
	var fresh []*store.Gap
	for i := range answer.Longest {
		if g := &answer.Longest[i]; !found[key{g.Device, g.EndNs}] {
			fresh = append(fresh, g)
		}
	}
	return answer, v.setBefore(each, fresh)
}

// gapBins adds the sums of whole bins to an answer. It returns the last bin of gap_bins, -1 if there is none. The
// kernels of the other bins must be read: the interval begins or ends there, or they may have gaps of least or more.
func gapBins(rows rowsFunc, q *store.GapQuery, answer *store.Gaps, first, last, least int64) (complete int64, bins []gapBin, err error) {
	complete = -1
	err = rows("WITH c AS NOT MATERIALIZED (FROM {gap_bins} WHERE $1 = '' OR device = $1), i AS NOT MATERIALIZED (FROM c WHERE from_bin > $2 AND from_bin < $3) "+
		"SELECT 0, '', coalesce(sum(n), 0)::BIGINT, "+signed("sum_ns")+", 0 FROM i UNION ALL "+
		"SELECT 1, '', coalesce(max(bin), -1), 0, 0 FROM {gap_bins} UNION ALL "+
		"SELECT DISTINCT 2, device, bin, before_ns, before_dur FROM c WHERE n > 0 AND (from_bin IN ($2, $3) OR $5 AND (from_bin < $2 AND bin >= $2 OR from_bin < $3 AND bin >= $3)) UNION ALL "+
		"SELECT DISTINCT 2, device, bin, before_ns, before_dur FROM i WHERE least_ns >= $4", func(r *sql.Rows) error {
		var kind int
		var b gapBin
		if err := r.Scan(&kind, &b.device, &b.bin, &b.end, &b.dur); err != nil {
			return err
		}
		switch kind {
		case 0:
			answer.Count, answer.SumNs = b.bin, b.end
		case 1:
			complete = b.bin
		default:
			bins = append(bins, b)
		}
		return nil
	}, q.Device, first, last, least, q.Overlapping)
	return complete, bins, err
}

// setBefore finds the spans of the kernels that end where gaps begin.
func (v *view) setBefore(rows rowsFunc, gaps []*store.Gap) error {
	if len(gaps) == 0 {
		return nil
	}
	type kernel struct {
		device     string
		start, end int64
	}
	var values []string
	var starts [][2]int64
	for _, g := range gaps {
		values = append(values, fmt.Sprintf("(%s, %d, %d)", textSQL(g.Device), g.BeforeStart, g.StartNs))
		starts = append(starts, [2]int64{g.BeforeStart, g.BeforeStart + 1})
	}
	spans := map[kernel]store.SpanID{}
	err := rows("SELECT k.device, s, k.e, min(span) FROM ("+v.kernelsSQL(v.rangesSQL(starts))+") k JOIN (VALUES "+strings.Join(values, ", ")+
		") x(device, start, e) ON x.device = k.device AND x.start = s AND x.e = k.e GROUP BY 1, 2, 3", func(r *sql.Rows) error {
		var k kernel
		var id store.SpanID
		err := r.Scan(&k.device, &k.start, &k.end, &id)
		spans[k] = id
		return err
	})
	for _, g := range gaps {
		g.Before = spans[kernel{g.Device, g.BeforeStart, g.StartNs}]
	}
	return err
}

// textSQL returns a literal of a string that may have a NUL, which quote cannot express.
func textSQL(s string) string { return "decode(from_hex('" + hex.EncodeToString([]byte(s)) + "'))" }

// maxRanges bounds the scans of one query: planning one takes about 0.2 ms.
const maxRanges = 128

// rangesSQL selects the operations that start in one of the ranges, or in the interval that includes
// all of them if they are many. Each range is a scan, because DuckDB skips row groups by the bounds of
// a scan only. Only the segments that can have such operations are scanned.
func (v *view) rangesSQL(ranges [][2]int64) string {
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
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	parts := []string{"SELECT * FROM " + v.segments[0].alias + ".ops WHERE false"}
	for i, seg := range v.segments {
		// A segment has rows of the next one, and the first one earlier rows, if another one was lost: see segmentAt.
		first, end := int64(0), int64(math.MaxInt64)
		if i > 0 {
			first = min(seg.from, seg.summary.FirstNs)
		}
		if i+1 < len(v.segments) {
			end = max(v.segments[i+1].from, seg.newest[0]+1)
		}
		for _, r := range merged {
			if r[0] < end && r[1] > first {
				parts = append(parts, fmt.Sprintf("SELECT * FROM %s.ops WHERE start_ns >= %d AND start_ns < %d", seg.alias, r[0], r[1]))
			}
		}
	}
	return "(" + strings.Join(parts, " UNION ALL ") + ")"
}
