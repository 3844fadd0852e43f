// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"

	"github.com/gpuflight/gpuflight/internal/store"
)

// longBins is the number of bins of a level from which an operation is long. A long operation has a
// row in long_ops, because a row for each bin would have no bound.
const longBins = 64

// maxPartial is the number of rows of a rollup that are not merged, from which the writer merges those of a
// segment. A large rollup is merged after as many rows as it has, at most after mergeFactor*maxPartial.
const (
	maxPartial  = 1 << 16
	mergeFactor = 4
)

// isLong reports whether an operation has no row for each bin of a level.
func isLong(level uint8, dur int64) bool { return dur>>level >= longBins }

// shortNs is the shortest duration of an operation in long_ops.
const shortNs = longBins << 24

// rollup sums the new operations of a transaction. Sums wrap around as int64 does.
type rollup struct {
	lod    map[lodKey]*lodSum
	stats  map[statKey]*statSum
	own    map[store.SpanID]*scopeSum // by the span that launched
	scopes map[scopeKey]*scopeSum     // see sumScopes
	lanes  map[uint32]*laneSum
	long   []longOp
	sites  map[uint32]uint32 // by id of a place
	chains map[chainBucket]*chainSum
}

type lodKey struct {
	bin   int64
	lane  uint32
	level uint8
}

type lodSum struct {
	n, busy int64
	top     topOp
}

// topOp is the longest operation that starts in a bin.
type topOp struct {
	ns, start int64
	shape     uint32
	key       uint64 // of the shape
}

// before reports whether the operation comes first: it is longer, else earlier, else its shape has
// the smaller key.
func (t *topOp) before(o *topOp) bool {
	return cmp.Or(cmp.Compare(o.ns, t.ns), cmp.Compare(t.start, o.start), cmp.Compare(t.key, o.key)) < 0
}

type statKey struct {
	site, shape, lane uint32
	bucket            uint16
}

type statSum struct{ n, ns, longest, queue, bytes int64 }

type laneSum struct{ n, busy, first, last int64 }

// longOp is a row of long_ops. It is long at this level and at all levels below.
type longOp struct {
	level      uint8
	start, end int64
	lane       uint32
}

func newRollup() *rollup {
	return &rollup{
		lod: map[lodKey]*lodSum{}, stats: map[statKey]*statSum{}, own: map[store.SpanID]*scopeSum{}, scopes: map[scopeKey]*scopeSum{},
		lanes: map[uint32]*laneSum{}, sites: map[uint32]uint32{},
		chains: map[chainBucket]*chainSum{},
	}
}

func entry[K comparable, V any](m map[K]*V, k K) (v *V, fresh bool) {
	v = m[k]
	if v == nil {
		v, fresh = new(V), true
		m[k] = v
	}
	return v, fresh
}

// add adds an operation. Its ids are those of the session.
func (r *rollup) add(o *store.Op, shape *store.Shape, parent store.SpanID, laneID, shapeID, site uint32) {
	dur := max(o.EndNs-o.StartNs, 0)
	end := o.StartNs + dur
	top := topOp{dur, o.StartNs, shapeID, shape.Key}
	long := uint8(0)
	for _, level := range store.Levels {
		first, last := o.StartNs>>level, max(end-1, o.StartNs)>>level
		if isLong(level, dur) {
			long = level
			last = first
		}
		for bin := first; bin <= last; bin++ {
			s, fresh := entry(r.lod, lodKey{bin, laneID, level})
			if bin == first {
				if s.n++; fresh || s.n == 1 || top.before(&s.top) {
					s.top = top
				}
			}
			if long != level {
				s.busy += min(end, (bin+1)<<level) - max(o.StartNs, bin<<level)
			}
		}
	}
	if long > 0 {
		r.long = append(r.long, longOp{long, o.StartNs, end, laneID})
	}
	st, _ := entry(r.stats, statKey{site, shapeID, laneID, store.Bucket(dur)})
	st.n++
	st.ns += dur
	st.longest = max(st.longest, dur)
	st.queue += o.QueueNs.V
	st.bytes += o.Bytes.V
	l, fresh := entry(r.lanes, laneID)
	l.n++
	l.busy += dur
	if fresh || o.StartNs < l.first {
		l.first = o.StartNs
	}
	l.last = max(l.last, end)
	if parent == 0 || shape.Operation != store.OpKernel && shape.Operation != store.OpCopy {
		return
	}
	one := scopeSum{first: o.StartNs, last: end}
	if shape.Operation == store.OpKernel {
		one.kernels, one.kernelNs, one.queue = 1, dur, o.QueueNs.V
	} else {
		one.copies, one.copyNs = 1, dur
	}
	sc, _ := entry(r.own, parent)
	sc.add(&one)
}

