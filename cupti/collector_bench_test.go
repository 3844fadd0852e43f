// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
)

func startBench(b *testing.B) (*cuptitest.Fake, *Collector) {
	b.Helper()
	fake := cuptitest.Libraries(b)
	c, err := Open(Config{Library: fake.CUPTI})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	})
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	return fake, c
}

// A scope's cost to the program: two crossings into C.
func BenchmarkScope(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, c := startBench(b)
	for b.Loop() {
		id := c.NextScopeID()
		if err := c.PushScope(id); err != nil {
			b.Fatal(err)
		}
		if err := c.PopScope(id); err != nil {
			b.Fatal(err)
		}
	}
}

// What the core and the decoder manage when the fake, which takes some 100 ns a launch itself,
// launches without end.
func BenchmarkThroughput(b *testing.B) {
	fake, c := startBench(b)
	var records uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			batch, err := c.Take(time.Second)
			if errors.Is(err, io.EOF) {
				return
			}
			if batch != nil {
				records += uint64(batch.Len())
				batch.Release()
			}
		}
	})
	b.ResetTimer()
	fake.LaunchThreads(1, b.N, "_Z6kernelv")
	if err := c.Stop(true); err != nil {
		b.Fatal(err)
	}
	wg.Wait()
	if s := c.Stats(); records+s.Dropped != uint64(b.N) {
		b.Errorf("%d records and %d drops of %d", records, s.Dropped, b.N)
	}
}
