// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// maxAside is how many groups may wait for a pipeline while the reader goes on with the others. Each keeps one
// batch in memory, about 16 MiB. Where more are refused, the pipeline does not refuse single sessions but is
// down or overloaded, and reading more would not help it.
const maxAside = 8

// aside lets the reader go on when a pipeline refuses a group's data. Every step of a group runs in a goroutine of
// its own, but only one goroutine at a time owns the reader's state:
//
//   - run starts a step, which owns the state, and waits on yield until the step has ended or is set aside.
//   - A step whose delivery is refused sets itself aside: it yields the state and retries without it. Once its data is
//     accepted, it receives from resume and owns the state again.
//   - The loop of the reader sends on resume when no step runs, and waits on yield again.
type aside struct {
	yield  chan bool // true: the step is set aside
	resume chan struct{}
	n      int // steps set aside
}

func newAside() aside { return aside{yield: make(chan bool), resume: make(chan struct{})} }

// run runs a step until it ends or is set aside, and reports the latter.
func (a *aside) run(step func()) bool {
	go func() {
		step()
		a.yield <- false
	}()
	return <-a.yield
}

// wait gives the state back while f runs. The running step calls it.
func (a *aside) wait(f func()) {
	a.n++
	a.yield <- true
	f()
	<-a.resume
	a.n--
}

// resumeReady resumes the steps that wait to go on, and reports whether there was one.
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

// end waits until no step is set aside. Their deliveries end because the receiver stops.
func (a *aside) end() {
	for a.n > 0 {
		a.resume <- struct{}{}
		<-a.yield
	}
}

// deliver sends what the batch holds and returns when each pipeline has accepted it or refused it permanently.
// While a pipeline refuses it, the group is set aside. It returns false if ctx or stop ended the delivery.
func (r *reader) deliver(ctx context.Context, stop <-chan struct{}, f *follower, b *gpuevent.Batch) (ok bool) {
	p := newParcel(b)
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
