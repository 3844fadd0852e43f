// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"maps"
	"slices"

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
		if q.From == 0 && q.To == 0 && !v.stale && !v.coarse {
			return v.rollupStacks(ctx, n)
		}
		return v.stackSums(ctx, q, n)
	})
}

// StacksFromSums implements [store.StackSums].
func (s *Store) StacksFromSums(ctx context.Context, project, session string) (bool, error) {
	return read(ctx, s, project, session, "read stacks", func(v *view) (bool, error) { return !v.stale && !v.coarse, nil })
}

func (v *view) stackSums(ctx context.Context, q store.StackQuery, n int) ([]store.StackSum, error) {
	of, err := v.windowParts(ctx, by{shape: true, stack: true}, q.From, q.To)
	if err != nil {
		return nil, err
	}
	stackIDs, shapeIDs := idSet{}, idSet{}
	for i := range of.parts {
		stackIDs.add(of.parts[i].lane)
		shapeIDs.add(of.parts[i].shape)
	}
	texts, err := v.stacks(ctx, stackIDs)
	if err != nil {
		return nil, err
	}
	shapes, err := v.shapes(ctx, shapeIDs)
	if err != nil {
		return nil, err
	}
	sums, names := map[answer.StackKey]*store.StackSum{}, map[uint32][]string{}
	for i := range of.parts {
		p := &of.parts[i]
		list := of.paths[p.where()]
		k := answer.StackKey{Stack: orEmpty(texts[p.lane]).Text, Name: orEmpty(shapes[p.shape]).Name, Path: v.pathID(list)}
		names[k.Path] = list
		answer.AddStack(sums, k, p.n, p.sum)
	}
	return answer.Stacks(sums, names, n), nil
}

// rollupStacks returns the sums of a whole session. Kernels that are in stats and not in stack_sums have no
// stack.
func (v *view) rollupStacks(ctx context.Context, n int) ([]store.StackSum, error) {
	type part struct {
		kernelPart
		stack uint32
	}
	parts, err := v.rollupParts(ctx, false, true)
	if err != nil {
		return nil, err
	}
	parts = slices.Clone(parts)
	all := make([]part, 0, len(parts))
	shapeIDs, stackIDs := idSet{}, idSet{}
	for _, p := range parts {
		shapeIDs.add(p.shape)
		all = append(all, part{p, 0})
	}
	err = v.each(ctx, "SELECT p.*, c.key FROM (SELECT site, chain, stack, shape, sum(n)::BIGINT, "+lowBits("sum_ns")+" FROM {stack_sums} GROUP BY 1, 2, 3, 4) p LEFT JOIN "+
		latestChains+" c ON c.id = p.chain", nil, func(r *sql.Rows) error {
		var p part
		err := r.Scan(&p.place, &p.chain, &p.stack, &p.shape, &p.n, wrapped{&p.sum}, &p.key)
		stackIDs.add(p.stack)
		shapeIDs.add(p.shape)
		all = append(all, p)
		parts = append(parts, p.kernelPart)
		return err
	})
	if err != nil {
		return nil, err
	}
	paths, err := v.partPaths(ctx, parts)
	if err != nil {
		return nil, err
	}
	texts, err := v.stacks(ctx, stackIDs)
	if err != nil {
		return nil, err
	}
	shapes, err := v.shapes(ctx, shapeIDs)
	if err != nil {
		return nil, err
	}
	sums, names := map[answer.StackKey]*store.StackSum{}, map[uint32][]string{}
	for i := range all {
		p := &all[i]
		shape := orEmpty(shapes[p.shape])
		if shape.Operation != store.OpKernel {
			continue
		}
		list := paths[p.where()]
		k := answer.StackKey{Name: shape.Name, Path: v.pathID(list)}
		names[k.Path] = list
		if p.stack != 0 {
			answer.AddStack(sums, k, -p.n, -p.sum)
			k.Stack = orEmpty(texts[p.stack]).Text
		}
		answer.AddStack(sums, k, p.n, p.sum)
	}
	maps.DeleteFunc(sums, func(_ answer.StackKey, s *store.StackSum) bool { return s.Count <= 0 })
	return answer.Stacks(sums, names, n), nil
}
