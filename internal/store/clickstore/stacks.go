// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"context"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

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
		stack, shape uint64
		site         answer.Site
		count, ns    int64
	}
	f := v.filter()
	f.interval("StartNs", "", q.From, q.To, false)
	f.add("Operation = 1")
	var parts []part
	stacks, shapes := keys{}, keys{}
	err := v.s.each(ctx, "SELECT Stack, Shape, Parent, ScopeName, ScopePath, toInt64(count()), sum(greatest(DurationNs, 0)) FROM gpu_ops FINAL"+f.where()+
		" GROUP BY Stack, Shape, Parent, ScopeName, ScopePath", f.args, func(r driver.Rows) error {
		var p part
		err := r.Scan(&p.stack, &p.shape, (*uint64)(&p.site.Parent), &p.site.ScopeName, &p.site.ScopePath, &p.count, &p.ns)
		parts = append(parts, p)
		stacks[p.stack], shapes[p.shape] = struct{}{}, struct{}{}
		return err
	})
	if err != nil {
		return nil, err
	}
	textOf, err := v.stacks(ctx, stacks)
	if err != nil {
		return nil, err
	}
	shapeOf, err := v.shapes(ctx, shapes)
	if err != nil {
		return nil, err
	}
	tree, err := v.tree(ctx)
	if err != nil {
		return nil, err
	}
	sums, names := map[answer.StackKey]*store.StackSum{}, map[uint32][]string{}
	for _, p := range parts {
		list := tree.Path(p.site)
		k := answer.StackKey{Stack: orEmpty(textOf[p.stack]).Text, Name: orEmpty(shapeOf[p.shape]).Name, Path: v.sess.paths.ID(list)}
		names[k.Path] = list
		answer.AddStack(sums, k, p.count, p.ns)
	}
	return answer.Stacks(sums, names, n), nil
}
