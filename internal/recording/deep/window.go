// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// grace is what a call is given to notice that its time is over.
const grace = time.Second

// errLate says that a call has not returned in time.
var errLate = errors.New("it did not return in time")

// runWindow runs an accepted window from Opened to Closed.
func (c *Controller) runWindow(t *Ticket) {
	c.tell(c.cfg.Opened, t.Window())
	engines := t.window.Engine.parts()
	var parts []Part
	var closed CloseReason
	for _, e := range engines {
		p := Part{Engine: e}
		reason := c.part(t, &p, t.window.For/time.Duration(len(engines)))
		parts = append(parts, p)
		closed = worse(closed, reason)
		c.mu.Lock()
		t.window.Parts = parts[:len(parts):len(parts)]
		t.window.Collected.add(p.Collected)
		c.mu.Unlock()
		if reason == ClosedAsked || reason == ClosedExit {
			break
		}
	}
	armed := false
	for i := range parts {
		armed = armed || parts[i].Armed
	}
	now := time.Now()
	c.mu.Lock()
	w := &t.window
	w.End, w.Closed, w.Outcome = now, closed, summarise(parts)
	if w.Outcome.Status == StatusCollected {
		w.Outcome.Text += t.without
	}
	c.quota.add(w.Start, now, parts)
	c.current = nil
	c.undisturbed = now.Add(settle)
	if armed {
		c.report.Windows++
	} else {
		c.report.Attempts++
	}
	if len(c.recent) == remembered {
		c.recent = append(c.recent[:0], c.recent[1:]...)
	}
	c.recent = append(c.recent, *w)
	c.mu.Unlock()
	c.tell(c.cfg.Closed, t.Window())
	t.finish()
}

// worse returns the reason of the two that says more.
func worse(a, b CloseReason) CloseReason {
	for _, r := range []CloseReason{ClosedFailure, ClosedExit, ClosedAsked, ClosedLimit, ClosedTime} {
		if a == r || b == r {
			return r
		}
	}
	return ""
}

// summarise says what came of a window: collected if one engine did, with what went wrong beside.
func summarise(parts []Part) Outcome {
	o := parts[0].Outcome
	for i := range parts {
		if parts[i].Outcome.Status == StatusCollected {
			o = parts[i].Outcome
		}
	}
	for i := range parts {
		p := &parts[i]
		if o.Status == StatusCollected && p.Outcome.Status != StatusCollected {
			o.Text += notWith(p.Engine, p.Outcome.Text)
		}
		if p.Problem != "" {
			o.Text += "; " + p.Problem
		}
	}
	return o
}

// notWith is what stands behind the sentence of a window that went without an engine.
func notWith(e Engine, why string) string { return fmt.Sprintf("; not with %s: %s", e, why) }

// part arms one engine, holds it for its length and disarms it. It returns why it ended, "" if
// nothing was armed.
func (c *Controller) part(t *Ticket, p *Part, length time.Duration) CloseReason {
	c.mu.Lock()
	why := c.unusable(p.Engine)
	stopping := c.stopping
	c.mu.Unlock()
	switch {
	case why != "":
		p.Outcome = outcome(StatusBroken, why)
		return ""
	case stopping:
		p.Outcome = outcome(StatusAtExit, "")
		return ""
	}
	p.Start = time.Now()
	defer func() { p.End = time.Now() }()
	a := arming{c: c, engine: p.Engine, p: p}
	if err := guarded(func() error {
		a.paused = c.engines.PausesActivity(p.Engine)
		return nil
	}); err != nil {
		a.breakEngine("PausesActivity", err)
		return a.failed("PausesActivity", err)
	}
	if p.Paused = a.paused; p.Paused {
		err := a.call("Pause", c.engines.Pause, func(error) { a.resumeLate() })
		if err != nil {
			a.resume(true)
			return a.failed("Pause", err)
		}
	}
	err := a.call("Arm", func(ctx context.Context) (err error) {
		a.session, err = c.engines.Arm(ctx, p.Engine, Options{Window: t.window.ID, For: length})
		if err == nil && a.session == nil {
			err = errors.New("no session and no error")
		}
		return err
	}, func(err error) {
		switch {
		case err == nil:
			a.disarmLate()
		case !isPanic(err):
			a.resumeLate()
		}
	})
	if err != nil {
		// After a panic nobody knows what is armed.
		a.resume(!errors.Is(err, errLate) && !isPanic(err))
		return a.failed("Arm", err)
	}
	p.Armed = true
	reason, err := a.hold(t, length)
	if errors.Is(err, errLate) {
		// Drain is still at it: Disarm follows when it comes back.
		a.resume(false)
		return a.failed("Drain", err)
	}
	collected := new(Collected)
	disarm := a.call("Disarm", func(ctx context.Context) (err error) {
		*collected, err = a.session.Disarm(ctx)
		return err
	}, func(err error) {
		if err == nil {
			a.resumeLate()
		}
	})
	if disarm == nil {
		p.Collected = *collected
	}
	a.resume(disarm == nil)
	switch {
	case disarm != nil:
		return a.failed("Disarm", disarm)
	case err != nil:
		return a.failed("Drain", err)
	}
	p.Outcome = outcome(StatusCollected, "")
	return reason
}

