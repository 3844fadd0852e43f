// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/certificates"
)

// TestFleet_TLS sends from agents to a gateway that requires client certificates, with the settings
// of docs/deploying.md. An agent with a certificate of another authority is rejected and keeps its
// data.
func TestFleet_TLS(t *testing.T) {
	parallel(t)
	mine, other := certificates.Make(t), certificates.Make(t)
	s := sessionOf(t, some)
	store, backend := process.Sink(t, keys...)
	gateway := withoutKafka(t, backend.Endpoint())
	gateway.configs = append(gateway.configs, mine.Settings(t, "gateway-tls.yaml"))
	gateway.run()
	// Certificates are for host names.
	_, port, _ := strings.Cut(gateway.env["GPUFLIGHT_LISTEN"], ":")
	agentOf := func(settings string) *collector {
		agent := newCollector(t, "agent.yaml", map[string]string{
			"GPUFLIGHT_LOGS": s.logs, "GPUFLIGHT_OTLP_ENDPOINT": "localhost:" + port,
		}, nil)
		agent.configs = append(agent.configs, settings)
		return agent.run()
	}

	stranger := agentOf(other.Settings(t, "agent-tls.yaml"))
	process.Eventually(t, 2*time.Minute, "an attempt of the stranger", func() bool {
		return strings.Contains(stranger.process.Output(), "certificate")
	})
	require.Zero(t, store.Counts(), "nothing of the stranger")

	// A client that trusts the gateway and has no certificate. With TLS 1.3 the first read returns
	// the error.
	authority, err := os.ReadFile(mine.Path("ca.pem"))
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(authority))
	conn, err := tls.Dial("tcp", "localhost:"+port, &tls.Config{RootCAs: trusted, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13})
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorContains(t, err, "certificate required")
	require.NoError(t, conn.Close())

	agent := agentOf(mine.Settings(t, "agent-tls.yaml"))
	arrived(t, s.want, store, 3*time.Minute)
	for _, c := range []*collector{agent, stranger, gateway} {
		c.stop()
	}
	same(t, "backend", s.want, store)
	assert.Equal(t, s.want.Distinct().Spans, store.Counts().Spans, "each came once: nothing of the stranger")
}
