// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// world is a model of a program and of what recording costs it. The program launches as fast as its
// one thread can, but no faster than the device takes the work.
type world struct {
	// bare is how long a launch takes of itself, device how long the device needs for it, at a time.
	bare, device func(t float64) float64
	cost         Costs // the truth
	// What changes take, in seconds: leaving CUPTI, records after that, and all others; settling is how long it takes
	// until CUPTI can be left.
	change, leave, come, settling float64
	join                          float64 // what the first launches with records take longer after CUPTI was left, and nobody tells
	// stays says that CUPTI cannot be left, so many times or, below 0, never.
	stays int
	noise float64 // of the bare time, in intervals of 10 ms
	rng   *rand.Rand

	away     bool
	left     bool    // CUPTI was left once
	owed     float64 // what is left of join
	stale    bool    // records were made since CUPTI was left
	state    State
	launched float64
	counted  float64
	gap      float64   // seconds in which CUPTI was being left
	lost     float64   // seconds that the program would have needed less without us
	bins     []float64 // the same by second
}

const tick = 0.01

// h200 is what a launch cost on an H200: in a loop with nothing else, and with the caches cold, in a training of PyTorch.
func h200(bare float64) Costs {
	cold := min(max(bare/dense, 1), coldest)
	return Costs{Count: cold * defaultCount, Trace: cold * defaultTrace, Residual: cold * defaultResidual}
}

func always(v float64) func(float64) float64 { return func(float64) float64 { return v } }

// extra is what a launch takes longer.
func (w *world) extra(s State) float64 {
	x := 0.0
	if w.away {
		return x
	}
	if w.stale || s == Trace {
		x += w.cost.Residual
	}
	if s != Blind {
		x += w.cost.Count
	}
	if s == Trace {
		x += w.cost.Trace
	}
	return x
}

// pass lets some seconds pass in a state from time t on, of which the program stands still for some at first, and
// returns how many launches there were.
func (w *world) pass(t, seconds, stall float64, s State) float64 {
	launches := 0.0
	for left := seconds; left > 1e-9; {
		dt := min(left, tick)
		left -= dt
		bare := w.bare(t)
		if bare > 0 {
			bare *= 1 + w.noise*(2*w.rng.Float64()-1)
			could := dt / max(bare, w.device(t))
			usable := dt - min(stall, dt)
			stall -= dt - usable
			made := usable / max(bare+w.extra(s), w.device(t))
			launches += made
			w.lost += dt * (1 - made/could)
			for int(t) >= len(w.bins) {
				w.bins = append(w.bins, 0)
			}
			w.bins[int(t)] += dt * (1 - made/could)
		}
		t += dt
	}
	w.launched += launches
	return launches
}

// run lets the program run for a step from time t, in seconds, and returns what is measured of it.
func (w *world) run(t float64, s Step, first bool) (Interval, float64) {
	m := Interval{Known: s.State != Blind}
	stall := 0.0
	left := s.For.Seconds()
	if s.Finalise {
		waited := w.settling
		w.counted += w.pass(t, waited, 0, Count)
		t += waited
		left -= waited
		m.Waited = time.Duration(waited * 1e9)
		if w.stays != 0 {
			w.stays--
			m.Stayed = true // and goes on as before
		} else {
			stall += w.leave
			w.gap += w.leave
			w.away, w.stale, w.left = s.State == Blind, false, true
		}
	}
	switch {
	case s.State != Trace:
		w.owed = 0
	case !w.stale && w.left:
		w.owed = w.join
	}
	switch {
	case s.Finalise:
	case w.away && s.State != Blind:
		stall += w.come
		w.away = false
	case first || s.State != w.state:
		stall += w.change
	}
	w.state = s.State
	w.stale = w.stale || s.State == Trace
	m.Switch = time.Duration(stall * 1e9)
	if s.Records {
		left += stall
	}
	untold := min(w.owed, max(0, left-stall))
	w.owed -= untold
	made := w.pass(t, max(0, left), stall+untold, s.State)
	if m.Known {
		m.Launches = uint64(made)
		w.counted += made
	}
	return m, t + max(0, left)
}

// worst is the greatest share of the time lost in any minute after some seconds.
func (w *world) worst(after int) float64 {
	most := 0.0
	for i := after; i+60 <= len(w.bins); i++ {
		var lost float64
		for _, l := range w.bins[i : i+60] {
			lost += l
		}
		most = max(most, lost/60)
	}
	return most
}

