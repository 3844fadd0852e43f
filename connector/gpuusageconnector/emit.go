// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/histogram"
	"github.com/gpuflight/gpuflight/semconv"
)

// registered are the metrics' units and descriptions.
var registered = func() map[string]semconv.Metric {
	m := map[string]semconv.Metric{}
	for _, d := range semconv.Metrics {
		m[d.Name] = d
	}
	return m
}()

// emit returns all series as they are at the moment of the last flush.
func (s *state) emit() pmetric.Metrics {
	e := emitter{s: s, md: pmetric.NewMetrics(), now: pcommon.Timestamp(s.now)}
	e.devices()
	for _, v := range s.services {
		e.service(v)
	}
	return e.md
}

// emitter builds the metrics of one export.
type emitter struct {
	s   *state
	md  pmetric.Metrics
	now pcommon.Timestamp

	// The resource at hand, nil until its first metric.
	resource func(pcommon.Map)
	scope    *pmetric.ScopeMetrics
}

// begin begins a resource, which is written if a metric follows.
func (e *emitter) begin(resource func(pcommon.Map)) { e.resource, e.scope = resource, nil }

func (e *emitter) metric(name string) pmetric.Metric {
	if e.scope == nil {
		rm := e.md.ResourceMetrics().AppendEmpty()
		e.resource(rm.Resource().Attributes())
		sm := rm.ScopeMetrics().AppendEmpty()
		sm.Scope().SetName(metadata.ScopeName)
		e.scope = &sm
	}
	m := e.scope.Metrics().AppendEmpty()
	m.SetName(name)
	m.SetUnit(registered[name].Unit)
	m.SetDescription(registered[name].Brief)
	return m
}

// sum is a cumulative, monotonic metric. It is written with its first point.
type sum struct {
	e      *emitter
	name   string
	points *pmetric.NumberDataPointSlice
}

func (e *emitter) sum(name string) *sum { return &sum{e: e, name: name} }

func (m *sum) point(created int64) pmetric.NumberDataPoint {
	if m.points == nil {
		s := m.e.metric(m.name).SetEmptySum()
		s.SetIsMonotonic(true)
		s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		p := s.DataPoints()
		m.points = &p
	}
	p := m.points.AppendEmpty()
	p.SetStartTimestamp(pcommon.Timestamp(created))
	p.SetTimestamp(m.e.now)
	return p
}

// seconds adds a point of a time.
func (m *sum) seconds(created, ns int64) pcommon.Map {
	return m.double(created, float64(ns)/1e9)
}

func (m *sum) double(created int64, v float64) pcommon.Map {
	p := m.point(created)
	p.SetDoubleValue(v)
	return p.Attributes()
}

func (m *sum) int(created, v int64) pcommon.Map {
	p := m.point(created)
	p.SetIntValue(v)
	return p.Attributes()
}

// device puts what is known of a device.
func (e *emitter) device(a pcommon.Map, number uint32) {
	if number == 0 {
		a.PutStr(semconv.HWID, otherName)
		return
	}
	l := e.s.labels[number]
	putKnown(a, semconv.HWID, l.id)
	putKnown(a, semconv.HWName, l.name)
}

func putKnown(a pcommon.Map, key, value string) {
	if value != "" {
		a.PutStr(key, value)
	}
}

