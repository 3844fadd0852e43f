// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// The tests compare the protobuf bytes of each item with its resource and scope. Attributes are
// sorted before, and the items of a delivery too.

func sortMap(m pcommon.Map) {
	a := (&Decoder{}).attrs(m)
	m.Clear()
	AppendAttrs(a, m)
}

func spanItems(t testing.TB, tds ...ptrace.Traces) []string {
	var items []string
	for _, td := range tds {
		for _, rs := range td.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					one := ptrace.NewTraces()
					r := one.ResourceSpans().AppendEmpty()
					rs.Resource().CopyTo(r.Resource())
					r.SetSchemaUrl(rs.SchemaUrl())
					sc := r.ScopeSpans().AppendEmpty()
					ss.Scope().CopyTo(sc.Scope())
					sc.SetSchemaUrl(ss.SchemaUrl())
					c := sc.Spans().AppendEmpty()
					s.CopyTo(c)
					for _, m := range []pcommon.Map{r.Resource().Attributes(), sc.Scope().Attributes(), c.Attributes()} {
						sortMap(m)
					}
					b, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(one)
					require.NoError(t, err)
					items = append(items, string(b))
				}
			}
		}
	}
	slices.Sort(items)
	return items
}

func logItems(t testing.TB, lds ...plog.Logs) []string {
	var items []string
	for _, ld := range lds {
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, l := range sl.LogRecords().All() {
					one := plog.NewLogs()
					r := one.ResourceLogs().AppendEmpty()
					rl.Resource().CopyTo(r.Resource())
					r.SetSchemaUrl(rl.SchemaUrl())
					sc := r.ScopeLogs().AppendEmpty()
					sl.Scope().CopyTo(sc.Scope())
					sc.SetSchemaUrl(sl.SchemaUrl())
					c := sc.LogRecords().AppendEmpty()
					l.CopyTo(c)
					for _, m := range []pcommon.Map{r.Resource().Attributes(), sc.Scope().Attributes(), c.Attributes()} {
						sortMap(m)
					}
					b, err := (&plog.ProtoMarshaler{}).MarshalLogs(one)
					require.NoError(t, err)
					items = append(items, string(b))
				}
			}
		}
	}
	slices.Sort(items)
	return items
}

// pointItems has one metric with one point for each point.
func pointItems(t testing.TB, mds ...pmetric.Metrics) []string {
	var items []string
	for _, md := range mds {
		for _, rm := range md.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					for i := range points(m) {
						one := pmetric.NewMetrics()
						r := one.ResourceMetrics().AppendEmpty()
						rm.Resource().CopyTo(r.Resource())
						r.SetSchemaUrl(rm.SchemaUrl())
						sc := r.ScopeMetrics().AppendEmpty()
						sm.Scope().CopyTo(sc.Scope())
						sc.SetSchemaUrl(sm.SchemaUrl())
						c := sc.Metrics().AppendEmpty()
						m.CopyTo(c)
						sortMap(r.Resource().Attributes())
						sortMap(sc.Scope().Attributes())
						sortMap(keepPoint(c, i))
						b, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(one)
						require.NoError(t, err)
						items = append(items, string(b))
					}
				}
			}
		}
	}
	slices.Sort(items)
	return items
}

// keepPoint removes all points except one, and returns its attributes.
func keepPoint(m pmetric.Metric, keep int) pcommon.Map {
	i := -1
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		m.Gauge().DataPoints().RemoveIf(func(pmetric.NumberDataPoint) bool { i++; return i != keep })
		return m.Gauge().DataPoints().At(0).Attributes()
	case pmetric.MetricTypeSum:
		m.Sum().DataPoints().RemoveIf(func(pmetric.NumberDataPoint) bool { i++; return i != keep })
		return m.Sum().DataPoints().At(0).Attributes()
	case pmetric.MetricTypeHistogram:
		m.Histogram().DataPoints().RemoveIf(func(pmetric.HistogramDataPoint) bool { i++; return i != keep })
		return m.Histogram().DataPoints().At(0).Attributes()
	case pmetric.MetricTypeExponentialHistogram:
		m.ExponentialHistogram().DataPoints().RemoveIf(func(pmetric.ExponentialHistogramDataPoint) bool { i++; return i != keep })
		return m.ExponentialHistogram().DataPoints().At(0).Attributes()
	default:
		m.Summary().DataPoints().RemoveIf(func(pmetric.SummaryDataPoint) bool { i++; return i != keep })
		return m.Summary().DataPoints().At(0).Attributes()
	}
}

