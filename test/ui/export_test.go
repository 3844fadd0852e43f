// SPDX-License-Identifier: Apache-2.0

//go:build linux

package ui

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestUI_Export runs web/test/export.test.mjs against a Collector without data.
func TestUI_Export(t *testing.T) {
	collector := process.Collector.Find(t)
	web := installBrowserTests(t)
	ui := process.FreePort(t)
	_, port, err := net.SplitHostPort(process.FreePort(t))
	require.NoError(t, err)
	for name, value := range map[string]string{
		"LOGS": t.TempDir(), "STATE": t.TempDir(), "LISTEN": process.FreePort(t), "LISTEN_HTTP": process.FreePort(t), "UI": ui, "METRICS_PORT": port,
	} {
		t.Setenv("GPUFLIGHT_"+name, value)
	}
	p := process.Start(t, collector, "--config", filepath.Join(process.Root(t), "config", "local.yaml"))
	p.WaitOutput(process.Ready, time.Minute)

	test := exec.Command("node", "--test", "test/export.test.mjs")
	test.Dir = web
	test.Env = append(os.Environ(), "GPUFLIGHT_URL=http://"+ui)
	out, err := test.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
}
