// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/metadata"
	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/metadatatest"
	"github.com/gpuflight/gpuflight/semconv"
)

// kernelAt returns a kernel of 1 ms; n identifies it.
func kernelAt(n int, name string, parent uint64) testSpan {
	start := testEpoch - int64(time.Second) + int64(n)*2_000_000
	return testSpan{
		service: "s", instance: "i", host: "h", device: "GPU-1", model: "NVIDIA H200", op: semconv.CUDAOperationKernel, name: name,
		trace: 1, id: uint64(n) + 10, parent: parent, start: start, end: start + 1_000_000, stream: 1,
	}
}

func TestScopeComesFromTheParentWheneverItArrives(t *testing.T) {
	scope := func(id uint64, op, name string) testSpan {
		return testSpan{service: "s", instance: "i", host: "h", trace: 1, id: id, op: op, name: name, start: testEpoch, end: testEpoch + 1}
	}
	r := newRig(t, testConfig(), nil)
	// After, in the same batch, and before its kernels.
	r.send(traces(kernelAt(0, "k", 1), kernelAt(1, "k", 3)))
	r.clock.advance(9 * time.Second)
	r.flush()
	r.send(traces(kernelAt(2, "k", 2), scope(1, semconv.CUDAOperationScope, "late"), scope(2, "", "same batch"), scope(4, semconv.CUDAOperationSession, "app")))
	named := kernelAt(3, "k", 1)
	named.scope = "named"
	r.send(traces(kernelAt(4, "k", 1), kernelAt(5, "k", 4), named, kernelAt(6, "k", 0)))
	before := points(t, r.flush())[semconv.MetricGPUCUDAKernelLaunchCalls]
	r.clock.advance(2 * time.Second)
	after := points(t, r.flush())[semconv.MetricGPUCUDAKernelLaunchCalls]
	resource, device := "map[host.name:h service.name:s]", "hw.id:GPU-1 hw.name:NVIDIA H200]"
	want := map[string]float64{
		resource + "map[cuda.scope.name:late " + device:       2,
		resource + "map[cuda.scope.name:same batch " + device: 1,
		resource + "map[cuda.scope.name:named " + device:      1,
		resource + "map[" + device:                            2, // a session and no parent
	}
	assert.Equal(t, want, before)
	want[resource+"map["+device] = 3 // parent 3 never came
	assert.Equal(t, want, after)
	r.shutdown()
}

func TestRequestIsTheFirstServerSpanElseTheRoot(t *testing.T) {
	span := func(trace, id, parent uint64, name string, kind ptrace.SpanKind, start int64) testSpan {
		return testSpan{service: "s", instance: "i", host: "h", trace: trace, id: id, parent: parent, name: name, kind: kind, start: testEpoch + start, end: testEpoch + start + 1}
	}
	kernel := func(n int, trace uint64) testSpan {
		k := kernelAt(n, "k", 0)
		k.trace = trace
		return k
	}
	r := newRig(t, testConfig(perSecond), nil)
	r.send(traces(kernel(0, 1), kernel(1, 2), kernel(2, 3), kernel(3, 4)))
	r.send(traces(
		span(1, 5, 0, "client", ptrace.SpanKindClient, 0), span(1, 6, 5, "second", ptrace.SpanKindServer, 5), span(1, 7, 5, "GET /", ptrace.SpanKindConsumer, 2),
		span(2, 5, 0, "job", ptrace.SpanKindInternal, 0),
	))
	scope := span(3, 5, 0, "scope as root", ptrace.SpanKindInternal, 0)
	scope.op = semconv.CUDAOperationScope
	r.send(traces(scope))
	r.clock.advance(time.Minute)
	got := map[string]float64{}
	for series, v := range points(t, r.flush())[semconv.MetricGPUCUDACost] {
		if !strings.Contains(series, idleName) {
			got[series[strings.Index(series, "cuda.cost"):]] = float64(ns(v * 1000)) // 0.001 a second
		}
	}
	assert.Equal(t, map[string]float64{
		"cuda.cost.currency:USD cuda.request.operation:GET / hw.id:GPU-1 hw.name:NVIDIA H200]": 1e6,
		"cuda.cost.currency:USD cuda.request.operation:job hw.id:GPU-1 hw.name:NVIDIA H200]":   1e6,
		"cuda.cost.currency:USD hw.id:GPU-1 hw.name:NVIDIA H200]":                              2e6,
	}, got)
	r.shutdown()
}

