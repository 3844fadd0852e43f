// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestTables_SentTwice sends recordings of an H200, or a generated session, twice.
func TestTables_SentTwice(t *testing.T) {
	t.Run("generated", func(t *testing.T) { sendTwice(t, generate(t, 1, 5000)) })
	t.Run("recordings", func(t *testing.T) {
		var sent telemetry
		for _, name := range []string{"c3-h200-minigpt", "c3-h200-scopes", "a2-h200"} {
			sent = sent.and(read(t, filepath.Join(process.Recordings(t), name), 50))
		}
		sendTwice(t, sent)
	})
}

func sendTwice(t *testing.T, sent telemetry) {
	want := sent.spans()
	statistic := kernels(want)
	require.NotEmpty(t, statistic)

	d := start(t, "")
	d.keep()
	// Stop merges, so that all copies of a row can be checked.
	d.run("SYSTEM STOP MERGES otel_traces; SYSTEM STOP MERGES kernels")
	address := process.FreePort(t)
	p := d.collect(nil, overOTLP(address))
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	const all = "SELECT * FROM kernel_statistics"
	for _, times := range []int{1, 2} {
		require.NoError(t, sent.send(ctx, address))
		checkSpans(t, want, d)
		checkStatistics(t, statistic, query[statistics](d, all))
		sent.checkLogs(t, times, d)
		sent.checkMetrics(t, times, d)
	}
	p.Stop(30 * time.Second)
	assert.Zero(t, d.front.Refused())

	// Check again after merges have removed the copies.
	assert.GreaterOrEqual(t, one[int](d, "SELECT count() AS n FROM otel_traces"), 2*len(want))
	d.run("SYSTEM START MERGES otel_traces; SYSTEM START MERGES kernels; OPTIMIZE TABLE otel_traces FINAL; OPTIMIZE TABLE kernels FINAL")
	assert.Equal(t, len(want), one[int](d, "SELECT count() AS n FROM otel_traces"))
	checkSpans(t, want, d)
	checkStatistics(t, statistic, query[statistics](d, all))
}

// waitLimit limits the wait for expected data.
const waitLimit = 5 * time.Minute

// TestClickHouse_Unavailable stops the server, kills it during inserts, and drops its answers after
// inserts. It uses a database other than the default.
func TestClickHouse_Unavailable(t *testing.T) {
	d := start(t, "gpu")
	d.keep()
	address := process.FreePort(t)
	p := d.collect(nil, overOTLP(address))
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	background := func(s telemetry) chan error {
		done := make(chan error, 1)
		go func() { done <- s.send(ctx, address) }()
		return done
	}
	before, away, killed, silent := generate(t, 2, 300), generate(t, 3, 300), generate(t, 4, 2000).pieces(100), generate(t, 5, 300)

	require.NoError(t, before.send(ctx, address))
	d.crash()
	done := background(away)
	p.WaitOutput("connection refused", waitLimit)
	d.listen()
	require.NoError(t, <-done)
	sent := before.and(away)
	checkSpans(t, sent.spans(), d)
	checkStatistics(t, kernels(sent.spans()), query[statistics](d, "SELECT * FROM kernel_statistics"))
	sent.checkLogs(t, 1, d)
	sent.checkMetrics(t, 1, d)

	inserts := d.front.Inserts()
	done = background(killed)
	process.Eventually(t, waitLimit, "some of it is in the table", func() bool { return d.front.Inserts() > inserts+2 })
	d.crash()
	d.listen()
	require.NoError(t, <-done)

	d.front.LoseAnswers(3)
	require.NoError(t, silent.send(ctx, address))
	assert.Zero(t, d.front.Unanswered())
	sent = sent.and(killed).and(silent)
	checkSpans(t, sent.spans(), d)
	checkStatistics(t, kernels(sent.spans()), query[statistics](d, "SELECT * FROM kernel_statistics"))
	assert.Zero(t, one[int](&database{t: t, front: d.front}, "SELECT count() AS n FROM system.tables WHERE database = 'default'"))
	p.Stop(30 * time.Second)
}

func TestClickHouse_WrongPassword(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) *database{"store": startEmpty, "contrib": start} {
		t.Run(name, func(t *testing.T) {
			d := start(t, "")
			d.front.Password = "another"
			p := d.command(nil, overOTLP(process.FreePort(t)))
			p.WaitOutput("Authentication failed", time.Minute)
			assert.NotContains(t, p.Output(), password)
			assert.Positive(t, d.front.Refused())
		})
	}
}

// TestTables_TimeToLive checks the times to live of the tables with rows on both sides of them.
func TestTables_TimeToLive(t *testing.T) {
	d := start(t, "")
	for _, days := range []int{0, 29, 31, 89, 91} {
		d.run(fmt.Sprintf("INSERT INTO otel_traces (Timestamp, TraceId, SpanId, SpanAttributes) "+
			"SELECT now64(9) - INTERVAL %d DAY, '01', '%016x', map('cuda.operation', 'kernel')", days, days))
	}
	d.run("OPTIMIZE TABLE otel_traces FINAL; OPTIMIZE TABLE kernels FINAL")
	type days struct{ Days []int }
	const ago = "SELECT arraySort(groupArray(dateDiff('day', Timestamp, now64(9)))) AS Days FROM "
	assert.Equal(t, []days{{[]int{0, 29}}}, query[days](d, ago+"otel_traces"))
	assert.Equal(t, []days{{[]int{0, 29, 31, 89}}}, query[days](d, ago+"kernels"))
}
