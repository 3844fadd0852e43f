// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/version"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestSpans_OutsideScopes(t *testing.T) {
	f := newFixture(t, Config{PID: 42, HostName: "node"}).start()
	f.src.deliver(
		kernel("_Z4axpyPfi", 1, 10, 100), copyHead("HtoD", 4096, 2, 200, 50),
		cupti.Head{Kind: cupti.KindMemset, Bytes: 64, Start: base + 300, End: base + 310, Correlation: 3},
		cupti.Head{Kind: cupti.KindGraph, Start: base + 400, End: base + 500, Correlation: 4},
	)
	s := f.stop()

	session := f.sink.spanNamed(t, "app")
	assert.Equal(t, pcommon.TraceID(gpuevent.SessionTrace(testInstance)), session.TraceID())
	assert.True(t, session.ParentSpanID().IsEmpty())
	assert.Equal(t, f.r.SessionRef().Span, gpuevent.SpanID(session.SpanID()))
	ids := map[pcommon.SpanID]bool{}
	for _, op := range []string{"kernel", "memcpy", "memset", "graph"} {
		spans := f.sink.operation(op)
		require.Len(t, spans, 1, op)
		assert.Equal(t, session.TraceID(), spans[0].TraceID())
		assert.Equal(t, session.SpanID(), spans[0].ParentSpanID())
		ids[spans[0].SpanID()] = true
	}
	assert.Len(t, ids, 4)
	k := f.sink.operation("kernel")[0]
	assert.Equal(t, "axpy", k.Name())
	assert.Equal(t, pcommon.Timestamp(base+10), k.StartTimestamp())
	assert.Equal(t, pcommon.Timestamp(base+110), k.EndTimestamp())

	for _, a := range f.sink.resources {
		assert.Equal(t, "app", attr(a, semconv.ServiceName))
		assert.Equal(t, testInstance, attr(a, semconv.ServiceInstanceID))
		assert.Equal(t, "42", attr(a, semconv.ProcessPID))
		assert.Equal(t, "gpuflight", attr(a, semconv.TelemetryDistroName))
		assert.Equal(t, version.String(), attr(a, semconv.TelemetryDistroVersion))
	}
	assert.Equal(t, map[string]float64{"axpy(float*, int)|": 1}, f.sink.points(semconv.MetricGPUCUDAKernelLaunchCalls))
	assert.Equal(t, map[string]float64{"axpy(float*, int)|": 1}, f.sink.points(semconv.MetricGPUCUDAKernelDuration))
	assert.Equal(t, map[string]float64{"HtoD|": 4096}, f.sink.points(semconv.MetricGPUCUDAMemoryCopies))
	assert.Equal(t, map[string]float64{"": 64}, f.sink.points(semconv.MetricGPUCUDAMemsetBytes))
	assert.Equal(t, map[string]float64{"": 1}, f.sink.points(semconv.MetricGPUCUDAGraphLaunchCalls))
	assert.Equal(t, map[string]float64{"kernel|": 1e-7, "memcpy|": 5e-8, "memset|": 1e-8, "graph|": 1e-7}, f.sink.points(semconv.MetricGPUCUDATime))

	assert.Equal(t, SpanCounts{Emitted: 4, Scopes: 1}, s.Spans)
	assert.Equal(t, []KernelRow{{Name: "axpy(float*, int)", Count: 1, Seconds: 1e-7, MaxSeconds: 1e-7}}, s.Kernels)
	assert.Equal(t, []CopyRow{{Kind: "HtoD", Count: 1, Bytes: 4096, Seconds: 5e-8}}, s.Copies)
	assert.Equal(t, CopyRow{Count: 1, Bytes: 64, Seconds: 1e-8}, s.Sets)
	assert.Equal(t, uint64(1), s.Graphs)
}

