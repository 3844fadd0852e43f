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
	"math"
	"strconv"
	"strings"

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
	stacks map[stackKey]*stackSum
	own    map[store.SpanID]*scopeSum // by the span that launched
	scopes map[scopeKey]*scopeSum     // see sumScopes
	lanes  map[uint32]*laneSum
	long   []longOp
	// sites are what the places have for the tree of scopes. The first one is empty.
	sites  []store.Place
	siteOf map[store.Place]uint32 // index in sites
	places map[uint32]uint32      // index in sites, by id of a place
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

// statKey identifies a sum. The site is an index in sites.
type statKey struct {
	site, shape, lane uint32
	bucket            uint16
}

type stackKey struct{ site, stack, shape uint32 }

type stackSum struct{ n, ns int64 }

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
		lanes: map[uint32]*laneSum{}, stacks: map[stackKey]*stackSum{},
		sites: []store.Place{{}}, siteOf: map[store.Place]uint32{}, places: map[uint32]uint32{},
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

// add adds an operation. Its ids are those of the session, and site is an index in sites.
func (r *rollup) add(o *store.Op, shape *store.Shape, parent store.SpanID, laneID, shapeID, stackID, site uint32) {
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
	if stackID != 0 && shape.Operation == store.OpKernel {
		s, _ := entry(r.stacks, stackKey{site, stackID, shapeID})
		s.n++
		s.ns += dur
	}
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
	return mergeCounts{len(r.lod), len(r.stats), len(r.scopes), len(r.chains), len(r.lanes), 0, len(r.stacks)}
}

