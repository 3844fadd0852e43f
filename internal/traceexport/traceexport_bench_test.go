// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
)

// pages is a store that answers from pages in memory, so that a benchmark measures the export only.
type pages struct {
	store.Reader
	ops   store.OpPage
	spans []store.SpanRow
}

func (p pages) Ops(context.Context, store.OpQuery) (store.OpPage, error)        { return p.ops, nil }
func (p pages) Spans(context.Context, store.SpanQuery) ([]store.SpanRow, error) { return p.spans, nil }

func BenchmarkExport(b *testing.B) {
	m, list := load(b, "pytorch")
	p := pages{Reader: m}
	var err error
	p.ops, err = m.Ops(b.Context(), store.OpQuery{Session: list[0].ID, Limit: 20_000})
	require.NoError(b, err)
	p.spans, err = m.Spans(b.Context(), store.SpanQuery{Session: list[0].ID, Limit: 20_000})
	require.NoError(b, err)
	for name, export := range map[string]func(context.Context, store.Reader, Query, io.Writer) error{"Perfetto": Perfetto, "Chrome": Chrome, "Profile": Profile} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var n counter
			for b.Loop() {
				n = 0
				require.NoError(b, export(b.Context(), p, Query{Session: list[0].ID}, &n))
			}
			rows := float64(len(p.ops.Rows) + len(p.spans))
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
			b.ReportMetric(float64(n)/rows, "B/row")
		})
	}
}

type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}
