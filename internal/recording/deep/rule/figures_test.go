// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// bench drives figures by a clock of its own.
type bench struct {
	t       *testing.T
	figures *Figures
	now     time.Time
	fired   []string
	refuse  bool
}

func newBench(t *testing.T, rules ...string) *bench {
	t.Helper()
	var parsed []Rule
	for _, text := range rules {
		r, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, r)
	}
	f, err := New(parsed)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, figures: f, now: time.Unix(1e9, 0)}
	b.tick(0)
	return b
}

func (b *bench) tick(after time.Duration) {
	b.now = b.now.Add(after)
	b.figures.Tick(b.now, false, func(f *Firing) bool {
		b.fired = append(b.fired, f.String())
		return !b.refuse
	})
}

// run makes ticks of 200 ms; in each, observe is called.
func (b *bench) run(d time.Duration, observe func()) {
	for range d / (200 * time.Millisecond) {
		observe()
		b.tick(200 * time.Millisecond)
	}
}

// want checks what was fired since the last call.
func (b *bench) want(fired ...string) {
	b.t.Helper()
	if !slices.Equal(b.fired, fired) {
		b.t.Errorf("fired %q, want %q", b.fired, fired)
	}
	b.fired = nil
}

func (b *bench) state() State { return b.figures.States()[0] }

func nothing() {}

func TestRateIsUnknownBeforeTheFirstKernelAndZeroAfterTheLast(t *testing.T) {
	b := newBench(t, "kernel.rate < 100/s for 2s")
	b.run(time.Minute, nothing)
	b.want()
	if s := b.state(); s.Value != "unknown" || s.Met {
		t.Errorf("%+v", s)
	}
	kernels := b.figures.Kernel("gemm", "void gemm(int)")
	b.run(5*time.Second, func() {
		for range 100 {
			kernels.Observe(1)
		}
	})
	if s := b.state(); s.Value != "500/s" || s.Threshold != "100/s" || s.Met || s.Fired {
		t.Errorf("%+v", s)
	}
	// After 1 s of nothing the rate is 0, after 2 s more the rule is met.
	b.run(2600*time.Millisecond, nothing)
	b.want()
	b.run(400*time.Millisecond, nothing)
	b.want("kernel.rate < 100/s for 2s: 0/s")
	b.run(time.Minute, nothing)
	b.want() // once
	if s := b.state(); !s.Met || !s.Fired {
		t.Errorf("%+v", s)
	}
}

func TestRuleIsArmedAgainByTheMargin(t *testing.T) {
	b := newBench(t, "kernel.rate < 100/s for 1s")
	kernels := b.figures.Kernel("gemm", "")
	at := func(perTick int) func() {
		return func() {
			for range perTick {
				kernels.Observe(1)
			}
		}
	}
	b.run(3*time.Second, at(10))
	b.want("kernel.rate < 100/s for 1s: 50/s")
	b.run(10*time.Second, at(21)) // 105/s: on the other side, not by a tenth
	b.run(10*time.Second, at(10))
	b.want()
	b.run(800*time.Millisecond, at(30)) // by a tenth, not for a second
	b.run(10*time.Second, at(10))
	b.want()
	b.run(3*time.Second, at(22)) // 110/s
	b.run(3*time.Second, at(10))
	b.want("kernel.rate < 100/s for 1s: 50/s")
}

func TestRefusedRuleIsOfferedWhileItHolds(t *testing.T) {
	b := newBench(t, "scope(step).p50 > 1ms")
	steps := b.figures.Scope("step")
	b.refuse = true
	b.run(10*time.Second, func() { steps.Observe(2_000_000) })
	const fired = "scope(step).p50 > 1ms: 2ms"
	b.want(fired)
	b.run(time.Second, func() { steps.Observe(2_000_000) })
	b.want(fired, fired, fired, fired, fired)
	b.refuse = false
	b.run(time.Second, func() { steps.Observe(2_000_000) })
	b.want(fired)
}

func TestQuantileOfNothingIsUnknown(t *testing.T) {
	b := newBench(t, "scope(step).p95 < 1ms")
	b.run(11*time.Second, func() { b.figures.Scope("step").Observe(5_000_000) })
	b.run(20*time.Second, nothing)
	if s := b.state(); s.Value != "unknown" || s.Met {
		t.Errorf("%+v", s)
	}
	b.want()
}

