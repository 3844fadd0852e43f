// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Collection is a [Source] of rows in memory, for files. It needs about 150 bytes for each
// operation. The zero value is ready to use. It belongs to one goroutine.
type Collection struct {
	ops         []store.Op
	scopes      []Scope
	first, last int64
	missing     losses
	filled      bool
	sorted      bool

	lanes   dictionary[store.Lane]
	shapes  dictionary[store.Shape]
	places  dictionary[store.Place]
	stacks  dictionary[store.Stack]
	origins dictionary[store.Origin]
	extras  dictionary[store.Extra] // with a host stack; the first is empty
}

// dictionary merges the entries of batches by key.
type dictionary[T any] struct {
	all   []T
	byKey map[uint64]uint32
}

func (d *dictionary[T]) ids(entries []T, key func(*T) uint64) []uint32 {
	if d.byKey == nil {
		d.byKey = map[uint64]uint32{}
	}
	ids := make([]uint32, max(len(entries), 1))
	for i := range entries {
		k := key(&entries[i])
		id, ok := d.byKey[k]
		if !ok {
			id = uint32(len(d.all))
			d.byKey[k] = id
			d.all = append(d.all, entries[i])
		}
		ids[i] = id
	}
	return ids
}

func (d *dictionary[T]) at(i uint32) *T {
	if int(i) < len(d.all) {
		return &d.all[i]
	}
	return new(T)
}

// Add adds the rows of a batch, which must be of one session. The batch must be one of package rows.
func (c *Collection) Add(b *store.Batch) {
	c.sorted = false
	lanes := c.lanes.ids(b.Lanes, func(l *store.Lane) uint64 { return l.Key })
	shapes := c.shapes.ids(b.Shapes, func(s *store.Shape) uint64 { return s.Key })
	places := c.places.ids(b.Places, func(p *store.Place) uint64 { return p.Key })
	stacks := c.stacks.ids(b.Stacks, func(s *store.Stack) uint64 { return s.Key })
	origins := c.origins.ids(b.Origins, func(o *store.Origin) uint64 { return o.Key })
	extras := c.extras.ids(c.withStack(b.Extras), func(x *store.Extra) uint64 { return x.Key })
	for i := range b.Ops {
		o := b.Ops[i]
		o.Lane, o.Shape, o.Place, o.Stack, o.Origin, o.Extra = lanes[o.Lane], shapes[o.Shape], places[o.Place], stacks[o.Stack], origins[o.Origin], extras[o.Extra]
		c.ops = append(c.ops, o)
		c.extend(o.StartNs, o.EndNs)
	}
	for i := range b.Spans {
		s := &b.Spans[i]
		c.extend(s.StartNs, s.EndNs)
		if s.Operation == semconv.CUDAOperationScope {
			c.scopes = append(c.scopes, scopeOf(s))
		}
	}
	for i := range b.Samples {
		c.extend(b.Samples[i].TimeNs, b.Samples[i].TimeNs)
	}
	for i := range b.Logs {
		c.extend(b.Logs[i].TimeNs, b.Logs[i].TimeNs)
		if b.Logs[i].Event == semconv.EventCUDACapture {
			c.missing.add(b.Logs[i].Attrs)
		}
	}
	for i := range b.Points {
		c.extend(b.Points[i].TimeNs, b.Points[i].TimeNs)
	}
}

// withStack returns the entries with a host stack before the launch, which are few. The others are
// empty: the analysis needs none of their attributes.
func (c *Collection) withStack(all []store.Extra) []store.Extra {
	few := make([]store.Extra, len(all))
	for i := range all {
		if text(all[i].Attrs, semconv.CUDALaunchDelayStacktrace) != "" {
			few[i] = all[i]
		}
	}
	return few
}

// Operations returns the number of operations.
func (c *Collection) Operations() int { return len(c.ops) }

func (c *Collection) extend(start, end int64) {
	end = max(start, end)
	if !c.filled {
		c.first, c.last, c.filled = start, end, true
	}
	c.first, c.last = min(c.first, start), max(c.last, end)
}

// sort orders the rows as a store does and removes repetitions.
func (c *Collection) sort() {
	if c.sorted {
		return
	}
	c.sorted = true
	slices.SortStableFunc(c.ops, func(a, b store.Op) int {
		return cmp.Or(cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.Span, b.Span))
	})
	c.ops = slices.CompactFunc(c.ops, func(a, b store.Op) bool { return a.StartNs == b.StartNs && a.Span == b.Span })
	// The version with the latest end comes first and remains.
	slices.SortStableFunc(c.scopes, func(a, b Scope) int {
		return cmp.Or(cmp.Compare(a.StartNs, b.StartNs), cmp.Compare(a.Span, b.Span), cmp.Compare(b.EndNs, a.EndNs))
	})
	c.scopes = slices.CompactFunc(c.scopes, func(a, b Scope) bool { return a.StartNs == b.StartNs && a.Span == b.Span })
}

// Extent implements [Source].
func (c *Collection) Extent(context.Context) (first, last int64, err error) {
	return c.first, c.last, nil
}

// Ops implements [Source].
func (c *Collection) Ops(ctx context.Context, from, to int64, visit func(*store.OpRow) error) error {
	c.sort()
	var row store.OpRow
	for i := range c.ops {
		o := &c.ops[i]
		if o.StartNs >= to {
			break
		}
		if o.StartNs < from && o.EndNs <= from {
			continue
		}
		if i%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		row = store.OpRow{
			Op: *o, LaneRef: c.lanes.at(o.Lane), ShapeRef: c.shapes.at(o.Shape), OriginRef: c.origins.at(o.Origin),
			PlaceRef: *c.places.at(o.Place), StackText: c.stacks.at(o.Stack).Text, Attrs: c.extras.at(o.Extra).Attrs,
		}
		if err := visit(&row); err != nil {
			return err
		}
	}
	return nil
}

// Scopes implements [Source].
func (c *Collection) Scopes(_ context.Context, from, to int64, n int) (list []Scope, more bool, err error) {
	c.sort()
	for i := range c.scopes {
		s := &c.scopes[i]
		if s.StartNs >= to || s.StartNs < from && s.EndNs <= from {
			continue
		}
		if len(list) == n {
			return list, true, nil
		}
		list = append(list, *s)
	}
	return list, false, nil
}

// namedScopes returns scopes by their names.
func (c *Collection) namedScopes(_ context.Context, from, to int64, prefixes []string) (list []Scope, err error) {
	c.sort()
	for i := range c.scopes {
		s := &c.scopes[i]
		if s.StartNs >= to || s.StartNs < from && s.EndNs <= from || len(list) == maxNamed ||
			!slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s.Name, p) }) {
			continue
		}
		list = append(list, *s)
	}
	return list, nil
}