// devices writes what is known by device and not by service: resources are hosts.
func (e *emitter) devices() {
	s := e.s
	byHost := map[string][]uint32{}
	var hosts []string
	for i, l := range s.labels[1:] {
		if byHost[l.host] == nil {
			hosts = append(hosts, l.host)
		}
		byHost[l.host] = append(byHost[l.host], uint32(i+1))
	}
	for _, host := range hosts {
		putHost := func(a pcommon.Map) {
			decodeResource(host, s.keys.kept, func(k, v string) { a.PutStr(k, v) })
		}
		e.begin(putHost)
		busy, observed := e.sum(semconv.MetricGPUCUDABusyTime), e.sum(semconv.MetricGPUCUDAObservedTime)
		for _, n := range byHost[host] {
			e.device(busy.seconds(s.labels[n].created, s.labels[n].busy), n)
		}
		for _, n := range byHost[host] {
			e.device(observed.seconds(s.labels[n].created, s.labels[n].account), n)
		}

		e.begin(func(a pcommon.Map) {
			putHost(a)
			a.PutStr(semconv.ServiceName, idleName)
		})
		idle := e.sum(semconv.MetricGPUCUDACost)
		for _, n := range byHost[host] {
			if l := s.labels[n]; l.perHour >= 0 || l.idle.before > 0 {
				a := idle.double(l.created, l.idle.amount(max(l.perHour, 0)))
				e.device(a, n)
				a.PutStr(semconv.CUDACostCurrency, s.cfg.Cost.Currency)
			}
		}
	}
}

// service writes all metrics of a service.
func (e *emitter) service(v *service) {
	s := e.s
	e.begin(func(a pcommon.Map) {
		if v == s.services[0] {
			a.PutStr(semconv.ServiceName, otherName)
			return
		}
		decodeResource(v.key, s.keys.kept, func(k, v string) { a.PutStr(k, v) })
	})

	time := e.sum(semconv.MetricGPUCUDATime)
	for _, c := range v.cells {
		for op, n := range c.spans {
			if n == 0 {
				continue
			}
			a := time.seconds(c.created, c.ns[op])
			e.device(a, c.label)
			putKnown(a, semconv.CUDAScopeName, v.scopes.name(c.scope))
			a.PutStr(semconv.CUDAOperation, operationNames[op])
		}
	}
	for _, counter := range []struct {
		name  string
		value func(*cell) int64
	}{
		{semconv.MetricGPUCUDAKernelLaunchCalls, func(c *cell) int64 { return c.spans[opKernel] - c.nodes }},
		{semconv.MetricGPUCUDAGraphLaunchCalls, func(c *cell) int64 { return c.spans[opGraph] }},
		{semconv.MetricGPUCUDAGraphNodeLaunches, func(c *cell) int64 { return c.nodes }},
	} {
		m := e.sum(counter.name)
		for _, c := range v.cells {
			if n := counter.value(c); n > 0 {
				a := m.int(c.created, n)
				e.device(a, c.label)
				putKnown(a, semconv.CUDAScopeName, v.scopes.name(c.scope))
			}
		}
	}

	durations := e.durations(semconv.MetricGPUCUDAKernelDuration)
	for _, m := range v.kernels.members {
		for _, ks := range m.series {
			a := durations.point(ks.series)
			e.device(a, ks.label)
			putKnown(a, semconv.CUDAKernelName, m.name)
		}
	}
	for _, u := range v.usages {
		if u.other != nil {
			a := durations.point(u.other)
			e.device(a, u.label)
			a.PutStr(semconv.CUDAKernelName, otherName)
		}
	}
	queues := e.durations(semconv.MetricGPUCUDAQueueDuration)
	for _, u := range v.usages {
		for op, q := range u.queue {
			if q != nil {
				a := queues.point(q)
				e.device(a, u.label)
				a.PutStr(semconv.CUDAOperation, operationNames[op])
			}
		}
	}
	gaps := e.durations(semconv.MetricGPUCUDAStreamGapDuration)
	for _, u := range v.usages {
		for after, g := range u.gaps {
			if g != nil {
				a := gaps.point(g)
				e.device(a, u.label)
				a.PutStr(semconv.CUDAGapAfter, gapNames[after])
			}
		}
	}
	e.copies(v)

	costs := e.sum(semconv.MetricGPUCUDACost)
	for _, c := range v.costs {
		a := costs.double(c.created, c.amount(max(s.labels[c.label].perHour, 0)))
		e.device(a, c.label)
		putKnown(a, semconv.CUDAScopeName, v.scopes.name(c.scope))
		putKnown(a, semconv.CUDARequestOperation, v.requests.name(c.request))
		a.PutStr(semconv.CUDACostCurrency, s.cfg.Cost.Currency)
	}
}

