// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

var (
	benchSessions = flag.Int("sessions", 200, "sessions that BenchmarkStore_Sessions writes at once")
	benchRows     = flag.Int("session-rows", 1200, "rows of a session in a commit")
	benchAttached = flag.Int("attached", 0, "segments that stay open")
	benchThreads  = flag.Int("threads", 2, "threads of DuckDB")
)

// BenchmarkStore_Sessions writes rows of many sessions in turn, as a Collector does that receives from
// many processes at once. An iteration is a commit of each session.
func BenchmarkStore_Sessions(b *testing.B) {
	ctx := context.Background()
	s, err := Open(ctx, Config{Directory: b.TempDir(), MaxAttached: *benchAttached, Threads: *benchThreads})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close(ctx)) }()
	g := storetest.NewTraining(0)
	batches := make([]*store.Batch, *benchSessions)
	write := func() {
		_, err := s.Write(ctx, batches)
		require.NoError(b, err)
	}
	next := func() {
		for i := range batches {
			batches[i] = g.Rows(*benchRows)
			batches[i].Session = fmt.Sprint(i)
		}
	}
	next()
	write()
	var cpu time.Duration
	commits := s.Stats().Commits
	for b.Loop() {
		b.StopTimer()
		next()
		used := cpuTime(b)
		b.StartTimer()
		write()
		cpu += cpuTime(b) - used
	}
	commits = s.Stats().Commits - commits
	b.ReportMetric(float64(cpu.Microseconds())/1000/float64(commits), "ms-cpu/commit")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(commits), "ms/commit")
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(commits)/float64(*benchRows), "ns-cpu/row")
	b.ReportMetric(float64(peakMemory(b))/1e6, "MB-peak")
}
