// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// BenchmarkTraces converts the spans of a recording: as pdata, from OTLP bytes to pdata only, and
// from OTLP bytes to rows.
func BenchmarkTraces(b *testing.B) {
	td := readRecordings(b, "c3-h200-minigpt")[0].traces
	spans := td.SpanCount()
	otlp, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(td)
	require.NoError(b, err)
	var d Decoder
	unmarshal := func() ptrace.Traces {
		td, err := (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(otlp)
		require.NoError(b, err)
		return td
	}
	for _, bench := range []struct {
		name string
		run  func()
	}{
		{"rows", func() { d.Traces("", td) }},
		{"unmarshal", func() { unmarshal() }},
		{"unmarshal and rows", func() { d.Traces("", unmarshal()) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bench.run()
			}
			b.ReportMetric(float64(b.N)*float64(spans)/b.Elapsed().Seconds(), "spans/s")
			b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/float64(spans), "ns/span")
		})
	}
}
