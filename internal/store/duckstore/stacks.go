// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

// Stacks implements [store.Reader].
func (s *Store) Stacks(ctx context.Context, q store.StackQuery) ([]store.StackSum, error) {
	return read(ctx, s, q.Project, q.Session, "read stacks", func(v *view) ([]store.StackSum, error) {
		n, err := answer.Limits(q.From, q.To, q.Limit, 10_000, 100_000)
		if err != nil || v.dropped {
			return nil, err
		}
		return v.stackSums(ctx, q, n)
	})
}

func (v *view) stackSums(ctx context.Context, q store.StackQuery, n int) ([]store.StackSum, error) {
	type part struct {
		stack, place, shape uint32
		count, ns           int64
	}
	var f filter
	f.interval("start_ns", "", q.From, q.To, false)
	f.add("shape IN (SELECT id FROM {shapes} WHERE operation = ?)", int64(store.OpKernel))
	var parts []part
	stackIDs, placeIDs, shapeIDs := idSet{}, idSet{}, idSet{}
	err := v.each(ctx, "SELECT stack, place, shape, count(*), "+lowBits("greatest(dur_ns, 0)")+" FROM {ops}"+f.where()+" GROUP BY 1, 2, 3", f.args,
		func(r *sql.Rows) error {
			var p part
			err := r.Scan(&p.stack, &p.place, &p.shape, &p.count, wrapped{&p.ns})
			parts = append(parts, p)
			stackIDs.add(p.stack)
			placeIDs.add(p.place)
			shapeIDs.add(p.shape)
			return err
		})
	if err != nil {
		return nil, err
	}
	texts, err := v.stacks(ctx, stackIDs)
	if err != nil {
		return nil, err
	}
	places, err := v.places(ctx, placeIDs)
	if err != nil {
		return nil, err
	}
	shapes, err := v.shapes(ctx, shapeIDs)
	if err != nil {
		return nil, err
	}
	t, err := v.pathsOf(ctx, places)
	if err != nil {
		return nil, err
	}
	sums, names := map[answer.StackKey]*store.StackSum{}, map[uint32][]string{}
	for _, p := range parts {
		list := t.place(orEmpty(places[p.place]))
		k := answer.StackKey{Stack: orEmpty(texts[p.stack]).Text, Name: orEmpty(shapes[p.shape]).Name, Path: v.pathID(list)}
		names[k.Path] = list
		answer.AddStack(sums, k, p.count, p.ns)
	}
	return answer.Stacks(sums, names, n), nil
}
