// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/plogtest"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/pmetrictest"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/ptracetest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// many is more items of about 4 KB each than fit into one piece, of two resources with two scopes.
const many = 2500

var long = strings.Repeat("k", 4000)

func tracesOf(items int) ptrace.Traces {
	td := ptrace.NewTraces()
	for r := range 2 {
		rs := td.ResourceSpans().AppendEmpty()
		rs.Resource().Attributes().PutInt("r", int64(r))
		rs.SetSchemaUrl("resource")
		for s := range 2 {
			ss := rs.ScopeSpans().AppendEmpty()
			ss.Scope().SetName("scope" + string(rune('0'+s)))
			ss.SetSchemaUrl("scope")
			for i := range items / 4 {
				span := ss.Spans().AppendEmpty()
				span.SetName(long)
				span.SetStartTimestamp(pcommon.Timestamp(1 + i))
			}
		}
	}
	return td
}

func TestSplitBatch_Traces(t *testing.T) {
	requests := splitTraces(tracesOf(many))
	require.Greater(t, len(requests), 3)
	items := 0
	var m ptrace.ProtoMarshaler
	all := ptrace.NewTraces()
	for _, p := range requests {
		assert.LessOrEqual(t, m.TracesSize(p), maxRequestBytes)
		assert.Positive(t, p.SpanCount())
		items += p.SpanCount()
		// Parts of one scope become one again.
		for _, rs := range p.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				same := func() ptrace.ScopeSpans {
					for _, r := range all.ResourceSpans().All() {
						for _, s := range r.ScopeSpans().All() {
							if assert.ObjectsAreEqual(r.Resource().Attributes().AsRaw(), rs.Resource().Attributes().AsRaw()) && s.Scope().Name() == ss.Scope().Name() {
								return s
							}
						}
					}
					r := all.ResourceSpans().AppendEmpty()
					rs.Resource().CopyTo(r.Resource())
					r.SetSchemaUrl(rs.SchemaUrl())
					s := r.ScopeSpans().AppendEmpty()
					ss.Scope().CopyTo(s.Scope())
					s.SetSchemaUrl(ss.SchemaUrl())
					return s
				}()
				ss.Spans().MoveAndAppendTo(same.Spans())
			}
		}
	}
	want := ptrace.NewTraces()
	for _, rs := range tracesOf(many).ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			r := want.ResourceSpans().AppendEmpty()
			rs.Resource().CopyTo(r.Resource())
			r.SetSchemaUrl(rs.SchemaUrl())
			ss.CopyTo(r.ScopeSpans().AppendEmpty())
		}
	}
	assert.Equal(t, many, items)
	assert.NoError(t, ptracetest.CompareTraces(want, all))
}

func TestSplitBatch_Logs(t *testing.T) {
	ld, want := plog.NewLogs(), plog.NewLogs()
	records := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords()
	for i := range many {
		r := records.AppendEmpty()
		r.Body().SetStr(long)
		r.Attributes().PutInt("i", int64(i))
	}
	ld.CopyTo(want)
	requests := splitLogs(ld)
	require.Greater(t, len(requests), 3)
	items := 0
	var m plog.ProtoMarshaler
	all := plog.NewLogs()
	to := all.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords()
	for _, p := range requests {
		assert.LessOrEqual(t, m.LogsSize(p), maxRequestBytes)
		assert.Positive(t, p.LogRecordCount())
		items += p.LogRecordCount()
		p.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().MoveAndAppendTo(to)
	}
	assert.Equal(t, many, items)
	assert.NoError(t, plogtest.CompareLogs(want, all))
}

