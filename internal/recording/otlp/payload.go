// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/profile"
)

// payload is the data of one request. Its items are spans, log records, data points or profiles.
type payload interface {
	// size is the length of the encoded request in bytes.
	size() int
	items() int
	// merge moves all items of another payload of the same signal into this one. It returns false
	// if it cannot.
	merge(payload) bool
	// halve moves about half of the items into a new payload. It returns nil if there is only one
	// item.
	halve() payload
	json() ([]byte, error)
}

// split divides a payload until each piece has at most limit bytes or a single item.
func split(p payload, limit int) []payload {
	if p.size() <= limit {
		return []payload{p}
	}
	second := p.halve()
	if second == nil {
		return []payload{p}
	}
	return append(split(p, limit), split(second, limit)...)
}

// cut removes all but the first stay items from a slice of pdata.
func cut[T any](from interface{ RemoveIf(func(T) bool) }, stay int, move func(T)) {
	i := 0
	from.RemoveIf(func(item T) bool {
		if i++; i <= stay {
			return false
		}
		move(item)
		return true
	})
}

type traces struct{ ptrace.Traces }

func (t traces) size() int  { return (&ptrace.ProtoMarshaler{}).TracesSize(t.Traces) }
func (t traces) items() int { return t.SpanCount() }
func (t traces) merge(p payload) bool {
	p.(traces).ResourceSpans().MoveAndAppendTo(t.ResourceSpans())
	return true
}
func (t traces) json() ([]byte, error) { return (&ptrace.JSONMarshaler{}).MarshalTraces(t.Traces) }

func (t traces) halve() payload {
	keep := t.items() / 2
	if keep == 0 {
		return nil
	}
	second := ptrace.NewTraces()
	n := 0
	t.ResourceSpans().RemoveIf(func(rs ptrace.ResourceSpans) bool {
		var to ptrace.ResourceSpans
		opened := false
		rs.ScopeSpans().RemoveIf(func(ss ptrace.ScopeSpans) bool {
			count := ss.Spans().Len()
			n += count
			if n <= keep {
				return false
			}
			if !opened {
				to, opened = second.ResourceSpans().AppendEmpty(), true
				rs.Resource().CopyTo(to.Resource())
				to.SetSchemaUrl(rs.SchemaUrl())
			}
			stay := max(0, count-(n-keep))
			moved := to.ScopeSpans().AppendEmpty()
			ss.Scope().CopyTo(moved.Scope())
			moved.SetSchemaUrl(ss.SchemaUrl())
			moved.Spans().EnsureCapacity(count - stay)
			cut(ss.Spans(), stay, func(s ptrace.Span) { s.MoveTo(moved.Spans().AppendEmpty()) })
			return stay == 0
		})
		return rs.ScopeSpans().Len() == 0
	})
	return traces{second}
}

type logs struct{ plog.Logs }

func (l logs) size() int  { return (&plog.ProtoMarshaler{}).LogsSize(l.Logs) }
func (l logs) items() int { return l.LogRecordCount() }
func (l logs) merge(p payload) bool {
	p.(logs).ResourceLogs().MoveAndAppendTo(l.ResourceLogs())
	return true
}
func (l logs) json() ([]byte, error) { return (&plog.JSONMarshaler{}).MarshalLogs(l.Logs) }

func (l logs) halve() payload {
	keep := l.items() / 2
	if keep == 0 {
		return nil
	}
	second := plog.NewLogs()
	n := 0
	l.ResourceLogs().RemoveIf(func(rl plog.ResourceLogs) bool {
		var to plog.ResourceLogs
		opened := false
		rl.ScopeLogs().RemoveIf(func(sl plog.ScopeLogs) bool {
			count := sl.LogRecords().Len()
			n += count
			if n <= keep {
				return false
			}
			if !opened {
				to, opened = second.ResourceLogs().AppendEmpty(), true
				rl.Resource().CopyTo(to.Resource())
				to.SetSchemaUrl(rl.SchemaUrl())
			}
			stay := max(0, count-(n-keep))
			moved := to.ScopeLogs().AppendEmpty()
			sl.Scope().CopyTo(moved.Scope())
			moved.SetSchemaUrl(sl.SchemaUrl())
			cut(sl.LogRecords(), stay, func(r plog.LogRecord) { r.MoveTo(moved.LogRecords().AppendEmpty()) })
			return stay == 0
		})
		return rl.ScopeLogs().Len() == 0
	})
	return logs{second}
}

type metrics struct{ pmetric.Metrics }