func opRow(b *store.Batch, op *store.Op) *store.OpRow {
	return &store.OpRow{
		Op: *op, LaneRef: &b.Lanes[op.Lane], ShapeRef: &b.Shapes[op.Shape], OriginRef: &b.Origins[op.Origin],
		PlaceRef: b.Places[op.Place], StackText: b.Stacks[op.Stack].Text, Attrs: b.Extras[op.Extra].Attrs,
	}
}

func tracesOf(t testing.TB, b *store.Batch) []ptrace.Traces {
	var all []ptrace.Traces
	add := func(o *store.Origin) ptrace.Span {
		td := ptrace.NewTraces()
		rs := td.ResourceSpans().AppendEmpty()
		ss := rs.ScopeSpans().AppendEmpty()
		AppendOrigin(o, rs.Resource(), ss.Scope())
		rs.SetSchemaUrl(o.ResourceSchemaURL)
		ss.SetSchemaUrl(o.ScopeSchemaURL)
		all = append(all, td)
		return ss.Spans().AppendEmpty()
	}
	for i := range b.Ops {
		AppendOp(opRow(b, &b.Ops[i]), add(&b.Origins[b.Ops[i].Origin]))
	}
	for i := range b.Spans {
		require.NoError(t, AppendSpan(&store.SpanRow{Span: b.Spans[i]}, add(&b.Origins[b.Spans[i].Origin])))
	}
	return all
}

func logsOf(b *store.Batch) []plog.Logs {
	var all []plog.Logs
	add := func(o *store.Origin) plog.LogRecord {
		ld := plog.NewLogs()
		rl := ld.ResourceLogs().AppendEmpty()
		sl := rl.ScopeLogs().AppendEmpty()
		AppendOrigin(o, rl.Resource(), sl.Scope())
		rl.SetSchemaUrl(o.ResourceSchemaURL)
		sl.SetSchemaUrl(o.ScopeSchemaURL)
		all = append(all, ld)
		return sl.LogRecords().AppendEmpty()
	}
	for i := range b.Logs {
		AppendLog(&b.Logs[i], add(&b.Origins[b.Logs[i].Origin]))
	}
	for i := range b.Samples {
		AppendSample(&b.Samples[i], b.Extras[b.Samples[i].Extra].Attrs, add(&b.Origins[b.Samples[i].Origin]))
	}
	return all
}

func metricsOf(t testing.TB, b *store.Batch) []pmetric.Metrics {
	var all []pmetric.Metrics
	for i := range b.Points {
		s := &b.Series[b.Points[i].Series]
		o := &b.Origins[s.Origin]
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		sm := rm.ScopeMetrics().AppendEmpty()
		AppendOrigin(o, rm.Resource(), sm.Scope())
		rm.SetSchemaUrl(o.ResourceSchemaURL)
		sm.SetSchemaUrl(o.ScopeSchemaURL)
		m := sm.Metrics().AppendEmpty()
		AppendSeries(s, m)
		require.NoError(t, AppendPoint(s, &b.Points[i], m))
		all = append(all, md)
	}
	return all
}

