// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package recorder

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/semconv"
)

// The whole way with the fake libraries: threads launch until the budget has had CUPTI left.
func TestOverheadBudgetOnACollector(t *testing.T) {
	fake := cuptitest.Libraries(t)
	require.Zero(t, fake.Init())
	c, err := cupti.Open(cupti.Config{Library: fake.CUPTI})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	out := &sink{}
	// At any rate of launches that a machine can have this is less than tracing takes.
	r, err := New(Config{
		InstanceID: testInstance, ServiceName: "app", MaxSpansPerSecond: -1, FlushInterval: 5 * time.Millisecond, OverheadBudget: 1e-4, OverheadLeave: true,
	}, FromCollector(c), out)
	require.NoError(t, err)
	require.NoError(t, c.Start())
	fake.Control("launch_ns", 1000)
	defer fake.Control("launch_ns", 0)
	r.Start()

	stop := make(chan struct{})
	var threads sync.WaitGroup
	var launched [3]uint64
	for i := range launched {
		threads.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				fake.LaunchThreads(1, 100, fmt.Sprint("kernel", i))
				launched[i] += 100
			}
		})
	}
	left := func() bool { return c.CountStats().Detached > 0 }
	require.Eventually(t, left, 2*time.Minute, time.Millisecond, "CUPTI is never left")
	close(stop)
	threads.Wait()
	fake.LaunchThreads(1, 100, "kernel0") // some more, of which nobody knows
	launched[0] += 100
	require.NoError(t, c.Stop(false))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s := r.Stop(ctx)

	require.Empty(t, s.Failure)
	o := s.Overhead
	require.NotNil(t, o)
	require.Empty(t, o.Refused)
	assert.Positive(t, s.KernelCount)
	assert.Positive(t, o.Seconds["trace"])
	points := out.points(semconv.MetricGPUCUDAKernelLaunchCalls)
	var sum, known uint64
	for i, n := range launched {
		got := uint64(points[fmt.Sprintf("kernel%d|", i)])
		assert.LessOrEqual(t, got, n) // what was launched blindly is in neither
		assert.Positive(t, got)
		sum += n
		known += got
	}
	assert.Equal(t, s.KernelCount+o.Untraced["kernel"], known, points)
	assert.Positive(t, o.Left)
	assert.Less(t, known, sum, points)
}
