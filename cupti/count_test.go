// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
)

// seen is what became of the launches of one kernel name.
type seen struct{ launches, records, counted, traced uint64 }

// setModes goes through these.
func setModes(t *testing.T, c *Collector, all ...Mode) {
	t.Helper()
	for _, m := range all {
		if err := c.SetMode(m); err != nil {
			t.Fatal(err)
		}
	}
}

// decided is a count when it is known which doubtful launches have records.
func decided(l LaunchCount, r *Reconciler, what int) LaunchCount {
	traced := r.Traced(uint32(what)) //nolint:gosec // Small.
	l.Traced, l.Counted, l.Doubtful = l.Traced+traced, l.Counted+l.Doubtful-traced, 0
	return l
}

// reconcile shows a Reconciler the records that there are, after Stop.
func reconcile(t *testing.T, c *Collector, r *Reconciler, each func(*Head)) {
	t.Helper()
	for {
		b, err := c.Take(time.Minute)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil || b == nil {
			t.Fatalf("neither a buffer nor the end: %v", err)
		}
		for i := range b.Len() {
			h := b.Head(i)
			each(h)
			r.Record(b.Attachment(), h.Correlation)
		}
		b.Release()
	}
}

// inSession is what became of a kernel's launches since some counts, after Stop.
func inSession(t *testing.T, c *Collector, before []LaunchCount, kernel string, each func(*Head)) (sum LaunchCount) {
	t.Helper()
	r := NewReconciler()
	r.Add(c.Doubts(nil))
	reconcile(t, c, r, each)
	for what, l := range c.LaunchCounts(nil) {
		if l.Name == nil || l.Name.Full != kernel {
			continue
		}
		if what < len(before) {
			l.Traced, l.Counted, l.Doubtful = l.Traced-before[what].Traced, l.Counted-before[what].Counted, l.Doubtful-before[what].Doubtful
		}
		sum = decided(l, r, what)
	}
	return sum
}

// tally compares what the fake launched by name with what a Collector says, after Stop.
func tally(t *testing.T, c *Collector, doubts []Doubt, launched map[string]uint64) map[string]seen {
	t.Helper()
	r := NewReconciler()
	doubts = c.Doubts(doubts)
	for len(doubts) > maxDoubts { // on a busy machine a switch takes long
		r.Add(doubts[:maxDoubts])
		r.Age()
		doubts = doubts[maxDoubts:]
	}
	r.Add(doubts)
	records := map[string]uint64{}
	reconcile(t, c, r, func(h *Head) {
		if h.Kind == KindKernel {
			records[h.Name.Full]++
		}
	})
	all := map[string]seen{}
	for name, n := range launched {
		all[name] = seen{launches: n, records: records[name]}
	}
	for what, l := range c.LaunchCounts(nil) {
		if l.Name == nil || l.Launches() == 0 {
			continue
		}
		l = decided(l, r, what)
		s := all[l.Name.Full]
		s.counted, s.traced = l.Counted, l.Traced
		all[l.Name.Full] = s
	}
	return all
}

