// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package fleet_test runs the topologies of config/ with the real servers (a Kafka broker, an S3
// server and Jaeger) and injects faults. Brokers and gateways are killed, backends are unavailable,
// disks fill, networks and clocks fail. At the end the backend must have exactly the spans of one
// undisturbed run, and no process may have exceeded its memory limit. Other tests cover tail
// sampling, certificates and an agent with all receivers.
//
// By default the faults are short. GPUFLIGHT_SOAK=1 selects the durations of docs/deploying.md.
package fleet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// Memory limits of a process. The limits of memory_limiter in kafka.yaml and gateway.yaml are 400
// and 800 MiB of heap. These values add the program itself and its buffers.
const (
	agentMemory   = 600 << 20
	gatewayMemory = 700 << 20
)

// keys are the attributes that the checks need.
var keys = []string{"cuda.operation"}

// long reports whether faults have their full duration.
func long() bool { return os.Getenv("GPUFLIGHT_SOAK") != "" }

// pick returns the first value, or the second with GPUFLIGHT_SOAK=1.
func pick[T any](quick, full T) T {
	if long() {
		return full
	}
	return quick
}

// parallel runs a test in parallel with others, because each mostly waits. With GPUFLIGHT_SOAK=1
// tests run sequentially.
func parallel(t *testing.T) {
	t.Helper()
	if !long() {
		t.Parallel()
	}
}

// ids returns the distinct spans of a store with their names.
func ids(store *testsink.Store) map[testsink.SpanKey]string {
	out := map[testsink.SpanKey]string{}
	for _, sp := range store.Spans() {
		out[sp.SpanKey] = fmt.Sprintf("%v %q of %s", sp.Attrs["cuda.operation"], sp.Name, sp.App)
	}
	return out
}

// same compares spans and log records of two stores by identity; got may have repeated items. It
// compares log records only if want has some.
func same(t *testing.T, what string, want, got *testsink.Store) {
	t.Helper()
	w, g := ids(want), ids(got)
	lost, invented := 0, 0
	for key, name := range w {
		if _, ok := g[key]; !ok {
			if lost++; lost <= 5 {
				t.Errorf("%s: lost %s", what, name)
			}
		}
	}
	for key, name := range g {
		if _, ok := w[key]; !ok {
			if invented++; invented <= 5 {
				t.Errorf("%s: unexpected %s", what, name)
			}
		}
	}
	assert.Zero(t, lost, "%s: spans lost of %d", what, len(w))
	assert.Zero(t, invented, "%s: spans invented", what)
	assert.Equal(t, want.Distinct().Logs, got.Distinct().Logs, "%s: log records", what)
}

// arrived waits until a backend has all distinct spans and log records, and a moment longer for
// unexpected ones. A timeout is reported, because data still in flight is not lost.
func arrived(t *testing.T, want, got *testsink.Store, limit time.Duration) {
	t.Helper()
	w := want.Distinct()
	in := got.Settle(time.Second, limit, func() bool {
		have := got.Distinct()
		return have.Spans >= w.Spans && have.Logs >= w.Logs
	})
	if !in {
		t.Errorf("not complete within %v: %+v of %+v", limit, got.Distinct(), w)
	}
}

// TestFleet_KafkaJaegerS3 tests the complete topology: an agent on the machine with the logs,
// Kafka, a gateway that feeds Jaeger, and an archive in S3.
func TestFleet_KafkaJaegerS3(t *testing.T) {
	parallel(t)
	findKafka(t)
	versitygw.Find(t)
	process.Jaeger.Find(t)
	k := launchKafka(t, "127.0.0.1", nil)
	archive := startS3(t)
	j := process.StartJaeger(t, 0)
	var logs []string
	// The folders golden-* share a session id, so use only one.
	for _, name := range []string{"a2-h200", "c2-h200-engines", "c3-h200-minigpt", "c3-h200-scopes", "golden-c3-rotated"} {
		logs = append(logs, filepath.Join(process.Recordings(t), name))
	}
	want := undisturbed(t, 1, logs...)
	k.wait()
	gateway := newCollector(t, "gateway.yaml", map[string]string{
		"GPUFLIGHT_KAFKA": k.Address, "GPUFLIGHT_OTLP_ENDPOINT": j.OTLP,
	}, map[string]any{"service": map[string]any{"pipelines": map[string]any{
		// Jaeger accepts traces only.
		"metrics": map[string]any{"exporters": []string{"nop"}},
		"logs":    map[string]any{"exporters": []string{"nop"}},
	}}, "exporters": map[string]any{"nop": nil}}).run()
	s3 := newCollector(t, "archive.yaml", map[string]string{
		"GPUFLIGHT_KAFKA": k.Address, "GPUFLIGHT_S3_ENDPOINT": archive.url, "GPUFLIGHT_S3_FLUSH": "1s",
	}, nil).run()
	agent := newCollector(t, "kafka.yaml", map[string]string{"GPUFLIGHT_KAFKA": k.Address},
		map[string]any{"receivers": map[string]any{"gpuflog": map[string]any{"include": logs}}}).run()

	services := map[string]bool{}
	for _, sp := range want.Spans() {
		services[sp.App] = true
	}
	var inJaeger *testsink.Store
	process.Eventually(t, 2*time.Minute, fmt.Sprintf("%d spans in Jaeger", want.Distinct().Spans), func() bool {
		time.Sleep(300 * time.Millisecond) // each query fetches everything
		inJaeger = testsink.NewStore(keys...)
		for service := range services {
			readJaeger(t, inJaeger, j.API, service)
		}
		return inJaeger.Distinct().Spans >= want.Distinct().Spans
	})
	var inS3 *testsink.Store
	objects := 0
	process.Eventually(t, 2*time.Minute, fmt.Sprintf("%+v in S3", want.Distinct()), func() bool {
		time.Sleep(300 * time.Millisecond)
		inS3 = testsink.NewStore(keys...)
		objects = 0
		for _, o := range archive.objects() {
			decode(t, inS3, signal(t, o.key), o.body)
			objects++
		}
		have := inS3.Distinct()
		return have.Spans >= want.Distinct().Spans && have.Logs >= want.Distinct().Logs && have.Points >= want.Distinct().Points
	})
	agent.stop()
	gateway.stop()
	s3.stop()

	w, g := ids(want), ids(inJaeger)
	require.Len(t, g, len(w), "spans in Jaeger")
	for key, name := range w {
		require.Contains(t, g, key, "%s is not in Jaeger", name)
	}
	same(t, "S3", want, inS3)
	assert.Equal(t, want.Distinct(), inS3.Distinct(), "S3 has every signal")
	agent.bounded(agentMemory)
	gateway.bounded(gatewayMemory)
	s3.bounded(gatewayMemory)

	replayed, server := process.Sink(t, keys...)
	replay := newCollector(t, "replay.yaml", map[string]string{
		"GPUFLIGHT_ARCHIVE": archive.sync(), "GPUFLIGHT_OTLP_ENDPOINT": server.Endpoint(),
	}, nil).run()
	arrived(t, want, replayed, 2*time.Minute)
	replay.stop()
	replay.bounded(gatewayMemory)
	same(t, "replayed archive", want, replayed)
	assert.Equal(t, want.Distinct(), replayed.Distinct(), "the replay has every signal")
	t.Logf("%+v distinct; %d objects in S3; %v; %v; %v", want.Distinct(), objects, agent, gateway, s3)
}