func TestSpans_InScope(t *testing.T) {
	f := newFixture(t, Config{}).start()
	id := f.r.Begin(Scope{Ref: refOf(9, 5), Sampled: true, Name: "step"})
	f.src.deliver(in(id, kernel("k", 7, 0, 10)))
	f.r.End(id)
	require.Eventually(t, func() bool {
		f.sink.mu.Lock()
		defer f.sink.mu.Unlock()
		return len(f.sink.spans) == 1
	}, time.Minute, time.Millisecond, "the kernel comes before the end")
	f.src.deliver(in(id, kernel("late", 8, 100, 10)))
	s := f.stop()
	kernels := f.sink.operation("kernel")
	require.Len(t, kernels, 2)
	for _, k := range kernels {
		assert.Equal(t, pcommon.TraceID{15: 9}, k.TraceID())
		assert.Equal(t, pcommon.SpanID{7: 5}, k.ParentSpanID())
		assert.Equal(t, "step", attr(k.Attributes(), semconv.CUDAScopeName))
	}
	assert.Equal(t, map[string]float64{"k|step|": 1, "late|step|": 1}, f.sink.points(semconv.MetricGPUCUDAKernelLaunchCalls))
	assert.Zero(t, s.Records.ScopesUnknown)
	assert.Empty(t, f.src.stack)
}

func TestSpans_UnsampledScope(t *testing.T) {
	f := newFixture(t, Config{})
	id := f.r.Begin(Scope{Ref: refOf(1, 1), Sampled: false, Name: "quiet"})
	f.src.deliver(in(id, kernel("k", 1, 0, 10)), kernel("k", 2, 20, 10))
	f.r.End(id)
	f.start()
	s := f.stop()
	require.Len(t, f.sink.operation("kernel"), 1)
	assert.Equal(t, SpanCounts{Emitted: 1, Unsampled: 1, Scopes: 1}, s.Spans)
	assert.Equal(t, map[string]float64{"k|": 1, "k|quiet|": 1}, f.sink.points(semconv.MetricGPUCUDAKernelLaunchCalls))
	assert.Equal(t, map[string]float64{"kernel|k|": 1}, f.sink.points(semconv.MetricGpuflightSpansLeftOut))
}

func TestSpans_UnsampledParent(t *testing.T) {
	f := newFixture(t, Config{HasParent: true, Parent: refOf(3, 4)}).start()
	f.src.event(begin(1, 0, 1, 0, "range"), endOf(1, 1, 50))
	f.src.deliver(kernel("k", 1, 0, 10))
	s := f.stop()
	assert.Empty(t, f.sink.spans)
	assert.Equal(t, uint64(1), s.Spans.Unsampled)
	assert.Len(t, f.sink.logs, 1, "the capture log is still sent")
}

func TestSpans_GraphKernelsShareCall(t *testing.T) {
	f := newFixture(t, Config{})
	id := f.r.Begin(Scope{Ref: refOf(1, 1), Sampled: true, Name: "graph"})
	f.src.deliver(in(id, node("a", 5, 0, 10)), in(id, node("b", 5, 10, 10)))
	f.src.deliver(in(id, node("a", 5, 20, 10)))
	f.r.End(id)
	f.start()
	f.stop()
	kernels := f.sink.operation("kernel")
	require.Len(t, kernels, 3)
	ids := map[pcommon.SpanID]bool{}
	for _, k := range kernels {
		assert.Equal(t, pcommon.SpanID{7: 1}, k.ParentSpanID())
		ids[k.SpanID()] = true
	}
	assert.Len(t, ids, 3)
	assert.Equal(t, map[string]float64{"graph|": 3}, f.sink.points(semconv.MetricGPUCUDAGraphNodeLaunches))
	assert.Empty(t, f.sink.points(semconv.MetricGPUCUDAKernelLaunchCalls))
}

func TestCalls_LateHostCalls(t *testing.T) {
	f := newFixture(t, Config{Asked: cupti.KindsOf(cupti.KindKernel, cupti.KindDriverAPI)})
	// Some buffers complete by themselves, the calls only with the flush.
	for i := range uint32(maxHeld) {
		f.src.deliver(kernel("k", i+1, 100, 10))
		f.src.deliverAtFlush(cupti.Head{Kind: cupti.KindDriverAPI, Host: true, Correlation: i + 1, Start: base + 10, End: base + 40})
	}
	f.start()
	f.stop()
	kernels := f.sink.operation("kernel")
	require.Len(t, kernels, maxHeld)
	for _, k := range kernels {
		assert.Equal(t, fmt.Sprint(base+40), attr(k.Attributes(), semconv.CUDALaunchEndTimeUnixNano))
	}
}

