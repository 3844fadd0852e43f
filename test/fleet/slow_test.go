// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
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
	"google.golang.org/grpc/status"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// stalled is a connection that sends some bytes and then stalls.
type stalled struct {
	net.Conn
	left   int
	ctx    context.Context
	close  sync.Once
	closed chan struct{}
}

func (s *stalled) Write(b []byte) (int, error) {
	if s.left < len(b) {
		select {
		case <-s.ctx.Done():
		case <-s.closed:
		}
		return 0, net.ErrClosed
	}
	s.left -= len(b)
	return s.Conn.Write(b)
}

func (s *stalled) Close() error {
	s.close.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// oneTrace returns a trace of one span with an attribute of the given size.
func oneTrace(number byte, size int) ptrace.Traces {
	td := ptrace.NewTraces()
	sp := td.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans().AppendEmpty()
	sp.SetTraceID(pcommon.TraceID{15: number})
	sp.SetSpanID(pcommon.SpanID{7: number})
	sp.SetName("span")
	sp.Attributes().PutStr("text", strings.Repeat("x", size))
	return td
}

func export(ctx context.Context, t *testing.T, address string, td ptrace.Traces, options ...grpc.DialOption) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	defer conn.Close()
	_, err = ptraceotlp.NewGRPCClient(conn).Export(ctx, ptraceotlp.NewExportRequestFromTraces(td))
	return err
}

// stall sends part of a request over gRPC and then nothing. It reconnects when the server closes
// the connection.
func stall(ctx context.Context, t *testing.T, address string, part int) {
	t.Helper()
	for ctx.Err() == nil {
		_ = export(ctx, t, address, oneTrace(1, 3<<20), grpc.WithContextDialer(func(dialing context.Context, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(dialing, "tcp", address)
			if err != nil {
				return nil, err
			}
			return &stalled{Conn: conn, left: part, ctx: ctx, closed: make(chan struct{})}, nil
		}))
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// connections returns the number of connections that a server on loopback has accepted.
func connections(t *testing.T, address string) (n int) {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	number, err := strconv.ParseUint(port, 10, 16)
	require.NoError(t, err)
	table, err := os.ReadFile("/proc/net/tcp")
	require.NoError(t, err)
	local := fmt.Sprintf("0100007F:%04X", number)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == local && f[3] == "01" { // established
			n++
		}
	}
	return n
}

// post sends bytes to the OTLP receiver over HTTP and returns the status.
func post(t *testing.T, address string, body io.Reader) (int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/v1/traces", body)
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-protobuf")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Body.Close()
}

// TestSlowOTLPClients opens connections to the OTLP receivers of the shipped configurations that
// send part of a request and then stall. It also sends requests above the limits. Another client is
// served meanwhile, memory stays bounded, and the HTTP receiver closes the slow connections.
func TestSlowOTLPClients(t *testing.T) {
	const (
		each = 40
		part = 1 << 20 // bytes that a slow client sends
		// read_timeout of the configurations is 10 s, and a connection over gRPC has 10 s.
		cutOff   = time.Minute
		stopping = 15 * time.Second
	)
	for _, name := range []string{"agent.yaml", "gateway.yaml"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, server := process.Sink(t, keys...)
			c := newCollector(t, name, map[string]string{"GPUFLIGHT_OTLP_ENDPOINT": server.Endpoint(), "GPUFLIGHT_LOGS": t.TempDir()}, map[string]any{
				"service": map[string]any{"pipelines": map[string]any{"traces": map[string]any{"receivers": []string{"otlp"}}}},
			})
			if name == "gateway.yaml" { // Kafka is not part of this test
				c.add(map[string]any{"service": map[string]any{"pipelines": map[string]any{
					"metrics": map[string]any{"receivers": []string{"otlp", "gpu_usage"}}, "logs": map[string]any{"receivers": []string{"otlp"}},
				}}})
			}
			c.run()
			overGRPC, overHTTP := c.env["GPUFLIGHT_LISTEN"], c.env["GPUFLIGHT_LISTEN_HTTP"]

			ctx, cancel := context.WithCancel(t.Context())
			var slow sync.WaitGroup
			defer slow.Wait()
			defer cancel()
			var ended sync.WaitGroup
			for range each {
				slow.Go(func() { stall(ctx, t, overGRPC, part) })
				conn, err := net.Dial("tcp", overHTTP)
				require.NoError(t, err)
				t.Cleanup(func() { _ = conn.Close() })
				_, err = fmt.Fprintf(conn, "POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: %d\r\n\r\n%s",
					3<<20, strings.Repeat("\n", part))
				require.NoError(t, err)
				ended.Go(func() {
					_ = conn.SetReadDeadline(time.Now().Add(cutOff))
					_, err := io.Copy(io.Discard, conn)
					assert.NoError(t, err, "a slow connection was not ended within %v", cutOff)
				})
			}
			began := time.Now()
			require.NoError(t, export(t.Context(), t, overGRPC, oneTrace(2, 100)))
			b, err := ptraceotlp.NewExportRequestFromTraces(oneTrace(3, 100)).MarshalProto()
			require.NoError(t, err)
			code, err := post(t, overHTTP, bytes.NewReader(b))
			require.NoError(t, err)
			assert.Equal(t, http.StatusOK, code)
			served := time.Since(began)
			assert.Less(t, served, 20*time.Second)

			err = export(t.Context(), t, overGRPC, oneTrace(4, 5<<20))
			assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
			b, err = ptraceotlp.NewExportRequestFromTraces(oneTrace(5, 25<<20)).MarshalProto()
			require.NoError(t, err)
			if code, err := post(t, overHTTP, bytes.NewReader(b)); err == nil { // the server may close the connection during the request
				assert.GreaterOrEqual(t, code, 400)
				assert.Less(t, code, 500)
			}
			require.NoError(t, export(t.Context(), t, overGRPC, oneTrace(6, 100)))

			process.Eventually(t, time.Minute, "the spans of the other client", func() bool { return store.Distinct().Spans >= 3 })
			ended.Wait()
			cutAfter := time.Since(began)
			assert.Equal(t, 3, store.Distinct().Spans)
			// More equally slow connections follow.
			for range each {
				slow.Go(func() { stall(ctx, t, overGRPC, part) })
			}
			process.Eventually(t, time.Minute, "the slow connections", func() bool { return connections(t, overGRPC) >= each })
			began = time.Now()
			c.stop()
			assert.Less(t, time.Since(began), stopping)
			c.bounded(agentMemory)
			t.Logf("served within %v next to %d slow clients; those over HTTP ended after %v; stopped within %v; %v",
				served.Round(time.Millisecond), 2*each, cutAfter.Round(time.Second), time.Since(began).Round(time.Millisecond), c)
		})
	}
}
