// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/gpuflight/gpuflight/internal/store"
)

func orEmpty[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
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
		return fmt.Errorf("read integer: got %T", src)
	}
	*n.v = store.Some(v)
	return nil
}

func attrs(s string) (store.Attrs, error) {
	if s == "" {
		return nil, nil
	}
	return store.DecodeAttrs([]byte(s))
}

type keys = map[uint64]struct{}

// chunk is the number of keys in one statement, whose size a server limits.
const chunk = 5000

// entries returns the entries of a dictionary with these keys. All readers share them.
func entries[T any](ctx context.Context, v *view, dict int, wanted keys, columns string, scan func(driver.Rows, *uint64, *T) error) (map[uint64]*T, error) {
	out := make(map[uint64]*T, len(wanted))
	var missing []uint64
	c := v.sess
	c.mu.Lock()
	for k := range wanted {
		if e, ok := c.entries[dict][k].(*T); ok {
			out[k] = e
		} else if k != 0 {
			missing = append(missing, k)
		}
	}
	c.mu.Unlock()
	slices.Sort(missing)
	for part := range slices.Chunk(missing, chunk) {
		err := v.s.each(ctx, "SELECT Key, "+columns+" FROM "+dictTables[dict]+" WHERE Project = ? AND Session = ? AND Key IN ?",
			[]any{v.key.project, v.key.session, part}, func(r driver.Rows) error {
				var k uint64
				e := new(T)
				if err := scan(r, &k, e); err != nil {
					return err
				}
				out[k] = e
				return nil
			})
		if err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries[dict])+len(missing) > maxEntries {
		clear(c.entries[dict])
	}
	for _, k := range missing {
		if e := out[k]; e != nil {
			c.entries[dict][k] = e
		}
	}
	return out, nil
}

// owned copies entries, so that a caller may change its answer.
func owned[T any](m map[uint64]*T) map[uint64]*T {
	out := maps.Clone(m)
	for k, e := range out {
		c := *e
		out[k] = &c
	}
	return out
}

const originColumns = "Resource, ResourceSchemaURL, ScopeName, ScopeVersion, ScopeAttributes, ScopeSchemaURL"

// scanOrigin scans Key and originColumns, after other columns.
func scanOrigin(r driver.Rows, o *store.Origin, before ...any) error {
	var resource, scope string
	err := r.Scan(append(before, &o.Key, &resource, &o.ResourceSchemaURL, &o.ScopeName, &o.ScopeVersion, &scope, &o.ScopeSchemaURL)...)
	if err == nil {
		o.Resource, err = attrs(resource)
	}
	if err == nil {
		o.ScopeAttrs, err = attrs(scope)
	}
	return err
}

func (v *view) origins(ctx context.Context, wanted keys) (map[uint64]*store.Origin, error) {
	return entries(ctx, v, 0, wanted, originColumns, func(r driver.Rows, k *uint64, o *store.Origin) error {
		err := scanOrigin(r, o)
		*k = o.Key
		return err
	})
}

func (v *view) hasOrigin(key uint64) bool {
	v.sess.mu.Lock()
	defer v.sess.mu.Unlock()
	_, ok := v.sess.entries[0][key]
	return ok
}

// readOrigins reads origins of several sessions at once, for later calls of origins.
func (s *Store) readOrigins(ctx context.Context, project string, views []*view, wanted keys) error {
	bySession := map[string]*view{}
	var sessions []string
	for _, v := range views {
		bySession[v.key.session] = v
		sessions = append(sessions, v.key.session)
	}
	for part := range slices.Chunk(slices.Sorted(maps.Keys(wanted)), chunk) {
		err := s.each(ctx, "SELECT Session, Key, "+originColumns+" FROM gpu_origins WHERE Project = ? AND Session IN ? AND Key IN ?",
			[]any{project, sessions, part}, func(r driver.Rows) error {
				var session string
				o := &store.Origin{}
				if err := scanOrigin(r, o, &session); err != nil {
					return err
				}
				c := bySession[session].sess
				c.mu.Lock()
				defer c.mu.Unlock()
				c.entries[0][o.Key] = o
				return nil
			})
		if err != nil {
			return err
		}
	}
	return nil
}

func (v *view) lanes(ctx context.Context, wanted keys) (map[uint64]*store.Lane, error) {
	return entries(ctx, v, 1, wanted, "Device, DeviceIndex, Context, Stream, Class", func(r driver.Rows, k *uint64, l *store.Lane) error {
		err := r.Scan(k, &l.Device, nullInt{&l.DeviceIndex}, nullInt{&l.Context}, nullInt{&l.Stream}, (*uint8)(&l.Class))
		l.Key = *k
		return err
	})
}

func (v *view) shapes(ctx context.Context, wanted keys) (map[uint64]*store.Shape, error) {
	return entries(ctx, v, 2, wanted, `Operation, Name, FullName, Symbol, Grid, Block, Cluster, Registers, SharedStatic, SharedDynamic,
		SharedExecuted, LocalMemory, Attributes`, func(r driver.Rows, k *uint64, s *store.Shape) error {
		var a string
		err := r.Scan(k, (*uint8)(&s.Operation), &s.Name, &s.FullName, &s.Symbol, &s.Grid, &s.Block, &s.Cluster, nullInt{&s.Registers},
			nullInt{&s.SharedStatic}, nullInt{&s.SharedDynamic}, nullInt{&s.SharedExecuted}, nullInt{&s.LocalMemory}, &a)
		s.Key = *k
		if err == nil {
			s.Attrs, err = attrs(a)
		}
		return err
	})
}

func (v *view) stacks(ctx context.Context, wanted keys) (map[uint64]*store.Stack, error) {
	return entries(ctx, v, 3, wanted, "Text", func(r driver.Rows, k *uint64, s *store.Stack) error { return r.Scan(k, &s.Text) })
}

// seriesEntry is a series and the key of its origin.
type seriesEntry struct {
	store.Series
	origin uint64
}

func (v *view) series(ctx context.Context, wanted keys) (map[uint64]*seriesEntry, error) {
	return entries(ctx, v, 4, wanted, "Metric, Unit, Description, Type, Temporality, Monotonic, Attributes, Origin",
		func(r driver.Rows, k *uint64, s *seriesEntry) error {
			var a string
			err := r.Scan(k, &s.Metric, &s.Unit, &s.Description, (*uint8)(&s.Type), &s.Temporality, &s.Monotonic, &a, &s.origin)
			s.Key = *k
			if err == nil {
				s.Attrs, err = attrs(a)
			}
			return err
		})
}