func TestBaseline(t *testing.T) {
	b := newBench(t, "scope(step).p95 over 1s > 1.5x baseline for 2s")
	steps := b.figures.Scope("step")
	at := func(ms float64) func() { return func() { steps.Observe(int64(ms * 1e6)) } }
	b.run(10*time.Second, at(10))
	if s := b.state(); s.Threshold != "unknown" {
		t.Errorf("after nine looks %+v", s)
	}
	b.run(20*time.Second, at(10))
	if s := b.state(); s.Threshold != "15ms" || s.Value != "10ms" {
		t.Errorf("%+v", s)
	}
	b.run(20*time.Second, at(16))
	b.want("scope(step).p95 over 1s > 1.5x baseline for 2s: 16ms, baseline 10ms")
	// What does not come back is not fired again, and moves no baseline.
	b.run(time.Hour, at(16))
	b.want()
	if s := b.state(); s.Threshold != "15ms" {
		t.Errorf("%+v", s)
	}
	b.run(20*time.Second, at(10))
	b.run(20*time.Second, at(16))
	b.want("scope(step).p95 over 1s > 1.5x baseline for 2s: 16ms, baseline 10ms")
	b.run(time.Minute, at(10))
	// A slow drift is followed: half as much again in 50 minutes, then twice that.
	for ms := 10.; ms < 30; ms *= 1.01 {
		b.run(time.Minute, at(ms))
	}
	b.want()
	b.run(20*time.Second, at(60))
	if len(b.fired) != 1 {
		t.Errorf("fired %q", b.fired)
	}
}

func TestDisturbanceIsForgotten(t *testing.T) {
	b := newBench(t, "kernel.rate < 100/s for 2s")
	kernels := b.figures.Kernel("gemm", "")
	b.run(5*time.Second, func() {
		for range 100 {
			kernels.Observe(1)
		}
	})
	disturbed := func(d time.Duration) {
		for range d / (200 * time.Millisecond) {
			b.now = b.now.Add(200 * time.Millisecond)
			b.figures.Tick(b.now, true, func(*Firing) bool { t.Error("fired while disturbed"); return true })
		}
	}
	disturbed(time.Minute)
	b.run(2800*time.Millisecond, nothing) // 1 s until it is known, 2 s for the rule
	disturbed(200 * time.Millisecond)
	b.run(2800*time.Millisecond, nothing)
	b.tick(maxGap + 1)
	b.run(2800*time.Millisecond, nothing)
	b.want()
	b.run(200*time.Millisecond, nothing)
	b.want("kernel.rate < 100/s for 2s: 0/s")
}

func TestNamesAreGlobs(t *testing.T) {
	b := newBench(t, "kernel(*gemm?).rate > 1/s", "kernel.rate > 1/s", "scope(a).rate > 1/s")
	for _, tc := range []struct {
		short, full string
		series      int
	}{{"sgemm1", "", 2}, {"k", "void gemm2", 2}, {"gemm", "gemm", 1}, {"a", "a", 1}} {
		if s := b.figures.Kernel(tc.short, tc.full); len(s.into) != tc.series {
			t.Errorf("%s, %s is in %d figures", tc.short, tc.full, len(s.into))
		}
	}
	if b.figures.Scope("a") == nil || b.figures.Scope("b") != nil {
		t.Error("scopes are wrong")
	}
	none := newBench(t, "scope(a).rate > 1/s").figures
	if none.Kernel("a", "a") != nil {
		t.Error("kernels are looked at and no rule is about them")
	}
	none.Kernel("a", "a").Observe(1)
}

func TestTooManyRules(t *testing.T) {
	if _, err := New(make([]Rule, MaxRules+1)); err == nil {
		t.Error("no error")
	}
}

