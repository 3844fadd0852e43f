// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/bearertokenauthextension"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// withToken returns the started standard extension that requires a token.
func withToken(t *testing.T, token string) extension {
	t.Helper()
	f := bearertokenauthextension.NewFactory()
	cfg := f.CreateDefaultConfig().(*bearertokenauthextension.Config)
	cfg.BearerToken = configopaque.String(token)
	c, err := f.Create(context.Background(), extensiontest.NewNopSettings(f.Type()), cfg)
	require.NoError(t, err)
	require.NoError(t, c.Start(context.Background(), componenttest.NewNopHost()))
	t.Cleanup(func() { assert.NoError(t, c.Shutdown(context.Background())) })
	return extension{id: component.NewID(f.Type()), component: c}
}

func TestAuth_WithoutToken(t *testing.T) {
	auth := withToken(t, "gpfl-secret")
	e := newExact()
	r, url := serve(t, e, nil, func(c *Config) {
		c.Protocols.HTTP.Get().Auth = configoptional.Some(confighttp.AuthConfig{Config: configauth.Config{AuthenticatorID: auth.id}})
	}, auth)
	window := stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1)))
	line := enveloped(t, "system", hosts(testSession, 2))
	for _, m := range []message{window, line, completed(testSession), {path: "/api/v1/events/none"}, {path: "/"}, {path: "/api/v1/events"}} {
		for name, token := range map[string]string{"none": "", "wrong": "Bearer gpfl-other", "another scheme": "Basic gpfl-secret"} {
			if m.headers == nil {
				m.headers = map[string]string{}
			}
			m.headers["Authorization"] = token
			a := send(t, url, m)
			assert.Equal(t, http.StatusUnauthorized, a.status, "%s with %s", m.path, name)
		}
	}
	assert.Empty(t, e.all())
	assert.Zero(t, r.sum("otelcol_receiver_gpuflog_http_requests", ""), "no handler saw any of it")
	resp, err := http.Get(url + "/api/v1/info/version")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusOK, resp.StatusCode, "the version needs no token")
	for _, m := range []message{window, line, completed(testSession)} {
		m.headers["Authorization"] = "Bearer gpfl-secret"
		assert.Equal(t, http.StatusOK, send(t, url, m).status)
	}
	assert.Equal(t, 2, e.count("point ", "system.cpu.utilization"))
	r.stop()
}

// authority issues certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
	n    int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.make("ca", nil)
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// make writes name.pem and name.key.
func (a *authority) make(name string, usage []x509.ExtKeyUsage) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	a.n++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.n), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: usage, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	parent, signer := a.cert, a.key
	if usage == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	require.NoError(a.t, os.WriteFile(a.path(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(a.t, os.WriteFile(a.path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600))
	return cert, key
}

// client returns a client that trusts the authority. It sends a certificate if name is not empty.
func (a *authority) client(name string) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	cfg := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if name != "" {
		pair, err := tls.LoadX509KeyPair(a.path(name+".pem"), a.path(name+".key"))
		require.NoError(a.t, err)
		cfg.Certificates = []tls.Certificate{pair}
	}
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	a.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 10 * time.Second}
}

func TestAuth_ClientCertificates(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	a.make("server", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth})
	a.make("node", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth})
	stranger.make("node", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth})
	m := stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1)))
	for _, mutual := range []bool{false, true} {
		e := newExact()
		r, url := serve(t, e, nil, func(c *Config) {
			s := configtls.ServerConfig{Config: configtls.Config{CertFile: a.path("server.pem"), KeyFile: a.path("server.key")}}
			if mutual {
				s.ClientCAFile = a.path("ca.pem")
			}
			c.Protocols.HTTP.Get().TLS = configoptional.Some(s)
		})
		url = strings.Replace(url, "http:", "https:", 1)
		_, err := try(t.Context(), stranger.client(""), url, m)
		require.ErrorContains(t, err, "certificate", "the client must know the server")
		plain, err := try(t.Context(), http.DefaultClient, strings.Replace(url, "https:", "http:", 1), m)
		assert.True(t, err != nil || plain.status == http.StatusBadRequest, "no plain HTTP on a TLS port")
		if mutual {
			_, err = try(t.Context(), a.client(""), url, m)
			require.Error(t, err, "without a certificate")
			foreign := a.client("")
			pair, err := tls.LoadX509KeyPair(stranger.path("node.pem"), stranger.path("node.key"))
			require.NoError(t, err)
			foreign.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{pair}
			_, err = try(t.Context(), foreign, url, m)
			require.Error(t, err, "with another authority's certificate")
			assert.Empty(t, e.all())
		}
		client := a.client("node")
		ok, err := try(t.Context(), client, url, m)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, ok.status)
		assert.Equal(t, 1, e.count("point ", "system.cpu.utilization"))
		client.CloseIdleConnections()
		r.stop()
	}
}

