// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package security

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var cli = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}

// target is a Collector with config/local.yaml and the settings of docs/keys.md.
type target struct {
	t                                  *testing.T
	process                            *process.Process
	state, ui, otlp, otlpHTTP, gpuflog string
	client                             *http.Client
	certificate                        string
	secrets                            []string
	output                             string
}

// settings returns the blocks of YAML of docs/keys.md.
func settings(t *testing.T) []string {
	page, err := os.ReadFile(filepath.Join(process.Root(t), "docs", "keys.md"))
	require.NoError(t, err)
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, m[1])
	}
	require.Len(t, blocks, 2)
	return blocks
}

// certify writes a certificate for 127.0.0.1 and its key.
func certify(t *testing.T, dir string) (certificate, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	certificate, key = filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
	require.NoError(t, os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return certificate, key
}

// start starts the Collector. Its key file has one key, with the scope read.
func start(t *testing.T) (c *target, reader string) {
	collector := process.Collector.Find(t)
	dir := t.TempDir()
	c = &target{
		t: t, state: filepath.Join(dir, "state"), ui: process.FreePort(t), otlp: process.FreePort(t),
		otlpHTTP: process.FreePort(t), gpuflog: process.FreePort(t), output: filepath.Join(dir, "output"),
	}
	reader = c.key("create", "reader", "--scope", "read", "--project", "team-a")
	var key string
	c.certificate, key = certify(t, dir)
	pool := x509.NewCertPool()
	text, err := os.ReadFile(c.certificate)
	require.NoError(t, err)
	require.True(t, pool.AppendCertsFromPEM(text))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
	t.Cleanup(transport.CloseIdleConnections)
	c.client = &http.Client{Transport: transport, Timeout: time.Minute}

	args := []string{"-c", `exec "$@" >"$OUTPUT" 2>&1`, "sh", collector, "--config", filepath.Join(process.Root(t), "config", "local.yaml")}
	blocks := settings(t)
	blocks[1] = strings.NewReplacer("/etc/otelcol-gpuflight/server.crt", c.certificate, "/etc/otelcol-gpuflight/server.key", key).Replace(blocks[1])
	for i, block := range append(blocks, fmt.Sprintf(`
receivers:
  gpuflog:
    protocols:
      http: {endpoint: "%s", channel_timeout: 100ms, auth: {authenticator: api_key_auth}}
`, c.gpuflog)) {
		path := filepath.Join(dir, fmt.Sprint(i, ".yaml"))
		require.NoError(t, os.WriteFile(path, []byte(block), 0o600))
		args = append(args, "--config", path)
	}
	_, port, _ := net.SplitHostPort(process.FreePort(t))
	for name, value := range map[string]string{
		"STATE": c.state, "LOGS": filepath.Join(dir, "logs"), "LISTEN": c.otlp, "LISTEN_HTTP": c.otlpHTTP, "UI": c.ui, "METRICS_PORT": port, "PROMETHEUS_PORT": "0",
	} {
		t.Setenv("GPUFLIGHT_"+name, value)
	}
	t.Setenv("OUTPUT", c.output)
	c.process = process.Start(t, "/bin/sh", args...)
	process.Eventually(t, 2*time.Minute, "the Collector is ready", func() bool { return strings.Contains(c.log(), process.Ready) })
	return c, reader
}

func (c *target) log() string {
	b, err := os.ReadFile(c.output)
	if err != nil && !os.IsNotExist(err) {
		require.NoError(c.t, err)
	}
	return string(b)
}

// audit returns the fields of the audit lines.
func (c *target) audit() (lines []map[string]any) {
	for line := range strings.Lines(c.log()) {
		if _, fields, ok := strings.Cut(line, "\taudit\t"); ok {
			var m map[string]any
			require.NoError(c.t, json.Unmarshal([]byte(fields), &m), line)
			lines = append(lines, m)
		}
	}
	return lines
}

// key runs gpuflight key and returns its output.
func (c *target) key(args ...string) string {
	cmd := exec.CommandContext(c.t.Context(), cli.Find(c.t), append([]string{"key", "--file", filepath.Join(c.state, "keys.json")}, args...)...)
	out, err := cmd.Output()
	require.NoError(c.t, err)
	text := strings.TrimSpace(string(out))
	if args[0] == "create" {
		c.secrets = append(c.secrets, text[14:])
	}
	return text
}

// request sends a request to the query API.
func (c *target) request(method, path, key string, header ...string) (code int, body string, h http.Header) {
	req, err := http.NewRequestWithContext(c.t.Context(), method, "https://"+c.ui+path, http.NoBody)
	require.NoError(c.t, err)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.do(req)
}

func (c *target) do(req *http.Request) (code int, body string, h http.Header) {
	res, err := c.client.Do(req)
	require.NoError(c.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(c.t, err)
	return res.StatusCode, string(text), res.Header
}

func spans(session string) ptraceotlp.ExportRequest {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("service.name", session)
	rs.Resource().Attributes().PutStr("service.instance.id", session)
	sp := rs.ScopeSpans().AppendEmpty().Spans().AppendEmpty()
	sp.SetTraceID(pcommon.TraceID{1})
	sp.SetSpanID(pcommon.SpanID{1})
	sp.SetName("step")
	sp.SetStartTimestamp(1_710_000_000_000_000_000)
	sp.SetEndTimestamp(1_710_000_001_000_000_000)
	return ptraceotlp.NewExportRequestFromTraces(td)
}

// sendGRPC sends a span of a session over gRPC.
func (c *target) sendGRPC(session, key string) codes.Code {
	conn, err := grpc.NewClient(c.otlp, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(c.t, err)
	defer func() { _ = conn.Close() }()
	ctx := c.t.Context()
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	_, err = ptraceotlp.NewGRPCClient(conn).Export(ctx, spans(session))
	return status.Code(err)
}

// sendHTTP sends a span of a session over HTTP.
func (c *target) sendHTTP(session, key string) int {
	body, err := spans(session).MarshalProto()
	require.NoError(c.t, err)
	return c.post("http://"+c.otlpHTTP+"/v1/traces", key, body, "Content-Type", "application/x-protobuf")
}

// sendLog sends a session in GPU Flight's protocol.
func (c *target) sendLog(session, key string) int {
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, _ = fmt.Fprintf(z, `{"version":1,"type":"job_start","pid":4242,"app":"%[1]s","session_id":"%[1]s","log_path":"demo","ts_ns":1710000000000000000,"hostname":"node-a","session_kind":"trace","profiling_engine":"nvidia.trace"}
{"type":"shutdown","pid":4242,"app":"%[1]s","session_id":"%[1]s","ts_ns":1710000001000000000}
`, session)
	require.NoError(c.t, z.Close())
	return c.post("http://"+c.gpuflog+"/api/v1/events/stream", key, body.Bytes(),
		"Content-Type", "application/x-ndjson", "Content-Encoding", "gzip", "X-GpuFlight-Session-Id", session)
}

func (c *target) post(url, key string, body []byte, header ...string) int {
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, url, bytes.NewReader(body))
	require.NoError(c.t, err)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	code, _, _ := c.do(req)
	return code
}

// sessions returns the ids of the sessions that a key shows.
func (c *target) sessions(key string) (ids []string) {
	code, body, _ := c.request(http.MethodGet, "/api/v1/sessions", key)
	require.Equal(c.t, http.StatusOK, code, body)
	var page struct{ Sessions []struct{ ID string } }
	require.NoError(c.t, json.Unmarshal([]byte(body), &page))
	for _, s := range page.Sessions {
		ids = append(ids, s.ID)
	}
	return ids
}

func TestSecurity(t *testing.T) {
	c, reader := start(t)
	t.Cleanup(func() {
		log := c.log()
		for _, s := range c.secrets {
			assert.NotContains(t, log, s, "the log has a secret")
		}
	})
	ingestA := c.key("create", "ingest-a", "--scope", "ingest", "--project", "team-a")
	ingestB := c.key("create", "ingest-b", "--scope", "ingest", "--project", "team-b")
	ingest := c.key("create", "ingest", "--scope", "ingest")
	readerB := c.key("create", "reader-b", "--scope", "read", "--project", "team-b")
	readerDefault := c.key("create", "reader-default", "--scope", "read")
	admin := c.key("create", "admin", "--scope", "admin", "--project", "team-a")
	expiring := c.key("create", "expiring", "--scope", "read,ingest,admin", "--expires", "1s")
	revoked := c.key("create", "revoked", "--scope", "read,ingest,admin", "--project", "team-a")
	require.Equal(t, codes.OK, c.sendGRPC("before", revoked), "a new key is valid without a restart")
	c.key("revoke", revoked)
	time.Sleep(time.Second + 100*time.Millisecond) // the expiry

	t.Run("receivers reject keys", func(t *testing.T) {
		for what, key := range map[string]string{
			"none": "", "wrong": ingestA[:14] + ingestB[14:], "revoked": revoked, "expired": expiring, "wrong scope": admin, "no key": "hello",
		} {
			assert.Equal(t, codes.Unauthenticated, c.sendGRPC("session-x", key), "gRPC, %s", what)
			assert.Equal(t, http.StatusUnauthorized, c.sendHTTP("session-x", key), "HTTP, %s", what)
			assert.Equal(t, http.StatusUnauthorized, c.sendLog("session-x", key), "gpuflog, %s", what)
			if what != "wrong scope" {
				code, _, _ := c.request(http.MethodGet, "/api/v1/sessions", key)
				assert.Equal(t, http.StatusUnauthorized, code, "API, %s", what)
			}
		}
		code, body, _ := c.request(http.MethodGet, "/api/v1/sessions", ingestA)
		assert.Equal(t, http.StatusForbidden, code)
		assert.JSONEq(t, `{"error":"the key does not have the required scope read"}`, body)
		code, body, _ = c.request(http.MethodDelete, "/api/v1/sessions/before", reader)
		assert.Equal(t, http.StatusForbidden, code)
		assert.JSONEq(t, `{"error":"the key does not have the required scope admin"}`, body)
	})

	t.Run("projects", func(t *testing.T) {
		assert.Equal(t, codes.OK, c.sendGRPC("grpc-a", ingestA))
		assert.Equal(t, http.StatusOK, c.sendHTTP("http-a", ingestA))
		assert.Equal(t, http.StatusOK, c.sendLog("log-a", ingestA))
		assert.Equal(t, codes.OK, c.sendGRPC("grpc-b", ingestB))
		assert.Equal(t, http.StatusOK, c.sendHTTP("http-b", ingestB))
		assert.Equal(t, http.StatusOK, c.sendLog("log-b", ingestB))
		assert.Equal(t, codes.OK, c.sendGRPC("grpc-default", ingest))
		assert.Equal(t, codes.OK, c.sendGRPC("same", ingestA))
		assert.Equal(t, codes.OK, c.sendGRPC("same", ingestB), "both projects have a session with this id")
		process.Eventually(t, time.Minute, "the sessions of GPU Flight's protocol are delivered", func() bool {
			return slices.Contains(c.sessions(reader), "log-a") && slices.Contains(c.sessions(readerB), "log-b")
		})
		for key, want := range map[string][]string{
			reader: {"before", "grpc-a", "http-a", "log-a", "same"}, readerB: {"grpc-b", "http-b", "log-b", "same"}, readerDefault: {"grpc-default"},
			admin: {"before", "grpc-a", "http-a", "log-a", "same"},
		} {
			assert.ElementsMatch(t, want, c.sessions(key))
		}
		for _, path := range []string{"", "/timeline", "/kernels", "/operations", "/spans", "/scopes", "/logs", "/series", "/texts", "/export"} {
			code, body, _ := c.request(http.MethodGet, "/api/v1/sessions/grpc-b"+path, admin)
			assert.Equal(t, http.StatusNotFound, code, "%s: %.200s", path, body)
		}
		for _, method := range []string{http.MethodDelete, http.MethodPut} {
			path := map[string]string{http.MethodDelete: "/api/v1/sessions/grpc-b", http.MethodPut: "/api/v1/sessions/grpc-b/pin"}[method]
			code, _, _ := c.request(method, path, admin)
			assert.Equal(t, http.StatusNotFound, code)
		}
		code, _, _ := c.request(http.MethodDelete, "/api/v1/sessions/same", admin)
		assert.Equal(t, http.StatusNoContent, code)
		assert.NotContains(t, c.sessions(reader), "same")
		assert.Contains(t, c.sessions(readerB), "same")

		// An exported session belongs to the project of the key that imports it.
		code, file, _ := c.request(http.MethodGet, "/api/v1/sessions/http-b/export", readerB)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, http.StatusCreated, c.post("https://"+c.ui+"/api/v1/import", admin, []byte(file)))
		assert.Contains(t, c.sessions(reader), "http-b")
		assert.Equal(t, http.StatusForbidden, c.post("https://"+c.ui+"/api/v1/import", reader, []byte(file)))
	})

	t.Run("login over TLS", func(t *testing.T) {
		login := func(key string, header ...string) (int, string, http.Header) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+c.ui+"/api/v1/login", strings.NewReader(`{"key":"`+key+`"}`))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			for i := 0; i+1 < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			return c.do(req)
		}
		key := c.key("create", "browser", "--scope", "admin", "--project", "team-a")
		code, body, h := login(key)
		require.Equal(t, http.StatusOK, code, body)
		cookie := h.Get("Set-Cookie")
		assert.Regexp(t, `; HttpOnly; Secure; SameSite=Strict$`, cookie)
		assert.NotContains(t, cookie, key[14:])
		cookie, _, _ = strings.Cut(cookie, ";")
		code, _, _ = c.request(http.MethodGet, "/api/v1/sessions/grpc-a", "", "Cookie", cookie)
		assert.Equal(t, http.StatusOK, code)
		for what, header := range map[string][]string{
			"no header": {}, "other origin": {"Origin", "https://evil.example"}, "other site": {"Sec-Fetch-Site", "cross-site"},
		} {
			code, _, _ = c.request(http.MethodDelete, "/api/v1/sessions/grpc-a", "", append(header, "Cookie", cookie)...)
			assert.Equal(t, http.StatusForbidden, code, what)
		}
		code, _, _ = c.request(http.MethodPut, "/api/v1/sessions/grpc-a/pin", "", "Cookie", cookie, "Origin", "https://"+c.ui)
		assert.Equal(t, http.StatusNoContent, code)
		c.key("revoke", key)
		code, _, _ = c.request(http.MethodGet, "/api/v1/sessions/grpc-a", "", "Cookie", cookie)
		assert.Equal(t, http.StatusUnauthorized, code, "a revoked key ends its logins")
		code, _, h = login(ingestA)
		assert.Equal(t, http.StatusForbidden, code)
		assert.Empty(t, h.Get("Set-Cookie"))
		code, _, _ = login(reader, "Origin", "https://evil.example")
		assert.Equal(t, http.StatusForbidden, code)
		code, _, _ = login(strings.Repeat("x", 2<<20))
		assert.Equal(t, http.StatusRequestEntityTooLarge, code)
	})

	t.Run("command line", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), cli.Find(t), "sessions", "--url", "https://"+c.ui, "list")
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+c.certificate)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		assert.Equal(t, "gpuflight sessions: the Collector rejected the request: the request has no key: send the header Authorization: Bearer KEY\n", string(out))
		cmd = exec.CommandContext(t.Context(), cli.Find(t), "sessions", "--url", "https://"+c.ui, "list")
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+c.certificate, "GPUFLIGHT_KEY="+reader)
		out, err = cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "grpc-a")
	})

	t.Run("paths", func(t *testing.T) {
		for _, path := range []string{
			"/../../../../etc/passwd", "/..%2f..%2f..%2fetc%2fpasswd", "/api/v1/sessions/..%2f..%2f..%2f..%2fkeys.json", "/api/v1/sessions/..%2f..%2fteam-b%2fgrpc-b/export",
			"/api/v1/sessions/%2e%2e/export", "/api/v1/sessions/team-b%2fgrpc-b/export", "/api/v1/sessions/grpc-a/texts/..%2f..%2fkeys.json", "/api/v1/sessions/grpc-a%00/export",
		} {
			code, body, _ := c.request(http.MethodGet, path, admin)
			if code == http.StatusOK {
				assert.Contains(t, body, "<!doctype html>", path) // a route of the UI
			}
			assert.NotContains(t, body, "sha256", path)
			assert.NotContains(t, body, "root:", path)
			code, _, _ = c.request(http.MethodDelete, path, admin)
			assert.GreaterOrEqual(t, code, 300, path)
		}
		assert.FileExists(t, filepath.Join(c.state, "keys.json"))
		assert.Contains(t, c.sessions(readerB), "grpc-b")
	})

	t.Run("large requests", func(t *testing.T) {
		large := make([]byte, 21<<20)
		assert.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, c.post("http://"+c.otlpHTTP+"/v1/traces", ingestA, large, "Content-Type", "application/x-protobuf"))
		assert.Equal(t, http.StatusRequestEntityTooLarge, c.post("https://"+c.ui+"/api/v1/sessions", admin, large))
		code, _, _ := c.request(http.MethodGet, "/api/v1/health", admin, "X", strings.Repeat("x", 100<<10))
		assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, code)
	})

	t.Run("slow requests", func(t *testing.T) {
		var wg sync.WaitGroup
		slow := func(what, address string, secure bool, text string) {
			wg.Go(func() {
				conn, err := net.Dial("tcp", address)
				if secure && err == nil && text != "" {
					conn = tls.Client(conn, &tls.Config{RootCAs: c.client.Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13})
				}
				if !assert.NoError(t, err) {
					return
				}
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				_, err = conn.Write([]byte(text))
				assert.NoError(t, err, what)
				_, err = io.Copy(io.Discard, conn)
				var timeout net.Error
				assert.False(t, err != nil && assert.ErrorAs(t, err, &timeout) && timeout.Timeout(), "%s: the server keeps the connection", what)
			})
		}
		for range 20 {
			slow("no handshake", c.ui, true, "")
			slow("header", c.ui, true, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
			slow("OTLP header", c.otlpHTTP, false, "POST /v1/traces HTTP/1.1\r\nHost: x\r\nX: ")
		}
		code, _, _ := c.request(http.MethodGet, "/api/v1/health", admin)
		assert.Equal(t, http.StatusOK, code, "others are served meanwhile")
		wg.Wait()
	})

	t.Run("policy", func(t *testing.T) {
		_, _, h := c.request(http.MethodGet, "/", "")
		assert.Contains(t, h.Get("Content-Security-Policy"), "default-src 'self';")
		assert.NotContains(t, h.Get("Content-Security-Policy"), "unsafe")
	})

	t.Run("audit log", func(t *testing.T) {
		before := len(c.audit())
		// More lines than the Collector's sampling keeps.
		for i := range 60 {
			code, _, _ := c.request(http.MethodDelete, fmt.Sprintf("/api/v1/sessions/none-%d", i), admin)
			require.Equal(t, http.StatusNotFound, code)
		}
		lines := c.audit()
		deleted := map[any]bool{}
		for _, line := range lines[before:] {
			if line["event"] == "delete" {
				assert.Equal(t, "admin", line["subject"])
				assert.Equal(t, "team-a", line["project"])
				assert.Equal(t, "127.0.0.1", line["client"])
				deleted[line["path"]] = true
			}
		}
		assert.Len(t, deleted, 60)
		events := map[any]int{}
		for _, line := range lines {
			events[line["event"]]++
		}
		for _, event := range []string{"keys", "login", "refused", "pin", "delete", "export", "import"} {
			assert.NotZero(t, events[event], "%s in %v", event, events)
		}
	})
}

