// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
)

// SpanSamples is a sum of the samples of one span.
type SpanSamples struct {
	store.SampleSum
	Span store.SpanID
}

// SamplesByPath adds up the sums of the same path and returns the first n. The list is in the order of
// samples without their path. The function path returns the id and the names of the path of a span.
func SamplesByPath(list []SpanSamples, n int, path func(store.SpanID) (uint32, []string)) []store.SampleSum {
	names := map[uint32][]string{}
	paths := map[store.SpanID]uint32{0: 0}
	var out []store.SampleSum
	start := 0                // of the rows that differ in the path only
	group := map[uint32]int{} // by path
	sameRow := func(a, b store.SampleSum) bool {
		a.Path, a.Rows, a.Value = b.Path, b.Rows, b.Value
		return a == b
	}
	flush := func() {
		slices.SortFunc(out[start:], func(a, b store.SampleSum) int { return slices.Compare(names[a.Path], names[b.Path]) })
		start = len(out)
		clear(group)
	}
	for i := range list {
		x := list[i].SampleSum
		id, ok := paths[list[i].Span]
		if !ok {
			var of []string
			id, of = path(list[i].Span)
			names[id], paths[list[i].Span] = of, id
		}
		x.Path = id
		if len(out) > start && !sameRow(x, out[start]) {
			flush()
			if len(out) >= n {
				break
			}
		}
		if at, ok := group[id]; ok {
			out[at].Rows += x.Rows
			out[at].Value += x.Value
			continue
		}
		group[id] = len(out)
		out = append(out, x)
	}
	flush()
	return out[:min(n, len(out))]
}

// StackKey is what a sum of [store.Reader.Stacks] is of.
type StackKey struct {
	Stack, Name string
	Path        uint32
}

// AddStack adds kernels to the sum of a key.
func AddStack(sums map[StackKey]*store.StackSum, k StackKey, count, ns int64) {
	s := sums[k]
	if s == nil {
		s = &store.StackSum{Stack: k.Stack, Path: k.Path, Name: k.Name}
		sums[k] = s
	}
	s.Count += count
	s.SumNs += ns
}

// Stacks returns the first n sums in the order of [store.Reader.Stacks]. Names are those of the paths.
func Stacks(sums map[StackKey]*store.StackSum, names map[uint32][]string, n int) []store.StackSum {
	sorted := slices.SortedFunc(maps.Values(sums), func(a, b *store.StackSum) int {
		return cmp.Or(cmp.Compare(b.SumNs, a.SumNs), cmp.Compare(a.Stack, b.Stack), slices.Compare(names[a.Path], names[b.Path]), cmp.Compare(a.Name, b.Name))
	})
	var out []store.StackSum
	for _, s := range sorted[:min(n, len(sorted))] {
		out = append(out, *s)
	}
	return out
}