// writeRollup appends the rows of the rollup and the summary.
func (w *transaction) writeRollup(ctx context.Context, tx *sql.Tx) error {
	r := w.rollup
	placed, err := w.placeSites(ctx, tx)
	if err != nil {
		return err
	}
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
		at := placed[k.site]
		if err := w.append("stats", at.site, k.shape, k.lane, k.bucket, s.n, s.ns, s.longest, s.queue, s.bytes, at.chain); err != nil {
			return err
		}
	}
	for k, s := range r.stacks {
		at := placed[k.site]
		if err := w.append("stack_sums", at.site, at.chain, k.stack, k.shape, s.n, s.ns); err != nil {
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

// site returns the index in sites of what a place has for the tree of scopes. That is its list of names, or
// the parent that decides and the name that counts without one.
func (w *transaction) site(b *store.Batch, place, placeID uint32) (uint32, error) {
	if place == 0 {
		return 0, nil
	}
	r := w.rollup
	if i, ok := r.places[placeID]; ok {
		return i, nil
	}
	p := siteOf(&b.Places[place])
	i, ok := r.siteOf[p]
	if !ok && p != (store.Place{}) {
		i = uint32(len(r.sites))
		r.sites = append(r.sites, p)
		r.siteOf[p] = i
		if err := w.number(append(strings.Split(p.ScopePath, "|"), p.ScopeName)...); err != nil {
			return 0, err
		}
	}
	r.places[placeID] = i
	return i, nil
}

// number counts names of scopes, and notes the patterns that fold now. Readers may fold them before the
// transaction has ended.
func (w *transaction) number(names ...string) error {
	if w.sess.id == "" {
		return nil
	}
	for _, n := range names {
		if p := w.sess.numbered.Add(utf8(n)); p != "" {
			w.sess.paths.fold(p)
			if err := w.append("folds", p); err != nil {
				return err
			}
		}
	}
	return nil
}

// placed is where a site is: in a chain if its parent is in the tree, else an entry of sites.
type placed struct{ site, chain uint32 }

// placeSites finds where the sites of a transaction are.
func (w *transaction) placeSites(ctx context.Context, tx *sql.Tx) ([]placed, error) {
	list := w.rollup.sites
	out := make([]placed, len(list))
	var parents []store.SpanID
	for i := range list {
		if list[i].Parent != 0 {
			parents = append(parents, list[i].Parent)
		}
	}
	var t *chains
	if len(parents) > 0 && w.sess.id != "" && !w.sess.stale() {
		var v *view
		var err error
		if t, v, err = w.chains(ctx); err == nil {
			err = t.readSpans(ctx, tx, v, parents)
		}
		if err != nil {
			return nil, err
		}
	}
	for i := 1; i < len(list); i++ {
		p := list[i]
		if t != nil && p.Parent != 0 {
			if _, c, ok := t.known(p.Parent); ok && c != nil && c.state == chainInside {
				if c.seg != w.seg {
					c.seg = nil // sums of the chain are in another segment than its spans
				}
				out[i].chain = c.id
				continue
			}
		}
		var err error
		if out[i].site, err = w.siteID(p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// siteID returns the id of a site that is in no chain.
func (w *transaction) siteID(p store.Place) (uint32, error) {
	if p == (store.Place{}) {
		return 0, nil
	}
	if p.ScopePath != "" {
		p.ScopePath = strings.Join(w.sess.paths.folded().Names(strings.Split(utf8(p.ScopePath), "|")), "|")
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, strconv.FormatUint(uint64(p.Parent), 16)+"|"+strconv.Itoa(len(p.ScopeName))+":"+p.ScopeName+p.ScopePath)
	p.Key = h.Sum64()
	return w.sess.dicts.id(w.seg, sites, p.Key, func(id uint32) error {
		return w.append("sites", id, p.Key, uint64(p.Parent), utf8(p.ScopeName), utf8(p.ScopePath))
	})
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
		" AS top FROM {slice} GROUP BY 1, 2, 3) GROUP BY ALL ORDER BY level, lane, bin"},
	{"stats", "SELECT site, shape, lane, bucket, sum(n)::BIGINT, " + signed("sum_ns") + ", max(max_ns), " + signed("queue_ns") + ", " +
		signed("bytes") + ", chain FROM {placed} GROUP BY site, shape, lane, bucket, chain"},
	// The instances of a path are in few blocks.
	{"scope_sums", "SELECT chain, start_ns, span, own, " + signed("wall_ns") + ", sum(kernels)::BIGINT, " + signed("kernel_ns") + ", " + signed("queue_ns") +
		", sum(copies)::BIGINT, " + signed("copy_ns") + ", min(first_ns), max(last_ns) FROM {scope_sums} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3"},
	{"span_sums", "SELECT chain, bucket, sum(n)::BIGINT, " + signed("wall_ns") + " FROM {span_sums} GROUP BY 1, 2 HAVING sum(n) != 0"},
	{"lane_sums", "SELECT lane, sum(n)::BIGINT, " + signed("busy_ns") + ", min(first_ns), max(last_ns) FROM {lane_sums} GROUP BY 1"},
	{"chains", "SELECT id, max(seq), arg_max(anchor, seq), arg_max(key, seq), arg_max(depth, seq), arg_max(state, seq) FROM {chains} GROUP BY 1"},
	{"stack_sums", "SELECT site, chain, stack, shape, sum(n)::BIGINT, " + signed("sum_ns") + " FROM {placed} GROUP BY 1, 2, 3, 4"},
}

// placedSQL is the rows of a table whose sites have the chains of their parents, as far as these are known.
func placedSQL(table string) string {
	return "(SELECT t.* REPLACE (CASE WHEN x.chain IS NULL THEN t.site ELSE 0 END AS site, coalesce(x.chain, t.chain) AS chain) FROM " + table + " t LEFT JOIN (" +
		"SELECT s.id AS parent_site, c.id AS chain FROM (SELECT DISTINCT id, parent FROM {sites} WHERE parent != 0 AND scope_path = '' AND id IN (SELECT site FROM " + table +
		" WHERE site != 0)) s JOIN (SELECT span, arg_min(chain, start_ns) AS chain FROM {spans} WHERE span IN (SELECT parent FROM {sites} WHERE parent != 0 AND " +
		"id IN (SELECT site FROM " + table + " WHERE site != 0)) GROUP BY 1) p ON p.span = s.parent JOIN " + latestChains +
		" c ON c.id = p.chain WHERE c.state = 0) x ON x.parent_site = t.site)"
}

// mergeCounts has the number of rows of each of mergeTables.
type mergeCounts [len(mergeTables)]int

// topSQL selects the longest operation of rows of lod.
const topSQL = "arg_min({'d': top_ns, 'shape': top_shape, 's': top_start, 'k': top_key}, {'d': -top_ns, 's': top_start, 'k': top_key}) FILTER (n > 0)"

// mergeRollups merges the rows of the rollups of a segment: of all that are not merged, or of those with many
// such rows. It changes no sum.
func (s *Store) mergeRollups(ctx context.Context, sess *session, seg *segment, all bool) error {
	v := view{s: s, segments: []*segment{seg}}
	for i, m := range mergeTables {
		query, table := m.query, "{"+m.table+"}"
		n := seg.partial[i] - seg.merged[i]
		switch {
		case n == 0 || !all && n < max(s.maxPartial, min(seg.merged[i], mergeFactor*s.maxPartial)):
			continue
		}
		if strings.Contains(query, "{placed}") {
			if sess.id != "" && !sess.stale() {
				// Another segment may have a chain.
				w, err := s.writerView(ctx, sess)
				if err != nil {
					return err
				}
				defer w.close()
				table = strings.ReplaceAll(placedSQL(table), "{chains}", w.tables("{chains}"))
			}
			query = strings.ReplaceAll(query, "{placed}", table)
		}
		var err error
		if m.table == "lod" {
			err = s.mergeLod(ctx, seg, query)
		} else {
			err = s.mergeTable(ctx, seg.alias+"."+m.table, v.tables(query), "")
		}
		if err != nil {
			return err
		}
		err = s.each(ctx, "SELECT count(*) FROM "+seg.alias+"."+m.table, nil, func(r *sql.Rows) error { return r.Scan(&seg.partial[i]) })
		if err != nil {
			return err
		}
		seg.merged[i] = seg.partial[i]
		if sess.chains == nil || !strings.Contains(m.query, "{placed}") {
			continue
		}
		err = s.each(ctx, "SELECT DISTINCT chain FROM "+seg.alias+"."+m.table, nil, func(r *sql.Rows) error {
			var id uint32
			err := r.Scan(&id)
			if c := sess.chains.byID[id]; c != nil && c.seg != seg {
				c.seg = nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return s.extendTops(ctx, sess, seg, all)
}

// mergeLod merges the bins of lod that have new rows, in slices of some 2*maxPartial rows: topSQL needs about
// 200 bytes for a row, which DuckDB keeps in memory.
func (s *Store) mergeLod(ctx context.Context, seg *segment, query string) error {
	table := seg.alias + ".lod"
	for _, level := range store.Levels {
		var slices []string
		from, to, rows := seg.lodFrom>>level, int64(0), int64(0)
		end := func() {
			if rows > 0 {
				slices = append(slices, fmt.Sprintf("level = %d AND bin BETWEEN %d AND %d", level, from, to))
			}
			from, rows = to+1, 0
		}
		err := s.each(ctx, fmt.Sprintf("SELECT bin, count(*) FROM %s WHERE level = %d AND bin >= %d GROUP BY 1 ORDER BY 1", table, level, from), nil,
			func(r *sql.Rows) error {
				var n int64
				err := r.Scan(&to, &n)
				if rows += n; rows >= int64(2*s.maxPartial) {
					end()
				}
				return err
			})
		end()
		for _, where := range slices {
			if err == nil {
				err = s.mergeTable(ctx, table, strings.ReplaceAll(query, "{slice}", table+" WHERE "+where), " AND "+where)
			}
		}
		if err != nil {
			return err
		}
	}
	seg.lodFrom = math.MaxInt64
	return nil
}

// mergeTable replaces the rows of a table that meet a condition by those of a query.
func (s *Store) mergeTable(ctx context.Context, table, query, where string) error {
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
	for _, q := range []string{"INSERT INTO " + table + " " + query, fmt.Sprintf("DELETE FROM %s WHERE rowid <= %d%s", table, last, where)} {
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
