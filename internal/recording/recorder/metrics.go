// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"maps"
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/histogram"
	"github.com/gpuflight/gpuflight/semconv"
)

// registered holds the units and descriptions of the metrics.
var registered = func() map[string]semconv.Metric {
	m := map[string]semconv.Metric{}
	for _, d := range semconv.Metrics {
		m[d.Name] = d
	}
	return m
}()

// rank selects the kernel names with series of their own: the topNames with the most time. The new
// work of all others is added to _other. A name that enters starts a series at that time. A name
// that leaves adds all its values to _other. So every sum is exact and no series decreases.
func (t *totals) rank(now int64) {
	all := t.names.all
	var own, rest []uint32
	for i := 1; i < len(all); i++ {
		if all[i].own {
			own = append(own, uint32(i))
		} else {
			rest = append(rest, uint32(i))
		}
	}
	byTime := func(a, b uint32) int {
		return cmp.Or(cmp.Compare(all[b].ns, all[a].ns), cmp.Compare(a, b))
	}
	slices.SortFunc(rest, byTime)
	if room := min(topNames-len(own), len(rest)); room > 0 {
		for _, i := range rest[:room] {
			all[i].own = true
		}
		rest = rest[room:]
	}
	// Require twice the time of the smallest, so that two names with similar times do not
	// alternate.
	slices.SortFunc(own, byTime)
	for len(rest) > 0 && len(own) > 0 && all[rest[0]].ns/2 > all[own[len(own)-1]].ns {
		least := own[len(own)-1]
		all[least].own = false
		t.fold(least, now)
		all[rest[0]].own = true
		own, rest = own[:len(own)-1], rest[1:]
	}
	for _, i := range rest {
		t.fold(i, now)
	}
}

// fold adds the values of a name's series to _other and restarts the series.
func (t *totals) fold(name uint32, now int64) {
	n := &t.names.all[name]
	for _, c := range n.cells {
		if c.launches+c.nodes > 0 {
			other := t.cell(otherIndex, c.label, c.device)
			other.launches += c.launches
			other.nodes += c.nodes
			c.launches, c.nodes = 0, 0
		}
		c.created = now
	}
	for _, u := range n.usages {
		if u.durations.Count() > 0 || u.without > 0 {
			other := t.usage(otherIndex, u.device)
			other.durations.Merge(u.durations)
			other.without += u.without
			u.durations, u.without = histogram.NewExponential(buckets), 0
		}
		u.created = now
	}
}

// sendMetrics sends the current metrics.
func (e *engine) sendMetrics() {
	e.totals.rank(e.now.UnixNano())
	e.sink.Metrics(e.metrics())
}

func (e *engine) metrics() pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.SetSchemaUrl(semconv.SchemaURL)
	e.resource.CopyTo(rm.Resource())
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.SetSchemaUrl(semconv.SchemaURL)
	sm.Scope().SetName(semconv.ScopeName)
	w := &metricWriter{e: e, metrics: sm.Metrics(), now: pcommon.Timestamp(e.now.UnixNano())}
	w.kernels()
	w.work()
	w.copies()
	w.memory()
	w.recorder()
	return md
}

// metricWriter builds the metrics of one export.
type metricWriter struct {
	e       *engine
	metrics pmetric.MetricSlice
	now     pcommon.Timestamp
}

func (w *metricWriter) metric(name string) pmetric.Metric {
	m := w.metrics.AppendEmpty()
	m.SetName(name)
	m.SetUnit(registered[name].Unit)
	m.SetDescription(registered[name].Brief)
	return m
}

// gauge adds a gauge and returns its only point.
func (w *metricWriter) gauge(name string) pmetric.NumberDataPoint {
	p := w.metric(name).SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetTimestamp(w.now)
	return p
}

// sum is a cumulative, monotonic metric. It is created with its first point.
type sum struct {
	w      *metricWriter
	name   string
	points pmetric.NumberDataPointSlice
	begun  bool
}

func (w *metricWriter) sum(name string) *sum { return &sum{w: w, name: name} }

func (s *sum) point(created int64) pmetric.NumberDataPoint {
	if !s.begun {
		m := s.w.metric(s.name).SetEmptySum()
		m.SetIsMonotonic(true)
		m.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		s.points, s.begun = m.DataPoints(), true
	}
	p := s.points.AppendEmpty()
	p.SetStartTimestamp(pcommon.Timestamp(created))
	p.SetTimestamp(s.w.now)
	return p
}