// copies writes the sizes of copies.
func (e *emitter) copies(v *service) {
	var points *pmetric.HistogramDataPointSlice
	for _, u := range v.usages {
		for _, z := range u.copies {
			if points == nil {
				h := e.metric(semconv.MetricGPUCUDAMemoryCopies).SetEmptyHistogram()
				h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
				p := h.DataPoints()
				points = &p
			}
			p := points.AppendEmpty()
			e.explicit(p, z.created, z.bytes, copyBounds, 1)
			e.device(p.Attributes(), u.label)
			putKnown(p.Attributes(), semconv.CUDAMemcpyKind, z.kind)
		}
	}
}

// explicit fills a point; values are divided by unit.
func (e *emitter) explicit(p pmetric.HistogramDataPoint, created int64, h *histogram.Explicit, bounds []int64, unit float64) {
	p.SetStartTimestamp(pcommon.Timestamp(created))
	p.SetTimestamp(e.now)
	p.SetCount(h.Count())
	p.SetSum(float64(h.Sum()) / unit)
	if h.Count() > 0 {
		p.SetMin(float64(h.Min()) / unit)
		p.SetMax(float64(h.Max()) / unit)
	}
	b := p.ExplicitBounds()
	b.EnsureCapacity(len(bounds))
	for _, v := range bounds {
		b.Append(float64(v) / unit)
	}
	p.BucketCounts().FromRaw(h.Counts())
}

// durations is a metric of histograms of durations, of the kind that the settings ask for.
type durations struct {
	e           *emitter
	name        string
	exponential *pmetric.ExponentialHistogramDataPointSlice
	explicit    *pmetric.HistogramDataPointSlice
}

func (e *emitter) durations(name string) *durations { return &durations{e: e, name: name} }

func (d *durations) point(s *series) pcommon.Map {
	if d.e.s.explicit {
		if d.explicit == nil {
			h := d.e.metric(d.name).SetEmptyHistogram()
			h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			p := h.DataPoints()
			d.explicit = &p
		}
		p := d.explicit.AppendEmpty()
		d.e.explicit(p, s.created, s.exact, durationBounds, 1e9)
		d.e.exemplars(s, p.Exemplars())
		return p.Attributes()
	}
	if d.exponential == nil {
		h := d.e.metric(d.name).SetEmptyExponentialHistogram()
		h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		p := h.DataPoints()
		d.exponential = &p
	}
	p := d.exponential.AppendEmpty()
	p.SetStartTimestamp(pcommon.Timestamp(s.created))
	p.SetTimestamp(d.e.now)
	p.SetCount(s.exp.Count())
	p.SetSum(float64(s.exp.Sum()) / 1e9)
	p.SetScale(s.exp.Scale())
	p.SetZeroCount(s.exp.Zero())
	if s.exp.Count() > 0 {
		p.SetMin(float64(s.exp.Min()) / 1e9)
		p.SetMax(float64(s.exp.Max()) / 1e9)
	}
	first, counts := s.exp.Buckets()
	p.Positive().SetOffset(first)
	p.Positive().BucketCounts().FromRaw(counts)
	d.e.exemplars(s, p.Exemplars())
	return p.Attributes()
}

// exemplars writes the slowest spans of the interval.
func (e *emitter) exemplars(s *series, to pmetric.ExemplarSlice) {
	if s.interval != e.s.interval {
		return
	}
	for i := range s.exemplars {
		x := to.AppendEmpty()
		x.SetDoubleValue(float64(s.exemplars[i].ns) / 1e9)
		x.SetTimestamp(pcommon.Timestamp(s.exemplars[i].end))
		x.SetTraceID(s.exemplars[i].trace)
		x.SetSpanID(s.exemplars[i].span)
	}
}
