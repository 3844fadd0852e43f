// SPDX-License-Identifier: Apache-2.0

//go:build linux

package wire_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestConfig_Shipped runs the Collector with config/gpuflog-http.yaml, kills it during an upload
// and restarts it.
func TestConfig_Shipped(t *testing.T) {
	binary := process.Collector.Find(t)
	dir := recording(t, "c3-h200-minigpt")
	want, got := followed(t, dir), testsink.NewStore()
	server, err := testsink.Listen(got, "")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })

	folder := t.TempDir()
	keys := filepath.Join(folder, "token")
	require.NoError(t, os.WriteFile(keys, []byte(token+"\n"), 0o600))
	address := process.FreePort(t)
	_, metrics, err := net.SplitHostPort(process.FreePort(t))
	require.NoError(t, err)
	for name, value := range map[string]string{
		"GPUFLIGHT_HTTP": address, "GPUFLIGHT_TOKEN_FILE": keys, "GPUFLIGHT_STATE": filepath.Join(folder, "state"),
		"GPUFLIGHT_OTLP_ENDPOINT": server.Endpoint(), "GPUFLIGHT_OTLP_INSECURE": "true", "GPUFLIGHT_METRICS_PORT": metrics,
	} {
		t.Setenv(name, value)
	}
	config := filepath.Join(process.Root(t), "config", "gpuflog-http.yaml")
	list := windows(t, dir)

	p := process.Start(t, binary, "--config", config)
	p.WaitOutput(process.Ready, 30*time.Second)
	resp, err := http.Post("http://"+address+"/api/v1/events/stream", "application/x-ndjson", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode, "without a token")
	conn := connect(t, address)
	for _, w := range list[:2] {
		require.Equal(t, http.StatusOK, conn.exchange(w.uploaded(address)).status)
	}
	p.Kill()

	p = process.Start(t, binary, "--config", config)
	p.WaitOutput(process.Ready, 30*time.Second)
	conn = connect(t, address)
	for _, w := range list[1:] { // the client has the answer to the first
		require.Equal(t, http.StatusOK, conn.exchange(w.uploaded(address)).status)
	}
	// The occupancy processor adds attributes, so compare ids and parents.
	parents := func(s *testsink.Store) map[string]string {
		m := map[string]string{}
		for _, sp := range s.Spans() {
			m[sp.SpanKey.String()] = sp.Parent.String()
		}
		return m
	}
	got.Settle(time.Second, 30*time.Second, func() bool { return got.Distinct() == want.Distinct() })
	assert.Equal(t, want.Distinct(), got.Distinct())
	assert.Equal(t, parents(want), parents(got))
	p.Stop(20 * time.Second)
}
