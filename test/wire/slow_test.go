// SPDX-License-Identifier: Apache-2.0

//go:build linux

package wire_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// post sends a window with a token over its own connection and returns the status.
func (w window) post(t *testing.T, address, token string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/api/v1/events/stream", bytes.NewReader(w.gz))
	require.NoError(t, err)
	for name, value := range map[string]string{
		"Authorization": "Bearer " + token, "Content-Encoding": "gzip", "Content-Type": "application/x-ndjson",
		"X-GpuFlight-Session-Id": w.session,
	} {
		req.Header.Set(name, value)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(req)
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

// slow opens connections that each send the text and then stall.
func slow(t *testing.T, address, text string, n int) {
	t.Helper()
	for range n {
		conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, text)
		require.NoError(t, err)
	}
}

// TestClients_Slow opens many connections of one token to the shipped binary that stall in every
// phase of a request. Another token is served, and SIGTERM ends the process in time.
func TestClients_Slow(t *testing.T) {
	s := ship(t)
	w := windows(t, recording(t, "c3-h200-minigpt"))[0]
	_, before := s.memory(t)
	header := "POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + otherToken + "\r\n"
	body := header + "Content-Encoding: gzip\r\nContent-Length: 100000\r\n\r\nx"
	slow(t, s.address, body, 300)
	slow(t, s.address, header+"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde", 50)
	slow(t, s.address, header+"Content-Le", 50)
	slow(t, s.address, "", 50)
	// The server refuses without reading the body and closes the connection. A short body is sent
	// before that, so the client always reads the answer.
	short := window{session: w.session, gz: []byte("x")}
	process.Eventually(t, time.Minute, "the other token's share is used up", func() bool {
		return short.post(t, s.address, otherToken) == http.StatusTooManyRequests
	})
	began := time.Now()
	assert.Equal(t, http.StatusOK, w.post(t, s.address, token))
	served := time.Since(began)
	assert.Less(t, served, 10*time.Second)
	_, peak := s.memory(t)
	began = time.Now()
	s.process.Stop(15 * time.Second)
	t.Logf("served after %s, stopped after %s, peak memory %d MiB before and %d MiB with 450 slow clients",
		served.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), before>>20, peak>>20)
}

// TestClients_ForeignSession sends a window to a session of another token and tries to end it.
func TestClients_ForeignSession(t *testing.T) {
	s := ship(t)
	list := windows(t, recording(t, "c3-h200-minigpt"))
	require.Equal(t, http.StatusOK, list[0].post(t, s.address, token))
	foreign := list[1]
	foreign.gz = list[0].gz
	for _, w := range []window{list[1], foreign} {
		assert.Equal(t, http.StatusConflict, w.post(t, s.address, otherToken))
	}
	end, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("http://%s/api/v1/events/session-complete", s.address), nil)
	require.NoError(t, err)
	end.Header.Set("Authorization", "Bearer "+otherToken)
	end.Header.Set("X-GpuFlight-Session-Id", list[0].session)
	resp, err := http.DefaultClient.Do(end)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusOK, resp.StatusCode, "as for a session that is not known")
	for _, w := range list[1:] {
		require.Equal(t, http.StatusOK, w.post(t, s.address, token))
	}
	process.Eventually(t, time.Minute, "the session at the backend", func() bool { return s.store.Distinct().Spans > 0 })
	s.process.Stop(20 * time.Second)
}
