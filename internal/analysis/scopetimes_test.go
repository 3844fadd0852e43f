// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// requireTimes checks that the times of scopes sum to the active interval of the device.
func requireTimes(t *testing.T, p *Profile) (launches int64) {
	t.Helper()
	var most *Device
	for i := range p.Result.Devices {
		if d := &p.Result.Devices[i]; most == nil || d.KernelNs > most.KernelNs || d.KernelNs == most.KernelNs && d.ID < most.ID {
			most = d
		}
	}
	if most == nil || most.Kernels == 0 {
		return 0
	}
	want := most.Active
	waits := want.Idle[NothingQueued]
	want.Idle[NothingQueued] = 0
	want.IdleNs -= waits
	want.WallNs -= waits
	var sum Parts
	var self int64
	for i := range p.Times {
		x := &p.Times[i]
		require.Equal(t, x.WallNs, x.BusyNs()+x.IdleNs)
		require.Equal(t, x.IdleNs, x.Idle.Sum())
		require.LessOrEqual(t, x.Late, x.Launches)
		require.LessOrEqual(t, x.Launches, x.Operations)
		self += x.SelfNs
		if len(x.Path) < 2 {
			sum = sum.plus(&x.Parts)
			launches += x.Launches
		}
	}
	require.Equal(t, want, sum)
	require.Equal(t, want.WallNs, self)
	return launches
}

// randomScopes is random with scopes and queue times.
func randomScopes(seed uint64) *pages {
	paths := []string{"", "step 1|forward", "step 2|forward", "step 3|backward|layer 7", "step 9", "other"}
	r := random(seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := range r.ops {
		r.ops[i].PlaceRef = store.Place{ScopePath: paths[rng.IntN(len(paths))]}
		if r.ops[i].LaunchEndNs.OK && r.ops[i].ShapeRef.Operation == store.OpKernel {
			r.ops[i].QueueNs = store.Some(max(0, r.ops[i].StartNs-r.ops[i].LaunchEndNs.V))
		}
	}
	if seed%3 == 0 {
		r.spans = nil
	}
	return r
}

func TestScopeTimes_RandomTimelines(t *testing.T) {
	for seed := range uint64(300) {
		r := randomScopes(seed)
		k := r.keeping()
		for _, o := range []Options{{}, {From: 300 * µs, To: 1500*µs + 17}, {NoSteps: true}} {
			want, err := NewProfile(t.Context(), FromReader(r, "", "s"), o)
			require.NoError(t, err)
			launches := requireTimes(t, want)
			if seed == 1 {
				require.Positive(t, launches)
			}
			for range 2 { // sweeps over the parts, and uses them
				got, err := NewProfile(t.Context(), k, o)
				require.NoError(t, err)
				require.Equal(t, want.Times, got.Times, "seed %d", seed)
			}
		}
	}
}

// manyScopes has more scopes than are read at once, except in parts, if few is set. Operations name the scope that
// launched them, which can have ended before the part.
func manyScopes(seed uint64) *pages {
	rng := rand.New(rand.NewPCG(seed, 5))
	r := random(seed)
	r.spans = nil
	for i := range int64(80) {
		at := i / 2 * 50 * µs
		s := store.Span{StartNs: at, EndNs: at + 1 + rng.Int64N(50)*µs, Span: store.SpanID(10_000 + i), Name: fmt.Sprint("step ", i/2), Operation: "scope"}
		if i%2 == 1 {
			s.Parent, s.Name = s.Span-1, "forward"
			s.EndNs = r.spans[i-1].EndNs
		}
		r.spans = append(r.spans, store.SpanRow{Span: s})
	}
	for i := range r.ops {
		o := &r.ops[i]
		for _, s := range r.spans {
			if at := o.LaunchStartNs; at.OK && s.StartNs <= at.V && at.V < s.EndNs && rng.IntN(2) == 0 {
				o.PlaceRef = store.Place{Parent: s.Span.Span}
			}
		}
	}
	return r
}

func TestScopeTimes_ManyScopes(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := manyScopes(seed)
			k := r.keeping()
			k.few, k.ops = true, 5
			for _, o := range []Options{{}, {From: 300 * µs, To: 1500*µs + 17}, {From: 800 * µs}} {
				want, err := NewTimes(t.Context(), FromReader(r, "", "s"), o)
				require.NoError(t, err)
				requireTimes(t, want)
				for i := range 2 { // sweeps over the parts, and uses them
					k.swept.Store(0)
					got, err := NewTimes(t.Context(), k, o)
					require.NoError(t, err)
					if i == 1 && o == (Options{}) {
						require.LessOrEqual(t, k.swept.Load(), k.ops, "the rest of the session")
					}
					require.False(t, got.ManyScopes)
					require.Equal(t, want.Times, got.Times)
				}
			}
			whole, err := NewProfile(t.Context(), k, Options{})
			require.NoError(t, err)
			require.True(t, whole.ManyScopes)
			require.Empty(t, whole.Scopes)
			requireTimes(t, whole)
		})
	}
}

// ends is a source that knows where a window and its last part begin.
type ends struct {
	*keeping
	first, last int64
	begun       chan struct{} // closed when scopes of the last part are read
	once        sync.Once
	alone       atomic.Bool // the sweep over the last part did not begin
	more        bool        // the last part has too many scopes
}

