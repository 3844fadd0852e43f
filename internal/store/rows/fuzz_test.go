// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// limit bounds what converting allocates for each byte of OTLP. A span or a record of two bytes
// becomes a row of about 300 bytes in a list that grows, and an encoded data point a request.
var limit = alloctest.Limit{PerByte: 4096, Constant: 1 << 16}

func FuzzTraces(f *testing.F) {
	for _, r := range readRecordings(f, "golden|scopes") {
		b, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(r.traces)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		td, err := (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(b)
		if err != nil {
			return
		}
		var d Decoder
		var batches []*store.Batch
		limit.Check(t, len(b), func() { d = Decoder{}; batches = d.Traces("", td) })
		var back []ptrace.Traces
		for _, x := range batches {
			back = append(back, tracesOf(t, x)...)
		}
		if d.Stats() == (Stats{}) && !slices.Equal(spanItems(t, td), spanItems(t, back...)) {
			t.Error("the round trip changed a span")
		}
	})
}

func FuzzLogs(f *testing.F) {
	for _, r := range readRecordings(f, "golden|scopes") {
		b, err := (&plog.ProtoMarshaler{}).MarshalLogs(r.logs)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ld, err := (&plog.ProtoUnmarshaler{}).UnmarshalLogs(b)
		if err != nil {
			return
		}
		var d Decoder
		var batches []*store.Batch
		limit.Check(t, len(b), func() { d = Decoder{}; batches = d.Logs("", ld) })
		var back []plog.Logs
		for _, x := range batches {
			back = append(back, logsOf(x)...)
		}
		if d.Stats() == (Stats{}) && !slices.Equal(logItems(t, ld), logItems(t, back...)) {
			t.Error("the round trip changed a record")
		}
	})
}

func FuzzMetrics(f *testing.F) {
	for _, r := range readRecordings(f, "golden|scopes") {
		b, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(r.metrics)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		md, err := (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(b)
		if err != nil {
			return
		}
		var d Decoder
		var batches []*store.Batch
		limit.Check(t, len(b), func() { d = Decoder{}; batches = d.Metrics("", md) })
		var back []pmetric.Metrics
		for _, x := range batches {
			back = append(back, metricsOf(t, x)...)
		}
		if d.Stats() == (Stats{}) && !slices.Equal(pointItems(t, md), pointItems(t, back...)) {
			t.Error("the round trip changed a point")
		}
	})
}