func TestQuantileIsWithinFivePercent(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		tl := newTally(&Rule{Quantile: 0.01 * float64(1+rnd.IntN(99)), Over: time.Second})
		start := time.Unix(0, 0)
		tl.forget(start)
		var all []float64
		for range 1 + rnd.IntN(3000) {
			ns := int64(math.Exp(rnd.Float64() * math.Log(1e6)))
			all = append(all, float64(ns)/1e9)
			tl.observe(ns)
		}
		slices.Sort(all)
		want := all[int(math.Ceil(tl.quantile*float64(len(all))))-1]
		got, known := tl.value(start.Add(time.Second))
		if !known || got < want*0.95 || got > want*1.05 {
			t.Errorf("p%.0f of %d is %g, want %g", tl.quantile*100, len(all), got, want)
		}
	}
	tl := newTally(&Rule{Quantile: 0.5, Over: time.Second})
	tl.observe(0)
	tl.observe(-5)
	tl.observe(1)
	if v, known := tl.value(time.Time{}.Add(time.Second)); !known || v != 0 {
		t.Errorf("the median of 0, 0 and 1 is %g", v)
	}
}

// reference is the naive evaluator: it keeps all that happened, and at every tick reckons from
// there.
type reference struct {
	rule  Rule
	ticks []moment
	// changed is the tick at which the rule last fired or was armed again; look is when the
	// baseline last looked.
	changed  int
	disarmed bool
	looks    []float64
	look     time.Time
}

type moment struct {
	at        time.Time
	forgotten bool // nothing before counts, nor what belongs to this tick
	counted   []int64
	known     bool
	value     float64
	threshold float64
	compared  bool
}

// figure returns the figure at the last tick.
func (r *reference) figure() (float64, bool) {
	last := len(r.ticks) - 1
	now := r.ticks[last].at
	first := last
	for !r.ticks[first].forgotten {
		first--
	}
	if now.Sub(r.ticks[first].at) < r.rule.Over {
		return 0, false
	}
	// Slots end at the first tick that is a tenth away from their start; those that ended before
	// the time looked at do not count.
	from, slot := first, first
	for i := first + 1; i < last; i++ {
		if r.ticks[i].at.Sub(r.ticks[slot].at) >= r.rule.Over/10 {
			slot = i
			if !r.ticks[i].at.After(now.Add(-r.rule.Over)) {
				from = i
			}
		}
	}
	seconds := now.Sub(r.ticks[from].at).Seconds()
	var all []int64
	for _, m := range r.ticks[from+1:] {
		all = append(all, m.counted...)
	}
	ever := slices.ContainsFunc(r.ticks, func(m moment) bool { return len(m.counted) > 0 })
	switch {
	case r.rule.Quantile == 0:
		return float64(len(all)) / seconds, ever
	case len(all) == 0:
		return 0, false
	}
	slices.Sort(all)
	return float64(all[int(math.Ceil(r.rule.Quantile*float64(len(all))))-1]) / 1e9, true
}

func (r *reference) holds(m *moment) bool {
	if !m.known || !m.compared {
		return false
	}
	switch r.rule.Op {
	case Less:
		return m.value < m.threshold
	case LessEqual:
		return m.value <= m.threshold
	case Greater:
		return m.value > m.threshold
	}
	return m.value >= m.threshold
}

func (r *reference) clear(m *moment) bool {
	if !m.known || !m.compared || r.holds(m) {
		return false
	}
	if strings.HasPrefix(string(r.rule.Op), ">") {
		return m.value <= m.threshold-0.1*m.threshold
	}
	return m.value >= m.threshold+0.1*m.threshold
}

// tick says whether the rule is offered.
func (r *reference) tick(m moment) bool {
	r.ticks = append(r.ticks, m)
	last := &r.ticks[len(r.ticks)-1]
	if last.forgotten {
		return false
	}
	last.value, last.known = r.figure()
	last.threshold, last.compared = r.rule.Value, true
	if r.rule.Baseline {
		looks := r.looks[max(0, len(r.looks)-600):]
		sorted := slices.Sorted(slices.Values(looks))
		n := len(sorted)
		if n >= 10 {
			last.threshold *= (sorted[n/2] + sorted[(n-1)/2]) / 2
		}
		last.compared = n >= 10 && last.threshold > 0
	}
	if last.known && !r.disarmed && !r.holds(last) && (r.look.IsZero() || last.at.Sub(r.look) >= time.Second) {
		r.look = last.at
		r.looks = append(r.looks, last.value)
	}
	// For how long it has been so, without a tick at which it was not, since it was another's turn.
	so := r.holds
	if r.disarmed {
		so = r.clear
	}
	i := len(r.ticks)
	for i-1 > r.changed && !r.ticks[i-1].forgotten && so(&r.ticks[i-1]) {
		i--
	}
	if i == len(r.ticks) || last.at.Sub(r.ticks[i].at) < r.rule.For {
		return false
	}
	if r.disarmed {
		r.disarmed, r.changed = false, len(r.ticks)-1
		return false
	}
	return true
}