// hold waits for the end of an armed engine's time. With an error it is not over by itself.
func (a *arming) hold(t *Ticket, length time.Duration) (CloseReason, error) {
	over := time.NewTimer(length)
	defer over.Stop()
	drain := time.NewTimer(a.c.cfg.DrainEvery)
	defer drain.Stop()
	for {
		select {
		case <-over.C:
			return ClosedTime, nil
		case <-t.end:
			return ClosedAsked, nil
		case <-a.c.stop:
			return ClosedExit, nil
		case <-drain.C:
			err := a.call("Drain", a.session.Drain, func(error) { a.disarmLate() })
			if errors.Is(err, ErrFull) {
				return ClosedLimit, nil
			}
			if err != nil {
				return ClosedFailure, err
			}
			drain.Reset(a.c.cfg.DrainEvery)
		}
	}
}

// arming is the use of an engine in one part of a window.
type arming struct {
	c      *Controller
	engine Engine
	paused bool
	// p is not touched by what comes back late.
	p       *Part
	session Session
}

// call runs f on a goroutine of its own, bounded by Patience. If f has not returned by then, call
// returns errLate. Nothing is armed until f has returned and late, which is given its error, has
// determined the state of the engine.
func (a *arming) call(name string, f func(context.Context) error, late func(error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), a.c.cfg.Patience)
	result := make(chan error, 1)
	go func() {
		defer cancel()
		result <- guarded(func() error { return f(ctx) })
	}()
	select {
	case err := <-result:
		return a.known(name, err)
	case <-ctx.Done():
	case <-a.c.hurry:
	}
	cancel()
	more := time.NewTimer(grace)
	defer more.Stop()
	select {
	case err := <-result:
		return a.known(name, err)
	case <-more.C:
	}
	a.breakEngine(name, errLate)
	go func() {
		err := <-result
		a.c.cfg.Logger.Warn("a call of a deep engine came back late", "engine", a.engine, "call", name, "error", err)
		late(err)
	}()
	return errLate
}

// known makes of a panic, and of a failure to disarm, an engine that is broken.
func (a *arming) known(name string, err error) error {
	if isPanic(err) || err != nil && name == "Disarm" {
		a.breakEngine(name, err)
	}
	return err
}

func isPanic(err error) bool {
	var p *panicError
	return errors.As(err, &p)
}

// breakEngine gives an engine up. Where it may still be armed, no other is armed either.
func (a *arming) breakEngine(call string, err error) {
	armed := errors.Is(err, errLate) || call == "Disarm" || call == "Arm"
	why := fmt.Sprintf("%s of %s: %v", call, a.engine, err)
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if a.c.broken[a.engine] == "" {
		a.c.broken[a.engine] = why
	}
	if armed {
		a.c.uncertain++
	}
	fields := []any{"engine", a.engine, "call", call, "error", err}
	var p *panicError
	if errors.As(err, &p) {
		fields = append(fields, "stack", string(p.stack))
	}
	a.c.cfg.Logger.Error("a deep engine is given up", fields...)
}

// failed notes what went wrong in a call and returns why the part ended.
func (a *arming) failed(call string, err error) CloseReason {
	if errors.Is(err, errLate) || isPanic(err) {
		a.p.Outcome = outcome(StatusFailed, fmt.Sprintf("%s: %v", call, err))
	} else {
		a.p.Outcome = outcomeOf(err)
	}
	if !a.p.Armed {
		return ""
	}
	return ClosedFailure
}

// resume turns activity on again if it was paused. disarmed is false if the engine may still be
// armed.
func (a *arming) resume(disarmed bool) {
	if !a.paused {
		return
	}
	err := a.call("Resume", func(ctx context.Context) error { return a.c.engines.Resume(ctx, disarmed) }, func(err error) {
		if err == nil {
			a.settled()
		}
	})
	if err != nil {
		a.p.Problem = "activity was not resumed: " + err.Error()
	}
}

// disarmLate disarms an engine whose Arm or Drain came back late. It runs on that call's goroutine
// and has no bound: nobody waits for it.
func (a *arming) disarmLate() {
	err := guarded(func() error {
		_, err := a.session.Disarm(context.Background())
		return err
	})
	if err != nil {
		a.c.cfg.Logger.Error("a deep engine may still be armed", "engine", a.engine, "error", err)
		return
	}
	a.resumeLate()
}

// resumeLate is disarmLate for activity, and the end of it: the engine is known to be disarmed.
func (a *arming) resumeLate() {
	if a.paused {
		if err := guarded(func() error { return a.c.engines.Resume(context.Background(), true) }); err != nil {
			a.c.cfg.Logger.Error("activity was not resumed after a deep window", "engine", a.engine, "error", err)
		}
	}
	a.settled()
}

// settled takes back that it is uncertain what the engine does.
func (a *arming) settled() {
	a.c.mu.Lock()
	a.c.uncertain--
	a.c.mu.Unlock()
}

// tell calls one of the configuration's functions.
func (c *Controller) tell(f func(Window), w Window) {
	if f == nil {
		return
	}
	if err := guarded(func() error {
		f(w)
		return nil
	}); err != nil {
		c.cfg.Logger.Error("a deep window could not be told of", "window", w.ID, "error", err)
	}
}
