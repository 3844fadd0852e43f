// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

func TestSeries(t *testing.T) {
	var s Series
	for i := range 1000 {
		s.add(i, 1, int64(i))
		if i%2 == 0 {
			s.add(i, 1, 1)
		}
	}
	assert.Equal(t, 4, s.Size)
	require.Len(t, s.Cells, 250)
	assert.Equal(t, Cell{6, 0 + 1 + 2 + 3 + 2}, s.Cells[0])
	assert.Equal(t, Cell{6, 996 + 997 + 998 + 999 + 2}, s.Cells[249])
	var sum Cell
	for _, c := range s.Cells {
		sum.Count += c.Count
		sum.Ns += c.Ns
	}
	assert.Equal(t, Cell{1500, 999*1000/2 + 500}, sum)
	s.add(1024, 1, 5) // skips some, and needs larger cells
	assert.Equal(t, 8, s.Size)
	assert.Equal(t, Cell{1, 5}, s.Cells[128])
}

// TestSeries_Merge merges series of parts and compares with one series of all repetitions.
func TestSeries_Merge(t *testing.T) {
	for name, c := range map[string]struct {
		parts []int
		size  int // of all
		delta float64
	}{
		"one":                      {[]int{200}, 1, 0},
		"single repetitions":       {[]int{100, 250, 7, 256, 1, 40}, 4, 0},
		"larger cells":             {[]int{1500, 100, 2000, 3001}, 32, 0.2},
		"larger cells than before": {[]int{3, 3000}, 16, 0.2},
	} {
		t.Run(name, func(t *testing.T) {
			var want, got Series
			at := 0
			for _, n := range c.parts {
				var part Series
				for i := range n {
					ns := int64(1000 + (at+i)*(at+i)%89)
					want.add(at+i, 3, ns)
					part.add(i, 3, ns)
				}
				got.merge(&part, at, n)
				at += n
			}
			require.Equal(t, c.size, got.Size)
			require.Equal(t, want.Size, got.Size)
			require.Len(t, got.Cells, len(want.Cells))
			var sums [2]Cell
			for i := range want.Cells {
				for side, x := range []Cell{want.Cells[i], got.Cells[i]} {
					sums[side].Count += x.Count
					sums[side].Ns += x.Ns
				}
				assert.InDelta(t, want.Cells[i].Count, got.Cells[i].Count, 1)
				assert.InDelta(t, want.Cells[i].Ns, got.Cells[i].Ns, 1000*c.delta, "cell %d", i)
			}
			assert.Equal(t, sums[0], sums[1])
		})
	}
}

func TestGroups_Bound(t *testing.T) {
	var x groups
	for i := range 1000 {
		g := x.group(ofName, string(rune('a'+i)), &Group{})
		for j := range 250 {
			g.Steps.add(j, 1, 7)
			g.Calls.add(j, 1, 7)
		}
	}
	x.bound(true, maxCells)
	g := x.all[ofName]["b"]
	assert.Empty(t, g.Calls.Cells)
	assert.Equal(t, 4, g.Steps.Size)
	assert.Equal(t, Cell{4, 28}, g.Steps.Cells[61])
	assert.Equal(t, Cell{2, 14}, g.Steps.Cells[62])
	x.bound(true, 10)
	assert.Equal(t, 32, g.Steps.Size)
	assert.Equal(t, Cell{26, 182}, g.Steps.Cells[7])
}

// TestGroups_LatePart has a kernel that only a late part of a session has. It keeps the cells that a test needs.
func TestGroups_LatePart(t *testing.T) {
	var x groups
	g := x.group(ofName, "eval", &Group{})
	for j := range 100_000 {
		g.Calls.add(j, 1, 7)
	}
	x.bound(false, cellsOf(299))
	assert.GreaterOrEqual(t, len(g.Calls.Cells), 12)
	assert.LessOrEqual(t, len(g.Calls.Cells), leastCells)
}

func profileOf(t *testing.T, r *pages) *Profile {
	t.Helper()
	p, err := NewProfile(t.Context(), FromReader(r, "", "s"), Options{})
	require.NoError(t, err)
	return p
}

func find(t *testing.T, list []*Group, name string) *Group {
	t.Helper()
	i := slices.IndexFunc(list, func(g *Group) bool { return g.Name == name || strings.Join(g.Path, ">") == name })
	require.GreaterOrEqual(t, i, 0, name)
	return list[i]
}