// Correlation ids wrap. The newest call counts.
func TestCalls_CorrelationWrap(t *testing.T) {
	f := newFixture(t, Config{Asked: cupti.KindsOf(cupti.KindKernel, cupti.KindDriverAPI)})
	e := f.r.engine
	first := &records{heads: []cupti.Head{{Kind: cupti.KindDriverAPI, Correlation: math.MaxUint32, Start: base, End: base + 10}}}
	again := &records{heads: []cupti.Head{{Kind: cupti.KindDriverAPI, Correlation: math.MaxUint32, Start: base + 500, End: base + 510}}}
	e.learnCalls(first)
	e.learnCalls(again)
	f.src.deliver(kernel("k", math.MaxUint32, 600, 10))
	f.start()
	f.stop()
	assert.Equal(t, fmt.Sprint(base+510), attr(f.sink.operation("kernel")[0].Attributes(), semconv.CUDALaunchEndTimeUnixNano))
}

func TestCalls_LaunchTimes(t *testing.T) {
	f := newFixture(t, Config{Asked: cupti.DefaultKinds | cupti.KindsOf(cupti.KindRuntimeAPI)}).start()
	f.src.deliver(kernel("k", 5, 100, 10))
	f.src.deliver(
		cupti.Head{Kind: cupti.KindRuntimeAPI, Host: true, Correlation: 5, Start: base + 10, End: base + 40},
		cupti.Head{Kind: cupti.KindDriverAPI, Host: true, Correlation: 5, Start: base + 15, End: base + 30},
	)
	f.stop()
	k := f.sink.operation("kernel")[0]
	assert.Equal(t, fmt.Sprint(base+10), attr(k.Attributes(), semconv.CUDALaunchStartTimeUnixNano))
	assert.Equal(t, fmt.Sprint(base+40), attr(k.Attributes(), semconv.CUDALaunchEndTimeUnixNano))
	assert.Equal(t, "6e-8", attr(k.Attributes(), semconv.CUDAQueueDuration))
}

func TestFilters(t *testing.T) {
	heads := []cupti.Head{
		kernel("void at::native::gemm<float>(float*)", 1, 0, 100),
		kernel("void at::native::copy<int>(int*)", 2, 200, 5000),
		kernel("relu", 3, 6000, 10),
		copyHead("HtoD", 1, 4, 7000, 2000),
	}
	for _, c := range []struct {
		name string
		cfg  Config
		want []string
	}{
		{"none", Config{}, []string{"gemm", "copy", "relu", "memcpy HtoD"}},
		{"kernels only", Config{KernelsOnly: true}, []string{"gemm", "copy", "relu"}},
		{"include by short name", Config{Include: []string{"gemm", "re?u"}}, []string{"gemm", "relu", "memcpy HtoD"}},
		{"include by full name", Config{Include: []string{"*native*"}}, []string{"gemm", "copy", "memcpy HtoD"}},
		{"exclude", Config{Include: []string{"*native*"}, Exclude: []string{"*<int>*"}}, []string{"gemm", "memcpy HtoD"}},
		{"minimum duration", Config{MinDuration: 1000}, []string{"copy", "memcpy HtoD"}},
		{"no spans", Config{MaxSpansPerSecond: -1}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, c.cfg).start()
			f.src.deliver(heads...)
			s := f.stop()
			var got []string
			for _, x := range f.sink.spans {
				if x.Name() != "app" {
					got = append(got, x.Name())
				}
			}
			assert.Equal(t, c.want, got)
			assert.Equal(t, uint64(len(c.want)), s.Spans.Emitted)
			assert.Equal(t, uint64(len(heads)-len(c.want)), s.Spans.LeftOut)
			assert.Equal(t, uint64(3), s.KernelCount)
			assert.Len(t, f.sink.points(semconv.MetricGPUCUDAKernelLaunchCalls), 3, "metrics ignore filters")
		})
	}
}