func TestExemplarsAreTheSlowestOfTheInterval(t *testing.T) {
	for _, n := range []int{0, 3} {
		r := newRig(t, testConfig(func(c *Config) { c.Exemplars = n }), nil)
		slowest := func() []float64 {
			var out []float64
			for _, rm := range r.flush().ResourceMetrics().All() {
				for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
					if m.Name() != semconv.MetricGPUCUDAKernelDuration {
						continue
					}
					for _, x := range m.ExponentialHistogram().DataPoints().At(0).Exemplars().All() {
						out = append(out, x.DoubleValue())
						id := uint64(x.DoubleValue()*1e6+0.5) + 100
						assert.Equal(t, spanID(id), x.SpanID())
						assert.Equal(t, traceID(1), x.TraceID())
						assert.Equal(t, testEpoch+int64(id-100)*1000, int64(x.Timestamp()))
					}
				}
			}
			return out
		}
		send := func(micros ...int64) {
			for _, us := range micros {
				k := kernelAt(0, "k", 0)
				k.id, k.start, k.end = uint64(us)+100, testEpoch, testEpoch+us*1000
				r.send(traces(k))
			}
		}
		send(5, 1, 9, 7, 3, 8)
		if n == 0 {
			assert.Empty(t, slowest())
		} else {
			assert.Equal(t, []float64{9e-6, 8e-6, 7e-6}, slowest())
			assert.Empty(t, slowest(), "none of an earlier interval")
			send(4)
			assert.Equal(t, []float64{4e-6}, slowest())
		}
		r.shutdown()
	}
}

func TestBadSpansAreRejectedAndCounted(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	sink := &consumertest.MetricsSink{}
	set := connectortest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	c := newConnector(testConfig(), set, sink)
	c.now = func() time.Time { return time.Unix(0, testEpoch) }
	require.NoError(t, c.Start(t.Context(), componenttest.NewNopHost()))

	noTime, backwards, far, long := kernelAt(0, "k", 0), kernelAt(1, "k", 0), kernelAt(2, "k", 0), kernelAt(3, "k", 0)
	noTime.start = 0
	backwards.start, backwards.end = backwards.end, backwards.start
	far.end = -1 // above 2^63
	long.end = long.start + maxSpan + 1
	unknown := kernelAt(4, "k", 0)
	unknown.op = "dance"
	queue := kernelAt(5, "k", 0)
	queue.queue = -5
	anonymous := kernelAt(6, "k", 0)
	anonymous.device = ""
	noID := kernelAt(7, "k", 0)
	noID.id = 0
	malloc := kernelAt(8, "k", 0)
	malloc.op = semconv.CUDAOperationMalloc
	td := traces(noTime, backwards, far, long, unknown, queue, anonymous, noID, noID, malloc, kernelAt(9, "k", 0), kernelAt(9, "k", 0))
	td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(5).Attributes().PutDouble(semconv.CUDAQueueDuration, -0.5)
	require.NoError(t, c.ConsumeTraces(t.Context(), td))
	c.flush(t.Context(), false)
	got := points(t, sink.AllMetrics()[0])
	assert.InDelta(t, 5, total(got[semconv.MetricGPUCUDAKernelLaunchCalls]), 0, "queue, anonymous, two without ids, one of two alike")
	assert.Contains(t, got[semconv.MetricGPUCUDABusyTime], "map[host.name:h]map[hw.name:NVIDIA H200]", "nothing is invented for a device without an id")

	counts := func(name, key string) map[string]int64 {
		m, err := tel.GetMetric(name)
		require.NoError(t, err)
		out := map[string]int64{}
		for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
			v, _ := p.Attributes.Value("")
			for _, kv := range p.Attributes.ToSlice() {
				if string(kv.Key) == key {
					v = kv.Value
				}
			}
			out[v.AsString()] = p.Value
		}
		return out
	}
	assert.Equal(t, map[string]int64{"no_time": 1, "end_before_start": 1, "time_out_of_range": 1, "too_long": 1, "unknown_operation": 1, "queue_duration": 1},
		counts("otelcol_connector_gpu_usage_rejected", "reason"))
	assert.Equal(t, map[string]int64{"kernel": 5}, counts("otelcol_connector_gpu_usage_spans", "operation"))
	assert.Equal(t, map[string]int64{"device": 1, "span": 2}, counts("otelcol_connector_gpu_usage_unidentified", "kind"))
	metadatatest.AssertEqualConnectorGpuUsageDuplicates(t, tel, []metricdata.DataPoint[int64]{{Value: 1}}, metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualConnectorGpuUsageDevices(t, tel, []metricdata.DataPoint[int64]{{Value: 2}}, metricdatatest.IgnoreTimestamp())
	require.NoError(t, c.Shutdown(t.Context()))
}

