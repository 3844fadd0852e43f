// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/semconv"
)

// span is a row of otel_traces. Times are Unix nanoseconds.
type span struct {
	Start                                                    int64
	TraceID, SpanID, ParentSpanID, TraceState                string
	SpanName, SpanKind, ServiceName, ScopeName, ScopeVersion string
	ResourceAttributes, SpanAttributes                       map[string]string
	Duration                                                 uint64
	StatusCode, StatusMessage                                string
	EventTimes                                               []int64
	EventNames                                               []string
	EventAttributes                                          []map[string]string
	LinkTraces, LinkSpans, LinkStates                        []string
	LinkAttributes                                           []map[string]string
}

// columns selects the columns of a span.
const columns = `toUnixTimestamp64Nano(Timestamp) AS Start, TraceId AS TraceID, SpanId AS SpanID, ParentSpanId AS ParentSpanID,
	TraceState, SpanName, SpanKind, ServiceName, ScopeName, ScopeVersion, ResourceAttributes, SpanAttributes, Duration,
	StatusCode, StatusMessage, arrayMap(t -> toUnixTimestamp64Nano(t), Events.Timestamp) AS EventTimes,
	Events.Name AS EventNames, Events.Attributes AS EventAttributes, Links.TraceId AS LinkTraces, Links.SpanId AS LinkSpans,
	Links.TraceState AS LinkStates, Links.Attributes AS LinkAttributes`

func (s span) key() string { return s.TraceID + "/" + s.SpanID }

// texts converts attributes as the exporter does.
func texts(m pcommon.Map) map[string]string {
	out := map[string]string{}
	for k, v := range m.All() {
		out[k] = v.AsString()
	}
	return out
}

func hex[T interface {
	IsEmpty() bool
	String() string
}](id T) string {
	if id.IsEmpty() {
		return ""
	}
	return id.String()
}

// spans returns the expected rows by id. For a span that was sent repeatedly, such as a session's,
// it returns the last version.
func (s telemetry) spans() map[string]span {
	out := map[string]span{}
	for _, td := range s.traces {
		for _, rs := range td.ResourceSpans().All() {
			resource := texts(rs.Resource().Attributes())
			for _, ss := range rs.ScopeSpans().All() {
				for _, sp := range ss.Spans().All() {
					row := span{
						Start: int64(sp.StartTimestamp()), TraceID: hex(sp.TraceID()), SpanID: hex(sp.SpanID()),
						ParentSpanID: hex(sp.ParentSpanID()), TraceState: sp.TraceState().AsRaw(), SpanName: sp.Name(),
						SpanKind: sp.Kind().String(), ServiceName: resource[semconv.ServiceName],
						ScopeName: ss.Scope().Name(), ScopeVersion: ss.Scope().Version(),
						ResourceAttributes: resource, SpanAttributes: texts(sp.Attributes()),
						Duration: uint64(sp.EndTimestamp() - sp.StartTimestamp()), StatusCode: sp.Status().Code().String(),
						StatusMessage: sp.Status().Message(),
						EventTimes:    []int64{}, EventNames: []string{}, EventAttributes: []map[string]string{},
						LinkTraces: []string{}, LinkSpans: []string{}, LinkStates: []string{}, LinkAttributes: []map[string]string{},
					}
					for _, e := range sp.Events().All() {
						row.EventTimes = append(row.EventTimes, int64(e.Timestamp()))
						row.EventNames = append(row.EventNames, e.Name())
						row.EventAttributes = append(row.EventAttributes, texts(e.Attributes()))
					}
					for _, l := range sp.Links().All() {
						row.LinkTraces = append(row.LinkTraces, hex(l.TraceID()))
						row.LinkSpans = append(row.LinkSpans, hex(l.SpanID()))
						row.LinkStates = append(row.LinkStates, l.TraceState().AsRaw())
						row.LinkAttributes = append(row.LinkAttributes, texts(l.Attributes()))
					}
					out[row.key()] = row
				}
			}
		}
	}
	return out
}

