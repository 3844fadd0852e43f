// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
)

// FindFetched is Find for a program that a script fetches. If the program and all tools of that
// script are missing, FindFetched skips the test with the given reason, also with
// GPUFLIGHT_REQUIRE=1.
func (b Binary) FindFetched(t testing.TB, reason string, tools ...string) string {
	t.Helper()
	path := os.Getenv(b.Env)
	if path == "" {
		path = filepath.Join(Root(t), filepath.FromSlash(b.Path))
	}
	if _, err := os.Stat(path); err == nil {
		return b.Find(t)
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err == nil {
			return b.Find(t)
		}
	}
	t.Skip(reason)
	return ""
}

// Sink starts a backend that accepts all data into a store, which keeps the given attributes (see
// testsink.NewStore). The test's cleanup closes it.
func Sink(t testing.TB, keys ...string) (*testsink.Store, *testsink.Server) {
	t.Helper()
	store := testsink.NewStore(keys...)
	server, err := testsink.Listen(store, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close the sink: %v", err)
		}
	})
	return store, server
}

// JaegerServer is a running Jaeger with its traces in memory.
type JaegerServer struct {
	// OTLP is the address for spans over gRPC; API is the base URL of its HTTP API.
	OTLP, API string
}

// StartJaeger starts a Jaeger that accepts messages of up to messageMiB (0 for its default), and
// returns when it is ready. The test's cleanup stops it.
func StartJaeger(t testing.TB, messageMiB int) JaegerServer {
	t.Helper()
	path := Jaeger.Find(t)
	j := JaegerServer{OTLP: FreePort(t)}
	http := FreePort(t)
	j.API = "http://" + http
	grpc := map[string]any{"endpoint": j.OTLP}
	if messageMiB > 0 {
		grpc["max_recv_msg_size_mib"] = messageMiB
	}
	config := map[string]any{
		"service": map[string]any{
			"extensions": []string{"jaeger_storage", "jaeger_query"},
			"pipelines": map[string]any{"traces": map[string]any{
				"receivers": []string{"otlp"}, "exporters": []string{"jaeger_storage_exporter"},
			}},
			"telemetry": map[string]any{"metrics": map[string]any{"level": "none"}},
		},
		"extensions": map[string]any{
			"jaeger_storage": map[string]any{"backends": map[string]any{
				"memory": map[string]any{"memory": map[string]any{"max_traces": 100000}},
			}},
			"jaeger_query": map[string]any{
				"storage": map[string]any{"traces": "memory"},
				// Otherwise Jaeger sends traces of its own queries to itself.
				"enable_tracing": false,
				"http":           map[string]any{"endpoint": http},
				"grpc":           map[string]any{"endpoint": "127.0.0.1:0"},
			},
		},
		"receivers": map[string]any{"otlp": map[string]any{"protocols": map[string]any{"grpc": grpc}}},
		"exporters": map[string]any{"jaeger_storage_exporter": map[string]any{"trace_storage": "memory"}},
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "jaeger.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	p := Start(t, path, "--config", file)
	t.Cleanup(func() { p.Stop(20 * time.Second) })
	p.WaitOutput(Ready, time.Minute)
	return j
}