func TestNewProfile_Steps(t *testing.T) {
	p := train(20, func(p *program, i int) {
		kernels(p, 3, 100*µs)
		p.scope("head", func() {
			row := p.work(store.OpKernel, "layer0", 50*µs)
			row.PlaceRef.ScopePath = "step 7|head"
		})
		if i%4 == 0 {
			p.launch("log", 10*µs)
		}
	})
	r := p.reader()
	for i := range r.spans { // the program makes the inner scope first
		if r.spans[i].Name == "head" {
			for k := range r.spans {
				if s := &r.spans[k]; s.Name != "head" && s.StartNs <= r.spans[i].StartNs && s.EndNs >= r.spans[i].EndNs {
					r.spans[i].Parent = s.Span.Span
				}
			}
		}
	}
	x := profileOf(t, r)
	want := run(t, r, 1000, Options{})
	require.Len(t, x.Steps, 20)
	assert.Equal(t, want.Steps, x.Result.Steps)
	assert.Equal(t, want.Devices[0].KernelNs, x.KernelNs)
	wall := int64(0)
	for i := range x.Steps {
		wall += x.Steps[i].WallNs
	}
	assert.Equal(t, want.Steps.WallNs, wall)
	layer := find(t, x.Kernels, "layer0")
	assert.Equal(t, []int64{40, 20 * 150 * µs}, []int64{layer.Count, layer.SumNs})
	assert.Equal(t, Cell{2, 150 * µs}, layer.Steps.Cells[19])
	log := find(t, x.Kernels, "log")
	assert.Equal(t, int64(5), log.Count)
	assert.Len(t, log.Steps.Cells, 17, "the last of them is in step 16")
	step, head := find(t, x.Scopes, "step"), find(t, x.Scopes, "step>head")
	assert.Equal(t, int64(20), step.Count)
	assert.Equal(t, int64(20), head.Count)
	assert.Equal(t, Cell{1, 50 * µs}, head.Steps.Cells[3])
	assert.Equal(t, Cell{1, 50 * µs}, step.Steps.Cells[3], "a scope has the work of those inside it")
	assert.Len(t, step.Calls.Cells, 20)
}

func TestNewProfile_NoSteps(t *testing.T) {
	p := newProgram()
	for i := range 3 {
		p.launch("once", 10*µs)
		p.launch("other", int64(i+1)*µs)
	}
	x := profileOf(t, p.reader())
	assert.Empty(t, x.Steps)
	assert.False(t, x.More)
	other := find(t, x.Kernels, "other")
	assert.Equal(t, []Cell{{1, µs}, {1, 2 * µs}, {1, 3 * µs}}, other.Calls.Cells)
	assert.Equal(t, []int64{3, 6 * µs, 36 * µs}, []int64{other.Count, other.SumNs, x.KernelNs})
	assert.Equal(t, &Ref{p.ops[5].Span, p.ops[5].StartNs, "other"}, other.Longest)
	assert.Equal(t, p.ops[0].Span, find(t, x.Kernels, "once").Longest.Span, "of equal ones the first")
	none := profileOf(t, &pages{})
	assert.Empty(t, none.Kernels)
	assert.NotNil(t, none.Result)
}

// TestNewProfile_Bounds has more names than a profile keeps.
func TestNewProfile_Bounds(t *testing.T) {
	p := newProgram()
	for i := range maxGroups + 100 {
		p.launch(strings.Repeat("k", i%7)+string(rune('a'+i%26))+strings.Repeat("x", i/26), µs)
	}
	for i := range p.ops {
		p.ops[i].Shape = uint32(i)
	}
	x := profileOf(t, p.reader())
	assert.Len(t, x.Shapes, maxGroups)
	assert.LessOrEqual(t, len(x.Kernels), maxGroups)
	assert.True(t, x.More)
}

// TestNewProfile_ManyScopes has more scopes than those that decide which ones are steps, then more than
// those that are read.
func TestNewProfile_ManyScopes(t *testing.T) {
	profile := func(steps, inner int64) *Profile {
		b := &store.Batch{
			Lanes: []store.Lane{{}, {Key: 1, Device: "GPU-1"}}, Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "k"}},
			Places: []store.Place{{}}, Stacks: []store.Stack{{}}, Origins: []store.Origin{{}}, Extras: []store.Extra{{}},
		}
		scope := func(id, parent, start, end int64, name string) {
			b.Spans = append(b.Spans, store.Span{StartNs: start, EndNs: end, Span: store.SpanID(id), Parent: store.SpanID(parent), Name: name, Operation: "scope"})
		}
		for i := range steps {
			at, id := 1+i*10*µs, 1_000_000+(inner+1)*i
			scope(id, 0, at, at+9*µs, "step")
			for j := range inner {
				scope(id+1+j, id, at+1+2*j, at+2+2*j, "inner")
			}
			b.Places = append(b.Places, store.Place{Key: uint64(i + 1), Parent: store.SpanID(id)})
			b.Ops = append(b.Ops, store.Op{StartNs: at + 5*µs, EndNs: at + 7*µs, Span: store.SpanID(i + 1), Lane: 1, Shape: 1, Place: uint32(i + 1)})
		}
		var c Collection
		c.Add(b)
		p, err := NewProfile(t.Context(), &c, Options{})
		require.NoError(t, err)
		return p
	}
	p := profile(20_000, 3)
	step := find(t, p.Scopes, "step")
	assert.False(t, p.ManyScopes)
	assert.Equal(t, int64(20_000), step.Count)
	var launches int64
	for _, c := range step.Steps.Cells {
		launches += c.Count
	}
	assert.Equal(t, int64(20_000), launches)
	p = profile(4_100, 50)
	assert.True(t, p.ManyScopes)
	assert.Empty(t, p.Scopes)
	assert.Nil(t, p.Times)
	assert.Len(t, p.Steps, 4_100)
}
