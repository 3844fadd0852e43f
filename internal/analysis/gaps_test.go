// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireGaps checks that the gaps of each cause sum to the idle time of a result, and returns how many there are.
func requireGaps(t *testing.T, src Source, o Options, name string) (n int) {
	t.Helper()
	r, err := Run(t.Context(), src, o)
	require.NoError(t, err)
	for i := range r.Devices {
		d := &r.Devices[i]
		every, err := ListGaps(t.Context(), src, o, d.ID, nil, 1000)
		require.NoError(t, err)
		require.Equal(t, d.Active.IdleNs, every.SumNs, name)
		require.Len(t, every.List, int(every.Count), name)
		n += len(every.List)
		for _, c := range Causes() {
			x, err := ListGaps(t.Context(), src, o, d.ID, &c, 1000)
			require.NoError(t, err)
			sum := int64(0)
			for j := range x.List {
				sum += x.List[j].Idle[c]
			}
			require.Equal(t, []int64{d.Active.Idle[c], d.Active.Idle[c]}, []int64{x.SumNs, sum}, "%s, %s", name, c)
			require.True(t, x.Complete)
		}
	}
	return n
}

func TestListGaps_Sums(t *testing.T) {
	n := 0
	for seed := range uint64(40) {
		src := FromReader(random(seed), "", "s")
		for _, o := range []Options{{}, {From: 300 * µs, To: 1500*µs + 17}} {
			n += requireGaps(t, src, o, fmt.Sprintf("seed %d", seed))
		}
	}
	assert.Greater(t, n, 500)
	steps := train(60, func(p *program, i int) {
		kernels(p, 5, 20*µs)
		p.host += int64(i) * µs
		p.sync()
	}).reader()
	assert.Equal(t, 59, requireGaps(t, FromReader(steps, "", "s"), Options{}, "steps"))
	kept := steps.keeping()
	_, err := runWith(t.Context(), kept, Options{}, &Update{})
	require.NoError(t, err)
	assert.Equal(t, 59, requireGaps(t, kept, Options{}, "kept parts"))
	assert.Equal(t, 49, requireGaps(t, FromReader(service(50, "request %d").reader(), "", "s"), Options{}, "requests"))
}

func TestListGaps_Limit(t *testing.T) {
	src := FromReader(train(60, func(p *program, i int) {
		kernels(p, 5, 20*µs)
		p.sync()
		p.host += int64(i*37%60) * ms
	}).reader(), "", "s")
	all, err := ListGaps(t.Context(), src, Options{}, "GPU-1", nil, 1000)
	require.NoError(t, err)
	few, err := ListGaps(t.Context(), src, Options{}, "GPU-1", nil, 3)
	require.NoError(t, err)
	require.Len(t, few.List, 3)
	assert.Equal(t, all.List[:3], few.List)
	assert.Equal(t, []int64{all.Count, all.SumNs}, []int64{few.Count, few.SumNs})
	none, err := ListGaps(t.Context(), src, Options{}, "GPU-9", nil, 3)
	require.NoError(t, err)
	assert.Equal(t, []any{true, int64(0), int64(0), 0}, []any{none.Complete, none.Count, none.SumNs, len(none.List)})
}

func TestListGaps_Deadline(t *testing.T) {
	src := FromReader(train(2000, func(p *program, _ int) { kernels(p, 5, 20*µs) }).reader(), "", "s")
	x, err := ListGaps(t.Context(), src, Options{Deadline: time.Now().Add(-time.Second)}, "GPU-1", nil, 10)
	require.NoError(t, err)
	assert.False(t, x.Complete)
}
