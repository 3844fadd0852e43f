// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"database/sql"
	"hash/fnv"
	"io"
	"strconv"

	"github.com/gpuflight/gpuflight/internal/store"
)

// longBins is the number of bins of a level from which an operation is long. A long operation has a
// row in long_ops, because a row for each bin would have no bound.
const longBins = 64

// maxPartial is the number of rollup rows of a segment from which the writer merges them.
const maxPartial = 2_000_000

// isLong reports whether an operation has no row for each bin of a level.
func isLong(level uint8, dur int64) bool { return dur>>level >= longBins }

// shortNs is the shortest duration of an operation in long_ops.
const shortNs = longBins << 24

// rollup sums the new operations of a transaction. Sums wrap around as int64 does.
type rollup struct {
	lod    map[lodKey]*lodSum
	stats  map[statKey]*statSum
	scopes map[store.SpanID]*scopeSum
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

type scopeSum struct{ kernels, kernelNs, queue, copies, copyNs, first, last int64 }

type laneSum struct{ n, busy, first, last int64 }

// longOp is a row of long_ops. It is long at this level and at all levels below.
type longOp struct {
	level      uint8
	start, end int64
	lane       uint32
}

func newRollup() *rollup {
	return &rollup{
		lod: map[lodKey]*lodSum{}, stats: map[statKey]*statSum{}, scopes: map[store.SpanID]*scopeSum{},
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
	sc, fresh := entry(r.scopes, parent)
	if shape.Operation == store.OpKernel {
		sc.kernels++
		sc.kernelNs += dur
		sc.queue += o.QueueNs.V
	} else {
		sc.copies++
		sc.copyNs += dur
	}
	if fresh || o.StartNs < sc.first {
		sc.first = o.StartNs
	}
	sc.last = max(sc.last, end)
}

// rows returns the number of rows.
func (r *rollup) rows() int64 {
	return int64(len(r.lod) + len(r.stats) + len(r.scopes) + len(r.lanes) + len(r.chains))
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
	for parent, s := range r.scopes {
		if err := w.append("scope_sums", uint64(parent), s.kernels, s.kernelNs, s.queue, s.copies, s.copyNs, s.first, s.last); err != nil {
			return err
		}
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

// mergeSQL has the query that merges the rows of each rollup.
var mergeSQL = map[string]string{
	"lod": "SELECT level, bin, lane, sum(c)::BIGINT, " + signed("busy") + ", coalesce(top.d, 0), coalesce(top.shape, 0), " +
		"coalesce(top.k, 0), coalesce(top.s, 0) FROM (SELECT level, bin, lane, sum(n) AS c, sum(busy_ns) AS busy, " + topSQL +
		" AS top FROM {lod} GROUP BY 1, 2, 3) GROUP BY ALL ORDER BY level, lane, bin",
	"stats": "SELECT site, shape, lane, bucket, sum(n)::BIGINT, " + signed("sum_ns") + ", max(max_ns), " + signed("queue_ns") + ", " +
		signed("bytes") + " FROM {stats} GROUP BY 1, 2, 3, 4",
	"scope_sums": "SELECT parent, sum(kernels)::BIGINT, " + signed("kernel_ns") + ", " + signed("queue_ns") + ", sum(copies)::BIGINT, " +
		signed("copy_ns") + ", min(first_ns), max(last_ns) FROM {scope_sums} GROUP BY 1",
	"span_sums": "SELECT chain, bucket, sum(n)::BIGINT, " + signed("wall_ns") + " FROM {span_sums} GROUP BY 1, 2 HAVING sum(n) != 0",
	"chains":    "SELECT id, max(seq), arg_max(anchor, seq), arg_max(key, seq), arg_max(depth, seq), arg_max(state, seq) FROM {chains} GROUP BY 1",
	"lane_sums": "SELECT lane, sum(n)::BIGINT, " + signed("busy_ns") + ", min(first_ns), max(last_ns) FROM {lane_sums} GROUP BY 1",
}

// topSQL selects the longest operation of rows of lod.
const topSQL = "arg_min({'d': top_ns, 'shape': top_shape, 's': top_start, 'k': top_key}, {'d': -top_ns, 's': top_start, 'k': top_key}) FILTER (n > 0)"

// mergeRollups merges the rows of the rollups of a segment. It changes no sum.
func (s *Store) mergeRollups(ctx context.Context, seg *segment) (err error) {
	v := view{s: s, segments: []*segment{seg}}
	for table, query := range mergeSQL {
		tx, err := s.begin(ctx)
		if err != nil {
			return err
		}
		for _, q := range []string{
			"CREATE OR REPLACE TEMP TABLE merged AS " + v.tables(query), "DELETE FROM " + seg.alias + "." + table,
			"INSERT INTO " + seg.alias + "." + table + " SELECT * FROM temp.merged", "DROP TABLE temp.merged",
		} {
			if _, err = tx.ExecContext(ctx, q); err != nil {
				_ = tx.Rollback()
				return err
			}
		}
		if err = tx.Commit(); err != nil {
			return err
		}
	}
	return s.countPartial(ctx, seg)
}

// countPartial counts the rollup rows of a segment.
func (s *Store) countPartial(ctx context.Context, seg *segment) error {
	query := "SELECT "
	for table := range mergeSQL {
		query += "(SELECT count(*) FROM " + seg.alias + "." + table + ") + "
	}
	return s.each(ctx, query+"0", nil, func(r *sql.Rows) error {
		err := r.Scan(&seg.partial)
		seg.mergedTo = seg.partial
		return err
	})
}
