// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuflight/gpuflight/internal/bytesize"
)

// allowed says, by going through all windows there have been, whether there may be another: what the
// ledger says is compared with it.
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
		for _, p := range w.Parts {
			if p.Armed {
				armed++
				break
			}
		}
		last = w.End
	}
	switch {
	case now.Sub(start) < cfg.Blackout:
		return StatusBlackout
	case cfg.Max > 0 && armed >= cfg.Max:
		return StatusMaximum
	case e == SASS && spent(cfg, past):
		return StatusMemory
	case !last.IsZero() && now.Sub(last) < cfg.CoolDown:
		return StatusCoolDown
	case count >= cfg.PerHour:
		return StatusPerHour
	case float64(used+length) > cfg.Share*float64(time.Hour)+1:
		return StatusShare
	}
	return StatusCollected
}

// spent says that windows have left all the memory that they may.
func spent(cfg *Config, past []Window) bool {
	kept := int64(0)
	for _, w := range past {
		for _, p := range w.Parts {
			kept += int64(p.Collected.Patched) * KeptPerInstruction
		}
	}
	return cfg.Memory > 0 && kept >= cfg.Memory
}

// TestLimitsHoldOverRandomRequests asks for windows at random times with engines that fail at random, over
// hours of a false clock. Each answer is that of the naive reckoning, and none of the windows there
// were breaks a limit.
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
					PerHour: 1 + rnd.IntN(60), Share: 0.002 + rnd.Float64()*0.1, Patience: time.Second,
				}
				if rnd.IntN(2) == 0 {
					cfg.Max = 1 + rnd.IntN(100)
				}
				if rnd.IntN(2) == 0 {
					// A schedule that the limits leave room for, or that New refuses.
					cfg.After, cfg.Every = cfg.Blackout+between(1, time.Minute), between(cfg.For+cfg.CoolDown, time.Hour)
				}
				if rnd.IntN(2) == 0 {
					cfg.Memory = rnd.Int64N(30 * 5000 * KeptPerInstruction)
				}
				var past []Window
				cfg.Closed = func(w Window) { past = append(past, w) }
				f := &fakeEngines{t: t, collected: Collected{Patched: 5000}}
				faults := rand.New(rand.NewPCG(seed, 2)) // of the goroutines that call f, one after the other
				fail := func(context.Context) error {
					if faults.IntN(4) == 0 {
						return errOdd
					}
					time.Sleep(time.Duration(faults.Int64N(int64(500 * time.Millisecond))))
					return nil
				}
				f.arm, f.pause = fail, fail
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
					if engine == Both && spent(&cfg, past) {
						engine = PC
					}
					want := allowed(&cfg, start, time.Now(), engine, length, past)
					if open := c.Report().Open; open != nil {
						want = StatusBusy
						if open.Cause == r.Cause && open.Engine == engine {
							want = StatusCollected // it joins
						}
					}
					ticket, err := c.Ask(r)
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
	for _, s := range []Status{StatusCollected, StatusBusy, StatusBlackout, StatusMaximum, StatusCoolDown, StatusPerHour, StatusShare, StatusMemory} {
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
		if spent(cfg, windows[:i]) && slices.ContainsFunc(w.Parts, func(p Part) bool { return p.Engine == SASS }) {
			t.Errorf("window %d has an engine for which there is no memory", w.ID)
		}
		// The hour that ends with the window; what the window took longer than it was to take could not be
		// known when it began.
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

// TestMemoryIsBounded has windows of SASS that patch so many instructions each that three are allowed.
func TestMemoryIsBounded(t *testing.T) {
	const patched = 6169 // some 1 MiB as it is estimated
	const mib = patched * KeptPerInstruction
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngines{t: t, collected: Collected{Rows: 1, Patched: patched}}
		c := begin(t, Config{Memory: 3*mib - 1, CoolDown: -1, Share: 1}, f)
		defer end(t, c)
		const collected = "the window was opened and its data collected"
		const over = "CUPTI has kept all the device memory that windows of sass may leave with it; ask for pc, or start the process anew with GPUFLIGHT_DEEP_METRICS=memory, which keeps less, or a higher --deep-memory"
		for i, r := range []Request{{Engine: SASS}, {Engine: Both}, {Engine: PC}, {Engine: SASS}} {
			w := ask(t, c, r)
			kept, full, text := []uint64{mib, 2 * mib, 2 * mib, 3 * mib}[i], i == 3, collected
			if full { // it is a window all the same, and the one that says so
				text += "; there are no more with sass: " + over + " (some 3 MiB of 3 MiB)"
			}
			if w.KeptBytes != kept || w.MemoryFull != full || w.Outcome.Text != text || w.Outcome.Status != StatusCollected {
				t.Errorf("window %+v", w)
			}
			if r := c.Report(); r.KeptBytes != kept || r.MemoryFull != full {
				t.Errorf("report %+v", r)
			}
		}
		f.seen()
		_, err := c.Ask(Request{Engine: SASS, Cause: CauseSocket})
		if want := "deep window: " + over + " (some 3 MiB of 3 MiB)"; err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
		refused(t, c, Request{Engine: SASS}, StatusMemory)
		if w := ask(t, c, Request{Engine: PC, Cause: CauseSchedule}); w.Outcome.Text != collected || w.KeptBytes != 3*mib || !w.MemoryFull {
			t.Errorf("window %+v", w)
		}
		for _, cause := range []Cause{CauseCall, CauseSocket, CauseSignal, CauseSchedule, CauseRule} {
			ticket, err := c.Ask(Request{Engine: Both, Cause: cause})
			if err != nil {
				t.Fatal(err)
			}
			if joined, err := c.Ask(Request{Engine: Both, Cause: cause}); err != nil || joined != ticket {
				t.Errorf("another of the same gets %v, %v", joined, err)
			}
			w, err := ticket.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			text := collected
			if cause == CauseCall || cause == CauseSocket {
				text += "; not with sass: " + over + " (some 3 MiB of 3 MiB)"
			}
			if w.Engine != PC || len(w.Parts) != 1 || w.End.Sub(w.Start) != DefaultFor || w.Outcome.Text != text || w.KeptBytes != 3*mib {
				t.Errorf("window %+v", w)
			}
		}
		if calls := f.seen(); slices.Contains(calls, "arm sass") || slices.Contains(calls, "pause") {
			t.Errorf("calls %q", calls)
		}
		if r := c.Report(); r.Refused[StatusMemory] != 2 || r.Windows != 10 || r.Attempts != 0 {
			t.Errorf("report %+v", r)
		}
	})
}

