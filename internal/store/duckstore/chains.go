// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/gpuflight/gpuflight/internal/store"
)

// A chain says where spans are in the tree of scopes: the names from an anchor down to the span. The
// anchor is the parent at which the chain of the span ends, because the session lacks it, or 0. When
// the anchor arrives, the writer changes the chains that end there. So the tree of scopes needs the sums
// of each chain, and no single span.
//
// This does not work if a stored span gets another name or parent, or if an earlier span with the same
// id arrives. It does not work either if the disk loses rows of a segment, or a segment is damaged. Then the chains of
// the session are stale: readers compute the tree from all spans, and the writer builds the chains again (see
// rebuildChains). In a session with largeTree or more spans, readers wait for that.

// States of a chain.
const (
	chainInside   = uint8(iota)
	chainOutside  // too long, or a cycle
	chainBoundary // of a session or deep window: chains below start again
	chainTwin     // inside, of a span that is not the first one with its id
)

// limb is the content of a chain.
type limb struct {
	anchor store.SpanID
	key    string // pathKey of the names
	depth  int
	state  uint8
}

// below returns the chain of the names in c under a span whose chain is p.
func (p limb) below(c limb) limb {
	switch {
	case p.state == chainOutside || p.depth+c.depth > store.MaxScopeDepth:
		return limb{state: chainOutside}
	case p.state == chainBoundary:
		return limb{key: c.key, depth: c.depth, state: c.state}
	}
	return limb{anchor: p.anchor, key: p.key + c.key, depth: p.depth + c.depth, state: c.state}
}

type chain struct {
	id uint32
	limb
	// The number of spans and the earliest start, if this process has written all of them to seg.
	n     int64
	first int64
	seg   *segment
}

func (c *chain) count(seg *segment, n, first int64) {
	if c.seg != seg {
		c.seg = nil
	}
	c.n += n
	c.first = min(c.first, first)
}

type chainSpan struct {
	start  int64
	chain  uint32
	parent store.SpanID
}

type chainSum struct{ n, ns int64 }

type chainBucket struct {
	chain  uint32
	bucket uint16
}

// chains is what the writer remembers of the chains of a session. Of spans with one id it has the one
// with the earliest start. Beyond maxChained entries it forgets them and reads them again on demand.
type chains struct {
	spans    map[store.SpanID]chainSpan
	byID     map[uint32]*chain
	byLimb   map[limb]*chain
	anchored map[store.SpanID][]*chain
	moved    map[uint32]uint32 // from a removed chain to the one that replaced it
	// pending has the sums of spans that the session lacks.
	pending map[store.SpanID]*scopeSum
	// Ids of spans, anchors and pending sums that may be stored and are not in the maps.
	oldSpans, oldAnchors, oldPending bloom
	next                             uint32
	seq                              int64
	folds                            store.Folds
}

const (
	maxChained = 1 << 18
	// maxMoved is the number of spans of a chain up to which the writer changes their rows.
	maxMoved = 1 << 16
)

func newChains() *chains {
	t := &chains{next: 1}
	t.reset()
	return t
}

func (t *chains) reset() {
	t.spans, t.byID, t.byLimb = map[store.SpanID]chainSpan{}, map[uint32]*chain{}, map[limb]*chain{}
	t.anchored, t.moved, t.pending = map[store.SpanID][]*chain{}, map[uint32]uint32{}, map[store.SpanID]*scopeSum{}
}

// size is the number of entries of the maps.
func (t *chains) size() int64 {
	return int64(len(t.spans) + len(t.byID) + len(t.anchored) + len(t.moved) + len(t.pending))
}

// forget empties the maps if they have more than limit entries.
func (t *chains) forget(limit int64) {
	if t.size() < limit {
		return
	}
	for id := range t.spans {
		t.oldSpans.add(uint64(id))
	}
	for id := range t.anchored {
		t.oldAnchors.add(uint64(id))
	}
	for id := range t.pending {
		t.oldPending.add(uint64(id))
	}
	t.reset()
}

func (t *chains) add(c *chain) {
	t.byID[c.id] = c
	if t.byLimb[c.limb] == nil {
		t.byLimb[c.limb] = c
	}
	if c.anchor != 0 {
		t.anchored[c.anchor] = append(t.anchored[c.anchor], c)
	}
}

// final returns the chain that has replaced another one.
func (t *chains) final(id uint32) uint32 {
	for {
		next, ok := t.moved[id]
		if !ok {
			return id
		}
		id = next
	}
}

// writerView returns the segments of a session, attached until it is closed.
func (s *Store) writerView(ctx context.Context, sess *session) (*view, error) {
	v := &view{s: s, sess: sess}
	for _, seg := range sess.segments {
		if err := s.acquire(ctx, seg); err != nil {
			v.close()
			return nil, err
		}
		v.segments = append(v.segments, seg)
		v.coarse = v.coarse || seg.coarse
	}
	v.folds = sess.paths.folded()
	return v, nil
}