// TestEachLaunchIsRecordedOrCounted switches at random while eight threads launch.
func TestEachLaunchIsRecordedOrCounted(t *testing.T) {
	for _, ownThread := range []int64{0, 1} {
		t.Run(fmt.Sprintf("buffers completed by a thread of CUPTI's: %d", ownThread), func(t *testing.T) {
			fake, c := open(t, Config{Buffers: 64})
			fake.Control("own_thread", ownThread)
			defer fake.Control("own_thread", 0)
			start(t, c)
			if err := c.SetMode(ModeTrace); err != nil {
				t.Fatal(err)
			}
			// A launch that takes a while is one that switches come in between.
			fake.Control("launch_ns", 1000)
			defer fake.Control("launch_ns", 0)
			const threads, each = 8, 3000
			launched := map[string]uint64{}
			var running sync.WaitGroup
			for i := range threads {
				name := fmt.Sprintf("kernel_%d", i/2) // two threads for each
				launched[name] += each
				running.Go(func() { fake.LaunchThreads(1, each, name) })
			}
			done := make(chan struct{})
			go func() { running.Wait(); close(done) }()
			rng := rand.New(rand.NewPCG(1, uint64(ownThread)))
			var doubts []Doubt
			// What sleeps in a launch when these begin to be watched is not waited for.
			setModes(t, c, ModeCount, ModeTrace)
			time.Sleep(50 * time.Millisecond)
			fake.Control("switched_beside", 0)
			switches, last := uint64(2), ModeTrace
			for finished := false; !finished; {
				select {
				case <-done:
					finished = true
				case <-time.After(time.Duration(rng.IntN(2000)) * time.Microsecond):
				}
				m := Mode(rng.IntN(2))
				if m != last {
					switches++
				}
				last = m
				if err := c.SetMode(m); err != nil {
					t.Fatal(err)
				}
				doubts = c.Doubts(doubts)
			}
			stats, beside := c.CountStats(), fake.Control("switched_beside", 0)
			if stats.Beside == 0 && beside > 0 || 2*stats.Beside > switches {
				t.Errorf("%d switches, %d of them known to be beside launches; CUPTI was asked for %d beside launches", switches, stats.Beside, beside)
			}
			stop(t, c, false)
			stats = c.CountStats()
			var records, counted uint64
			for name, s := range tally(t, c, doubts, launched) {
				// Where the machine is so busy that a switch takes very long, the list of doubts is full.
				if s.records+s.counted < s.launches || s.records+s.counted > s.launches+stats.Unlisted ||
					s.traced > s.records || s.traced+stats.Unlisted < s.records {
					t.Errorf("%s: %+v", name, s)
				}
				records += s.records
				counted += s.counted
			}
			if records == 0 || counted == 0 || stats.Traced <= 0 ||
				stats != (CountStats{Switches: switches, Beside: stats.Beside, Unlisted: stats.Unlisted, Traced: stats.Traced}) {
				t.Errorf("%d records, %d counted, %+v, want both and %d switches", records, counted, stats, switches)
			}
			const copies = 1<<1 | 1<<2 | 1<<22 // nobody knows whether one is under way
			if n := fake.Control("enabled", 0) &^ copies; n != 0 {
				t.Errorf("after Stop CUPTI still records %x", n)
			}
			if n := fake.Control("callbacks", 0); n != 0 {
				t.Errorf("after Stop CUPTI still tells of %d functions", n)
			}
		})
	}
}

// TestSwitchesDoNotWaitForALongLaunch has a launch that waits for room in the device's queue.
func TestSwitchesDoNotWaitForALongLaunch(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	setModes(t, c, ModeCount, ModeTrace)
	fake.Launch("kernel", 3)
	fake.Control("hold", 1)
	release := sync.OnceFunc(func() { fake.Control("hold", 0) })
	defer release()
	var held sync.WaitGroup
	held.Go(func() { fake.Launch("kernel", 1) })
	for fake.Control("held", 0) == 0 {
		time.Sleep(time.Millisecond)
	}
	setModes(t, c, ModeCount)
	if s := c.CountStats(); s.Switches != 3 || s.Beside != 1 {
		t.Errorf("%+v, want the last of 3 switches to be beside the launch", s)
	}
	release()
	held.Wait()
	fake.Launch("kernel", 5)
	stop(t, c, false)
	all := tally(t, c, nil, map[string]uint64{"kernel": 9})
	if s := all["kernel"]; s.records+s.counted != 9 || s.records < 3 || s.records > 4 {
		t.Errorf("%+v", s)
	}
}

