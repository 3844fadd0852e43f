// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver"
)

// recordings are logs of GPU Flight as it wrote them.
const recordings = "../../../shared/logs"

// received is the spans that the receiver makes of a folder; it waits until there are so many.
func received(t *testing.T, folder string, spans int) map[string]int {
	t.Helper()
	factory := gpuflogreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{
		"include": []any{folder}, "start_at": "beginning", "poll_interval": "50ms",
	}).Unmarshal(cfg))
	store := testsink.NewStore()
	r, err := factory.CreateTraces(context.Background(), receivertest.NewNopSettings(factory.Type()), cfg, store.Traces())
	require.NoError(t, err)
	require.NoError(t, r.Start(context.Background(), componenttest.NewNopHost()))
	store.Settle(time.Second, 30*time.Second, func() bool { return len(store.Spans()) >= spans })
	require.NoError(t, r.Shutdown(context.Background()))
	ids := map[string]int{}
	for _, s := range store.Spans() {
		ids[s.SpanKey.String()] = 1
	}
	return ids
}

func TestReplayedLogsHaveTheIDsOfReceivedOnes(t *testing.T) {
	folder := filepath.Join(recordings, "c3-h200-minigpt")
	if _, err := os.Stat(folder); err != nil {
		t.Skip("no recordings here: ", err)
	}
	c := newCollector()
	counts := run(t, Options{Sources: []Source{source(t, folder)}, Sender: c})
	want := received(t, folder, counts.Spans)
	require.NotEmpty(t, want)
	assert.Equal(t, want, c.spans)
	assert.Equal(t, 4, counts.Objects)
	assert.Equal(t, 0, counts.Lost())

	// Out of S3 the same, and from any one file of the session too.
	s := startS3(t)
	require.NoError(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		s.put("logs/archive/"+strings.TrimPrefix(path, folder+"/"), data)
		return err
	}))
	s.cutAfter = 3000
	c = newCollector()
	run(t, Options{Sources: []Source{source(t, "s3://logs/archive")}, Sender: c})
	assert.Equal(t, want, c.spans)
	files, err := filepath.Glob(filepath.Join(folder, "*", "*.log.gz"))
	require.NoError(t, err)
	c = newCollector()
	run(t, Options{Sources: []Source{source(t, files[0]), source(t, files[1])}, Sender: c})
	assert.Equal(t, want, c.spans, "two files of a session are one replay of it")
}

// TestReplayedLogsResumeAnywhere ends the replay of a session in each batch, with batches of one message.
func TestReplayedLogsResumeAnywhere(t *testing.T) {
	folder := filepath.Join(recordings, "c3-h200-scopes")
	if _, err := os.Stat(folder); err != nil {
		t.Skip("no recordings here: ", err)
	}
	whole := newCollector()
	want := run(t, Options{Sources: []Source{source(t, folder)}, Sender: whole, BatchItems: 1})
	require.Greater(t, want.Batches, 5)
	for n := range want.Batches {
		state := filepath.Join(t.TempDir(), "state")
		c := newCollector()
		c.lost = func(batch int) error {
			if batch == n {
				return errKilled
			}
			return nil
		}
		for range 2 {
			j, err := OpenJournal(state)
			require.NoError(t, err)
			_, err = Run(t.Context(), Options{Sources: []Source{source(t, folder)}, Sender: c, BatchItems: 1, Journal: j})
			require.NoError(t, j.Close())
			if err != nil {
				require.ErrorIs(t, err, errKilled)
			}
			c.lost = nil
		}
		require.Len(t, c.batches, want.Batches+1)
		require.Equal(t, c.batches[n], c.batches[n+1], "the batch that comes twice is the same")
		for id := range whole.spans {
			require.Contains(t, c.spans, id)
		}
		require.Len(t, c.spans, len(whole.spans))
	}
}

func TestReplayOfDamagedLogs(t *testing.T) {
	dir := t.TempDir()
	const id = "11111111-2222-4333-8444-555555555555"
	good := `{"type":"job_start","session_id":"` + id + `","app":"a","pid":7,"ts_ns":1786060800000000000}` + "\n"
	bad := good + "{\"type\":\"kernel_event\",\n" + `{"type":"from_the_future","session_id":"` + id + `"}` + "\n" + strings.Repeat("y", 3<<20) + "\n" +
		`{"type":"shutdown","session_id":"` + id + `","ts_ns":1786060801000000000}` + "\n" + `{"type":"half`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "device.1.log"), []byte(bad), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "scope.1.log.gz"), gzipped(t, []byte(good))[:30], 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "system.1.log.gz"), []byte{0x1f, 0x8b, 9}, 0o600))
	var problems []Problem
	c := newCollector()
	counts := run(t, Options{
		Sources: []Source{source(t, dir)}, Sender: c, MaxMessageBytes: 2 << 20,
		Problem: func(p Problem) { p.Object = filepath.Base(p.Object); problems = append(problems, p) },
	})
	assert.Equal(t, 1, counts.Spans, "the session")
	assert.Equal(t, map[string]int{ReasonLogLine: 1, ReasonLogNote: 1, ReasonTooLarge: 1, ReasonTruncated: 3}, counts.Rejected)
	assert.True(t, slices.ContainsFunc(problems, func(p Problem) bool {
		return p.Object == "device.1.log" && p.Offset == int64(len(good)) && p.Reason == ReasonLogLine && strings.HasPrefix(p.Detail, "malformed: kernel_event: ")
	}), "%v", problems)
	long := int64(strings.Index(bad, "yyy"))
	assert.Contains(t, problems, Problem{Object: "device.1.log", Offset: long, Reason: ReasonTooLarge, Detail: "a line of more than 2097152 bytes"})
	assert.Contains(t, problems, Problem{Object: "device.1.log", Offset: int64(strings.Index(bad, `{"type":"half`)), Reason: ReasonTruncated, Detail: "the last line has no end"})
}
