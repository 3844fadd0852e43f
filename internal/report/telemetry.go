// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

// resource returns the session that a resource is of.
func (r *Report) resource(res pcommon.Resource) *session {
	return r.of(text(res.Attributes(), semconv.ServiceInstanceID))
}

func text(m pcommon.Map, key string) string {
	v, ok := m.Get(key)
	if !ok || v.Type() != pcommon.ValueTypeStr {
		return ""
	}
	return v.Str()
}

// number returns a whole number, 0 where it is absent or below 0.
func number(m pcommon.Map, key string) int64 {
	v, ok := m.Get(key)
	if !ok || v.Type() != pcommon.ValueTypeInt {
		return 0
	}
	return max(v.Int(), 0)
}

// Traces adds spans.
func (r *Report) Traces(td ptrace.Traces) {
	for _, rs := range td.ResourceSpans().All() {
		s := r.resource(rs.Resource())
		for _, ss := range rs.ScopeSpans().All() {
			for _, span := range ss.Spans().All() {
				s.spans.span(span)
				if text(span.Attributes(), semconv.CUDAOperation) == semconv.CUDAOperationDeepWindow {
					r.window(rs.Resource(), span.Attributes(), span.StartTimestamp(), span.EndTimestamp())
				}
			}
		}
	}
}

func (s *sums) span(span ptrace.Span) {
	attributes := span.Attributes()
	operation := text(attributes, semconv.CUDAOperation)
	took := time.Duration(max(int64(span.EndTimestamp()-span.StartTimestamp()), 0))
	row := Row{Count: 1, Timed: 1, Total: took, Max: took, Longest: Launch{Span: span.SpanID(), StartNs: uint64(span.StartTimestamp()), took: took}}
	onDevice := true
	switch operation {
	case semconv.CUDAOperationKernel:
		name := text(attributes, semconv.CUDAKernelName)
		if name == "" {
			name = span.Name()
		}
		sum := s.row(&s.kernels, name)
		if took > sum.Max || sum.Count == 0 { // the longest
			row.Longest.Shape = shapeText(attributes)
		}
		sum.add(&row)
	case semconv.CUDAOperationMemcpy:
		row.Bytes = uint64(number(attributes, semconv.CUDAMemcpySize))
		row.TimedBytes = row.Bytes
		s.row(&s.copies, text(attributes, semconv.CUDAMemcpyKind)).add(&row)
	case semconv.CUDAOperationMemset:
		row.Bytes = uint64(number(attributes, semconv.CUDAMemsetSize))
		row.TimedBytes = row.Bytes
		s.sets.add(&row)
	case semconv.CUDAOperationGraph:
		s.graphs++
	case semconv.CUDAOperationScope:
		onDevice = false
		if number(attributes, semconv.CUDAScopePart) == 0 { // a further part is the same scope once more
			s.row(&s.scopes, span.Name()).add(&row)
			if text(attributes, semconv.CUDATiming) == semconv.CUDATimingEstimated {
				s.slowed++
			}
		}
	default:
		onDevice = false
	}
	if onDevice && text(attributes, semconv.CUDATiming) == semconv.CUDATimingEstimated {
		s.estimated++
	}
	if scope := text(attributes, semconv.CUDAScopeName); onDevice && scope != "" {
		if s.device == nil {
			s.device = map[string]time.Duration{}
		}
		if _, ok := s.device[scope]; !ok && len(s.device) >= maxNames {
			scope = other
		}
		s.device[scope] += took
	}
}

// shapeText returns the grid and the block of a kernel, such as 132x1x1/256, "" if unknown. Sizes of 1
// at the end are omitted.
func shapeText(a pcommon.Map) string {
	var text string
	for _, key := range []string{semconv.CUDAKernelGrid, semconv.CUDAKernelBlock} {
		v, ok := a.Get(key)
		if !ok || v.Type() != pcommon.ValueTypeSlice || v.Slice().Len() == 0 {
			return ""
		}
		var sizes []string
		for _, n := range v.Slice().All() {
			sizes = append(sizes, strconv.FormatInt(n.Int(), 10))
		}
		for len(sizes) > 1 && sizes[len(sizes)-1] == "1" {
			sizes = sizes[:len(sizes)-1]
		}
		if text != "" {
			text += "/"
		}
		text += strings.Join(sizes, "x")
	}
	return text
}