// loadChains reads the ids of the spans and anchors of a session.
func (v *view) loadChains(ctx context.Context) (*chains, error) {
	t := newChains()
	for _, q := range []struct {
		query string
		add   func(uint64)
	}{
		{"SELECT span FROM {spans}", t.oldSpans.add},
		{"SELECT anchor FROM {chains} WHERE anchor != 0", t.oldAnchors.add},
		{"SELECT DISTINCT span FROM {scope_sums} WHERE chain = 0", t.oldPending.add},
	} {
		err := v.each(ctx, q.query, nil, func(r *sql.Rows) error {
			var id uint64
			err := r.Scan(&id)
			q.add(id)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	// A group may have the chain that another one replaced.
	return t, v.each(ctx, "SELECT coalesce(max(id), 0)::UINTEGER + 1, coalesce(max(seq), 0) + 1 FROM (SELECT id, seq FROM {chains} UNION ALL SELECT chain, 0 FROM {top_groups})", nil, func(r *sql.Rows) error {
		return r.Scan(&t.next, &t.seq)
	})
}

// latestChains is SQL for the current content of all chains.
const latestChains = "(SELECT id, arg_max(anchor, seq) AS anchor, arg_max(key, seq) AS key, arg_max(depth, seq) AS depth, " +
	"arg_max(state, seq) AS state FROM {chains} GROUP BY id)"

// readChains reads chains that meet a condition, except those that are in memory.
func (t *chains) readChains(ctx context.Context, q querier, v *view, where string, ids any) error {
	return eachRow(ctx, q, v.tables("SELECT id, anchor, key, depth, state FROM "+latestChains+" WHERE "+where), []any{ids}, func(r *sql.Rows) error {
		c := &chain{}
		var key []byte
		if err := r.Scan(&c.id, &c.anchor, &key, &c.depth, &c.state); err != nil {
			return err
		}
		c.key = string(key)
		if t.byID[c.id] == nil {
			t.add(c)
		}
		return nil
	})
}

// readSpans reads what is stored of spans that may exist and are not in memory, and their chains.
func (t *chains) readSpans(ctx context.Context, q querier, v *view, ids []store.SpanID) error {
	var list []uint64
	for _, id := range ids {
		if _, ok := t.spans[id]; !ok && id != 0 && t.oldSpans.has(uint64(id)) {
			list = append(list, uint64(id))
		}
	}
	if len(list) == 0 {
		return nil
	}
	var missing []int64
	err := eachRow(ctx, q, v.tables("SELECT span, min(start_ns), arg_min(chain, start_ns), arg_min(parent, start_ns) FROM {spans} WHERE span IN (SELECT unnest(?::UBIGINT[])) GROUP BY 1"),
		[]any{list}, func(r *sql.Rows) error {
			var id store.SpanID
			var p chainSpan
			err := r.Scan(&id, &p.start, &p.chain, &p.parent)
			t.spans[id] = p
			if t.byID[t.final(p.chain)] == nil {
				missing = append(missing, int64(p.chain))
			}
			return err
		})
	if err != nil || len(missing) == 0 {
		return err
	}
	return t.readChains(ctx, q, v, "id IN (SELECT unnest(?::BIGINT[]))", missing)
}

// spanRow is a span that a transaction writes.
type spanRow struct {
	item
	old   *oldSpan // the version that it replaces, or nil
	chain uint32

	limb    limb
	visited bool
	done    bool
}

func (r *spanRow) span() *store.Span { return &r.batch.Spans[r.row] }

// oldSpan is a stored version of a span.
type oldSpan struct {
	end    int64
	parent store.SpanID
	name   string
	inside bool
	chain  uint32
}

// step is a part of the chain of a span: a span of the batch, or a chain that ends at such a span.
type step struct {
	row  *spanRow
	limb limb
}

// resolve finds the chain of a span of the batch. first has its new spans by id.
func (t *chains) resolve(r *spanRow, first map[store.SpanID]*spanRow) {
	var steps []step
	var base limb
	for cur := r; ; {
		if cur.done {
			base = cur.limb
			break
		}
		if cur.visited {
			base = limb{state: chainOutside}
			break
		}
		cur.visited = true
		p := cur.span()
		if !insideTree(p.Operation) {
			cur.limb, cur.done = limb{state: chainBoundary}, true
			base = cur.limb
			break
		}
		name := t.folds.Name(utf8(p.Name))
		steps = append(steps, step{cur, limb{key: pathKey([]string{name}), depth: 1}})
		if p.Parent == 0 {
			break
		}
		if cur = first[p.Parent]; cur != nil {
			continue
		}
		stored, ok := t.spans[p.Parent]
		if !ok {
			base = limb{anchor: p.Parent}
			break
		}
		c := t.byID[t.final(stored.chain)]
		if cur = first[c.anchor]; cur == nil || c.anchor == 0 {
			base = c.limb
			break
		}
		steps = append(steps, step{nil, c.limb})
	}
	for _, s := range slices.Backward(steps) {
		base = base.below(s.limb)
		if s.row != nil {
			s.row.limb, s.row.done = base, true
		}
	}
}

// chains returns the chains of the session, and a view of its segments. The view is open until the transaction
// has ended: DuckDB cannot close a file that a transaction has read.
func (w *transaction) chains(ctx context.Context) (_ *chains, _ *view, err error) {
	if w.view != nil {
		return w.sess.chains, w.view, nil
	}
	if w.view, err = w.s.writerView(ctx, w.sess); err != nil {
		return nil, nil, err
	}
	if w.sess.chains == nil {
		w.sess.chains, err = w.view.loadChains(ctx)
	} else {
		w.sess.chains.forget(w.s.maxChained)
	}
	return w.sess.chains, w.view, err
}

// chainSpans assigns the chains of spans and sums them up. It returns the new spans by id.
func (w *transaction) chainSpans(ctx context.Context, tx *sql.Tx, list []*spanRow) (first map[store.SpanID]*spanRow, err error) {
	if w.sess.id == "" || len(list) == 0 || w.sess.stale() {
		return nil, nil
	}
	t, v, err := w.chains(ctx)
	if err != nil {
		return nil, err
	}
	first = map[store.SpanID]*spanRow{}
	var ids []store.SpanID
	for _, r := range list {
		p := r.span()
		if o := r.old; o != nil && (o.name != utf8(p.Name) || o.parent != p.Parent || o.inside != insideTree(p.Operation)) {
			return nil, w.markStale(ctx, tx)
		}
		if f := first[p.Span]; p.Span != 0 && (f == nil || p.StartNs < f.span().StartNs) {
			first[p.Span] = r
		}
		ids = append(ids, p.Span, p.Parent)
	}
	if err := t.readSpans(ctx, tx, v, ids); err != nil {
		return nil, err
	}
	for _, p := range ids {
		if s, ok := t.spans[p]; ok && t.byID[t.final(s.chain)] == nil {
			return nil, w.markStale(ctx, tx)
		}
	}
	var anchors []uint64
	for id, r := range first {
		s, ok := t.spans[id]
		if ok && r.span().StartNs < s.start {
			return nil, w.markStale(ctx, tx)
		}
		if ok {
			delete(first, id)
		} else if t.oldAnchors.has(uint64(id)) {
			anchors = append(anchors, uint64(id))
		}
	}
	if len(anchors) > 0 {
		if err := t.readChains(ctx, tx, v, "anchor IN (SELECT unnest(?::UBIGINT[]))", anchors); err != nil {
			return nil, err
		}
	}
	t.folds = w.sess.paths.folded()
	for _, r := range list {
		if r.old == nil {
			t.resolve(r, first)
			if p := r.span(); p.Span != 0 && first[p.Span] != r && r.limb.state == chainInside {
				r.limb.state = chainTwin
			}
		}
	}
	for id, r := range first {
		t.resolve(r, first)
		c, err := w.chainOf(r.limb)
		if err != nil {
			return nil, err
		}
		t.spans[id] = chainSpan{r.span().StartNs, c.id, r.span().Parent}
	}
	if err := w.moveChains(ctx, tx, first); err != nil || w.sess.stale() {
		return nil, err
	}
	for _, r := range list {
		p := r.span()
		if o := r.old; o != nil {
			r.chain = t.final(o.chain)
			w.rollup.chain(r.chain, max(o.end-p.StartNs, 0), -1)
		} else {
			c, err := w.chainOf(r.limb)
			if err != nil {
				return nil, err
			}
			r.chain = c.id
			c.count(w.seg, 1, p.StartNs)
		}
		w.rollup.chain(r.chain, max(p.EndNs-p.StartNs, 0), 1)
	}
	return first, nil
}

// chain counts a span.
func (r *rollup) chain(id uint32, dur, n int64) {
	s, _ := entry(r.chains, chainBucket{id, store.Bucket(dur)})
	s.n += n
	s.ns += n * dur
}

// chainOf returns the chain with a content.
func (w *transaction) chainOf(l limb) (*chain, error) {
	t := w.sess.chains
	if c := t.byLimb[l]; c != nil {
		return c, nil
	}
	c := &chain{id: t.next, limb: l, seg: w.seg, first: store.MaxTimeNs}
	t.next++
	t.add(c)
	return c, w.writeChain(c)
}

func (w *transaction) writeChain(c *chain) error {
	t := w.sess.chains
	t.seq++
	return w.append("chains", c.id, t.seq, uint64(c.anchor), []byte(c.key), uint8(c.depth), c.state)
}

// moveChains changes the chains that end at spans that are now known. The spans of a small chain get
// another one that exists, so that there are as many chains as paths. Otherwise the chain gets a new
// content.
func (w *transaction) moveChains(ctx context.Context, tx *sql.Tx, first map[store.SpanID]*spanRow) error {
	t := w.sess.chains
	var pairs, removed []string
	from := int64(store.MaxTimeNs)
	for id, r := range first {
		list := t.anchored[id]
		delete(t.anchored, id)
		for _, c := range list {
			l := r.limb.below(c.limb)
			if l.state == chainOutside && c.state != chainOutside {
				// The sums of the spans of the chain are in those of spans above that remain inside.
				return w.markStale(ctx, tx)
			}
			delete(t.byLimb, c.limb)
			if c.seg != w.seg || c.n == 0 || c.n > maxMoved {
				c.limb = l
				t.add(c)
				if err := w.writeChain(c); err != nil {
					return err
				}
				continue
			}
			target, err := w.chainOf(l)
			if err != nil {
				return err
			}
			target.count(w.seg, c.n, c.first)
			from = min(from, c.first)
			t.moved[c.id] = target.id
			delete(t.byID, c.id)
			removed = append(removed, strconv.FormatUint(uint64(c.id), 10))
			pairs = append(pairs, fmt.Sprintf("(%d::UINTEGER, %d::UINTEGER)", c.id, target.id))
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	values := " FROM (VALUES " + strings.Join(pairs, ", ") + ") m(a, b) WHERE chain = m.a"
	for _, q := range []string{
		"UPDATE " + w.seg.alias + ".spans SET chain = m.b" + values + " AND start_ns >= " + strconv.FormatInt(from, 10),
		"UPDATE " + w.seg.alias + ".span_sums SET chain = m.b" + values,
		"UPDATE " + w.seg.alias + ".scope_sums SET chain = m.b" + values,
		"UPDATE " + w.seg.alias + ".stats SET chain = m.b" + values,
		"UPDATE " + w.seg.alias + ".stack_sums SET chain = m.b" + values,
		"DELETE FROM " + w.seg.alias + ".chains WHERE id IN (" + strings.Join(removed, ", ") + ")",
	} {
		if _, err := tx.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// staleChains is the property of a segment whose transaction made the chains of the session stale.
const staleChains = "stale_chains"

// lost reports whether a segment is missing.
func (sess *session) lost() bool {
	for i, seg := range sess.segments {
		if sess.id != "" && seg.n != int64(i+1) {
			return true
		}
	}
	return false
}

// stale reports whether the chains of a session are stale.
func (sess *session) stale() bool {
	return !sess.rebuiltLost && slices.ContainsFunc(sess.segments, func(seg *segment) bool { return seg.stale })
}

func (w *transaction) markStale(ctx context.Context, tx *sql.Tx) error {
	w.sess.chains = nil
	w.s.mu.Lock()
	w.seg.stale, w.sess.rebuiltLost = true, false
	w.sess.epoch++
	w.s.mu.Unlock()
	_, err := tx.ExecContext(ctx, "INSERT INTO "+w.seg.alias+".meta VALUES ('"+staleChains+"', '1')")
	return err
}

// refreshChains rebuilds stale chains, unless the session is large at the latest when it has twice as many spans.
// Without, answers are correct too.
func (s *Store) refreshChains(ctx context.Context, sess *session, now bool) {
	n := sess.info.Counts["spans"]
	if sess.id == "" || !sess.stale() || !now && (n < 2*sess.rebuilt || n >= s.largeTree) {
		return
	}
	if s.rebuildChains(ctx, sess) != nil {
		s.failures.Add(1)
	}
}

// inTransaction calls run in a transaction on a segment.
func (s *Store) inTransaction(ctx context.Context, sess *session, seg *segment, run func(*transaction, *sql.Tx) error) error {
	w := &transaction{s: s, sess: sess, seg: seg, appenders: map[string]*duckdb.Appender{}, rollup: newRollup()}
	return w.commit(ctx, func(tx *sql.Tx) error { return run(w, tx) })
}

func (w *transaction) writeChainSums() error {
	for k, s := range w.rollup.chains {
		if s.n == 0 && s.ns == 0 {
			continue
		}
		if err := w.append("span_sums", k.chain, k.bucket, s.n, s.ns); err != nil {
			return err
		}
	}
	return nil
}
