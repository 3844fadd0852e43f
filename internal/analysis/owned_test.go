// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireOwned checks that the operations of each scope, and those of the finding about fusion, sum to what a
// result has. It returns how many scopes and findings there are.
func requireOwned(t *testing.T, src Source, o Options) (scopes, fusions int) {
	t.Helper()
	p, err := NewProfile(t.Context(), src, o)
	require.NoError(t, err)
	list := func(f OwnedFilter) *Owned {
		x, err := ListOwned(t.Context(), src, o, f, 10_000)
		require.NoError(t, err)
		require.True(t, x.Complete)
		require.EqualValues(t, len(x.List), x.Count)
		require.True(t, slices.IsSortedFunc(x.List, func(a, b *OwnedOp) int { return int(b.WallNs - a.WallNs) }))
		var sum Parts
		for _, op := range x.List {
			sum = sum.plus(&op.Parts)
		}
		require.Equal(t, x.Parts, sum)
		return x
	}
	for i := range p.Times {
		want := &p.Times[i]
		x := list(OwnedFilter{Device: p.Device, Scope: want.Path, Outside: len(want.Path) == 0})
		require.Equal(t, want.Parts, x.Parts, "%q", want.Path)
		queue, counted := histogram{}, int64(0)
		for _, op := range x.List {
			require.True(t, op.counted || op.WallNs > 0)
			if !op.counted {
				continue
			}
			if counted++; op.QueueNs.OK {
				queue.add(op.QueueNs.V)
			}
		}
		require.Equal(t, []int64{want.Operations, want.Launches, want.Late}, []int64{counted, x.Launches, x.Late}, "%q", want.Path)
		require.Equal(t, want.QueueP50Ns, queue.quantile(50), "%q", want.Path)
	}
	if p.Device != "" {
		x, all := list(OwnedFilter{Device: p.Device}), Parts{}
		for i := range p.Times {
			if len(p.Times[i].Path) < 2 {
				all = all.plus(&p.Times[i].Parts)
			}
		}
		require.Equal(t, all, x.Parts)
	}
	for i := range p.Result.Findings {
		if f := &p.Result.Findings[i]; f.Kind == "fusion" {
			x := list(OwnedFilter{Device: f.Device, Fusion: true})
			require.Equal(t, f.GainNs, x.WallNs)
			require.Equal(t, f.GainNs, x.Idle[Launch]+x.Idle[Latency])
			for j := range p.Result.Devices {
				if d := &p.Result.Devices[j]; d.ID == f.Device {
					require.LessOrEqual(t, f.GainNs, d.Active.Idle[Launch]+d.Active.Idle[Latency])
				}
			}
			fusions++
		}
	}
	return len(p.Times), fusions
}

func TestListOwned_Sums(t *testing.T) {
	scopes := 0
	for seed := range uint64(60) {
		r := randomScopes(seed)
		for _, o := range []Options{{}, {From: 300 * µs, To: 1500*µs + 17}} {
			n, _ := requireOwned(t, FromReader(r, "", "s"), o)
			scopes += n
		}
		n, _ := requireOwned(t, r.keeping(), Options{})
		scopes += n
	}
	assert.Greater(t, scopes, 500)
}

// launchBound has short kernels in and after steps, which can be fused.
func launchBound() *program {
	short := func(p *program, n int) {
		for range n {
			p.launch("scale", µs)
			p.launch("add", µs)
		}
	}
	p := train(40, func(p *program, _ int) { short(p, 10) })
	short(p, 200)
	return p
}

func TestListOwned_Fusion(t *testing.T) {
	_, fusions := requireOwned(t, FromReader(launchBound().reader(), "", "s"), Options{})
	assert.Equal(t, 1, fusions)
}

func TestListOwned_Limit(t *testing.T) {
	src := FromReader(launchBound().reader(), "", "s")
	p, err := NewProfile(t.Context(), src, Options{})
	require.NoError(t, err)
	f := OwnedFilter{Device: p.Device, Scope: p.Times[0].Path}
	all, err := ListOwned(t.Context(), src, Options{}, f, 10_000)
	require.NoError(t, err)
	few, err := ListOwned(t.Context(), src, Options{}, f, 3)
	require.NoError(t, err)
	assert.Equal(t, all.List[:3], few.List)
	few.List, few.limit, few.owner = all.List, all.limit, all.owner
	assert.Equal(t, all, few)
	none, err := ListOwned(t.Context(), src, Options{}, OwnedFilter{Device: "GPU-9"}, 3)
	require.NoError(t, err)
	assert.Equal(t, []any{true, int64(0), 0}, []any{none.Complete, none.Count, len(none.List)})
}

func TestListOwned_Deadline(t *testing.T) {
	src := FromReader(train(2000, func(p *program, _ int) { kernels(p, 5, 20*µs) }).reader(), "", "s")
	x, err := ListOwned(t.Context(), src, Options{Deadline: time.Now().Add(-time.Second)}, OwnedFilter{Device: "GPU-1"}, 10)
	require.NoError(t, err)
	assert.False(t, x.Complete)
}
