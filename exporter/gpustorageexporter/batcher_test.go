// SPDX-License-Identifier: Apache-2.0

package gpustorageexporter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// writer notes the times and sessions of writes, and fails for the session "bad".
type writer struct {
	mu     sync.Mutex
	err    error
	writes []int
	at     []time.Time
}

func (w *writer) Write(_ context.Context, batches []*store.Batch) (store.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes, w.at = append(w.writes, len(batches)), append(w.at, time.Now())
	for _, b := range batches {
		if b.Session == "bad" {
			return store.Result{}, w.err
		}
	}
	return store.Result{}, nil
}

func batch(session string, rows int) []*store.Batch {
	return []*store.Batch{{Session: session, Spans: make([]store.Span, rows)}}
}

func TestBatcher_IntervalGrows(t *testing.T) {
	for _, tt := range []struct {
		sessions int
		want     time.Duration
	}{{1, 80 * time.Millisecond}, {10, 800 * time.Millisecond}, {200, maxInterval}} {
		t.Run(fmt.Sprint(tt.sessions), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &writer{}
				b := newBatcher(w)
				var done sync.WaitGroup
				for i := range tt.sessions {
					done.Go(func() {
						for range 4 {
							assert.NoError(t, b.write(t.Context(), batch(fmt.Sprint(i), 1)))
						}
					})
				}
				done.Wait()
				b.close()
				n := len(w.at)
				require.Greater(t, n, 3)
				assert.Equal(t, tt.sessions, w.writes[n-2])
				assert.Equal(t, tt.want, w.at[n-2].Sub(w.at[n-3]))
			})
		})
	}
}

func TestBatcher_Early(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writer{}
		b := newBatcher(w)
		var done sync.WaitGroup
		for i := range 200 {
			done.Go(func() { assert.NoError(t, b.write(t.Context(), batch(fmt.Sprint(i), 1))) })
		}
		done.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		require.NoError(t, b.write(ctx, batch("a", 1)))
		assert.LessOrEqual(t, time.Since(start), 2*time.Second-commitReserve, "before the deadline")
		start = time.Now()
		require.NoError(t, b.write(t.Context(), batch("a", sessionRows)))
		assert.Zero(t, time.Since(start), "many rows")
		b.close()
		assert.ErrorIs(t, b.write(t.Context(), batch("a", 1)), errClosed)
	})
}

func TestBatcher_Errors(t *testing.T) {
	for _, tt := range []struct {
		name    string
		err     error
		goodErr error
	}{{"temporary", store.ErrRetry, store.ErrRetry}, {"permanent", errors.New("broken"), nil}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &writer{err: tt.err}
				b := newBatcher(w)
				require.NoError(t, b.write(t.Context(), batch("first", 1)))
				var good, bad error
				var done sync.WaitGroup
				done.Go(func() { good = b.write(t.Context(), batch("good", 1)) })
				done.Go(func() { bad = b.write(t.Context(), batch("bad", 1)) })
				done.Wait()
				b.close()
				assert.ErrorIs(t, bad, tt.err)
				assert.ErrorIs(t, good, tt.goodErr)
			})
		})
	}
}

func TestBatcher_Canceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writer{}
		b := newBatcher(w)
		require.NoError(t, b.write(t.Context(), batch("a", 1)))
		err := make(chan error)
		canceled, stop := context.WithCancel(t.Context())
		go func() { err <- b.write(canceled, batch("b", 1)) }()
		synctest.Wait()
		stop()
		require.ErrorIs(t, <-err, context.Canceled)
		b.close()
		assert.Equal(t, []int{1}, w.writes, "the canceled delivery is not written")
	})
}
