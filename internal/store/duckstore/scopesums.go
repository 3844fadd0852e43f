// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"maps"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Table scope_sums has what spans launched. A row with own has what a span launched itself, and its wall
// time. The other rows have what was launched below it. So the rows of a span that the session has sum up
// to what its instance shows, and no reader needs the spans below.
//
// The writer adds an operation to the span that launched it and to all spans above. Rows of a span that
// the session lacks have chain 0. When the span arrives, the writer adds the sum of these rows twice: to
// its chain, in a row that is not own, and to the spans above.
//
// While the chains are stale, rows are own and have chain 0. rebuildChains derives all others again.

// scopeKey identifies a row of scope_sums. The chain and start are 0 if the session lacks the span.
type scopeKey struct {
	chain uint32
	start int64
	span  store.SpanID
	own   bool
}

// scopeSum is a sum of operations, and the wall time of a span.
type scopeSum struct{ wall, kernels, kernelNs, queue, copies, copyNs, first, last int64 }

func (s *scopeSum) empty() bool { return s.kernels == 0 && s.copies == 0 }

// add adds other operations.
func (s *scopeSum) add(o *scopeSum) {
	if o.empty() {
		return
	}
	if s.empty() {
		s.first, s.last = o.first, o.last
	}
	s.first, s.last = min(s.first, o.first), max(s.last, o.last)
	s.kernels += o.kernels
	s.kernelNs += o.kernelNs
	s.queue += o.queue
	s.copies += o.copies
	s.copyNs += o.copyNs
}

// readSums calls add for the sums of the rows that meet a condition, by span.
func (v *view) readSums(ctx context.Context, q querier, where string, args []any, add func(store.SpanID, *scopeSum)) error {
	query := "SELECT span, sum(kernels)::BIGINT, " + lowBits("kernel_ns") + ", " + lowBits("queue_ns") + ", sum(copies)::BIGINT, " + lowBits("copy_ns") +
		", coalesce(min(first_ns), 0), coalesce(max(last_ns), 0) FROM {scope_sums} WHERE " + where + " GROUP BY 1"
	return eachRow(ctx, q, v.tables(query), args, func(r *sql.Rows) error {
		var id store.SpanID
		s := &scopeSum{}
		err := r.Scan(&id, &s.kernels, wrapped{&s.kernelNs}, wrapped{&s.queue}, &s.copies, wrapped{&s.copyNs}, &s.first, &s.last)
		add(id, s)
		return err
	})
}

// known returns a span that the session has, and its chain.
func (t *chains) known(id store.SpanID) (p chainSpan, c *chain, ok bool) {
	p, ok = t.spans[id]
	return p, t.byID[t.final(p.chain)], ok
}

// readAbove reads what is stored of some spans and of all spans above them. It is not ok if the chain of
// one is missing.
func (t *chains) readAbove(ctx context.Context, q querier, v *view, ids []store.SpanID) (ok bool, err error) {
	asked := map[store.SpanID]bool{0: true}
	for len(ids) > 0 {
		if err := t.readSpans(ctx, q, v, ids); err != nil {
			return false, err
		}
		var next []store.SpanID
		for _, id := range ids {
			asked[id] = true
			p, c, ok := t.known(id)
			if ok && c == nil {
				return false, nil
			}
			if ok && c.state == chainInside && !asked[p.parent] {
				asked[p.parent] = true
				next = append(next, p.parent)
			}
		}
		ids = next
	}
	return true, nil
}

// takePending returns the sums of rows with chain 0 of spans that are new.
func (t *chains) takePending(ctx context.Context, q querier, v *view, first map[store.SpanID]*spanRow) (map[store.SpanID]*scopeSum, error) {
	out := map[store.SpanID]*scopeSum{}
	var list []uint64
	for id := range first {
		if t.oldPending.has(uint64(id)) {
			list = append(list, uint64(id))
		} else if s := t.pending[id]; s != nil {
			out[id] = s
		}
		delete(t.pending, id)
	}
	if len(list) == 0 {
		return out, nil
	}
	return out, v.readSums(ctx, q, "chain = 0 AND span IN (SELECT unnest(?::UBIGINT[]))", []any{list}, func(id store.SpanID, s *scopeSum) { out[id] = s })
}

// sumScopes adds the new operations to the spans above them, and the spans of the transaction.
// first has those of new ids.
func (w *transaction) sumScopes(ctx context.Context, tx *sql.Tx, list []*spanRow, first map[store.SpanID]*spanRow) error {
	r := w.rollup
	if len(list) == 0 && len(r.own) == 0 {
		return nil
	}
	ok := w.sess.id != "" && !w.sess.stale()
	var t *chains
	var v *view
	var err error
	if ok {
		if t, v, err = w.chains(ctx); err == nil {
			ok, err = t.readAbove(ctx, tx, v, slices.AppendSeq(slices.Collect(maps.Keys(r.own)), maps.Keys(first)))
		}
		if err == nil && !ok {
			err = w.markStale(ctx, tx)
		}
		if err != nil {
			return err
		}
	}
	if !ok {
		for id, s := range r.own {
			r.scopes[scopeKey{span: id, own: true}] = s
		}
		return nil
	}
	pending, err := t.takePending(ctx, tx, v, first)
	if err != nil {
		return err
	}
	add := func(id store.SpanID, own bool, s *scopeSum) {
		k := scopeKey{span: id, own: own}
		if p, c, ok := t.known(id); ok {
			if c.seg != w.seg {
				c.seg = nil // rows of the chain are in another segment than its spans
			}
			k.chain, k.start = c.id, p.start
		} else {
			sum, _ := entry(t.pending, id)
			sum.add(s)
		}
		sum, _ := entry(r.scopes, k)
		sum.add(s)
	}
	addAbove := func(id store.SpanID, s *scopeSum) {
		for range store.MaxScopeDepth {
			p, c, ok := t.known(id)
			if !ok || p.parent == 0 || c.state != chainInside {
				return
			}
			id = p.parent
			add(id, false, s)
		}
	}
	for id, s := range r.own {
		add(id, true, s)
		addAbove(id, s)
	}
	for id, s := range pending {
		add(id, false, s)
		addAbove(id, s)
	}
	var missing []int64 // of spans that are replaced and not the first with their id
	for _, i := range list {
		if id := t.final(i.chain); t.byID[id] == nil {
			missing = append(missing, int64(id))
		}
	}
	if len(missing) > 0 {
		if err = t.readChains(ctx, tx, v, "id IN (SELECT unnest(?::BIGINT[]))", missing); err != nil {
			return err
		}
	}
	for _, i := range list {
		p := i.span()
		c := t.byID[t.final(i.chain)]
		if c == nil || c.state != chainInside && c.state != chainTwin {
			continue
		}
		sum, _ := entry(r.scopes, scopeKey{c.id, p.StartNs, p.Span, true})
		if sum.wall = max(p.EndNs-p.StartNs, 0); i.old != nil {
			sum.wall -= max(i.old.end-p.StartNs, 0)
		}
	}
	return nil
}

// writeScopeSums appends the rows of scope_sums.
func (w *transaction) writeScopeSums() error {
	for k, s := range w.rollup.scopes {
		var first, last any
		if !s.empty() {
			first, last = s.first, s.last
		}
		err := w.append("scope_sums", k.chain, k.start, uint64(k.span), k.own, s.wall, s.kernels, s.kernelNs, s.queue, s.copies, s.copyNs, first, last)
		if err != nil {
			return err
		}
	}
	return nil
}