func TestARefusedExportComesAgain(t *testing.T) {
	r := newRig(t, testConfig(), nil)
	r.send(traces(kernelAt(0, "k", 0)))
	sink := r.c.next
	r.c.next = consumertest.NewErr(errors.New("no"))
	r.flush()
	r.c.next = sink
	r.send(traces(kernelAt(1, "k", 0)))
	assert.InDelta(t, 2, total(points(t, r.flush())[semconv.MetricGPUCUDAKernelLaunchCalls]), 0)
	r.shutdown()
}

func TestTicksFlushAndShutdownSettles(t *testing.T) {
	sink := &consumertest.MetricsSink{}
	c := newConnector(testConfig(perSecond), connectortest.NewNopSettings(metadata.Type), sink)
	ticks := make(chan time.Time)
	c.ticks = func(d time.Duration) (<-chan time.Time, func()) {
		assert.Equal(t, 15*time.Second, d)
		return ticks, func() {}
	}
	c.now = func() time.Time { return time.Unix(0, testEpoch) }
	require.NoError(t, c.Start(t.Context(), componenttest.NewNopHost()))
	require.NoError(t, c.ConsumeTraces(t.Context(), example()))
	ticks <- time.Time{}
	ticks <- time.Time{} // taken when the first flush is done
	require.NotEmpty(t, sink.AllMetrics())
	assert.Empty(t, points(t, sink.AllMetrics()[0])[semconv.MetricGPUCUDAStreamGapDuration], "not settled yet")
	require.NoError(t, c.Shutdown(t.Context()))
	require.NoError(t, c.Shutdown(t.Context()), "twice")
	all := sink.AllMetrics()
	got := points(t, all[len(all)-1])
	assert.InDelta(t, 0.013, total(got[semconv.MetricGPUCUDACost]), 1e-12, "settled although it was not yet time")
}

func TestStorageThatIsNotThereIsAnError(t *testing.T) {
	for want, host := range map[string]component.Host{
		"is not configured":          storageHost{},
		"is not a storage extension": storageHost{component.MustNewID("memory"): struct{ component.Component }{}},
	} {
		cfg := testConfig()
		id := component.MustNewID("memory")
		cfg.Storage = &id
		c := newConnector(cfg, connectortest.NewNopSettings(metadata.Type), consumertest.NewNop())
		require.ErrorContains(t, c.Start(t.Context(), host), want)
	}
}

