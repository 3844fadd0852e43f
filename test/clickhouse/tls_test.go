// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/certificates"
)

// TestClickHouse_TLS writes over HTTPS with the settings of docs/deploying.md. With the
// certificates of another authority the Collector ends.
func TestClickHouse_TLS(t *testing.T) {
	d := startEmpty(t, "")
	mine, other := certificates.Make(t), certificates.Make(t)
	certificate, err := tls.LoadX509KeyPair(mine.Path("server.pem"), mine.Path("server.key"))
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(d.front)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // The stranger's handshakes fail, as they should.
	server.StartTLS()
	defer server.Close()
	_, port, _ := strings.Cut(server.Listener.Addr().String(), ":")
	env := map[string]string{"GPUFLIGHT_CLICKHOUSE": "https://localhost:" + port}

	address := process.FreePort(t)
	settings := func(f certificates.Folder) map[string]any {
		text, err := os.ReadFile(f.Settings(t, "clickhouse-tls.yaml"))
		require.NoError(t, err)
		overlay := overOTLP(address)
		var block map[string]any
		require.NoError(t, yaml.Unmarshal(text, &block))
		overlay["extensions"] = block["extensions"]
		return overlay
	}
	d.command(env, settings(other)).WaitOutput("certificate signed by unknown authority", time.Minute)

	p := d.collect(env, settings(mine))
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	sent := generate(t, 7, 300)
	require.NoError(t, sent.send(ctx, address))
	p.Stop(30 * time.Second)
	assert.Equal(t, counts(t, sent.memory(t)), counts(t, d.store()))
	assert.Zero(t, d.front.Refused())
}
