// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestKafka_TopicsMissing sends from an agent while the topics do not exist, on a broker that
// creates topics automatically. The agent waits. After an administrator creates the topics, all
// data arrives.
func TestKafka_TopicsMissing(t *testing.T) {
	parallel(t)
	k := launchKafka(t, "127.0.0.1", nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Address))
	require.NoError(t, err)
	defer client.Close()
	ask := func(do func(ctx context.Context) error) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return do(ctx) == nil
	}
	process.Eventually(t, 2*time.Minute, "the broker answers", func() bool { return ask(client.Ping) })

	s := sessionOf(t, some)
	agent := newCollector(t, "kafka.yaml", map[string]string{"GPUFLIGHT_KAFKA": k.Address, "GPUFLIGHT_LOGS": s.logs}, nil).run()
	process.Eventually(t, 2*time.Minute, "the agent finds no topic", func() bool {
		return strings.Contains(agent.process.Output(), "UNKNOWN_TOPIC_OR_PARTITION")
	})
	// A broker creates a topic some time after the request.
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		ask(func(ctx context.Context) error {
			request := kmsg.NewPtrMetadataRequest()
			request.Topics = nil // all
			answer, err := request.RequestWith(ctx, client)
			require.NoError(t, err)
			require.Empty(t, answer.Topics, "the agent made the broker create topics")
			return nil
		})
	}

	k.wait()
	store, backend := process.Sink(t, keys...)
	gateway := newCollector(t, "gateway.yaml", map[string]string{
		"GPUFLIGHT_KAFKA": k.Address, "GPUFLIGHT_OTLP_ENDPOINT": backend.Endpoint(),
	}, nil).run()
	arrived(t, s.want, store, 3*time.Minute)
	agent.stop()
	gateway.stop()
	same(t, "backend", s.want, store)
}