func TestStart_Refused(t *testing.T) {
	collector := process.Collector.Find(t)
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys.yaml")
	require.NoError(t, os.WriteFile(keys, []byte(settings(t)[0]), 0o600))
	for _, tt := range []struct {
		what, ui string
		mode     os.FileMode
		args     []string
		want     string
	}{
		{"reachable without auth", "0.0.0.0:8686", 0, nil, "endpoint 0.0.0.0:8686 is reachable from other machines: set auth, or use 127.0.0.1"},
		{"no key file", "127.0.0.1:0", 0, []string{"--config", keys}, "no such file or directory: create the first key with gpuflight key create"},
		{"readable key file", "127.0.0.1:0", 0o644, []string{"--config", keys}, "keys.json has the permissions 0644: only its owner may write and its group may read (chmod 600)"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			state := t.TempDir()
			if tt.mode != 0 {
				c := &target{t: t, state: state}
				c.key("create", "a", "--scope", "read")
				require.NoError(t, os.Chmod(filepath.Join(state, "keys.json"), tt.mode))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, collector, append([]string{"--config", filepath.Join(process.Root(t), "config", "local.yaml")}, tt.args...)...)
			cmd.Env = append(os.Environ(), "GPUFLIGHT_STATE="+state, "GPUFLIGHT_LOGS="+state, "GPUFLIGHT_UI="+tt.ui,
				"GPUFLIGHT_LISTEN=127.0.0.1:0", "GPUFLIGHT_LISTEN_HTTP=127.0.0.1:0", "GPUFLIGHT_METRICS_PORT=0", "GPUFLIGHT_PROMETHEUS_PORT=0")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "%s", out)
			assert.Contains(t, string(out), tt.want)
		})
	}
}
