// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// restoreScript returns restore.sh of docs/replay.md.
func restoreScript(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(process.Root(t), "docs", "replay.md"))
	require.NoError(t, err)
	m := regexp.MustCompile("(?s)```sh\n(# restore.sh.*?)```").FindSubmatch(page)
	require.NotNil(t, m)
	return string(m[1])
}

// replay reads a folder with config/replay.yaml until no more data comes.
func replay(t *testing.T, dir string, done func(*testsink.Store) bool) *testsink.Store {
	t.Helper()
	store := testsink.NewStore(keys...)
	server, err := testsink.Listen(store, "")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	c := newCollector(t, "replay.yaml", map[string]string{"GPUFLIGHT_ARCHIVE": dir, "GPUFLIGHT_OTLP_ENDPOINT": server.Endpoint()}, nil).run()
	require.True(t, store.Settle(3*time.Second, 2*time.Minute, func() bool { return done(store) }))
	c.stop()
	return store
}

// TestArchive_RawLines sends recordings as raw lines to S3, restores them as docs/replay.md describes,
// and compares the ids of both.
func TestArchive_RawLines(t *testing.T) {
	parallel(t)
	server := startS3(t)
	logs := process.Recordings(t)
	want := replay(t, logs, func(s *testsink.Store) bool { return s.Distinct().Spans > 1000 })

	otlp := map[string]any{"receivers": []string{"otlp"}} // Kafka is not part of this test
	c := newCollector(t, "archive.yaml", map[string]string{
		"GPUFLIGHT_S3_ENDPOINT": server.url, "GPUFLIGHT_S3_FLUSH": "1s", "GPUFLIGHT_LOGS": logs, "GPUFLIGHT_HOST": "node-a",
	}, map[string]any{
		"receivers": map[string]any{"otlp": map[string]any{"protocols": map[string]any{"grpc": map[string]any{"endpoint": process.FreePort(t)}}}},
		"service":   map[string]any{"pipelines": map[string]any{"traces": otlp, "metrics": otlp, "logs": otlp}},
	}).run()
	size := func() (n int) {
		for _, o := range server.objects() {
			assert.True(t, strings.HasPrefix(o.key, "raw/node-a"+logs+"/"), o.key)
			n += len(o.body)
		}
		return n
	}
	last, since := size(), time.Now()
	process.Eventually(t, 2*time.Minute, "all lines are in the archive", func() bool {
		if n := size(); n != last {
			last, since = n, time.Now()
		}
		return last > 0 && time.Since(since) > 5*time.Second // above the delays of gpuflog and of uploads
	})
	c.stop()

	dir := server.sync()
	sh := exec.CommandContext(t.Context(), "sh", "-eu")
	sh.Dir, sh.Stdin = dir, strings.NewReader(restoreScript(t))
	out, err := sh.CombinedOutput()
	require.NoError(t, err, "%s", out)
	restored := filepath.Join(dir, "restored")
	old := time.Now().Add(-time.Hour) // sessions without an end wait for session_timeout
	require.NoError(t, filepath.WalkDir(restored, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, old, old))
	}))
	same(t, "restored", want, replay(t, restored, func(s *testsink.Store) bool { return s.Distinct().Spans >= want.Distinct().Spans }))
}
