// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngines is what an implementation of Engines must bear, and complains where it must not: of
// two armed engines, of activity beside SASS, of calls out of turn.
type fakeEngines struct {
	t *testing.T
	// Each may be set to do something else than succeed at once.
	pause, arm, drain, disarm, resume func(context.Context) error
	// collected is what each window yields; Patched is of SASS alone.
	collected Collected
	// ready says whether there is something to look into; nil is always.
	ready func() bool
	// pauses says which engines demand it; nil is SASS alone.
	pauses func(Engine) bool

	mu      sync.Mutex
	armed   Engine
	paused  bool
	calls   []string
	resumes []bool
}

func (f *fakeEngines) note(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

// seen returns the calls but for Drain, and forgets them.
func (f *fakeEngines) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var calls []string
	for _, c := range f.calls {
		if c != "drain" {
			calls = append(calls, c)
		}
	}
	f.calls = nil
	return calls
}

func (f *fakeEngines) state() (armed Engine, paused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.armed, f.paused
}

func do(f func(context.Context) error, ctx context.Context) error { //nolint:revive // the context goes to f
	if f == nil {
		return nil
	}
	return f(ctx)
}

func (f *fakeEngines) Ready() bool { return f.ready == nil || f.ready() }

func (f *fakeEngines) PausesActivity(e Engine) bool {
	if f.pauses != nil {
		return f.pauses(e)
	}
	return e == SASS
}

func (f *fakeEngines) Pause(ctx context.Context) error {
	f.note("pause")
	f.mu.Lock()
	if f.armed != "" || f.paused {
		f.t.Errorf("Pause while %q is armed, paused %t", f.armed, f.paused)
	}
	f.paused = true
	f.mu.Unlock()
	return do(f.pause, ctx)
}

func (f *fakeEngines) Resume(ctx context.Context, disarmed bool) error {
	f.note("resume")
	f.mu.Lock()
	f.resumes = append(f.resumes, disarmed)
	if disarmed && f.armed != "" {
		f.t.Errorf("Resume says that %s is disarmed", f.armed)
	}
	f.mu.Unlock()
	if err := do(f.resume, ctx); err != nil {
		return err
	}
	f.mu.Lock()
	f.paused = false
	f.mu.Unlock()
	return nil
}

func (f *fakeEngines) Arm(ctx context.Context, e Engine, o Options) (Session, error) {
	f.note("arm " + string(e))
	if o.For <= 0 || o.Window == 0 {
		f.t.Errorf("options %+v", o)
	}
	if _, ok := ctx.Deadline(); !ok {
		f.t.Error("Arm has no deadline")
	}
	if err := do(f.arm, ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.armed != "" {
		f.t.Errorf("%s armed beside %s", e, f.armed)
	}
	// After Resume was told that the engine may be armed, it may be.
	if f.PausesActivity(e) && !f.paused && !slices.Contains(f.resumes, false) {
		f.t.Errorf("%s armed beside activity", e)
	}
	f.armed = e
	return (*fakeSession)(f), nil
}

type fakeSession fakeEngines

func (s *fakeSession) Drain(ctx context.Context) error {
	f := (*fakeEngines)(s)
	f.note("drain")
	return do(f.drain, ctx)
}

func (s *fakeSession) Disarm(ctx context.Context) (Collected, error) {
	f := (*fakeEngines)(s)
	f.note("disarm")
	if err := do(f.disarm, ctx); err != nil {
		return Collected{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.collected
	f.armed = ""
	return c, nil
}

// never is a call that does not come back before it is released, whatever its context says.
func never(release <-chan struct{}) func(context.Context) error {
	return func(context.Context) error {
		<-release
		return nil
	}
}

func fails(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func panics(context.Context) error { panic("a mistake") }

var errOdd = errors.New("odd")

// begin starts a controller and moves past its blackout.
func begin(t *testing.T, cfg Config, f *fakeEngines) *Controller {
	t.Helper()
	c, err := New(cfg, f)
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	time.Sleep(max(0, c.cfg.Blackout)) // of a false clock
	return c
}

func end(t *testing.T, c *Controller) {
	t.Helper()
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