// rows returns the numbers of rows, by table.
func (r *rollup) rows() mergeCounts {
	return mergeCounts{len(r.lod), len(r.stats), len(r.scopes), len(r.chains), len(r.lanes), 0}
}

// writeRollup appends the rows of the rollup and the summary.
func (w *transaction) writeRollup() error {
	r := w.rollup
	for k, s := range r.lod {
		if err := w.append("lod", k.level, k.bin, k.lane, s.n, s.busy, s.top.ns, s.top.shape, s.top.key, s.top.start); err != nil {
			return err
		}
	}
	for _, l := range r.long {
		if err := w.append("long_ops", l.level, l.start, l.end, l.lane); err != nil {
			return err
		}
	}
	for k, s := range r.stats {
		if err := w.append("stats", k.site, k.shape, k.lane, k.bucket, s.n, s.ns, s.longest, s.queue, s.bytes); err != nil {
			return err
		}
	}
	if err := w.writeChainSums(); err != nil {
		return err
	}
	if err := w.writeScopeSums(); err != nil {
		return err
	}
	for lane, s := range r.lanes {
		if err := w.append("lane_sums", lane, s.n, s.busy, s.first, s.last); err != nil {
			return err
		}
	}
	return nil
}

// site returns the id of what a place has for the tree of scopes: its list of names, or the parent
// that decides and the name that counts without one.
func (w *transaction) site(b *store.Batch, place, placeID uint32) (uint32, error) {
	if place == 0 {
		return 0, nil
	}
	if id, ok := w.rollup.sites[placeID]; ok {
		return id, nil
	}
	p := siteOf(&b.Places[place])
	id := uint32(0)
	if p != (store.Place{}) {
		h := fnv.New64a()
		_, _ = io.WriteString(h, strconv.FormatUint(uint64(p.Parent), 16)+"|"+strconv.Itoa(len(p.ScopeName))+":"+p.ScopeName+p.ScopePath)
		p.Key = h.Sum64()
		var err error
		if id, err = w.sess.dicts.id(w.seg, sites, p.Key, func(id uint32) error {
			return w.append("sites", id, p.Key, uint64(p.Parent), utf8(p.ScopeName), utf8(p.ScopePath))
		}); err != nil {
			return 0, err
		}
	}
	w.rollup.sites[placeID] = id
	return id, nil
}

// siteOf returns the fields of a place that decide its path.
func siteOf(p *store.Place) store.Place {
	if p.ScopePath != "" {
		return store.Place{ScopePath: p.ScopePath}
	}
	return store.Place{Parent: p.Parent, ScopeName: p.ScopeName}
}

// lowBits is SQL for the lower 64 bits of the sum of x. Scan it with wrapped.
func lowBits(x string) string { return low("coalesce(sum(" + x + "), 0)::HUGEINT") }

// low is SQL for the lower 64 bits of a HUGEINT.
func low(x string) string { return "((" + x + ") & 18446744073709551615::HUGEINT)::UBIGINT" }

// signed is SQL for lowBits as a BIGINT.
func signed(x string) string { return signedSum("coalesce(sum(" + x + "), 0)::HUGEINT") }

// signedSum is SQL for the lower 64 bits of a HUGEINT as a BIGINT.
func signedSum(x string) string {
	b := low(x)
	return "(CASE WHEN " + b + " > 9223372036854775807 THEN " + b + "::HUGEINT - 18446744073709551616::HUGEINT ELSE " + b + " END)::BIGINT"
}

// wrapped scans a lowBits.
type wrapped struct{ v *int64 }

func (w wrapped) Scan(src any) error {
	v, ok := src.(uint64)
	if !ok {
		return errorOfType("sum", src)
	}
	*w.v = int64(v)
	return nil
}

