// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fault_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/internal/testing/tmpfs"
)

// free returns the free bytes of a file system.
func free(t *testing.T, dir string) int64 {
	t.Helper()
	var s syscall.Statfs_t
	require.NoError(t, syscall.Statfs(dir, &s))
	return int64(s.Bavail) * s.Bsize
}

// queueBytes is the limit of each signal. The disk has space for all three.
const queueBytes = 10 << 20

// queued writes a configuration with a sending queue in the storage and returns its path.
func queued(t *testing.T, c process.CollectorConfig) string {
	t.Helper()
	path := c.Write(t)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, json.Unmarshal(text, &config))
	exporter := config["exporters"].(map[string]any)["otlp_grpc"].(map[string]any)
	exporter["sending_queue"] = map[string]any{
		"storage": "file_storage/gpuflog", "sizer": "bytes", "queue_size": queueBytes, "num_consumers": 4,
	}
	exporter["timeout"] = "30s" // Requests are as large as what the receiver reads at once.
	exporter["retry_on_failure"] = map[string]any{"enabled": true, "initial_interval": "200ms", "max_interval": "1s", "max_elapsed_time": 0}
	text, err = json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// TestDiskFull fills the file system of checkpoints and sending queue while the backend is
// unavailable. The log files then serve as the queue, so nothing is lost. The Collector neither
// exits nor hangs, stops in time while the disk is full, and continues when space is free.
func TestDiskFull(t *testing.T) {
	if testing.Short() {
		t.Skip("takes about a minute")
	}
	path := process.Collector.Find(t)
	disk := tmpfs.Mount(t, "40m")
	filler := filepath.Join(disk, "filler")

	store, server := process.Sink(t, keys...)
	server.SetMode(testsink.Unavailable)
	w := startWriters(t, 1, 150)
	config := queued(t, process.CollectorConfig{Include: w.dirs, Endpoint: server.Endpoint(), Storage: filepath.Join(disk, "storage")})
	p := process.Start(t, path, "--config", config)
	p.WaitOutput(process.Ready, 30*time.Second)

	// Another program takes the rest of the disk while the queue holds data.
	process.Eventually(t, time.Minute, "the queue takes space", func() bool { return free(t, disk) < 39<<20 })
	fill(t, filler)
	p.WaitOutput("no space left on device", time.Minute)
	summaries := w.finish(t)
	time.Sleep(3 * time.Second)
	require.True(t, p.Running(), "the Collector ended on a full disk")
	fill(t, filler)
	p.Stop(15 * time.Second)
	noPanic(t, p)

	// A start on the full disk could lose requests of the queue that were in flight. The Collector
	// exits with one sentence, unless the files have space for those requests.
	out, err := exec.Command("/usr/bin/timeout", "10", path, "--config", config).CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	t.Logf("start on a full disk: exit code %d (124: it ran until it was stopped)", exit.ExitCode())
	if exit.ExitCode() != 124 {
		assert.Equal(t, 1, exit.ExitCode())
		assert.Regexp(t, `open \S+/exporter_otlp_grpc__\w+: no space left on device: \d+ bytes are free, \d+ are needed: make room`, string(out))
	}

	require.NoError(t, os.Remove(filler))
	p = process.Start(t, path, "--config", config)
	time.Sleep(2 * time.Second)
	server.SetMode(testsink.Accept)
	want := rows(summaries, gpuflgen.RowKernel)
	t.Logf("%d kernels were written", want)
	drain(t, p, store, summaries, nil)
	noPanic(t, p)
	t.Logf("%+v distinct of %+v arrivals", store.Distinct(), store.Counts())
	checkTotals(t, store, summaries)
	nothingLost(t, undisturbed(t, w, summaries), store)
}

// nothingLost compares the identities of spans and the data points. Parents may differ: during a
// long delay of delivery, a span that waits for another channel is sent without its data.
func nothingLost(t *testing.T, want, got *testsink.Store) {
	t.Helper()
	diff := differences{t: t}
	have := map[testsink.SpanKey]bool{}
	for _, sp := range got.Spans() {
		have[sp.SpanKey] = true
	}
	for _, sp := range want.Spans() {
		if !have[sp.SpanKey] {
			diff.add("lost: %s", describe(sp))
		}
	}
	points := func(s *testsink.Store) map[testsink.Digest]string {
		m := map[testsink.Digest]string{}
		for _, p := range s.Points() {
			m[p.Digest] = p.Metric
		}
		return m
	}
	diff.sets(points(want), points(got))
	diff.report()
	assert.Equal(t, want.Distinct().Logs, got.Distinct().Logs, "log records")
}

// fill appends to a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	for n := 1 << 20; n > 0; {
		if _, err = f.Write(make([]byte, n)); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			n /= 2
		}
	}
	require.NoError(t, f.Close())
}

func noPanic(t *testing.T, p *process.Process) {
	t.Helper()
	for _, word := range []string{"panic:", "goroutine ", "SIGBUS", "fatal error"} {
		assert.NotContains(t, p.Output(), word)
	}
}