func TestSession_TraceInParts(t *testing.T) {
	f := newFixture(t, Config{MaxSpansPerTrace: 4}).start()
	var heads []cupti.Head
	for i := range 10 {
		heads = append(heads, kernel("k", uint32(i+1), int64(i)*100, 10))
	}
	f.src.deliver(heads...)
	f.stop()
	bySpan := map[pcommon.SpanID]ptrace.Span{}
	traces := map[pcommon.TraceID]int{}
	for _, x := range f.sink.spans {
		bySpan[x.SpanID()] = x
		traces[x.TraceID()]++
	}
	require.Len(t, bySpan, len(f.sink.spans), "duplicate span id")
	assert.Len(t, traces, 4, "3 kernels and a root in each part")
	for trace, n := range traces {
		assert.LessOrEqual(t, n, 4, trace)
	}
	parts := map[string]bool{}
	for _, x := range f.sink.operation("session") {
		assert.True(t, x.ParentSpanID().IsEmpty())
		part := attr(x.Attributes(), semconv.CUDAScopePart)
		parts[part] = true
		if part == "" {
			assert.Zero(t, x.Links().Len())
			continue
		}
		require.Equal(t, 1, x.Links().Len())
		assert.Equal(t, pcommon.SpanID(f.r.SessionRef().Span), x.Links().At(0).SpanID())
		assert.Equal(t, pcommon.TraceID(f.r.SessionRef().Trace), x.Links().At(0).TraceID())
		assert.GreaterOrEqual(t, x.EndTimestamp(), x.StartTimestamp())
		assert.GreaterOrEqual(t, x.StartTimestamp(), pcommon.Timestamp(base))
	}
	assert.Equal(t, map[string]bool{"": true, "1": true, "2": true, "3": true}, parts)
	for _, k := range f.sink.operation("kernel") {
		parent, ok := bySpan[k.ParentSpanID()]
		require.True(t, ok)
		assert.Equal(t, parent.TraceID(), k.TraceID(), "the parent is in the same trace")
	}
}

func TestCaptureLog_Losses(t *testing.T) {
	f := newFixture(t, Config{Asked: cupti.DefaultKinds | cupti.KindsOf(cupti.KindSync)})
	f.src.stats = cupti.Stats{Records: 100, Dropped: 3, Unreturned: 2, Overhead: 2 * time.Second}
	f.src.stats.Rejected[cupti.RejectReversed] = 4
	f.src.status = cupti.Status{Library: "/lib/libcupti.so.13", Version: 130001, Missing: cupti.KindsOf(cupti.KindSync)}
	f.start()
	f.src.deliver(kernel("k", 1, 0, 10))
	s := f.stop()
	require.Len(t, f.sink.logs, 1)
	l := f.sink.logs[0]
	assert.Equal(t, semconv.EventCUDACapture, l.EventName())
	assert.Equal(t, plog.SeverityNumberWarn, l.SeverityNumber())
	assert.Equal(t, "1 kernels, 1 spans of device work, 3 records dropped by CUPTI, 4 records rejected, 2 buffers kept by CUPTI with unfinished records.", l.Body().Str())
	assert.Equal(t, map[string]any{
		semconv.LogRecordUID:                       firstUID,
		semconv.CUDACaptureStatus:                  "partial",
		semconv.CUDACaptureKindsCollected:          []any{"kernel", "memcpy", "memset", "graph", "nvtx", "overhead", "scope"},
		semconv.CUDACaptureKindsUnavailable:        []any{"sync"},
		semconv.CUDACaptureRecordsCollected:        int64(100),
		semconv.CUDACaptureRecordsDropped:          int64(3),
		semconv.CUDACaptureRecordsRejected:         int64(4),
		semconv.CUDACaptureRecordsRejectedByReason: []any{"reversed_time=4"},
		semconv.CUDACaptureKernels:                 int64(1),
		semconv.CUDACaptureSpansEmitted:            int64(1),
		semconv.CUDACaptureSpansLeftOut:            int64(0),
		semconv.CUDACaptureSpansUnsampled:          int64(0),
		semconv.CUDACaptureOverheadTime:            2.0,
		semconv.CUDACaptureLibraryPath:             "/lib/libcupti.so.13",
		semconv.CUDACaptureLibraryVersion:          int64(130001),
	}, l.Attributes().AsRaw())
	assert.Equal(t, map[string]uint64{"reversed_time": 4}, s.Records.RejectedBy)
	assert.Equal(t, map[string]float64{"reversed_time|": 4}, f.sink.points(semconv.MetricGpuflightRecordsRejected))
	assert.Equal(t, map[string]float64{"": 3}, f.sink.points(semconv.MetricGpuflightRecordsDropped))
	assert.InDelta(t, 2, f.sink.points(semconv.MetricGpuflightOverheadTime)["cupti|"], 1e-9)
}

