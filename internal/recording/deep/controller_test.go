// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func ask(t *testing.T, c *Controller, r Request) Window {
	t.Helper()
	ticket, err := c.RequestWindow(r)
	if err != nil {
		t.Fatal(err)
	}
	w, err := ticket.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func refused(t *testing.T, c *Controller, r Request, want Status) {
	t.Helper()
	ticket, err := c.RequestWindow(r)
	var e *Error
	if ticket != nil || !errors.As(err, &e) || e.Outcome.Status != want {
		t.Errorf("Ask(%+v) returns %v, %v, want %s", r, ticket, err, want)
	}
}

func TestWindowHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t, collected: Collected{Rows: 3, Samples: 40, Functions: 2, Lost: 1}}
		var told []string
		c := begin(t, Config{
			Opened: func(w Window) { told = append(told, "opened "+string(w.Cause)) },
			Closed: func(w Window) { told = append(told, "closed "+string(w.Closed)) },
		}, f)
		start := time.Now()
		w := ask(t, c, Request{Cause: CauseCall, Why: "a test"})
		end(t, c)
		want := Window{
			ID: 1, Engine: PC, Cause: CauseCall, Why: "a test", For: 2 * time.Second,
			Start: start, End: start.Add(2 * time.Second), Closed: ClosedTime,
			Outcome: outcome(StatusCollected, ""), Collected: f.collected,
			Parts: []Part{{Engine: PC, Start: start, End: start.Add(2 * time.Second), Armed: true, Outcome: outcome(StatusCollected, ""), Collected: f.collected}},
		}
		if diff := cmp.Diff(want, w); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"opened call", "closed time"}, told); diff != "" {
			t.Error(diff)
		}
		drains := 0
		for _, call := range f.calls {
			if call == "drain" {
				drains++
			}
		}
		// One each 250 ms, but perhaps for the one that is due as the window ends.
		if drains < 7 || drains > 8 {
			t.Errorf("%d calls of Drain", drains)
		}
		if calls := f.seen(); !slices.Equal(calls, []string{"arm pc", "disarm"}) {
			t.Errorf("calls %q", calls)
		}
	})
}

func TestBothEnginesShareAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t, collected: Collected{Rows: 3}}
		c := begin(t, Config{}, f)
		w := ask(t, c, Request{Engine: Both, For: 3 * time.Second})
		end(t, c)
		if calls := f.seen(); !slices.Equal(calls, []string{"arm pc", "disarm", "arm sass", "disarm"}) {
			t.Errorf("calls %q", calls)
		}
		if len(w.Parts) != 2 || w.Parts[0].End.Sub(w.Parts[0].Start) != 1500*time.Millisecond || !w.Parts[1].Paused || w.Parts[0].Paused || w.Collected.Rows != 6 || w.Closed != ClosedTime {
			t.Errorf("window %+v", w)
		}
	})
}

func TestWindowClosesEarly(t *testing.T) {
	for _, tc := range []struct {
		name   string
		act    func(*testing.T, *Controller, *Ticket)
		drain  func() error
		closed CloseReason
		status Status
		parts  int
	}{
		{"by the ticket", func(_ *testing.T, _ *Controller, w *Ticket) { w.Close() }, nil, ClosedAsked, StatusCollected, 1},
		{"by the controller", func(_ *testing.T, c *Controller, _ *Ticket) { c.Close() }, nil, ClosedAsked, StatusCollected, 1},
		{"at the end", func(t *testing.T, c *Controller, _ *Ticket) { end(t, c) }, nil, ClosedExit, StatusCollected, 1},
		{"when it is full", nil, fails(ErrFull), ClosedLimit, StatusCollected, 2},
		{"when it fails", nil, fails(errOdd), ClosedFailure, StatusFailed, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngines{t: t, drain: tc.drain}
				c := begin(t, Config{}, f)
				ticket, err := c.RequestWindow(Request{Engine: Both, For: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
				if tc.act != nil {
					tc.act(t, c, ticket)
				}
				w, err := ticket.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				end(t, c)
				if w.Closed != tc.closed || w.Outcome.Status != tc.status || len(w.Parts) != tc.parts || w.End.Sub(w.Start) > time.Second {
					t.Errorf("window %+v", w)
				}
				if armed := f.armedEngine(); armed != "" {
					t.Errorf("%q is armed", armed)
				}
				if r := c.Report(); r.Windows != 1 || r.Attempts != 0 || r.Open != nil || r.Broken != "" {
					t.Errorf("report %+v", r)
				}
			})
		})
	}
}

