// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// CollectorConfig describes a Collector that reads logs and sends all three signals to one OTLP
// endpoint. It has no queue, retries or batching, so the receiver regards data as accepted only if
// the endpoint accepted it.
type CollectorConfig struct {
	// Include lists the paths that the receiver reads.
	Include []string
	// Receiver holds further settings of the receiver.
	Receiver map[string]any
	// Storage is the folder for checkpoints; "" for none.
	Storage string
	// Endpoint is the destination address.
	Endpoint string
	// Timeout limits a request; "" for one second.
	Timeout string
	// Signals are the pipelines; nil for traces, logs and metrics.
	Signals []string
}

// Write writes the configuration to a file in a folder of the test and returns its path.
func (c CollectorConfig) Write(t testing.TB) string {
	t.Helper()
	receiver := map[string]any{"include": c.Include, "poll_interval": "50ms"}
	maps.Copy(receiver, c.Receiver)
	service := map[string]any{
		"telemetry": map[string]any{"metrics": map[string]any{"level": "none"}},
	}
	config := map[string]any{"service": service}
	if c.Storage != "" {
		receiver["storage"] = "file_storage/gpuflog"
		config["extensions"] = map[string]any{
			"file_storage/gpuflog": map[string]any{"directory": c.Storage, "create_directory": true},
		}
		service["extensions"] = []string{"file_storage/gpuflog"}
	}
	config["receivers"] = map[string]any{"gpuflog": receiver}
	config["exporters"] = map[string]any{"otlp_grpc": map[string]any{
		"endpoint":         c.Endpoint,
		"tls":              map[string]any{"insecure": true},
		"compression":      "none",
		"timeout":          cmp.Or(c.Timeout, "1s"),
		"sending_queue":    map[string]any{"enabled": false},
		"retry_on_failure": map[string]any{"enabled": false},
	}}
	signals := c.Signals
	if signals == nil {
		signals = []string{"traces", "logs", "metrics"}
	}
	pipelines := map[string]any{}
	for _, signal := range signals {
		pipelines[signal] = map[string]any{
			"receivers": []string{"gpuflog"}, "exporters": []string{"otlp_grpc"},
		}
	}
	service["pipelines"] = pipelines

	text, err := json.MarshalIndent(config, "", "  ") // which is YAML too
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Start starts the Collector with this configuration. It does not wait until the Collector is
// ready.
func (c CollectorConfig) Start(t testing.TB) *Process {
	t.Helper()
	return Start(t, Collector.Find(t), "--config", c.Write(t))
}

// Ready is the message that the Collector prints when all components run.
const Ready = "Everything is ready. Begin running and processing data."