// TestNothingIsTwice switches to being blind as well: then launches are missing, but none is in two places.
func TestNothingIsTwice(t *testing.T) {
	fake, c := open(t, Config{Buffers: 64})
	start(t, c)
	launched := map[string]uint64{}
	var running sync.WaitGroup
	for i := range 4 {
		name := fmt.Sprintf("kernel_%d", i)
		launched[name] = 20_000
		running.Go(func() { fake.LaunchThreads(1, 20_000, name) })
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	rng := rand.New(rand.NewPCG(2, 0))
	var doubts []Doubt
	for finished := false; !finished; {
		select {
		case <-done:
			finished = true
		case <-time.After(time.Duration(rng.IntN(1000)) * time.Microsecond):
		}
		if err := c.SetMode(Mode(rng.IntN(3))); err != nil {
			t.Fatal(err)
		}
		doubts = c.Doubts(doubts)
	}
	stop(t, c, false)
	for name, s := range tally(t, c, doubts, launched) {
		if s.records+s.counted > s.launches || s.traced > s.records {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestModes(t *testing.T) {
	fake, c := open(t, Config{})
	if err := c.SetMode(ModeCount); !errors.Is(err, ErrNotRunning) {
		t.Errorf("SetMode before Start: %v", err)
	}
	start(t, c)
	enabled := fake.Control("enabled", 0)
	fake.Launch("before", 5)
	for _, step := range []struct {
		mode     Mode
		launches int
	}{{ModeTrace, 10}, {ModeCount, 20}, {ModeBlind, 40}, {ModeTrace, 80}, {ModeBlind, 160}, {ModeCount, 320}, {ModeCount, 640}, {ModeTrace, 1280}} {
		if err := c.SetMode(step.mode); err != nil {
			t.Fatal(err)
		}
		// CUPTI's own costs are recorded all the time.
		want := int64(1) << 17
		if step.mode == ModeTrace {
			want = enabled
		}
		if got := fake.Control("enabled", 0); got != want {
			t.Errorf("in %v CUPTI records %x, want %x", step.mode, got, want)
		}
		fake.Launch("kernel", step.launches)
	}
	if err := c.SetMode(ModeBlind + 1); err == nil {
		t.Error("there is a fourth mode")
	}
	stop(t, c, false)
	if err := c.SetMode(ModeCount); !errors.Is(err, ErrNotRunning) {
		t.Errorf("SetMode after Stop: %v", err)
	}
	all := tally(t, c, nil, map[string]uint64{"before": 5, "kernel": 2550})
	if want := (seen{launches: 5, records: 5}); all["before"] != want {
		t.Errorf("before: %+v, want %+v", all["before"], want)
	}
	if want := (seen{launches: 2550, records: 1370, traced: 1370, counted: 980}); all["kernel"] != want {
		t.Errorf("kernel: %+v, want %+v", all["kernel"], want)
	}

	// The next session begins as the first did, and goes on counting.
	before := c.LaunchCounts(nil)
	start(t, c)
	if got := fake.Control("enabled", 0); got != enabled {
		t.Errorf("started again, CUPTI records %x, want %x", got, enabled)
	}
	fake.Launch("kernel", 3)
	if err := c.SetMode(ModeCount); err != nil {
		t.Fatal(err)
	}
	fake.Launch("kernel", 7)
	stop(t, c, false)
	n := 0
	if l := inSession(t, c, before, "kernel", func(*Head) { n++ }); l.Counted != 7 || l.Traced != 0 { // counting began with the mode
		t.Errorf("%+v", l)
	}
	if n != 3 {
		t.Errorf("%d records in the second session, want 3", n)
	}
}

// settled is how long Detach may wait for what was launched, on a busy machine.
const settled = time.Minute

// TestHowLongWasTraced: only ModeTrace counts, also while it lasts, and across leaving CUPTI.
func TestHowLongWasTraced(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	const rest = 40 * time.Millisecond
	var least, most time.Duration
	check := func(when string, got time.Duration) {
		t.Helper()
		if got < least || got > most {
			t.Errorf("%s: %v traced, want %v to %v", when, got, least, most)
		}
	}
	// in is in a mode for some time, which is counted or not, after another that was counted or not until then.
	was, last := false, time.Now()
	in := func(m Mode, counted bool) {
		t.Helper()
		setModes(t, c, m)
		reached := time.Now()
		fake.Launch("kernel", 1)
		time.Sleep(rest)
		if counted {
			least += time.Since(reached)
		}
		got := c.CountStats().Traced
		now := time.Now()
		switch {
		case counted:
			most += now.Sub(last)
		case was:
			most += reached.Sub(last)
		}
		check(m.String(), got)
		was, last = counted, now
	}
	check("before anything is counted", c.CountStats().Traced)
	in(ModeTrace, true)
	in(ModeCount, false)
	in(ModeBlind, false)
	in(ModeTrace, true)
	in(ModeCount, false)
	if _, err := c.Detach(ModeBlind, settled); err != nil {
		t.Fatal(err)
	}
	in(ModeBlind, false)
	in(ModeTrace, true)
	stop(t, c, false)
	least, most = c.CountStats().Traced, c.CountStats().Traced
	time.Sleep(rest)
	check("after the end", c.CountStats().Traced)
}

func TestDetach(t *testing.T) {
	fake, c := open(t, Config{})
	if _, err := c.Detach(ModeCount, 0); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Detach before Start: %v", err)
	}
	fake.Control("finalized", 0)
	start(t, c)
	enabled := fake.Control("enabled", 0)
	mode := func(m Mode, launches int) {
		t.Helper()
		if err := c.SetMode(m); err != nil {
			t.Fatal(err)
		}
		fake.Launch("kernel", launches)
	}
	detach := func(m Mode, wantGap bool, launches int) {
		t.Helper()
		gap, err := c.Detach(m, settled)
		if err != nil || (gap > 0) != wantGap {
			t.Fatalf("Detach(%v): gap %v, %v; want a gap: %v", m, gap, err, wantGap)
		}
		if n := fake.Control("enabled", 0); n != 0 {
			t.Errorf("detached, CUPTI records %x", n)
		}
		if n := fake.Control("subscribed", 0); (n == 1) != (m == ModeCount) {
			t.Errorf("in %v there are %d subscribers", m, n)
		}
		fake.Launch("kernel", launches)
		if err := c.Flush(); err != nil { // as a recorder does all the time
			t.Error(err)
		}
		if got := c.Mode(); got != m {
			t.Errorf("in %v the mode is %v", m, got)
		}
	}
	mode(ModeTrace, 1)
	if _, err := c.Detach(ModeBlind, 0); !errors.Is(err, ErrBusy) {
		t.Errorf("Detach while there are records: %v", err)
	}
	if _, err := c.Detach(ModeTrace, 0); err == nil {
		t.Error("there are records without CUPTI")
	}
	if n := fake.Control("enabled", 0); n != enabled {
		t.Errorf("CUPTI records %x, want %x", n, enabled)
	}
	mode(ModeCount, 2)
	detach(ModeCount, true, 4)
	told := fake.Control("callbacks", 0)
	locked(t, func() {
		// A scope that is open while CUPTI is left wants nothing but launches told.
		id := c.NextScopeID()
		if err := c.PushScope(id); err != nil {
			t.Error(err)
		}
		mode(ModeCount, 8)
		if n := fake.Control("callbacks", 0); n != told {
			t.Errorf("with a scope open CUPTI tells of %d functions, want %d", n, told)
		}
		// Callbacks alone are not switched off and on.
		mode(ModeBlind, 16)
		if n := fake.Control("callbacks", 0); n != told {
			t.Errorf("in %v CUPTI tells of %d functions, want %d", ModeBlind, n, told)
		}
		if err := c.PopScope(id); err != nil {
			t.Error(err)
		}
	})
	mode(ModeCount, 32)
	mode(ModeTrace, 64)
	if n := fake.Control("enabled", 0); n != enabled {
		t.Errorf("back, CUPTI records %x, want %x", n, enabled)
	}
	id := c.NextScopeID()
	locked(t, func() {
		if err := c.PushScope(id); err != nil {
			t.Error(err)
		}
		fake.Launch("kernel", 128)
		if err := c.PopScope(id); err != nil {
			t.Error(err)
		}
	})
	mode(ModeCount, 256)
	detach(ModeBlind, true, 512)
	mode(ModeBlind, 1024)
	detach(ModeBlind, false, 2048) // it is left already
	mode(ModeTrace, 4096)
	mode(ModeBlind, 8192)
	detach(ModeCount, true, 16384)
	if n := fake.Control("finalized", 0); n != 3 {
		t.Errorf("CUPTI was left %d times, want 3", n)
	}
	stats := c.CountStats()
	if stats.Detached != 3 || stats.Gap <= 0 || stats.Unlisted+stats.Lost != 0 {
		t.Errorf("%+v", stats)
	}
	stop(t, c, true)

	scoped := 0
	records := 0
	counts := inSession(t, c, nil, "kernel", func(h *Head) {
		if h.Kind == KindKernel && h.Name.Full == "kernel" {
			records++
		}
		if h.Scope == id {
			scoped++
		}
	})
	if want := 1 + 64 + 128 + 4096; records != want || scoped != 128 {
		t.Errorf("%d records, %d in the scope, want %d and 128", records, scoped, want)
	}
	if want := uint64(2 + 4 + 8 + 16 + 32 + 256 + 16384); counts.Traced != uint64(records) || counts.Counted != want {
		t.Errorf("%+v, want %d traced and %d counted", counts, records, want)
	}

	// The next session is as if nothing had been.
	start(t, c)
	if n := fake.Control("enabled", 0); n != enabled {
		t.Errorf("started again, CUPTI records %x, want %x", n, enabled)
	}
	mode(ModeTrace, 3)
	mode(ModeCount, 0)
	detach(ModeBlind, true, 5)
	stop(t, c, false) // while CUPTI is left
	if n := len(drain(t, c)); n != 3 {
		t.Errorf("%d records in the second session, want 3", n)
	}
	start(t, c)
	mode(ModeTrace, 0)
	mode(ModeCount, 0)
	detach(ModeCount, true, 0)
	stop(t, c, false) // while only callbacks are told
	before := c.LaunchCounts(nil)
	start(t, c)
	mode(ModeTrace, 7)
	mode(ModeCount, 11)
	stop(t, c, true)
	n := 0
	if l := inSession(t, c, before, "kernel", func(*Head) { n++ }); l.Traced != 7 || l.Counted != 11 {
		t.Errorf("%+v, want 7 traced and 11 counted", l)
	}
	if n != 7 {
		t.Errorf("%d records in the last session, want 7", n)
	}
}

// locked runs f on one OS thread.
func locked(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f()
}

func TestDetachThatCannotBe(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	fake.Control("finalized", 0)
	setModes(t, c, ModeTrace, ModeCount)
	refused := func(why string, want error) {
		t.Helper()
		if _, err := c.Detach(ModeBlind, 0); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", why, err, want)
		}
		if n := fake.Control("finalized", 0); n != 0 {
			t.Fatalf("%s: CUPTI was left", why)
		}
		fake.Launch("kernel", 1)
	}
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	refused("paused", ErrBusy)
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	if rc := fake.BeginCapture(7); rc != 0 {
		t.Fatal(rc)
	}
	refused("during a capture", ErrBusy)
	if rc := fake.EndCapture(7); rc != 0 {
		t.Fatal(rc)
	}
	fake.Control("silent", 1) // CUPTI tells of no call in which it could be left
	if _, err := c.Detach(ModeBlind, settled); !errors.Is(err, ErrCannotDetach) {
		t.Errorf("without callbacks: %v", err)
	}
	fake.Control("silent", 0)
	fake.Launch("kernel", 1)

	// It is left and cannot be taken up again at first.
	fake.Control("refuse_subscribe", 39)
	gap, err := c.Detach(ModeCount, settled)
	fake.Launch("kernel", 100)
	if err == nil || gap <= 0 || fake.Control("finalized", 0) != 1 {
		t.Errorf("another profiler came in between: gap %v, %v", gap, err)
	}
	if err := c.SetMode(ModeTrace); err == nil {
		t.Error("records are on though CUPTI refused")
	}
	fake.Control("refuse_subscribe", 0)
	setModes(t, c, ModeTrace)
	fake.Launch("kernel", 10)
	stop(t, c, false)
	all := tally(t, c, nil, map[string]uint64{"kernel": 113})
	if want := (seen{launches: 113, records: 10, traced: 10, counted: 3}); all["kernel"] != want {
		t.Errorf("%+v, want %+v", all["kernel"], want)
	}

	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, deep, _ := openDeep(t, Config{})
	start(t, deep)
	if err := deep.SetMode(ModeCount); err != nil {
		t.Fatal(err)
	}
	if _, err := deep.Detach(ModeBlind, settled); !errors.Is(err, ErrCannotDetach) {
		t.Errorf("where windows were asked for: %v", err)
	}
}

// TestDetachWhileThreadsLaunch leaves CUPTI and comes back all the time. What is launched meanwhile may be missing, and
// the counts may not know a launch that began before they did and has a record, but nothing is in two places.
func TestDetachWhileThreadsLaunch(t *testing.T) {
	fake, c := open(t, Config{Buffers: 64})
	fake.Control("finalized", 0)
	start(t, c)
	if err := c.SetMode(ModeTrace); err != nil {
		t.Fatal(err)
	}
	launched := map[string]uint64{}
	var running sync.WaitGroup
	stopped := make(chan struct{})
	var counts [4]uint64
	for i := range counts {
		running.Go(func() {
			for {
				select {
				case <-stopped:
					return
				default:
					fake.LaunchThreads(1, 500, fmt.Sprint("kernel_", i))
					counts[i] += 500
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(3, 0))
	var doubts []Doubt
	for left := 0; left < 40; {
		if err := c.SetMode(ModeTrace + Mode(rng.IntN(3))); err != nil {
			t.Fatal(err)
		}
		if err := c.SetMode(ModeCount); err != nil {
			t.Fatal(err)
		}
		switch _, err := c.Detach(ModeCount+Mode(rng.IntN(2)), settled); {
		case err == nil:
			left++
		case !errors.Is(err, ErrCannotDetach): // the program's threads may keep CUPTI from telling of our call
			t.Fatal(err)
		}
		doubts = c.Doubts(doubts)
	}
	close(stopped)
	running.Wait()
	stop(t, c, false)
	for i, n := range counts {
		launched[fmt.Sprint("kernel_", i)] = n
	}
	unlisted := c.CountStats().Unlisted
	for name, s := range tally(t, c, doubts, launched) {
		if s.records+s.counted > s.launches+unlisted || s.traced > s.records {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if n := fake.Control("finalized", 0); n != 40 {
		t.Errorf("CUPTI was left %d times", n)
	}
}

func TestCopiesSetsAndGraphsAreCounted(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	if err := c.SetMode(ModeTrace); err != nil {
		t.Fatal(err)
	}
	fake.Memory(1000)
	fake.Graph(3)
	if err := c.SetMode(ModeCount); err != nil {
		t.Fatal(err)
	}
	fake.Memory(500)
	fake.Memory(24)
	fake.Graph(3)
	stop(t, c, false)
	// Whether the first of a thread since a switch has a record is decided by its record.
	r := NewReconciler()
	r.Add(c.Doubts(nil))
	reconcile(t, c, r, func(*Head) {})
	got := c.LaunchCounts(nil)
	for _, want := range []LaunchCount{
		{Operation: CountOtherKernel},
		{Operation: CountGraph, Traced: 1, Counted: 1},
		{Operation: CountHtoD, Traced: 1, Counted: 2, Bytes: 1524},
		{Operation: CountDtoH, Traced: 1, Counted: 2, Bytes: 1524},
		{Operation: CountDtoD},
		{Operation: CountOtherCopy},
		{Operation: CountSet, Traced: 1, Counted: 2, Bytes: 1524},
	} {
		if l := decided(got[want.Operation], r, int(want.Operation)); l != want {
			t.Errorf("%+v, want %+v", l, want)
		}
	}
}

// TestNamesAtTheSameAddress has kernels whose names take each other's place in memory, as they do when modules
// are unloaded.
func TestNamesAtTheSameAddress(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	if err := c.SetMode(ModeCount); err != nil {
		t.Fatal(err)
	}
	launched := map[string]uint64{}
	for i := range 200 {
		name := fmt.Sprintf("kernel_of_module_%d", i%7) // freed when it returns, and allocated anew
		launched[name] += uint64(i)
		fake.LaunchThreads(1, i, name)
	}
	stop(t, c, false)
	for name, s := range tally(t, c, nil, launched) {
		if s.counted != s.launches || s.records != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestSetModeFails(t *testing.T) {
	fake, c := open(t, Config{})
	start(t, c)
	if err := c.SetMode(ModeCount); err != nil {
		t.Fatal(err)
	}
	fake.Control("refuse_kind", 10<<16|999)
	err := c.SetMode(ModeTrace)
	if err == nil {
		t.Error("records are on though CUPTI refused")
	}
	fake.Launch("kernel", 5)
	if got := fake.Control("enabled", 0); got != 1<<17 {
		t.Errorf("half of the kinds are on: %x", got)
	}
	fake.Control("refuse_kind", 10<<16)
	if err := c.SetMode(ModeTrace); err != nil {
		t.Error(err)
	}
	fake.Launch("kernel", 7)

	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	for _, m := range []Mode{ModeCount, ModeBlind} {
		if err := c.SetMode(m); !errors.Is(err, ErrPaused) {
			t.Errorf("SetMode(%v) while paused: %v", m, err)
		}
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := c.SetMode(ModeCount); err != nil {
		t.Error(err)
	}
	stop(t, c, false)
	all := tally(t, c, nil, map[string]uint64{"kernel": 12})
	if want := (seen{launches: 12, records: 7, traced: 7, counted: 5}); all["kernel"] != want {
		t.Errorf("%+v, want %+v", all["kernel"], want)
	}
}

// TestMoreKernelsThanThereIsRoomFor runs in a process of its own, since names are never forgotten.
func TestMoreKernelsThanThereIsRoomFor(t *testing.T) {
	if os.Getenv("GPUFLIGHT_TEST_MANY_KERNELS") == "" {
		cuptitest.Libraries(t)
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestMoreKernelsThanThereIsRoomFor$")
		cmd.Env = append(os.Environ(), "GPUFLIGHT_TEST_MANY_KERNELS=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	fake, c := open(t, Config{})
	start(t, c)
	if err := c.SetMode(ModeCount); err != nil {
		t.Fatal(err)
	}
	const names = 10_000
	for i := range names {
		fake.Launch(fmt.Sprintf("kernel_%d", i), 2)
	}
	fake.Launch("kernel_0", 1)
	counts := c.LaunchCounts(nil)
	var sum, traced uint64
	for _, l := range counts {
		sum += l.Launches()
		traced += l.Traced
	}
	own := uint64(len(counts) - int(CountKernel))
	if want := 2 * (names - own); own < 8000 || sum != 2*names+1 || traced != 0 || counts[CountOtherKernel].Launches() != want || c.CountStats().Unnamed != want {
		t.Errorf("%d kernels with names, %d launches, %d without a name, %+v", own, sum, counts[CountOtherKernel].Launches(), c.CountStats())
	}
}

func TestReconcilerIsBounded(t *testing.T) {
	r := NewReconciler()
	doubts := make([]Doubt, maxDoubts+10)
	for i := range doubts {
		doubts[i] = Doubt{Correlation: uint32(i) + 100, What: uint32(i % 2)}
	}
	r.Add(doubts)
	if r.Forgotten(0) != 5 || r.Forgotten(1) != 5 {
		t.Errorf("%d and %d forgotten, want 5 each", r.Forgotten(0), r.Forgotten(1))
	}
	if r.Record(0, 99) || r.Record(0, 100+maxDoubts) || r.Record(1, 100) || !r.Record(0, 100) || r.Record(0, 100) || !r.Record(0, 101) {
		t.Error("the wrong records are those of doubtful launches")
	}
	r.Age()
	if !r.Record(0, 102) {
		t.Error("a doubtful launch was given up at the first Age")
	}
	if without := r.Age(); without[0] != maxDoubts/2-2 || without[1] != maxDoubts/2-1 {
		t.Errorf("%v have no record", without)
	}
	if r.Record(0, 103) {
		t.Error("a doubtful launch outlived two")
	}
	if r.Traced(0) != 2 || r.Traced(1) != 1 || r.Traced(2) != 0 {
		t.Errorf("traced %d, %d and %d", r.Traced(0), r.Traced(1), r.Traced(2))
	}
}

// TestReconcilerWithARecordBeforeItsDoubt has the end of a launch told after its record was read: its thread was held up.
func TestReconcilerWithARecordBeforeItsDoubt(t *testing.T) {
	r := NewReconciler()
	r.Add([]Doubt{{Correlation: 1, What: 20}})
	for id := range uint32(3 * lastRecords / 2) {
		r.Record(0, 10+id)
	}
	const last = 9 + 3*lastRecords/2
	before := r.Add([]Doubt{{Correlation: last, What: 21}, {Correlation: last - lastRecords + 1, What: 22}, {Correlation: last - lastRecords, What: 23}, {Attachment: 1, Correlation: last, What: 24}})
	if !slices.Equal(before, []uint32{21, 22}) || r.Traced(21) != 1 || r.Traced(22) != 1 {
		t.Errorf("%v had records before their doubts, want 21 and 22", before)
	}
	r.Age()
	if without := r.Age(); !maps.Equal(without, map[uint32]uint64{20: 1, 23: 1, 24: 1}) {
		t.Errorf("%v have none", without)
	}
}

func BenchmarkLaunch(b *testing.B) {
	for _, mode := range []string{"off", "count"} {
		b.Run(mode, func(b *testing.B) {
			fake := cuptitest.Libraries(b)
			c, err := Open(Config{Library: fake.CUPTI, Kinds: KindsOf(KindOverhead)})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			if err := c.Start(); err != nil {
				b.Fatal(err)
			}
			if mode == "count" {
				if err := c.SetMode(ModeCount); err != nil {
					b.Fatal(err)
				}
			}
			fake.LaunchThreads(1, b.N, "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_")
		})
	}
}

// TestSizesAreWhereNVIDIAsHeadersHaveThem compares where calls say how much they copy or set.
func TestSizesAreWhereNVIDIAsHeadersHaveThem(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: compiles six C programs")
	}
	headers := cudaHeaders(t)
	parameters := regexp.MustCompile(`(?s)typedef struct (cu(Memcpy|Memset)\w+|cuMemcpy)_params_st \{(.*?)\}`)
	for _, release := range layoutReleases {
		t.Run(release.cuda, func(t *testing.T) {
			t.Parallel()
			include := filepath.Join(headers, release.cuda)
			text, err := os.ReadFile(filepath.Join(include, "generated_cuda_meta.h"))
			if err != nil {
				t.Fatal(err)
			}
			var checks strings.Builder
			n := 0
			for _, m := range parameters.FindAllSubmatch(text, -1) {
				name, fields := string(m[1]), string(m[3])
				size, rows := "0", "0"
				linear := !strings.Contains(name, "toA") && !strings.Contains(name, "Ato")
				switch {
				case strings.Contains(fields, "size_t Width;"):
					size, rows = "offsetof("+name+"_params, Width)", "offsetof("+name+"_params, Height)"
				case strings.Contains(fields, "size_t N;"):
					size = "offsetof(" + name + "_params, N)"
				case strings.Contains(fields, "size_t ByteCount;") && linear:
					size = "offsetof(" + name + "_params, ByteCount)"
				}
				if size != "0" {
					n++
				}
				unit := "1"
				for _, bits := range []int{16, 32} {
					if linear && strings.Contains(name, fmt.Sprintf("D%d", bits)) && size != "0" {
						unit = strconv.Itoa(bits / 8)
					}
				}
				fmt.Fprintf(&checks, "\tcheck(%q, %s, %s, %s);\n", name, size, rows, unit)
			}
			if n < 35 {
				t.Errorf("only %d functions with a size found", n)
			}
			program := `#include <stdio.h>
#include "count.c"
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <generated_cuda_meta.h>
atomic_bool gpufl_child, gpufl_running;
void gpufl_watch_fork(void) {}
bool gpufl_enter(void) { return false; }
void gpufl_leave(void) {}
int gpufl_hold(bool hold, uint32_t kinds) { return 0; }
int gpufl_watch_counting(int want) { return 0; }
int gpufl_detach(void) { return 0; }
int gpufl_attach(bool records) { return 0; }
uint32_t gpufl_attachment(void) { return 0; }
bool gpufl_bare(void) { return false; }
int gpufl_deep_deaf(void) { return 0; }
int64_t gpufl_monotonic(void) { return 0; }
int gpufl_quiet_begin(int64_t limit_ns) { return 0; }
void gpufl_quiet_end(int quiet) {}
static void check(const char *name, size_t size, size_t rows, int unit) {
	memset(&forms[1], 0, sizeof forms[1]);
	gpufl_count_learn(1, name);
	if (forms[1].counts != 1 || forms[1].size != size || forms[1].rows != rows || forms[1].unit != unit)
		printf("%s: counted %d, size at %d, rows at %d, unit %d; in the headers %zu, %zu and %d\n", name, forms[1].counts,
			forms[1].size, forms[1].rows, forms[1].unit, size, rows, unit);
}
int main(void) {
` + checks.String() + "\treturn 0;\n}\n"
			for _, line := range runC(t, include, program) {
				t.Error(line)
			}
		})
	}
}

// TestModeBesideACopy: where a copy is under way records of copies stay on, until they are switched again, and each copy is counted once.
func TestModeBesideACopy(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("switched again: %t", again), func(t *testing.T) {
			fake, c := open(t, Config{Kinds: KindsOf(KindKernel, KindMemcpy, KindMemset)})
			start(t, c)
			setModes(t, c, ModeTrace, ModeCount, ModeTrace)
			letGo := heldCopy(t, fake)
			setModes(t, c, ModeCount)
			const kernel, memcpy, memset = 1 << 10, 1 << 1, 1 << 2
			enabled := func(want int64) {
				t.Helper()
				if on := fake.Control("enabled", 0); on != want {
					t.Errorf("activity kinds %#x", on)
				}
			}
			enabled(memcpy | memset)
			letGo() // two copies and a set with records
			fake.Launch("counted", 3)
			copies, sets := 2, 1
			if again {
				setModes(t, c, ModeCount)
				enabled(0)
				fake.Memory(64)
			} else {
				fake.Memory(64)
				copies, sets = 2*copies, 2*sets
			}
			c.Doubts(nil)
			setModes(t, c, ModeTrace)
			enabled(kernel | memcpy | memset)
			fake.Launch("recorded", 2)
			fake.Memory(64)
			copies, sets = copies+2, sets+1
			// The first of a kind is doubtful, but what stayed on was not switched.
			want := map[CountedOperation]int{CountKernel: 1}
			if again {
				want[CountHtoD], want[CountSet] = 1, 1
			}
			rows, doubts := c.LaunchCounts(nil), map[CountedOperation]int{}
			for _, d := range c.Doubts(nil) {
				doubts[rows[d.What].Operation]++
			}
			if !maps.Equal(doubts, want) {
				t.Errorf("doubtful: %v", doubts)
			}
			setModes(t, c, ModeCount)
			enabled(0)
			if s := c.CountStats(); s.Beside != 1 {
				t.Errorf("%+v", s)
			}
			stop(t, c, false)
			all := drain(t, c)
			if got := [3]int{count(all, KindKernel), count(all, KindMemcpy), count(all, KindMemset)}; got != [3]int{2, copies, sets} {
				t.Errorf("kernels, copies and sets: %v", got)
			}
			launched := map[CountedOperation]uint64{}
			for _, l := range c.LaunchCounts(nil) {
				launched[l.Operation] += l.Launches()
			}
			maps.DeleteFunc(launched, func(_ CountedOperation, n uint64) bool { return n == 0 })
			if !maps.Equal(launched, map[CountedOperation]uint64{CountKernel: 5, CountHtoD: 3, CountDtoH: 3, CountSet: 3}) {
				t.Errorf("%v", launched)
			}
		})
	}
}
