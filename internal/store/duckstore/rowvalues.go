// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"database/sql/driver"
	"math"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// utf8 returns valid UTF-8, which DuckDB requires.
func utf8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// trace returns the value of a trace, and notes that the segment has it.
func (w *transaction) trace(t store.TraceID) any {
	if t == (store.TraceID{}) {
		return nil
	}
	w.traces[t] = struct{}{}
	return t[:]
}

func bytesOf(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

func attrsOf(a store.Attrs) any {
	if len(a) == 0 {
		return nil
	}
	return a.Append(nil)
}

func intsOf(v []int64) any {
	if v == nil {
		return nil
	}
	return v
}

// entry appends the row of an entry of a dictionary.
func (w *transaction) entry(dict int, b *store.Batch, i, id uint32) error {
	switch dict {
	case origins:
		e := &b.Origins[i]
		return w.append("origins", id, e.Key, e.Resource.Append(nil), utf8(e.ResourceSchemaURL), utf8(e.ScopeName),
			utf8(e.ScopeVersion), e.ScopeAttrs.Append(nil), utf8(e.ScopeSchemaURL))
	case extras:
		e := &b.Extras[i]
		return w.append("extras", id, e.Key, e.Attrs.Append(nil))
	case lanes:
		e := at(b.Lanes, i)
		return w.append("lanes", id, e.Key, utf8(e.Device), intOf(e.DeviceIndex), intOf(e.Context), intOf(e.Stream),
			uint8(e.Class))
	case shapes:
		e := at(b.Shapes, i)
		return w.append("shapes", id, e.Key, uint8(e.Operation), utf8(e.Name), utf8(e.FullName), utf8(e.Symbol),
			intsOf(e.Grid), intsOf(e.Block), intsOf(e.Cluster), intOf(e.Registers), intOf(e.SharedStatic),
			intOf(e.SharedDynamic), intOf(e.SharedExecuted), intOf(e.LocalMemory), e.Attrs.Append(nil))
	case places:
		e := &b.Places[i]
		return w.append("places", id, e.Key, w.trace(e.Trace), uint64(e.Parent), utf8(e.ScopeName),
			utf8(e.ScopePath), e.Inferred)
	case stacks:
		e := &b.Stacks[i]
		return w.append("stacks", id, e.Key, utf8(e.Text))
	default:
		e := &b.Series[i]
		origin, err := w.ref(origins, b, e.Origin)
		if err != nil {
			return err
		}
		return w.append("series", id, e.Key, utf8(e.Metric), utf8(e.Unit), utf8(e.Description), uint8(e.Type),
			e.Temporality, e.Monotonic, e.Attrs.Append(nil), origin)
	}
}

// key returns the key of an entry of a batch.
func key(dict int, b *store.Batch, i uint32) uint64 {
	if i == 0 {
		return 0
	}
	switch dict {
	case origins:
		return b.Origins[i].Key
	case extras:
		return b.Extras[i].Key
	case lanes:
		return b.Lanes[i].Key
	case shapes:
		return b.Shapes[i].Key
	case places:
		return b.Places[i].Key
	case stacks:
		return b.Stacks[i].Key
	}
	return b.Series[i].Key
}

// ref returns the id of an entry of a batch and stores the entry if the segment lacks it.
func (w *transaction) ref(dict int, b *store.Batch, i uint32) (uint32, error) {
	// The empty lane and the empty shape have an id, because 0 is no answer.
	if i == 0 && dict != lanes && dict != shapes {
		return 0, nil
	}
	if w.refs.batch != b {
		w.refs.batch = b
		for d := range w.refs.ids {
			w.refs.ids[d] = w.refs.ids[d][:0]
		}
	}
	ids := &w.refs.ids[dict]
	if n := int(i) + 1 - len(*ids); n > 0 {
		*ids = append(*ids, make([]uint32, n)...)
	}
	if id := (*ids)[i]; id != 0 {
		return id, nil
	}
	id, err := w.sess.dicts.id(w.seg, dict, key(dict, b, i), func(id uint32) error { return w.entry(dict, b, i, id) })
	if err == nil {
		w.refs.ids[dict][i] = id
	}
	return id, err
}

// batchIDs has the ids of the entries of a batch; 0 for one that is not known yet.
type batchIDs struct {
	batch *store.Batch
	ids   [len(dictTables)][]uint32
}

// op appends an operation. Times of the launch are stored relative to the start, which compresses
// better. The differences wrap around, so that every value is restored.
func (w *transaction) op(b *store.Batch, o *store.Op) error {
	var ids [6]uint32
	for i, r := range [...]struct {
		dict  int
		index uint32
	}{{lanes, o.Lane}, {shapes, o.Shape}, {places, o.Place}, {stacks, o.Stack}, {origins, o.Origin}, {extras, o.Extra}} {
		var err error
		if ids[i], err = w.ref(r.dict, b, r.index); err != nil {
			return err
		}
	}
	site, err := w.site(b, o.Place, ids[2])
	if err != nil {
		return err
	}
	w.rollup.add(o, at(b.Shapes, o.Shape), at(b.Places, o.Place).Parent, ids[0], ids[1], ids[3], site)
	lead, dur := o.LaunchStartNs, o.LaunchEndNs
	lead.V = o.StartNs - lead.V
	dur.V -= o.StartNs
	if o.LaunchStartNs.OK {
		dur.V = o.LaunchEndNs.V - o.LaunchStartNs.V
	}
	queue := o.QueueNs
	fromLaunch := queue.OK && lead.OK && dur.OK && lead.V >= 0 && lead.V <= store.MaxTimeNs && dur.V >= 0 && dur.V <= store.MaxTimeNs &&
		queue.V == lead.V-dur.V
	if fromLaunch {
		queue = store.Int{}
	}
	values := []driver.Value{o.StartNs, o.EndNs - o.StartNs, uint64(o.Span), ids[0], ids[1], ids[2], ids[3], ids[4], ids[5],
		intOf(lead), intOf(dur), intOf(queue), intOf(o.Correlation), intOf(o.Bytes), intOf(o.Address), o.Estimated, fromLaunch}
	if err := w.keepTop(o, values); err != nil {
		return err
	}
	return w.append("ops", values...)
}

func (w *transaction) span(b *store.Batch, p *store.Span, chain uint32) error {
	origin, err := w.ref(origins, b, p.Origin)
	if err != nil {
		return err
	}
	return w.append("spans", p.StartNs, p.EndNs, w.trace(p.Trace), uint64(p.Span), uint64(p.Parent), p.Kind, p.Status,
		utf8(p.StatusMessage), utf8(p.Name), utf8(p.TraceState), p.Flags, utf8(p.Operation), origin, attrsOf(p.Attrs),
		bytesOf(p.Events), bytesOf(p.Links), p.DroppedAttrs, p.DroppedEvents, p.DroppedLinks, chain)
}

func (w *transaction) sample(b *store.Batch, p *store.Sample) error {
	origin, err := w.ref(origins, b, p.Origin)
	if err != nil {
		return err
	}
	extra, err := w.ref(extras, b, p.Extra)
	if err != nil {
		return err
	}
	return w.append("samples", p.TimeNs, p.UID[:], uint8(p.Kind), utf8(p.What), p.Value, utf8(p.Kernel),
		utf8(p.Function), utf8(p.File), intOf(p.Line), intOf(p.PC), w.trace(p.Trace), uint64(p.Span), utf8(p.Device),
		intOf(p.DeviceIndex), intOf(p.Correlation), origin, extra)
}

func (w *transaction) log(b *store.Batch, p *store.Log) error {
	origin, err := w.ref(origins, b, p.Origin)
	if err != nil {
		return err
	}
	return w.append("logs", p.TimeNs, p.ObservedNs, p.UID[:], p.Severity, utf8(p.SeverityText), utf8(p.Event),
		p.Body.Append(nil), w.trace(p.Trace), uint64(p.Span), p.Flags, origin, attrsOf(p.Attrs), p.DroppedAttrs)
}

func (w *transaction) point(b *store.Batch, p *store.Point) error {
	id, err := w.ref(series, b, p.Series)
	if err != nil {
		return err
	}
	var double, bits any
	if p.HasDouble {
		// DuckDB does not keep the sign of zero and the payload of NaN.
		if p.Double == 0 && math.Signbit(p.Double) || math.IsNaN(p.Double) {
			bits = math.Float64bits(p.Double)
		}
		double = p.Double + 0
	}
	return w.append("points", p.TimeNs, id, p.StartNs, p.Flags, intOf(p.Int), double, bits, bytesOf(p.Data), bytesOf(p.Exemplars))
}

// at returns an entry of a dictionary. Entry 0 is empty.
func at[T any](entries []T, i uint32) *T {
	if i == 0 {
		return new(T)
	}
	return &entries[i]
}
