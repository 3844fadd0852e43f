// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package kafka_test reads GPU Flight's lines from a real Kafka broker by contrib's receiver and
// our encoding extension.
package kafka_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/kafkareceiver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/extension/encoding/gpuflogencodingextension"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver"
	"github.com/gpuflight/gpuflight/test/fleet/broker"
)

// host holds the extensions that a receiver requests.
type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// received returns the ids of the receiver's spans for a folder of logs.
func received(t *testing.T, folder string) map[string]bool {
	t.Helper()
	factory := gpuflogreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{
		"include": []any{folder}, "start_at": "beginning", "poll_interval": "20ms", "session_timeout": "1s",
	}).Unmarshal(cfg))
	store := testsink.NewStore()
	r, err := factory.CreateTraces(t.Context(), receivertest.NewNopSettings(factory.Type()), cfg, store.Traces())
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context(), componenttest.NewNopHost()))
	store.Settle(3500*time.Millisecond, 30*time.Second, func() bool { return store.Counts().Spans > 0 })
	require.NoError(t, r.Shutdown(context.Background()))
	return ids(store)
}

func ids(store *testsink.Store) map[string]bool {
	ids := map[string]bool{}
	for _, s := range store.Spans() {
		ids[s.SpanKey.String()] = true
	}
	return ids
}

// TestTopic_FourPartitions writes a recording into a topic of 4 partitions as GPU Flight's agent
// does: one line per message, with the channel as key. The spans must equal those of the files.
func TestTopic_FourPartitions(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Kafka broker")
	}
	kafka := process.Binary{Env: "GPUFLIGHT_KAFKA", Path: ".tools/kafka/kafka", Make: "make .tools/kafka/kafka"}
	folder := filepath.Join(process.Recordings(t), "c3-h200-minigpt")
	b := broker.Broker{
		Launcher: kafka.Find(t), Dir: t.TempDir(), Address: process.FreePort(t), Controller: process.FreePort(t),
		Properties: map[string]string{"num.partitions": "4"},
	}
	require.NoError(t, b.Format(t.Context()))
	server := process.Start(t, b.Launcher, b.Arguments()...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, b.Wait(ctx), "%s", server.Output())

	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address), kgo.AllowAutoTopicCreation())
	require.NoError(t, err)
	defer client.Close()
	var records []*kgo.Record
	process.Lines(t, folder, func(path string, line []byte) {
		value, err := json.Marshal(string(line))
		require.NoError(t, err)
		channel, _, _ := strings.Cut(filepath.Base(path), ".")
		records = append(records, &kgo.Record{Topic: "gpu-trace-events", Key: []byte(channel), Value: value})
	})
	require.NoError(t, client.ProduceSync(ctx, records...).FirstErr())

	own, factory := gpuflogencodingextension.NewFactory(), kafkareceiver.NewFactory()
	ext, err := own.Create(ctx, extensiontest.NewNopSettings(own.Type()), own.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, ext.Start(ctx, host{}))
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{
		"brokers": []any{b.Address}, "group_id": "traces", "initial_offset": "earliest",
		"traces": map[string]any{"topics": []any{"gpu-trace-events"}, "encoding": own.Type().String()},
	}).Unmarshal(cfg))
	store := testsink.NewStore()
	r, err := factory.CreateTraces(ctx, receivertest.NewNopSettings(factory.Type()), cfg, store.Traces())
	require.NoError(t, err)
	require.NoError(t, r.Start(ctx, host{component.NewID(own.Type()): ext}))
	want := received(t, folder)
	store.Settle(time.Second, 30*time.Second, func() bool { return len(store.Spans()) >= len(want) })
	require.NoError(t, r.Shutdown(context.Background()))
	require.NoError(t, ext.Shutdown(context.Background()))

	for _, s := range store.Spans() {
		assert.Zero(t, s.Conflicts, "%s differs between deliveries", s.SpanKey)
	}
	assert.Equal(t, want, ids(store))
}