// All bounds at once, each at 2: sums stay exact, and what is over is under _other.
func TestBoundsKeepTotalsExact(t *testing.T) {
	cfg := testConfig(priced, func(c *Config) {
		c.KernelNames = 2
		c.Limits.Services, c.Limits.Scopes, c.Limits.Requests, c.Limits.Devices, c.Limits.UnresolvedScopes = 2, 2, 2, 2, 2
		c.Limits.PendingSpans, c.Limits.Streams = 50, 2
		c.ScopeWait = time.Hour
	})
	w := newWorld(4242, 2000)
	ref := w.reference()
	r := newRig(t, cfg, nil)
	for i, batch := range w.stream() {
		r.send(traces(batch...))
		r.clock.advance(time.Second)
		if i%5 == 0 {
			r.flush()
		}
	}
	got := points(t, r.finish())
	sum := func(m map[string]int64) (n int64) {
		for _, v := range m {
			n += v
		}
		return n
	}
	assert.Equal(t, sum(ref.time), ns(total(got[semconv.MetricGPUCUDATime])))
	assert.Equal(t, sum(ref.calls), int64(total(got[semconv.MetricGPUCUDAKernelLaunchCalls])))
	assert.Equal(t, sum(ref.kernels), ns(total(got[semconv.MetricGPUCUDAKernelDuration])))
	assert.Equal(t, sum(ref.counts), int64(total(got[semconv.MetricGPUCUDAKernelDuration+"#"])))
	assert.Equal(t, sum(ref.bytes), int64(total(got[semconv.MetricGPUCUDAMemoryCopies])))
	assert.Len(t, got[semconv.MetricGPUCUDABusyTime], 2, "no busy time of devices that are not kept apart")
	for _, metric := range []string{semconv.MetricGPUCUDATime, semconv.MetricGPUCUDAKernelDuration} {
		assert.Contains(t, fmt.Sprint(got[metric]), "hw.id:_other")
		assert.Contains(t, fmt.Sprint(got[metric]), "service.name:_other")
	}
	assert.Contains(t, fmt.Sprint(got[semconv.MetricGPUCUDATime]), "cuda.scope.name:_other")
	checkCost(t, got)
	r.shutdown()

	// And with hardly any series at all.
	cfg.Limits.Series = 5
	r = newRig(t, cfg, nil)
	for _, batch := range w.stream() {
		r.send(traces(batch...))
	}
	got = points(t, r.finish())
	assert.Equal(t, sum(ref.time), ns(total(got[semconv.MetricGPUCUDATime])))
	assert.Equal(t, sum(ref.kernels), ns(total(got[semconv.MetricGPUCUDAKernelDuration])))
	checkCost(t, got)
	r.shutdown()
}

// A million kernels of as many names: what is held does not grow with them, and nothing is lost.
func TestAMillionKernelNames(t *testing.T) {
	r := newRig(t, testConfig(func(c *Config) {
		c.Limits.PendingSpans, c.Limits.RememberedSpans = 10_000, 10_000
	}), nil)
	const total1M, perBatch = 1_000_000, 20_000
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	names := strings.Repeat("long_kernel_name_", 8)
	batch := make([]testSpan, perBatch)
	var before uint64
	for at := 0; at < total1M; at += perBatch {
		for i := range batch {
			batch[i] = kernelAt(at+i, "", 0)
			batch[i].name = names + fmt.Sprint(at+i)
		}
		r.send(traces(batch...))
		r.clock.advance(time.Minute)
		if at%(5*perBatch) == 0 {
			r.flush()
		}
		if at == 4*perBatch { // all bounds have been reached
			before = heap()
		}
	}
	after := heap()
	t.Logf("heap after 100 000 names %d KiB, after 1 000 000 names %d KiB", before>>10, after>>10)
	assert.Less(t, after, before+4<<20)
	got := points(t, r.finish())
	assert.Len(t, got[semconv.MetricGPUCUDAKernelDuration], 201, "200 names and _other")
	assert.InDelta(t, total1M, total(got[semconv.MetricGPUCUDAKernelDuration+"#"]), 0)
	assert.Equal(t, int64(total1M)*1_000_000, ns(total(got[semconv.MetricGPUCUDAKernelDuration])))
	assert.Equal(t, int64(total1M)*1_000_000, ns(total(got[semconv.MetricGPUCUDABusyTime])))
	r.shutdown()
}

