// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
	"github.com/gpuflight/gpuflight/semconv"
)

// registered has the units and descriptions of the metrics.
var registered = func() map[string]semconv.Metric {
	m := map[string]semconv.Metric{}
	for _, d := range semconv.Metrics {
		m[d.Name] = d
	}
	return m
}()

// Bounds of buckets, as powers of two. They are a subset of the bounds that the kernel uses, so
// that buckets are merged exactly.
var (
	// gridBounds are 1 to 1 Mi blocks; a device has some hundred multiprocessors.
	gridBounds = powers(0, 20, 2)
	// blockBounds are 1 to 1024 threads, the maximum of a block.
	blockBounds = powers(0, 10, 1)
	// sizeBounds are 1 KiB to 4 GiB, the same as for copies in other components.
	sizeBounds = powers(10, 32, 2)
	// timeBounds are 0.25 µs to 17 s in nanoseconds.
	timeBounds = powers(8, 34, 2)
)

func powers(first, last, step int) []int {
	var b []int
	for n := first; n <= last; n += step {
		b = append(b, n)
	}
	return b
}

// writer writes the metrics of one process. All are cumulative.
type writer struct {
	metrics    pmetric.MetricSlice
	start, now pcommon.Timestamp
}

// process writes all metrics with at least one value.
func (w *writer) process(p *probe.Process, k *kernels) {
	w.launches(k)
	w.histogram(semconv.MetricGPUCUDAKernelLaunchDuration, timeBounds, 1e9).whole(&p.Enqueue)
	w.histogram(semconv.MetricGPUCUDAIdleDuration, timeBounds, 1e9).whole(&p.Idle)
	w.sum(semconv.MetricGPUCUDAGraphLaunchCalls).add(p.Graphs)
	w.sum(semconv.MetricGPUCUDAGraphNodeLaunches).add(p.GraphNodes)
	w.sum(semconv.MetricGPUCUDAGraphUnknownLaunches).add(p.GraphsUnknown)
	w.copies(p.Copies)
	w.sum(semconv.MetricGPUCUDAMemsetBytes).add(p.Sets.Bytes)
	w.sum(semconv.MetricGPUCUDAMemsetCalls).add(p.Sets.Calls)
	w.memory(p.Memory)
	waits := w.histogram(semconv.MetricGPUCUDASyncWaitDuration, timeBounds, 1e9)
	for i := range p.Waits {
		waits.function(&p.Waits[i].Time, p.Waits[i].Function)
	}
	failed := w.sum(semconv.MetricGPUCUDAErrors)
	for _, e := range p.Errors {
		if a, ok := failed.add(e.Calls); ok {
			a.PutStr(semconv.ErrorType, errorName(e.Function, e.Code))
			putKnown(a, semconv.CUDAAPIName, e.Function)
		}
	}
	w.sum(semconv.MetricGPUCUDAModuleLoads).add(p.Modules)
	lost := w.sum(semconv.MetricGPUCUDACallsLost)
	for _, reason := range slices.Sorted(maps.Keys(p.Lost)) {
		if a, ok := lost.add(p.Lost[reason]); ok {
			a.PutStr(semconv.CUDALostReason, reason)
		}
	}
	sizes := w.histogram(semconv.MetricGPUCUDACollectiveSize, sizeBounds, 1)
	for i := range p.Collectives {
		sizes.function(&p.Collectives[i].Bytes, p.Collectives[i].Function)
	}
	times := w.histogram(semconv.MetricGPUCUDAAPIDuration, timeBounds, 1e9)
	for i := range p.Collectives {
		times.function(&p.Collectives[i].Time, p.Collectives[i].Function)
	}
}

func (w *writer) launches(k *kernels) {
	executed := w.sum(semconv.MetricGPUCUDAKernelLaunchCalls)
	captured := w.sum(semconv.MetricGPUCUDAKernelCapturedLaunches)
	grid := w.histogram(semconv.MetricGPUCUDAKernelGridSize, gridBounds, 1)
	block := w.histogram(semconv.MetricGPUCUDAKernelBlockSize, blockBounds, 1)
	k.each(func(name string, created pcommon.Timestamp, done *work) {
		for _, s := range []struct {
			*sum
			n uint64
		}{{executed, done.executed}, {captured, done.captured}} {
			if p, ok := s.point(s.n, created); ok {
				p.Attributes().PutStr(semconv.CUDAKernelName, name)
			}
		}
		for _, h := range []struct {
			*histogram
			v *probe.Histogram
		}{{grid, &done.grid}, {block, &done.block}} {
			// The maximum since the start of the series is unknown.
			if p, ok := h.point(h.v, created); ok {
				p.Attributes().PutStr(semconv.CUDAKernelName, name)
			}
		}
	})
}

