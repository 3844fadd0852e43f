// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Problem is the reason why an endpoint does not accept telemetry. Both texts are clauses without a
// full stop.
type Problem struct {
	// Cause is what is wrong: "nothing listens at localhost:4318".
	Cause string
	// Fix is what the user can do, or "" if that is unknown.
	Fix string
}

// Diagnose sends an empty request to each endpoint, as Check does. If one does not accept it,
// Diagnose finds out what listens there instead, and returns the problems without duplicates. It
// returns nothing if everything is accepted, and takes at most a second longer than ctx
// allows for each address.
func (c *Client) Diagnose(ctx context.Context) []Problem {
	if c.file != nil {
		if err := c.file.check(); err != nil {
			return []Problem{{Cause: err.Error()}}
		}
		return nil
	}
	var failed [numSignals]error
	var tried [numSignals]bool
	var checks sync.WaitGroup
	for signal, l := range c.queues {
		if l.off {
			continue
		}
		tried[signal] = true
		checks.Go(func() {
			attempt, cancel := context.WithTimeout(ctx, l.attempt)
			defer cancel()
			if _, _, err := l.out.send(attempt, empty(l.signal)); err != nil && !l.optional(err) {
				failed[signal] = err
			}
		})
	}
	checks.Wait()
	if p, only := c.partly(tried, failed); only {
		return []Problem{p}
	}
	var found []Problem
	seen := map[Problem]bool{}
	known := map[string]speech{} // by address
	speaks := func(address string) speech {
		if _, ok := known[address]; !ok {
			known[address] = listen(ctx, address)
		}
		return known[address]
	}
	for signal, err := range failed {
		if err == nil {
			continue
		}
		if p := c.queues[signal].explain(err, speaks); !seen[p] {
			seen[p] = true
			found = append(found, p)
		}
	}
	return found
}

// partly describes an endpoint that supports some of the signals, such as Jaeger.
func (c *Client) partly(tried [numSignals]bool, failed [numSignals]error) (Problem, bool) {
	var accepted, unknown, off []string
	for signal, l := range c.queues {
		switch err := failed[signal]; {
		case !tried[signal]:
		case err == nil:
			accepted = append(accepted, l.signal.String())
		case isUnknown(err):
			unknown = append(unknown, l.signal.String())
			off = append(off, "OTEL_"+strings.ToUpper(l.signal.String())+"_EXPORTER=none")
		default:
			return Problem{}, false
		}
	}
	if len(accepted) == 0 || len(unknown) == 0 {
		return Problem{}, false
	}
	return Problem{
		Cause: fmt.Sprintf("%s accepts %s only, and has no %s", c.queues[Traces].address(), strings.Join(accepted, " and "), strings.Join(unknown, " and no ")),
		Fix:   "set " + strings.Join(off, " and ") + ", or send to a Collector that forwards " + strings.Join(accepted, " and "),
	}, true
}

func isUnknown(err error) bool {
	var failure *sendError
	return errors.As(err, &failure) && failure.unknown
}

// address is the host and port of the endpoint.
func (l *signalQueue) address() string {
	if l.endpoint.URL == nil {
		return ""
	}
	return hostPort(l.endpoint)
}

// hostPort returns the address that the transport connects to.
func hostPort(e Endpoint) string {
	if e.URL.Port() != "" {
		return e.URL.Host
	}
	port := "80"
	switch {
	case e.URL.Scheme == "https":
		port = "443"
	case e.Protocol == GRPC:
		port = "4317"
	}
	return net.JoinHostPort(e.URL.Hostname(), port)
}

