// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"slices"
	"sync"
	"time"
)

// turns bounds what is done at a time, for each principal and in all. Of the principals that wait,
// each has its turn, however many requests the others have waiting. It is safe for concurrent use.
type turns struct {
	each, all int

	mu   sync.Mutex
	held map[principal]int
	busy int
	// waiting are the requests of a principal in their order; order are the principals that wait, the
	// next one first.
	waiting map[principal][]chan struct{}
	order   []principal
}

// newTurns returns turns of which one principal may have n, and all a quarter more.
func newTurns(n int) *turns {
	return &turns{each: n, all: n + max(n/4, 1), held: map[principal]int{}, waiting: map[principal][]chan struct{}{}}
}

// take waits for a turn until the context ends or the time has passed, and reports whether there is
// one. give ends the turn.
func (t *turns) take(ctx context.Context, who principal, wait time.Duration) bool {
	t.mu.Lock()
	if t.isFree(who) {
		t.begin(who)
		t.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	if len(t.waiting[who]) == 0 {
		t.order = append(t.order, who)
	}
	t.waiting[who] = append(t.waiting[who], turn)
	t.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-turn:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting[who], turn)
	if i < 0 {
		return true // it began meanwhile
	}
	t.leave(who, i)
	return false
}

// give ends a turn of a principal and begins the next one.
func (t *turns) give(who principal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy--
	if t.held[who]--; t.held[who] == 0 {
		delete(t.held, who)
	}
	for _, next := range t.order {
		if t.isFree(next) {
			close(t.waiting[next][0])
			t.begin(next)
			t.leave(next, 0)
			if len(t.waiting[next]) > 0 { // the others come first
				t.order = append(slices.DeleteFunc(t.order, func(p principal) bool { return p == next }), next)
			}
			return
		}
	}
}

func (t *turns) isFree(who principal) bool { return t.busy < t.all && t.held[who] < t.each }

func (t *turns) begin(who principal) {
	t.busy++
	t.held[who]++
}

// leave takes a request out of those that wait.
func (t *turns) leave(who principal, i int) {
	t.waiting[who] = slices.Delete(t.waiting[who], i, i+1)
	if len(t.waiting[who]) == 0 {
		delete(t.waiting, who)
		t.order = slices.DeleteFunc(t.order, func(p principal) bool { return p == who })
	}
}
