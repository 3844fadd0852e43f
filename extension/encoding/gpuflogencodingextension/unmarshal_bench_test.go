// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"context"
	"testing"

	"go.opentelemetry.io/collector/extension/extensiontest"

	"github.com/gpuflight/gpuflight/extension/encoding/gpuflogencodingextension/internal/metadata"
)

// BenchmarkUnmarshal takes the messages of a session of 20,000 kernels, a line each, with all that is
// remembered of them. It reports kernels a second.
func BenchmarkUnmarshal(b *testing.B) {
	const kernels = 20_000
	for _, form := range []struct {
		name string
		make func([]byte) []byte
	}{{"lines", func(m []byte) []byte { return m }}, {"strings", func(m []byte) []byte { return asMessage(b, m) }}} {
		b.Run(form.name, func(b *testing.B) {
			var messages [][]byte
			bytes := 0
			for _, m := range smallSession(kernels).mix(func(left []string) string { return left[len(left)-1] }) {
				messages = append(messages, form.make(m))
				bytes += len(m)
			}
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			for b.Loop() {
				e, err := newExtension(extensiontest.NewNopSettings(metadata.Type), createDefaultConfig().(*Config))
				if err != nil {
					b.Fatal(err)
				}
				spans := 0
				for _, m := range messages {
					td, err := e.UnmarshalTraces(m)
					if err != nil {
						b.Fatal(err)
					}
					spans += td.SpanCount()
				}
				if spans < kernels+2 {
					b.Fatalf("%d spans of %d kernels", spans, kernels)
				}
				if err := e.Shutdown(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(kernels)*float64(b.N)/b.Elapsed().Seconds(), "kernels/s")
		})
	}
}
