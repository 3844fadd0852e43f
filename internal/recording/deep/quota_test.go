// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// allowed says, by going through all windows there have been, whether there may be another: what
// the quota says is compared with it.
func allowed(cfg *Config, start, now time.Time, e Engine, length time.Duration, past []Window) Status {
	var used time.Duration
	count, armed := 0, 0
	var last time.Time
	for _, w := range past {
		// The part of the window in the hour that ends with the new one.
		from := w.Start
		if hour := now.Add(length - time.Hour); from.Before(hour) {
			from = hour
		}
		used += max(0, w.End.Sub(from))
		if now.Sub(w.Start) < time.Hour {
			count++
		}
		if slices.ContainsFunc(w.Parts, func(p Part) bool { return p.Armed }) {
			armed++
		}
		last = w.End
	}
	switch {
	case now.Sub(start) < cfg.Blackout:
		return StatusBlackout
	case cfg.Max > 0 && armed >= cfg.Max:
		return StatusMaximum
	case e == SASS && sassUsed(past):
		return StatusSASSUsed
	case !last.IsZero() && now.Sub(last) < cfg.CoolDown:
		return StatusCoolDown
	case count >= cfg.PerHour:
		return StatusPerHour
	case float64(used+length) > cfg.Share*float64(time.Hour)+1:
		return StatusShare
	}
	return StatusCollected
}

// sassUsed says whether one of these windows counted SASS metrics.
func sassUsed(past []Window) bool {
	return slices.ContainsFunc(past, func(w Window) bool {
		return slices.ContainsFunc(w.Parts, func(p Part) bool { return p.Armed && p.Engine == SASS })
	})
}

// TestLimitsHoldOverRandomRequests asks for windows at random times with engines that fail at
// random, over hours of a false clock. Each answer is that of the naive reckoning, and none of the
// windows there were breaks a limit.
func TestLimitsHoldOverRandomRequests(t *testing.T) {
	answers := map[Status]int{}
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				between := func(least, most time.Duration) time.Duration {
					return least + time.Duration(rnd.Int64N(int64(most-least)))
				}
				cfg := Config{
					For: between(MinFor, 5*time.Second), Blackout: between(1, 2*time.Minute), CoolDown: between(1, 2*time.Minute),
					PerHour: 1 + rnd.IntN(60), Share: 0.002 + rnd.Float64()*0.1,
				}
				if rnd.IntN(2) == 0 {
					cfg.Max = 1 + rnd.IntN(100)
				}
				if rnd.IntN(2) == 0 {
					// A schedule that the limits leave room for, or that New refuses.
					cfg.After, cfg.Every = cfg.Blackout+between(1, time.Minute), between(cfg.For+cfg.CoolDown, time.Hour)
				}
				var past []Window
				cfg.Closed = func(w Window) { past = append(past, w) }
				f := &fakeEngines{t: t}
				faults := rand.New(rand.NewPCG(seed, 2)) // of the goroutines that call f, sequentially
				fail := func() error {
					if faults.IntN(4) == 0 {
						return errOdd
					}
					time.Sleep(time.Duration(faults.Int64N(int64(500 * time.Millisecond))))
					return nil
				}
				f.arm = fail
				c, err := New(cfg, f)
				if err != nil {
					cfg.After, cfg.Every = 0, 0
					if c, err = New(cfg, f); err != nil {
						t.Skip(err) // one window is more than the share
					}
				}
				cfg = c.cfg
				start := time.Now()
				c.Start()
				for time.Since(start) < 5*time.Hour {
					time.Sleep(between(1, []time.Duration{5 * time.Second, time.Minute, 10 * time.Minute}[rnd.IntN(3)]))
					synctest.Wait()
					r := Request{Engine: []Engine{PC, SASS, Both}[rnd.IntN(3)], Cause: CauseCall}
					if rnd.IntN(2) == 0 {
						r.For = between(MinFor, 20*time.Second)
					}
					length := r.For
					if length == 0 {
						length = cfg.For
					}
					engine := r.Engine
					if engine == Both && sassUsed(past) {
						engine = PC
					}
					want := allowed(&cfg, start, time.Now(), engine, length, past)
					if open := c.Report().Open; open != nil {
						want = StatusBusy
						if open.Cause == r.Cause && open.Engine == engine {
							want = StatusCollected // it joins
						}
					}
					ticket, err := c.RequestWindow(r)
					got := StatusCollected
					if err != nil {
						got = err.(*Error).Outcome.Status //nolint:errorlint // Ask returns no other
					}
					answers[got]++
					if got != want {
						t.Errorf("after %v a window of %v gets %s, want %s", time.Since(start), length, got, want)
						break
					}
					if ticket != nil && rnd.IntN(2) == 0 {
						if _, err := ticket.Wait(t.Context()); err != nil {
							t.Error(err)
						}
					}
				}
				end(t, c)
				verify(t, &cfg, start, past)
			})
		})
	}
	for _, s := range []Status{StatusCollected, StatusBusy, StatusBlackout, StatusMaximum, StatusCoolDown, StatusPerHour, StatusShare, StatusSASSUsed} {
		if answers[s] == 0 {
			t.Errorf("%s was never the answer, of %v", s, answers)
		}
	}
}

