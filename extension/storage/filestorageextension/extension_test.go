// SPDX-License-Identifier: Apache-2.0

package filestorageextension

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpuflight/gpuflight/extension/storage/filestorageextension/internal/metadata"
	"github.com/gpuflight/gpuflight/extension/storage/filestorageextension/internal/metadatatest"
)

var owner = component.MustNewIDWithName("gpuflog", "a/b")

// started is a running extension with what it reports.
type started struct {
	storage.Extension
	tel  *componenttest.Telemetry
	logs *observer.ObservedLogs
}

func start(t *testing.T, dir string, change func(*filestorage.Config)) *started {
	t.Helper()
	s := &started{tel: componenttest.NewTelemetry()}
	core, logs := observer.New(zap.InfoLevel)
	s.logs = logs
	set := extensiontest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = s.tel.NewTelemetrySettings()
	set.Logger = zap.New(core)
	cfg := createDefaultConfig().(*filestorage.Config)
	cfg.Directory, cfg.Timeout = dir, 200*time.Millisecond
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	ext, err := NewFactory().Create(t.Context(), set, cfg)
	require.NoError(t, err)
	s.Extension = ext.(storage.Extension)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() {
		require.NoError(t, ext.Shutdown(context.Background()))
		require.NoError(t, s.tel.Shutdown(context.Background()))
	})
	return s
}

func (s *started) client(t *testing.T) storage.Client {
	t.Helper()
	c, err := s.GetClient(t.Context(), component.KindReceiver, owner, "")
	require.NoError(t, err)
	return c
}

// fill stores a state of some pages and returns its file.
func fill(t *testing.T, dir string) string {
	t.Helper()
	s := start(t, dir, nil)
	c := s.client(t)
	for i := range 100 {
		require.NoError(t, c.Set(t.Context(), fmt.Sprintf("key%d", i), bytes.Repeat([]byte("v"), 100*i)))
	}
	require.NoError(t, c.Close(t.Context()))
	return files(t, dir)[0]
}

func files(t *testing.T, dir string) (paths []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths
}

func TestDefaultConfig_FSync(t *testing.T) {
	assert.True(t, createDefaultConfig().(*filestorage.Config).FSync)
}

func TestGetClient_SoundFile(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	s := start(t, dir, nil)
	c := s.client(t)
	v, err := c.Get(t.Context(), "key7")
	require.NoError(t, err)
	assert.Len(t, v, 700)
	seen := 0
	require.NoError(t, c.(storage.Walker).Walk(t.Context(), func(string, []byte) ([]*storage.Operation, error) {
		seen++
		return nil, nil
	}))
	assert.Equal(t, 100, seen)
	require.NoError(t, c.Close(t.Context()))
	assert.Len(t, files(t, dir), 1)
	assert.Empty(t, s.logs.All())
}

// damages are what a power failure, a full disk or a person can do to a file.
var damages = map[string]func(b []byte) []byte{
	"truncated to 0":       func([]byte) []byte { return nil },
	"truncated to half":    func(b []byte) []byte { return b[:len(b)/2] },
	"truncated to odd":     func(b []byte) []byte { return b[:len(b)/3|1] },
	"page zeroed":          func(b []byte) []byte { return zeroTree(b) },
	"header zeroed":        func(b []byte) []byte { clear(b[:2*os.Getpagesize()]); return b },
	"garbage":              func(b []byte) []byte { return bytes.Repeat([]byte("garbage!"), len(b)/8) },
	"wrong magic":          func(b []byte) []byte { b[16]++; b[os.Getpagesize()+16]++; return b },
	"something else":       func([]byte) []byte { return []byte("not a database\n") },
	"pages in wrong order": func(b []byte) []byte { p := os.Getpagesize(); slices.Reverse(b[2*p:]); return b },
}

// zeroTree zeroes each page that has keys.
func zeroTree(b []byte) []byte {
	p := os.Getpagesize()
	for at := 2 * p; at < len(b); at += p {
		if b[at+8] == 1 || b[at+8] == 2 {
			clear(b[at : at+p])
		}
	}
	return b
}

func TestGetClient_DamagedFile(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := fill(t, dir)
			sound, err := os.ReadFile(path)
			require.NoError(t, err)
			damaged := damage(sound)
			require.NoError(t, os.WriteFile(path, damaged, 0o600))

			s := start(t, dir, nil)
			c := s.client(t)
			v, err := c.Get(t.Context(), "key7")
			require.NoError(t, err)
			assert.Nil(t, v)
			require.NoError(t, c.Set(t.Context(), "key7", []byte("new")))
			require.NoError(t, c.Close(t.Context()))

			have := files(t, dir)
			require.Len(t, have, 2)
			assert.Regexp(t, `receiver_gpuflog_a~002Fb\.\d{8}T\d{6}\.\d{9}Z\.damaged$`, have[1])
			kept, err := os.ReadFile(have[1])
			require.NoError(t, err)
			assert.True(t, bytes.Equal(damaged, kept), "the damaged file has changed")
			require.Equal(t, 1, s.logs.FilterMessageSnippet("state is damaged and was set aside").Len())
			metadatatest.AssertEqualExtensionFileStorageSetAside(t, s.tel,
				[]metricdata.DataPoint[int64]{{Value: 1}}, metricdatatest.IgnoreTimestamp())

			again := start(t, dir, nil)
			c = again.client(t)
			v, err = c.Get(t.Context(), "key7")
			require.NoError(t, err)
			assert.Equal(t, "new", string(v))
			require.NoError(t, c.Close(t.Context()))
			assert.Empty(t, again.logs.All())
		})
	}
}

