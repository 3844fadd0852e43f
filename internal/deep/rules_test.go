// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuflight/gpuflight/internal/deep/rule"
)

func rules(t *testing.T, text string) []rule.Rule {
	t.Helper()
	r, err := ParseRules(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRuleOpensAWindow has a process that launches less and less, with SASS windows in which no kernel is
// recorded: they must not make the rule fire again.
func TestRuleOpensAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t}
		var windows []Window
		c := begin(t, Config{Engine: SASS, When: rules(t, "kernel.rate < 100/s for 2s"), Closed: func(w Window) { windows = append(windows, w) }}, f)
		kernels := c.Figures().Kernel("gemm", "")
		run := func(d time.Duration, perTick int) {
			for range d / (200 * time.Millisecond) {
				if _, paused := f.state(); !paused {
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
		if w, err := c.Ask(Request{Cause: CauseCall, For: 10 * time.Second}); err != nil {
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
		if w := windows[1]; w.Cause != CauseRule || w.Why != "kernel.rate < 100/s for 2s: 50/s" || w.Engine != SASS || w.Start.Sub(windows[0].End) < DefaultCoolDown || w.Start.Sub(windows[0].End) > DefaultCoolDown+400*time.Millisecond {
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
