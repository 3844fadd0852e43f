// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"crypto/x509"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
)

func TestSessions_ForeignToken(t *testing.T) {
	e := newExact()
	mem := &memory{m: map[string][]byte{}}
	r, url := serveTokens(t, e, mem, nil, "token-a", "token-b")
	own := func(batch int) message {
		return stream(t, testSession, joined(hosts(testSession, batch))).with("token-a")
	}
	require.Equal(t, http.StatusOK, send(t, url, stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1))).with("token-a")).status)
	refused := func(t *testing.T, url string) {
		t.Helper()
		for name, m := range map[string]message{
			"window":                stream(t, testSession, joined(hosts(testSession, 90))),
			"window without header": stream(t, "", joined(hosts(testSession, 91))),
			"line":                  enveloped(t, "system", hosts(testSession, 92)),
			"repeated window":       stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1))),
		} {
			a := send(t, url, m.with("token-b"))
			assert.Equal(t, http.StatusConflict, a.status, "%s: %s", name, a.text)
			assert.Contains(t, a.Error, "opened with other credentials", name)
			assert.Empty(t, a.header.Get("Retry-After"), name)
		}
		unknown := send(t, url, completed(sessionID(1)).with("token-b"))
		foreign := send(t, url, completed(testSession).with("token-b"))
		assert.Equal(t, unknown.status, foreign.status, "the end does not reveal whether there is a session")
		assert.Equal(t, unknown.text, foreign.text)
	}
	refused(t, url)
	assert.Zero(t, e.sessions(), "the session goes on")
	require.Equal(t, http.StatusOK, send(t, url, own(2)).status)
	r.stop()

	// The stored session keeps the owner.
	r, url = serveTokens(t, e, mem, nil, "token-a", "token-b")
	refused(t, url)
	require.Equal(t, http.StatusOK, send(t, url, own(3)).status)
	require.Equal(t, http.StatusOK, send(t, url, completed(testSession).with("token-a")).status)
	r.stop()

	// So do the windows of a session that is no longer in memory.
	one := func(c *Config) { c.Protocols.HTTP.Get().MaxSessions = 1 }
	r, url = serveTokens(t, e, mem, one, "token-a", "token-b")
	require.Equal(t, http.StatusOK, send(t, url, stream(t, sessionID(2), joined(jobStart(sessionID(2)))).with("token-a")).status)
	assert.False(t, r.server().in.active(testSession, principal{}))
	refused(t, url)
	r.stop()
	r, url = serveTokens(t, e, mem, one, "token-a", "token-b")
	assert.False(t, r.server().in.active(testSession, principal{}))
	refused(t, url)
	assert.Zero(t, r.logs.FilterMessageSnippet("token-").Len())
	r.stop()

	assert.Equal(t, 3, e.count("point ", "system.cpu.utilization"), "nothing that came with the other token")
	assert.Equal(t, 1, e.sessions())
	assert.Empty(t, e.twice())
	for key, b := range mem.m {
		assert.NotContains(t, string(b), "token-a", key)
	}
}

// TestSessions_ForeignBody has a body of another principal in flight, which must not prevent the
// session from being closed.
func TestSessions_ForeignBody(t *testing.T) {
	in := &intake{sessions: map[string]*intakeSession{}, leaving: map[string]*intakeSession{}}
	s := &intakeSession{windows: &chunkTable{owner: principal{1}}}
	in.sessions[testSession] = s
	in.receiving(testSession, principal{2})
	assert.Zero(t, s.receiving.Load())
	done := in.receiving(testSession, principal{1})
	assert.EqualValues(t, 1, s.receiving.Load())
	done()
	assert.Zero(t, s.receiving.Load())
}

func TestSessions_ForeignCertificate(t *testing.T) {
	a := newAuthority(t)
	a.make("server", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth})
	a.make("node-a", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth})
	a.make("node-b", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth})
	r, url := serve(t, newExact(), nil, func(c *Config) {
		c.Protocols.HTTP.Get().TLS = configoptional.Some(configtls.ServerConfig{
			Config: configtls.Config{CertFile: a.path("server.pem"), KeyFile: a.path("server.key")}, ClientCAFile: a.path("ca.pem"),
		})
	})
	url = strings.Replace(url, "http:", "https:", 1)
	nodeA, nodeB := a.client("node-a"), a.client("node-b")
	m := stream(t, testSession, joined(jobStart(testSession)))
	for range 2 {
		got, err := try(t.Context(), nodeA, url, m)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, got.status, got.text)
		a.make("node-a", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) // renewed
		nodeA.CloseIdleConnections()
		nodeA = a.client("node-a")
	}
	got, err := try(t.Context(), nodeB, url, m)
	require.NoError(t, err)
	assert.Equal(t, http.StatusConflict, got.status, got.text)
	nodeA.CloseIdleConnections()
	nodeB.CloseIdleConnections()
	r.stop()
}

func TestSessions_ShareOfAPrincipal(t *testing.T) {
	const most = 4
	r, url := serveTokens(t, newExact(), nil, func(c *Config) { c.Protocols.HTTP.Get().MaxSessions = most }, "token-a", "token-b", "token-c")
	open := func(i int, token string) {
		t.Helper()
		a := send(t, url, stream(t, sessionID(i), joined(jobStart(sessionID(i)))).with(token))
		require.Equal(t, http.StatusOK, a.status, a.text)
	}
	open(0, "token-a")
	for i := 1; i <= 10; i++ {
		open(i, "token-b")
	}
	in := r.server().in
	count := func() (all int, a bool) {
		in.mu.Lock()
		defer in.mu.Unlock()
		return len(in.sessions), in.sessions[sessionID(0)] != nil
	}
	all, a := count()
	assert.True(t, a, "the other principal's session stays, though it has been silent longest")
	assert.Equal(t, most+1, all)
	assert.EqualValues(t, 6, r.sum("otelcol_receiver_gpuflog_http_sessions_evicted", ""))
	open(20, "token-c")
	all, a = count()
	assert.True(t, a, "the principal with the most makes room")
	assert.Equal(t, most+1, all)
	r.stop()
}

func TestFinished_ShareOfAPrincipal(t *testing.T) {
	f := newFinished()
	f.put("a", &chunkTable{owner: principal{1}})
	for i := range 2 * maxFinished {
		f.put(sessionID(i), &chunkTable{owner: principal{2}})
	}
	assert.Len(t, f.order, maxFinished)
	assert.NotNil(t, f.take("a"), "another principal's is not forgotten")
	f.put("a", &chunkTable{owner: principal{1}})
	for i := range 2 * maxFinishedWindows / maxWindows {
		w := &chunkTable{owner: principal{2}}
		for n := range maxWindows {
			w.get(chunkKey{sum: sumOf(n)})
		}
		f.put(sessionID(i), w)
	}
	assert.LessOrEqual(t, f.windows, maxFinishedWindows)
	assert.NotNil(t, f.take("a"), "nor for windows")
}
