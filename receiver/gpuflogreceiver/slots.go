// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"slices"
	"sync"
	"time"
)

// fairSlots is a fair semaphore: it bounds the concurrent work of each principal and of all. Waiting
// principals are served in turn, independent of how many requests each has. It is safe for
// concurrent use.
type fairSlots struct {
	each, all int

	mu   sync.Mutex
	held map[principal]int
	busy int
	// waiting are the requests of a principal in order. order are the waiting principals, the next
	// one first.
	waiting map[principal][]chan struct{}
	order   []principal
}

// newFairSlots returns slots of which one principal may use n, and all together a quarter more.
func newFairSlots(n int) *fairSlots {
	return &fairSlots{each: n, all: n + max(n/4, 1), held: map[principal]int{}, waiting: map[principal][]chan struct{}{}}
}

// acquire waits for a slot until the context ends or the time has passed, and reports whether it
// got one. release frees it.
func (t *fairSlots) acquire(ctx context.Context, who principal, wait time.Duration) bool {
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
		return true // acquired meanwhile
	}
	t.leave(who, i)
	return false
}

// release frees a slot of a principal and passes it to the next one.
func (t *fairSlots) release(who principal) {
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
			if len(t.waiting[next]) > 0 { // to the end of the order
				t.order = append(slices.DeleteFunc(t.order, func(p principal) bool { return p == next }), next)
			}
			return
		}
	}
}

func (t *fairSlots) isFree(who principal) bool { return t.busy < t.all && t.held[who] < t.each }

func (t *fairSlots) begin(who principal) {
	t.busy++
	t.held[who]++
}

// leave removes a waiting request.
func (t *fairSlots) leave(who principal, i int) {
	t.waiting[who] = slices.Delete(t.waiting[who], i, i+1)
	if len(t.waiting[who]) == 0 {
		delete(t.waiting, who)
		t.order = slices.DeleteFunc(t.order, func(p principal) bool { return p == who })
	}
}
