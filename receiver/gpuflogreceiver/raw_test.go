// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
	"github.com/gpuflight/gpuflight/semconv"
)

// archive keeps raw lines by path. It rejects each delivery once.
type archive struct {
	mu    sync.Mutex
	text  map[string]string
	calls int
}

func (a *archive) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (a *archive) ConsumeLogs(_ context.Context, ld plog.Logs) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls++; a.calls%2 == 1 {
		return errors.New("not now")
	}
	for _, rl := range ld.ResourceLogs().All() {
		path, _ := rl.Resource().Attributes().Get(semconv.LogFilePath)
		for _, record := range rl.ScopeLogs().At(0).LogRecords().All() {
			a.text[path.Str()] += record.Body().Str() + "\n"
		}
	}
	return nil
}

// start starts a receiver of raw lines and returns how to stop it.
func (a *archive) start(t *testing.T, dir string, m *memory, startAt string) (stop func()) {
	t.Helper()
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.Include, cfg.Raw, cfg.PollInterval, cfg.Storage, cfg.StartAt = []string{dir}, true, 10*time.Millisecond, &storageID, startAt
	require.NoError(t, cfg.Validate())
	set := receivertest.NewNopSettings(metadata.Type)
	r, err := f.CreateLogs(t.Context(), set, cfg, a)
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context(), host{storageID: m}))
	return sync.OnceFunc(func() { require.NoError(t, r.Shutdown(context.Background())) })
}

func (a *archive) same(text map[string]string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Equal(a.text, text)
}

func appendNew(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	appendTo(t, path, text)
}

// TestRaw_Lines reads logs that grow and are rotated, with a restart, from a pipeline that rejects each
// delivery once.
func TestRaw_Lines(t *testing.T) {
	dir, m := t.TempDir(), &memory{m: map[string][]byte{}}
	a := &archive{text: map[string]string{}}
	want := map[string]string{}
	write := func(name, path, text string) {
		appendNew(t, filepath.Join(dir, name), text)
		want[filepath.Join(dir, path)] += text
	}
	write("x.device.log", "x.device.log", "{\"a\":1}\n\xff no JSON\n")
	write("session/.tmp/scope.log", "session/scope.1.log", "{\"b\":1}\n\n")
	stop := a.start(t, dir, m, startAtBeginning)
	defer func() { stop() }()
	eventually(t, "the first lines", func() bool { return a.same(want) })
	require.NoError(t, os.Rename(filepath.Join(dir, "x.device.log"), filepath.Join(dir, "x.device.1.log")))
	write("x.device.log", "x.device.log", strings.Repeat("{\"c\":1}\n", 1000))
	eventually(t, "lines of the next file", func() bool { return a.same(want) })
	stop()
	write("x.device.log", "x.device.log", "{\"d\":1}\n")
	write("x.device.log", "x.device.log", "{\"unterminated\":1}")
	want[filepath.Join(dir, "x.device.log")] += "\n"
	stop = a.start(t, dir, m, startAtBeginning)
	eventually(t, "lines after a restart", func() bool { return a.same(want) })
}

func TestRaw_StartAtEnd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.device.log")
	appendNew(t, path, "{\"old\":1}\n")
	a := &archive{text: map[string]string{}}
	m := &memory{m: map[string][]byte{}}
	stop := a.start(t, dir, m, startAtEnd)
	defer stop()
	eventually(t, "a checkpoint", func() bool { return len(m.clone().m) > 1 })
	appendTo(t, path, "{\"new\":1}\n")
	eventually(t, "the new line", func() bool { return a.same(map[string]string{path: "{\"new\":1}\n"}) })
}

func TestRaw_OtherPipelines(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Include, cfg.Raw = []string{"x"}, true
	_, err := NewFactory().CreateTraces(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, newSink())
	require.EqualError(t, err, "raw is for pipelines of logs: remove the receiver from this pipeline, or use another gpuflog in it")
	cfg.Protocols.HTTP.GetOrInsertDefault()
	assert.EqualError(t, cfg.Validate(), "raw is for files: remove protocols::http, or use another gpuflog for it")
}