func TestRecordings_RoundTrip(t *testing.T) {
	var d Decoder
	samples := 0
	for _, r := range readRecordings(t, ".") {
		t.Run(r.name, func(t *testing.T) {
			var spans []ptrace.Traces
			ops := 0
			for _, b := range d.Traces("p", r.traces) {
				assert.Equal(t, "p", b.Project)
				spans = append(spans, tracesOf(t, b)...)
				ops += len(b.Ops)
			}
			want := 0
			for _, rs := range r.traces.ResourceSpans().All() {
				for _, s := range rs.ScopeSpans().At(0).Spans().All() {
					v, _ := s.Attributes().Get(semconv.CUDAOperation)
					if _, ok := operations[v.Str()]; ok {
						want++
					}
				}
			}
			assert.Equal(t, want, ops, "every operation is an Op")
			require.True(t, slices.Equal(spanItems(t, r.traces), spanItems(t, spans...)))

			var logs []plog.Logs
			for _, b := range d.Logs("p", r.logs) {
				logs = append(logs, logsOf(b)...)
				samples += len(b.Samples)
				for _, l := range b.Logs {
					assert.False(t, strings.HasPrefix(l.Event, semconv.EventCUDAPCSample) || l.Event == semconv.EventCUDASASSMetric,
						"a sample became a log: %s", l.Body.Str)
				}
			}
			require.True(t, slices.Equal(logItems(t, r.logs), logItems(t, logs...)))

			var metrics []pmetric.Metrics
			for _, b := range d.Metrics("p", r.metrics) {
				metrics = append(metrics, metricsOf(t, b)...)
			}
			require.True(t, slices.Equal(pointItems(t, r.metrics), pointItems(t, metrics...)))
		})
	}
	assert.Equal(t, Stats{}, d.Stats())
	assert.Positive(t, samples)
}

func TestMetrics_AllTypes(t *testing.T) {
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	describe := func(name string) pmetric.Metric {
		m := sm.Metrics().AppendEmpty()
		m.SetName(name)
		m.SetUnit("s")
		m.SetDescription("about " + name)
		return m
	}
	exemplar := func(e pmetric.Exemplar) {
		e.SetIntValue(9)
		e.SetTraceID(pcommon.TraceID{1})
		e.FilteredAttributes().PutBool("b", true)
	}
	g := describe("gauge").SetEmptyGauge()
	for i := range 3 {
		p := g.DataPoints().AppendEmpty()
		p.SetTimestamp(pcommon.Timestamp(i))
		switch p.Attributes().PutInt("i", int64(i)); i {
		case 0:
			p.SetIntValue(-1 << 63)
			exemplar(p.Exemplars().AppendEmpty())
		case 1:
			p.SetDoubleValue(0.1)
		default:
			p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		}
	}
	sum := describe("sum").SetEmptySum()
	sum.SetIsMonotonic(true)
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
	sum.DataPoints().AppendEmpty().SetIntValue(1 << 62)
	h := describe("histogram").SetEmptyHistogram()
	h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	hp := h.DataPoints().AppendEmpty()
	hp.SetCount(1<<64 - 1)
	hp.SetMin(0)
	hp.BucketCounts().FromRaw([]uint64{1, 1<<64 - 1})
	hp.ExplicitBounds().FromRaw([]float64{0.1})
	hp.Attributes().PutStr("k", "v")
	exemplar(hp.Exemplars().AppendEmpty())
	ep := describe("exponential").SetEmptyExponentialHistogram().DataPoints().AppendEmpty()
	ep.SetScale(-3)
	ep.SetSum(1.5)
	ep.Positive().BucketCounts().FromRaw([]uint64{0, 7})
	exemplar(ep.Exemplars().AppendEmpty())
	sp := describe("summary").SetEmptySummary().DataPoints().AppendEmpty()
	sp.SetCount(2)
	sp.QuantileValues().AppendEmpty().SetQuantile(0.5)
	sp.Attributes().PutStr("k", "v")

	b := new(Decoder).Metrics("", md)
	require.Len(t, b, 1)
	assert.Len(t, b[0].Points, 7)
	assert.True(t, slices.Equal(pointItems(t, md), pointItems(t, metricsOf(t, b[0])...)))
}