// TestScheduleSparesMemory has a schedule and a default that allows any number of windows, of which 16 have memory: eight before half of
// it is gone, the others as the process becomes so old, and the last is for who asks.
func TestScheduleSparesMemory(t *testing.T) {
	const each, spared = 1<<16/KeptPerInstruction + 1, "what device memory windows of sass may still leave with CUPTI is for rules, for who asks, and for later"
	for engine, rest := range map[Engine]Engine{Both: PC, SASS: ""} {
		synctest.Test(t, func(t *testing.T) {
			cfg, err := ConfigFromEnv(func(name string) string {
				return map[string]string{"GPUFLIGHT_DEEP_EVERY": "1m", "GPUFLIGHT_DEEP_ENGINE": string(engine), "GPUFLIGHT_DEEP_MEMORY": fmt.Sprintf("%dB", 16*each*KeptPerInstruction)}[name]
			})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			var at []int // minutes
			other, remarks := 0, []string{}
			cfg.Closed = func(w Window) {
				if _, remark, found := strings.Cut(w.Outcome.Text, "; "); found {
					remarks = append(remarks, remark)
				}
				switch {
				case w.Engine == engine && w.Cause == CauseSchedule:
					at = append(at, int(w.Start.Sub(began).Minutes()))
				case w.Engine == rest:
					other++
				}
			}
			c, err := New(cfg, &fakeEngines{t: t, collected: Collected{Patched: each}})
			if err != nil {
				t.Fatal(err)
			}
			c.Start()
			time.Sleep(10*time.Hour + 30*time.Second)
			r := c.Report()
			if w := ask(t, c, Request{Engine: SASS, Cause: CauseSocket}); !w.MemoryFull || w.KeptBytes != 16*each*KeptPerInstruction {
				t.Errorf("window %+v", w)
			}
			end(t, c)
			// With y when half of it was gone, window 8 + k is at y * 8 / (8 - k).
			if want := []int{1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 17, 22, 33, 65}; !slices.Equal(at, want) {
				t.Errorf("minutes %v, want %v", at, want)
			}
			if engine == Both && (other != 600-len(at) || len(r.Refused) != 0) || engine == SASS && r.Refused[StatusSpared] != uint64(600-len(at)) {
				t.Errorf("%s: %d others, refused %v", engine, other, r.Refused)
			}
			share := fmt.Sprintf(" (some %s of %s)", bytesize.Format(8*each*KeptPerInstruction), bytesize.Format(16*each*KeptPerInstruction))
			if want := "the schedule has fewer and fewer with sass: " + spared + share; len(remarks) != 2 || remarks[0] != want {
				t.Errorf("remarks %q", remarks)
			}
		})
	}
}

// TestScheduleGoesOnWithoutMemory has a schedule of both engines, and none of whose windows has memory but the first.
func TestScheduleGoesOnWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, err := ConfigFromEnv(func(name string) string {
			return map[string]string{"GPUFLIGHT_DEEP_EVERY": "1m", "GPUFLIGHT_DEEP_ENGINE": "both", "GPUFLIGHT_DEEP_MEMORY": "1MiB"}[name]
		})
		if err != nil {
			t.Fatal(err)
		}
		engines, remarks := map[Engine]int{}, 0
		cfg.Closed = func(w Window) {
			engines[w.Engine]++
			if strings.Contains(w.Outcome.Text, "; ") {
				remarks++
			}
		}
		c, err := New(cfg, &fakeEngines{t: t, collected: Collected{Patched: 1<<20/KeptPerInstruction + 1}})
		if err != nil {
			t.Fatal(err)
		}
		c.Start()
		time.Sleep(3*time.Hour + 30*time.Second)
		end(t, c)
		if r := c.Report(); engines[Both] != 1 || engines[PC] != 179 || remarks != 1 || len(r.Refused) != 0 {
			t.Errorf("windows %v, %d with remarks, refused %v", engines, remarks, r.Refused)
		}
	})
}

func TestMemoryMayBeUnbounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := begin(t, Config{CoolDown: -1, Share: 1, For: MinFor, PerHour: 1000}, &fakeEngines{t: t, collected: Collected{Patched: 1 << 20}})
		for range 200 {
			ask(t, c, Request{Engine: SASS})
		}
		end(t, c)
		if r := c.Report(); r.KeptBytes != 200<<20*KeptPerInstruction || r.MemoryFull || r.Windows != 200 {
			t.Errorf("report %+v", r)
		}
	})
}