func TestSplitBatch_Metrics(t *testing.T) {
	md, want := pmetric.NewMetrics(), pmetric.NewMetrics()
	ms := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics()
	gauge, sum := ms.AppendEmpty(), ms.AppendEmpty()
	gauge.SetName("gauge")
	gauge.SetUnit("1")
	gauge.SetDescription("what it is")
	sum.SetName("sum")
	sum.SetEmptySum().SetIsMonotonic(true)
	sum.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	for i, points := range []pmetric.NumberDataPointSlice{gauge.SetEmptyGauge().DataPoints(), sum.Sum().DataPoints()} {
		for j := range many / 2 {
			p := points.AppendEmpty()
			p.SetIntValue(int64(i*many + j))
			p.SetTimestamp(pcommon.Timestamp(1 + j))
			p.Attributes().PutStr("k", long)
		}
	}
	md.CopyTo(want)
	requests := splitMetrics(md)
	require.Greater(t, len(requests), 3)
	items := 0
	var m pmetric.ProtoMarshaler
	all := pmetric.NewMetrics()
	scope := all.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	for _, p := range requests {
		assert.LessOrEqual(t, m.MetricsSize(p), maxRequestBytes)
		assert.Positive(t, p.DataPointCount())
		items += p.DataPointCount()
		for _, metric := range p.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			if n := scope.Metrics().Len(); n == 0 || scope.Metrics().At(n-1).Name() != metric.Name() {
				metric.MoveTo(scope.Metrics().AppendEmpty())
				continue
			}
			switch last := scope.Metrics().At(scope.Metrics().Len() - 1); metric.Type() {
			case pmetric.MetricTypeGauge:
				metric.Gauge().DataPoints().MoveAndAppendTo(last.Gauge().DataPoints())
			default:
				assert.True(t, metric.Sum().IsMonotonic())
				assert.Equal(t, pmetric.AggregationTemporalityCumulative, metric.Sum().AggregationTemporality())
				metric.Sum().DataPoints().MoveAndAppendTo(last.Sum().DataPoints())
			}
		}
	}
	assert.Equal(t, many, items)
	assert.NoError(t, pmetrictest.CompareMetrics(want, all))
}

func TestSplitBatch_Small(t *testing.T) {
	const few = 500
	requests := splitTraces(tracesOf(few))
	require.Len(t, requests, 1)
	assert.Equal(t, few, requests[0].SpanCount())
}

// TestDeliver_RequestsInTurn checks that an accepted request is not repeated when the next one is
// rejected, and that a permanent rejection concerns only its own request.
func TestDeliver_RequestsInTurn(t *testing.T) {
	dir := t.TempDir()
	// A chunk of these is some 6 MB of spans.
	const lines = 20_000
	var text strings.Builder
	for i := range lines {
		text.WriteString(strings.Replace(line(i), `"name":"`, `"name":"k<`+strings.Repeat("int, ", 30)+`int>_`, 1) + "\n")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.device.log"), []byte(text.String()), 0o600))
	s := newSink()
	s.answer = func(n int) error {
		switch n {
		case 2, 3:
			return errors.New("later")
		case 5:
			return consumererror.NewPermanent(errors.New("never"))
		}
		return nil
	}
	m := &measuring{sink: s}
	r := startWith(t, m, nil, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "all but one request", func() bool {
		dropped := r.sum("otelcol_receiver_gpuflog_dropped", "")
		return dropped > 0 && int64(s.count("kernel"))+dropped >= lines // a session span may be in it
	})
	r.stop()
	assert.LessOrEqual(t, m.largest, maxRequestBytes)
	assert.Greater(t, m.largest, maxRequestBytes/4, "there is something to cut")
	assert.Greater(t, m.sum, 2*maxRequestBytes)
	for span, times := range s.spans {
		require.Equal(t, 1, times, span)
	}
}

// measuring notes how large what comes is.
type measuring struct {
	*sink
	largest, sum int
}

func (m *measuring) ConsumeTraces(ctx context.Context, td ptrace.Traces) error {
	var p ptrace.ProtoMarshaler
	n := p.TracesSize(td)
	m.largest = max(m.largest, n)
	m.sum += n
	return m.sink.ConsumeTraces(ctx, td)
}

// TestSplitBatch_LargeItems: listings and sources come in log records of up to 64 KiB.
func TestSplitBatch_LargeItems(t *testing.T) {
	ld := plog.NewLogs()
	records := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords()
	for range 100 {
		records.AppendEmpty().Body().SetStr(strings.Repeat("s", 64<<10))
	}
	requests := splitLogs(ld)
	var m plog.ProtoMarshaler
	items := 0
	for _, p := range requests {
		assert.LessOrEqual(t, m.LogsSize(p), maxRequestBytes)
		items += p.LogRecordCount()
	}
	assert.Equal(t, 100, items)

	one := plog.NewLogs()
	one.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().Body().SetStr(strings.Repeat("s", 2*maxRequestBytes))
	assert.Len(t, splitLogs(one), 1, "one item is not cut")
}