func TestUnavailable_Reason(t *testing.T) {
	out := &sink{}
	s, err := Unavailable(Config{InstanceID: testInstance, ServiceName: "app"},
		cupti.Status{Reason: cupti.ReasonNoDriver, Detail: "libcuda.so.1 is not there"}, out)
	require.NoError(t, err)
	assert.Equal(t, cupti.ReasonNoDriver, s.Reason)
	require.Len(t, out.spans, 1)
	require.Len(t, out.logs, 1)
	assert.Equal(t, "Nothing was recorded: libcuda.so.1 is not there.", out.logs[0].Body().Str())
	assert.Equal(t, "no_driver", attr(out.logs[0].Attributes(), semconv.CUDACaptureReason))
	assert.Equal(t, "skipped", attr(out.logs[0].Attributes(), semconv.CUDACaptureStatus))
}

func TestRecorder_PanicInRecords(t *testing.T) {
	f := newFixture(t, Config{}).start()
	f.src.deliver(kernel("k", 1, 0, 10))
	f.src.add(&records{heads: []cupti.Head{kernel("k", 2, 0, 10)}, poison: true})
	require.Eventually(t, func() bool { return f.r.broken.Load() }, time.Minute, time.Millisecond)
	for range 5 {
		f.src.deliver(kernel("k", 3, 0, 10))
	}
	assert.Zero(t, f.r.Begin(Scope{Ref: refOf(1, 1), Sampled: true}))
	s := f.stop()
	assert.Equal(t, "internal error: poisoned", s.Failure)
	assert.Equal(t, uint64(6), s.Records.Unread)
	require.Len(t, f.sink.logs, 1)
	assert.Equal(t, plog.SeverityNumberError, f.sink.logs[0].SeverityNumber())
}

func TestRecorder_PanicInSink(t *testing.T) {
	f := newFixture(t, Config{}).start()
	f.sink.panics = true
	f.src.deliver(kernel("k", 1, 0, 10))
	s := f.stop()
	assert.Equal(t, "internal error: sink", s.Failure)
	assert.Equal(t, testInstance, s.Instance)
}

func TestRecorder_SourceFails(t *testing.T) {
	f := newFixture(t, Config{FlushInterval: time.Millisecond})
	f.src.fail = errors.New("broken pipe")
	f.start()
	require.Eventually(t, func() bool { return f.r.broken.Load() }, time.Minute, time.Millisecond)
	s := f.stop()
	assert.Equal(t, "take records: broken pipe", s.Failure)
}

func TestRecorder_Backlog(t *testing.T) {
	kernels := func(f *fixture, n int) {
		for i := range n {
			f.src.deliver(kernel("k", uint32(i+1), int64(i), 10))
		}
	}
	t.Run("leaves records with CUPTI", func(t *testing.T) {
		f := newFixture(t, Config{MaxBacklog: 4, MetricInterval: time.Millisecond})
		f.sink.backlog.Store(true)
		kernels(f, 3)
		f.start()
		require.Eventually(t, func() bool { return f.sink.count() > 0 }, time.Minute, time.Millisecond, "metrics are sent")
		assert.Equal(t, 3, f.src.Pending())
		assert.Zero(t, f.src.flushes, "CUPTI fills its buffers")
		f.sink.backlog.Store(false)
		require.Eventually(t, func() bool { return f.src.Pending() == 0 }, time.Minute, time.Millisecond)
		s := f.stop()
		assert.Equal(t, uint64(3), s.Spans.Emitted)
	})
	t.Run("takes them before CUPTI drops records", func(t *testing.T) {
		f := newFixture(t, Config{MaxBacklog: 4})
		f.sink.backlog.Store(true)
		kernels(f, 10)
		f.start()
		require.Eventually(t, func() bool { return f.src.Pending() < 4 }, time.Minute, time.Millisecond)
		f.sink.backlog.Store(false)
		assert.Equal(t, uint64(10), f.stop().Spans.Emitted)
	})
	t.Run("processes all records before the deadline", func(t *testing.T) {
		f := newFixture(t, Config{MaxBacklog: 4})
		f.sink.backlog.Store(true)
		kernels(f, 3)
		f.start()
		f.src.end()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s := f.r.Stop(ctx)
		require.NoError(t, ctx.Err())
		assert.Empty(t, s.Failure)
		assert.Zero(t, s.Records.Unread)
		assert.Equal(t, uint64(3), s.KernelCount)
	})
	t.Run("ends at the deadline", func(t *testing.T) {
		f := newFixture(t, Config{MaxBacklog: 4})
		f.sink.backlog.Store(true)
		kernels(f, 3)
		f.start()
		f.src.end()
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(50*time.Millisecond, cancel)
		s := f.r.Stop(ctx)
		assert.Empty(t, s.Failure)
		assert.Equal(t, uint64(3), s.Records.Unread)
	})
}

