// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hostile_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/broker"
)

// kafkaConfig reads GPU Flight's messages from one topic, with the delivery of config/gateway.yaml.
const kafkaConfig = `
extensions:
  gpuflog_encoding: {}
receivers:
  kafka/traces: &kafka
    brokers: %q
    group_id: traces
    initial_offset: earliest
    traces: {topics: [gpu-events], encoding: gpuflog_encoding}
    error_backoff: {enabled: true, initial_interval: 100ms, max_interval: 5s, max_elapsed_time: 0s}
  kafka/metrics:
    <<: *kafka
    group_id: metrics
    traces: {}
    metrics: {topics: [gpu-events], encoding: gpuflog_encoding}
processors:
  memory_limiter: {check_interval: 1s, limit_mib: 800, spike_limit_mib: 200}
exporters:
  otlp_grpc:
    endpoint: %s
    tls: {insecure: true}
    sending_queue:
      wait_for_result: true
      batch: {sizer: bytes, min_size: 0, max_size: 3000000, flush_timeout: 200ms}
service:
  extensions: [gpuflog_encoding]
  pipelines:
    traces: {receivers: [kafka/traces], processors: [memory_limiter], exporters: [otlp_grpc]}
    metrics: {receivers: [kafka/metrics], processors: [memory_limiter], exporters: [otlp_grpc]}
  telemetry:
    metrics:
      readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %s}}}}]
`

// TestKafka_ExpandingLine reads messages with lines that expand, and ten small sessions behind
// them.
func TestKafka_ExpandingLine(t *testing.T) {
	for _, senders := range []int{1, 10, 64} {
		t.Run(fmt.Sprintf("%d partitions", senders), func(t *testing.T) {
			if senders == 10 && os.Getenv("GPUFLIGHT_SOAK") == "" {
				t.Skip("a long test: set GPUFLIGHT_SOAK=1")
			}
			expandingMessages(t, senders)
		})
	}
}

// expandingMessages sends a line of 20 MB to each of so many partitions.
func expandingMessages(t *testing.T, senders int) {
	launcher := process.Binary{Env: "GPUFLIGHT_KAFKA", Path: ".tools/kafka/kafka", Make: "make .tools/kafka/kafka"}.Find(t)
	collectorPath := process.Collector.Find(t)
	b := broker.Broker{
		Launcher: launcher, Dir: t.TempDir(), Address: process.FreePort(t), Controller: process.FreePort(t),
		Properties: map[string]string{"num.partitions": strconv.Itoa(senders)},
	}
	require.NoError(t, b.Format(t.Context()))
	server := process.Start(t, b.Launcher, b.Arguments()...)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	require.NoError(t, b.Wait(ctx), "%s", server.Output())

	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address), kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(-1),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	produce := func(content []byte) {
		record := &kgo.Record{Topic: "gpu-events", Value: compressed(t, content)}
		require.NoError(t, client.ProduceSync(ctx, record).FirstErr())
	}
	const expanding, perMessage = 2, 8 * 4 * 8192
	for i := range senders {
		produce(deviceLine(fmt.Sprintf("too-large-%d", i), 20e6))
	}
	for i := range expanding {
		line := deviceLine(fmt.Sprintf("large-%d", i), 12e6)
		require.Greater(t, points(line), int64(perMessage))
		produce(line)
	}
	for i := range 10 {
		produce(smallSession(fmt.Sprintf("small-%d", i)))
	}

	c := &collector{backend: startBackend(t), metrics: process.FreePort(t), state: t.TempDir()}
	_, port, err := net.SplitHostPort(c.metrics)
	require.NoError(t, err)
	config := filepath.Join(t.TempDir(), "kafka.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, kafkaConfig, b.Address, c.backend.address, port), 0o600))
	// The variable marks the process for peak.
	c.process = process.Start(t, "/usr/bin/env", "GPUFLIGHT_STATE="+c.state, collectorPath, "--config", config)
	c.process.WaitOutput(process.Ready, time.Minute)
	// Both signals read all messages; only metrics expand.
	rejects := func(reason string) float64 {
		return c.metric(t, "otelcol_extension_gpuflog_rejects", `reason="`+reason+`"`)
	}
	// The extension's clock is that of messages: a session waits for its other channels until
	// channel_timeout, so messages must continue.
	next := 10
	began := time.Now()
	process.Eventually(t, 2*time.Minute, "all messages are read", func() bool {
		produce(smallSession(fmt.Sprintf("small-%d", next)))
		next++
		time.Sleep(200 * time.Millisecond)
		return rejects("too_large") >= float64(2*senders) && rejects("expands") >= expanding && c.backend.spans.Load() >= 10
	})
	peak := c.peak(t)
	got := c.backend.points.Load()
	took := time.Since(began)
	began = time.Now()
	c.process.Stop(15 * time.Second)
	t.Logf("peak %d MiB; all read, and ten small sessions served, in %v; %d data points of %d messages; stopped in %v",
		peak>>20, took.Round(time.Millisecond), got, expanding, time.Since(began).Round(time.Millisecond))
	// The memory limiter of this configuration, since 64 lines of 20 MB are fetched beside the decoding.
	assert.Less(t, peak, int64(800<<20))
	assert.Positive(t, got)
	assert.LessOrEqual(t, got, int64(expanding*(perMessage+9*4*64)), "a message returns at most eight full batches, and the last rows")
}
