// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/clickstore"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/broker"
)

// memory returns a store in memory with the data.
func (s telemetry) memory(t *testing.T) *storetest.Memory {
	t.Helper()
	m, d := storetest.NewMemory(), &rows.Decoder{}
	write := func(batches []*store.Batch) {
		_, err := m.Write(t.Context(), batches)
		require.NoError(t, err)
	}
	for _, td := range s.traces {
		write(d.Traces("", td))
	}
	for _, ld := range s.logs {
		write(d.Logs("", ld))
	}
	for _, md := range s.metrics {
		write(d.Metrics("", md))
	}
	return m
}

// store opens the store of the Collector.
func (d *database) store() *clickstore.Store {
	d.t.Helper()
	s, err := clickstore.Open(d.t.Context(), clickstore.Config{Endpoint: d.front.URL(), Username: user, Password: password, Database: d.name})
	require.NoError(d.t, err)
	d.t.Cleanup(func() { assert.NoError(d.t, s.Close(context.Background())) })
	return s
}

// counts returns the rows of all sessions.
func counts(t *testing.T, s store.Reader) (n int64) {
	t.Helper()
	sessions, err := s.Sessions(t.Context(), store.SessionQuery{Limit: 1000})
	require.NoError(t, err)
	for i := range sessions {
		for _, c := range sessions[i].Counts {
			n += c
		}
	}
	return n
}

// TestCollector_Store sends recordings to config/clickhouse.yaml twice, meanwhile kills the engine and
// drops answers, and compares all answers of the store, before and after sealing.
func TestCollector_Store(t *testing.T) {
	var sent telemetry
	for _, name := range []string{"c3-h200-scopes", "a2-h200"} {
		sent = sent.and(read(t, filepath.Join(process.Recordings(t), name), 50))
	}
	sent = sent.and(generate(t, 8, 300))
	d := startEmpty(t, "gpu")
	address := process.FreePort(t)
	p := d.collect(nil, overOTLP(address))
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	d.front.LoseAnswers(3)
	require.NoError(t, sent.send(ctx, address))
	assert.Zero(t, d.front.Unanswered())
	d.crash()
	done := make(chan error, 1)
	go func() { done <- sent.send(ctx, address) }()
	p.WaitOutput("connection refused", waitLimit)
	d.listen()
	require.NoError(t, <-done)
	answer, err := http.Get("http://" + d.ui + "/api/v1/sessions")
	require.NoError(t, err)
	page, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode, "%s", page)
	p.Stop(30 * time.Second)

	s, want := d.store(), sent.memory(t)
	storetest.Compare(t, s, want)
	sessions, err := s.Sessions(t.Context(), store.SessionQuery{})
	require.NoError(t, err)
	require.Greater(t, len(sessions), 2)
	for i := range sessions {
		assert.Contains(t, string(page), sessions[i].ID)
		require.NoError(t, want.Seal(t.Context(), "", sessions[i].ID))
		for range 2 {
			require.NoError(t, s.Seal(t.Context(), "", sessions[i].ID))
		}
	}
	storetest.Compare(t, s, want)
}

// TestCollector_FromKafka runs config/clickhouse.yaml unchanged.
func TestCollector_FromKafka(t *testing.T) {
	launcher := process.Binary{Env: "GPUFLIGHT_KAFKA", Path: ".tools/kafka/kafka", Make: "make .tools/kafka/kafka"}.
		FindFetched(t, "no mvn here to fetch Kafka with", "mvn")
	b := broker.Broker{Launcher: launcher, Dir: t.TempDir(), Address: process.FreePort(t), Controller: process.FreePort(t)}
	require.NoError(t, b.Format(t.Context()))
	server := process.Start(t, launcher, b.Arguments()...)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	require.NoError(t, b.Wait(ctx), "%s", server.Output())

	sent := generate(t, 6, 2000).pieces(100)
	want := sent.memory(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address), kgo.AllowAutoTopicCreation())
	require.NoError(t, err)
	defer client.Close()
	produce := func(topic string, value []byte, err error) {
		t.Helper()
		require.NoError(t, err)
		require.NoError(t, client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: value}).FirstErr())
	}
	produce("otlp_spans", []byte("no OTLP"), nil)
	for _, td := range sent.traces {
		value, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(td)
		produce("otlp_spans", value, err)
	}
	for _, ld := range sent.logs {
		value, err := (&plog.ProtoMarshaler{}).MarshalLogs(ld)
		produce("otlp_logs", value, err)
	}
	for _, md := range sent.metrics {
		value, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
		produce("otlp_metrics", value, err)
	}

	d := startEmpty(t, "")
	p := d.collect(map[string]string{"GPUFLIGHT_KAFKA": b.Address}, nil)
	s := d.store()
	process.Eventually(t, waitLimit, "all rows", func() bool { return counts(t, s) >= counts(t, want) })
	p.Stop(30 * time.Second)
	storetest.Compare(t, s, want)
	server.Kill()
}