// TestLogs_ObservedOnly: equal records without a time of their own differ by the time of observation.
func TestLogs_ObservedOnly(t *testing.T) {
	var d Decoder
	var uids []store.UID
	for _, observed := range []int64{1e18, 1e18 + 1e10, 1e18} {
		ld := plog.NewLogs()
		l := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
		l.SetObservedTimestamp(pcommon.Timestamp(observed))
		l.Body().SetStr("a line")
		batches := d.Logs("", ld)
		require.Len(t, batches, 1)
		assert.Equal(t, observed, batches[0].Logs[0].TimeNs)
		uids = append(uids, batches[0].Logs[0].UID)
		back := logsOf(batches[0])[0].ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
		assert.Zero(t, back.Timestamp())
		assert.Equal(t, pcommon.Timestamp(observed), back.ObservedTimestamp())
	}
	assert.NotEqual(t, uids[0], uids[1])
	assert.Equal(t, uids[0], uids[2], "delivered again")
}

// TestMetrics_ObservedProcess: metrics that eBPF programs made of a process open no session. Its spans
// do.
func TestMetrics_ObservedProcess(t *testing.T) {
	for name, observed := range map[string]bool{"reported by the process": false, "observed": true} {
		t.Run(name, func(t *testing.T) {
			fill := func(resource pcommon.Map) {
				resource.PutStr(semconv.ServiceInstanceID, "a")
				if observed {
					resource.PutStr(semconv.TelemetrySDKName, semconv.EBPFObserver)
				}
			}
			md := pmetric.NewMetrics()
			rm := md.ResourceMetrics().AppendEmpty()
			fill(rm.Resource().Attributes())
			m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
			m.SetName("m")
			m.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(1)
			td := ptrace.NewTraces()
			rs := td.ResourceSpans().AppendEmpty()
			fill(rs.Resource().Attributes())
			rs.ScopeSpans().AppendEmpty().Spans().AppendEmpty()
			var d Decoder
			want := "a"
			if observed {
				want = ""
			}
			batches := d.Metrics("", md)
			require.Len(t, batches, 1)
			assert.Equal(t, want, batches[0].Session)
			assert.Equal(t, pointItems(t, md), pointItems(t, metricsOf(t, batches[0])...), "nothing is lost")
			batches = d.Traces("", td)
			require.Len(t, batches, 1)
			assert.Equal(t, "a", batches[0].Session)
		})
	}
}

// TestTraces_UnusualAttributes gives each known key an unexpected type, in a span that is otherwise
// an operation.
func TestTraces_UnusualAttributes(t *testing.T) {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr(semconv.ServiceInstanceID, strings.Repeat("s", 300))
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	for operation := range operations {
		for _, set := range []func(pcommon.Value){
			func(v pcommon.Value) { v.SetStr("") },
			func(v pcommon.Value) { v.SetStr("x") },
			func(v pcommon.Value) { v.SetInt(-1) },
			func(v pcommon.Value) { v.SetDouble(0.30000000000000004) },
			func(v pcommon.Value) { v.SetBool(false) },
			func(v pcommon.Value) { v.SetEmptySlice() },
			func(v pcommon.Value) { v.SetEmptySlice().AppendEmpty().SetDouble(1) },
			func(v pcommon.Value) { v.SetEmptyMap().PutInt("a", 1) },
			func(v pcommon.Value) { v.SetEmptyBytes().FromRaw([]byte{0}) },
			func(pcommon.Value) {},
		} {
			s := spans.AppendEmpty()
			s.SetKind(ptrace.SpanKindInternal)
			s.Attributes().PutInt("unknown", 1)
			for key := range slotOf {
				set(s.Attributes().PutEmpty(key))
			}
			s.Attributes().PutStr(semconv.CUDAOperation, operation)
		}
	}
	b := new(Decoder).Traces("", td)
	require.Len(t, b, 1)
	assert.Len(t, b[0].Session, MaxSession)
	assert.Len(t, b[0].Ops, spans.Len())
	assert.True(t, slices.Equal(spanItems(t, td), spanItems(t, tracesOf(t, b[0])...)))
}
