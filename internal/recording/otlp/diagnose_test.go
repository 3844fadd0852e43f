// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// grpcServer serves traces only, as Jaeger does.
func grpcServer(t *testing.T, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(options...)
	ptraceotlp.RegisterGRPCServer(s, &acceptTraces{})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

type acceptTraces struct {
	ptraceotlp.UnimplementedGRPCServer
}

func (*acceptTraces) Export(context.Context, ptraceotlp.ExportRequest) (ptraceotlp.ExportResponse, error) {
	return ptraceotlp.NewExportResponse(), nil
}

// TestDiagnose_Servers provokes each problem with a server on loopback.
func TestDiagnose_Servers(t *testing.T) {
	answer := func(f http.HandlerFunc) *httptest.Server {
		s := httptest.NewServer(f)
		t.Cleanup(s.Close)
		return s
	}
	accepting := answer(func(http.ResponseWriter, *http.Request) {})
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	authority := filepath.Join(t.TempDir(), "authority.pem")
	require.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	mutual := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	mutual.Config.ErrorLog = log.New(io.Discard, "", 0)
	mutual.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	mutual.StartTLS()
	t.Cleanup(mutual.Close)
	key := answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	page := answer(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hello</html>") })
	tracesOnly := answer(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/traces" {
			http.NotFound(w, r)
		}
	})
	withoutOTLP := answer(http.NotFound)
	onlyGet := answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMethodNotAllowed) })
	failing := answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	_, collector := sink(t, "")
	refusing := grpcServer(t, grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, status.Error(codes.Unauthenticated, "no key")
	}))
	secureGRPC := grpcServer(t, grpc.Creds(credentials.NewServerTLSFromCert(&secure.TLS.Certificates[0])))
	onlyTraces := grpcServer(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())

	for _, tc := range []struct {
		name, url, protocol string
		env                 []string
		cause, fix          string // {} is the address
	}{
		{"http accepted", accepting.URL, "http/protobuf", nil, "", ""},
		{"grpc accepted", "http://" + collector.Endpoint(), "grpc", nil, "", ""},
		{"https accepted", secure.URL, "http/protobuf", []string{"OTEL_EXPORTER_OTLP_CERTIFICATE", authority}, "", ""},
		{"nothing listens", "http://" + gone.Addr().String(), "http/protobuf", nil, "nothing listens at {}", "run otelcol-gpuflight --config config/local.yaml, set --endpoint, or record into a file with --output"},
		{"nothing listens to grpc", "http://" + gone.Addr().String(), "grpc", nil, "nothing listens at {}", "run otelcol-gpuflight --config config/local.yaml, set --endpoint, or record into a file with --output"},
		{"silent", "http://" + silent.Addr().String(), "http/protobuf", nil, "{} does not answer", "check the address, and that no firewall drops the connection"},
		{"silent grpc", "http://" + silent.Addr().String(), "grpc", nil, "{} does not answer", "check the address, and that no firewall drops the connection"},
		{"http to grpc", "http://" + collector.Endpoint(), "http/protobuf", nil, "this port speaks gRPC: {}", "use --protocol grpc"},
		{"grpc to http", accepting.URL, "grpc", nil, "this port speaks HTTP: {}", "use --protocol http/protobuf"},
		{"http to https", "http://" + secure.Listener.Addr().String(), "http/protobuf", nil, "this port requires TLS: {}", "use https://{}"},
		{"grpc to https", "http://" + secure.Listener.Addr().String(), "grpc", nil, "this port requires TLS: {}", "use https://{}"},
		{"https to http", "https://" + accepting.Listener.Addr().String(), "http/protobuf", nil, "this port does not use TLS: {}", "use http://{}"},
		{"grpc with TLS to grpc", "https://" + collector.Endpoint(), "grpc", nil, "this port does not use TLS: {}", "use http://{}"},
		{"https to grpc with TLS", "https://" + secureGRPC, "http/protobuf", []string{"OTEL_EXPORTER_OTLP_CERTIFICATE", authority}, "this port speaks gRPC: {}", "use --protocol grpc"},
		{"grpc with TLS to https", secure.URL, "grpc", []string{"OTEL_EXPORTER_OTLP_CERTIFICATE", authority}, "this port speaks HTTP: {}", "use --protocol http/protobuf"},
		{"untrusted", secure.URL, "http/protobuf", nil, "the certificate of {} is not trusted: its authority is unknown", "set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of its authority"},
		{"untrusted grpc", "https://" + secureGRPC, "grpc", nil, "the certificate of {} is not trusted: its authority is unknown", "set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of its authority"},
		{"client certificate", mutual.URL, "http/protobuf", []string{"OTEL_EXPORTER_OTLP_CERTIFICATE", authority}, "{} requires a client certificate", "set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY"},
		{"key", key.URL, "http/protobuf", nil, "{} refuses the key: 401 Unauthorized", "set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20KEY with a valid key"},
		{"grpc key", "http://" + refusing, "grpc", nil, "{} refuses the key: Unauthenticated: no key", "set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20KEY with a valid key"},
		{"traces only", tracesOnly.URL, "http/protobuf", nil, "{} accepts traces only, and has no logs and no metrics", "set OTEL_LOGS_EXPORTER=none and OTEL_METRICS_EXPORTER=none, or send to a Collector that forwards traces"},
		{"grpc traces only", "http://" + onlyTraces, "grpc", nil, "{} accepts traces only, and has no logs and no metrics", "set OTEL_LOGS_EXPORTER=none and OTEL_METRICS_EXPORTER=none, or send to a Collector that forwards traces"},
		{"path", tracesOnly.URL + "/v1/traces", "http/protobuf", nil, "{} has no OTLP: 404 Not Found", "leave out the path in --endpoint: gpuflight adds /v1/traces"},
		{"web page", page.URL, "http/protobuf", nil, "{} has no OTLP: the answer is a web page, not OTLP", "use the port of a collector: 4318 for HTTP, 4317 for gRPC"},
		{"no OTLP", withoutOTLP.URL, "http/protobuf", nil, "{} has no OTLP: 404 Not Found", "use the port of a collector: 4318 for HTTP, 4317 for gRPC"},
		{"UI", onlyGet.URL, "http/protobuf", nil, "{} has no OTLP: 405 Method Not Allowed", "use the port of a collector: 4318 for HTTP, 4317 for gRPC"},
		{"server error", failing.URL, "http/protobuf", nil, "{} rejects telemetry: 500 Internal Server Error", "see the log of the collector"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, testSettings(t, append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT", tc.url, "OTEL_EXPORTER_OTLP_PROTOCOL", tc.protocol}, tc.env...)...), nil)
			found := c.Diagnose(within(t, 2*time.Second))
			if tc.cause == "" {
				assert.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			_, address, _ := strings.Cut(tc.url, "://")
			address, _, _ = strings.Cut(address, "/")
			assert.Equal(t, Problem{strings.ReplaceAll(tc.cause, "{}", address), strings.ReplaceAll(tc.fix, "{}", address)}, found[0])
			if tc.name != "grpc key" { // its other services do not exist
				assert.Len(t, found, 1, "all signals have the same problem")
			}
		})
	}
	t.Run("unknown host", func(t *testing.T) {
		c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.invalid:4318"), nil)
		found := c.Diagnose(within(t, 10*time.Second))
		require.Len(t, found, 1)
		assert.Equal(t, "the host collector.invalid is unknown to the name server", found[0].Cause)
	})
	t.Run("one signal elsewhere", func(t *testing.T) {
		c := start(t, testSettings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", accepting.URL, "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://"+gone.Addr().String()+"/v1/logs"), nil)
		found := c.Diagnose(within(t, 10*time.Second))
		require.Len(t, found, 1)
		assert.Equal(t, "nothing listens at "+gone.Addr().String(), found[0].Cause)
	})
	t.Run("file", func(t *testing.T) {
		c := start(t, testSettings(t, "GPUFLIGHT_OUTPUT", filepath.Join(t.TempDir(), "out.jsonl")), nil)
		assert.Empty(t, c.Diagnose(t.Context()))
	})
}
