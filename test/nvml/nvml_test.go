// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package nvml_test runs the distribution's binary with config/nvml.yaml and a fake NVML. It checks
// the exposition for Prometheus and the OTLP output.
package nvml_test

import (
	"bytes"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest"
	"github.com/gpuflight/gpuflight/semconv"
)

// rig is the binary with the fake.
type rig struct {
	t       *testing.T
	control *nvmltest.Control
	store   *testsink.Store
	metrics string
	process *process.Process
}

func start(t *testing.T, library string, values map[string]string) *rig {
	t.Helper()
	binary := process.Collector.Find(t)
	control := filepath.Join(t.TempDir(), "control")
	g := &rig{t: t, control: nvmltest.New(control), store: testsink.NewStore()}
	require.NoError(t, g.control.Set(values))
	server, err := testsink.Listen(g.store, "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	port := func() string {
		_, p, err := net.SplitHostPort(process.FreePort(t))
		require.NoError(t, err)
		return p
	}
	scraped := port()
	g.metrics = "http://127.0.0.1:" + scraped + "/metrics"
	for k, v := range map[string]string{
		nvmltest.Env: control, "GPUFLIGHT_NVML_LIBRARY": library, "GPUFLIGHT_PROMETHEUS_PORT": scraped,
		"GPUFLIGHT_OTLP_ENDPOINT": server.Endpoint(), "GPUFLIGHT_METRICS_PORT": port(),
	} {
		t.Setenv(k, v)
	}
	g.process = process.Start(t, binary, "--config", filepath.Join(process.Root(t), "config", "nvml.yaml"),
		"--set", "receivers::nvml::collection_interval=1s", "--set", "receivers::nvml::timeout=1s",
		"--set", "receivers::nvml::initial_delay=0s", "--set", "receivers::nvml::groups::slow::interval=0s")
	g.process.WaitOutput(process.Ready, 30*time.Second)
	return g
}

// scrape returns the exposition, or "" if there is none.
func (g *rig) scrape() string {
	g.t.Helper()
	resp, err := http.Get(g.metrics)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	var b bytes.Buffer
	if _, err := io.Copy(&b, resp.Body); err != nil {
		return ""
	}
	return b.String()
}

// value returns the value of the first series of a metric with all the labels, or "".
func value(text, metric string, labels ...string) string {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, metric+"{")
		if !ok {
			continue
		}
		for _, l := range labels {
			ok = ok && strings.Contains(rest, l)
		}
		if i := strings.LastIndexByte(rest, ' '); ok && i >= 0 {
			return strings.TrimSpace(rest[i:])
		}
	}
	return ""
}

// warnings counts the logs of a device that failed.
func (g *rig) warnings(device int) (n int) {
	for line := range strings.Lines(g.process.Output()) {
		if strings.Contains(line, "device failed") && strings.Contains(line, nvmltest.UUID(device)) {
			n++
		}
	}
	return n
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func library(t *testing.T) string {
	t.Helper()
	lib, err := nvmltest.Build()
	if err != nil {
		t.Skip(err)
	}
	return lib
}

func TestNVML_PrometheusAndOTLP(t *testing.T) {
	values := map[string]string{"count": "2", "0.compute": "1:4096", "1.gpm.3": "12.5"}
	for i := range 2 {
		for k, v := range nvmltest.H200(i) {
			if _, set := values[k]; !set {
				values[k] = v
			}
		}
	}
	g := start(t, library(t), values)
	get := func(text, metric string, device int, label string) string {
		return value(text, metric, `hw_id="`+nvmltest.UUID(device)+`"`, label)
	}
	var text string
	process.Eventually(t, time.Minute, "GPM's second sample", func() bool {
		text = g.scrape()
		return get(text, "hw_gpu_sm_occupancy_ratio", 1, "") != ""
	})
	for _, c := range []struct {
		metric      string
		device      int
		label, want string
	}{
		{"hw_gpu_utilization_ratio", 1, `hw_gpu_task="general"`, "0.4"},
		{"hw_gpu_memory_usage_bytes", 0, "", "1e+09"},
		{"hw_gpu_memory_limit_bytes", 0, "", "1.50754820096e+11"},
		{"hw_energy_joules_total", 1, "", "1000"},
		{"hw_power_watts", 1, "", "120.5"},
		{"hw_power_limit_watts", 0, `hw_limit_type="enforced"`, "700"},
		{"hw_temperature_celsius", 0, `hw_sensor_location="memory"`, "40"},
		{"hw_gpu_speed_hertz", 0, `hw_gpu_clock_domain="sm"`, "1.98e+09"},
		{"hw_gpu_sm_occupancy_ratio", 1, "", "0.125"},
		{"hw_gpu_pipe_utilization_ratio", 1, `hw_gpu_pipe="tensor"`, "0.938"},
		{"hw_gpu_throttle_duration_seconds_total", 1, `hw_gpu_throttle_reason="sw_power_cap"`, "2.5"},
		{"hw_errors_total", 0, `error_type="uncorrected"`, "0"},
		{"hw_status", 0, `hw_state="ok"`, "1"},
		{"process_gpu_memory_usage_bytes", 0, `process_pid="1"`, "4096"},
	} {
		assert.Equal(t, c.want, get(text, c.metric, c.device, c.label), "%s %s", c.metric, c.label)
	}
	assert.Contains(t, text, `hw_vendor="NVIDIA"`)
	assert.NotContains(t, text, "hw_fan", "an H200 has none")

	// A counter continues; an error becomes a log and a count.
	require.NoError(t, g.control.Set(map[string]string{"1.energy": "2500000", "xid.0": "1:79"}))
	process.Eventually(t, time.Minute, "the new values", func() bool {
		text = g.scrape()
		return get(text, "hw_energy_joules_total", 1, "") == "2500" && get(text, "hw_errors_total", 1, `error_type="xid_79"`) == "1"
	})
	names := map[string]bool{}
	for _, p := range g.store.Points() {
		names[p.Metric] = true
	}
	registry := map[string]bool{}
	for _, m := range semconv.Metrics {
		registry[m.Name] = true
	}
	for name := range maps.Keys(names) {
		assert.True(t, registry[name], name)
	}
	assert.True(t, names["hw.gpu.utilization"] && names["process.gpu.memory.usage"], "%v", names)
	process.Eventually(t, time.Minute, "the log of the XID", func() bool { return len(g.store.LogRecords()) == 1 })

	// A driver that hangs affects only its device, and the collector still exits on SIGTERM.
	warned := g.warnings(0)
	require.NoError(t, g.control.Set(map[string]string{"0.temperature": "hang"}))
	process.Eventually(t, time.Minute, "device 0 fails, device 1 goes on", func() bool {
		text = g.scrape()
		return get(text, "hw_status", 0, `hw_state="failed"`) == "1" && get(text, "hw_status", 1, `hw_state="ok"`) == "1"
	})
	g.process.Stop(20 * time.Second)
	assert.Equal(t, 1, g.warnings(0)-warned, "one warning, however long it lasts")
}

func TestNVML_Missing(t *testing.T) {
	g := start(t, filepath.Join(t.TempDir(), "none.so"), nil)
	g.process.WaitOutput("NVML has no devices and is retried", time.Minute)
	time.Sleep(2500 * time.Millisecond)
	g.process.Stop(20 * time.Second)
	assert.Equal(t, 1, strings.Count(g.process.Output(), "NVML has no devices"))
}