// mergeTables has the rollups whose rows are merged, and the queries for that.
var mergeTables = [...]struct{ table, query string }{
	{"lod", "SELECT level, bin, lane, sum(c)::BIGINT, " + signed("busy") + ", coalesce(top.d, 0), coalesce(top.shape, 0), " +
		"coalesce(top.k, 0), coalesce(top.s, 0) FROM (SELECT level, bin, lane, sum(n) AS c, sum(busy_ns) AS busy, " + topSQL +
		" AS top FROM {lod} GROUP BY 1, 2, 3) GROUP BY ALL ORDER BY level, lane, bin"},
	{"stats", "SELECT site, shape, lane, bucket, sum(n)::BIGINT, " + signed("sum_ns") + ", max(max_ns), " + signed("queue_ns") + ", " +
		signed("bytes") + " FROM {stats} GROUP BY 1, 2, 3, 4"},
	// The instances of a path are in few blocks.
	{"scope_sums", "SELECT chain, start_ns, span, own, " + signed("wall_ns") + ", sum(kernels)::BIGINT, " + signed("kernel_ns") + ", " + signed("queue_ns") +
		", sum(copies)::BIGINT, " + signed("copy_ns") + ", min(first_ns), max(last_ns) FROM {scope_sums} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3"},
	{"span_sums", "SELECT chain, bucket, sum(n)::BIGINT, " + signed("wall_ns") + " FROM {span_sums} GROUP BY 1, 2 HAVING sum(n) != 0"},
	{"lane_sums", "SELECT lane, sum(n)::BIGINT, " + signed("busy_ns") + ", min(first_ns), max(last_ns) FROM {lane_sums} GROUP BY 1"},
	{"chains", "SELECT id, max(seq), arg_max(anchor, seq), arg_max(key, seq), arg_max(depth, seq), arg_max(state, seq) FROM {chains} GROUP BY 1"},
}

// mergeCounts has the number of rows of each of mergeTables.
type mergeCounts [len(mergeTables)]int

// topSQL selects the longest operation of rows of lod.
const topSQL = "arg_min({'d': top_ns, 'shape': top_shape, 's': top_start, 'k': top_key}, {'d': -top_ns, 's': top_start, 'k': top_key}) FILTER (n > 0)"

// mergeRollups merges the rows of the rollups of a segment: of all that are not merged, or of those with many
// such rows. It changes no sum.
func (s *Store) mergeRollups(ctx context.Context, seg *segment, all bool) error {
	v := view{s: s, segments: []*segment{seg}}
	for i, m := range mergeTables {
		if n := seg.partial[i] - seg.merged[i]; n == 0 || !all && n < max(s.maxPartial, min(seg.merged[i], mergeFactor*s.maxPartial)) {
			continue
		}
		if err := s.mergeTable(ctx, seg.alias+"."+m.table, v.tables(m.query)); err != nil {
			return err
		}
		err := s.each(ctx, "SELECT count(*) FROM "+seg.alias+"."+m.table, nil, func(r *sql.Rows) error { return r.Scan(&seg.partial[i]) })
		if err != nil {
			return err
		}
		seg.merged[i] = seg.partial[i]
	}
	return nil
}

// mergeTable replaces the rows of a table by those of a query.
func (s *Store) mergeTable(ctx context.Context, table, query string) error {
	tx, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	// The ids of rows that the transaction inserts are larger.
	var last int64
	if err = tx.QueryRowContext(ctx, "SELECT coalesce(max(rowid), -1) FROM "+table).Scan(&last); err != nil {
		return err
	}
	for _, q := range []string{"INSERT INTO " + table + " " + query, fmt.Sprintf("DELETE FROM %s WHERE rowid <= %d", table, last)} {
		if _, err = tx.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// countPartial counts the rollup rows of a segment.
func (s *Store) countPartial(ctx context.Context, seg *segment) error {
	seg.merged = mergeCounts{}
	query, counts := "SELECT ", []any{}
	for i, m := range mergeTables {
		query += "(SELECT count(*) FROM " + seg.alias + "." + m.table + "),"
		counts = append(counts, &seg.partial[i])
	}
	return s.each(ctx, query, nil, func(r *sql.Rows) error { return r.Scan(counts...) })
}
