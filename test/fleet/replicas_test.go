// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/broker"
)

const spansTopic = "otlp_spans"

// cluster is three brokers. Each topic has one partition, three replicas and min.insync.replicas=2,
// as docs/deploying.md recommends for production.
type cluster struct {
	t       *testing.T
	brokers [3]*kafkaServer
}

// startCluster starts the brokers. After the session timeout a broker counts as failed, and a
// leader is replaced.
func startCluster(t *testing.T, session time.Duration) *cluster {
	t.Helper()
	c := &cluster{t: t}
	launcher := findKafka(t)
	var voters []string
	controllers := [3]string{}
	for i := range c.brokers {
		controllers[i] = process.FreePort(t)
		voters = append(voters, fmt.Sprintf("%d@%s", i+1, controllers[i]))
	}
	var formatted sync.WaitGroup
	for i := range c.brokers {
		k := &kafkaServer{t: t, Broker: broker.Broker{
			Launcher: launcher, Dir: t.TempDir(), Address: process.FreePort(t), Controller: controllers[i], Properties: map[string]string{
				"node.id":                                  strconv.Itoa(i + 1),
				"controller.quorum.voters":                 strings.Join(voters, ","),
				"num.partitions":                           "1",
				"default.replication.factor":               "3",
				"min.insync.replicas":                      "2",
				"offsets.topic.replication.factor":         "3",
				"transaction.state.log.replication.factor": "3",
				// A broker that is paused for some seconds stays in the set of in-sync replicas.
				"broker.session.timeout.ms": strconv.FormatInt(session.Milliseconds(), 10),
				"replica.lag.time.max.ms":   "120000",
			},
		}}
		c.brokers[i] = k
		formatted.Go(func() { assert.NoError(t, k.Format(t.Context())) })
	}
	formatted.Wait()
	for _, k := range c.brokers {
		k.launch()
	}
	for _, k := range c.brokers {
		k.wait()
	}
	return c
}

func (c *cluster) addresses() (all []string) {
	for _, k := range c.brokers {
		all = append(all, k.Address)
	}
	return all
}

func (c *cluster) client(options ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(c.addresses()...), kgo.AllowAutoTopicCreation())...)
	require.NoError(c.t, err)
	c.t.Cleanup(client.Close)
	return client
}

// signal sends a signal to a broker.
func (k *kafkaServer) signal(s syscall.Signal) {
	k.t.Helper()
	_, port, err := net.SplitHostPort(k.Address)
	require.NoError(k.t, err)
	matches, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(k.t, err)
	found := 0
	for _, path := range matches {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), k.Dir) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(k.t, err)
		require.NoError(k.t, syscall.Kill(pid, s))
		found++
	}
	require.Positive(k.t, found, "no process of the broker on port %s", port)
}