func (e *ends) Scopes(ctx context.Context, from, to int64, n int) ([]Scope, bool, error) {
	list, more, err := e.keeping.Scopes(ctx, from, to, n)
	switch {
	case from > e.first && to > e.last:
		e.once.Do(func() { close(e.begun) })
		more = more || e.more
	case to <= e.last:
		select {
		case <-e.begun:
		case <-time.After(10 * time.Second):
			e.alone.Store(true)
		}
	}
	return list, more, err
}

// TestScopeTimes_BothEnds sweeps over the first part of a window while it sweeps over the last one.
func TestScopeTimes_BothEnds(t *testing.T) {
	r := manyScopes(1)
	k := r.keeping()
	k.few, k.ops = true, 5
	_, err := NewTimes(t.Context(), k, Options{})
	require.NoError(t, err)
	o := Options{From: 300 * µs, To: 1500*µs + 17}
	want, err := NewTimes(t.Context(), FromReader(r, "", "s"), o)
	require.NoError(t, err)
	last := int64(0)
	for _, name := range k.parts() {
		if p, ok := parsePart(name); ok && p.from < o.To {
			last = max(last, p.from)
		}
	}
	for _, more := range []bool{false, true} {
		e := &ends{keeping: k, first: o.From, last: last, begun: make(chan struct{}), more: more}
		got, err := NewTimes(t.Context(), e, o)
		require.NoError(t, err)
		assert.False(t, e.alone.Load())
		assert.Equal(t, more, got.ManyScopes)
		if !more {
			assert.Equal(t, want.Times, got.Times)
		}
	}
}

// TestScopeTimes_EarlierScopes reads not all of the scopes that ended before a part or window. Times are then unknown,
// because operations can belong to scopes that were not read.
func TestScopeTimes_EarlierScopes(t *testing.T) {
	for name, tt := range map[string]struct {
		few bool
		o   Options
	}{
		"parts":       {true, Options{}},
		"window":      {false, Options{From: 800 * µs}},
		"few, window": {true, Options{From: 300 * µs, To: 1500*µs + 17}},
	} {
		t.Run(name, func(t *testing.T) {
			cut := 0
			for seed := range uint64(50) {
				r := manyScopes(seed)
				k := r.keeping()
				k.few, k.early, k.ops = tt.few, true, 5
				want, err := NewTimes(t.Context(), FromReader(r, "", "s"), tt.o)
				require.NoError(t, err)
				for i := range 2 { // sweeps over the parts, and uses them
					got, err := NewTimes(t.Context(), k, tt.o)
					require.NoError(t, err)
					require.Equal(t, k.cut, got.ManyScopes, "seed %d, run %d", seed, i)
					if k.cut {
						require.Nil(t, got.Times)
					} else {
						require.Equal(t, want.Times, got.Times)
					}
				}
				if k.cut {
					cut++
				}
			}
			assert.Greater(t, cut, 1)
		})
	}
}

// TestScopeTimes has steps with a forward pass of one long kernel, which is limited by the device, and an
// optimizer of many short ones, which is limited by launches.
func TestScopeTimes(t *testing.T) {
	inScope := func(p *program, name string, body func()) {
		begin := len(p.ops)
		body()
		for i := range p.ops[begin:] {
			p.ops[begin+i].PlaceRef = store.Place{ScopePath: "step 1|" + name}
		}
	}
	r := train(20, func(p *program, _ int) {
		inScope(p, "forward", func() { kernels(p, 4, 2*ms) })
		p.sync() // else the host is ahead of the optimizer
		inScope(p, "optimizer", func() { kernels(p, 100, µs) })
		p.sync()
	}).reader()
	p, err := NewProfile(t.Context(), FromReader(r, "", "s"), Options{})
	require.NoError(t, err)
	requireTimes(t, p)
	var names []string
	of := map[string]*ScopeTime{}
	for i := range p.Times {
		name := ""
		for _, n := range p.Times[i].Path {
			name += "/" + n
		}
		names = append(names, name)
		of[name] = &p.Times[i]
	}
	assert.Equal(t, []string{"/step", "/step/forward", "/step/optimizer"}, names)
	assert.Equal(t, BoundDevice, of["/step"].Bound)
	assert.Equal(t, BoundDevice, of["/step/forward"].Bound)
	assert.Equal(t, 20*4*2*ms, of["/step/forward"].ComputeNs)
	assert.Equal(t, BoundLaunch, of["/step/optimizer"].Bound)
	assert.EqualValues(t, 2000, of["/step/optimizer"].Operations)
	assert.EqualValues(t, 2000, of["/step/optimizer"].Launches)
	assert.Greater(t, of["/step/optimizer"].Late, int64(1000))
	assert.LessOrEqual(t, of["/step/forward"].Late, int64(40))
	assert.Zero(t, of["/step"].SelfNs)
}

func TestScopeTimes_ManyPaths(t *testing.T) {
	var x scopeTimes
	for i := range maxGroups + 10 {
		x.of([]string{string(rune('a' + i%26)), string(rune(0x4e00 + i))}).sums[inSteps].busy(classCompute, 1)
	}
	assert.Len(t, x.all, maxGroups+1)
	assert.EqualValues(t, 10, x.all[otherName].sums[inSteps].ComputeNs)
}