// checkSpans compares every value of every span.
func checkSpans(t *testing.T, want map[string]span, d *database) {
	t.Helper()
	rows := query[span](d, "SELECT "+columns+" FROM otel_traces FINAL")
	assert.Len(t, rows, len(want), "spans")
	seen, wrong := map[string]bool{}, 0
	for _, got := range rows {
		assert.False(t, seen[got.key()], "%s is there twice", got.key())
		seen[got.key()] = true
		expected, sent := want[got.key()]
		if !assert.True(t, sent, "%s was not sent: %s", got.key(), got.SpanName) || !assert.Equal(t, expected, got) {
			wrong++
		}
		require.Less(t, wrong, 5, "and so on")
	}
	for key, sp := range want {
		if !seen[key] {
			wrong++
			assert.Fail(t, "lost", "%s %s", key, sp.SpanName)
		}
		require.Less(t, wrong, 5, "and so on")
	}
}

// statistics is a row of kernel_statistics.
type statistics struct {
	ServiceName, Session, Scope, Kernel string
	Launches                            int
	Seconds, Median, P99, Longest       float64
	MeanOccupancy                       *float64
}

func (s statistics) key() string {
	return fmt.Sprintf("%s, session %s, scope %q, kernel %q", s.ServiceName, s.Session, s.Scope, s.Kernel)
}

// kernels returns the expected rows of kernel_statistics.
func kernels(spans map[string]span) map[string]statistics {
	durations, occupancies := map[string][]uint64{}, map[string][]float64{}
	out := map[string]statistics{}
	for _, sp := range spans {
		if sp.SpanAttributes[semconv.CUDAOperation] != semconv.CUDAOperationKernel {
			continue
		}
		s := statistics{
			ServiceName: sp.ServiceName, Session: sp.ResourceAttributes[semconv.ServiceInstanceID],
			Scope: sp.SpanAttributes[semconv.CUDAScopeName], Kernel: sp.SpanAttributes[semconv.CUDAKernelName],
		}
		out[s.key()] = s
		durations[s.key()] = append(durations[s.key()], sp.Duration)
		if v, err := strconv.ParseFloat(sp.SpanAttributes[semconv.CUDAOccupancyTheoretical], 32); err == nil {
			occupancies[s.key()] = append(occupancies[s.key()], v)
		}
	}
	for key, s := range out {
		d := durations[key]
		slices.Sort(d)
		var sum uint64
		for _, v := range d {
			sum += v
		}
		s.Launches = len(d)
		s.Seconds = float64(sum) / 1e9
		// ClickHouse's exact quantile is the element at that share of the number of elements.
		s.Median = float64(d[len(d)/2]) / 1e9
		s.P99 = float64(d[int(0.99*float64(len(d)))]) / 1e9
		s.Longest = float64(d[len(d)-1]) / 1e9
		if o := occupancies[key]; len(o) > 0 {
			mean := 0.0
			for _, v := range o {
				mean += v / float64(len(o))
			}
			s.MeanOccupancy = &mean
		}
		out[key] = s
	}
	return out
}

// near compares sums that were added in a different order.
func near(t *testing.T, want, got float64, what ...any) {
	t.Helper()
	assert.LessOrEqual(t, math.Abs(want-got), 1e-9*math.Abs(want), append([]any{fmt.Sprint(want, " is not ", got)}, what...)...)
}

func checkStatistics(t *testing.T, want map[string]statistics, got []statistics) {
	t.Helper()
	assert.Len(t, got, len(want))
	for _, g := range got {
		w, ok := want[g.key()]
		if !assert.True(t, ok, "there is no %s", g.key()) {
			continue
		}
		assert.Equal(t, w.Launches, g.Launches, g.key())
		near(t, w.Seconds, g.Seconds, g.key())
		near(t, w.Median, g.Median, g.key())
		near(t, w.P99, g.P99, g.key())
		near(t, w.Longest, g.Longest, g.key())
		if w.MeanOccupancy == nil || g.MeanOccupancy == nil {
			assert.Equal(t, w.MeanOccupancy, g.MeanOccupancy, g.key())
		} else {
			near(t, *w.MeanOccupancy, *g.MeanOccupancy, g.key())
		}
	}
}

