// SPDX-License-Identifier: Apache-2.0

//go:build linux

package ui

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var cli = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}

// TestUI_Login runs web/test/login.test.mjs against the settings of docs/keys.md.
func TestUI_Login(t *testing.T) {
	collector, command := process.Collector.Find(t), cli.Find(t)
	web := installBrowserTests(t)
	page, err := os.ReadFile(filepath.Join(process.Root(t), "docs", "keys.md"))
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	require.NotNil(t, block)
	settings := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(settings, block[1], 0o600))

	state, ui, otlp := t.TempDir(), process.FreePort(t), process.FreePort(t)
	_, port, err := net.SplitHostPort(process.FreePort(t))
	require.NoError(t, err)
	for name, value := range map[string]string{
		"LOGS": t.TempDir(), "STATE": state, "LISTEN": process.FreePort(t), "LISTEN_HTTP": otlp, "UI": ui, "METRICS_PORT": port, "PROMETHEUS_PORT": "0",
	} {
		t.Setenv("GPUFLIGHT_"+name, value)
	}
	keys := filepath.Join(state, "keys.json")
	out, err := exec.Command(command, "key", "--file", keys, "create", "first", "--scope", "read").CombinedOutput()
	require.NoError(t, err, "%s", out)
	p := process.Start(t, collector, "--config", filepath.Join(process.Root(t), "config", "local.yaml"), "--config", settings)
	p.WaitOutput(process.Ready, time.Minute)

	test := exec.Command("node", "--test", "test/login.test.mjs")
	test.Dir = web
	test.Env = append(os.Environ(), "GPUFLIGHT_URL=http://"+ui, "GPUFLIGHT_OTLP=http://"+otlp, "GPUFLIGHT_CLI="+command, "GPUFLIGHT_KEYS="+keys)
	out, err = test.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
}
