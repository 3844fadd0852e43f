// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngines is what an implementation of Engines must bear, and complains where it must not: of
// two armed engines, of calls out of turn.
type fakeEngines struct {
	t *testing.T
	// Each may be set to do something else than succeed at once.
	arm, drain, disarm func() error
	// collected is what each window yields.
	collected Collected
	// ready says whether there is something to look into; nil is always.
	ready func() bool

	mu    sync.Mutex
	armed Engine
	calls []string
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

func (f *fakeEngines) armedEngine() Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.armed
}

func do(f func() error) error {
	if f == nil {
		return nil
	}
	return f()
}

func (f *fakeEngines) Ready() bool { return f.ready == nil || f.ready() }

func (f *fakeEngines) Arm(e Engine, window uint64) (Session, error) {
	f.note("arm " + string(e))
	if window == 0 {
		f.t.Error("window 0")
	}
	if err := do(f.arm); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.armed != "" {
		f.t.Errorf("%s armed beside %s", e, f.armed)
	}
	f.armed = e
	return (*fakeSession)(f), nil
}

type fakeSession fakeEngines

func (s *fakeSession) Drain() error {
	f := (*fakeEngines)(s)
	f.note("drain")
	return do(f.drain)
}

func (s *fakeSession) Disarm() (Collected, error) {
	f := (*fakeEngines)(s)
	f.note("disarm")
	if err := do(f.disarm); err != nil {
		return Collected{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = ""
	return f.collected, nil
}

// never is a call that does not come back before it is released.
func never(release <-chan struct{}) func() error {
	return func() error {
		<-release
		return nil
	}
}

func fails(err error) func() error { return func() error { return err } }

func panics() error { panic("a mistake") }

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
