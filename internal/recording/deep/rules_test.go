// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
)

func rules(t *testing.T, text string) []rule.Rule {
	t.Helper()
	r, err := ParseRules(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRuleOpensAWindow has a process that launches less and less, with a SASS window in which no
// kernel is recorded: it must not make the rule fire.
func TestRuleOpensAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t}
		var windows []Window
		c := begin(t, Config{When: rules(t, "kernel.rate < 100/s for 2s"), Closed: func(w Window) { windows = append(windows, w) }}, f)
		kernels := c.Figures().Kernel("gemm", "")
		run := func(d time.Duration, perTick int) {
			for range d / (200 * time.Millisecond) {
				if f.armedEngine() != SASS {
					for range perTick {
						kernels.Observe(1)
					}
				}
				c.Tick(time.Now())
				time.Sleep(200 * time.Millisecond)
			}
			synctest.Wait()
		}
		// A window for another reason: its silence is no reason for one more.
		run(5*time.Second, 50)
		if w, err := c.RequestWindow(Request{Engine: SASS, Cause: CauseCall, For: 10 * time.Second}); err != nil {
			t.Fatal(w, err)
		}
		run(14*time.Second, 50)
		if len(windows) != 1 {
			t.Fatalf("%d windows", len(windows))
		}
		// The rule is met in the cool-down; its window opens when that is over.
		run(4*time.Second, 10)
		if r := c.Report(); r.Refused[StatusCoolDown] != 1 || r.Windows != 1 || len(r.Rules) != 1 || !r.Rules[0].Met || r.Rules[0].Fired {
			t.Errorf("report %+v", r)
		}
		run(20*time.Second, 10)
		if len(windows) != 2 {
			t.Fatalf("%d windows", len(windows))
		}
		if w := windows[1]; w.Cause != CauseRule || w.Why != "kernel.rate < 100/s for 2s: 50/s" || w.Firing == nil || w.Firing.Value != 50 || w.Firing.Threshold != 100 || w.Firing.Rule.Metric() != "kernel.rate" || w.Engine != PC || w.Start.Sub(windows[0].End) < DefaultCoolDown || w.Start.Sub(windows[0].End) > DefaultCoolDown+400*time.Millisecond {
			t.Errorf("window %+v", w)
		}
		// It holds on, and is not met again before it did not.
		run(time.Minute, 10)
		run(5*time.Second, 50)
		if len(windows) != 2 {
			t.Errorf("%d windows", len(windows))
		}
		run(10*time.Second, 10)
		if len(windows) != 3 {
			t.Errorf("%d windows", len(windows))
		}
		if r := c.Report(); r.Refused[StatusCoolDown] != 1 || len(r.Refused) != 1 {
			t.Errorf("refused %v", r.Refused)
		}
		end(t, c)
	})
}

// TestRuleHasItsLimits takes one rule through blackout, hysteresis, cool-down and maximum.
func TestRuleHasItsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var windows []Window
		c, err := New(Config{
			Blackout: 30 * time.Second, CoolDown: 20 * time.Second, Max: 2, For: time.Second, Share: 1,
			When: rules(t, "kernel.rate > 500/s"), Closed: func(w Window) { windows = append(windows, w) },
		}, &fakeEngines{t: t})
		if err != nil {
			t.Fatal(err)
		}
		c.Start()
		kernels := c.Figures().Kernel("gemm", "")
		run := func(d time.Duration, rate int) {
			for range d / (200 * time.Millisecond) {
				for range rate / 5 {
					kernels.Observe(1)
				}
				c.Tick(time.Now())
				time.Sleep(200 * time.Millisecond)
			}
			synctest.Wait()
		}
		want := func(n int, refused map[Status]uint64, what string) {
			t.Helper()
			if r := c.Report(); len(windows) != n || len(r.Refused) != len(refused) {
				t.Fatalf("%s: %d windows, refused %v", what, len(windows), r.Refused)
			}
			for status, times := range refused {
				if got := c.Report().Refused[status]; got != times {
					t.Fatalf("%s: refused %d times because of %s", what, got, status)
				}
			}
		}
		run(29*time.Second, 1000)
		want(0, map[Status]uint64{StatusBlackout: 1}, "in the blackout")
		run(4*time.Second, 1000)
		want(1, map[Status]uint64{StatusBlackout: 1}, "after it, since the rule still holds")
		if late := windows[0].Start.Sub(start) - 30*time.Second; late < 0 || late > 200*time.Millisecond {
			t.Errorf("opened %v after the blackout", late)
		}
		run(time.Minute, 1000)
		run(time.Minute, 460) // below 500, and not by a tenth
		run(time.Minute, 1000)
		want(1, map[Status]uint64{StatusBlackout: 1}, "which has not been clear")
		run(5*time.Second, 440)
		run(4*time.Second, 1000)
		want(2, map[Status]uint64{StatusBlackout: 1}, "clear, and met again")
		run(5*time.Second, 440)
		run(5*time.Second, 1000)
		want(2, map[Status]uint64{StatusBlackout: 1, StatusMaximum: 1}, "above the maximum")
		run(time.Hour, 1000)
		want(2, map[Status]uint64{StatusBlackout: 1, StatusMaximum: 1}, "and still")
		if c.Report().Windows != 2 {
			t.Errorf("report %+v", c.Report())
		}
		end(t, c)
	})
}

