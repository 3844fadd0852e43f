// SPDX-License-Identifier: Apache-2.0

//go:build linux

package wire_test

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/certificates"
)

// otherToken is also valid and represents another client.
const otherToken = "gpfl-other-token"

// shipped is the Collector with config/gpuflog-http.yaml and additional configurations.
type shipped struct {
	process *process.Process
	store   *testsink.Store
	// address is the address for clients.
	address string
	state   string
}

// ship starts the Collector and returns when it is ready.
func ship(t *testing.T, more ...string) *shipped {
	t.Helper()
	binary := process.Collector.Find(t)
	store, backend := process.Sink(t)
	folder := t.TempDir()
	keys := filepath.Join(folder, "token")
	require.NoError(t, os.WriteFile(keys, []byte(token+"\n"+otherToken+"\n"), 0o600))
	s := &shipped{store: store, address: process.FreePort(t), state: filepath.Join(folder, "state")}
	_, metrics, err := net.SplitHostPort(process.FreePort(t))
	require.NoError(t, err)
	args := []string{
		"GPUFLIGHT_HTTP=" + s.address, "GPUFLIGHT_TOKEN_FILE=" + keys, "GPUFLIGHT_STATE=" + s.state,
		"GPUFLIGHT_OTLP_ENDPOINT=" + backend.Endpoint(), "GPUFLIGHT_OTLP_INSECURE=true", "GPUFLIGHT_METRICS_PORT=" + metrics,
		binary, "--config", filepath.Join(process.Root(t), "config", "gpuflog-http.yaml"),
	}
	for _, path := range more {
		args = append(args, "--config", path)
	}
	s.process = process.Start(t, "/usr/bin/env", args...)
	s.process.WaitOutput(process.Ready, time.Minute)
	return s
}

// memory returns the process's resident memory and its peak in bytes. It finds the process by the
// folder in its environment.
func (s *shipped) memory(t *testing.T) (now, peak int64) {
	t.Helper()
	mark := []byte("GPUFLIGHT_STATE=" + s.state + "\x00")
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, path := range environments {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, mark) {
			continue // another user's, or it has exited
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		require.NoError(t, err)
		for line := range strings.Lines(string(status)) {
			for name, to := range map[string]*int64{"VmRSS:": &now, "VmHWM:": &peak} {
				if rest, ok := strings.CutPrefix(line, name); ok {
					kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
					require.NoError(t, err)
					*to = kib << 10
				}
			}
		}
	}
	require.Positive(t, now, "the process is not to be found")
	return now, peak
}

// bomb returns gzip data that decompresses to the given number of zeros.
func bomb(t *testing.T, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	require.NoError(t, err)
	_, err = io.CopyN(z, zeros{}, size)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

// zeros is an endless stream of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestSecurity_GzipBomb sends 2 GiB of zeros in a few MiB of gzip to the shipped binary and reads
// its memory from the kernel.
func TestSecurity_GzipBomb(t *testing.T) {
	s := ship(t)
	w := windows(t, recording(t, "c3-h200-minigpt"))[0]
	require.Equal(t, http.StatusOK, connect(t, s.address).exchange(w.uploaded(s.address)).status)
	idle, before := s.memory(t)
	evil := w
	evil.gz = bomb(t, 2<<30)
	for range 3 {
		r := connect(t, s.address).exchange(evil.uploaded(s.address))
		assert.Equal(t, http.StatusRequestEntityTooLarge, r.status)
		assert.Contains(t, r.Error, "unpacked")
	}
	_, peak := s.memory(t)
	assert.Less(t, peak-idle, int64(64<<20), "bytes more than idle")
	t.Logf("%d MiB idle, peak %d MiB before and %d MiB after three bombs of %d KiB", idle>>20, before>>20, peak>>20, len(evil.gz)>>10)
	// It still accepts data.
	require.Equal(t, http.StatusOK, connect(t, s.address).exchange(w.uploaded(s.address)).status)
	s.process.Stop(20 * time.Second)
}

// over posts a window over TLS and returns the status.
func (w window) over(address string, config *tls.Config) (status int, err error) {
	req, err := http.NewRequest(http.MethodPost, "https://"+address+"/api/v1/events/stream", bytes.NewReader(w.gz))
	if err != nil {
		return 0, err
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + token, "Content-Encoding": "gzip", "Content-Type": "application/x-ndjson",
		"X-GpuFlight-Session-Id": w.session,
	} {
		req.Header.Set(name, value)
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if closed := resp.Body.Close(); err == nil {
		err = closed
	}
	return resp.StatusCode, err
}

// TestSecurity_DocumentedCertificates creates certificates and settings as in docs/deploying.md and
// runs config/gpuflog-http.yaml with them: TLS alone, then with client certificates.
func TestSecurity_DocumentedCertificates(t *testing.T) {
	mine, other := certificates.Make(t), certificates.Make(t)
	w := windows(t, recording(t, "c3-h200-minigpt"))[0]
	authorities := func(f certificates.Folder) *x509.CertPool {
		pool := x509.NewCertPool()
		text, err := os.ReadFile(f.Path("ca.pem"))
		require.NoError(t, err)
		require.True(t, pool.AppendCertsFromPEM(text))
		return pool
	}
	client := func(trusts certificates.Folder, shows *certificates.Folder) *tls.Config {
		c := &tls.Config{RootCAs: authorities(trusts), ServerName: "localhost", MinVersion: tls.VersionTLS12}
		if shows != nil {
			pair, err := tls.LoadX509KeyPair(shows.Path("node.pem"), shows.Path("node.key"))
			require.NoError(t, err)
			c.Certificates = []tls.Certificate{pair}
		}
		return c
	}
	settings := mine.Settings(t, "http-tls.yaml")
	mutual, err := os.ReadFile(settings)
	require.NoError(t, err)
	// Without the line for client certificates.
	alone := mine.Path("http-tls-alone.yaml")
	require.Equal(t, 1, strings.Count(string(mutual), "client_ca_file:"))
	require.NoError(t, os.WriteFile(alone, []byte(strings.Replace(string(mutual), "client_ca_file:", "# client_ca_file:", 1)), 0o600))

	for name, path := range map[string]string{"TLS": alone, "TLS with clients' certificates": settings} {
		t.Run(name, func(t *testing.T) {
			s := ship(t, path)
			_, err := w.over(s.address, client(other, &mine))
			require.ErrorContains(t, err, "certificate", "the client must know the server")
			resp, err := http.Post("http://"+s.address+"/api/v1/events/stream", "application/x-ndjson", nil)
			if err == nil {
				require.NoError(t, resp.Body.Close())
				assert.Equal(t, http.StatusBadRequest, resp.StatusCode, "no plain HTTP")
			}
			for who, shows := range map[string]*certificates.Folder{"nobody": nil, "another authority's": &other} {
				status, err := w.over(s.address, client(mine, shows))
				if path == settings {
					require.Error(t, err, who)
					continue
				}
				require.NoError(t, err, who)
				assert.Equal(t, http.StatusOK, status, who)
			}
			if path == settings {
				assert.Zero(t, s.store.Counts(), "nothing came in without a certificate")
			}
			status, err := w.over(s.address, client(mine, &mine))
			require.NoError(t, err)
			assert.Equal(t, http.StatusOK, status)
			process.Eventually(t, time.Minute, fmt.Sprintf("something of the window %s at the backend", w.channel), func() bool {
				return s.store.Counts() != testsink.Counts{}
			})
			s.process.Stop(20 * time.Second)
		})
	}
}
