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
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
	"github.com/gpuflight/gpuflight/semconv"
)

// TestCollector_LaunchToSpan checks the data flow from a launch to a span, with the fake libraries.
// It has threads with scopes, copies, graphs, and a limit that omits most spans.
func TestCollector_LaunchToSpan(t *testing.T) {
	for _, limit := range []int{1_000_000, 1000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			fake := cuptitest.Libraries(t)
			require.Zero(t, fake.Init())
			c, err := cupti.Open(cupti.Config{Library: fake.CUPTI})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			out := &sink{}
			r, err := New(Config{
				InstanceID: testInstance, ServiceName: "app", MaxSpansPerSecond: limit, FlushInterval: 5 * time.Millisecond,
			}, FromCollector(c), out)
			require.NoError(t, err)
			require.NoError(t, c.Start())
			r.Start()

			const threads, launches = 3, 2000
			var wait sync.WaitGroup
			for i := range threads {
				wait.Go(func() {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					outer := r.Begin(Scope{Ref: refOf(byte(i+1), 1), Sampled: true, Name: fmt.Sprint("outer", i)})
					fake.Launch(fmt.Sprint("first", i), launches)
					inner := r.Begin(Scope{Ref: refOf(byte(i+1), 2), Sampled: true, Name: fmt.Sprint("inner", i)})
					fake.Launch(fmt.Sprint("second", i), launches)
					r.End(inner)
					r.End(outer)
				})
			}
			wait.Wait()
			fake.Launch("outside", 10)
			fake.Memory(1 << 20)
			fake.Graph(5)
			require.NoError(t, c.Stop(true))
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			s := r.Stop(ctx)

			require.Empty(t, s.Failure)
			assert.Equal(t, uint64(2*threads*launches+10), s.KernelCount)
			assert.Equal(t, s.KernelCount, out.total(semconv.MetricGPUCUDAKernelLaunchCalls))
			assert.Equal(t, uint64(1), s.Graphs)
			assert.Equal(t, uint64(1<<20), s.Sets.Bytes)
			assert.Zero(t, s.Records.Dropped+s.Records.Rejected+s.Records.ScopesUnknown+s.Records.ScopesLost)
			assert.Equal(t, s.KernelCount+s.Graphs+s.Sets.Count+out.copies(), s.Spans.Emitted+s.Spans.LeftOut)
			if limit > 1000 {
				assert.Zero(t, s.Spans.LeftOut)
				assert.Len(t, out.operation("kernel"), int(s.KernelCount))
			} else {
				assert.Positive(t, s.Spans.LeftOut)
			}
			for i := range threads {
				points := out.points(semconv.MetricGPUCUDAKernelLaunchCalls)
				assert.InDelta(t, launches, points[fmt.Sprintf("first%d|outer%d|", i, i)], 0)
				assert.InDelta(t, launches, points[fmt.Sprintf("second%d|inner%d|", i, i)], 0)
			}
			for _, k := range out.operation("kernel") {
				var i int
				if _, err := fmt.Sscanf(k.Name(), "second%d", &i); err == nil {
					require.Equal(t, pcommon.TraceID{15: byte(i + 1)}, k.TraceID())
					require.Equal(t, pcommon.SpanID{7: 2}, k.ParentSpanID())
				}
			}
		})
	}
}

// copies returns the number of copies in the metrics.
func (s *sink) copies() uint64 {
	n := uint64(0)
	for _, x := range s.metrics[len(s.metrics)-1].ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if x.Name() == semconv.MetricGPUCUDAMemoryCopies {
			for _, p := range x.Histogram().DataPoints().All() {
				n += p.Count()
			}
		}
	}
	return n
}