// TestRuleOnABaseline has a training whose steps become twice as long, with all settings at their
// defaults.
func TestRuleOnABaseline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var windows []Window
		c := begin(t, Config{When: rules(t, "scope(train_step).p95 > 1.5x baseline"), Closed: func(w Window) { windows = append(windows, w) }}, &fakeEngines{t: t})
		steps := c.Figures().Scope("train_step")
		run := func(d, step time.Duration) {
			for range d / (200 * time.Millisecond) {
				steps.Observe(int64(step))
				c.Tick(time.Now())
				time.Sleep(200 * time.Millisecond)
			}
			synctest.Wait()
		}
		run(2*time.Minute, 10*time.Millisecond)
		run(2*time.Minute, 14*time.Millisecond)
		if len(windows) != 0 {
			t.Fatalf("windows %+v", windows)
		}
		run(time.Minute, 10*time.Millisecond)
		slow := time.Now()
		run(30*time.Second, 20*time.Millisecond)
		if len(windows) != 1 || windows[0].Cause != CauseRule || windows[0].Start.Sub(slow) > 5*time.Second ||
			!strings.HasPrefix(windows[0].Why, "scope(train_step).p95 > 1.5x baseline: 19.9") || !strings.HasSuffix(windows[0].Why, "ms, baseline 10ms") {
			t.Fatalf("windows %+v", windows)
		}
		// It stays slow: that is told once.
		run(time.Hour, 20*time.Millisecond)
		run(time.Minute, 10*time.Millisecond)
		if len(windows) != 1 {
			t.Fatalf("windows %+v", windows)
		}
		run(30*time.Second, 20*time.Millisecond)
		if len(windows) != 2 {
			t.Fatalf("windows %+v", windows)
		}
		end(t, c)
	})
}

// TestRefusalOfARuleIsCountedOnce has a rule that holds for longer than it may open windows.
func TestRefusalOfARuleIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := begin(t, Config{Max: 1, When: rules(t, "scope(step).rate > 1/s; kernel.rate > 1/s for 3s")}, &fakeEngines{t: t})
		for range 500 {
			c.Figures().Scope("step").Observe(1)
			c.Figures().Kernel("k", "").Observe(1)
			c.Tick(time.Now())
			time.Sleep(200 * time.Millisecond)
		}
		r := c.Report()
		// The second rule is refused in the cool-down, and then because of the maximum.
		if r.Windows != 1 || r.Refused[StatusMaximum] != 1 || r.Refused[StatusCoolDown] > 1 {
			t.Errorf("report %+v", r)
		}
		end(t, c)
		c.Tick(time.Now()) // after the end: no harm
	})
}

func TestWithoutRulesTickDoesNothing(t *testing.T) {
	c, err := New(Config{}, &fakeEngines{t: t})
	if err != nil {
		t.Fatal(err)
	}
	if c.Figures() != nil {
		t.Error("there are figures")
	}
	c.Tick(time.Now())
}

func TestLongReasonsAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := begin(t, Config{}, &fakeEngines{t: t})
		if w := ask(t, c, Request{Why: strings.Repeat("é", maxWhy)}); len(w.Why) > maxWhy || !strings.HasSuffix(w.Why, "é") {
			t.Errorf("%d bytes", len(w.Why))
		}
		end(t, c)
	})
}
