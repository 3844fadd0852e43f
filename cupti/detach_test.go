// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
)

const detachLimit = 10 * time.Second

func detach(t *testing.T, c *Collector) {
	t.Helper()
	if _, err := c.Detach(detachLimit); err != nil {
		t.Fatal(err)
	}
}

func attach(t *testing.T, c *Collector) {
	t.Helper()
	if err := c.Attach(); err != nil {
		t.Fatal(err)
	}
}

// ready takes what can be taken without waiting. The session must not be at its end.
func ready(t *testing.T, c *Collector) (all []Head) {
	t.Helper()
	for {
		b, err := c.Take(0)
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			return all
		}
		for i := range b.Len() {
			all = append(all, *b.Head(i))
		}
		b.Release()
	}
}

func hooks(fake *cuptitest.Fake) string {
	return fmt.Sprintf("subscribers %d, kinds %x, callbacks %d", fake.Control("subscribed", 0), fake.Control("enabled", 0), fake.Control("callbacks", 0))
}

func TestDetach_RecordsAndScopes(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, c := open(t, Config{Detachable: true})
	fake.Control("finalized", 0)
	start(t, c)
	push := func() uint64 {
		t.Helper()
		id := c.NextScopeID()
		if err := c.PushScope(id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	pop := func(id uint64) {
		t.Helper()
		if err := c.PopScope(id); err != nil {
			t.Fatal(err)
		}
	}
	outer := push()
	fake.Launch("_Z6beforev", 100)
	detach(t, c)
	if got, want := hooks(fake), "subscribers 0, kinds 0, callbacks 0"; got != want {
		t.Errorf("detached: %s, want %s", got, want)
	}
	fake.Launch("_Z6hiddenv", 50)
	inner := push()
	fake.Launch("_Z6hiddenv", 50)
	// The fake unmaps kernel names as it is finalized.
	first := ready(t, c)
	if err := c.Flush(); err != nil {
		t.Error("flush while detached: ", err)
	}
	attach(t, c)
	attach(t, c) // changes nothing
	fake.Launch("_Z5innerv", 30)
	pop(inner)
	fake.Launch("_Z5outerv", 20)
	pop(outer)
	stop(t, c, true)
	second := drain(t, c)

	type key struct {
		name  string
		scope uint64
	}
	count := func(heads []Head) map[key]int {
		all := map[key]int{}
		for i := range heads {
			all[key{heads[i].Name.Short, heads[i].Scope}]++
		}
		return all
	}
	if got := count(first); len(got) != 1 || got[key{"before", outer}] != 100 {
		t.Errorf("before: %v", got)
	}
	if got := count(second); len(got) != 2 || got[key{"inner", inner}] != 30 || got[key{"outer", outer}] != 20 {
		t.Errorf("after: %v", got)
	}
	if n := fake.Control("finalized", 0); n != 2 {
		t.Errorf("finalized %d times, want 2", n)
	}
	if s := c.Stats(); s.Records != 150 || s.Dropped != 0 || s.Unreturned != 0 || s.Rejected != [NumRejects]uint64{} {
		t.Errorf("stats %+v", s)
	}
}

func TestDetach_Attachments(t *testing.T) {
	fake, c := open(t, Config{Detachable: true})
	start(t, c)
	var attachments, correlations []uint32
	for range 3 {
		fake.Launch("k", 1)
		detach(t, c)
		b, err := c.Take(0)
		if err != nil || b == nil {
			t.Fatalf("took %v, %v", b, err)
		}
		attachments = append(attachments, b.Attachment())
		correlations = append(correlations, b.Head(0).Correlation)
		b.Release()
		attach(t, c)
	}
	if attachments[1] != attachments[0]+1 || attachments[2] != attachments[0]+2 {
		t.Errorf("attachments %v", attachments)
	}
	if correlations[1] != correlations[2] { // the fake begins again, as CUPTI does
		t.Errorf("correlation ids %v", correlations)
	}
}

func TestDetach_StopWhileDetached(t *testing.T) {
	for _, finalize := range []bool{false, true} {
		t.Run(fmt.Sprintf("finalize %v", finalize), func(t *testing.T) {
			fake, c := open(t, Config{Detachable: true})
			start(t, c)
			fake.Launch("k", 7)
			detach(t, c)
			stop(t, c, finalize)
			if n := len(drain(t, c)); n != 7 {
				t.Errorf("%d records, want 7", n)
			}
			if err := c.Attach(); !errors.Is(err, ErrNotRunning) {
				t.Errorf("attach after stop: %v", err)
			}
			start(t, c)
			fake.Launch("k", 8)
			stop(t, c, true)
			if n := len(drain(t, c)); n != 8 {
				t.Errorf("%d records the second time, want 8", n)
			}
		})
	}
}

func TestDetach_WorkInFlight(t *testing.T) {
	fake, c := open(t, Config{Detachable: true})
	start(t, c)
	fake.Set(t, "incomplete", 1)
	fake.Launch("k", 5)
	if _, err := c.Detach(20 * time.Millisecond); !errors.Is(err, ErrInFlight) {
		t.Fatalf("error %v, want ErrInFlight", err)
	}
	fake.Launch("k", 6) // is recorded
	fake.Control("incomplete", 0)
	detach(t, c)
	fake.Launch("k", 100)
	if n := len(ready(t, c)); n != 11 {
		t.Errorf("%d records, want 11", n)
	}
}

// A copy that does not return must not have its kind switched off; the cleanup of open checks that.
func TestDetach_CopyInFlight(t *testing.T) {
	fake, c := open(t, Config{Detachable: true})
	start(t, c)
	fake.Launch("k", 5)
	end := heldCopy(t, fake)
	detach(t, c)
	attach(t, c)
	fake.Launch("k", 6)
	end()
	fake.Memory(64)
	stop(t, c, true)
	heads := drain(t, c)
	if n := count(heads, KindKernel); n != 11 {
		t.Errorf("%d kernels, want 11", n)
	}
	if n := count(heads, KindMemcpy); n < 2 {
		t.Errorf("%d copies, want those of the second call at least", n)
	}
}

func TestDetach_StreamCapture(t *testing.T) {
	fake, c := open(t, Config{Detachable: true})
	start(t, c)
	broken := fake.BrokenCaptures()
	fake.BeginCapture(3)
	if _, err := c.Detach(detachLimit); !errors.Is(err, ErrInFlight) {
		t.Errorf("error %v, want ErrInFlight", err)
	}
	if rc := fake.EndCapture(3); rc != 0 {
		t.Errorf("the capture ended with %d", rc)
	}
	detach(t, c)
	attach(t, c)
	fake.BeginCapture(3) // is reported after an attach too
	if _, err := c.Detach(detachLimit); !errors.Is(err, ErrInFlight) {
		t.Errorf("error %v, want ErrInFlight", err)
	}
	fake.EndCapture(3)
	if n := fake.BrokenCaptures() - broken; n != 0 {
		t.Errorf("%d captures were broken", n)
	}
}

func TestDetach_FinalizeFails(t *testing.T) {
	fake, c := open(t, Config{Detachable: true})
	start(t, c)
	fake.Launch("k", 5)
	fake.Control("silent", 1)
	_, err := c.Detach(detachLimit)
	fake.Control("silent", 0)
	if !errors.Is(err, ErrNotDetached) {
		t.Fatalf("error %v, want ErrNotDetached", err)
	}
	fake.Launch("k", 6) // everything is recorded still
	stop(t, c, true)
	if n := len(drain(t, c)); n != 11 {
		t.Errorf("%d records, want 11", n)
	}
}

func TestDetach_Refused(t *testing.T) {
	for _, test := range []struct {
		name   string
		config Config
		start  bool
		want   error
	}{
		{"not allowed", Config{}, true, ErrNotDetached},
		{"windows allowed", Config{Detachable: true, Deep: true}, true, ErrNotDetached},
		{"not started", Config{Detachable: true}, false, ErrNotRunning},
	} {
		t.Run(test.name, func(t *testing.T) {
			fake, c := open(t, test.config)
			if test.start {
				start(t, c)
			}
			if _, err := c.Detach(detachLimit); !errors.Is(err, test.want) {
				t.Errorf("detach: %v, want %v", err, test.want)
			}
			if test.start {
				fake.Launch("k", 3)
				stop(t, c, true)
				if n := len(drain(t, c)); n != 3 {
					t.Errorf("%d records, want 3", n)
				}
			}
		})
	}
}

func TestAttach_AnotherProfiler(t *testing.T) {
	fake, c := open(t, Config{Detachable: true})
	start(t, c)
	detach(t, c)
	fake.Control("refuse_subscribe", cuptiMultipleSubscribers)
	err := c.Attach()
	fake.Control("refuse_subscribe", 0)
	var e *Error
	if !errors.As(err, &e) || e.Status.Reason != ReasonOtherProfiler {
		t.Fatalf("attach: %v, want an *Error of ReasonOtherProfiler", err)
	}
	fake.Launch("k", 3)
	attach(t, c)
	fake.Launch("k", 4)
	stop(t, c, true)
	if n := len(drain(t, c)); n != 4 {
		t.Errorf("%d records, want 4", n)
	}
}

func TestAttach_KindRefused(t *testing.T) {
	fake, c := open(t, Config{Detachable: true, Kinds: KindsOf(KindKernel)})
	start(t, c)
	detach(t, c)
	const concurrentKernel, unknown = 10, 999
	fake.Control("refuse_kind", concurrentKernel<<16|unknown)
	err := c.Attach()
	fake.Control("refuse_kind", concurrentKernel<<16)
	if err == nil {
		t.Fatal("no error although no kind works")
	}
	attach(t, c)
	fake.Launch("k", 4)
	detach(t, c)
	if n := len(ready(t, c)); n != 4 {
		t.Errorf("%d records, want 4", n)
	}
}

// Every record is of a kernel that its thread launched, none is lost, and none is made while
// detached.
func TestDetach_WhileThreadsLaunch(t *testing.T) {
	fake, c := open(t, Config{Detachable: true, BufferBytes: 64 << 10, Buffers: 64})
	fake.Set(t, "own_thread", 1)
	start(t, c)
	const threads, cycles = 4, 100
	done := make(chan struct{})
	var running sync.WaitGroup
	var launched [threads]int
	for i := range launched {
		running.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					fake.LaunchThreads(1, 20, fmt.Sprintf("kernel_%d", i))
					launched[i] += 20
				}
			}
		})
	}
	records := map[string]int{}
	take := func(heads []Head) {
		for i := range heads {
			records[heads[i].Name.Full]++
		}
	}
	for range cycles {
		time.Sleep(time.Millisecond)
		detach(t, c)
		take(ready(t, c))
		if heads := ready(t, c); len(heads) > 0 {
			t.Fatalf("%d records while detached", len(heads))
		}
		attach(t, c)
	}
	close(done)
	running.Wait()
	stop(t, c, true)
	take(drain(t, c))
	total := 0
	for i, n := range launched {
		got := records[fmt.Sprintf("kernel_%d", i)]
		if got == 0 || got > n {
			t.Errorf("kernel_%d: %d records of %d launches", i, got, n)
		}
		total += got
	}
	s := c.Stats()
	if len(records) != threads || s.Records != uint64(total) || s.Dropped != 0 || s.Unreturned != 0 {
		t.Errorf("%d records of %d kernels, stats %+v", total, len(records), s)
	}
	t.Logf("%d of %v launches recorded in %d slices", total, launched, cycles)
}

