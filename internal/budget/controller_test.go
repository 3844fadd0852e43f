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
	change       float64
	finalise     float64
	noise        float64 // of the bare time, in intervals of 10 ms
	rng          *rand.Rand

	stale bool
	state State
	lost  float64   // seconds that the program would have needed less without us
	bins  []float64 // the same by second
}

const tick = 0.01

func always(v float64) func(float64) float64 { return func(float64) float64 { return v } }

// run lets the program run for a step from time t, in seconds, and returns what is measured of it.
func (w *world) run(t float64, s Step, first bool) (Interval, float64) {
	m := Interval{Known: s.State != Blind}
	stall := 0.0
	if s.Finalise {
		w.stale = false
		stall += w.finalise
	}
	if first || s.State != w.state {
		stall += w.change
	}
	w.state = s.State
	m.Switch = time.Duration(stall * 1e9)
	if s.State == Trace {
		w.stale = true
	}
	extra := 0.0
	if w.stale {
		extra += w.cost.Residual
	}
	if s.State != Blind {
		extra += w.cost.Count
	}
	if s.State == Trace {
		extra += w.cost.Trace
	}
	left := s.For.Seconds()
	launches := 0.0
	for left > 1e-9 {
		dt := min(left, tick)
		left -= dt
		bare := w.bare(t)
		if bare > 0 {
			bare *= 1 + w.noise*(2*w.rng.Float64()-1)
			could := dt / max(bare, w.device(t))
			usable := dt - min(stall, dt)
			stall -= dt - usable
			made := usable / max(bare+extra, w.device(t))
			launches += made
			w.lost += dt * (1 - made/could)
			for int(t) >= len(w.bins) {
				w.bins = append(w.bins, 0)
			}
			w.bins[int(t)] += dt * (1 - made/could)
		}
		t += dt
	}
	if m.Known {
		m.Launches = uint64(launches)
	}
	return m, t
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
		if step.For <= 0 || step.For > maxStratum {
			t.Fatalf("step %d lasts %v", len(steps), step.For)
		}
		var m Interval
		m, at = w.run(at, step, first)
		steps = append(steps, step)
		step = c.Next(origin.Add(time.Duration(at*1e9)), m)
	}
	return c, steps
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
	for _, c := range []struct {
		name        string
		w           world
		cfg         Config
		least, most float64 // duty
		learns      int     // seconds in which the budget may be exceeded, since nobody can know the costs yet
		floor       bool    // the budget cannot be kept, and that is said
	}{
		{name: "a training bound by launches", w: world{bare: always(10 * us), device: always(0)}, cfg: Config{Budget: 0.02}, least: 0.1, most: 0.25},
		{name: "the same with five per cent", w: world{bare: always(10 * us), device: always(0)}, cfg: Config{Budget: 0.05}, least: 0.4, most: 0.85},
		{name: "the same with ten per cent", w: world{bare: always(10 * us), device: always(0)}, cfg: Config{Budget: 0.10}, least: 0.9, most: 1},
		{name: "nothing but launches", w: world{bare: always(2.4 * us), device: always(0)}, cfg: Config{Budget: 0.02}, least: 0.015, most: 0.1},
		{name: "a training bound by the device", w: world{bare: always(5 * us), device: always(20 * us)}, cfg: Config{Budget: 0.02}, least: 0.9, most: 1},
		{name: "few launches", w: world{bare: always(1000 * us), device: always(0)}, cfg: Config{Budget: 0.02}, least: 1, most: 1},
		{name: "idle", w: world{bare: always(0), device: always(0)}, cfg: Config{Budget: 0.001}, least: 1, most: 1},
		{
			name: "training and evaluation in turn", w: world{bare: phases(40, 8*us, 30*us), device: phases(40, 0, 60*us)},
			cfg: Config{Budget: 0.02}, least: 0.1, most: 0.95,
		},
		{name: "a program that stops and goes", w: world{bare: phases(20, 0, 6*us), device: always(0)}, cfg: Config{Budget: 0.02}, least: 0.4, most: 0.65},
		{name: "changes of state that take long", w: world{bare: always(10 * us), device: always(0), change: 0.004}, cfg: Config{Budget: 0.02}, least: 0.03, most: 0.25},
		{name: "dear counting", w: world{bare: always(10 * us), device: always(0), cost: Costs{Count: 0.4 * us, Trace: 0.6 * us}}, cfg: Config{Budget: 0.02, Prior: Costs{Count: 0.4 * us}}, least: 0.04, most: 0.25},
		{
			name: "costs that stay until CUPTI is detached", w: world{bare: always(10 * us), device: always(0), cost: Costs{Count: 0.1 * us, Trace: 0.4 * us, Residual: 0.4 * us}, finalise: 0.02},
			cfg: Config{Budget: 0.02, CanFinalise: true}, least: 0.01, most: 0.2, learns: 120,
		},
		{
			name: "costs that stay", w: world{bare: always(10 * us), device: always(0), cost: Costs{Count: 0.1 * us, Trace: 0.4 * us, Residual: 0.4 * us}},
			cfg: Config{Budget: 0.02, Prior: Costs{Residual: 0.4 * us}}, floor: true, least: 0, most: 0.01,
		},
		{
			name: "a least observation that the budget does not allow", w: world{bare: always(2.4 * us), device: always(0)},
			cfg: Config{Budget: 0.01, MinObservation: 0.2}, floor: true, least: 0.19, most: 0.21,
		},
		{name: "without counting", w: world{bare: always(10 * us), device: always(0)}, cfg: Config{Budget: 0.02, NoCount: true}, least: 0.1, most: 0.4},
		{name: "without going blind", w: world{bare: always(10 * us), device: always(0)}, cfg: Config{Budget: 0.02, NoBlind: true}, least: 0.1, most: 0.25},
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
						if math.Abs(loss-s.Overhead) > 0.35*loss {
							t.Errorf("lost %.4f, but says %.4f", loss, s.Overhead)
						}
						continue
					}
					if loss > cfg.Budget || w.worst(c.learns) > 1.1*cfg.Budget {
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
