// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
)

// row is a row of a batch: its table (0 operations, 1 spans, 2 samples, 3 logs, 4 points) and its
// index there.
type row struct {
	batch *store.Batch
	table int
	index int
}

// rowsOf returns all rows of batches.
func rowsOf(batches []*store.Batch) []row {
	var rows []row
	for _, b := range batches {
		for table, n := range []int{len(b.Ops), len(b.Spans), len(b.Samples), len(b.Logs), len(b.Points)} {
			for i := range n {
				rows = append(rows, row{b, table, i})
			}
		}
	}
	return rows
}

// time returns when a sender delivers the row: operations and spans when they end.
func (r row) time() int64 {
	switch r.table {
	case 0:
		return r.batch.Ops[r.index].EndNs
	case 1:
		return r.batch.Spans[r.index].EndNs
	case 2:
		return r.batch.Samples[r.index].TimeNs
	case 3:
		return r.batch.Logs[r.index].TimeNs
	}
	return r.batch.Points[r.index].TimeNs
}

// Deliver returns the rows of batches as an unreliable network delivers them. They come roughly by
// time, some much later, and in batches of another size. Some rows and batches come twice. Each
// element of the result is for one call of Write.
func Deliver(batches []*store.Batch, seed uint64) [][]*store.Batch {
	r := rand.New(rand.NewPCG(seed, 7))
	rows := rowsOf(batches)
	// Sort by the rank in time plus noise.
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.time(), b.time()) })
	type ranked struct {
		row
		rank int
	}
	var all []ranked
	for i, w := range rows {
		all = append(all, ranked{w, i + r.IntN(50)})
		if r.IntN(10) == 0 {
			all[len(all)-1].rank += r.IntN(len(rows))
		}
		if r.IntN(10) == 0 {
			all = append(all, ranked{w, i + r.IntN(len(rows))})
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	var calls [][]*store.Batch
	for len(all) > 0 {
		n := min(1+r.IntN(len(rows)/8+2), len(all))
		part := make([]row, n)
		for i := range part {
			part[i] = all[i].row
		}
		all = all[n:]
		calls = append(calls, group(part))
		if r.IntN(4) == 0 {
			calls = append(calls, calls[r.IntN(len(calls))])
		}
	}
	return calls
}

// group puts rows into batches, one for each session. Their dictionaries have only the entries that
// the rows need, in order of use.
func group(rows []row) []*store.Batch {
	type key struct{ project, session string }
	var batches []*store.Batch
	packers := map[key]*packer{}
	for _, r := range rows {
		k := key{r.batch.Project, r.batch.Session}
		p := packers[k]
		if p == nil {
			p = newPacker(k.project, k.session)
			packers[k] = p
			batches = append(batches, p.b)
		}
		p.add(r)
	}
	return batches
}

type packer struct {
	b       *store.Batch
	indices [7]map[uint64]uint32 // by dictionary and key
}

func newPacker(project, session string) *packer {
	p := &packer{b: &store.Batch{
		Project: project, Session: session, Origins: make([]store.Origin, 1), Extras: make([]store.Extra, 1),
		Lanes: make([]store.Lane, 1), Shapes: make([]store.Shape, 1), Places: make([]store.Place, 1),
		Stacks: make([]store.Stack, 1), Series: make([]store.Series, 1),
	}}
	for i := range p.indices {
		p.indices[i] = map[uint64]uint32{0: 0}
	}
	return p
}

// pack returns the index in dst of entry i of src. An index outside of src stays as it is.
func pack[T any](indices map[uint64]uint32, dst *[]T, src []T, i uint32, key func(*T) uint64) uint32 {
	if int(i) >= len(src) {
		return i
	}
	k := key(&src[i])
	n, ok := indices[k]
	if !ok {
		n = uint32(len(*dst))
		*dst = append(*dst, src[i])
		indices[k] = n
	}
	return n
}

func (p *packer) origin(b *store.Batch, i uint32) uint32 {
	return pack(p.indices[0], &p.b.Origins, b.Origins, i, func(e *store.Origin) uint64 { return e.Key })
}

func (p *packer) extra(b *store.Batch, i uint32) uint32 {
	return pack(p.indices[1], &p.b.Extras, b.Extras, i, func(e *store.Extra) uint64 { return e.Key })
}

func (p *packer) add(r row) {
	b := r.batch
	switch r.table {
	case 0:
		o := b.Ops[r.index]
		o.Origin, o.Extra = p.origin(b, o.Origin), p.extra(b, o.Extra)
		o.Lane = pack(p.indices[2], &p.b.Lanes, b.Lanes, o.Lane, func(e *store.Lane) uint64 { return e.Key })
		o.Shape = pack(p.indices[3], &p.b.Shapes, b.Shapes, o.Shape, func(e *store.Shape) uint64 { return e.Key })
		o.Place = pack(p.indices[4], &p.b.Places, b.Places, o.Place, func(e *store.Place) uint64 { return e.Key })
		o.Stack = pack(p.indices[5], &p.b.Stacks, b.Stacks, o.Stack, func(e *store.Stack) uint64 { return e.Key })
		p.b.Ops = append(p.b.Ops, o)
	case 1:
		s := b.Spans[r.index]
		s.Origin = p.origin(b, s.Origin)
		p.b.Spans = append(p.b.Spans, s)
	case 2:
		s := b.Samples[r.index]
		s.Origin, s.Extra = p.origin(b, s.Origin), p.extra(b, s.Extra)
		p.b.Samples = append(p.b.Samples, s)
	case 3:
		l := b.Logs[r.index]
		l.Origin = p.origin(b, l.Origin)
		p.b.Logs = append(p.b.Logs, l)
	case 4:
		pt := b.Points[r.index]
		n := len(p.b.Series)
		pt.Series = pack(p.indices[6], &p.b.Series, b.Series, pt.Series, func(e *store.Series) uint64 { return e.Key })
		if len(p.b.Series) > n {
			s := &p.b.Series[n]
			s.Origin = p.origin(b, s.Origin)
		}
		p.b.Points = append(p.b.Points, pt)
	}
}
