// SPDX-License-Identifier: Apache-2.0

package gpustorageexporter

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/gpuflight/gpuflight/internal/store"
)

const (
	// commitCost is the CPU time of a transaction without its rows. The rows of each session are a
	// transaction. BenchmarkStore's machine needs 7 ms; see internal/store/duckstore, which commits the
	// rows of more than 12 sessions together.
	commitCost = 8 * time.Millisecond
	// commitShare is the inverse of the part of a core that commits may use.
	commitShare = 10
	// maxInterval bounds the time between two commits.
	maxInterval = time.Second
	// commitReserve is the time that a commit may need before the deadline of a sender.
	commitReserve = 1500 * time.Millisecond
	// A commit does not wait after sessionRows rows for each session, or commitRows rows.
	sessionRows = 20_000
	commitRows  = 200_000
	// maxRows bounds the rows that are decoded, wait or are written. Further deliveries block.
	maxRows = 2 * commitRows
)

var errClosed = errors.New("the exporter is shut down")

// request is a delivery that waits for its commit.
type request struct {
	batches  []*store.Batch
	rows     int
	deadline time.Time // zero for none
	done     chan error
	taken    bool
}

type sessionKey struct{ project, session string }

// batcher commits the rows of concurrent deliveries together. After a commit of n sessions, the next
// one starts n*commitCost*commitShare later. It starts earlier for many rows or the deadline of a
// sender. It is safe for concurrent use.
type batcher struct {
	writer store.Writer
	space  *semaphore.Weighted
	wake   chan struct{}
	done   sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	pending  []*request
	rows     int
	sessions map[sessionKey]struct{}
	deadline time.Time // of the pending requests, zero for none
}

func newBatcher(w store.Writer) *batcher {
	b := &batcher{writer: w, space: semaphore.NewWeighted(maxRows), wake: make(chan struct{}, 1), sessions: map[sessionKey]struct{}{}}
	b.done.Go(b.run)
	return b
}

// close commits what waits and rejects later deliveries.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.signal()
	b.done.Wait()
}

func (b *batcher) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// waiting returns the deliveries that wait for a commit, and their rows.
func (b *batcher) waiting() (requests, rows int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending), b.rows
}

// reserve waits until there is room for some rows. The caller calls release when they are written.
func (b *batcher) reserve(ctx context.Context, rows int) (release func(), err error) {
	weight := int64(min(rows, maxRows))
	if err := b.space.Acquire(ctx, weight); err != nil {
		return nil, err
	}
	return func() { b.space.Release(weight) }, nil
}

// write returns after the batches are durable. If ctx ends before their commit starts, they are not
// written.
func (b *batcher) write(ctx context.Context, batches []*store.Batch) error {
	r := &request{batches: batches, done: make(chan error, 1)}
	for _, x := range batches {
		r.rows += x.Rows()
	}
	if r.rows == 0 {
		return nil
	}
	r.deadline, _ = ctx.Deadline()
	if err := b.add(r); err != nil {
		return err
	}
	b.signal()
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
	}
	if b.remove(r) {
		return ctx.Err()
	}
	return <-r.done // The store uses the batches until the commit ends.
}

func (b *batcher) add(r *request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errClosed
	}
	b.pending = append(b.pending, r)
	b.rows += r.rows
	for _, x := range r.batches {
		b.sessions[sessionKey{x.Project, x.Session}] = struct{}{}
	}
	if !r.deadline.IsZero() && (b.deadline.IsZero() || r.deadline.Before(b.deadline)) {
		b.deadline = r.deadline
	}
	return nil
}

// remove removes a request whose commit has not started, and reports whether it did.
func (b *batcher) remove(r *request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.taken {
		return false
	}
	for i := range b.pending {
		if b.pending[i] == r {
			b.pending = append(b.pending[:i], b.pending[i+1:]...)
			b.rows -= r.rows
			return true
		}
	}
	return false
}

// run commits until close.
func (b *batcher) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var next time.Time // when the budget allows a commit
	for {
		wait, closed := b.due(next, time.Now())
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-b.wake:
			}
			continue
		}
		requests, sessions := b.take()
		if len(requests) > 0 {
			next = time.Now().Add(min(time.Duration(sessions)*commitCost*commitShare, maxInterval))
			b.commit(requests)
		} else if closed {
			return
		}
	}
}

// due returns how long the next commit waits.
func (b *batcher) due(next, now time.Time) (wait time.Duration, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, true
	case len(b.pending) == 0:
		return time.Hour, false
	case b.rows >= min(sessionRows*len(b.sessions), commitRows):
		return 0, false
	}
	if limit := b.deadline.Add(-commitReserve); !b.deadline.IsZero() && limit.Before(next) {
		next = limit
	}
	return next.Sub(now), false
}

func (b *batcher) take() (requests []*request, sessions int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	requests, sessions = b.pending, len(b.sessions)
	for _, r := range requests {
		r.taken = true
	}
	b.pending, b.rows, b.deadline = nil, 0, time.Time{}
	clear(b.sessions)
	return requests, sessions
}

// commit writes the requests. If the store cannot hold some of the rows, it writes each request
// alone, so that only the requests with these rows fail.
func (b *batcher) commit(requests []*request) {
	var all []*store.Batch
	for _, r := range requests {
		all = append(all, r.batches...)
	}
	_, err := b.writer.Write(context.Background(), all)
	if err == nil || errors.Is(err, store.ErrRetry) || len(requests) == 1 {
		for _, r := range requests {
			r.done <- err
		}
		return
	}
	for _, r := range requests {
		_, err := b.writer.Write(context.Background(), r.batches)
		r.done <- err
	}
}
