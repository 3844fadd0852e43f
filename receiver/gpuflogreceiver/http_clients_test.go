// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/bearertokenauthextension"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/extension/extensiontest"

	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
)

// serveTokens is serve with the standard extension that accepts several tokens.
func serveTokens(t *testing.T, e consumers, m *memory, change func(*Config), tokens ...configopaque.String) (*running, string) {
	t.Helper()
	f := bearertokenauthextension.NewFactory()
	cfg := f.CreateDefaultConfig().(*bearertokenauthextension.Config)
	cfg.Tokens = tokens
	c, err := f.Create(context.Background(), extensiontest.NewNopSettings(f.Type()), cfg)
	require.NoError(t, err) // it starts nothing for tokens that are given
	auth := extension{id: component.NewID(f.Type()), component: c}
	return serve(t, e, m, func(c *Config) {
		c.Protocols.HTTP.Get().Auth = configoptional.Some(confighttp.AuthConfig{Config: configauth.Config{AuthenticatorID: auth.id}})
		if change != nil {
			change(c)
		}
	}, auth)
}

// with returns a message with a token.
func (m message) with(token string) message {
	headers := map[string]string{"Authorization": "Bearer " + token}
	for k, v := range m.headers {
		headers[k] = v
	}
	m.headers = headers
	return m
}

// connect dials the server and sends text.
func connect(t *testing.T, url, text string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte(text))
	require.NoError(t, err)
	return conn
}

// answered reads a response and returns its status.
func answered(t *testing.T, conn net.Conn) int {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// stalled is a request without its body.
func stalled(token string) string {
	return "POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\nContent-Length: 1000\r\n\r\nx"
}

func TestRequests_SlowClientsOfOneToken(t *testing.T) {
	const most = 8
	r, url := serveTokens(t, newExact(), nil, func(c *Config) { c.Protocols.HTTP.Get().MaxRequests = most }, "token-a", "token-b")
	var slow []net.Conn
	for range 2 * most {
		slow = append(slow, connect(t, url, stalled("token-b")))
	}
	requests := r.server().requests
	eventually(t, "the slow clients", func() bool { return requests.Left() == most/2 })
	eventually(t, "the refusals", func() bool { return r.sum("otelcol_receiver_gpuflog_http_requests", "429") == 2*most-most/2 })
	began := time.Now()
	a := send(t, url, stream(t, testSession, joined(jobStart(testSession))).with("token-a"))
	assert.Equal(t, http.StatusOK, a.status, a.text)
	assert.Equal(t, http.StatusTooManyRequests, send(t, url, stream(t, testSession, joined(jobStart(testSession))).with("token-b")).status)
	t.Logf("served after %s", time.Since(began))
	// The shutdown does not wait for the slow clients.
	began = time.Now()
	r.stop()
	assert.Less(t, time.Since(began), 30*time.Second, "of the minute that it has")
	t.Logf("stopped after %s", time.Since(began))
	assert.EqualValues(t, most, requests.Left())
	answers := map[int]int{}
	for _, conn := range slow {
		answers[answered(t, conn)]++
	}
	assert.Equal(t, map[int]int{http.StatusServiceUnavailable: most / 2, http.StatusTooManyRequests: 2*most - most/2}, answers)
}

// TestBytes_SlowClientOfOneToken reserves half of the bytes with bodies that do not end.
func TestBytes_SlowClientOfOneToken(t *testing.T) {
	r, url := serveTokens(t, newExact(), nil, func(c *Config) {
		c.Protocols.HTTP.Get().MaxRequestBodySize = 1 << 20
		c.Protocols.HTTP.Get().MaxBufferedBytes = 2 << 20
	}, "token-a", "token-b")
	header := "POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-b\r\nContent-Length: 500000\r\n\r\n"
	budget := r.server().budget
	for i := range int64(2) {
		connect(t, url, header+strings.Repeat("x", 499999))
		eventually(t, "the body is held", func() bool { return budget.Left() == 2<<20-(i+1)*500001 })
	}
	third := connect(t, url, header+strings.Repeat("x", 499999))
	assert.Equal(t, http.StatusTooManyRequests, answered(t, third), "it does not fit into the token's share")
	m := stream(t, testSession, "").with("token-a")
	m.headers["Content-Encoding"], m.body = "identity", []byte(strings.Repeat(jobStart(testSession)+"\n", 2000))
	a := send(t, url, m)
	assert.Equal(t, http.StatusOK, a.status, a.text)
	r.stop()
	assert.EqualValues(t, 2<<20, budget.Left())
}

func TestConnections_Bound(t *testing.T) {
	const most = 4
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	limitConnections(server.Config, most)
	server.Start()
	defer server.Close()
	const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	var open []net.Conn
	for range most / 2 {
		conn := connect(t, server.URL, request)
		assert.Equal(t, http.StatusNoContent, answered(t, conn))
		open = append(open, conn)
	}
	refused := func() error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(server.URL, "http://"))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, _ = conn.Write([]byte(request))
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	assert.Error(t, refused(), "one host has half")
	from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	other, err := from.DialContext(t.Context(), "tcp", strings.TrimPrefix(server.URL, "http://"))
	require.NoError(t, err)
	defer func() { _ = other.Close() }()
	_, err = other.Write([]byte(request))
	require.NoError(t, err)
	assert.Equal(t, http.StatusNoContent, answered(t, other), "another host has room")
	require.NoError(t, open[0].Close())
	eventually(t, "room again", func() bool { return refused() == nil })
}

