// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// usage is what a leak would show in.
type usage struct{ files, threads, residentKiB, mappings int }

func measure(t *testing.T) usage {
	t.Helper()
	runtime.GC()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	u := usage{files: len(files), threads: len(threads)}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	u.mappings = bytes.Count(maps, []byte("\n"))
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if f := bytes.Fields(line); len(f) == 3 && string(f[0]) == "VmRSS:" {
			u.residentKiB, err = strconv.Atoi(string(f[1]))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return u
}

func TestThousandStartsAndStopsLeakNothing(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, c := open(t, Config{BufferBytes: 256 << 10, Buffers: 8})
	fake.Set(t, "own_thread", 1)
	rounds := 1000
	cycle := func(i int) {
		start(t, c)
		id := c.NextScopeID()
		if err := c.PushScope(id); err != nil {
			t.Fatal(err)
		}
		fake.Launch("_Z5cyclev", 50)
		if err := c.PopScope(id); err != nil {
			t.Fatal(err)
		}
		stop(t, c, true)
		heads := drain(t, c)
		if len(heads) != 50 || heads[0].Scope != id || heads[49].Scope != id {
			t.Fatalf("round %d: %d records", i, len(heads))
		}
	}
	for i := range 100 { // until everything has its size
		cycle(i)
	}
	before := measure(t)
	for i := range rounds {
		cycle(i)
	}
	after := measure(t)
	t.Logf("before %+v, after %+v", before, after)
	// The runtime starts a thread now and then, and so does the fake. 8 MiB in 1,000 rounds are
	// less than the smallest thing that could be lost in each: a page of its own with its mapping,
	// 8 KiB.
	if after.files > before.files || after.threads > before.threads+4 || after.mappings > before.mappings+20 || after.residentKiB > before.residentKiB+8<<10 {
		t.Errorf("before %+v, after %d rounds %+v", before, rounds, after)
	}
	if n := fake.Control("finalized", 0); n < int64(rounds) {
		t.Errorf("finalized %d times", n)
	}
	if s := c.Stats(); s.Records != uint64(50*(rounds+100)) || s.Dropped != 0 || s.Rejected != [NumRejects]uint64{} {
		t.Errorf("stats %+v", s)
	}
}

func TestHundredOpensAndClosesLeakNothing(t *testing.T) {
	fake, first := open(t, Config{})
	library := first.Status().Library
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	cycle := func() {
		c, err := Open(Config{Library: library, BufferBytes: 1 << 20, Buffers: 4})
		if err != nil {
			t.Fatal(err)
		}
		start(t, c)
		fake.Launch("k", 20)
		stop(t, c, true)
		if n := len(drain(t, c)); n != 20 {
			t.Fatalf("%d records", n)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		cycle()
	}
	before := measure(t)
	for range 100 {
		cycle()
	}
	after := measure(t)
	// A lost buffer would be a mapping of 1 MiB each time.
	if after.files > before.files || after.mappings > before.mappings+20 || after.residentKiB > before.residentKiB+32<<10 {
		t.Errorf("before %+v, after %+v", before, after)
	}
}
