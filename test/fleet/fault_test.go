// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// fleet is agent, broker and gateway with a backend that can simulate faults.
type fleet struct {
	t       *testing.T
	logs    string
	want    *testsink.Store
	kafka   *kafkaServer
	agent   *collector
	gateway *collector
	store   *testsink.Store
	backend *testsink.Server
}

// newFleet starts a broker and prepares everything except agent and gateway, which the test starts.
func newFleet(t *testing.T, kernels int64) *fleet {
	t.Helper()
	return newFleetWith(t, kernels, func() *kafkaServer { return launchKafka(t, "127.0.0.1", nil) })
}

// newFleetWith is newFleet with another broker.
func newFleetWith(t *testing.T, kernels int64, launch func() *kafkaServer) *fleet {
	t.Helper()
	process.Collector.Find(t)
	f := &fleet{t: t, kafka: launch()}
	s := sessionOf(t, kernels)
	f.logs, f.want = s.logs, s.want
	f.kafka.wait()
	f.store, f.backend = process.Sink(t, keys...)
	f.agent = newCollector(t, "kafka.yaml", map[string]string{"GPUFLIGHT_KAFKA": f.kafka.Address, "GPUFLIGHT_LOGS": f.logs}, nil)
	f.gateway = newCollector(t, "gateway.yaml", map[string]string{
		"GPUFLIGHT_KAFKA": f.kafka.Address, "GPUFLIGHT_OTLP_ENDPOINT": f.backend.Endpoint(),
		// As config/gateway.yaml recommends for a gateway that restarts in place.
		"GPUFLIGHT_INSTANCE": "gateway-0",
	}, nil)
	return f
}

// share waits until the backend has the given part of the spans.
func (f *fleet) share(part float64) {
	f.t.Helper()
	n := int(part * float64(f.want.Distinct().Spans))
	process.Eventually(f.t, pick(5*time.Minute, 30*time.Minute), "spans at the backend", func() bool { return f.store.Distinct().Spans >= n })
}

// finish waits for the remaining spans, stops all processes and compares.
func (f *fleet) finish() {
	f.t.Helper()
	arrived(f.t, f.want, f.store, pick(5*time.Minute, 30*time.Minute))
	f.agent.stop()
	f.gateway.stop()
	same(f.t, "backend", f.want, f.store)
	f.agent.bounded(agentMemory)
	f.gateway.bounded(gatewayMemory)
	f.t.Logf("%+v distinct, %d spans in all; %v; %v", f.store.Distinct(), f.store.Counts().Spans, f.agent, f.gateway)
}

func TestBroker_Killed(t *testing.T) {
	parallel(t)
	f := newFleet(t, pick(most, 1_000_000))
	f.gateway.run()
	f.agent.run()
	times := pick(2, 10)
	for i := range times {
		f.share(0.8 * float64(i+1) / float64(times+1))
		before := f.store.Distinct().Spans
		f.kafka.kill()
		time.Sleep(pick(3*time.Second, 30*time.Second))
		require.Less(t, f.store.Distinct().Spans, f.want.Distinct().Spans, "it must come in the middle of the work")
		f.kafka.start()
		t.Logf("killed with %d spans at the backend", before)
	}
	f.finish()
}

// TestGateway_KilledMidBatch kills a gateway twenty times: half during start-up, half while records
// are in flight to the backend.
func TestGateway_KilledMidBatch(t *testing.T) {
	parallel(t)
	f := newFleet(t, pick(most, 600_000))
	f.agent.run()
	f.killAgainAndAgain(f.gateway, 20)
	f.gateway.run()
	f.finish()
}

// TestAgent_KilledRepeatedly does the same to an agent that reads files.
func TestAgent_KilledRepeatedly(t *testing.T) {
	parallel(t)
	f := newFleet(t, pick(most, 600_000))
	f.gateway.run()
	f.killAgainAndAgain(f.agent, 20)
	f.agent.run()
	f.finish()
}

// killAgainAndAgain starts and kills a collector the given number of times. At least half of the
// kills must precede the end of the work.
func (f *fleet) killAgainAndAgain(c *collector, kills int) {
	f.t.Helper()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	f.t.Logf("seed of the moments of death: %d", seed)
	inMiddle := 0
	for i := range kills {
		before := f.store.Counts()
		c.start()
		if i%2 == 0 {
			time.Sleep(time.Duration(50+random.IntN(600)) * time.Millisecond)
		} else {
			for end := time.Now().Add(20 * time.Second); f.store.Counts() == before && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		}
		c.kill()
		if f.store.Distinct().Spans < f.want.Distinct().Spans {
			inMiddle++
		}
	}
	require.GreaterOrEqual(f.t, inMiddle, kills/2, "most deaths must come in the middle of the work")
	f.t.Logf("%d of %d kills in the middle of the work", inMiddle, kills)
}