// A kernel that comes late and takes more than the members gets a histogram of its own, and each
// export adds up while members change.
func TestTopKernelsByTime(t *testing.T) {
	r := newRig(t, testConfig(func(c *Config) { c.KernelNames = 2 }), nil)
	series := func(md pmetric.Metrics) map[string]int64 {
		out := map[string]int64{}
		for k, v := range points(t, md)[semconv.MetricGPUCUDAKernelDuration] {
			out[strings.TrimSuffix(k[strings.Index(k, "kernel.name:")+12:], " hw.id:GPU-1 hw.name:NVIDIA H200]")] = ns(v) / 1e6
		}
		return out
	}
	n := 0
	run := func(name string, times int) {
		var batch []testSpan
		for range times {
			batch = append(batch, kernelAt(n, name, 0))
			n++
		}
		r.send(traces(batch...))
	}
	run("a", 10)
	run("b", 3)
	run("c", 6)
	assert.Equal(t, map[string]int64{"a": 10, "b": 3, "_other": 6}, series(r.flush()), "twice is not more than twice")
	run("c", 2) // 8 > 2·3
	r.flush()
	assert.Equal(t, map[string]int64{"a": 10, "_other": 11}, series(r.flush()), "b went to the others; c has nothing yet of its own")
	run("c", 5)
	run("b", 2)
	assert.Equal(t, map[string]int64{"a": 10, "c": 5, "_other": 13}, series(r.flush()))
	run("b", 30) // 35 in all > 2·10: a, the least, makes room
	r.flush()
	run("b", 1)
	assert.Equal(t, map[string]int64{"b": 1, "c": 5, "_other": 53}, series(r.flush()))
	r.shutdown()
}

func TestLongNamesAreCutAtARune(t *testing.T) {
	long := strings.Repeat("ä", 600)
	assert.Equal(t, strings.Repeat("ä", 510)+"…", cut(long, maxKernelName), "1020 and 3 bytes; half a rune would be one more")
	assert.Equal(t, "short", cut("short", 5))
	assert.Equal(t, "a\uFFFDb", cut("a\xffb", 10))
	r := newRig(t, testConfig(), nil)
	r.send(traces(kernelAt(0, long+"1", 0), kernelAt(1, long+"2", 0)))
	got := points(t, r.flush())[semconv.MetricGPUCUDAKernelDuration+"#"]
	require.Len(t, got, 1, "the same once they are cut")
	assert.InDelta(t, 2, total(got), 0)
	r.shutdown()
}

// Devices that nobody has used for long make room for others, and stay in the metrics.
func TestOldDevicesMakeRoom(t *testing.T) {
	cfg := testConfig(func(c *Config) { c.Limits.Devices, c.IdleGap = 2, time.Hour })
	r := newRig(t, cfg, nil)
	anonymous := func(n int, instance string) testSpan {
		k := kernelAt(n, "k", 0)
		k.device, k.instance = "", instance
		return k
	}
	r.send(traces(anonymous(0, "a"), anonymous(1, "b"), anonymous(2, "c")))
	assert.Len(t, r.c.state.devices, 2)
	r.clock.advance(2 * time.Hour)
	r.send(traces(anonymous(3, "c")))
	assert.Len(t, r.c.state.devices, 2)
	got := points(t, r.finish())
	assert.Equal(t, int64(3e6), ns(total(got[semconv.MetricGPUCUDABusyTime])), "all but the one for which there was no room")
	assert.Len(t, got[semconv.MetricGPUCUDABusyTime], 1, "they cannot be told apart in the metrics")
	assert.InDelta(t, 4, total(got[semconv.MetricGPUCUDAKernelLaunchCalls]), 0)
	r.shutdown()
}

// TestConnector_ClockSetBack: the time continues while the wall clock is behind it.
func TestConnector_ClockSetBack(t *testing.T) {
	r := newRig(t, testConfig(), nil)
	defer r.shutdown()
	clock := func() int64 {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		r.c.state.now = r.c.clock() // as a batch or a flush does
		return r.c.state.now
	}
	began := clock()
	r.advance(time.Second)
	assert.Equal(t, time.Second, time.Duration(clock()-began))
	r.advance(-24 * time.Hour)
	assert.Equal(t, time.Second, time.Duration(clock()-began), "it does not go back")
	r.advance(3 * time.Second)
	assert.Equal(t, 4*time.Second, time.Duration(clock()-began), "it does not stand still")
	r.advance(24 * time.Hour)
	assert.Equal(t, 24*time.Hour+4*time.Second, time.Duration(clock()-began), "it follows the wall clock again")
}
