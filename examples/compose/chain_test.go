// SPDX-License-Identifier: Apache-2.0

//go:build linux

package compose_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/broker"
)

// get returns an answer's body, or "" where there is none or its status is not 200.
func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// ids is the set of the spans that a store has seen.
func ids(store *testsink.Store) map[testsink.SpanKey]bool {
	out := map[testsink.SpanKey]bool{}
	for _, s := range store.Spans() {
		out[s.SpanKey] = true
	}
	return out
}

// recorded is the set of the spans in examples/recordings.
func recorded(t *testing.T) map[testsink.SpanKey]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "recordings", "*.otlp.jsonl.gz"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	store := testsink.NewStore()
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		plain, err := gzip.NewReader(f)
		require.NoError(t, err)
		lines := bufio.NewReader(plain)
		for {
			line, err := lines.ReadBytes('\n')
			if bytes.HasPrefix(line, []byte(`{"resourceSpans"`)) {
				td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
				require.NoError(t, err, name)
				store.AddTraces(td)
			}
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
		}
		require.NoError(t, f.Close())
	}
	out := ids(store)
	require.Greater(t, len(out), 1000)
	return out
}

// archived is the set of the spans in the bucket's folder.
func archived(t *testing.T, folder string) map[testsink.SpanKey]bool {
	t.Helper()
	store := testsink.NewStore()
	err := filepath.WalkDir(filepath.Join(folder, "otlp"), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() || !strings.HasPrefix(d.Name(), "traces_") {
			return err
		}
		packed, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		unzip, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return err
		}
		body, err := io.ReadAll(unzip)
		if err != nil {
			return err
		}
		td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(body)
		if err != nil {
			return err
		}
		store.AddTraces(td)
		return nil
	})
	require.NoError(t, err)
	return ids(store)
}

// TestTheRecordingsArrive runs Kafka, the S3 server, agent, gateway and archive on loopback, as
// compose.yaml runs them in containers: the same variables, with other addresses and folders. A sink
// stands for Jaeger, which test/fleet has; ClickHouse is not there.
func TestTheRecordingsArrive(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five servers")
	}
	collector := process.Collector.Find(t)
	s3 := process.Binary{Env: "GPUFLIGHT_VERSITYGW", Path: ".tools/versitygw", Make: "make .tools/versitygw"}.Find(t)
	kafka := process.Binary{Env: "GPUFLIGHT_KAFKA", Path: ".tools/kafka/kafka", Make: "make .tools/kafka/kafka"}.
		FindFetched(t, "no mvn here to fetch Kafka with", "mvn")
	want := recorded(t)
	store, sink := process.Sink(t)
	c := compose(t).Services

	kafkaAddress, prometheus, bucket := process.FreePort(t), process.FreePort(t), t.TempDir()
	here := map[string]string{
		"kafka:9092": kafkaAddress, "0.0.0.0:9092": kafkaAddress, "127.0.0.1:9093": process.FreePort(t),
		"http://s3:7070": "http://" + process.FreePort(t), "jaeger:4317": sink.Endpoint(), "0.0.0.0:9464": prometheus,
		"/var/lib/kafka/data": filepath.Join(t.TempDir(), "data"),
	}
	moved := func(value string) string {
		for there, address := range here {
			value = strings.ReplaceAll(value, there, address)
		}
		return value
	}

	// The image turns KAFKA_LOG_DIRS into log.dirs, and so on.
	var properties strings.Builder
	for key, value := range c["kafka"].Environment {
		name, ok := strings.CutPrefix(key, "KAFKA_")
		require.True(t, ok, key)
		properties.WriteString(strings.ReplaceAll(strings.ToLower(name), "_", ".") + "=" + moved(value) + "\n")
	}
	settings := filepath.Join(t.TempDir(), "server.properties")
	require.NoError(t, os.WriteFile(settings, []byte(properties.String()), 0o600))
	out, err := exec.CommandContext(t.Context(), kafka, "kafka.tools.StorageTool", "format", "-t", "Z3B1ZmxpZ2h0LXRlc3RzIQ", "-c", settings).CombinedOutput()
	require.NoError(t, err, "%s", out)
	server := process.Start(t, kafka, "-Xmx384m", "-XX:+UseSerialGC", "kafka.Kafka", settings)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, broker.Broker{Address: kafkaAddress}.Wait(ctx), "%s", server.Output())

	start := func(name, binary string, environment map[string]string, arguments ...string) *process.Process {
		command := make([]string, 0, len(environment)+len(arguments)+1)
		for key, value := range environment {
			command = append(command, key+"="+value)
		}
		// env becomes the program that it starts.
		p := process.Start(t, "/usr/bin/env", append(append(command, binary), arguments...)...)
		t.Cleanup(func() { p.Stop(time.Minute) })
		t.Logf("%s is started", name)
		return p
	}
	require.NoError(t, os.Mkdir(filepath.Join(bucket, c["archive"].Environment["GPUFLIGHT_S3_BUCKET"]), 0o755))
	start("s3", s3, map[string]string{
		"ROOT_ACCESS_KEY": c["s3"].Environment["ROOT_ACCESS_KEY"], "ROOT_SECRET_KEY": c["s3"].Environment["ROOT_SECRET_KEY"],
		"VGW_PORT": strings.TrimPrefix(here["http://s3:7070"], "http://"),
	}, append(c["s3"].Command[:len(c["s3"].Command)-1:len(c["s3"].Command)-1], bucket)...)

	recordings, err := filepath.Abs(filepath.Join("..", "recordings"))
	require.NoError(t, err)
	for _, name := range []string{"archive", "gateway", "agent"} {
		_, port, err := net.SplitHostPort(process.FreePort(t))
		require.NoError(t, err)
		health := process.FreePort(t)
		environment := map[string]string{}
		for key, value := range c[name].Environment {
			environment[key] = moved(value)
		}
		// What is different because all share one network and one file system here.
		for key, value := range map[string]string{
			"GPUFLIGHT_STATE": t.TempDir(), "GPUFLIGHT_HEALTH": health, "GPUFLIGHT_METRICS_HOST": "127.0.0.1", "GPUFLIGHT_METRICS_PORT": port,
			"GPUFLIGHT_LISTEN": process.FreePort(t), "GPUFLIGHT_LISTEN_HTTP": process.FreePort(t),
			"GPUFLIGHT_RECORDINGS": recordings, "GPUFLIGHT_LOGS": recordings, "GPUFLIGHT_S3_FLUSH": "1s",
		} {
			environment[key] = value
		}
		var arguments []string
		for _, config := range c[name].configs(t) {
			path, err := filepath.Abs(config)
			require.NoError(t, err)
			arguments = append(arguments, "--config", path)
		}
		p := start(name, collector, environment, arguments...)
		p.WaitOutput(process.Ready, time.Minute)
		process.Eventually(t, 20*time.Second, name+" says that it is well", func() bool { return get(t, "http://"+health+"/") != "" })
	}

	process.Eventually(t, 2*time.Minute, "the gateway has sent all spans", func() bool { return store.Distinct().Spans >= len(want) })
	assert.Equal(t, want, ids(store))
	process.Eventually(t, time.Minute, "the archive has all spans", func() bool {
		return len(archived(t, filepath.Join(bucket, "gpuflight"))) >= len(want)
	})
	assert.Equal(t, want, archived(t, filepath.Join(bucket, "gpuflight")))
	process.Eventually(t, time.Minute, "Prometheus finds the usage of the devices", func() bool {
		return strings.Contains(get(t, "http://"+prometheus+"/metrics"), "gpu_cuda_time_seconds_total{")
	})
}
