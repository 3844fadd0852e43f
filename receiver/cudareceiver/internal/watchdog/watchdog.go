// SPDX-License-Identifier: Apache-2.0

// Package watchdog runs calls that may never return, such as reads of files that another user's
// program serves, and abandons them after a deadline.
//
// The kernel cannot cancel such a call: its thread stays blocked until the call returns. So the
// number of abandoned calls is bounded, in total and for each owner. An owner at the bound gets no
// further calls until one of its calls returns. Other owners are not affected.
package watchdog

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Errors of [Run].
var (
	// ErrAbandoned reports a call that did not return before its deadline.
	ErrAbandoned = errors.New("call timed out")
	// ErrBusy reports a call that was not made because its owner, or all owners together, have too
	// many abandoned calls.
	ErrBusy = errors.New("too many earlier calls have not returned")
)

const (
	// maxOwner and maxTotal bound the abandoned calls that have not returned, for one owner and in
	// total. Each holds a thread, whose stack the kernel bounds, and at most a few descriptors.
	maxOwner = 2
	maxTotal = 32
)

// Watchdog counts abandoned calls by owner. The zero value is ready to use. It is safe for
// concurrent use.
type Watchdog[Owner comparable] struct {
	mu      sync.Mutex
	pending map[Owner]int
	total   int
}

// Pending returns the number of abandoned calls that have not returned.
func (w *Watchdog[Owner]) Pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// Run makes a call in a new goroutine and waits until it returns, limit expires or ctx ends. The
// error is [ErrAbandoned], [ErrBusy] or the error of ctx; the result is valid only if the error is
// nil. An abandoned call is charged to owner, which is evaluated only if needed. The late result of
// an abandoned call is passed to discard, which may be nil.
func Run[Owner comparable, T any](ctx context.Context, w *Watchdog[Owner], owner func() Owner, limit time.Duration, call func() T, discard func(T)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	w.mu.Lock()
	some, full := w.total > 0, w.total >= maxTotal
	w.mu.Unlock()
	if some {
		who := owner()
		w.mu.Lock()
		full = full || w.pending[who] >= maxOwner
		w.mu.Unlock()
	}
	if full {
		return none, ErrBusy
	}
	done := make(chan T, 1)
	abandoned := false // under w.mu
	var who Owner
	go func() {
		result := call()
		w.mu.Lock()
		if !abandoned {
			done <- result
			w.mu.Unlock()
			return
		}
		w.total--
		if w.pending[who]--; w.pending[who] == 0 {
			delete(w.pending, who)
		}
		w.mu.Unlock()
		if discard != nil {
			discard(result)
		}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	err := ErrAbandoned
	select {
	case result := <-done:
		return result, nil
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	by := owner()
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case result := <-done: // the call returned just before its deadline
		return result, nil
	default:
	}
	if w.pending == nil {
		w.pending = map[Owner]int{}
	}
	abandoned, who = true, by
	w.pending[who]++
	w.total++
	return none, err
}
