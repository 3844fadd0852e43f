// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"flag"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

var benchKernels = flag.Int("kernels", 2_000_000, "kernels that BenchmarkStore loads")

// BenchmarkStore loads kernels into one session and asks the queries of the UI,
// before and after sealing. No answer comes from the cache.
func BenchmarkStore(b *testing.B) {
	kernels := *benchKernels
	ctx := context.Background()
	s, err := Open(ctx, Config{Directory: b.TempDir()})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close(ctx)) }()
	g := storetest.NewTraining(0)
	var last *store.Batch
	var rows int64
	var spent, generating time.Duration
	cpu := cpuTime(b)
	for n := 0; n < kernels; n += 20 * storetest.TrainingStep {
		used := cpuTime(b)
		last = g.Batch(20)
		generating += cpuTime(b) - used
		begin := time.Now()
		r, err := s.Write(ctx, []*store.Batch{last})
		require.NoError(b, err)
		spent += time.Since(begin)
		rows += r.Written
	}
	cpu = cpuTime(b) - cpu - generating
	b.Run("Write", func(b *testing.B) {
		b.ReportMetric(float64(rows)/spent.Seconds(), "rows/s")
		b.ReportMetric(float64(rows)/cpu.Seconds(), "rows/s-core")
		b.ReportMetric(0, "ns/op")
	})
	for _, state := range []string{"Live", "Sealed"} {
		if state == "Sealed" {
			begin := time.Now()
			require.NoError(b, s.Seal(ctx, "", "training"))
			took := time.Since(begin)
			b.Run("Seal", func(b *testing.B) {
				b.ReportMetric(took.Seconds(), "s")
				b.ReportMetric(float64(s.Stats().Bytes)/float64(kernels), "B/kernel")
				b.ReportMetric(float64(peakMemory(b))/1e6, "MB-peak")
				b.ReportMetric(0, "ns/op")
			})
		}
		benchmarkQueries(b, s, state, last)
	}
}

func benchmarkQueries(b *testing.B, s *Store, state string, last *store.Batch) {
	ctx := context.Background()
	info, err := s.Session(ctx, "", "training")
	require.NoError(b, err)
	length := info.LastNs - info.FirstNs
	window := func(part int64) store.TimelineQuery {
		return store.TimelineQuery{
			Session: "training", From: info.FirstNs + length/3, To: info.FirstNs + length/3 + length/part, Bins: 2000,
		}
	}
	timeline := func(q store.TimelineQuery) error { _, err := s.Timeline(ctx, q); return err }
	nodes, err := s.Scopes(ctx, "", "training")
	require.NoError(b, err)
	layer := nodes[len(nodes)-1].Path
	queries := []struct {
		name string
		call func() error
	}{
		{"Timeline", func() error { return timeline(store.TimelineQuery{Session: "training", Bins: 2000}) }},
		{"Timeline10", func() error { return timeline(window(10)) }},
		{"Timeline100", func() error { return timeline(window(100)) }},
		{"Rows100ms", func() error {
			_, err := s.Ops(ctx, store.OpQuery{Session: "training", From: info.FirstNs + length/2, To: info.FirstNs + length/2 + 1e8, Overlapping: true})
			return err
		}},
		{"Kernels", func() error { _, err := s.Kernels(ctx, store.KernelQuery{Session: "training"}); return err }},
		{"KernelsByPath", func() error {
			_, err := s.Kernels(ctx, store.KernelQuery{Session: "training", Group: store.GroupPath})
			return err
		}},
		{"Scopes", func() error { _, err := s.Scopes(ctx, "", "training"); return err }},
		{"Sessions", func() error { _, err := s.Sessions(ctx, store.SessionQuery{}); return err }},
		{"Lanes", func() error { _, err := s.Lanes(ctx, "", "training"); return err }},
		{"Span", func() error {
			_, _, err := s.Span(ctx, "", "training", last.Ops[7].Span, last.Ops[7].StartNs)
			return err
		}},
		{"Instances", func() error {
			_, err := s.Instances(ctx, store.InstanceQuery{Session: "training", Path: layer, Sort: store.InstancesByDevice})
			return err
		}},
		{"Analysis10", func() error {
			o := analysis.Options{From: window(10).From, To: window(10).To}
			_, err := analysis.Run(ctx, analysis.FromReader(s, "", "training"), o)
			return err
		}},
		{"Gaps10", func() error {
			_, err := s.Gaps(ctx, store.GapQuery{Session: "training", From: window(10).From, To: window(10).To})
			return err
		}},
		{"Gaps", func() error { _, err := s.Gaps(ctx, store.GapQuery{Session: "training"}); return err }},
	}
	for _, q := range queries {
		b.Run(state+"/"+q.name, func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				s.mu.Lock()
				s.sessions[sessionKey{"", "training"}].version++
				s.mu.Unlock()
				begin := time.Now()
				require.NoError(b, q.call())
				times = append(times, time.Since(begin))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "ms-p50")
			b.ReportMetric(float64(times[len(times)*95/100].Microseconds())/1000, "ms-p95")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peakMemory returns the largest resident size of the process, in bytes.
func peakMemory(tb testing.TB) int64 {
	var u syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return u.Maxrss << 10
}