func TestDetach_ThousandCyclesLeakNothing(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, c := open(t, Config{Detachable: true, BufferBytes: 256 << 10, Buffers: 8})
	fake.Set(t, "own_thread", 1)
	start(t, c)
	id := c.NextScopeID()
	if err := c.PushScope(id); err != nil {
		t.Fatal(err)
	}
	const rounds = 1000
	cycle := func(i int) {
		fake.Launch("_Z5cyclev", 50)
		detach(t, c)
		heads := ready(t, c)
		if len(heads) != 50 || heads[0].Scope != id || heads[49].Scope != id {
			t.Fatalf("cycle %d: %d records", i, len(heads))
		}
		attach(t, c)
	}
	for i := range 100 { // until all tables have their size
		cycle(i)
	}
	before := measure(t)
	for i := range rounds {
		cycle(i)
	}
	after := measure(t)
	if err := c.PopScope(id); err != nil {
		t.Error(err)
	}
	t.Logf("before %+v, after %+v", before, after)
	// As in TestThousandStartsAndStopsLeakNothing.
	if after.files > before.files || after.threads > before.threads+4 || after.mappings > before.mappings+20 || after.residentKiB > before.residentKiB+8<<10 {
		t.Errorf("before %+v, after %d cycles %+v", before, rounds, after)
	}
	if s := c.Stats(); s.Records != 50*(rounds+100) || s.Dropped != 0 || s.Unreturned != 0 {
		t.Errorf("stats %+v", s)
	}
}