// explain finds the problem behind the error of an attempt. speaks returns what a server speaks.
func (l *signalQueue) explain(err error, speaks func(address string) speech) Problem {
	e, at := l.endpoint, l.address()
	text := oneLine(err)
	var failure *sendError
	_ = errors.As(err, &failure) // otherwise it is nil
	switch {
	case failure != nil && failure.denied:
		return Problem{
			at + " refuses the key: " + text,
			"set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20KEY with a valid key",
		}
	case errors.Is(err, syscall.ECONNREFUSED) || strings.Contains(text, "connection refused"):
		p := Problem{"nothing listens at " + at, "start a collector there, or set --endpoint"}
		if isLoopback(at) {
			p.Fix = "run otelcol-gpuflight --config config/local.yaml, set --endpoint, or record into a file with --output"
		}
		return p
	case strings.Contains(text, "lookup ") || strings.Contains(text, "produced zero addresses"):
		return Problem{"the host " + e.URL.Hostname() + " is unknown to the name server", "correct --endpoint"}
	case strings.Contains(text, "certificate required") || strings.Contains(text, "bad certificate"):
		return Problem{
			at + " requires a client certificate",
			"set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY",
		}
	case isCertificate(err, text):
		return Problem{
			"the certificate of " + at + " is not trusted: " + certificateText(err, text),
			"set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of its authority",
		}
	}
	switch found := speaks(at); {
	case found == speaksNothing && failure != nil && !failure.retry:
	case found == speaksNothing:
		return Problem{at + " does not answer", "check the address, and that no firewall drops the connection"}
	case found.tls() != (e.URL.Scheme == "https"):
		if found.tls() {
			return Problem{"this port requires TLS: " + at, "use https://" + at}
		}
		return Problem{"this port does not use TLS: " + at, "use http://" + at}
	case found.grpc() && e.Protocol == HTTP && (failure == nil || !failure.answered):
		return Problem{"this port speaks gRPC: " + at, "use --protocol grpc"}
	case found.http() && e.Protocol == GRPC:
		return Problem{"this port speaks HTTP: " + at, "use --protocol http/protobuf"}
	}
	if isUnknown(err) || errors.Is(err, errWebPage) {
		p := Problem{at + " has no OTLP: " + text, "use the port of a collector: 4318 for HTTP, 4317 for gRPC"}
		if e.Protocol == HTTP && strings.Count(e.URL.Path, "/v1/") > 1 {
			p.Fix = "leave out the path in --endpoint: gpuflight adds /v1/traces"
		}
		return p
	}
	return Problem{at + " rejects telemetry: " + text, "see the log of the collector"}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// isCertificate reports whether the server's certificate was not trusted. gRPC has only a text.
func isCertificate(err error, text string) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate) || strings.Contains(text, "x509: ") || strings.Contains(text, "failed to verify certificate")
}

// certificateText returns the part of the text that users understand.
func certificateText(err error, text string) string {
	var authority x509.UnknownAuthorityError
	if errors.As(err, &authority) || strings.Contains(text, "unknown authority") {
		return "its authority is unknown"
	}
	if _, after, ok := strings.Cut(text, "x509: "); ok {
		return strings.Trim(after, `"`)
	}
	return text
}

// speech is what a server speaks. The values with TLS follow those without.
type speech uint8

const (
	speaksNothing speech = iota // it does not answer
	speaksOther
	speaksHTTP
	speaksGRPC
	speaksOtherTLS
	speaksHTTPTLS
	speaksGRPCTLS
)

func (s speech) tls() bool  { return s >= speaksOtherTLS }
func (s speech) http() bool { return s == speaksHTTP || s == speaksHTTPTLS }
func (s speech) grpc() bool { return s == speaksGRPC || s == speaksGRPCTLS }

// listenTimeout bounds each of the two connections of listen.
const listenTimeout = 500 * time.Millisecond

// listen connects to a server and finds out what it speaks. It sends no data of the user.
func listen(ctx context.Context, address string) speech {
	ctx = context.WithoutCancel(ctx) // the attempt may have used all the time
	dial := func() (net.Conn, error) {
		d := net.Dialer{Timeout: listenTimeout}
		c, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			err = c.SetDeadline(time.Now().Add(listenTimeout))
		}
		return c, err
	}
	c, err := dial()
	if err != nil {
		return speaksNothing
	}
	// Only the protocol is read: neither side sends data, so the certificate does not matter.
	secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}) //nolint:gosec // As said.
	err = secure.HandshakeContext(ctx)
	protocol := secure.ConnectionState().NegotiatedProtocol
	_ = c.Close()
	var alert tls.AlertError
	switch {
	case err == nil && protocol == "h2" && onlyH2(ctx, dial):
		return speaksGRPCTLS
	case err == nil && protocol == "http/1.1":
		return speaksHTTPTLS
	case err == nil || errors.As(err, &alert):
		return speaksOtherTLS
	}
	if c, err = dial(); err != nil {
		return speaksNothing
	}
	defer c.Close()
	// The beginning of HTTP/2. A server of HTTP/1 answers it with an error.
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return speaksOther
	}
	const settings = 4 // the type of the first frame of a server
	var head [9]byte
	n, err := io.ReadFull(c, head[:])
	switch {
	case n == len(head) && head[3] == settings:
		return speaksGRPC
	case strings.HasPrefix(string(head[:n]), "HTTP/1."):
		return speaksHTTP
	case errors.Is(err, os.ErrDeadlineExceeded) && n == 0:
		return speaksNothing
	}
	return speaksOther
}

// onlyH2 reports whether a server with TLS rejects HTTP/1, as servers of gRPC do.
func onlyH2(ctx context.Context, dial func() (net.Conn, error)) bool {
	c, err := dial()
	if err != nil {
		return false
	}
	defer c.Close()
	secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}) //nolint:gosec // As in listen.
	// A server in Go accepts the handshake of such a client, without a protocol.
	return secure.HandshakeContext(ctx) != nil || secure.ConnectionState().NegotiatedProtocol == ""
}