func TestEnginesThatRefuse(t *testing.T) {
	for _, s := range []Status{StatusAnotherProfiler, StatusNoPermission, StatusUnsupported, StatusNoContext, StatusCapturing, StatusAtExit} {
		t.Run(string(s), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngines{t: t, arm: fails(NewError(s, "by the test"))}
				var told []Window
				c := begin(t, Config{Max: 1, Closed: func(w Window) { told = append(told, w) }}, f)
				for range 2 { // what did not run does not count for Max
					w := ask(t, c, Request{Engine: SASS})
					if w.Outcome != outcome(s, "by the test") || w.Closed != "" || len(w.Parts) != 1 || w.Parts[0].Armed || w.Outcome.Err() == nil {
						t.Errorf("window %+v", w)
					}
					if !strings.Contains(w.Outcome.Text, sentences[s]) {
						t.Errorf("text %q", w.Outcome.Text)
					}
					// An attempt is followed by the cool-down, too.
					refused(t, c, Request{}, StatusCoolDown)
					time.Sleep(DefaultCoolDown)
				}
				end(t, c)
				if calls := f.seen(); !slices.Equal(calls, []string{"arm sass", "arm sass"}) {
					t.Errorf("calls %q", calls)
				}
				if r := c.Report(); r.Windows != 0 || r.Attempts != 2 || len(told) != 2 || r.Refused[StatusCoolDown] != 2 {
					t.Errorf("report %+v", r)
				}
			})
		})
	}
}

func TestOneEngineOfBothFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t, collected: Collected{Rows: 1}}
		first := true
		f.arm = func() error {
			if first {
				first = false
				return NewError(StatusUnsupported, "")
			}
			return nil
		}
		c := begin(t, Config{}, f)
		w := ask(t, c, Request{Engine: Both})
		end(t, c)
		if w.Outcome.Status != StatusCollected || !strings.HasSuffix(w.Outcome.Text, "; not with pc: "+sentences[StatusUnsupported]) || w.Closed != ClosedTime || w.Collected.Rows != 1 {
			t.Errorf("window %+v", w)
		}
	})
}

// TestFaults has every way in which a call can fail. Where an engine may stay armed, no window opens
// any more.
func TestFaults(t *testing.T) {
	for _, fault := range []struct {
		name string
		set  func(f *fakeEngines, how func() error)
		then Status // of a request after an error
	}{
		{"Arm", func(f *fakeEngines, how func() error) { f.arm = how }, StatusCollected},
		{"Drain", func(f *fakeEngines, how func() error) { f.drain = how }, StatusCollected},
		{"Disarm", func(f *fakeEngines, how func() error) { f.disarm = how }, StatusBroken},
	} {
		check := func(t *testing.T, c *Controller, want Status) {
			t.Helper()
			time.Sleep(DefaultCoolDown)
			if want == StatusBroken {
				refused(t, c, Request{Engine: PC}, want)
			} else if w := ask(t, c, Request{Engine: PC}); w.Outcome.Status != want {
				t.Errorf("then %+v", w)
			}
		}
		// once does it the first time and succeeds from then on.
		once := func(how func() error) func() error {
			first := true
			return func() error {
				if !first {
					return nil
				}
				first = false
				return how()
			}
		}
		t.Run(fault.name+" returns an error", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngines{t: t}
				fault.set(f, once(fails(errOdd)))
				c := begin(t, Config{}, f)
				w := ask(t, c, Request{Engine: SASS})
				if w.Outcome.Status != StatusFailed || !strings.Contains(w.Outcome.Text, "odd") || !w.Parts[0].Paused {
					t.Errorf("window %+v", w)
				}
				check(t, c, fault.then)
				end(t, c)
			})
		})
		t.Run(fault.name+" panics", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngines{t: t}
				fault.set(f, once(panics))
				c := begin(t, Config{}, f)
				w := ask(t, c, Request{Engine: SASS})
				if w.Outcome.Status != StatusFailed || !strings.Contains(w.Outcome.Text, "panic: a mistake") {
					t.Errorf("window %+v", w)
				}
				check(t, c, StatusBroken)
				if r := c.Report(); r.Broken != fault.name+" of sass: panic: a mistake" {
					t.Errorf("report %+v", r)
				}
				end(t, c)
			})
		})
		t.Run(fault.name+" comes back too late", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				f := &fakeEngines{t: t}
				fault.set(f, once(never(release)))
				c := begin(t, Config{}, f)
				start := time.Now()
				w := ask(t, c, Request{Engine: SASS})
				if took := time.Since(start); took > DefaultFor+patience+grace {
					t.Errorf("the window took %v", took)
				}
				if w.Outcome.Status != StatusFailed || !strings.Contains(w.Outcome.Text, errLate.Error()) || w.Parts[0].Armed != (fault.name != "Arm") {
					t.Errorf("window %+v", w)
				}
				check(t, c, StatusBroken)
				close(release)
				synctest.Wait()
				if armed := f.armedEngine(); armed != "" {
					t.Errorf("%q is armed", armed)
				}
				check(t, c, StatusBroken)
				end(t, c)
			})
		})
	}
}

func TestStopDoesNotWaitForAnEngineThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := &fakeEngines{t: t, disarm: never(release)}
		c := begin(t, Config{}, f)
		if _, err := c.RequestWindow(Request{Engine: SASS, For: time.Minute}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if err := c.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("Stop returns %v after %v", err, time.Since(start))
		}
		refused(t, c, Request{}, StatusAtExit)
		end(t, c) // though Disarm still hangs
		if r := c.Report(); len(r.Recent) != 1 || r.Recent[0].Outcome.Status != StatusFailed {
			t.Errorf("report %+v", r)
		}
		close(release)
	})
}

func TestStopBeforeStart(t *testing.T) {
	c, err := New(Config{}, &fakeEngines{t: t})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, c, Request{}, StatusBlackout)
	end(t, c)
	end(t, c)
	c.Start()
	refused(t, c, Request{}, StatusAtExit)
}

func TestOverlappingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t}
		c := begin(t, Config{}, f)
		first, err := c.RequestWindow(Request{Cause: CauseSocket})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		second, err := c.RequestWindow(Request{Cause: CauseSocket, For: time.Minute})
		if err != nil || second != first {
			t.Errorf("a request of the same cause gets %v, %v", second, err)
		}
		refused(t, c, Request{Cause: CauseCall}, StatusBusy)
		refused(t, c, Request{Cause: CauseSocket, Engine: SASS}, StatusBusy)
		if r := c.Report(); r.Open == nil || r.Open.ID != 1 || r.Joined != 1 || r.Refused[StatusBusy] != 2 {
			t.Errorf("report %+v", r)
		}
		w, err := second.Wait(t.Context())
		if err != nil || w.End.Sub(w.Start) != DefaultFor {
			t.Errorf("window %+v, %v", w, err)
		}
		if c.Close() {
			t.Error("there was nothing to close")
		}
		end(t, c)
	})
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := begin(t, Config{}, &fakeEngines{t: t})
		defer end(t, c)
		for _, r := range []Request{{Engine: "nvtx"}, {For: -1}, {For: MaxFor + 1}, {For: MinFor - 1}} {
			refused(t, c, r, StatusBadRequest)
		}
		if n := c.Report().Refused[StatusBadRequest]; n != 4 {
			t.Errorf("%d refusals counted", n)
		}
	})
}

func TestCallbacksMayPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t}
		c := begin(t, Config{Opened: func(Window) { panic("opened") }, Closed: func(Window) { panic("closed") }}, f)
		if w := ask(t, c, Request{}); w.Outcome.Status != StatusCollected {
			t.Errorf("window %+v", w)
		}
		end(t, c)
	})
}