func TestBackendDown(t *testing.T) {
	parallel(t)
	f := newFleet(t, pick(most, 600_000))
	f.gateway.run()
	f.agent.run()
	f.share(0.05)
	// Neither an answer nor an open port, as after a crash of the machine.
	address := f.backend.Endpoint()
	require.NoError(t, f.backend.Close())
	down := f.store.Distinct().Spans
	require.Less(t, down, f.want.Distinct().Spans, "it must come in the middle of the work")
	time.Sleep(pick(10*time.Second, 2*time.Minute))
	assert.Equal(t, down, f.store.Distinct().Spans, "nothing arrives while the backend is down")
	again, err := testsink.Listen(f.store, address)
	require.NoError(t, err)
	f.backend = again
	t.Cleanup(func() { assert.NoError(t, again.Close()) })
	f.finish()
}

// program acts as a program that sends OTLP to the agent and retries rejected requests. It is a
// Collector that reads logs and stores only its position.
func (f *fleet) program(logs string) *process.Process {
	f.t.Helper()
	return process.CollectorConfig{
		Include: []string{logs}, Endpoint: f.agent.env["GPUFLIGHT_LISTEN"], Storage: filepath.Join(f.t.TempDir(), "storage"),
	}.Start(f.t)
}

// TestAgent_QueueFull limits the agent's queue to a part of the data of a program while the broker
// is unavailable. The program must wait.
func TestAgent_QueueFull(t *testing.T) {
	parallel(t)
	f := newFleet(t, pick(few, 400_000))
	const quota = 5_000_000
	f.agent.env["GPUFLIGHT_QUEUE_BYTES"] = "5000000"
	f.agent.env["GPUFLIGHT_LOGS"] = t.TempDir()
	f.kafka.kill()
	f.agent.run()
	program := f.program(f.logs)
	process.Eventually(t, 2*time.Minute, "the queue refuses", func() bool {
		return f.agent.total("otelcol_exporter_enqueue_failed_spans", "") > 0
	})
	time.Sleep(pick(5*time.Second, time.Minute))
	queued := f.agent.total("otelcol_exporter_queue_size", `data_type="traces",exporter="kafka/once"`)
	assert.Positive(t, queued)
	assert.LessOrEqual(t, queued, float64(quota))
	// One queue per signal, and the overhead of the database.
	assert.Less(t, f.agent.stored(), int64(3*3*quota), "bytes in the agent's folder")
	t.Logf("%.0f bytes queued, %d on disk, %.0f refused", queued, f.agent.stored(),
		f.agent.total("otelcol_exporter_enqueue_failed_spans", ""))
	f.kafka.start()
	f.gateway.run()
	f.finish()
	program.Stop(20 * time.Second)
}

// TestAgent_NewMachine kills an agent that has a backlog, from a program and from files, for an
// unavailable broker. It starts another agent on copies of the storage folder and the logs. The
// original files no longer exist.
func TestAgent_NewMachine(t *testing.T) {
	parallel(t)
	kernels := pick(few, 200_000)
	f := newFleet(t, kernels)
	f.logs = sessionOf(t, kernels).copied(t)
	f.agent.env["GPUFLIGHT_LOGS"] = f.logs
	sent := filepath.Join(t.TempDir(), "sent")
	generate(t, sent, "program", 9, kernels)
	fromProgram := undisturbed(t, kernels, sent)
	f.want = undisturbed(t, 2*kernels, f.logs, sent)
	// Before that, a part of the files is sent to the broker.
	f.gateway.run()
	f.agent.run()
	process.Eventually(t, 2*time.Minute, "some spans at the backend", func() bool { return f.store.Distinct().Spans > 0 })
	f.kafka.kill()
	program := f.program(sent)
	process.Eventually(t, 2*time.Minute, "all that the program sent is on disk", func() bool {
		return f.agent.total("otelcol_receiver_accepted_spans", `receiver="otlp"`) >= float64(fromProgram.Distinct().Spans) &&
			f.agent.total("otelcol_receiver_accepted_log_records", `receiver="otlp"`) >= float64(fromProgram.Distinct().Logs)
	})
	program.Stop(20 * time.Second)
	require.Less(t, f.store.Distinct().Spans, f.want.Distinct().Spans, "it must come in the middle of the work")
	f.agent.kill()

	machine := t.TempDir()
	logs, state := filepath.Join(machine, "logs"), filepath.Join(machine, "state")
	require.NoError(t, os.CopyFS(logs, os.DirFS(f.logs)))
	require.NoError(t, os.CopyFS(state, os.DirFS(f.agent.state)))
	require.NoError(t, os.RemoveAll(f.logs))
	require.NoError(t, os.RemoveAll(f.agent.state))
	f.agent.state, f.agent.env["GPUFLIGHT_LOGS"] = state, logs
	f.kafka.start()
	f.agent.run()
	f.finish()
}

