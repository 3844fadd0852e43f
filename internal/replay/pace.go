// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"time"
)

// Pacer spaces requests so that on average no more than a number of items a second is sent. A request
// goes out whole, and the next one waits for as long as its items take at that rate. It belongs to one
// goroutine.
type Pacer struct {
	perSecond float64
	next      time.Time

	now  func() time.Time
	wait func(context.Context, time.Duration) error
}

// NewPacer returns a Pacer for a number of items a second, which is above 0.
func NewPacer(perSecond float64) *Pacer {
	return &Pacer{perSecond: perSecond, now: time.Now, wait: wait}
}

// Pace waits until the next request may go out, which has a number of items. Time in which nothing was
// sent is not made up for. The error is the context's.
func (p *Pacer) Pace(ctx context.Context, items int) error {
	now := p.now()
	if ahead := p.next.Sub(now); ahead > 0 {
		if err := p.wait(ctx, ahead); err != nil {
			return err
		}
		now = p.next
	}
	p.next = now.Add(time.Duration(float64(items) / p.perSecond * float64(time.Second)))
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