func (r *reference) taken() { r.disarmed, r.changed = true, len(r.ticks)-1 }

// TestRulesFireIffTheReferenceSaysSo compares Figures with the naive evaluator over random loads,
// ticks, disturbances and answers. Durations have two values far apart, so that an estimate of a
// quantile is on the same side of every threshold as the exact one.
func TestRulesFireIffTheReferenceSaysSo(t *testing.T) {
	fired := map[string]int{}
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
		over, lasting := pick("", "over 300ms ", "over 1s ", "over 3s "), pick("", " for 300ms", " for 2s", " for 7s")
		text := pick(
			"kernel.rate "+over+pick("<", "<=", ">", ">=")+pick(" 40/s", " 20/s"),
			"kernel.rate "+over+pick("< 0.5x", "> 2x", "<= 0.5x", ">= 2x")+" baseline",
			"kernel.rate "+over+pick("<=", ">")+" 0/s",
			"scope(s).rate "+over+pick("<", ">=")+" 10/s",
			"scope(s).p50 "+over+pick("< 3ms", ">= 3ms", "> 1.6x baseline", "<= 0.6x baseline"),
			"scope(s).p95 "+over+pick("< 3ms", ">= 3ms", "> 1.6x baseline", "<= 0.6x baseline"),
		) + lasting
		r, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		figures, err := New([]Rule{r})
		if err != nil {
			t.Fatal(err)
		}
		want := &reference{rule: r, changed: -1}
		kernels, scopes := figures.Kernel("k", ""), figures.Scope("s")
		now := time.Unix(1e9, 0)
		high, accept := false, rnd.Float64()
		for i := range 800 {
			if rnd.IntN(60) == 0 {
				high = !high
			}
			gap := 150*time.Millisecond + time.Duration(rnd.IntN(100))*time.Millisecond
			switch rnd.IntN(100) {
			case 0:
				gap = 6 * time.Second
			case 1:
				gap = 2 * time.Second
			}
			now = now.Add(gap)
			m := moment{at: now, forgotten: i == 0 || gap > maxGap || rnd.IntN(150) == 0}
			disturbed := m.forgotten && i > 0 && gap <= maxGap
			// What happened since the tick before.
			for range rnd.IntN(8) + map[bool]int{true: 8}[high] {
				if rnd.IntN(10) == 0 && !high {
					continue
				}
				kernels.Observe(1)
				if r.Source == Kernel {
					m.counted = append(m.counted, 1)
				}
			}
			for range rnd.IntN(4) {
				ns := int64(1_000_000)
				if high != (rnd.IntN(20) == 0) {
					ns *= 10
				}
				scopes.Observe(ns)
				if r.Source == Scope {
					m.counted = append(m.counted, ns)
				}
			}
			offered := false
			took := rnd.Float64() < accept
			expected := want.tick(m)
			if expected && took {
				want.taken()
			}
			figures.Tick(now, disturbed, func(f *Firing) bool {
				offered = true
				if f.Rule.Text != text || f.Held < r.For {
					t.Errorf("%s: firing %+v", text, f)
				}
				return took
			})
			if offered != expected {
				s := figures.States()[0]
				t.Fatalf("seed %d, %q, tick %d: offered %t, want %t; %+v, want %+v", seed, text, i, offered, expected, s, want.ticks[len(want.ticks)-1])
			}
			if expected && took {
				fired[fmt.Sprint(r.Source, r.Quantile > 0, r.Baseline)]++
			}
		}
	}
	for _, kind := range []string{"0 false false", "0 false true", "1 false false", "1 true false", "1 true true"} {
		if fired[kind] < 10 {
			t.Errorf("rules of kind %s fired %d times, of %v", kind, fired[kind], fired)
		}
	}
}
