// SPDX-License-Identifier: Apache-2.0

//go:build linux

package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kernelPrefix is the prefix of the names of our kernels.
const kernelPrefix = "soak_"

// The maximum increase from the median of the first third to that of the last. The Go heap varies
// by some MiB. Half an hour has some 35,000 processes, so a leak of 300 bytes per process would be
// 6 MiB.
const (
	maxRSS        = 4.0 // MiB
	maxFiles      = 5.0
	maxGoroutines = 2.0
	maxLinks      = 5.0
	maxEntries    = 20.0 // of each map
)

// shortLived is the number of workers that start processes in turn; pause is the time between two
// processes.
const (
	shortLived = 2
	pause      = 100 * time.Millisecond
)

// churn starts and ends processes and counts their launches.
type churn struct {
	stub                stub
	launched            atomic.Int64
	processes, copies   atomic.Int64
	killed, left, ended atomic.Int64
}

// attachTime is longer than the time to attach to a new library, some 25 ms.
const attachTime = 3 * time.Second

// first starts the long-running process before all others, so that the agent attaches to its
// library first.
func (c *churn) first(ctx context.Context) (*program, error) {
	p, err := c.stub.start()
	if err != nil {
		return nil, err
	}
	if err := p.do("open " + c.stub.library); err != nil {
		return nil, err
	}
	sleep(ctx, attachTime)
	c.processes.Add(1)
	return p, p.do("function 1 "+kernelPrefix+"long", "threads 4")
}

// long runs the long-running process on four threads.
func (c *churn) long(ctx context.Context, p *program) error {
	for ctx.Err() == nil {
		if err := p.do("launch 500 1 16 128", "copy cuMemcpyHtoDAsync_v2 50 4096", "wait cuStreamSynchronize 5",
			"alloc cuMemAlloc_v2 50 1024", "free cuMemFree_v2"); err != nil {
			return err
		}
		c.launched.Add(4 * 500)
		sleep(ctx, 50*time.Millisecond)
	}
	return p.end()
}

// short runs one short process, which ends in one of three ways, with its own kernels and memory
// that it does not release.
func (c *churn) short(library string, wait time.Duration) error {
	p, err := c.stub.start()
	if err != nil {
		return err
	}
	if err := p.do("open " + library); err != nil {
		return err
	}
	time.Sleep(wait)
	n := c.processes.Add(1)
	if err := p.do(
		fmt.Sprintf("function 1 %sfunction_%d", kernelPrefix, n), fmt.Sprintf("kernel 2 %skernel_%d", kernelPrefix, n),
		"threads 3", "launch 20 1 4 64", "threads 1", "launchex 10 2 4 64",
		"capture 5 1", "graph 10", "alloc cuMemAlloc_v2 20 4096", "copy cuMemcpyDtoHAsync_v2 10 100", "set cuMemsetD8Async 5 100",
		"wait cuCtxSynchronize 2", "fork copy cuMemcpyHtoDAsync_v2 3 1000",
	); err != nil {
		return err
	}
	c.launched.Add(3*20 + 10)
	switch rand.IntN(3) {
	case 0:
		c.killed.Add(1)
		return p.kill()
	case 1:
		c.left.Add(1)
		return p.leave()
	}
	c.ended.Add(1)
	return p.end()
}

// another runs a process with its own copy of the library and removes the file.
func (c *churn) another() error {
	name := fmt.Sprintf("copy%d", c.copies.Add(1))
	library, err := c.stub.copied(name)
	if err != nil {
		return err
	}
	err = c.short(library, attachTime)
	return errors.Join(err, os.RemoveAll(c.stub.dir+"/"+name))
}