func (s *sum) int(created int64, v uint64) pcommon.Map {
	p := s.point(created)
	p.SetIntValue(int64(v))
	return p.Attributes()
}

// seconds adds a point for a duration in nanoseconds.
func (s *sum) seconds(created int64, ns uint64) pcommon.Map {
	p := s.point(created)
	p.SetDoubleValue(float64(ns) / 1e9)
	return p.Attributes()
}

// device adds the known attributes of a device.
func (w *metricWriter) device(a pcommon.Map, slot uint8) {
	devices := w.e.session.Devices
	for i := range devices {
		d := &devices[i]
		if slot == 0 && len(devices) == 1 || slot != 0 && d.Index == int64(slot)-1 {
			putKnown(a, semconv.HWID, d.UUID)
			putKnown(a, semconv.HWName, d.Name)
			return
		}
	}
}

func putKnown(a pcommon.Map, key, value string) {
	if value != "" {
		a.PutStr(key, value)
	}
}

func (w *metricWriter) scope(a pcommon.Map, label uint32) {
	putKnown(a, semconv.CUDAScopeName, w.e.scopes.labels[label])
}

// kernels writes the metrics by kernel name.
func (w *metricWriter) kernels() {
	t := w.e.totals
	launches := w.sum(semconv.MetricGPUCUDAKernelLaunchCalls)
	nodes := map[uint64]uint64{} // by scope and device: their names are in the histograms
	var order []uint64
	for _, c := range t.list {
		if c.launches > 0 {
			a := launches.int(c.created, c.launches)
			a.PutStr(semconv.CUDAKernelName, t.names.all[c.name].name.Full)
			w.scope(a, c.label)
			w.device(a, c.device)
		}
		if c.nodes > 0 {
			key := uint64(c.label)<<8 | uint64(c.device)
			if nodes[key] == 0 {
				order = append(order, key)
			}
			nodes[key] += c.nodes
		}
	}
	nodeLaunches := w.sum(semconv.MetricGPUCUDAGraphNodeLaunches)
	for _, key := range order {
		a := nodeLaunches.int(t.start, nodes[key])
		w.scope(a, uint32(key>>8))
		w.device(a, uint8(key))
	}

	var points pmetric.ExponentialHistogramDataPointSlice
	begun := false
	for _, u := range t.usageList {
		if u.durations.Count() == 0 {
			continue
		}
		if !begun {
			points, begun = w.exponential(semconv.MetricGPUCUDAKernelDuration), true
		}
		p := points.AppendEmpty()
		w.durations(p, u.created, u.durations)
		p.Attributes().PutStr(semconv.CUDAKernelName, t.names.all[u.name].name.Full)
		w.device(p.Attributes(), u.device)
	}

	leftOut := w.sum(semconv.MetricGpuflightSpansLeftOut)
	for _, u := range t.usageList {
		if u.without > 0 {
			a := leftOut.int(u.created, u.without)
			a.PutStr(semconv.CUDAOperation, operationNames[opKernel])
			a.PutStr(semconv.CUDAKernelName, t.names.all[u.name].name.Full)
			w.device(a, u.device)
		}
	}
	for op := range t.without {
		for slot, n := range t.without[op] {
			if n > 0 {
				a := leftOut.int(t.start, n)
				a.PutStr(semconv.CUDAOperation, operationNames[op])
				w.device(a, uint8(slot))
			}
		}
	}
}

func (w *metricWriter) exponential(name string) pmetric.ExponentialHistogramDataPointSlice {
	h := w.metric(name).SetEmptyExponentialHistogram()
	h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	return h.DataPoints()
}

func (w *metricWriter) durations(p pmetric.ExponentialHistogramDataPoint, created int64, h *histogram.Exponential) {
	p.SetStartTimestamp(pcommon.Timestamp(created))
	p.SetTimestamp(w.now)
	p.SetCount(h.Count())
	p.SetSum(float64(h.Sum()) / 1e9)
	p.SetScale(h.Scale())
	p.SetZeroCount(h.Zero())
	p.SetMin(float64(h.Min()) / 1e9)
	p.SetMax(float64(h.Max()) / 1e9)
	first, counts := h.Buckets()
	p.Positive().SetOffset(first)
	p.Positive().BucketCounts().FromRaw(counts)
}

