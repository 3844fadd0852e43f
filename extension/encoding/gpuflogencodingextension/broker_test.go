// SPDX-License-Identifier: Apache-2.0

//go:build linux

package gpuflogencodingextension

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/kafkareceiver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/broker"
)

// TestOutOfARealTopic writes recordings into a topic of 4 partitions as GPU Flight's agent does, and reads
// them by the kafka receiver.
func TestOutOfARealTopic(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Kafka broker")
	}
	kafka := process.Binary{Env: "GPUFLIGHT_KAFKA", Path: ".tools/kafka/kafka", Make: "make .tools/kafka/kafka"}
	const folder = "c3-h200-minigpt"
	tp := readTopic(t, folder)
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
	for key, messages := range tp {
		var records []*kgo.Record
		for _, m := range messages {
			records = append(records, &kgo.Record{Topic: "gpu-trace-events", Key: []byte(filepath.Base(key)), Value: m})
		}
		require.NoError(t, client.ProduceSync(ctx, records...).FirstErr())
	}

	own, factory := NewFactory(), kafkareceiver.NewFactory()
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

	got := map[string]bool{}
	for _, s := range store.Spans() {
		got[s.SpanKey.String()] = true
		assert.Zero(t, s.Conflicts, "%s is always the same", s.SpanKey)
	}
	assert.Empty(t, difference(want, got))
	assert.Empty(t, difference(got, want))
}