// run does all this until the context ends and returns the first error.
func (c *churn) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p, err := c.first(ctx)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	loop := func(between time.Duration, once func() error) {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := once(); err != nil {
					stop(err)
				}
				sleep(ctx, between)
			}
		})
	}
	loop(0, func() error { return c.long(ctx, p) })
	for range shortLived {
		loop(pause, func() error { return c.short(c.stub.library, 0) })
	}
	loop(10*time.Second, c.another)
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// TestSoak_ConstantMemory runs for 30 minutes with GPUFLIGHT_SOAK=1, or for the duration in
// GPUFLIGHT_SOAK.
func TestSoak_ConstantMemory(t *testing.T) {
	text := os.Getenv("GPUFLIGHT_SOAK")
	if text == "" {
		t.Skip("a long test: set GPUFLIGHT_SOAK=1, or a duration such as 30m")
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		duration = 30 * time.Minute
	}
	if os.Geteuid() != 0 {
		t.Skip("eBPF needs root")
	}
	c := &churn{stub: build(t)}
	agent := startCollector(t)

	working, stop := context.WithTimeout(t.Context(), duration)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- c.run(working) }()

	// Probes of a library are kept for 40 s after the last process that used it, with 2 s between
	// scans. Each copy is new at first. Values are judged only after this phase.
	warm := time.Now().Add(max(duration/6, 90*time.Second))
	var samples []sample
	every := time.NewTicker(max(duration/180, 2*time.Second))
	defer every.Stop()
	for running := true; running; {
		select {
		case err := <-failed:
			require.NoError(t, err)
			running = false
		case <-every.C:
			s, err := agent.sample(t.Context())
			require.NoError(t, err)
			if s.at.After(warm) {
				samples = append(samples, s)
			}
			if len(samples)%18 == 1 || s.at.Before(warm) {
				t.Logf("%d processes: %s", c.processes.Load(), s)
			}
		}
	}
	require.Greater(t, len(samples), 10, "the time is too short")
	t.Logf("%d processes (%d killed, %d by _exit, %d ended), %d library files, %d launches",
		c.processes.Load(), c.killed.Load(), c.left.Load(), c.ended.Load(), c.copies.Load(), c.launched.Load())

	judge(t, "RSS, MiB", maxRSS, samples, func(s sample) float64 { return s.rss })
	judge(t, "file descriptors", maxFiles, samples, func(s sample) float64 { return s.files })
	judge(t, "goroutines", maxGoroutines, samples, func(s sample) float64 { return s.goroutines })
	judge(t, "links", maxLinks, samples, func(s sample) float64 { return s.links })
	require.NotEmpty(t, samples[0].entries, "no maps were found")
	for _, name := range slices.Sorted(maps.Keys(samples[0].entries)) {
		judge(t, "entries of "+name, maxEntries, samples, func(s sample) float64 { return s.entries[name] })
	}

	// All processes have exited, so their state must be gone, unless others on this machine use a
	// driver.
	var last sample
	assert.Eventually(t, func() bool {
		last, err = agent.sample(t.Context())
		require.NoError(t, err)
		for _, n := range last.entries {
			if n != 0 {
				return false
			}
		}
		return true
	}, 2*time.Minute, time.Second, "maps are not empty at the end")
	t.Logf("at the end: %s", last)

	said, err := own(t.Context())
	require.NoError(t, err)
	require.Contains(t, said, "available")
	for name, v := range said {
		if strings.Contains(name, `"datatypes"`) {
			continue // of NCCL, which is not used here
		}
		for _, loss := range []string{"calls_lost", "events_lost", "names_evicted", "attach_failed", "snapshot_failed", `processes{state="dropped"`} {
			if strings.HasPrefix(name, loss) {
				assert.Zero(t, v, name)
			}
		}
	}
	// The next collection has the final values of the last processes.
	time.Sleep(2 * interval)
	require.NoError(t, agent.stop())
	launches, processes, err := agent.launches()
	require.NoError(t, err)
	assert.Equal(t, c.launched.Load(), launches, "launches exported of all that were made")
	assert.EqualValues(t, c.processes.Load(), processes, "processes exported")
}

func (s sample) String() string {
	text := fmt.Sprintf("RSS %.1f MiB, %.0f files, %.0f goroutines, %.0f links", s.rss, s.files, s.goroutines, s.links)
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		text += fmt.Sprintf(", %s %.0f", name, s.entries[name])
	}
	return text
}

// judge compares the medians of the first and the last third of the samples and fails if the
// increase exceeds limit. It uses medians because the heap varies, and other programs may start and
// exit.
func judge(t *testing.T, what string, limit float64, samples []sample, value func(sample) float64) {
	all := make([]float64, len(samples))
	for i, s := range samples {
		all[i] = value(s)
	}
	median := func(v []float64) float64 {
		v = slices.Sorted(slices.Values(v))
		return v[len(v)/2]
	}
	third := len(all) / 3
	before, after := median(all[:third]), median(all[len(all)-third:])
	t.Logf("%-24s %8.1f in the first third, %8.1f in the last (%.1f to %.1f); %g more are allowed",
		what, before, after, slices.Min(all), slices.Max(all), limit)
	assert.LessOrEqual(t, after-before, limit, "%s grow", what)
}
