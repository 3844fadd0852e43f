// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
)

type idSet map[uint32]struct{}

func (s idSet) add(id uint32) {
	if id != 0 {
		s[id] = struct{}{}
	}
}

// nullInt scans a store.Int.
type nullInt struct{ v *store.Int }

func (n nullInt) Scan(src any) error {
	if src == nil {
		*n.v = store.Int{}
		return nil
	}
	v, ok := src.(int64)
	if !ok {
		return errorOfType("integer", src)
	}
	*n.v = store.Some(v)
	return nil
}

func errorOfType(what string, src any) error { return fmt.Errorf("read %s: got %T", what, src) }

// traceID scans a store.TraceID.
type traceID struct{ t *[16]byte }

func (t traceID) Scan(src any) error {
	*t.t = [16]byte{}
	if src == nil {
		return nil
	}
	b, ok := src.([]byte)
	if !ok || len(b) != 16 {
		return fmt.Errorf("read id: got %T of %d bytes", src, len(b))
	}
	copy(t.t[:], b)
	return nil
}

// attrsValue scans encoded attributes.
type attrsValue struct{ a *store.Attrs }

func (a attrsValue) Scan(src any) (err error) {
	*a.a = nil
	if b, ok := src.([]byte); ok {
		*a.a, err = store.DecodeAttrs(b)
	}
	return err
}

// intList scans a list of integers.
type intList struct{ v *[]int64 }

func (l intList) Scan(src any) error {
	*l.v = nil
	if src == nil {
		return nil
	}
	list, ok := src.([]any)
	if !ok {
		return fmt.Errorf("read list: got %T", src)
	}
	*l.v = make([]int64, len(list))
	for i, x := range list {
		if (*l.v)[i], ok = x.(int64); !ok {
			return fmt.Errorf("read list: got %T", x)
		}
	}
	return nil
}

// entries returns the entries of a dictionary with these ids. They are shared by all readers.
func entries[T any](ctx context.Context, v *view, ids idSet, columns string, dict int,
	fields func(*T) []any) (map[uint32]*T, error) {
	out := make(map[uint32]*T, len(ids))
	var list []int64
	c := v.sess.cache
	c.mu.Lock()
	for id := range ids {
		if e, ok := c.entries[dict][id].(*T); ok {
			out[id] = e
		} else {
			list = append(list, int64(id))
		}
	}
	c.mu.Unlock()
	if len(list) == 0 {
		return out, nil
	}
	// Ids grow with time, so that the bounds skip most of a large dictionary.
	err := v.each(ctx, "SELECT id, "+columns+" FROM {"+dictTables[dict]+"} WHERE id IN (SELECT unnest($1::BIGINT[])) AND id BETWEEN $2 AND $3",
		[]any{list, slices.Min(list), slices.Max(list)},
		func(r *sql.Rows) error {
			var id uint32
			e := new(T)
			if err := r.Scan(append([]any{&id}, fields(e)...)...); err != nil {
				return err
			}
			out[id] = e
			return nil
		})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range list {
		if e := out[uint32(id)]; e != nil {
			if len(c.entries[dict]) >= maxCached {
				clear(c.entries[dict])
			}
			c.entries[dict][uint32(id)] = e
		}
	}
	return out, err
}

func (v *view) lanes(ctx context.Context, ids idSet) (map[uint32]*store.Lane, error) {
	return entries(ctx, v, ids, "key, device, device_index, context, stream, class", lanes, func(l *store.Lane) []any {
		return []any{&l.Key, &l.Device, nullInt{&l.DeviceIndex}, nullInt{&l.Context}, nullInt{&l.Stream}, &l.Class}
	})
}

func (v *view) shapes(ctx context.Context, ids idSet) (map[uint32]*store.Shape, error) {
	return entries(ctx, v, ids, `key, operation, name, full_name, symbol, grid, block, cluster, registers, shared_static,
		shared_dynamic, shared_executed, local_memory, attrs`, shapes, func(s *store.Shape) []any {
		return []any{&s.Key, &s.Operation, &s.Name, &s.FullName, &s.Symbol, intList{&s.Grid}, intList{&s.Block},
			intList{&s.Cluster}, nullInt{&s.Registers}, nullInt{&s.SharedStatic}, nullInt{&s.SharedDynamic},
			nullInt{&s.SharedExecuted}, nullInt{&s.LocalMemory}, attrsValue{&s.Attrs}}
	})
}

func (v *view) places(ctx context.Context, ids idSet) (map[uint32]*store.Place, error) {
	return entries(ctx, v, ids, "key, trace, parent, scope_name, scope_path, inferred", places, func(p *store.Place) []any {
		return []any{&p.Key, traceID{(*[16]byte)(&p.Trace)}, &p.Parent, &p.ScopeName, &p.ScopePath, &p.Inferred}
	})
}

func (v *view) origins(ctx context.Context, ids idSet) (map[uint32]*store.Origin, error) {
	return entries(ctx, v, ids, `key, resource, resource_schema_url, scope_name, scope_version, scope_attrs,
		scope_schema_url`, origins, func(o *store.Origin) []any {
		return []any{&o.Key, attrsValue{&o.Resource}, &o.ResourceSchemaURL, &o.ScopeName, &o.ScopeVersion,
			attrsValue{&o.ScopeAttrs}, &o.ScopeSchemaURL}
	})
}

func (v *view) stacks(ctx context.Context, ids idSet) (map[uint32]*store.Stack, error) {
	return entries(ctx, v, ids, "key, text", stacks, func(s *store.Stack) []any { return []any{&s.Key, &s.Text} })
}

func (v *view) extras(ctx context.Context, ids idSet) (map[uint32]*store.Extra, error) {
	return entries(ctx, v, ids, "key, attrs", extras, func(e *store.Extra) []any { return []any{&e.Key, attrsValue{&e.Attrs}} })
}

func (v *view) sites(ctx context.Context, ids idSet) (map[uint32]*store.Place, error) {
	return entries(ctx, v, ids, "key, parent, scope_name, scope_path", sites, func(p *store.Place) []any {
		return []any{&p.Key, &p.Parent, &p.ScopeName, &p.ScopePath}
	})
}