// TestDefaults_TimeLimits checks the server of the default configuration. It also checks that the
// same setting ends a stalled body.
func TestDefaults_TimeLimits(t *testing.T) {
	r, url := serve(t, newExact(), nil, nil)
	server := r.server().server
	assert.Equal(t, 2*time.Minute, server.ReadTimeout)
	assert.Equal(t, 10*time.Second, server.ReadHeaderTimeout)
	assert.Equal(t, 3*time.Minute, server.WriteTimeout)
	assert.Equal(t, time.Minute, server.IdleTimeout)
	conn := connect(t, url, "POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nX-Large: "+strings.Repeat("x", 2*maxHeaderBytes)+"\r\n\r\n")
	assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, answered(t, conn))
	r.stop()

	r, url = serve(t, newExact(), nil, func(c *Config) {
		h := c.Protocols.HTTP.Get()
		require.Positive(t, h.ReadTimeout)
		h.ReadTimeout /= 240 // half a second
		h.ReadHeaderTimeout, h.IdleTimeout = h.ReadTimeout, h.ReadTimeout
	})
	assert.Equal(t, http.StatusRequestTimeout, answered(t, connect(t, url, stalled(""))))
	for name, text := range map[string]string{
		"nothing sent": "", "half a header": "POST /api/v1/events/stream HT", "idle": "GET /api/v1/info/version HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		conn := connect(t, url, text)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.ReadAll(conn)
		assert.NoError(t, err, "%s: the server closes the connection", name)
	}
	r.stop()
}

