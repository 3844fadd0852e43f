// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waitFor lets a principal wait for a turn and returns when it waits. began is called with its
// turn.
func waitFor(t *testing.T, tt *fairSlots, who principal, group *sync.WaitGroup, began func()) {
	t.Helper()
	tt.mu.Lock()
	before := len(tt.waiting[who])
	tt.mu.Unlock()
	group.Go(func() {
		if assert.True(t, tt.acquire(context.Background(), who, time.Minute)) {
			began()
		}
	})
	eventually(t, "it waits", func() bool {
		tt.mu.Lock()
		defer tt.mu.Unlock()
		return len(tt.waiting[who]) > before
	})
}

func TestFairSlots_Fair(t *testing.T) {
	a, b, c := principal{1}, principal{2}, principal{3}
	tt := newFairSlots(4)
	for range 4 {
		require.True(t, tt.acquire(t.Context(), b, time.Minute))
	}
	assert.False(t, tt.acquire(t.Context(), b, time.Millisecond), "a principal has its share only")
	require.True(t, tt.acquire(t.Context(), a, time.Minute), "another one has a turn at once")
	assert.False(t, tt.acquire(t.Context(), a, time.Millisecond), "all together are bounded")

	// b has three requests waiting before a and c have one each.
	var group sync.WaitGroup
	order := make(chan principal, 5)
	for _, who := range []principal{b, b, b, a, c} {
		waitFor(t, tt, who, &group, func() { order <- who })
	}
	tt.release(a)
	assert.Equal(t, a, <-order, "b has its share already")
	for _, want := range []principal{b, c, b, b} {
		tt.release(b)
		assert.Equal(t, want, <-order)
	}
	group.Wait()
	for _, who := range []principal{a, b, b, b, c} {
		tt.release(who)
	}
	assert.Zero(t, tt.busy)
	assert.Empty(t, tt.held)
	assert.Empty(t, tt.waiting)
	assert.Empty(t, tt.order)
}

func TestFairSlots_Cancelled(t *testing.T) {
	tt := newFairSlots(1)
	require.True(t, tt.acquire(t.Context(), principal{1}, time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.False(t, tt.acquire(ctx, principal{1}, time.Minute))
	assert.Empty(t, tt.waiting)
	assert.Empty(t, tt.order)
	tt.release(principal{1})
	assert.True(t, tt.acquire(ctx, principal{1}, time.Minute), "a free turn is taken in any case")
}
