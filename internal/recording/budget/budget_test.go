// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"testing"
	"time"
)

func TestNewController_InvalidBudget(t *testing.T) {
	for _, share := range []float64{0, -1, 1.1, math.NaN(), math.Inf(1)} {
		if _, err := NewController(share, 1); err == nil {
			t.Errorf("%v: no error", share)
		}
	}
}

// program launches at a rate, and loses time as a PyTorch training on an H200 does.
type program struct {
	c         *Controller
	now       time.Duration
	perSecond func(time.Duration) float64
	lost      float64
	late      uint64 // records that were not read yet
	// slice and gap are called with the begin and end of each slice, and of each pause.
	slice, gap func(from, to time.Duration)
}

const (
	recordLoss = 2.9e-6 // s
	switchLoss = 12 * time.Millisecond
	firstLoss  = 9 * time.Millisecond
)

func (p *program) pass(d time.Duration, recording bool) {
	u := Usage{Elapsed: d, Recording: recording}
	if recording {
		n := p.perSecond(p.now) * d.Seconds()
		u.Records, u.Own, u.CUPTI = uint64(n), time.Duration(n*200), d/10000
		p.lost += n * recordLoss
	}
	p.now += d
	p.late += u.Records
	if recording { // a part of the records is read after the slice
		u.Records = p.late / 2
		p.late -= u.Records
	}
	p.c.Spend(u)
}

func (p *program) run(until time.Duration) {
	for p.now < until {
		begin := p.now
		pause := time.Duration(0)
		for pause == 0 && p.now < until {
			p.pass(p.c.Slice(), true)
			pause = p.c.Pause()
		}
		p.slice(begin, p.now)
		if pause == 0 {
			return
		}
		p.c.Spend(Usage{Records: p.late})
		p.late = 0
		p.c.Detached(5*time.Millisecond, switchLoss)
		p.lost += switchLoss.Seconds()
		begin = p.now
		p.pass(pause, false)
		p.gap(begin, p.now)
		p.c.Attached(switchLoss)
		p.lost += (switchLoss + firstLoss).Seconds()
	}
}

func newProgram(t *testing.T, share, perSecond float64) *program {
	t.Helper()
	c, err := NewController(share, 1)
	if err != nil {
		t.Fatal(err)
	}
	none := func(time.Duration, time.Duration) {}
	return &program{c: c, perSecond: func(time.Duration) float64 { return perSecond }, slice: none, gap: none}
}

func TestController_Budget(t *testing.T) {
	for _, test := range []struct {
		name              string
		budget, perSecond float64
		least, most       float64 // recorded share
	}{
		{"few launches", 0.02, 500, 1, 1},
		{"launch-bound, 2%", 0.02, 45_000, 0.04, 0.12},
		{"launch-bound, 0.5%", 0.005, 45_000, 0.01, 0.03},
		{"launch-bound, 5%", 0.05, 45_000, 0.1, 0.3},
		{"launch-bound, 50%", 0.5, 45_000, 1, 1},
		{"many threads", 0.02, 1_000_000, 0.001, 0.01},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newProgram(t, test.budget, test.perSecond)
			shortest, longest := time.Hour, time.Duration(0)
			p.slice = func(from, to time.Duration) { shortest, longest = min(shortest, to-from), max(longest, to-from) }
			p.run(20 * time.Minute)
			s := p.c.Status()
			lost := p.lost / p.now.Seconds()
			if !s.Met || s.Overhead > test.budget || lost > s.Overhead {
				t.Errorf("cost %.3f %%, estimated %.3f %%, budget %.3f %%, met %v", 100*lost, 100*s.Overhead, 100*test.budget, s.Met)
			}
			if r := s.RecordedRatio(); r < test.least || r > test.most {
				t.Errorf("recorded %.3g of the time, want %.3g to %.3g", r, test.least, test.most)
			}
			if test.least == 1 && s.Slices != 1 || test.least < 1 && (s.Slices < 10 || shortest < minSlice || longest > 10*maxSlice) {
				t.Errorf("%d slices of %v to %v", s.Slices, shortest, longest)
			}
			t.Logf("cost %.3f %%, estimated %.3f %%, recorded %.3f %% in %d slices of %v to %v",
				100*lost, 100*s.Overhead, 100*s.RecordedRatio(), s.Slices, shortest, longest)
		})
	}
}

// An hour of unused budget is not spent when a program becomes busy.
func TestController_BusyAfterIdle(t *testing.T) {
	p := newProgram(t, 0.02, 0)
	p.perSecond = func(at time.Duration) float64 {
		if at < time.Hour {
			return 0
		}
		return 45_000
	}
	p.run(time.Hour)
	if s := p.c.Status(); s.Slices != 1 || s.RecordedRatio() != 1 {
		t.Fatalf("idle: %d slices, recorded %v", s.Slices, s.RecordedRatio())
	}
	before := p.lost
	p.run(time.Hour + time.Minute)
	// The one slice in which the program becomes busy may cost more than the budget has.
	if lost, most := p.lost-before, 0.02*60+45_000*recordLoss; lost > most || lost < 0.005*60 {
		t.Errorf("lost %.3f s of the first busy minute, want at most %.3f s", lost, most)
	}
	if s := p.c.Status(); s.Slices < 5 {
		t.Errorf("%d slices", s.Slices)
	}
}

// Each phase of a period of the program is recorded as often as the others.
func TestController_Aliasing(t *testing.T) {
	for _, period := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second} {
		t.Run(period.String(), func(t *testing.T) {
			p := newProgram(t, 0.02, 45_000)
			const bins = 10
			var recorded [bins]float64
			p.slice = func(from, to time.Duration) {
				for at := from; at < to; at += 10 * time.Millisecond {
					recorded[int(at%period*bins/period)]++
				}
			}
			p.run(6 * time.Hour)
			sum := 0.0
			for _, n := range recorded {
				sum += n
			}
			for i, n := range recorded {
				if share := n / sum * bins; share < 0.8 || share > 1.2 {
					t.Errorf("phase %d is recorded %.2f times as often as the average: %v", i, share, recorded)
				}
			}
		})
	}
}

func TestController_NegativeUsage(t *testing.T) {
	p := newProgram(t, 0.02, 0)
	p.c.Spend(Usage{Elapsed: -time.Second, Recording: true, CUPTI: -time.Hour, Own: -time.Hour})
	if s := p.c.Status(); s.Elapsed != 0 || s.Recorded != 0 || s.Overhead != 0 || s.RecordedRatio() != 1 {
		t.Errorf("status %+v", s)
	}
	if d := p.c.Pause(); d != 0 {
		t.Errorf("pause of %v", d)
	}
}

// A detach that takes long is paid for by a longer pause.
func TestController_SlowSwitches(t *testing.T) {
	p := newProgram(t, 0.02, 45_000)
	p.pass(100*time.Millisecond, true)
	first := p.c.Pause()
	p.c.Attached(2 * time.Second)
	p.pass(100*time.Millisecond, true)
	if second := p.c.Pause(); second < 100*time.Second || first > 20*time.Second {
		t.Errorf("pauses of %v and, after an attach of 2 s, %v", first, second)
	}
}
