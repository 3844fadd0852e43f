// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
	"github.com/gpuflight/gpuflight/internal/testing/tmpfs"
)

// collect reads a file and counts its items.
func collect(t *testing.T, path string) (names map[string]int, records, metricPoints int, stats ReadStats) {
	t.Helper()
	names = map[string]int{}
	stats, err := ReadFile(path, Handler{
		Traces: func(td ptrace.Traces) {
			for _, rs := range td.ResourceSpans().All() {
				for _, ss := range rs.ScopeSpans().All() {
					for _, s := range ss.Spans().All() {
						names[s.Name()]++
					}
				}
			}
		},
		Logs:    func(ld plog.Logs) { records += ld.LogRecordCount() },
		Metrics: func(md pmetric.Metrics) { metricPoints += md.DataPointCount() },
	})
	require.NoError(t, err)
	return names, records, metricPoints, stats
}

func TestFile_RoundTrip(t *testing.T) {
	for _, name := range []string{"a.otlp.jsonl", "a.otlp.jsonl.gz", "a.otlp.jsonl.zst"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			s := testSettings(t, "GPUFLIGHT_OUTPUT", path, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			// Two clients represent two processes.
			var wg sync.WaitGroup
			for k := range 2 {
				c := start(t, s, nil)
				wg.Go(func() {
					for i := range 20 {
						c.Traces(spans(k*10_000+100*i, 100))
						if i%5 == 0 {
							time.Sleep(time.Millisecond) // several lines instead of one
						}
					}
					c.Logs(logRecords(3))
					c.Metrics(points(4))
					assert.NoError(t, c.Shutdown(within(t, time.Minute)))
				})
			}
			wg.Wait()
			names, records, metricPoints, stats := collect(t, path)
			assert.Len(t, names, 4000)
			assert.Equal(t, 6, records)
			assert.Equal(t, 8, metricPoints)
			assert.Zero(t, stats.Bad)
			assert.False(t, stats.Torn)
			mode, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), mode.Mode().Perm())

			// The writer was killed in the middle of its last line.
			whole, err := os.ReadFile(path)
			require.NoError(t, err)
			torn := filepath.Join(t.TempDir(), name)
			require.NoError(t, os.WriteFile(torn, whole[:len(whole)-20], 0o600))
			_, _, _, stats = collect(t, torn)
			assert.True(t, stats.Torn)
			assert.Zero(t, stats.Bad)
			assert.GreaterOrEqual(t, stats.Lines, 5)
		})
	}
}

func TestReadFile_InvalidLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.otlp.jsonl")
	good, err := traces{spans(0, 2)}.json()
	require.NoError(t, err)
	text := fmt.Sprintf("%s\n\n{\"resourceSpans\": 7}\nnot json\n{\"other\":[]}\n%s\n", good, good)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	names, _, _, stats := collect(t, path)
	assert.Equal(t, map[string]int{"kernel 0": 2, "kernel 1": 2}, names)
	assert.Equal(t, 5, stats.Lines)
	assert.Equal(t, 3, stats.Bad)
	require.Len(t, stats.Errors, 3)
	assert.Contains(t, stats.Errors[0].Error(), path+":2:")
	assert.Contains(t, stats.Errors[2].Error(), path+":4:")
}

func TestFile_FullDisk(t *testing.T) {
	path := filepath.Join(tmpfs.Mount(t, "64k"), "full.otlp.jsonl")
	c := start(t, testSettings(t, "GPUFLIGHT_OUTPUT", path), nil)
	for i := range 50 {
		c.Traces(spans(100*i, 100))
		n := uint64(100 * (i + 1))
		require.Eventually(t, func() bool { s := c.Stats()[Traces]; return s.Sent+s.UnsentTotal() == n }, time.Minute, 100*time.Microsecond)
	}
	s := c.Stats()[Traces]
	assert.Error(t, c.Shutdown(within(t, time.Minute)))
	assert.Positive(t, s.Sent)
	assert.Equal(t, 5000-s.Sent, s.Unsent[ReasonDisk])
	names, _, _, stats := collect(t, path)
	assert.Len(t, names, int(s.Sent))
	assert.False(t, stats.Torn)
	assert.Zero(t, stats.Bad)
}

// The Collector's file receiver reads lines of up to 1 MiB.
func TestFile_LineLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long.otlp.jsonl")
	c := start(t, testSettings(t, "GPUFLIGHT_OUTPUT", path), nil)
	c.Traces(spans(0, 20_000))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	assert.Greater(t, len(lines), 1)
	for _, line := range lines {
		assert.Less(t, len(line), 1<<20)
	}
	names, _, _, _ := collect(t, path)
	assert.Len(t, names, 20_000)
}