// work writes device seconds, and launches of graphs.
func (w *metricWriter) work() {
	t := w.e.totals
	time := w.sum(semconv.MetricGPUCUDATime)
	for _, x := range t.workList {
		for op := range numOperations {
			if op.onDevice() && x.count[op] > 0 {
				a := time.seconds(t.start, x.ns[op])
				a.PutStr(semconv.CUDAOperation, operationNames[op])
				w.scope(a, x.label)
				w.device(a, x.device)
			}
		}
	}
	graphs := w.sum(semconv.MetricGPUCUDAGraphLaunchCalls)
	for _, x := range t.workList {
		if n := x.count[opGraph]; n > 0 {
			a := graphs.int(t.start, n)
			w.scope(a, x.label)
			w.device(a, x.device)
		}
	}
}

func (w *metricWriter) copies() {
	t := w.e.totals
	if len(t.copies) == 0 {
		return
	}
	m := w.metric(semconv.MetricGPUCUDAMemoryCopies).SetEmptyHistogram()
	m.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	for _, c := range t.copies {
		p := m.DataPoints().AppendEmpty()
		p.SetStartTimestamp(pcommon.Timestamp(t.start))
		p.SetTimestamp(w.now)
		p.SetCount(c.bytes.Count())
		p.SetSum(float64(c.bytes.Sum()))
		p.SetMin(float64(c.bytes.Min()))
		p.SetMax(float64(c.bytes.Max()))
		bounds := p.ExplicitBounds()
		bounds.EnsureCapacity(len(copyBounds))
		for _, v := range copyBounds {
			bounds.Append(float64(v))
		}
		p.BucketCounts().FromRaw(c.bytes.Counts())
		putKnown(p.Attributes(), semconv.CUDAMemcpyKind, t.kinds[c.kind])
		w.device(p.Attributes(), c.device)
	}
}

// memory writes memory sets, allocations and waits. The conventions give them no device.
func (w *metricWriter) memory() {
	t := w.e.totals
	var sets, bytes uint64
	for i := range t.sets {
		sets += t.sets[i]
		bytes += t.setBytes[i]
	}
	if sets > 0 {
		w.sum(semconv.MetricGPUCUDAMemsetBytes).int(t.start, bytes)
	}
	if t.allocated > 0 {
		w.sum(semconv.MetricGPUCUDAMemoryAllocations).int(t.start, t.allocated)
	}
	if t.freed > 0 {
		w.sum(semconv.MetricGPUCUDAMemoryFreeBytes).int(t.start, t.freed)
	}
}

// recorder writes the recorder's own metrics.
func (w *metricWriter) recorder() {
	start := w.e.totals.start
	s := w.e.src.Stats()
	w.sum(semconv.MetricGpuflightRecordsCollected).int(start, s.Records)
	w.sum(semconv.MetricGpuflightRecordsDropped).int(start, s.Dropped)
	rejected := w.sum(semconv.MetricGpuflightRecordsRejected)
	for i, n := range s.Rejected {
		if n > 0 {
			rejected.int(start, n).PutStr(semconv.ErrorType, cupti.RejectNames[i])
		}
	}
	windows := w.sum(semconv.MetricGpuflightDeepWindows)
	counts := &w.e.windows.counts
	for _, status := range slices.Sorted(maps.Keys(counts.ByStatus)) {
		windows.int(start, counts.ByStatus[status]).PutStr(semconv.CUDADeepWindowStatus, status)
	}
	if w.e.windows.paused > 0 {
		w.sum(semconv.MetricGpuflightPausedTime).seconds(start, uint64(w.e.windows.paused))
	}
	overhead := w.sum(semconv.MetricGpuflightOverheadTime)
	overhead.seconds(start, uint64(max(s.Overhead, 0))).PutStr(semconv.GpuflightOverheadKind, semconv.GpuflightOverheadKindCupti)
	overhead.seconds(start, uint64(w.e.ownTime())).PutStr(semconv.GpuflightOverheadKind, semconv.GpuflightOverheadKindLibrary)
	w.overhead()
}