// verify checks windows against the limits.
func verify(t *testing.T, cfg *Config, start time.Time, windows []Window) {
	t.Helper()
	armed := 0
	for i, w := range windows {
		if w.Start.Sub(start) < cfg.Blackout {
			t.Errorf("window %d in the blackout", w.ID)
		}
		if i > 0 && w.Start.Sub(windows[i-1].End) < cfg.CoolDown {
			t.Errorf("window %d in the cool-down", w.ID)
		}
		if slices.ContainsFunc(w.Parts, func(p Part) bool { return p.Armed }) {
			armed++
		}
		if sassUsed(windows[:i]) && slices.ContainsFunc(w.Parts, func(p Part) bool { return p.Engine == SASS }) {
			t.Errorf("window %d has SASS metrics again", w.ID)
		}
		// The hour that ends with the window; what the window took longer than it was to take could
		// not be known when it began.
		end := w.Start.Add(w.For)
		var used time.Duration
		count := 0
		for _, o := range windows[:i] {
			if o.Start.After(w.Start.Add(-time.Hour)) {
				count++
			}
			if o.End.After(end.Add(-time.Hour)) {
				used += min(o.End.Sub(o.Start), o.End.Sub(end.Add(-time.Hour)))
			}
		}
		if count+1 > cfg.PerHour || (used+w.For).Hours() > cfg.Share+1e-9 {
			t.Errorf("window %d is number %d of an hour, in which windows take %v", w.ID, count+1, used+w.For)
		}
	}
	if cfg.Max > 0 && armed > cfg.Max {
		t.Errorf("%d windows", armed)
	}
}

// TestOneWindowOfSASS: the second of a process is refused, and windows of both engines have PC
// sampling alone from then on.
func TestOneWindowOfSASS(t *testing.T) {
	const used = "the process has had its window of sass, since CUPTI cannot be configured twice; ask for pc, or restart the process"
	const collected = "the window was opened and its data collected"
	for _, engine := range []Engine{SASS, Both} {
		t.Run(string(engine), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeEngines{t: t}
				c := begin(t, Config{CoolDown: -1, Share: 1}, f)
				defer end(t, c)
				if w := ask(t, c, Request{Engine: engine}); w.Outcome.Status != StatusCollected {
					t.Fatalf("window %+v", w)
				}
				f.seen()
				_, err := c.RequestWindow(Request{Engine: SASS, Cause: CauseSocket})
				if want := "deep window: " + used; err == nil || err.Error() != want {
					t.Errorf("error %v, want %s", err, want)
				}
				refused(t, c, Request{Engine: SASS}, StatusSASSUsed)
				for _, cause := range []Cause{CauseCall, CauseSocket, CauseSignal, CauseSchedule, CauseRule} {
					text := collected
					if cause == CauseCall || cause == CauseSocket {
						text += "; not with sass: " + used
					}
					if w := ask(t, c, Request{Engine: Both, Cause: cause}); w.Engine != PC || len(w.Parts) != 1 || w.End.Sub(w.Start) != DefaultFor || w.Outcome.Text != text {
						t.Errorf("window %+v", w)
					}
				}
				if calls := f.seen(); slices.Contains(calls, "arm sass") || slices.Contains(calls, "pause") {
					t.Errorf("calls %q", calls)
				}
				if r := c.Report(); r.Refused[StatusSASSUsed] != 2 || r.Windows != 6 || r.Attempts != 0 {
					t.Errorf("report %+v", r)
				}
			})
		})
	}
}
