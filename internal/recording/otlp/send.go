// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcgzip "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gpuflight/gpuflight/internal/recording/profile"
)

const userAgent = "gpuflight-otlp"

// maxAnswer bounds the bytes that are read of a response.
const maxAnswer = 1 << 20

// transport makes one attempt to send a request.
type transport interface {
	// send returns the number of rejected items and the server's message.
	send(ctx context.Context, p payload) (rejected int64, message string, err error)
	// reconnect makes the next send connect even if the last attempt has just failed. It takes at
	// most one second.
	reconnect(context.Context)
	close()
}

// sendError is the error of an attempt.
type sendError struct {
	err error
	// retry is set if the same request may succeed later, after the delay in after at the
	// earliest.
	retry bool
	after time.Duration
	// away is set if no server answered.
	away bool
	// unknown is set if the server does not have the service, denied if it refuses the credentials.
	unknown, denied bool
	// answered is set if the server answered with a status of HTTP.
	answered bool
}

func (e *sendError) Error() string { return e.err.Error() }
func (e *sendError) Unwrap() error { return e.err }

var errWebPage = errors.New("the answer is a web page, not OTLP")

func newTransport(signal Signal, e Endpoint) (transport, error) {
	security, err := tlsConfig(e)
	if err != nil {
		return nil, err
	}
	if e.Protocol == GRPC {
		return newGRPC(e, security)
	}
	// The program may have changed the default transport, so the client has its own. It uses
	// HTTP/1.1 only: HTTP/2 does not replace a dead connection that reports no error.
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSClientConfig:     security,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: traceRequests,
		IdleConnTimeout:     90 * time.Second,
	}
	return &httpTransport{
		endpoint: e,
		signal:   signal,
		base:     t,
		client: &http.Client{
			Transport: t,
			// Following a redirect could send secret headers to another host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// tlsConfig returns nil for plain connections.
func tlsConfig(e Endpoint) (*tls.Config, error) {
	if e.URL.Scheme != "https" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CertificateFile != "" {
		pem, err := os.ReadFile(e.CertificateFile)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %s has no PEM certificate", e.CertificateFile)
		}
	}
	if e.ClientCertificateFile != "" {
		pair, err := tls.LoadX509KeyPair(e.ClientCertificateFile, e.ClientKeyFile)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _KEY: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

type httpTransport struct {
	endpoint Endpoint
	signal   Signal
	base     *http.Transport
	client   *http.Client
}

func (t *httpTransport) reconnect(context.Context) {}
func (t *httpTransport) close()                    { t.base.CloseIdleConnections() }

func (t *httpTransport) send(ctx context.Context, p payload) (int64, string, error) {
	body, err := encodeRequest(p)
	if err != nil {
		return 0, "", &sendError{err: err}
	}
	if t.endpoint.Gzip {
		if body, err = gzipMember(body); err != nil {
			return 0, "", &sendError{err: err}
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.endpoint.URL.String(), bytes.NewReader(body))
	if err != nil {
		return 0, "", &sendError{err: err}
	}
	for k, v := range t.endpoint.Headers {
		req.Header.Set(k, v)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", userAgent)
	if t.endpoint.Gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return 0, "", &sendError{err: redact(err), retry: true, away: isUnreachable(err)}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	// Reading the body to its end allows reuse of the connection.
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode <= 299:
		if err != nil {
			return 0, "", &sendError{err: err, retry: true}
		}
		if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/html" {
			return 0, "", &sendError{err: errWebPage}
		}
		return decodeAnswer(t.signal, answer)
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusBadGateway,
		resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		return 0, "", &sendError{err: answerError(resp, answer), answered: true, retry: true, after: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
	}
	return 0, "", &sendError{
		err:      answerError(resp, answer),
		answered: true,
		unknown:  slices.Contains([]int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented}, resp.StatusCode),
		denied:   resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden,
	}
}

// redact removes the URL that net/http puts into an error, since it may hold a password.
func redact(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

// isUnreachable reports whether an error means that no usable server listens at the address: none at
// all, one with another certificate, or one with another protocol.
func isUnreachable(err error) bool {
	var op *net.OpError
	var certificate *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	if errors.As(err, &op) && op.Op == "dial" || errors.As(err, &certificate) || errors.As(err, &noTLS) {
		return true
	}
	// Package net/http has no types for these.
	return strings.Contains(err.Error(), "malformed HTTP response") || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// answerError returns an error with the status and the server's message, if the body has one in
// OTLP's format.
func answerError(resp *http.Response, body []byte) error {
	var s spb.Status
	if resp.Header.Get("Content-Type") == "application/x-protobuf" && proto.Unmarshal(body, &s) == nil && s.GetMessage() != "" {
		return fmt.Errorf("%s: %.200q", resp.Status, s.GetMessage())
	}
	return errors.New(resp.Status)
}

// retryAfter parses a Retry-After header, which is a number of seconds or a date. It returns 0
// without one.
func retryAfter(v string, now time.Time) time.Duration {
	if s, err := strconv.ParseUint(v, 10, 20); err == nil {
		return time.Duration(s) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

func encodeRequest(p payload) ([]byte, error) {
	switch p := p.(type) {
	case traces:
		return ptraceotlp.NewExportRequestFromTraces(p.Traces).MarshalProto()
	case logs:
		return plogotlp.NewExportRequestFromLogs(p.Logs).MarshalProto()
	case metrics:
		return pmetricotlp.NewExportRequestFromMetrics(p.Metrics).MarshalProto()
	case profilesPayload:
		return p.Proto()
	}
	return nil, fmt.Errorf("payload %T", p)
}

// decodeAnswer decodes a successful response. A body that cannot be decoded counts as success too.
func decodeAnswer(signal Signal, body []byte) (int64, string, error) {
	switch signal {
	case Traces:
		r := ptraceotlp.NewExportResponse()
		if r.UnmarshalProto(body) == nil {
			return r.PartialSuccess().RejectedSpans(), r.PartialSuccess().ErrorMessage(), nil
		}
	case Logs:
		r := plogotlp.NewExportResponse()
		if r.UnmarshalProto(body) == nil {
			return r.PartialSuccess().RejectedLogRecords(), r.PartialSuccess().ErrorMessage(), nil
		}
	case Metrics:
		r := pmetricotlp.NewExportResponse()
		if r.UnmarshalProto(body) == nil {
			return r.PartialSuccess().RejectedDataPoints(), r.PartialSuccess().ErrorMessage(), nil
		}
	case Profiles:
		if rejected, message, err := profile.ReadAnswer(body); err == nil {
			return rejected, message, nil
		}
	}
	return 0, "", nil
}

type grpcTransport struct {
	conn    *grpc.ClientConn
	headers metadata.MD
}

func newGRPC(e Endpoint, security *tls.Config) (transport, error) {
	creds := insecure.NewCredentials()
	if security != nil {
		creds = credentials.NewTLS(security)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent(userAgent),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 500 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		// Servers reject pings more often than every 5 minutes. With pings on, the system closes
		// a connection without acknowledgements after the timeout.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 20 * time.Second}),
		// A service config from DNS could add retries.
		grpc.WithDisableServiceConfig(),
	}
	if e.Gzip {
		options = append(options, grpc.WithDefaultCallOptions(grpc.UseCompressor(grpcgzip.Name)))
	}
	host := e.URL.Host
	if e.URL.Port() == "" {
		port := "4317"
		if security != nil {
			port = "443"
		}
		host = net.JoinHostPort(e.URL.Hostname(), port)
	}
	conn, err := grpc.NewClient("dns:///"+host, options...)
	if err != nil {
		return nil, err
	}
	return &grpcTransport{conn: conn, headers: metadata.New(e.Headers)}, nil
}

// reconnect waits for the new attempt. Until that ends, requests fail with the error of the last
// attempt.
func (t *grpcTransport) reconnect(ctx context.Context) {
	if t.conn.GetState() != connectivity.TransientFailure {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	t.conn.ResetConnectBackoff()
	t.conn.WaitForStateChange(ctx, connectivity.TransientFailure)
}

func (t *grpcTransport) close() { _ = t.conn.Close() }

func (t *grpcTransport) send(ctx context.Context, p payload) (rejected int64, message string, err error) {
	ctx = metadata.NewOutgoingContext(ctx, t.headers)
	switch p := p.(type) {
	case traces:
		var r ptraceotlp.ExportResponse
		if r, err = ptraceotlp.NewGRPCClient(t.conn).Export(ctx, ptraceotlp.NewExportRequestFromTraces(p.Traces)); err == nil {
			return r.PartialSuccess().RejectedSpans(), r.PartialSuccess().ErrorMessage(), nil
		}
	case logs:
		var r plogotlp.ExportResponse
		if r, err = plogotlp.NewGRPCClient(t.conn).Export(ctx, plogotlp.NewExportRequestFromLogs(p.Logs)); err == nil {
			return r.PartialSuccess().RejectedLogRecords(), r.PartialSuccess().ErrorMessage(), nil
		}
	case metrics:
		var r pmetricotlp.ExportResponse
		if r, err = pmetricotlp.NewGRPCClient(t.conn).Export(ctx, pmetricotlp.NewExportRequestFromMetrics(p.Metrics)); err == nil {
			return r.PartialSuccess().RejectedDataPoints(), r.PartialSuccess().ErrorMessage(), nil
		}
	case profilesPayload:
		if rejected, message, err = p.Export(ctx, t.conn); err == nil {
			return rejected, message, nil
		}
	}
	return 0, "", grpcError(err)
}

// grpcError classifies an error by the specification's table of codes.
func grpcError(err error) error {
	s := status.Convert(err)
	e := &sendError{err: fmt.Errorf("%s: %.200s", s.Code(), s.Message())}
	throttled := false
	for _, d := range s.Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			throttled, e.after = true, r.GetRetryDelay().AsDuration()
		}
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		e.retry = true
	case codes.ResourceExhausted:
		e.retry = throttled
	case codes.Unimplemented:
		e.unknown = true
	case codes.Unauthenticated, codes.PermissionDenied:
		e.denied = true
	}
	// gRPC reports a failed connection by this code without details.
	if s.Code() == codes.Unavailable && len(s.Details()) == 0 {
		for _, words := range []string{"dialing", "name resolver", "handshake failed", "server preface"} {
			e.away = e.away || strings.Contains(s.Message(), words)
		}
	}
	return e
}

// empty is a request without items, which servers must accept.
func empty(signal Signal) payload {
	switch signal {
	case Logs:
		return logs{plog.NewLogs()}
	case Metrics:
		return metrics{pmetric.NewMetrics()}
	case Profiles:
		return profilesPayload{profile.Empty()}
	}
	return traces{ptrace.NewTraces()}
}