func (m metrics) size() int  { return (&pmetric.ProtoMarshaler{}).MetricsSize(m.Metrics) }
func (m metrics) items() int { return m.DataPointCount() }
func (m metrics) merge(p payload) bool {
	p.(metrics).ResourceMetrics().MoveAndAppendTo(m.ResourceMetrics())
	return true
}
func (m metrics) json() ([]byte, error) { return (&pmetric.JSONMarshaler{}).MarshalMetrics(m.Metrics) }

// halve splits between metrics, and within a metric only if it is the only one.
func (m metrics) halve() payload {
	keep := m.MetricCount() / 2
	if keep == 0 {
		return m.halvePoints()
	}
	second := pmetric.NewMetrics()
	n := 0
	m.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
		var to pmetric.ResourceMetrics
		opened := false
		rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
			count := sm.Metrics().Len()
			n += count
			if n <= keep {
				return false
			}
			if !opened {
				to, opened = second.ResourceMetrics().AppendEmpty(), true
				rm.Resource().CopyTo(to.Resource())
				to.SetSchemaUrl(rm.SchemaUrl())
			}
			stay := max(0, count-(n-keep))
			moved := to.ScopeMetrics().AppendEmpty()
			sm.Scope().CopyTo(moved.Scope())
			moved.SetSchemaUrl(sm.SchemaUrl())
			cut(sm.Metrics(), stay, func(x pmetric.Metric) { x.MoveTo(moved.Metrics().AppendEmpty()) })
			return stay == 0
		})
		return rm.ScopeMetrics().Len() == 0
	})
	return metrics{second}
}

// halvePoints splits the only metric. It has at least one point per kernel and scope.
func (m metrics) halvePoints() payload {
	for _, rm := range m.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, from := range sm.Metrics().All() {
				keep := m.DataPointCount() / 2
				if keep == 0 {
					return nil
				}
				second := pmetric.NewMetrics()
				toResource := second.ResourceMetrics().AppendEmpty()
				rm.Resource().CopyTo(toResource.Resource())
				toResource.SetSchemaUrl(rm.SchemaUrl())
				toScope := toResource.ScopeMetrics().AppendEmpty()
				sm.Scope().CopyTo(toScope.Scope())
				toScope.SetSchemaUrl(sm.SchemaUrl())
				movePoints(from, toScope.Metrics().AppendEmpty(), keep)
				return metrics{second}
			}
		}
	}
	return nil
}

// movePoints makes to a metric like from and moves all but the first stay points to it.
func movePoints(from, to pmetric.Metric, stay int) {
	to.SetName(from.Name())
	to.SetDescription(from.Description())
	to.SetUnit(from.Unit())
	from.Metadata().CopyTo(to.Metadata())
	switch from.Type() {
	case pmetric.MetricTypeGauge:
		points := to.SetEmptyGauge().DataPoints()
		cut(from.Gauge().DataPoints(), stay, func(p pmetric.NumberDataPoint) { p.MoveTo(points.AppendEmpty()) })
	case pmetric.MetricTypeSum:
		sum := to.SetEmptySum()
		sum.SetAggregationTemporality(from.Sum().AggregationTemporality())
		sum.SetIsMonotonic(from.Sum().IsMonotonic())
		cut(from.Sum().DataPoints(), stay, func(p pmetric.NumberDataPoint) { p.MoveTo(sum.DataPoints().AppendEmpty()) })
	case pmetric.MetricTypeHistogram:
		h := to.SetEmptyHistogram()
		h.SetAggregationTemporality(from.Histogram().AggregationTemporality())
		cut(from.Histogram().DataPoints(), stay, func(p pmetric.HistogramDataPoint) { p.MoveTo(h.DataPoints().AppendEmpty()) })
	case pmetric.MetricTypeExponentialHistogram:
		h := to.SetEmptyExponentialHistogram()
		h.SetAggregationTemporality(from.ExponentialHistogram().AggregationTemporality())
		cut(from.ExponentialHistogram().DataPoints(), stay, func(p pmetric.ExponentialHistogramDataPoint) { p.MoveTo(h.DataPoints().AppendEmpty()) })
	case pmetric.MetricTypeSummary:
		points := to.SetEmptySummary().DataPoints()
		cut(from.Summary().DataPoints(), stay, func(p pmetric.SummaryDataPoint) { p.MoveTo(points.AppendEmpty()) })
	}
}

// profilesPayload is a request as its writer built it. It has its own tables and has the right size
// already.
type profilesPayload struct{ profile.Profiles }

func (p profilesPayload) size() int             { return p.Size() }
func (p profilesPayload) items() int            { return p.Count() }
func (p profilesPayload) merge(payload) bool    { return false }
func (p profilesPayload) halve() payload        { return nil }
func (p profilesPayload) json() ([]byte, error) { return p.JSON() }