func TestFile_MissingFolder(t *testing.T) {
	_, err := New(testSettings(t, "GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "no", "such")), nil)
	require.ErrorContains(t, err, "GPUFLIGHT_OUTPUT")
}

func TestFile_Pipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, exec.Command("mkfifo", path).Run())
	_, err := New(testSettings(t, "GPUFLIGHT_OUTPUT", path), nil)
	require.ErrorContains(t, err, "not a regular file")
}

func TestFile_IncompleteLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.otlp.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"resourceSpans":[{"scopeS`), 0o600))
	c := start(t, testSettings(t, "GPUFLIGHT_OUTPUT", path), nil)
	c.Traces(spans(0, 10))
	require.NoError(t, c.Shutdown(within(t, time.Minute)))
	names, _, _, stats := collect(t, path)
	assert.Len(t, names, 10)
	assert.Equal(t, 1, stats.Bad)
}

// lockedFile holds a file's lock, as a suspended process would.
func lockedFile(t *testing.T) (path string, let func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "f.otlp.jsonl")
	f, err := os.Create(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.NoError(t, tryLock(f))
	return path, func() { unlock(f) }
}

func TestFile_LockTimeout(t *testing.T) {
	path, let := lockedFile(t)
	var log bytes.Buffer
	c := start(t, testSettings(t, "GPUFLIGHT_OUTPUT", path), slog.New(slog.NewTextHandler(&log, nil)))
	c.file.lockTimeout = 50 * time.Millisecond
	c.Traces(spans(0, 10))
	require.Eventually(t, func() bool { return c.Stats()[Traces].Unsent[ReasonDisk] == 10 }, time.Minute, time.Millisecond)
	assert.Contains(t, c.Stats()[Traces].LastError, "another process holds the lock")
	let()
	c.Traces(spans(10, 10))
	require.Error(t, c.Shutdown(within(t, time.Minute)))
	assert.Equal(t, uint64(10), c.Stats()[Traces].Sent)
	assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"))
}

func TestShutdown_LockedFile(t *testing.T) {
	path, _ := lockedFile(t)
	c := start(t, testSettings(t, "GPUFLIGHT_OUTPUT", path), nil)
	c.file.lockTimeout = time.Hour
	c.Traces(spans(0, 10))
	c.Logs(logRecords(3))
	require.Error(t, c.Shutdown(within(t, 100*time.Millisecond))) // else the test takes an hour
	assert.Equal(t, map[string]uint64{ReasonShutdown: 10}, c.Stats()[Traces].Unsent)
	assert.Equal(t, map[string]uint64{ReasonShutdown: 3}, c.Stats()[Logs].Unsent)
}

func TestReadFile_IncompleteHeader(t *testing.T) {
	for _, b := range []string{"\x1f\x8b", "\x1f\x8b\x08\x00", "\x28\xb5\x2f\xfd"} {
		path := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(path, []byte(b), 0o600))
		_, _, _, stats := collect(t, path)
		assert.Equal(t, ReadStats{Torn: true}, stats, "%q", b)
	}
}

// decompressed returns how many bytes of a file can be read, after decompression if it is
// compressed.
func decompressed(b []byte) int {
	r, err := decompress(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		return len(b)
	}
	n, _ := io.Copy(io.Discard, io.LimitReader(r, 1<<21))
	return max(len(b), int(n))
}

func FuzzRead(f *testing.F) {
	line, _ := traces{spans(0, 2)}.json()
	f.Add(append(line, '\n'))
	z, _ := gzipMember(line)
	f.Add(z)
	f.Add([]byte("{\"resourceMetrics\":[{\"scopeMetrics\":[{\"metrics\":[{\"sum\":null}]}]}]}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		// "{}," is a span. The zstd decoder itself needs some MiB.
		n := decompressed(b)
		if n > 1<<20 {
			t.Skip("too long")
		}
		alloctest.Limit{PerByte: 1 << 10, Constant: 1 << 24}.Check(t, n, func() { _, _ = ReadFile(path, Handler{}) })
		stats, _ := ReadFile(path, Handler{})
		if stats.Bad > stats.Lines || len(stats.Errors) > stats.Bad {
			t.Fatalf("%+v", stats)
		}
	})
}