// zeros is an endless body of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// bomb returns gzip that decompresses to size bytes.
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

// TestBodies_GzipBombMemory measures the whole process's memory, including the client's.
func TestBodies_GzipBombMemory(t *testing.T) {
	e := newExact()
	r, url := serve(t, e, nil, nil)
	body := bomb(t, maxWindowBytes+64<<20) // no more is ever read
	m := message{path: "/api/v1/events/stream", body: body, headers: map[string]string{
		"Content-Encoding": "gzip", "X-GpuFlight-Session-Id": testSession,
	}}
	line := m
	line.path = "/api/v1/events/kernel_event"
	send(t, url, stream(t, testSession, joined(jobStart(testSession)))) // the client's connection is there
	runtime.GC()
	idle := inUse()
	stop, peak := make(chan struct{}), idle
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				peak = max(peak, inUse())
			}
		}
	})
	for range 2 {
		for _, m := range []message{m, line} {
			a := send(t, url, m)
			assert.Equal(t, http.StatusRequestEntityTooLarge, a.status, a.text)
			assert.Contains(t, a.Error, "unpacked")
		}
	}
	close(stop)
	watch.Wait()
	assert.Less(t, peak-idle, uint64(64<<20))
	r.stop()
}

// inUse returns the memory that the process has not returned to the system.
func inUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

func TestRequests_SlowClients(t *testing.T) {
	r, url := serve(t, newExact(), nil, func(c *Config) {
		c.Protocols.HTTP.Get().ReadTimeout = 300 * time.Millisecond
		c.Protocols.HTTP.Get().MaxRequests = 2
	})
	defer r.stop()
	for range 2 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, err = conn.Write([]byte("POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nx"))
		require.NoError(t, err)
	}
	eventually(t, "both are refused", func() bool { return r.sum("otelcol_receiver_gpuflog_http_requests", "4") >= 2 })
	m := stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1)))
	eventually(t, "room for another", func() bool { // which may be too slow for this time-out too
		a, err := try(t.Context(), http.DefaultClient, url, m)
		return err == nil && a.status == http.StatusOK
	})
}

func TestRequests_Bound(t *testing.T) {
	r, url := serve(t, newExact(), nil, func(c *Config) { c.Protocols.HTTP.Get().MaxRequests = 1 })
	defer r.stop()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	_, err = conn.Write([]byte("POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx"))
	require.NoError(t, err)
	m := stream(t, testSession, joined(jobStart(testSession)))
	eventually(t, "a refusal", func() bool {
		a := send(t, url, m)
		return a.status == http.StatusTooManyRequests && a.header.Get("Retry-After") == "1"
	})
	require.NoError(t, conn.Close())
	eventually(t, "room again", func() bool { return send(t, url, m).status == http.StatusOK })
}

func TestBytes_Bound(t *testing.T) {
	r, url := serve(t, newExact(), nil, func(c *Config) {
		c.Protocols.HTTP.Get().MaxRequestBodySize = 1 << 20
		c.Protocols.HTTP.Get().MaxBufferedBytes = 1 << 20
	})
	defer r.stop()
	large := append([]byte("POST /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"), make([]byte, 900000)...)
	m := stream(t, testSession, "")
	m.headers["Content-Encoding"], m.body = "identity", []byte(strings.Repeat(jobStart(testSession)+"\n", 2000))
	eventually(t, "a refusal", func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, err = conn.Write(large)
		require.NoError(t, err)
		time.Sleep(50 * time.Millisecond) // or else this one may be refused
		return send(t, url, m).status == http.StatusTooManyRequests
	})
	eventually(t, "room again", func() bool { return send(t, url, m).status == http.StatusOK })
}

func TestShutdown_HangingPipeline(t *testing.T) {
	e := newExact()
	hang := make(chan struct{})
	s := &hanging{exact: e, until: hang}
	r, url := serve(t, s, nil, nil)
	answered := make(chan struct{})
	m := stream(t, testSession, joined(jobStart(testSession), hosts(testSession, 1)))
	go func() {
		defer close(answered)
		_, _ = try(context.Background(), http.DefaultClient, url, m)
	}()
	eventually(t, "the delivery", func() bool { return s.called.Load() })
	r.receiver().grace = 500 * time.Millisecond
	for _, c := range r.rs {
		_ = c.Shutdown(context.Background()) // as the Collector does it: without an end
	}
	close(hang)
	<-answered
	assert.NoError(t, r.tel.Shutdown(context.Background()))
}

// hanging is a pipeline that returns when the delivery's context ends.
type hanging struct {
	*exact
	called atomic.Bool
	until  chan struct{}
}

func (h *hanging) ConsumeMetrics(ctx context.Context, _ pmetric.Metrics) error {
	h.called.Store(true)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.until:
		return nil
	}
}