// TestReplicas_LeaderLost kills the leader of a partition before its followers have copied the
// agent's records. The followers are paused meanwhile, so only the leader has them. With
// config/kafka.yaml the agent retries them. The second case verifies the test: with required_acks:
// 1 the same fault loses acknowledged spans.
func TestReplicas_LeaderLost(t *testing.T) {
	for _, tt := range []struct {
		name    string
		overlay map[string]any
		loses   bool
	}{
		{name: "shipped"},
		{name: "required_acks 1", loses: true, overlay: map[string]any{"exporters": map[string]any{
			"kafka/files": map[string]any{"producer": map[string]any{"required_acks": 1}},
		}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.loses && os.Getenv("GPUFLIGHT_SOAK") == "" {
				t.Skip("a long test: set GPUFLIGHT_SOAK=1")
			}
			process.Collector.Find(t)
			s := sessionOf(t, some)
			want := s.want.Distinct().Spans
			// The session timeout must be longer than the pause of the followers, or the fault
			// loses nothing.
			session := 15 * time.Second
			if tt.loses {
				session = time.Minute
			}
			c := startCluster(t, session)
			producer := c.client(kgo.RequiredAcks(kgo.AllISRAcks()))
			for _, topic := range []string{spansTopic, "otlp_metrics", "otlp_logs"} {
				require.NoError(t, producer.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte{}}).FirstErr())
			}
			id, _, err := producer.PartitionLeader(spansTopic, 0)
			require.NoError(t, err)
			leader := c.brokers[id-1]

			logs := filepath.Join(t.TempDir(), "logs")
			require.NoError(t, os.Mkdir(logs, 0o755))
			agent := newCollector(t, "kafka.yaml", map[string]string{
				// Any broker may be lost before a client has the addresses of the others, so
				// configure all.
				"GPUFLIGHT_KAFKA": strings.Join(c.addresses(), ","), "GPUFLIGHT_LOGS": logs,
			}, tt.overlay)
			agent.run()
			for _, k := range c.brokers {
				if k != leader {
					k.signal(syscall.SIGSTOP)
				}
			}
			require.NoError(t, os.CopyFS(logs, os.DirFS(s.logs)))
			sent := func() int { return int(agent.total("otelcol_exporter_sent_spans", `exporter="kafka/files"`)) }
			if tt.loses {
				process.Eventually(t, 2*time.Minute, "acknowledged spans", func() bool { return sent() > 0 })
			} else {
				process.Eventually(t, 2*time.Minute, "bytes in the leader's log", func() bool {
					found, _ := filepath.Glob(filepath.Join(leader.Dir, "data", spansTopic+"-0", "*.log"))
					for _, path := range found {
						if info, err := os.Stat(path); err == nil && info.Size() > 1000 {
							return true
						}
					}
					return false
				})
				assert.LessOrEqual(t, sent(), 0, "spans counted as sent that only the leader has")
			}
			leader.kill()
			t.Logf("leader %d killed: %d spans acknowledged", id, sent())
			for _, k := range c.brokers {
				if k != leader {
					k.signal(syscall.SIGCONT)
				}
			}

			consumer := c.client(kgo.ConsumeTopics(spansTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			seen := map[testsink.SpanKey]bool{}
			limit := 3 * time.Minute
			quiet := time.Now() // of the last arrival
			for begin := time.Now(); time.Since(begin) < limit && len(seen) < want; {
				if tt.loses && sent() >= want && time.Since(quiet) > 20*time.Second && len(seen) > 0 {
					break
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				consumer.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
					td, err := (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(r.Value)
					require.NoError(t, err)
					for _, rs := range td.ResourceSpans().All() {
						for _, ss := range rs.ScopeSpans().All() {
							for _, sp := range ss.Spans().All() {
								seen[testsink.SpanKey{Trace: sp.TraceID(), Span: sp.SpanID()}] = true
								quiet = time.Now()
							}
						}
					}
				})
				cancel()
			}
			t.Logf("%d of %d spans are in the topic", len(seen), want)
			if tt.loses {
				assert.Less(t, len(seen), want, "the fault loses nothing, so it does not test required_acks")
			} else {
				assert.Equal(t, want, len(seen), "spans in the topic") //nolint:testifylint // Not all of them in a message.
			}
			agent.stop()
		})
	}
}

// TestGateway_KilledBeforeDelivery kills a gateway that has read records and delivered none,
// because the backend does not answer. With config/gateway.yaml the next gateway reads them again.
// The second case verifies the test: with message_marking after: false the group skips them.
func TestGateway_KilledBeforeDelivery(t *testing.T) {
	parallel(t)
	marking := map[string]any{"message_marking": map[string]any{"after": false}}
	for _, tt := range []struct {
		name    string
		overlay map[string]any
		loses   bool
	}{
		{name: "shipped"},
		{name: "after false", loses: true, overlay: map[string]any{"receivers": map[string]any{"kafka/traces": marking}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.loses && os.Getenv("GPUFLIGHT_SOAK") == "" {
				t.Skip("a long test: set GPUFLIGHT_SOAK=1")
			}
			f := newFleet(t, some)
			f.agent.run()
			process.Eventually(t, 2*time.Minute, "all spans in the topic", func() bool {
				return f.agent.total("otelcol_exporter_sent_spans", `exporter="kafka/files"`) >= float64(f.want.Distinct().Spans)
			})
			if tt.overlay != nil {
				f.gateway.add(tt.overlay)
			}
			f.backend.SetMode(testsink.Hang)
			f.gateway.run()
			process.Eventually(t, 2*time.Minute, "a request at the backend", func() bool { return f.backend.Answers(testsink.Hang) > 0 })
			time.Sleep(4 * time.Second) // the client commits marked offsets each second
			f.gateway.kill()
			require.Zero(t, f.store.Distinct().Spans)
			f.backend.SetMode(testsink.Accept)
			f.gateway.run()
			if tt.loses {
				f.store.Settle(15*time.Second, 2*time.Minute, func() bool { return f.store.Distinct().Spans > 0 })
				got, want := f.store.Distinct().Spans, f.want.Distinct().Spans
				assert.Less(t, got, want, "the fault loses nothing, so it does not test message_marking")
				t.Logf("%d of %d spans came", got, want)
				f.agent.stop()
				f.gateway.stop()
				return
			}
			f.finish()
		})
	}
}