func simulate(t *testing.T, w *world, cfg Config, seconds float64) (*Controller, []Step) {
	t.Helper()
	c, err := NewController(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.rng = rand.New(rand.NewPCG(cfg.Seed, 1))
	origin := time.Unix(1e9, 0)
	at := 0.0
	step := c.Begin(origin)
	var steps []Step
	for first := true; at < seconds; first = false {
		if step.For <= 0 || step.For > maxPlan {
			t.Fatalf("step %d lasts %v", len(steps), step.For)
		}
		var m Interval
		m, at = w.run(at, step, first)
		steps = append(steps, step)
		step = c.Next(origin.Add(time.Duration(at*1e9)), m)
	}
	return c, steps
}

// TestAnyRateOfLaunches: the budget is kept, some of the time is traced, and where nothing is blind nothing is missing but
// what was launched while CUPTI was being left.
func TestAnyRateOfLaunches(t *testing.T) {
	const seconds = 300
	for _, rate := range []float64{10, 100, 1000, 10_000, 30_000, 60_000, 100_000, 200_000, 350_000, 500_000} {
		for _, budget := range []float64{0.01, 0.02, 0.05, 0.1} {
			t.Run(fmt.Sprintf("%.0f a second, %v", rate, budget), func(t *testing.T) {
				t.Parallel()
				slack := 0.0
				if budget < 0.02 {
					slack = 0.1 * budget // what a slice costs is more than the bucket holds
				}
				for i := range 4 {
					noise, expected := 0.1*float64(i%2), i < 2
					w := world{
						bare: always(1 / rate), device: always(0), noise: noise, cost: h200(1 / rate),
						change: 50e-6, leave: 0.012, come: 0.001, settling: 0.002, join: slowJoins,
					}
					if !expected { // the costs of a loop at any rate
						w.cost, w.join = Costs{Count: 220e-9, Trace: 400e-9, Residual: 270e-9}, 0
					}
					ctl, steps := simulate(t, &w, Config{Budget: budget, CanLeave: true, Seed: uint64(rate)}, seconds)
					s := ctl.Status()
					t.Logf("lost %.4f, worst minute %.4f, says %.4f; duty %.3f, blind %.3f; %d steps, left %d times",
						w.lost/seconds, w.worst(0), s.Overhead, s.Duty(), s.In[Blind].Seconds()/seconds, len(steps), s.Finalised)
					if w.lost/seconds > budget || w.worst(0) > 1.1*budget+0.002 || expected && s.Excess > slack && noise == 0 {
						t.Errorf("lost %.4f in all and %.4f in the worst minute, with a budget of %v: %+v", w.lost/seconds, w.worst(0), budget, s)
					}
					if steps[0].State != Trace {
						t.Errorf("it begins with %v", steps[0].State)
					}
					if s.Duty() < 0.001 {
						t.Errorf("only %.5f of the time is traced", s.Duty())
					}
					if missing := w.launched - w.counted; s.In[Blind] == 0 && math.Abs(missing) > 1.01*rate*w.gap+float64(len(steps)) {
						t.Errorf("%.0f of %.0f launches are missing, with CUPTI being left for %.3f s", missing, w.launched, w.gap)
					}
					if s.In[Blind] > 0 && s.Finalised == 0 {
						t.Errorf("nothing is seen for %v, and CUPTI is not left", s.In[Blind])
					}
				}
			})
		}
	}
}

// TestUnlikeTheMachine: costs that were taken to be higher or lower than they are, and what the first launches with records
// cost after CUPTI was left, which nobody tells.
func TestUnlikeTheMachine(t *testing.T) {
	const seconds, budget = 900, 0.02
	bare := 1 / 60_000.0
	for _, c := range []struct {
		name        string
		cost        Costs
		join        float64
		least, most float64 // of what was lost, what it may say
	}{
		{"as there", h200(bare), slowJoins, 0.9, 1.1},
		{"a third of it", Costs{Count: defaultCount, Trace: defaultTrace, Residual: defaultResidual}, slowJoins, 0.9, 2.5},
		{"twice as much", Costs{Count: 2 * h200(bare).Count, Trace: 2 * h200(bare).Trace, Residual: 2 * h200(bare).Residual}, slowJoins, 0.8, 1.1},
		{"kernels that need no preparation", h200(bare), 0, 0.9, 1.2},
		{"many kernels", h200(bare), 0.15, 0.8, 1.1},
	} {
		for _, noise := range []float64{0, 0.15} {
			t.Run(fmt.Sprintf("%s, noise %v", c.name, noise), func(t *testing.T) {
				t.Parallel()
				w := world{bare: always(bare), device: always(0), noise: noise, cost: c.cost, change: 50e-6, leave: 0.002, come: 0.01, join: c.join}
				ctl, _ := simulate(t, &w, Config{Budget: budget, CanLeave: true, Seed: 7}, seconds)
				s := ctl.Status()
				lost := w.lost / seconds
				t.Logf("lost %.4f, worst minute %.4f, says %.4f; duty %.3f, blind %.3f; costs %.0f ns, first launches %.3f s", lost, w.worst(0), s.Overhead, s.Duty(), s.In[Blind].Seconds()/seconds, s.Costs.Trace*1e9, ctl.join.upper)
				if lost > 1.25*budget || s.Overhead < c.least*lost || s.Overhead > c.most*lost {
					t.Errorf("lost %.4f of a budget of %v, and says %.4f", lost, budget, s.Overhead)
				}
				if s.In[Blind] > time.Minute && math.Abs(ctl.join.middle-c.join) > 0.01+0.1*c.join {
					t.Errorf("the first launches are taken to cost %.3f s, and cost %v", ctl.join.middle, c.join)
				}
			})
		}
	}
}

func TestControllerKeepsTheBudget(t *testing.T) {
	const us = 1e-6
	typical := Costs{Count: 0.1 * us, Trace: 0.6 * us}
	phases := func(period, a, b float64) func(float64) float64 {
		return func(t float64) float64 {
			if math.Mod(t, period) < period/2 {
				return a
			}
			return b
		}
	}
	launches := func(c Config) Config { // where nothing stays behind records
		c.Prior = Costs{Count: 0.1 * us, Trace: 0.6 * us, Residual: 0.01 * us}
		return c
	}
	for _, c := range []struct {
		name        string
		w           world
		cfg         Config
		least, most float64 // duty
		learns      int     // seconds in which the budget may be exceeded, since nobody can know the costs yet
		floor       bool    // the budget cannot be kept, and that is said
	}{
		{name: "a training bound by launches", w: world{bare: always(10 * us), device: always(0)}, cfg: launches(Config{Budget: 0.02}), least: 0.07, most: 0.25},
		{name: "a training bound by launches with five per cent", w: world{bare: always(10 * us), device: always(0)}, cfg: launches(Config{Budget: 0.05}), least: 0.4, most: 0.85},
		{name: "a training bound by launches with ten per cent", w: world{bare: always(10 * us), device: always(0)}, cfg: launches(Config{Budget: 0.10}), least: 0.9, most: 1},
		{name: "nothing but launches", w: world{bare: always(2.4 * us), device: always(0)}, cfg: launches(Config{Budget: 0.02}), floor: true, least: 0.001, most: 0.1},
		{name: "a training bound by the device", w: world{bare: always(5 * us), device: always(20 * us)}, cfg: launches(Config{Budget: 0.02}), least: 0.9, most: 1},
		{name: "few launches", w: world{bare: always(1000 * us), device: always(0)}, cfg: Config{Budget: 0.02}, least: 1, most: 1},
		{name: "idle", w: world{bare: always(0), device: always(0)}, cfg: Config{Budget: 0.001}, least: 1, most: 1},
		{
			name: "training and evaluation in turn", w: world{bare: phases(40, 8*us, 30*us), device: phases(40, 0, 60*us)},
			cfg: launches(Config{Budget: 0.02}), least: 0.1, most: 0.95,
		},
		{name: "a program that stops and goes", w: world{bare: phases(20, 0, 6*us), device: always(0)}, cfg: launches(Config{Budget: 0.02}), least: 0.25, most: 0.65},
		{name: "changes of state that take long", w: world{bare: always(10 * us), device: always(0), change: 0.004}, cfg: launches(Config{Budget: 0.02}), least: 0.03, most: 0.25},
		{
			name: "dear counting", w: world{bare: always(10 * us), device: always(0), cost: Costs{Count: 0.4 * us, Trace: 0.6 * us}},
			cfg: Config{Budget: 0.02, Prior: Costs{Count: 0.4 * us, Trace: 0.6 * us, Residual: 0.01 * us}}, floor: true, least: 0.001, most: 0.25,
		},
		{
			name: "an H200 and a busy program", w: world{bare: always(30 * us), device: always(0), cost: h200(30 * us), join: slowJoins, leave: 0.003, come: 0.009},
			cfg: Config{Budget: 0.02, CanLeave: true}, least: 0.02, most: 0.1,
		},
		{
			name: "an H200 and a training bound by launches", w: world{bare: always(10 * us), device: always(0), cost: h200(10 * us), join: slowJoins, leave: 0.012, come: 0.001},
			cfg: Config{Budget: 0.02, CanLeave: true}, least: 0.01, most: 0.1,
		},
		{
			name: "the same with five per cent", w: world{bare: always(10 * us), device: always(0), cost: h200(10 * us), join: slowJoins, leave: 0.012, come: 0.001},
			cfg: Config{Budget: 0.05, CanLeave: true}, least: 0.02, most: 0.1,
		},
		{
			name: "the same with ten per cent", w: world{bare: always(10 * us), device: always(0), cost: h200(10 * us), join: slowJoins, leave: 0.012, come: 0.001},
			cfg: Config{Budget: 0.1, CanLeave: true}, least: 0.05, most: 0.2,
		},
		{
			name: "a CUPTI that is not left at first", w: world{bare: always(30 * us), device: always(0), cost: h200(30 * us), join: slowJoins, leave: 0.003, come: 0.009, settling: 0.01, stays: 3},
			cfg: Config{Budget: 0.02, CanLeave: true}, least: 0.02, most: 0.1,
		},
		{
			name: "costs that stay", w: world{bare: always(10 * us), device: always(0), cost: Costs{Count: 0.1 * us, Trace: 0.4 * us, Residual: 0.4 * us}},
			cfg: Config{Budget: 0.02}, floor: true, least: 0, most: 0.01,
		},
		{
			name: "a CUPTI that can never be left", w: world{bare: always(10 * us), device: always(0), cost: Costs{Count: 0.1 * us, Trace: 0.4 * us, Residual: 0.4 * us}, stays: -1},
			cfg: Config{Budget: 0.02, CanLeave: true}, floor: true, least: 0, most: 0.05,
		},
	} {
		for _, noise := range []float64{0, 0.15} {
			t.Run(fmt.Sprintf("%s, noise %v", c.name, noise), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(3) {
					w := c.w
					w.noise = noise
					if w.cost == (Costs{}) {
						w.cost = typical
					}
					cfg := c.cfg
					cfg.Seed = seed + 1
					ctl, steps := simulate(t, &w, cfg, 900)
					s := ctl.Status()
					loss := w.lost / 900
					t.Logf("seed %d: lost %.4f, worst minute %.4f, says %.4f (minute %.4f, floor %.4f); duty %.3f, blind %.3f; costs %.0f and %.0f ns; %d steps, %d switches, %d detached",
						seed, loss, w.worst(c.learns), s.Overhead, s.Window, s.Floor, s.Duty(), s.In[Blind].Seconds()/s.Elapsed.Seconds(), s.Costs.Trace*1e9, s.Costs.Residual*1e9, len(steps), s.Switches, s.Finalised)
					if d := s.Duty(); d < c.least || d > c.most {
						t.Errorf("duty is %.3f, want %.3f to %.3f", d, c.least, c.most)
					}
					if c.floor {
						if s.Met || s.Excess <= 0 || math.Abs(s.Excess+s.Budget-max(s.Overhead, s.Window)) > 1e-12 {
							t.Errorf("the budget cannot be met, and the status is %+v", s)
						}
						// Where costs are not well known they are taken to be more than they are.
						if s.Overhead < 0.65*loss || s.Overhead > 1.35*loss && noise == 0 || s.Overhead > 3*loss {
							t.Errorf("lost %.4f, but says %.4f", loss, s.Overhead)
						}
						continue
					}
					if loss > cfg.Budget || w.worst(c.learns) > (1.1+noise)*cfg.Budget {
						t.Errorf("lost %.4f in all and %.4f in the worst minute, with a budget of %v", loss, w.worst(c.learns), cfg.Budget)
					}
					if !s.Met {
						t.Errorf("the budget is said not to be met: %+v", s)
					}
				}
			})
		}
	}
}
