// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]float64{"2%": 0.02, " 2 % ": 0.02, "0.02": 0.02, "0.5%": 0.005, "100%": 1, "1": 1} {
		if got, err := Parse(text); err != nil || math.Abs(got-want) > 1e-15 {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "%", "0", "0%", "-1%", "101%", "2", "NaN", "Inf%", "two", "2%%", "1e-400"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

func TestBadConfigurations(t *testing.T) {
	for _, cfg := range []Config{
		{}, {Budget: -1}, {Budget: 1.1}, {Budget: math.NaN()},
		{Budget: 0.1, MinSlice: -1}, {Budget: 0.1, MinSlice: 2 * time.Second, MaxSlice: time.Second}, {Budget: 0.1, MaxSlice: time.Hour},
		{Budget: 0.1, Prior: Costs{Trace: -1}}, {Budget: 0.1, Prior: Costs{Count: math.Inf(1)}}, {Budget: 0.1, Processors: -1},
	} {
		if _, err := NewController(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	for _, cfg := range []EstimatorConfig{{Confidence: 1}, {Confidence: -0.5}, {Confidence: math.NaN()}, {MaxRate: -1}, {MaxRate: math.Inf(1)}, {MaxKernels: -1}} {
		if _, err := NewEstimator[int](cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// TestEveryMomentHasTheSameChance adds up where the traced slots of many plans lie, and the counted parts of strata.
func TestEveryMomentHasTheSameChance(t *testing.T) {
	for _, test := range []struct {
		name        string
		bare        float64 // ns a launch
		cfg         Config
		least, most float64 // share of the time that is traced
		parts       bool    // not all is counted
	}{
		{"all counted", 10_000, Config{Budget: 0.02, Prior: Costs{Count: 100e-9, Trace: 600e-9, Residual: 1e-9}}, 0.05, 0.3, false},
		{"CUPTI left after slices", 30_000, Config{Budget: 0.02, CanLeave: true}, 0.01, 0.3, false},
		{"CUPTI left between slices", 10_000, Config{Budget: 0.02, CanLeave: true}, 0.01, 0.3, true},
		{"mostly traced", 10_000, Config{Budget: 0.06, Prior: Costs{Count: 100e-9, Trace: 600e-9, Residual: 1e-9}}, 0.5, 0.95, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.cfg.Seed = 1
			c, err := NewController(test.cfg)
			if err != nil {
				t.Fatal(err)
			}
			now := time.Unix(0, 0)
			step := c.Begin(now)
			const pieces = 10
			var traced, counted [pieces]float64
			var plans, strata, share float64
			var plan []Step
			p := c.cfg.Prior
			for plans < 8000 {
				number := c.plans
				plan = append(plan, step)
				now = now.Add(step.For)
				one := test.bare * 1e-9
				switch step.State {
				case Trace:
					one += p.Count + p.Residual + p.Trace
				case Count:
					one += p.Count
					if c.stale && !step.Finalise {
						one += p.Residual
					}
				}
				m := Interval{Known: step.State != Blind}
				if step.Finalise {
					m.Switch = 12 * time.Millisecond
				}
				if m.Known {
					m.Launches = uint64((step.For - m.Switch).Seconds() / one)
				}
				step = c.Next(now, m)
				if c.plans == number {
					continue
				}
				if plan[0].TraceShare == 1 {
					plan = plan[:0]
					continue
				}
				plans++
				on := where(&traced, plan, func(s Step) bool { return s.State == Trace })
				if want := plan[0].TraceShare; math.Abs(on-want) > 1e-6 {
					t.Fatalf("%v of a plan is traced, and %v is said", on, want)
				}
				share += on
				for len(plan) > 0 {
					n := 1
					for n < len(plan) && plan[n].Stratum == plan[0].Stratum {
						n++
					}
					if s := plan[0]; s.CountShare < 1 {
						strata++
						got := where(&counted, plan[:n], func(x Step) bool { return x.State == Count || s.Records && x.State == Trace })
						if math.Abs(got-s.CountShare) > 1e-3 {
							t.Fatalf("%v of a stratum is counted, and %v is said", got, s.CountShare)
						}
					} else if s.State == Blind {
						t.Fatal("a stratum that is counted whole is blind")
					}
					plan = plan[n:]
				}
				plan = plan[:0]
			}
			even := func(what string, in [pieces]float64, of float64) {
				for i, v := range in {
					if v /= of; v < 0.88 || v > 1.12 {
						t.Errorf("piece %d of %d is %s %.3f times as often as it should", i, pieces, what, v)
					}
				}
			}
			even("traced", traced, plans)
			if (strata > 0) != test.parts {
				t.Errorf("%v strata are counted in part", strata)
			}
			if test.parts {
				even("counted", counted, strata)
			}
			if share /= plans; share < test.least || share > test.most {
				t.Errorf("on average %v is traced", share)
			}
		})
	}
}

// where adds to each piece of the steps' time how much of it is in steps of a kind, by what share of all of it is, which
// is returned.
func where(pieces *[10]float64, steps []Step, is func(Step) bool) float64 {
	var length, on time.Duration
	for _, s := range steps {
		length += s.For
		if is(s) {
			on += s.For
		}
	}
	share := on.Seconds() / length.Seconds()
	var at time.Duration
	for _, s := range steps {
		for i := range pieces {
			begin, end := length*time.Duration(i)/10, length*time.Duration(i+1)/10
			if is(s) {
				pieces[i] += max(0, min(at+s.For, end)-max(at, begin)).Seconds() / length.Seconds() * 10 / share
			}
		}
		at += s.For
	}
	return share
}

func TestFailuresAreCounted(t *testing.T) {
	c, err := NewController(Config{Budget: 0.02, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	step := c.Begin(now)
	var asked time.Duration
	for range 500 {
		now = now.Add(step.For)
		asked += step.For
		// Records cannot be switched off: all is traced, whatever is asked for.
		step = c.Next(now, Interval{Launches: uint64(step.For.Seconds() * 1e5), Known: true, Failed: step.State != Trace, Actual: Trace})
	}
	s := c.Status()
	if s.Failures == 0 || s.In[Trace] < s.Elapsed-time.Second || s.Elapsed.Round(time.Millisecond) != asked.Round(time.Millisecond) {
		t.Errorf("%+v of %v", s, asked)
	}
	if s.Met || s.Excess < 0.02 {
		t.Errorf("all was traced at a cost of 7 %%, and the status is %+v", s)
	}
	// A time that goes back, and figures that make no sense, change nothing.
	before := c.Status()
	c.Next(now.Add(-time.Hour), Interval{Known: true, CUPTI: -time.Hour, Own: -time.Hour, Switch: -time.Hour})
	if after := c.Status(); after.Elapsed != before.Elapsed || after.Overhead != before.Overhead {
		t.Errorf("%+v became %+v", before, after)
	}
}

func TestOwnTimeIsCharged(t *testing.T) {
	c, err := NewController(Config{Budget: 0.02, Seed: 1, Processors: 2})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	step := c.Begin(now)
	for range 1000 {
		now = now.Add(step.For)
		m := Interval{Known: true, Launches: 10}
		if step.State == Trace {
			m.Own, m.CUPTI = step.For/10, step.For/20 // 5 % of two processors, and 5 %
		}
		step = c.Next(now, m)
	}
	s := c.Status()
	if d := s.Duty(); d < 0.12 || d > 0.22 || !s.Met {
		t.Errorf("with 2 %% to spend tracing takes 10 %%, and the duty is %.3f: %+v", d, s)
	}
}

func TestEstimatorAddsUp(t *testing.T) {
	e, err := NewEstimator[string](EstimatorConfig{MaxKernels: 2})
	if err != nil {
		t.Fatal(err)
	}
	add := func(s Stratum[string]) {
		t.Helper()
		if err := e.Add(&s); err != nil {
			t.Fatal(err)
		}
	}
	// All of it traced: everything is exact.
	add(Stratum[string]{Seconds: 1, TraceShare: 1, CountShare: 1, Counted: map[string]uint64{"a": 10}, Traced: map[string]Traced{"a": {10, 0.5}}})
	if got, want := e.Estimate("a"), (Estimate{Launches: 10, Seconds: 0.5}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	// A quarter traced, all counted: the rest takes as long as the quarter.
	for range 100 {
		add(Stratum[string]{Seconds: 1, TraceShare: 0.25, CountShare: 1, Counted: map[string]uint64{"a": 100, "b": 4}, Traced: map[string]Traced{"a": {25, 0.05}}})
	}
	got := e.Estimate("a")
	if got.Launches != 10_010 || got.LaunchesBound != 0 || math.Abs(got.Seconds-20.5) > 1e-9 || got.SecondsBound > 1e-6 {
		t.Errorf("%+v, want 10010 launches in 20.5 s", got)
	}
	// One that was never traced has a time that nobody knows.
	if got := e.Estimate("b"); got.Launches != 400 || !math.IsInf(got.SecondsBound, 1) {
		t.Errorf("%+v, want 400 launches of any length", got)
	}
	// A third has no room.
	add(Stratum[string]{Seconds: 1, TraceShare: 1, CountShare: 1, Counted: map[string]uint64{"c": 7}, Traced: map[string]Traced{"c": {7, 0.7}}})
	if got := e.Estimate("c"); got != (Estimate{}) {
		t.Errorf("%+v of a kernel without room", got)
	}
	if got := e.Other(); got.Launches != 7 {
		t.Errorf("%+v, want 7 launches without room", got)
	}
	if got := e.Total(); got.Launches != 10_417 {
		t.Errorf("%+v, want 10417 launches in all", got)
	}
	n := 0
	for range e.All() {
		n++
	}
	if n != 2 {
		t.Errorf("%d kernels, want 2", n)
	}
	for _, s := range []Stratum[string]{{}, {Seconds: 1, TraceShare: 0, CountShare: 1}, {Seconds: 1, TraceShare: 1, CountShare: 2}, {Seconds: math.Inf(1), TraceShare: 1, CountShare: 1}, {Seconds: 1, TraceShare: math.NaN(), CountShare: 1},
		{Seconds: 1, TraceShare: 1, CountShare: 1, Unseen: -1}, {Seconds: 1, TraceShare: 1, CountShare: 1, Unseen: math.NaN()},
		{Seconds: 1, TraceShare: 1, CountShare: 0.5, Counting: -1}, {Seconds: 1, TraceShare: 1, CountShare: 0.5, Counting: math.NaN()},
		{Seconds: 1, TraceShare: 1, CountShare: 1, Speed: 0.5}, {Seconds: 1, TraceShare: 1, CountShare: 1, Speed: math.Inf(1)},
	} {
		if err := e.Add(&s); err == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}