func TestGetClient_KeepsSome(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "receiver_gpuflog_a~002Fb.mine.damaged")
	require.NoError(t, os.WriteFile(foreign, nil, 0o600))
	path := filepath.Join(dir, "receiver_gpuflog_a~002Fb")
	s := start(t, dir, nil)
	for i := range keptAside + 3 {
		require.NoError(t, os.WriteFile(path, []byte{byte(i)}, 0o600))
		require.NoError(t, s.client(t).Close(t.Context()))
	}
	var kept []byte
	for _, f := range files(t, dir) {
		if b, err := os.ReadFile(f); err == nil && len(b) == 1 {
			kept = append(kept, b...)
		}
	}
	assert.Equal(t, []byte{3, 4, 5}, kept, "the newest are kept, in the order of their names")
	assert.FileExists(t, foreign)
	assert.Equal(t, 3, s.logs.FilterMessageSnippet("removed the oldest").Len())
}

// TestGetClient_ClockSetBack has names that exist already.
func TestGetClient_ClockSetBack(t *testing.T) {
	now = func() time.Time { return time.Unix(1e9, 0) }
	defer func() { now = time.Now }()
	dir := t.TempDir()
	s := start(t, dir, nil)
	for i := range keptAside {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "receiver_gpuflog_a~002Fb"), []byte{byte(i)}, 0o600))
		require.NoError(t, s.client(t).Close(t.Context()))
	}
	assert.Len(t, files(t, dir), keptAside+1, "no file took the place of another")
}

// TestGetClient_Path compares the path that is checked with the file that contrib creates.
func TestGetClient_Path(t *testing.T) {
	for _, c := range []struct {
		kind     component.Kind
		id, name string
	}{
		{component.KindReceiver, "gpuflog", ""}, {component.KindProcessor, "a/b.c", "d/e~f g"},
		{component.KindExporter, "otlp/ü世", "traces"}, {component.KindExtension, "x/-._", ""},
		{component.KindConnector, "gpu_usage/1", ""}, {component.KindReceiver, "gpuflog/" + strings.Repeat("n", 230), ""},
		{component.KindReceiver, "gpuflog/" + strings.Repeat("n", 300), ""}, {component.KindReceiver, "gpuflog/" + strings.Repeat("ü", 60), "x"},
	} {
		t.Run(fmt.Sprintf("%.40s", c.kind.String()+" "+c.id+" "+c.name), func(t *testing.T) {
			dir := t.TempDir()
			s := start(t, dir, nil)
			var id component.ID
			require.NoError(t, id.UnmarshalText([]byte(c.id)))
			for range 2 { // The second time, the file is damaged.
				client, err := s.GetClient(t.Context(), c.kind, id, c.name)
				require.NoError(t, err)
				require.NoError(t, client.Close(t.Context()))
				path, err := s.Extension.(*fileStorage).path(c.kind, id, c.name)
				require.NoError(t, err)
				require.Contains(t, files(t, dir), path)
				require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
			}
			require.Len(t, files(t, dir), 2)
		})
	}
}

func TestGetClient_InUse(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"short": 200 * time.Millisecond, "no limit": 0} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first := start(t, dir, nil)
			c := first.client(t)
			second := start(t, dir, func(cfg *filestorage.Config) { cfg.Timeout = timeout })
			begin := time.Now()
			_, err := second.GetClient(t.Context(), component.KindReceiver, owner, "")
			took := time.Since(begin)
			require.EqualError(t, err, "lock "+filepath.Join(dir, "receiver_gpuflog_a~002Fb")+
				": in use by another Collector, or by this component in another pipeline: give each Collector a storage directory of its own")
			assert.Less(t, took, maxLockTimeout+5*time.Second)
			require.NoError(t, c.Set(t.Context(), "k", []byte("v")), "the first one goes on")
			require.NoError(t, c.Close(t.Context()))
			assert.Len(t, files(t, dir), 1, "a locked file is not damaged")
			require.NoError(t, second.client(t).Close(t.Context()))
		})
	}
}

func TestGetClient_NoRegularFile(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"FIFO":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "receiver_gpuflog_a~002Fb")
			require.NoError(t, create(path))
			_, err := start(t, dir, nil).GetClient(t.Context(), component.KindReceiver, owner, "")
			require.ErrorContains(t, err, "open "+path)
			assert.Len(t, files(t, dir), 1)
		})
	}
}

// TestBatch_Full fills a storage. A batch that reads and writes must read, one that only writes must fail.
func TestBatch_Full(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir, func(cfg *filestorage.Config) { cfg.MaxSize = 1 << 17 }).client(t)
	require.NoError(t, c.Set(t.Context(), "item", []byte("value")))
	big := bytes.Repeat([]byte("b"), 1<<20)
	require.ErrorIs(t, c.Set(t.Context(), "big", big), storage.ErrStorageFull)
	get := storage.GetOperation("item")
	require.NoError(t, c.Batch(t.Context(), storage.SetOperation("position", big), get))
	assert.Equal(t, "value", string(get.Value))
	v, err := c.Get(t.Context(), "position")
	require.NoError(t, err)
	assert.Nil(t, v, "nothing is half written")
	require.NoError(t, c.Close(t.Context()))
}