func TestBodies_Abuse(t *testing.T) {
	const most = 1 << 20
	r, url := serve(t, newExact(), nil, func(c *Config) {
		c.Protocols.HTTP.Get().MaxRequestBodySize = most
		c.Protocols.HTTP.Get().ReadTimeout = 4 * time.Second
	})
	head := "POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nX-GpuFlight-Session-Id: " + testSession + "\r\n"
	chunk := fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat("x", 64<<10))
	for name, c := range map[string]struct {
		text   string
		status int
	}{
		"chunks without end":           {head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat(chunk, most/(64<<10)+1), 413},
		"stalled chunks":               {head + "Transfer-Encoding: chunked\r\n\r\n" + chunk, 408},
		"chunk that is none":           {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		"length above the limit":       {head + "Content-Length: 99999999999\r\n\r\n", 413},
		"length above what comes":      {head + "Content-Length: 1000\r\n\r\n{}", 408},
		"negative length":              {head + "Content-Length: -1\r\n\r\n", 400},
		"two lengths":                  {head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400},
		"unknown transfer encoding":    {head + "Transfer-Encoding: gzip\r\n\r\n", 501},
		"two encodings in one header":  {head + "Content-Encoding: gzip, gzip\r\nContent-Length: 2\r\n\r\n{}", 415},
		"two encodings in two headers": {head + "Content-Encoding: identity\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415},
		"empty encoding, then gzip":    {head + "Content-Encoding:\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415},
		"long path":                    {"POST /api/v1/events/" + strings.Repeat("x", 2*maxHeaderBytes) + " HTTP/1.1\r\nHost: x\r\n\r\n", 431},
		"dots in the path":             {"POST /api/v1/events/../../../etc/passwd HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 307},
		"escaped slash in the path":    {"POST /api/v1/events/a%2f..%2fb HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 400},
		"long query":                   {"POST /api/v1/events/stream?" + strings.Repeat("a=b&", 4000) + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 400},
		"session id of control bytes":  {"POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nX-GpuFlight-Session-Id: a\x01b\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, url, "")
			_, _ = conn.Write([]byte(c.text)) // the server may answer before it has read everything
			assert.Equal(t, c.status, answered(t, conn))
		})
	}
	s := r.server()
	r.stop()
	assert.EqualValues(t, s.cfg.MaxBufferedBytes, s.budget.Left())
	assert.EqualValues(t, s.cfg.MaxRequests, s.requests.Left())
}

// TestAnswers_SlowReader sends many requests and reads no response: neither requests nor bytes stay
// in use.
func TestAnswers_SlowReader(t *testing.T) {
	r, url := serve(t, newExact(), nil, func(c *Config) { c.Protocols.HTTP.Get().WriteTimeout = time.Second })
	conn := connect(t, url, "")
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(1))
	require.NoError(t, conn.SetWriteDeadline(time.Now().Add(time.Minute)))
	ended := false
	for i := range 20000 {
		bad := strings.Repeat(fmt.Sprintf("nonsense %d\n", i), ingest.MaxErrors) // new ones have long answers
		_, err := fmt.Fprintf(conn, "POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nX-GpuFlight-Session-Id: %s\r\nContent-Length: %d\r\n\r\n%s", testSession, len(bad), bad)
		if err != nil {
			ended = true
			break
		}
	}
	assert.True(t, ended, "the server ends a connection whose answers nobody reads")
	s := r.server()
	r.stop()
	assert.EqualValues(t, s.cfg.MaxRequests, s.requests.Left())
	assert.EqualValues(t, s.cfg.MaxBufferedBytes, s.budget.Left())
}

func TestBodies_UnpackedBytes(t *testing.T) {
	r, url := serve(t, newExact(), nil, func(c *Config) { c.Protocols.HTTP.Get().MaxRequestBodySize = 1 << 20 })
	lines := joined(jobStart(testSession))
	require.Equal(t, http.StatusOK, send(t, url, stream(t, testSession, lines)).status)
	assert.EqualValues(t, len(lines), r.sum("otelcol_receiver_gpuflog_http_unpacked", ""))
	m := stream(t, testSession, "")
	m.body = bomb(t, 512<<20)
	began := time.Now()
	require.Equal(t, http.StatusRequestEntityTooLarge, send(t, url, m).status)
	t.Logf("refused after %s", time.Since(began))
	n := r.sum("otelcol_receiver_gpuflog_http_unpacked", "") - int64(len(lines))
	assert.Greater(t, n, int64(1<<20))
	assert.Less(t, n, int64(2<<20), "no more is unpacked than tells that it is too much")
	r.stop()
}
