// SPDX-License-Identifier: Apache-2.0

//go:build linux

package occupancy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// start runs a Collector that sends the spans of one receiver through the occupancy processor to
// the returned store.
func start(t *testing.T, name string, receiver, occupancy map[string]any) *testsink.Store {
	t.Helper()
	path := process.Collector.Find(t)
	store := testsink.NewStore()
	server, err := testsink.Listen(store, "")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	config := map[string]any{
		"receivers":  map[string]any{name: receiver},
		"processors": map[string]any{"occupancy": occupancy},
		"exporters": map[string]any{"otlp_grpc": map[string]any{
			"endpoint":      server.Endpoint(),
			"tls":           map[string]any{"insecure": true},
			"sending_queue": map[string]any{"enabled": false},
		}},
		"service": map[string]any{
			"telemetry": map[string]any{"metrics": map[string]any{"level": "none"}},
			"pipelines": map[string]any{"traces": map[string]any{
				"receivers": []string{name}, "processors": []string{"occupancy"}, "exporters": []string{"otlp_grpc"},
			}},
		},
	}
	text, err := json.Marshal(config) // which is YAML too
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	p := process.Start(t, path, "--config", file)
	p.WaitOutput(process.Ready, 30*time.Second)
	t.Cleanup(func() { p.Stop(30 * time.Second) })
	return store
}