func (w *writer) copies(copies []probe.Copy) {
	put := func(a pcommon.Map, c *probe.Copy) {
		putKnown(a, semconv.CUDAMemcpyKind, c.Kind)
		a.PutBool(semconv.CUDAMemcpyAsync, c.Async)
	}
	sizes := w.histogram(semconv.MetricGPUCUDAMemoryCopies, sizeBounds, 1)
	times := w.histogram(semconv.MetricGPUCUDAMemoryCopyDuration, timeBounds, 1e9)
	timed := w.sum(semconv.MetricGPUCUDAMemoryCopyTimedBytes)
	for i := range copies {
		c := &copies[i]
		if a, ok := sizes.whole(&c.Bytes); ok {
			put(a, c)
		}
		if a, ok := times.whole(&c.Time); ok {
			put(a, c)
		}
		if a, ok := timed.add(c.TimedBytes); ok {
			put(a, c)
		}
	}
}

func (w *writer) memory(memory []probe.Memory) {
	for _, s := range []struct {
		*sum
		value func(*probe.Memory) uint64
	}{
		{w.sum(semconv.MetricGPUCUDAMemoryAllocations), func(m *probe.Memory) uint64 { return m.Allocated.Bytes }},
		{w.sum(semconv.MetricGPUCUDAMemoryAllocationCalls), func(m *probe.Memory) uint64 { return m.Allocated.Calls }},
		{w.sum(semconv.MetricGPUCUDAMemoryFreeBytes), func(m *probe.Memory) uint64 { return m.Freed.Bytes }},
		{w.sum(semconv.MetricGPUCUDAMemoryFreeCalls), func(m *probe.Memory) uint64 { return m.Freed.Calls }},
	} {
		for i := range memory {
			if a, ok := s.add(s.value(&memory[i])); ok {
				putKnown(a, semconv.CUDAMemoryKind, memory[i].Kind)
			}
		}
	}
	// 0 is a valid value: all memory was released.
	var points pmetric.NumberDataPointSlice
	for i := range memory {
		if i == 0 {
			m := w.metric(semconv.MetricGPUCUDAMemoryInUse).SetEmptySum()
			m.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			points = m.DataPoints()
		}
		p := points.AppendEmpty()
		p.SetStartTimestamp(w.start)
		p.SetTimestamp(w.now)
		p.SetIntValue(memory[i].InUse)
		putKnown(p.Attributes(), semconv.CUDAMemoryKind, memory[i].Kind)
	}
}

func (w *writer) metric(name string) pmetric.Metric {
	m := w.metrics.AppendEmpty()
	m.SetName(name)
	m.SetUnit(registered[name].Unit)
	m.SetDescription(registered[name].Brief)
	return m
}

// sum is a monotonic metric. It is created with its first point. Points of 0 are omitted.
type sum struct {
	w      *writer
	name   string
	points pmetric.NumberDataPointSlice
	begun  bool
}

func (w *writer) sum(name string) *sum { return &sum{w: w, name: name} }

func (s *sum) point(v uint64, created pcommon.Timestamp) (pmetric.NumberDataPoint, bool) {
	if v == 0 {
		return pmetric.NumberDataPoint{}, false
	}
	if !s.begun {
		m := s.w.metric(s.name).SetEmptySum()
		m.SetIsMonotonic(true)
		m.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		s.points, s.begun = m.DataPoints(), true
	}
	p := s.points.AppendEmpty()
	p.SetStartTimestamp(created)
	p.SetTimestamp(s.w.now)
	p.SetIntValue(int64(min(v, math.MaxInt64)))
	return p, true
}

func (s *sum) add(v uint64) (pcommon.Map, bool) {
	p, ok := s.point(v, s.w.start)
	if !ok {
		return pcommon.Map{}, false
	}
	return p.Attributes(), true
}

// histogram is a metric whose bounds are powers of two. It is created with its first point. Points
// without values are omitted.
type histogram struct {
	w      *writer
	name   string
	bounds []int
	// unit is the number of the values' units in one unit of the metric: 1e9 for nanoseconds and
	// seconds.
	unit   float64
	points pmetric.HistogramDataPointSlice
	begun  bool
}

