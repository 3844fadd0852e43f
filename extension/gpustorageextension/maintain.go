// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/store"
)

const (
	maintenanceInterval = 15 * time.Second
	// A session is sealed after this time without data. After its end, late data are unlikely.
	sealAfter    = 5 * time.Minute
	sealAfterEnd = 30 * time.Second
)

// session identifies a session of a store.
type session struct{ project, id string }

// activity has the time of the last data of each session that is not sealed, and its operations. It is
// safe for concurrent use.
type activity struct {
	now func() time.Time
	mu  sync.Mutex
	at  map[session]time.Time
	ops map[session]written
}

// written is the operations that arrived, and those of them that have been analysed.
type written struct{ all, analysed int64 }

func newActivity() *activity {
	return &activity{now: time.Now, at: map[session]time.Time{}, ops: map[session]written{}}
}

func (a *activity) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at)
}

// touch notes data of a session. Data without a session is not sealed.
func (a *activity) touch(s session, ops int) {
	if s.id == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at[s] = a.now()
	if ops > 0 {
		w := a.ops[s]
		w.all += int64(ops)
		a.ops[s] = w
	}
}

// grown returns the sessions with at least n operations that are not analysed, and at least their share
// of all, with the number of operations.
func (a *activity) grown(n, share int64) map[session]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := map[session]int64{}
	for s, w := range a.ops {
		if fresh := w.all - w.analysed; fresh >= n && fresh >= w.all/share {
			found[s] = w.all
		}
	}
	return found
}

// analysed notes that the operations up to a number have been analysed.
func (a *activity) analysed(s session, ops int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w, ok := a.ops[s]; ok {
		w.analysed = ops
		a.ops[s] = w
	}
}

// count returns the number of operations of a session.
func (a *activity) count(s session) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ops[s].all
}

func (a *activity) remove(s session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.at, s)
	delete(a.ops, s)
}

// removeIdle removes a session unless it got data after the time since.
func (a *activity) removeIdle(s session, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at[s].Equal(since) {
		delete(a.at, s)
		delete(a.ops, s)
	}
}

// idle returns the sessions without data for the time d, with the time of their last data.
func (a *activity) idle(d time.Duration) map[session]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := map[session]time.Time{}
	for s, at := range a.at {
		if a.now().Sub(at) >= d {
			found[s] = at
		}
	}
	return found
}

// waiting is a kept value of a session from before it is sealed until it has been analysed to its end.
const waiting = "waiting"

// keepWaiting sets or, if value is nil, removes the value waiting. A store that keeps no values lacks it.
func (b *backend) keepWaiting(ctx context.Context, s session, value []byte) error {
	if k, ok := b.Store.(store.Scanner); ok {
		return k.Keep(ctx, s.project, s.id, waiting, value)
	}
	return nil
}

// findUnfinished notes the sessions that an earlier process did not seal, or did not analyse to their ends.
func (b *backend) findUnfinished(ctx context.Context) error {
	list, err := b.unfinished(ctx)
	if err != nil {
		return fmt.Errorf("find sessions to seal: %w", err)
	}
	for i := range list {
		b.active.touch(session{list[i].Project, list[i].ID}, int(list[i].Counts["ops"]))
	}
	return nil
}

// maintain seals sessions, applies retention and warns of rejected rows until ctx ends.
func (b *backend) maintain(ctx context.Context, tick *time.Ticker) {
	defer tick.Stop()
	for {
		b.seal(ctx)
		b.retain(ctx)
		b.warnRejected()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// seal compacts sessions that ended or get no data.
func (b *backend) seal(ctx context.Context) {
	for s, last := range b.active.idle(sealAfterEnd) {
		info, err := b.Store.Session(ctx, s.project, s.id)
		if err == nil && !info.Ended && b.active.now().Sub(last) < sealAfter {
			continue
		}
		if err == nil && !info.Sealed {
			if err = b.keepWaiting(ctx, s, []byte{1}); err == nil {
				err = b.Store.Seal(ctx, s.project, s.id)
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, store.ErrNotFound):
			// Deleted, or none of its rows could be stored.
		case err != nil:
			b.logger.Warn("cannot seal a session", zap.String("project", s.project), zap.String("session", s.id), zap.Error(err))
			continue
		default:
			if ops := b.active.count(s); ops > 0 {
				select {
				case b.ended <- ended{s, ops}:
				default:
					continue // the analysis is behind: the next call tries again
				}
			}
			b.telemetry.ExtensionGpuStorageSealed.Add(ctx, 1, b.attributes())
		}
		b.active.removeIdle(s, last)
	}
}

// retain applies the limits of retention. Sessions that it cannot delete count for max_size too: the limit is
// that of a disk. Once they alone exceed it, retain warns.
func (b *backend) retain(ctx context.Context) {
	if b.limits == (store.Retention{}) {
		return
	}
	deleted, err := b.Store.Retain(ctx, b.limits)
	for _, d := range deleted {
		b.deleted(ctx, d)
	}
	if err != nil && ctx.Err() == nil {
		b.logger.Warn("cannot apply retention", zap.Error(err))
	}
	if b.limits.MaxSize == 0 || b.usage == nil {
		return
	}
	size := b.usage().bytes
	if above := size > b.limits.MaxSize; b.above.Swap(above) != above && above {
		b.logger.Warn("store above max_size: only live, pinned and baseline sessions remain, which are not deleted",
			zap.Int64("bytes", size), zap.Int64("max_size", b.limits.MaxSize))
	}
}