// TestGateway_InvalidRecords puts unreadable records, also an empty one, between those of the agent
// into the topics. They are counted, and later records arrive.
func TestGateway_InvalidRecords(t *testing.T) {
	parallel(t)
	f := newFleet(t, some)
	client, err := kgo.NewClient(kgo.SeedBrokers(f.kafka.Address), kgo.AllowAutoTopicCreation(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	const bad = 3
	for _, topic := range []string{"otlp_spans", "otlp_metrics", "otlp_logs"} {
		for partition := range int32(6) {
			for range bad {
				require.NoError(t, client.ProduceSync(t.Context(),
					&kgo.Record{Topic: topic, Partition: partition, Value: []byte("not OTLP\x00\xff")},
					&kgo.Record{Topic: topic, Partition: partition, Value: []byte{}},
					&kgo.Record{Topic: topic, Partition: partition, Key: []byte("tombstone")},
				).FirstErr())
			}
		}
	}
	archive := startS3(t)
	s3 := newCollector(t, "archive.yaml", map[string]string{
		"GPUFLIGHT_KAFKA": f.kafka.Address, "GPUFLIGHT_S3_ENDPOINT": archive.url, "GPUFLIGHT_S3_FLUSH": "1s",
	}, nil).run()
	f.gateway.run()
	for _, c := range []*collector{f.gateway, s3} {
		for _, metric := range []string{"spans", "metric_points", "log_records"} {
			process.Eventually(t, 2*time.Minute, metric+" that are none are counted by "+c.String(), func() bool {
				return c.total("otelcol_kafka_receiver_unmarshal_failed_"+metric, "") == 6*bad
			})
		}
	}
	f.agent.run()
	inS3 := testsink.NewStore(keys...)
	process.Eventually(t, 2*time.Minute, "all spans in S3", func() bool {
		time.Sleep(300 * time.Millisecond)
		inS3 = testsink.NewStore(keys...)
		for _, o := range archive.objects() {
			decode(t, inS3, signal(t, o.key), o.body)
		}
		return inS3.Distinct().Spans >= f.want.Distinct().Spans && inS3.Distinct().Logs >= f.want.Distinct().Logs
	})
	s3.stop()
	same(t, "S3", f.want, inS3)
	f.finish()
}

// withoutKafka prepares a gateway that accepts only OTLP.
func withoutKafka(t *testing.T, backend string) *collector {
	t.Helper()
	return newCollector(t, "gateway.yaml", map[string]string{"GPUFLIGHT_OTLP_ENDPOINT": backend},
		map[string]any{"service": map[string]any{"pipelines": map[string]any{
			"traces":  map[string]any{"receivers": []string{"otlp"}},
			"metrics": map[string]any{"receivers": []string{"otlp", "gpu_usage"}},
			"logs":    map[string]any{"receivers": []string{"otlp"}},
		}}})
}

// TestDirect_WithoutKafka sends from agents to the gateway over OTLP and kills the gateway
// meanwhile.
func TestDirect_WithoutKafka(t *testing.T) {
	parallel(t)
	process.Collector.Find(t)
	s := sessionOf(t, pick(most, 400_000))
	f := &fleet{t: t, logs: s.logs, want: s.want}
	f.store, f.backend = process.Sink(t, keys...)
	f.gateway = withoutKafka(t, f.backend.Endpoint())
	f.agent = newCollector(t, "agent.yaml", map[string]string{
		"GPUFLIGHT_LOGS": f.logs, "GPUFLIGHT_OTLP_ENDPOINT": f.gateway.env["GPUFLIGHT_LISTEN"],
	}, nil)
	f.agent.run()
	f.killAgainAndAgain(f.gateway, pick(5, 20))
	f.gateway.run()
	f.finish()
}

// TestStop_NextUnavailable stops a gateway without its backend, and an agent without its broker.
// The gateway exits. The agent may have to be killed, as systemd does, because Kafka's client waits
// for answers. In both cases nothing is lost.
func TestStop_NextUnavailable(t *testing.T) {
	parallel(t)
	f := newFleet(t, few)
	f.logs = sessionOf(t, few).copied(t)
	f.agent.env["GPUFLIGHT_LOGS"] = f.logs
	address := f.backend.Endpoint()
	require.NoError(t, f.backend.Close())
	f.agent.run()
	f.gateway.run()
	process.Eventually(t, 2*time.Minute, "the gateway has read something that it cannot send", func() bool {
		return f.gateway.total("otelcol_kafka_receiver_records", "") > 0
	})
	f.gateway.stop()

	f.kafka.kill()
	generate(t, f.logs, "later", 9, some)
	f.want = undisturbed(t, few+some, f.logs)
	process.Eventually(t, 2*time.Minute, "the agent has something that it cannot send", func() bool {
		return strings.Contains(f.agent.process.Output(), "unable to open connection to broker")
	})
	f.agent.terminate()
	require.Zero(t, f.store.Counts(), "the backend was never there")

	f.kafka.start()
	again, err := testsink.Listen(f.store, address)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, again.Close()) })
	f.agent.run()
	f.gateway.run()
	f.finish()
}
