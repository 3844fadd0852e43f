// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// maxAside bounds the groups that wait for a pipeline while the reader continues with the others.
// Each keeps one batch in memory, and the chunk or line that it decodes: at most max_line_bytes.
// With more rejected groups, the pipeline itself is down or overloaded, and reading further would
// not help.
const maxAside = 8

// aside lets the reader continue when a pipeline rejects a group's data. Every step of a group runs
// in a goroutine of its own, but only one goroutine at a time owns the reader's state:
//
//   - run starts a step, which owns the state, and waits on yield until the step ends or is set aside.
//   - A step whose delivery is rejected sets itself aside: it yields the state and retries without it.
//     Once its data is accepted, it receives from resume and owns the state again.
//   - The loop of the reader sends on resume when no step runs, and waits on yield again.
type aside struct {
	yield  chan bool // true: the step is set aside
	resume chan struct{}
	n      int // steps set aside
}

func newAside() aside { return aside{yield: make(chan bool), resume: make(chan struct{})} }

// run runs a step and reports whether it was set aside.
func (a *aside) run(step func()) bool {
	go func() {
		step()
		a.yield <- false
	}()
	return <-a.yield
}

// wait releases the state while f runs. The running step calls it.
func (a *aside) wait(f func()) {
	a.n++
	a.yield <- true
	f()
	<-a.resume
	a.n--
}

// resumeReady resumes the steps that are ready to continue, and reports whether there was one.
func (a *aside) resumeReady() (resumed bool) {
	for {
		select {
		case a.resume <- struct{}{}:
			<-a.yield
			resumed = true
		default:
			return resumed
		}
	}
}

// end waits until no step is set aside. The stop of the receiver ends their deliveries.
func (a *aside) end() {
	for a.n > 0 {
		a.resume <- struct{}{}
		<-a.yield
	}
}

// deliver sends the batch. It returns when each pipeline has accepted it or rejected it
// permanently. While a pipeline rejects it temporarily, the group is set aside. It returns false if
// ctx or stop ended the delivery.
func (r *reader) deliver(ctx context.Context, stop <-chan struct{}, f *follower, b *gpuevent.Batch) (ok bool) {
	p := newPendingBatch(b)
	err := r.out.push(ctx, p)
	switch {
	case err == nil:
		return true
	case ctx.Err() != nil || stopped(stop):
		return false
	case r.aside.n == maxAside:
		return r.out.retry(ctx, stop, p, err)
	}
	f.aside = true
	r.buf = nil // the step decodes from it
	r.aside.wait(func() { ok = r.out.retry(ctx, stop, p, err) })
	f.aside = false
	return ok
}