func TestSchedule(t *testing.T) {
	for _, tc := range []struct {
		name   string
		cfg    Config
		starts []time.Duration // within ten minutes
	}{
		{"once", Config{After: 30 * time.Second}, []time.Duration{30 * time.Second}},
		{"once, sooner than the default blackout", Config{After: time.Second}, []time.Duration{time.Second}},
		{"again and again", Config{After: 30 * time.Second, Every: 4 * time.Minute}, []time.Duration{30 * time.Second, 270 * time.Second, 510 * time.Second}},
		{"again and again, from the first", Config{Every: 5 * time.Minute}, []time.Duration{5 * time.Minute}},
		{"up to a maximum", Config{Every: time.Minute, Max: 2}, []time.Duration{time.Minute, 2 * time.Minute}},
		{"more than the default share", Config{Every: 2 * time.Minute, For: time.Minute}, []time.Duration{2 * time.Minute, 4 * time.Minute, 6 * time.Minute, 8 * time.Minute}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var starts []time.Duration
				tc.cfg.Opened = func(w Window) {
					starts = append(starts, w.Start.Sub(start))
					if w.Cause != CauseSchedule {
						t.Errorf("cause %s", w.Cause)
					}
				}
				c, err := New(tc.cfg, &fakeEngines{t: t})
				if err != nil {
					t.Fatal(err)
				}
				c.Start()
				time.Sleep(10*time.Minute - time.Second)
				end(t, c)
				if diff := cmp.Diff(tc.starts, starts); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestScheduleWaitsForAContext has programs that use the device only after the schedule's first
// time: on a cold machine that takes seconds.
func TestScheduleWaitsForAContext(t *testing.T) {
	for _, tc := range []struct {
		name    string
		cfg     Config
		from    time.Duration // when there is a context
		starts  []time.Duration
		skipped uint64
	}{
		{"soon", Config{After: time.Second}, 0, []time.Duration{time.Second}, 0},
		{"late", Config{After: time.Second}, 10100 * time.Millisecond, []time.Duration{10250 * time.Millisecond}, 0},
		{"never", Config{After: time.Second, Every: time.Minute}, time.Hour, nil, 0},
		// On the grid of the first again; what passed is skipped, and not caught up with.
		{"late for three times", Config{After: time.Second, Every: 30 * time.Second}, 70 * time.Second,
			[]time.Duration{70 * time.Second, 91 * time.Second, 121 * time.Second}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var starts []time.Duration
				tc.cfg.Opened = func(w Window) { starts = append(starts, w.Start.Sub(start)) }
				asked := 0
				f := &fakeEngines{t: t, ready: func() bool {
					asked++
					return time.Since(start) >= tc.from
				}}
				c, err := New(tc.cfg, f)
				if err != nil {
					t.Fatal(err)
				}
				c.Start()
				time.Sleep(2 * time.Second)
				if r := c.Report(); r.Waits != (tc.from > 2*time.Second) {
					t.Errorf("report %+v", r)
				}
				time.Sleep(122 * time.Second)
				end(t, c)
				if diff := cmp.Diff(tc.starts, starts); diff != "" {
					t.Error(diff)
				}
				r := c.Report()
				if r.Windows != uint64(len(tc.starts)) || r.Attempts != 0 || len(r.Refused) != 0 || r.Skipped != tc.skipped {
					t.Errorf("report %+v", r)
				}
				if asked > 124*4 {
					t.Errorf("asked %d times in 124 s", asked)
				}
			})
		})
	}
}

// TestScheduleBearsEnginesThatPanic has no answer to whether there is a context: the window says
// what comes of it.
func TestScheduleBearsEnginesThatPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{After: time.Second}, &fakeEngines{t: t, ready: func() bool { panic("a mistake") }})
		if err != nil {
			t.Fatal(err)
		}
		c.Start()
		time.Sleep(10 * time.Second)
		end(t, c)
		if r := c.Report(); r.Windows != 1 || r.Waits {
			t.Errorf("report %+v", r)
		}
	})
}

// TestFrequentScheduleIsKept runs windows so often that every default limit has to give way.
func TestFrequentScheduleIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t, disarm: func() error {
			time.Sleep(100 * time.Millisecond)
			return nil
		}}
		c, err := New(Config{After: time.Second, Every: 3 * time.Second, For: time.Second, Engine: Both}, f)
		if err != nil {
			t.Fatal(err)
		}
		c.Start()
		time.Sleep(70*time.Minute - time.Millisecond)
		end(t, c)
		if r := c.Report(); r.Windows != 1400 || len(r.Refused) != 0 || r.Skipped != 0 {
			t.Errorf("%d windows, refused %v, skipped %d", r.Windows, r.Refused, r.Skipped)
		}
	})
}

func TestScheduleSkipsWhatPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t, disarm: func() error {
			time.Sleep(7 * time.Second)
			return nil
		}}
		c, err := New(Config{Every: 4 * time.Second, For: time.Second, CoolDown: -1, Share: 1}, f)
		if err != nil {
			t.Fatal(err)
		}
		c.Start()
		// Windows begin at 4, 12, 20, 28 and 36 s and take 8; each next time on the grid passes
		// meanwhile.
		time.Sleep(39 * time.Second)
		end(t, c)
		r := c.Report()
		if r.Windows != 5 || r.Skipped != 4 || len(r.Refused) != 0 {
			t.Errorf("%d windows, skipped %d, refused %v", r.Windows, r.Skipped, r.Refused)
		}
	})
}
