// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"errors"
	"fmt"
	"time"
)

const (
	// patience bounds a call of Engines. It is above the ten seconds that package cupti allows
	// itself: what it gives up in order is not taken for broken here.
	patience = 15 * time.Second
	// grace replaces patience once Stop waits no longer.
	grace = time.Second
	// drainEvery is the time between two calls of Drain.
	drainEvery = 250 * time.Millisecond
)

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
	}
	return o
}

// notWith is what stands behind the sentence of a window that went without an engine.
func notWith(e Engine, why string) string { return fmt.Sprintf("; not with %s: %s", e, why) }

// part arms one engine, holds it for its length and disarms it. It returns why it ended, "" if
// nothing was armed.
func (c *Controller) part(t *Ticket, p *Part, length time.Duration) CloseReason {
	c.mu.Lock()
	why, stopping := c.broken, c.stopping
	c.mu.Unlock()
	switch {
	case why != "":
		p.Outcome = outcome(StatusBroken, why)
		return ""
	case stopping:
		p.Outcome = outcome(StatusAtExit, "")
		return ""
	}
	p.Start, p.Paused = time.Now(), p.Engine == SASS
	defer func() { p.End = time.Now() }()
	u := &use{c: c, ticket: t, engine: p.Engine, length: length}
	done := make(chan result, 1)
	go func() { done <- u.run() }()
	look := time.NewTicker(grace / 4)
	defer look.Stop()
	hurry, hurried := c.hurry, time.Time{}
	for {
		select {
		case r := <-done:
			p.Armed, p.Outcome, p.Collected = r.armed, r.outcome, r.collected
			return r.closed
		case <-hurry:
			hurry, hurried = nil, time.Now()
		case now := <-look.C:
			call, armed := u.late(now, hurried)
			if call == "" {
				continue
			}
			c.giveUp(p.Engine, call, errLate)
			t.Close() // if the call returns, the engine is disarmed
			p.Armed, p.Outcome = armed, outcome(StatusFailed, fmt.Sprintf("%s: %v", call, errLate))
			if !armed {
				return ""
			}
			return ClosedFailure
		}
	}
}

// use is one use of an engine. Its goroutine makes all calls, so that a call that does not return
// blocks nothing else.
type use struct {
	c      *Controller
	ticket *Ticket
	engine Engine
	length time.Duration

	// The following fields are protected by the controller's lock. call is the call in progress.
	call  string
	since time.Time
	armed bool
}

type result struct {
	armed     bool
	closed    CloseReason
	outcome   Outcome
	collected Collected
}

// run is the goroutine.
func (u *use) run() (r result) {
	var session Session
	err := u.do("Arm", func() (err error) {
		session, err = u.c.engines.Arm(u.engine, u.ticket.window.ID)
		if err == nil && session == nil {
			err = errors.New("no session and no error")
		}
		return err
	})
	if err != nil {
		r.outcome = outcomeOf(err)
		return r
	}
	u.c.mu.Lock()
	u.armed, r.armed = true, true
	u.c.mu.Unlock()
	r.closed, err = u.hold(session)
	disarm := u.do("Disarm", func() (err error) {
		r.collected, err = session.Disarm()
		return err
	})
	if disarm != nil {
		err, r.collected = disarm, Collected{}
	}
	r.outcome = outcomeOf(err)
	if err != nil {
		r.closed = ClosedFailure
	}
	return r
}

// hold waits for the end of an armed engine's time.
func (u *use) hold(session Session) (CloseReason, error) {
	over := time.NewTimer(u.length)
	defer over.Stop()
	drain := time.NewTicker(drainEvery)
	defer drain.Stop()
	for {
		select {
		case <-over.C:
			return ClosedTime, nil
		case <-u.ticket.end:
			return ClosedAsked, nil
		case <-u.c.stop:
			return ClosedExit, nil
		case <-drain.C:
			err := u.do("Drain", session.Drain)
			if errors.Is(err, ErrFull) {
				return ClosedLimit, nil
			}
			if err != nil {
				return ClosedFailure, err
			}
		}
	}
}

// do makes one call. After a panic, or a failure to disarm, the engine may still be armed.
func (u *use) do(name string, f func() error) error {
	u.c.mu.Lock()
	u.call, u.since = name, time.Now()
	u.c.mu.Unlock()
	err := guarded(f)
	u.c.mu.Lock()
	u.call = ""
	u.c.mu.Unlock()
	var p *panicError
	if errors.As(err, &p) || err != nil && name == "Disarm" {
		u.c.giveUp(u.engine, name, err)
	}
	return err
}

// late returns the call in progress if its time is over, and whether the engine is armed.
func (u *use) late(now, hurried time.Time) (call string, armed bool) {
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	if now.Sub(u.since) > patience || !hurried.IsZero() && now.Sub(hurried) > grace {
		return u.call, u.armed
	}
	return "", u.armed
}

// giveUp notes that it is not known whether an engine is disarmed. No window opens from then on.
func (c *Controller) giveUp(engine Engine, call string, err error) {
	fields := []any{"engine", engine, "call", call, "error", err}
	var p *panicError
	if errors.As(err, &p) {
		fields = append(fields, "stack", string(p.stack))
	}
	c.cfg.Logger.Error("gpuflight: deep windows are off: an engine failed", fields...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == "" {
		c.broken = fmt.Sprintf("%s of %s: %v", call, engine, err)
	}
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
