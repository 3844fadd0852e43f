// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package recorder

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/semconv"
)

// TestOverhead_Collector runs the recorder with a budget on the fake libraries. Threads launch, one
// of them in scopes, until CUPTI was detached and attached again three times.
func TestOverhead_Collector(t *testing.T) {
	fake := cuptitest.Libraries(t)
	require.Zero(t, fake.Init())
	c, err := cupti.Open(cupti.Config{Library: fake.CUPTI, Detachable: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	out := &sink{}
	// Recording costs more than this at any possible launch rate.
	r, err := New(Config{
		InstanceID: testInstance, ServiceName: "app", FlushInterval: 5 * time.Millisecond, OverheadBudget: 0.1,
	}, FromCollector(c), out)
	require.NoError(t, err)
	fake.Control("finalized", 0)
	fake.Set(t, "launch_ns", 1000)
	require.NoError(t, c.Start())
	r.Start()

	done := make(chan struct{})
	var threads sync.WaitGroup
	var launched [3]uint64
	for i := range launched {
		threads.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				fake.LaunchThreads(1, 100, fmt.Sprint("kernel", i))
				launched[i] += 100
			}
		})
	}
	scoped := uint64(0)
	threads.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		id := r.Begin(Scope{Ref: refOf(1, 1), Sampled: true, Name: "all"})
		defer r.End(id)
		for {
			select {
			case <-done:
				return
			default:
			}
			fake.Launch("scoped", 100)
			scoped += 100
		}
	})
	finalized := int64(0)
	attached := func() bool {
		finalized += fake.Control("finalized", 0) // and sets it to 0
		return finalized >= 3 && fake.Control("subscribed", 0) == 1
	}
	require.Eventually(t, attached, 2*time.Minute, 10*time.Millisecond)
	close(done)
	threads.Wait()
	require.NoError(t, c.Stop(false))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := r.Stop(ctx)

	require.Empty(t, s.Failure)
	o := s.Overhead
	require.NotNil(t, o)
	assert.Empty(t, o.Failure)
	assert.GreaterOrEqual(t, o.Slices, uint64(3))
	assert.Positive(t, o.RecordedSeconds)
	assert.Less(t, o.RecordedRatio, 1.0)
	points := out.points(semconv.MetricGPUCUDAKernelLaunchCalls)
	var recorded uint64
	for i, n := range launched {
		got := uint64(points[fmt.Sprintf("kernel%d|", i)])
		assert.Positive(t, got)
		assert.Less(t, got, n)
		recorded += got
	}
	got := uint64(points["scoped|all|"])
	assert.Positive(t, got, "the scope was opened before the first detach: %v", points)
	assert.Less(t, got, scoped)
	// A launch that is in progress when a slice begins may have no scope.
	inProgress := uint64(points["scoped|"])
	assert.LessOrEqual(t, inProgress, o.Slices, points)
	assert.Equal(t, s.KernelCount, recorded+got+inProgress, points)
	assert.Equal(t, s.Records.Collected, s.KernelCount)
	assert.Zero(t, s.Records.Dropped+s.Records.Rejected+s.Records.Unreturned+s.Records.ScopesUnknown+s.Records.ScopesLost)
}