// record holds the compared columns of otel_logs.
type record struct {
	Session, EventName, Body string
	N                        int
}

const records = `SELECT ResourceAttributes['service.instance.id'] AS Session, EventName, Body, count() AS N FROM otel_logs
	GROUP BY ALL ORDER BY ALL`

// checkLogs compares the number of records by session, event and text. Each was written the given
// number of times.
func (s telemetry) checkLogs(t *testing.T, times int, d *database) {
	t.Helper()
	want := map[record]int{}
	for _, ld := range s.logs {
		for _, rl := range ld.ResourceLogs().All() {
			session := texts(rl.Resource().Attributes())[semconv.ServiceInstanceID]
			for _, sl := range rl.ScopeLogs().All() {
				for _, r := range sl.LogRecords().All() {
					want[record{Session: session, EventName: r.EventName(), Body: r.Body().AsString()}] += times
				}
			}
		}
	}
	got := map[record]int{}
	for _, r := range query[record](d, records) {
		n := r.N
		r.N = 0
		got[r] = n
	}
	assert.Equal(t, want, got)
}

// series holds the compared columns of the metric tables.
type series struct {
	Table, Session, MetricName, MetricUnit string
	N                                      int
	Total                                  float64
}

func (s series) key() series { return series{s.Table, s.Session, s.MetricName, s.MetricUnit, 0, 0} }

// checkMetrics compares the number of points and the sum of their values by session and metric.
// Each was written the given number of times.
func (s telemetry) checkMetrics(t *testing.T, times int, d *database) {
	t.Helper()
	want := map[series]series{}
	add := func(session, table string, m pmetric.Metric, value float64) {
		row := series{Table: table, Session: session, MetricName: m.Name(), MetricUnit: m.Unit()}
		old := want[row]
		row.N, row.Total = old.N+times, old.Total+float64(times)*value
		want[row.key()] = row
	}
	number := func(p pmetric.NumberDataPoint) float64 {
		if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
			return float64(p.IntValue())
		}
		return p.DoubleValue()
	}
	for _, md := range s.metrics {
		for _, rm := range md.ResourceMetrics().All() {
			session := texts(rm.Resource().Attributes())[semconv.ServiceInstanceID]
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					switch m.Type() {
					case pmetric.MetricTypeGauge:
						for _, p := range m.Gauge().DataPoints().All() {
							add(session, "gauge", m, number(p))
						}
					case pmetric.MetricTypeSum:
						for _, p := range m.Sum().DataPoints().All() {
							add(session, "sum", m, number(p))
						}
					default:
						t.Fatalf("no table for %s, of type %s", m.Name(), m.Type())
					}
				}
			}
		}
	}
	found := 0
	for _, table := range []string{"gauge", "sum"} {
		rows := query[series](d, "SELECT '"+table+"' AS Table, ResourceAttributes['service.instance.id'] AS Session, "+
			"MetricName, MetricUnit, count() AS N, sum(Value) AS Total FROM otel_metrics_"+table+" GROUP BY ALL")
		found += len(rows)
		for _, got := range rows {
			w := want[got.key()]
			assert.Equal(t, w.N, got.N, "%+v", got)
			near(t, w.Total, got.Total, got.key())
		}
	}
	assert.Equal(t, len(want), found, "series")
	for _, table := range []string{"summary", "histogram", "exponential_histogram"} {
		assert.Zero(t, one[int](d, "SELECT count() AS n FROM otel_metrics_"+table), table)
	}
}
