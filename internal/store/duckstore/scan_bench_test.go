// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"io"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/traceexport"
)

// BenchmarkStore_Scan reads all operations, analyses them, and exports the session.
func BenchmarkStore_Scan(b *testing.B) {
	kernels := 1_000_000
	if n, err := strconv.Atoi(os.Getenv("GPUFLIGHT_BENCH_KERNELS")); err == nil {
		kernels = n
	}
	ctx := b.Context()
	s, err := Open(ctx, Config{Directory: b.TempDir()})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close(ctx)) }()
	g := storetest.NewTraining(0)
	for n := 0; n < kernels; {
		batch := g.Batch(20)
		_, err := s.Write(ctx, []*store.Batch{batch})
		require.NoError(b, err)
		n += len(batch.Ops)
	}
	q := store.ScanQuery{Session: "training"}
	for _, run := range []struct {
		name string
		call func() (int, error)
	}{
		{"ops", func() (n int, err error) {
			return n, s.ScanOps(ctx, q, func(*store.OpRow) error { n++; return nil })
		}},
		{"pages", func() (n int, err error) {
			q := store.OpQuery{Session: "training", Limit: 20_000}
			for {
				page, err := s.Ops(ctx, q)
				n += len(page.Rows)
				if err != nil || !page.More {
					return n, err
				}
				last := page.Rows[len(page.Rows)-1]
				q.After = &store.OpCursor{StartNs: last.StartNs, Span: last.Span}
			}
		}},
		{"analysis", func() (int, error) {
			r, err := analysis.Run(ctx, analysis.FromReader(s, "", "training"), analysis.Options{})
			if err != nil {
				return 0, err
			}
			return int(r.Operations), nil
		}},
		{"export", func() (int, error) {
			return kernels, traceexport.Perfetto(ctx, s, traceexport.Query{Session: "training"}, io.Discard)
		}},
	} {
		b.Run(run.name, func(b *testing.B) {
			total := 0
			for b.Loop() {
				n, err := run.call()
				require.NoError(b, err)
				total += n
			}
			b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}
