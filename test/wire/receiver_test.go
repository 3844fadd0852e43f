// SPDX-License-Identifier: Apache-2.0

//go:build linux

package wire_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/bearertokenauthextension"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver"
)

// token is the receiver's token.
const token = "gpfl-test-token"

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// run starts the receiver in this process. stop ends it and is called at the end of the test at the
// latest.
func run(t *testing.T, store *testsink.Store, h host, settings map[string]any) (stop func()) {
	t.Helper()
	factory := gpuflogreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(settings).Unmarshal(cfg))
	set := receivertest.NewNopSettings(factory.Type())
	set.ID = component.NewID(factory.Type()) // the storage is keyed by the id
	ctx := context.Background()              // t.Context() ends before the cleanup
	traces, err := factory.CreateTraces(ctx, set, cfg, store.Traces())
	require.NoError(t, err)
	logs, err := factory.CreateLogs(ctx, set, cfg, store.Logs())
	require.NoError(t, err)
	metrics, err := factory.CreateMetrics(ctx, set, cfg, store.Metrics())
	require.NoError(t, err)
	components := []component.Component{traces, logs, metrics}
	for _, c := range components {
		require.NoError(t, c.Start(ctx, h))
	}
	done := false
	stop = func() {
		if done {
			return
		}
		done = true
		for _, c := range components {
			assert.NoError(t, c.Shutdown(ctx))
		}
	}
	t.Cleanup(stop)
	return stop
}

// listen starts the receiver with a token and a storage, as in config/gpuflog-http.yaml.
func listen(t *testing.T, store *testsink.Store, folder string) (address string, stop func()) {
	t.Helper()
	h := host{}
	auth := bearertokenauthextension.NewFactory()
	authConfig := auth.CreateDefaultConfig().(*bearertokenauthextension.Config)
	authConfig.BearerToken = token
	storage := filestorage.NewFactory()
	storageConfig := storage.CreateDefaultConfig().(*filestorage.Config)
	storageConfig.Directory = folder
	started := []component.Component{
		create(t, h, auth, authConfig), create(t, h, storage, storageConfig),
	}
	address = process.FreePort(t)
	end := run(t, store, h, map[string]any{
		"storage": "file_storage",
		"protocols": map[string]any{"http": map[string]any{
			"endpoint": address, "auth": map[string]any{"authenticator": "bearertokenauth"}, "channel_timeout": "2s",
		}},
	})
	done := false
	stop = func() {
		if done {
			return
		}
		done = true
		end()
		for _, c := range started {
			assert.NoError(t, c.Shutdown(context.Background()))
		}
	}
	t.Cleanup(stop)
	return address, stop
}

func create(t *testing.T, h host, f extension.Factory, cfg component.Config) component.Component {
	t.Helper()
	c, err := f.Create(context.Background(), extensiontest.NewNopSettings(f.Type()), cfg)
	require.NoError(t, err)
	require.NoError(t, c.Start(context.Background(), componenttest.NewNopHost()))
	h[component.NewID(f.Type())] = c
	return c
}

// followed returns the telemetry of files.
func followed(t *testing.T, include ...string) *testsink.Store {
	t.Helper()
	store := testsink.NewStore()
	stop := run(t, store, host{}, map[string]any{"include": include, "poll_interval": "50ms"})
	require.True(t, store.Settle(4*time.Second, time.Minute, func() bool { return store.Distinct().Spans > 0 }))
	stop()
	return store
}

// same checks that both stores have the same items.
func same(t *testing.T, want, got *testsink.Store) {
	t.Helper()
	got.Settle(time.Second, 20*time.Second, func() bool { return got.Distinct() == want.Distinct() })
	spans := func(s *testsink.Store) map[string]testsink.Digest {
		m := map[string]testsink.Digest{}
		for _, sp := range s.Spans() {
			m[sp.SpanKey.String()] = sp.Digest
		}
		return m
	}
	logs := func(s *testsink.Store) map[testsink.Digest]bool {
		m := map[testsink.Digest]bool{}
		for _, l := range s.LogRecords() {
			m[l.Digest] = true
		}
		return m
	}
	points := func(s *testsink.Store) map[testsink.Digest]bool {
		m := map[testsink.Digest]bool{}
		for _, p := range s.Points() {
			m[p.Digest] = true
		}
		return m
	}
	assert.True(t, maps.Equal(spans(want), spans(got)), "spans: want %d, got %d", want.Distinct().Spans, got.Distinct().Spans)
	assert.True(t, maps.Equal(logs(want), logs(got)), "logs: want %d, got %d", want.Distinct().Logs, got.Distinct().Logs)
	assert.True(t, maps.Equal(points(want), points(got)), "points: want %d, got %d", want.Distinct().Points, got.Distinct().Points)
}

// recording returns a folder of the recordings.
func recording(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(process.Recordings(t), name)
}

// copied copies a recording, for a client that writes next to it.
func copied(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		require.NoError(t, os.CopyFS(dir, os.DirFS(recording(t, name))))
	}
	return dir
}
