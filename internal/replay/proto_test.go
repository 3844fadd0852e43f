// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

func TestSignalOfProtobuf(t *testing.T) {
	check := func(name string, data []byte, want otlp.Signal) {
		t.Helper()
		signal, ok := signalOf(data)
		assert.True(t, ok, name)
		assert.Equal(t, want, signal, name)
	}
	span := func(name string, change func(ptrace.Span)) {
		td := spans(1, 1)
		s := td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0)
		change(s)
		data, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(td)
		require.NoError(t, err)
		check(name, data, otlp.Traces)
	}
	span("span", func(ptrace.Span) {})
	span("span without times", func(s ptrace.Span) { s.SetStartTimestamp(0); s.SetEndTimestamp(0) })
	span("span without ids", func(s ptrace.Span) { s.SetTraceID([16]byte{}); s.SetSpanID([8]byte{}) })
	span("span of a kind with events", func(s ptrace.Span) {
		s.SetKind(ptrace.SpanKindClient)
		s.Events().AppendEmpty().SetName("e")
		s.Links().AppendEmpty()
	})

	log := func(name string, change func(plog.LogRecord)) {
		ld := plog.NewLogs()
		change(ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty())
		data, err := (&plog.ProtoMarshaler{}).MarshalLogs(ld)
		require.NoError(t, err)
		check(name, data, otlp.Logs)
	}
	log("empty record", func(plog.LogRecord) {})
	log("record with a time", func(r plog.LogRecord) { r.SetTimestamp(1) })
	log("record with a body", func(r plog.LogRecord) { r.Body().SetStr("x") })
	log("record of a span", func(r plog.LogRecord) { r.SetTraceID([16]byte{1}); r.SetSpanID([8]byte{1}); r.SetSeverityText("INFO") })
	log("record with flags", func(r plog.LogRecord) { r.SetFlags(1) })

	metric := func(name string, change func(pmetric.Metric)) {
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("a.metric.of.16.b")
		m.SetDescription("as named")
		change(m)
		data, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
		require.NoError(t, err)
		check(name, data, otlp.Metrics)
	}
	metric("gauge", func(m pmetric.Metric) { m.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(1) })
	metric("sum", func(m pmetric.Metric) { m.SetName("sum"); m.SetEmptySum().DataPoints().AppendEmpty().SetIntValue(1) })
	metric("histogram", func(m pmetric.Metric) { m.SetName("h"); m.SetEmptyHistogram().DataPoints().AppendEmpty() })
	metric("exponential histogram", func(m pmetric.Metric) {
		m.SetName("e")
		m.SetEmptyExponentialHistogram().DataPoints().AppendEmpty()
	})
	metric("summary", func(m pmetric.Metric) { m.SetName("s"); m.SetEmptySummary().DataPoints().AppendEmpty() })

	_, ok := signalOf([]byte{0x0a, 0x00})
	assert.False(t, ok, "a resource with nothing in it")
	_, ok = signalOf([]byte{0x0a, 0xff, 0xff})
	assert.False(t, ok, "a length that leads nowhere")
}

func TestSignalNamed(t *testing.T) {
	for name, want := range map[string]otlp.Signal{
		"s3://b/p/traces_123.binpb": otlp.Traces, "s3://b/p/a.b_metrics_123.binpb.zst": otlp.Metrics,
		"s3://b/xlogs_0190c1f4-0000-7000-8000-000000000000.binpb.gz": otlp.Logs, "/d/logs.pb": otlp.Logs,
	} {
		signal, ok := signalNamed(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, signal, name)
	}
	_, ok := signalNamed("s3://traces/p/x_123.binpb")
	assert.False(t, ok)
}