// Logs adds what sessions say of what was lost, deep windows, and what was measured inside kernels.
func (r *Report) Logs(ld plog.Logs) {
	for _, rl := range ld.ResourceLogs().All() {
		s := r.resource(rl.Resource())
		for _, sl := range rl.ScopeLogs().All() {
			for _, record := range sl.LogRecords().All() {
				a := record.Attributes()
				switch record.EventName() {
				case semconv.EventCUDACapture:
					r.withoutListing += uint64(number(a, semconv.CUDACaptureFunctionsWithoutSASS))
					s.capture.add(Lost{
						Dropped:   uint64(number(a, semconv.CUDACaptureRecordsDropped)),
						Rejected:  uint64(number(a, semconv.CUDACaptureRecordsRejected)),
						LeftOut:   uint64(number(a, semconv.CUDACaptureSpansLeftOut)),
						Unsampled: uint64(number(a, semconv.CUDACaptureSpansUnsampled)),
					})
				case semconv.EventCUDADeepWindow:
					r.window(rl.Resource(), a, 0, 0)
				case semconv.EventCUDAPCSample:
					r.sample(a)
				case semconv.EventCUDASASSMetric:
					r.counter(a)
				case semconv.EventCUDASASSListing:
					r.listing(a, record.Body())
				}
			}
		}
	}
}

// Metrics adds metrics with cumulative sums; others are of somebody else.
func (r *Report) Metrics(md pmetric.Metrics) {
	for _, rm := range md.ResourceMetrics().All() {
		s := r.resource(rm.Resource())
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				s.metric(m)
			}
		}
	}
}

func (s *session) metric(m pmetric.Metric) {
	const cumulative = pmetric.AggregationTemporalityCumulative
	switch {
	case m.Name() == semconv.MetricGPUCUDAKernelDuration && m.Type() == pmetric.MetricTypeExponentialHistogram:
		if m.ExponentialHistogram().AggregationTemporality() == cumulative {
			for _, p := range m.ExponentialHistogram().DataPoints().All() {
				a := p.Attributes()
				row := Row{Name: text(a, semconv.CUDAKernelName), Count: p.Count(), Timed: p.Count(), Total: duration(p.Sum()), Max: duration(p.Max())}
				s.kernels.put(uint64(p.Timestamp()), series(a), func(v *Row) { *v = row })
			}
		}
	case m.Name() == semconv.MetricGPUCUDAMemoryCopies && m.Type() == pmetric.MetricTypeHistogram:
		if m.Histogram().AggregationTemporality() == cumulative {
			for _, p := range m.Histogram().DataPoints().All() {
				a := p.Attributes()
				row := Row{Name: text(a, semconv.CUDAMemcpyKind), Count: p.Count(), Bytes: uint64(max(p.Sum(), 0))}
				s.copies.put(uint64(p.Timestamp()), series(a), func(v *Row) { *v = row })
			}
		}
	case m.Type() == pmetric.MetricTypeSum && m.Sum().AggregationTemporality() == cumulative:
		for _, p := range m.Sum().DataPoints().All() {
			a, at := p.Attributes(), uint64(p.Timestamp())
			switch m.Name() {
			case semconv.MetricGPUCUDATime:
				key := timeKey{text(a, semconv.CUDAScopeName), text(a, semconv.CUDAOperation), text(a, semconv.HWID)}
				s.times.put(at, key, func(v *float64) { *v = value(p) })
			case semconv.MetricGPUCUDAMemsetBytes:
				s.sets.put(at, series(a), func(v *Row) { v.Bytes = uint64(max(value(p), 0)) })
			case semconv.MetricGpuflightRecordedTime:
				s.sliced = s.sliced || value(p) < recordedThroughout*p.Timestamp().AsTime().Sub(p.StartTimestamp().AsTime()).Seconds()
			case semconv.MetricGPUCUDAGraphLaunchCalls:
				s.graphs.put(at, series(a), func(v *uint64) { *v = uint64(max(value(p), 0)) })
			}
		}
	}
}

// recordedThroughout is the share of the time from which on a session counts as recorded without pauses. The first and the last
// moments of a session are never recorded.
const recordedThroughout = 0.95

func value(p pmetric.NumberDataPoint) float64 {
	if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
		return float64(p.IntValue())
	}
	return p.DoubleValue()
}

// series names a series among those of one metric and session.
func series(a pcommon.Map) string {
	return text(a, semconv.CUDAKernelName) + "\x00" + text(a, semconv.CUDAMemcpyKind) + "\x00" +
		text(a, semconv.CUDAScopeName) + "\x00" + text(a, semconv.HWID)
}
