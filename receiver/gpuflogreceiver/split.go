// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// maxRequestBytes bounds a request to a pipeline, as OTLP in protobuf. OTLP servers over gRPC
// permanently reject a message of more than 4 MiB, and not every exporter is configured to split
// requests.
const maxRequestBytes = 3_000_000

// splitBatch divides a batch of n items until no part exceeds limit, or has only one item. half moves
// the first k items out of its argument.
func splitBatch[T any](whole T, n, limit int, size func(T) int, half func(from T, k int) T) []T {
	if n <= 1 || size(whole) <= limit {
		return []T{whole}
	}
	k := n / 2
	first := splitBatch(half(whole, k), k, limit, size, half)
	return append(first, splitBatch(whole, n-k, limit, size, half)...)
}

func splitTraces(td ptrace.Traces) []ptrace.Traces {
	var m ptrace.ProtoMarshaler
	return splitBatch(td, td.SpanCount(), maxRequestBytes, m.TracesSize, firstSpans)
}

func splitLogs(ld plog.Logs) []plog.Logs {
	var m plog.ProtoMarshaler
	return splitBatch(ld, ld.LogRecordCount(), maxRequestBytes, m.LogsSize, firstLogs)
}

func splitMetrics(md pmetric.Metrics) []pmetric.Metrics {
	var m pmetric.ProtoMarshaler
	return splitBatch(md, md.DataPointCount(), maxRequestBytes, m.MetricsSize, firstPoints)
}

func firstSpans(from ptrace.Traces, k int) ptrace.Traces {
	to := ptrace.NewTraces()
	from.ResourceSpans().RemoveIf(func(rs ptrace.ResourceSpans) bool {
		if k == 0 {
			return false
		}
		r := to.ResourceSpans().AppendEmpty()
		rs.Resource().CopyTo(r.Resource())
		r.SetSchemaUrl(rs.SchemaUrl())
		rs.ScopeSpans().RemoveIf(func(ss ptrace.ScopeSpans) bool {
			if k == 0 {
				return false
			}
			s := r.ScopeSpans().AppendEmpty()
			ss.Scope().CopyTo(s.Scope())
			s.SetSchemaUrl(ss.SchemaUrl())
			ss.Spans().RemoveIf(func(span ptrace.Span) bool {
				if k == 0 {
					return false
				}
				k--
				span.MoveTo(s.Spans().AppendEmpty())
				return true
			})
			return ss.Spans().Len() == 0
		})
		return rs.ScopeSpans().Len() == 0
	})
	return to
}

func firstLogs(from plog.Logs, k int) plog.Logs {
	to := plog.NewLogs()
	from.ResourceLogs().RemoveIf(func(rl plog.ResourceLogs) bool {
		if k == 0 {
			return false
		}
		r := to.ResourceLogs().AppendEmpty()
		rl.Resource().CopyTo(r.Resource())
		r.SetSchemaUrl(rl.SchemaUrl())
		rl.ScopeLogs().RemoveIf(func(sl plog.ScopeLogs) bool {
			if k == 0 {
				return false
			}
			s := r.ScopeLogs().AppendEmpty()
			sl.Scope().CopyTo(s.Scope())
			s.SetSchemaUrl(sl.SchemaUrl())
			sl.LogRecords().RemoveIf(func(record plog.LogRecord) bool {
				if k == 0 {
					return false
				}
				k--
				record.MoveTo(s.LogRecords().AppendEmpty())
				return true
			})
			return sl.LogRecords().Len() == 0
		})
		return rl.ScopeLogs().Len() == 0
	})
	return to
}

func firstPoints(from pmetric.Metrics, k int) pmetric.Metrics {
	to := pmetric.NewMetrics()
	from.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
		if k == 0 {
			return false
		}
		r := to.ResourceMetrics().AppendEmpty()
		rm.Resource().CopyTo(r.Resource())
		r.SetSchemaUrl(rm.SchemaUrl())
		rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
			if k == 0 {
				return false
			}
			s := r.ScopeMetrics().AppendEmpty()
			sm.Scope().CopyTo(s.Scope())
			s.SetSchemaUrl(sm.SchemaUrl())
			sm.Metrics().RemoveIf(func(m pmetric.Metric) bool {
				if k == 0 {
					return false
				}
				return firstOfMetric(m, &k, s.Metrics().AppendEmpty())
			})
			return sm.Metrics().Len() == 0
		})
		return rm.ScopeMetrics().Len() == 0
	})
	return to
}

// firstOfMetric moves up to k points, and reports whether none remains.
func firstOfMetric(m pmetric.Metric, k *int, to pmetric.Metric) bool {
	to.SetName(m.Name())
	to.SetDescription(m.Description())
	to.SetUnit(m.Unit())
	m.Metadata().CopyTo(to.Metadata())
	var from, moved pmetric.NumberDataPointSlice
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		from, moved = m.Gauge().DataPoints(), to.SetEmptyGauge().DataPoints()
	case pmetric.MetricTypeSum:
		sum := to.SetEmptySum()
		sum.SetAggregationTemporality(m.Sum().AggregationTemporality())
		sum.SetIsMonotonic(m.Sum().IsMonotonic())
		from, moved = m.Sum().DataPoints(), sum.DataPoints()
	default: // the receiver makes no others: whole
		m.MoveTo(to)
		*k = 0
		return true
	}
	from.RemoveIf(func(p pmetric.NumberDataPoint) bool {
		if *k == 0 {
			return false
		}
		*k--
		p.MoveTo(moved.AppendEmpty())
		return true
	})
	return from.Len() == 0
}
