// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func owner(name string) func() string { return func() string { return name } }

func TestRun_Result(t *testing.T) {
	var w Watchdog[string]
	got, err := Run(t.Context(), &w, owner("a"), time.Minute, func() int { return 7 }, nil)
	require.NoError(t, err)
	assert.Equal(t, 7, got)
	assert.Zero(t, w.Pending())
}

// A call that never returns is abandoned after its limit. The third call of its owner is not made;
// calls of other owners are.
func TestRun_BlockedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watchdog[string]
		release := make(chan struct{})
		var discarded atomic.Int32
		hang := func() int { <-release; return 1 }
		discard := func(n int) { discarded.Add(int32(n)) }
		for range maxOwner {
			began := time.Now()
			_, err := Run(t.Context(), &w, owner("evil"), time.Second, hang, discard)
			require.ErrorIs(t, err, ErrAbandoned)
			assert.Equal(t, time.Second, time.Since(began))
		}
		assert.Equal(t, maxOwner, w.Pending())
		_, err := Run(t.Context(), &w, owner("evil"), time.Second, func() int { t.Error("called"); return 0 }, nil)
		require.ErrorIs(t, err, ErrBusy)
		got, err := Run(t.Context(), &w, owner("victim"), time.Second, func() int { return 3 }, nil)
		require.NoError(t, err)
		assert.Equal(t, 3, got)

		close(release)
		synctest.Wait()
		assert.Zero(t, w.Pending())
		assert.EqualValues(t, maxOwner, discarded.Load())
		assert.Empty(t, w.pending)
		_, err = Run(t.Context(), &w, owner("evil"), time.Second, func() int { return 0 }, nil)
		require.NoError(t, err)
	})
}

func TestRun_TotalLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watchdog[int]
		release := make(chan struct{})
		for n := range maxTotal {
			_, err := Run(t.Context(), &w, func() int { return n }, time.Millisecond, func() int { <-release; return 0 }, nil)
			require.ErrorIs(t, err, ErrAbandoned)
		}
		_, err := Run(t.Context(), &w, func() int { return -1 }, time.Second, func() int { return 0 }, nil)
		require.ErrorIs(t, err, ErrBusy)
		assert.Equal(t, maxTotal, w.Pending())
		close(release)
		synctest.Wait()
	})
}

func TestRun_Cancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watchdog[string]
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		time.AfterFunc(time.Second, cancel)
		_, err := Run(ctx, &w, owner("a"), time.Hour, func() int { <-release; return 0 }, nil)
		require.ErrorIs(t, err, context.Canceled)
		_, err = Run(ctx, &w, owner("a"), time.Hour, func() int { t.Error("called"); return 0 }, nil)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 1, w.Pending())
		close(release)
	})
}