func TestStop(t *testing.T) {
	t.Run("before start", func(t *testing.T) {
		f := newFixture(t, Config{})
		f.src.deliver(kernel("k", 1, 0, 10))
		assert.Equal(t, uint64(1), f.stop().Spans.Emitted)
	})
	t.Run("twice", func(t *testing.T) {
		f := newFixture(t, Config{}).start()
		f.src.deliver(kernel("k", 1, 0, 10))
		first := f.stop()
		assert.Equal(t, first, f.stop())
		assert.Len(t, f.sink.logs, 1)
	})
	t.Run("source never ends", func(t *testing.T) {
		f := newFixture(t, Config{}).start()
		s := f.r.Stop(context.Background())
		assert.Empty(t, s.Failure)
	})
	t.Run("scopes after stop", func(t *testing.T) {
		f := newFixture(t, Config{}).start()
		id := f.r.Begin(Scope{Ref: refOf(1, 1), Sampled: true})
		f.stop()
		assert.Zero(t, f.r.Begin(Scope{Ref: refOf(1, 1), Sampled: true}))
		f.r.End(id)
		assert.Empty(t, f.r.pending)
	})
	t.Run("deadline exceeded", func(t *testing.T) {
		f := newFixture(t, Config{})
		for range 100 {
			f.src.deliver(kernel("k", 1, 0, 10))
		}
		f.src.end()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s := f.r.Stop(ctx)
		assert.Equal(t, uint64(100), s.Spans.Emitted+s.Records.Unread)
		for _, b := range f.src.all {
			assert.True(t, b.released)
		}
	})
}

// TestRecorder_ManyThreads runs everything at once for the race detector: threads with scopes,
// buffers, and a stop while busy.
func TestRecorder_ManyThreads(t *testing.T) {
	f := newFixture(t, Config{MetricInterval: time.Millisecond}).start()
	var wait sync.WaitGroup
	const threads, launches = 4, 200
	for thread := range threads {
		wait.Go(func() {
			for i := range launches {
				id := f.r.Begin(Scope{Ref: refOf(byte(thread+1), byte(i%200+1)), Sampled: i%2 == 0, Name: fmt.Sprint("thread ", thread)})
				correlation := uint32(thread*launches + i + 1)
				k := cupti.Head{Kind: cupti.KindKernel, Name: manyThreadsName, Correlation: correlation, Start: base, End: base + 10, Scope: id}
				if i%3 == 0 {
					f.src.deliverAtFlush(k)
				} else {
					f.src.deliver(k)
				}
				f.r.End(id)
			}
		})
	}
	wait.Wait()
	s := f.stop()
	assert.Equal(t, uint64(threads*launches), s.Spans.Emitted+s.Spans.Unsampled)
	assert.Zero(t, s.Records.ScopesUnknown)
	kernels := f.sink.operation("kernel")
	assert.Len(t, kernels, threads*launches/2)
	for _, k := range kernels {
		assert.Equal(t, fmt.Sprint("thread ", k.TraceID()[15]-1), attr(k.Attributes(), semconv.CUDAScopeName))
	}
	assert.Equal(t, uint64(threads*launches), f.sink.total(semconv.MetricGPUCUDAKernelLaunchCalls))
}

var manyThreadsName = gpuevent.NewKernelName("many")
