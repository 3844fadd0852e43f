// SPDX-License-Identifier: Apache-2.0

//go:build linux

package ui

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// installBrowserTests returns the folder of the tests. They need Node, Debian's chromium and the
// packages of web/package-lock.json. The test skips where these programs are not installed, also in
// make test, because no build of the Collector needs them.
func installBrowserTests(t *testing.T) (web string) {
	for _, program := range []string{"node", "npm", "chromium"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not installed: the UI is not tested in a browser")
		}
	}
	install := exec.Command(filepath.Join(process.Root(t), "scripts", "ui"), "install")
	if out, err := install.CombinedOutput(); err != nil {
		process.Missing(t, fmt.Sprintf("the packages of the UI's tests cannot be installed: %v: %s", err, out))
	}
	return filepath.Join(process.Root(t), "web")
}

func TestUI_Browser(t *testing.T) {
	collector := process.Collector.Find(t)
	recordings := process.Recordings(t)
	web := installBrowserTests(t)

	// Only sessions of these folders are compared. The copy keeps the receiver from reading all.
	logs := t.TempDir()
	for _, name := range []string{"c3-h200-minigpt", "c2-h200-engines", "c3-h200-scopes"} {
		require.NoError(t, os.CopyFS(filepath.Join(logs, name), os.DirFS(filepath.Join(recordings, name))))
	}
	address, otlp := startCollector(t, collector, logs)
	waitForSessions(t, "http://"+address, 5)
	run(t, web, "test/ui.test.mjs", "GPUFLIGHT_URL=http://"+address, "GPUFLIGHT_LOGS="+logs)
	run(t, web, "test/crawl.test.mjs", "GPUFLIGHT_URL=http://"+address, "GPUFLIGHT_OTLP=http://"+otlp)
	address, otlp = startCollector(t, collector, t.TempDir())
	run(t, web, "test/live.test.mjs", "GPUFLIGHT_URL=http://"+address, "GPUFLIGHT_OTLP=http://"+otlp)
	run(t, web, "test/views.test.mjs", "GPUFLIGHT_URL=http://"+address, "GPUFLIGHT_OTLP=http://"+otlp)
}

// receivers leaves out the receivers of this machine's GPUs and programs, which would add sessions.
const receivers = `
service:
  pipelines:
    traces: {receivers: [gpuflog, otlp]}
    logs: {receivers: [gpuflog, otlp]}
    metrics: {receivers: [gpuflog, otlp, gpu_usage]}
`

// startCollector starts the Collector with an empty store and returns the addresses of its UI and of
// OTLP over HTTP.
func startCollector(t *testing.T, collector, logs string) (ui, otlp string) {
	ui, otlp = process.FreePort(t), process.FreePort(t)
	_, port, err := net.SplitHostPort(process.FreePort(t))
	require.NoError(t, err)
	for name, value := range map[string]string{
		"LOGS": logs, "STATE": t.TempDir(), "LISTEN": process.FreePort(t), "LISTEN_HTTP": otlp, "UI": ui, "METRICS_PORT": port, "PROMETHEUS_PORT": "0",
	} {
		t.Setenv("GPUFLIGHT_"+name, value)
	}
	settings := filepath.Join(t.TempDir(), "receivers.yaml")
	require.NoError(t, os.WriteFile(settings, []byte(receivers), 0o600))
	p := process.Start(t, collector, "--config", filepath.Join(process.Root(t), "config", "local.yaml"), "--config", settings)
	p.WaitOutput(process.Ready, time.Minute)
	return ui, otlp
}

// run runs a file of browser tests.
func run(t *testing.T, web, file string, env ...string) {
	t.Run(filepath.Base(file), func(t *testing.T) {
		test := exec.CommandContext(t.Context(), "node", "--test", "--test-reporter=spec", file)
		test.Dir = web
		test.Env = append(os.Environ(), env...)
		out, err := test.CombinedOutput()
		t.Logf("%s", out)
		require.NoError(t, err)
	})
}

// waitForSessions waits until the store has the sessions and their counts no longer change.
func waitForSessions(t *testing.T, address string, n int) {
	last := ""
	process.Eventually(t, time.Minute, "all sessions are stored", func() bool {
		r, err := http.Get(address + "/api/v1/sessions")
		if err != nil {
			return false
		}
		defer func() { _ = r.Body.Close() }()
		var page struct {
			Sessions []struct {
				ID     string           `json:"id"`
				Counts map[string]int64 `json:"counts"`
				Ended  bool             `json:"ended"`
			} `json:"sessions"`
		}
		if json.NewDecoder(r.Body).Decode(&page) != nil || len(page.Sessions) < n {
			return false
		}
		text, _ := json.Marshal(page)
		same := string(text) == last
		last = string(text)
		if !same {
			time.Sleep(time.Second)
		}
		return same
	})
}
