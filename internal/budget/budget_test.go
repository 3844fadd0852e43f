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
		{}, {Budget: -1}, {Budget: 1.1}, {Budget: math.NaN()}, {Budget: 0.1, MinObservation: 2}, {Budget: 0.1, MinObservation: math.NaN()},
		{Budget: 0.1, MinSlice: -1}, {Budget: 0.1, MinSlice: 2 * time.Second, MaxSlice: time.Second}, {Budget: 0.1, MaxSlice: time.Hour},
		{Budget: 0.1, NoCount: true, NoBlind: true}, {Budget: 0.1, Prior: Costs{Trace: -1}}, {Budget: 0.1, Prior: Costs{Count: math.Inf(1)}}, {Budget: 0.1, Processors: -1},
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

// TestEveryMomentHasTheSameChance adds up where the traced slots of many strata lie.
func TestEveryMomentHasTheSameChance(t *testing.T) {
	c, err := NewController(Config{Budget: 0.02, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	step := c.Begin(now)
	const parts = 10
	var traced [parts]float64
	var within, length time.Duration
	var share float64
	var slots []Step
	var strata int
	for strata < 4000 {
		stratum := step.Stratum
		slots = append(slots, step)
		within += step.For
		now = now.Add(step.For)
		m := Interval{Known: step.State != Blind}
		switch step.State {
		case Trace:
			m.Launches = uint64(step.For.Seconds() / 10.7e-6)
		case Count:
			m.Launches = uint64(step.For.Seconds() / 10.1e-6)
		}
		step = c.Next(now, m)
		if step.Stratum == stratum {
			continue
		}
		length, strata = within, strata+1
		var at, on time.Duration
		for _, s := range slots {
			if s.TraceShare != slots[0].TraceShare || s.CountShare != slots[0].CountShare {
				t.Fatal("the steps of a stratum have different shares")
			}
			if s.State == Trace {
				on += s.For
				for i := range parts {
					begin, end := length*time.Duration(i)/parts, length*time.Duration(i+1)/parts
					traced[i] += max(0, min(at+s.For, end)-max(at, begin)).Seconds() / length.Seconds() * parts / s.TraceShare
				}
			}
			at += s.For
		}
		if got := on.Seconds() / length.Seconds(); math.Abs(got-slots[0].TraceShare) > 1e-6 {
			t.Fatalf("%v of a stratum is traced, and %v is said", got, slots[0].TraceShare)
		}
		share += slots[0].TraceShare
		slots, within = slots[:0], 0
	}
	for i, v := range traced {
		if v /= float64(strata); v < 0.9 || v > 1.1 {
			t.Errorf("part %d of %d of a stratum is traced %.3f times as often as it should", i, parts, v)
		}
	}
	if share /= float64(strata); share < 0.01 || share > 0.9 {
		t.Errorf("on average %v is traced", share)
	}
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
		step = c.Next(now, Interval{Launches: uint64(step.For.Seconds() * 1e5), Known: true, Failed: step.State != Trace})
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
	for _, s := range []Stratum[string]{{}, {Seconds: 1, TraceShare: 0, CountShare: 1}, {Seconds: 1, TraceShare: 1, CountShare: 2}, {Seconds: math.Inf(1), TraceShare: 1, CountShare: 1}, {Seconds: 1, TraceShare: math.NaN(), CountShare: 1}} {
		if err := e.Add(&s); err == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}
