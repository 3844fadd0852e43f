// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

// difference returns the first difference of two values of the same type, or "". Empty slices and
// maps equal nil. Floating-point numbers are equal if their bits are.
func difference(got, want any) string {
	return differ(reflect.ValueOf(got), reflect.ValueOf(want))
}

func differ(got, want reflect.Value) string {
	differs := func() string { return fmt.Sprintf(": got %v, want %v", got, want) }
	switch got.Kind() {
	case reflect.Pointer:
		if got.IsNil() || want.IsNil() {
			if got.IsNil() != want.IsNil() {
				return differs()
			}
			return ""
		}
		return differ(got.Elem(), want.Elem())
	case reflect.Struct:
		for i := range got.NumField() {
			if d := differ(got.Field(i), want.Field(i)); d != "" {
				return "." + got.Type().Field(i).Name + d
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range min(got.Len(), want.Len()) {
			if d := differ(got.Index(i), want.Index(i)); d != "" {
				return fmt.Sprintf("[%d]%s", i, d)
			}
		}
		if got.Len() != want.Len() {
			return fmt.Sprintf(": got %d entries, want %d", got.Len(), want.Len())
		}
	case reflect.Map:
		if got.Len() != want.Len() {
			return differs()
		}
		for k, v := range want.Seq2() {
			g := got.MapIndex(k)
			if !g.IsValid() {
				return fmt.Sprintf("[%v]: missing", k)
			}
			if d := differ(g, v); d != "" {
				return fmt.Sprintf("[%v]%s", k, d)
			}
		}
	case reflect.Float64:
		if math.Float64bits(got.Float()) != math.Float64bits(want.Float()) {
			return differs()
		}
	default:
		if !got.Equal(want) {
			return differs()
		}
	}
	return ""
}

// pathKey identifies a list of names. That of no names is "".
func pathKey(names []string) string {
	var b strings.Builder
	for _, n := range names {
		b.WriteString(strconv.Itoa(len(n)) + ":" + n)
	}
	return b.String()
}

// ids are the ids that a store assigned in a session. Lanes and shapes are by Key, paths by
// pathKey.
type ids struct {
	lanes, shapes map[uint64]uint32
	paths         map[string]uint32
}

func newIDs() *ids {
	return &ids{map[uint64]uint32{}, map[uint64]uint32{}, map[string]uint32{}}
}

// learn adds the ids of a session. It fails if one has changed.
func (d *ids) learn(ctx context.Context, r store.Reader, id sessionID) error {
	lanes, err := r.Lanes(ctx, id.project, id.session)
	if err != nil {
		return err
	}
	for _, l := range lanes {
		if err := learn(d.lanes, l.Key, l.ID); err != nil {
			return fmt.Errorf("lane: %w", err)
		}
	}
	q := store.OpQuery{Project: id.project, Session: id.session, Limit: 20_000}
	for {
		page, err := r.Ops(ctx, q)
		if err != nil {
			return err
		}
		for n, s := range page.Shapes {
			if err := learn(d.shapes, s.Key, n); err != nil {
				return fmt.Errorf("shape: %w", err)
			}
		}
		if !page.More || len(page.Rows) == 0 {
			break
		}
		last := page.Rows[len(page.Rows)-1]
		q.After = &store.OpCursor{StartNs: last.StartNs, Span: last.Op.Span}
	}
	nodes, err := r.Scopes(ctx, id.project, id.session)
	if err != nil {
		return err
	}
	names := map[uint32][]string{}
	for _, n := range nodes {
		if n.Path != 0 {
			names[n.Path] = append(slices.Clone(names[n.Parent]), n.Name)
		}
		if err := learn(d.paths, pathKey(names[n.Path]), n.Path); err != nil {
			return fmt.Errorf("path: %w", err)
		}
	}
	return nil
}

func learn[K comparable](known map[K]uint32, key K, id uint32) error {
	if old, ok := known[key]; ok && old != id {
		return fmt.Errorf("id of %v changed from %d to %d", key, old, id)
	}
	for k, n := range known {
		if n == id && k != key {
			return fmt.Errorf("%v and %v have the same id %d", k, key, id)
		}
	}
	known[key] = id
	return nil
}

// translate returns the id in to of what has the id in from. An unknown id stays as it is.
func translate[K comparable](from, to map[K]uint32, id uint32) uint32 {
	for k, n := range from {
		if n == id {
			if other, ok := to[k]; ok {
				return other
			}
		}
	}
	return id
}

// mapping translates the ids of a store's answers to those of a Memory.
type mapping struct{ got, want *ids }

func (m *mapping) lane(id *uint32)  { *id = translate(m.got.lanes, m.want.lanes, *id) }
func (m *mapping) shape(id *uint32) { *id = translate(m.got.shapes, m.want.shapes, *id) }
func (m *mapping) path(id *uint32)  { *id = translate(m.got.paths, m.want.paths, *id) }

// query translates ids of a Memory to those of the store.
func (m *mapping) query(lanes, shapes []uint32) (l, s []uint32) {
	for _, id := range lanes {
		l = append(l, translate(m.want.lanes, m.got.lanes, id))
	}
	for _, id := range shapes {
		s = append(s, translate(m.want.shapes, m.got.shapes, id))
	}
	return l, s
}

// plain removes what has no meaning from a row. Without a mapping, ids have none.
func (m *mapping) plainOp(o *store.OpRow) {
	o.Place, o.Stack, o.Origin, o.Extra, o.PlaceRef.Key = 0, 0, 0, 0, 0
	if m == nil {
		o.Lane, o.Shape = 0, 0
		return
	}
	m.lane(&o.Lane)
	m.shape(&o.Shape)
}

func (m *mapping) plainSpan(p *store.SpanRow) {
	p.Origin = 0
	if m == nil {
		p.Path = 0
		return
	}
	m.path(&p.Path)
}

func (m *mapping) plainPage(p *store.OpPage) {
	shapes := map[uint32]*store.Shape{}
	for id, s := range p.Shapes {
		if m != nil {
			m.shape(&id)
		}
		shapes[id] = s
	}
	p.Shapes = shapes
	for i := range p.Rows {
		m.plainOp(&p.Rows[i])
	}
}