func (w *writer) histogram(name string, bounds []int, unit float64) *histogram {
	return &histogram{w: w, name: name, bounds: bounds, unit: unit}
}

func (h *histogram) point(v *probe.Histogram, created pcommon.Timestamp) (pmetric.HistogramDataPoint, bool) {
	counts := make([]uint64, len(h.bounds)+1)
	// The count is the sum of the buckets, so that the two agree even if the kernel had updated
	// only one of them when they were read.
	var count uint64
	at := 0
	for i, n := range v.Buckets {
		for at < len(h.bounds) && i > h.bounds[at] {
			at++
		}
		counts[at] += n
		count += n
	}
	if count == 0 {
		return pmetric.HistogramDataPoint{}, false
	}
	if !h.begun {
		m := h.w.metric(h.name).SetEmptyHistogram()
		m.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		h.points, h.begun = m.DataPoints(), true
	}
	p := h.points.AppendEmpty()
	p.SetStartTimestamp(created)
	p.SetTimestamp(h.w.now)
	p.SetCount(count)
	p.SetSum(float64(v.Sum) / h.unit)
	bounds := p.ExplicitBounds()
	bounds.EnsureCapacity(len(h.bounds))
	for _, b := range h.bounds {
		bounds.Append(math.Ldexp(1, b) / h.unit)
	}
	p.BucketCounts().FromRaw(counts)
	return p, true
}

// whole writes a histogram that started with the process, including its maximum.
func (h *histogram) whole(v *probe.Histogram) (pcommon.Map, bool) {
	p, ok := h.point(v, h.w.start)
	if !ok {
		return pcommon.Map{}, false
	}
	p.SetMax(float64(v.Max) / h.unit)
	return p.Attributes(), true
}

// function writes a histogram of a driver function.
func (h *histogram) function(v *probe.Histogram, name string) {
	if a, ok := h.whole(v); ok {
		putKnown(a, semconv.CUDAAPIName, name)
	}
}

// errorNames maps the driver's return codes to their names without CUDA_ERROR_ (CUresult, cuda.h of
// CUDA 13).
var errorNames = map[int32]string{
	1: "invalid_value", 2: "out_of_memory", 3: "not_initialized", 4: "deinitialized",
	34: "stub_library", 46: "device_unavailable", 100: "no_device", 101: "invalid_device",
	200: "invalid_image", 201: "invalid_context", 205: "map_failed", 206: "unmap_failed",
	209: "no_binary_for_gpu", 214: "ecc_uncorrectable", 217: "peer_access_unsupported", 218: "invalid_ptx",
	220: "nvlink_uncorrectable", 222: "unsupported_ptx_version", 300: "invalid_source", 301: "file_not_found",
	304: "operating_system", 400: "invalid_handle", 401: "illegal_state", 500: "not_found",
	700: "illegal_address", 701: "launch_out_of_resources", 702: "launch_timeout",
	704: "peer_access_already_enabled", 705: "peer_access_not_enabled", 708: "primary_context_active",
	709: "context_is_destroyed", 710: "assert", 712: "host_memory_already_registered",
	713: "host_memory_not_registered", 714: "hardware_stack_error", 715: "illegal_instruction",
	716: "misaligned_address", 717: "invalid_address_space", 718: "invalid_pc", 719: "launch_failed",
	720: "cooperative_launch_too_large", 800: "not_permitted", 801: "not_supported", 802: "system_not_ready",
	900: "stream_capture_unsupported", 901: "stream_capture_invalidated", 904: "stream_capture_unjoined",
	905: "stream_capture_isolation", 906: "stream_capture_implicit", 907: "captured_event",
	908: "stream_capture_wrong_thread", 909: "timeout", 910: "graph_exec_update_failure", 999: "unknown",
}

// errorName returns the name of a function's return code. NCCL and the runtime have codes of their
// own, which are written as numbers.
func errorName(function string, code int32) string {
	number := strconv.FormatInt(int64(code), 10)
	switch {
	case strings.HasPrefix(function, "nccl"):
		return "nccl_" + number
	case strings.HasPrefix(function, "cuda"):
		return "cudart_" + number
	}
	if name, ok := errorNames[code]; ok {
		return name
	}
	return "cuda_" + number
}
