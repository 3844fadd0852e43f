// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
)

// The paths of GPU Flight's wire protocol (format document, section 7).
const (
	eventsPath  = "/api/v1/events/"
	versionPath = "/api/v1/info/version"
)

// The headers that the client and the agent set.
const (
	headerSession = "X-GpuFlight-Session-Id"
	headerWindow  = "X-GpuFlight-Window-Id"
	headerChannel = "X-GpuFlight-Window-Channel"
	headerCRC     = "X-GpuFlight-Window-CRC32"
	headerKey     = "X-Key"
)

// httpServer serves GPU Flight's clients.
type httpServer struct {
	cfg      *HTTPConfig
	limits   ingest.Limits
	gzip     bool
	in       *intake
	budget   *ingest.Budget
	requests *ingest.Budget
	auth     bool // an authenticator accepts each request
	// stopping ends when the shutdown starts.
	stopping context.Context
	cutOff   context.CancelFunc

	server *http.Server
	served chan struct{}
	stop   chan struct{}
	ticked chan struct{}
	cancel context.CancelFunc
	addr   net.Addr
}

// startHTTP starts to listen and serve. The server's shutdown ends everything that it starts.
func startHTTP(ctx context.Context, host component.Host, set component.TelemetrySettings, cfg *Config, out *outputs, store *intakeStore, now func() time.Time) (*httpServer, error) {
	h := cfg.Protocols.HTTP.Get()
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &httpServer{
		cfg:      h,
		limits:   ingest.Limits{Bytes: h.MaxRequestBodySize, LineBytes: int(cfg.MaxLineBytes)},
		gzip:     h.CompressionAlgorithms == nil || slices.Contains(h.CompressionAlgorithms, "gzip"),
		in:       newIntake(base, cfg, set.Logger, out, out.tel, store, now),
		budget:   ingest.NewBudget(int64(h.MaxBufferedBytes)),
		requests: ingest.NewBudget(int64(h.MaxRequests)),
		auth:     h.Auth.HasValue(),
		served:   make(chan struct{}), stop: make(chan struct{}), ticked: make(chan struct{}),
		cancel: cancel,
	}
	s.stopping, s.cutOff = context.WithCancel(base)
	if err := s.in.restore(ctx); err != nil {
		set.Logger.Error("stored HTTP sessions are invalid; their names and open scopes are lost", zap.Error(err))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+eventsPath+"stream", s.answer(s.window))
	mux.HandleFunc("POST "+eventsPath+"session-complete", s.answer(s.end))
	mux.HandleFunc("POST "+eventsPath+"{type}", s.answer(s.line))
	// The body is kept as sent, for its checksum. ingest decompresses it under the same limit.
	server := h.ServerConfig
	server.CompressionAlgorithms = []string{}
	var err error
	if s.server, err = server.ToServer(ctx, host.GetExtensions(), set, mux); err != nil {
		cancel()
		return nil, err
	}
	s.server.MaxHeaderBytes = maxHeaderBytes
	limitConnections(s.server, maxConnections)
	// A client requests the version before it has a token (format document, section 7.1).
	all := http.NewServeMux()
	all.HandleFunc("GET "+versionPath, version)
	all.Handle("/", s.server.Handler)
	s.server.Handler = all
	listener, err := server.ToListener(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s.addr = listener.Addr()
	go func() {
		defer close(s.served)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			componentstatus.ReportStatus(host, componentstatus.NewFatalErrorEvent(err))
		}
	}()
	go func() {
		defer close(s.ticked)
		s.in.run(base, s.stop)
	}()
	set.Logger.Info("GPU Flight protocol server started", zap.Stringer("endpoint", s.addr))
	return s, nil
}

// shutdown ends the requests in progress before the context ends, and delivers or stores the rest.
func (s *httpServer) shutdown(ctx context.Context) error {
	s.cutOff()
	s.in.closing.Store(true)
	// Received data needs a part of the time.
	connections := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		connections, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	err := s.server.Shutdown(connections)
	if connections.Err() != nil {
		// A connection that does not end in time does not fail the shutdown: its client sends
		// again.
		err = s.server.Close()
	}
	defer context.AfterFunc(ctx, s.cancel)() // a hanging delivery must not block the shutdown
	<-s.served
	close(s.stop)
	<-s.ticked
	s.in.shutdown(ctx)
	s.cancel()
	return err
}

// version serves the version of the wire protocol. There is one.
func version(w http.ResponseWriter, _ *http.Request) {
	const body = `{"supported":["1"]}` + "\n"
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write([]byte(body))
}

// drainWait bounds the time to read the rest of a rejected request. The server reads up to 256 KiB,
// so that the client receives the response instead of a broken connection.
const drainWait = 2 * time.Second

// answer wraps a handler: it bounds the requests in progress, counts responses and writes refusals.
func (s *httpServer) answer(handle func(r *http.Request) (*ingest.Reply, *ingest.Refusal)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		defer s.cutOffAtShutdown(w)()
		reply, refusal := s.admitted(r, handle)
		if refusal != nil {
			status = refusal.Status
		}
		// Count before the write: a client with a response must find it counted.
		s.in.tel.ReceiverGpuflogHTTPRequests.Add(r.Context(), 1,
			metric.WithAttributeSet(attribute.NewSet(attribute.Int("http.response.status_code", status))))
		if refusal != nil {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainWait))
			refusal.Write(w)
		} else {
			reply.Write(w, status)
		}
	}
}

func (s *httpServer) admitted(r *http.Request, handle func(r *http.Request) (*ingest.Reply, *ingest.Refusal)) (*ingest.Reply, *ingest.Refusal) {
	requests := s.requests.For(s.client(r))
	if !requests.Take(1, 0) {
		return nil, ingest.Busy("too many requests are in progress: retry later")
	}
	defer requests.Give(1)
	if refusal := s.in.overloaded(); refusal != nil {
		return nil, refusal
	}
	if !s.gzip && len(r.Header.Values("Content-Encoding")) > 0 {
		return nil, &ingest.Refusal{Status: http.StatusUnsupportedMediaType, Reason: "compressed bodies are disabled by compression_algorithms"}
	}
	return handle(r)
}

// client returns the sender of a request.
func (s *httpServer) client(r *http.Request) ingest.Client {
	return ingest.Client{Principal: principalOf(r, s.auth), Host: hostOf(r.RemoteAddr)}
}

// cutOffAtShutdown stops reading a request's body when the shutdown starts. Its client sends it
// again. A delivery in progress continues. The returned function ends the watch.
func (s *httpServer) cutOffAtShutdown(w http.ResponseWriter) (done func() bool) {
	return context.AfterFunc(s.stopping, func() {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	})
}

// maxConnections bounds the connections. One host may have half of them. A connection uses up to
// about 50 KiB before its request is admitted, and one file descriptor of the process.
const maxConnections = 1024

// maxHeaderBytes bounds a request's header. GPU Flight's clients send less than 2 KiB.
const maxHeaderBytes = 32 << 10

// limitConnections closes connections above the bound, or above one host's half of it, when they
// are accepted.
func limitConnections(server *http.Server, most int64) {
	budget := ingest.NewBudget(most)
	var refused sync.Map // connections that count for nothing
	server.ConnState = func(c net.Conn, state http.ConnState) {
		client := budget.For(ingest.Client{Host: hostOf(c.RemoteAddr().String())})
		switch state {
		case http.StateNew:
			if !client.Take(1, 0) {
				refused.Store(c, nil)
				_ = c.Close()
			}
		case http.StateClosed, http.StateHijacked:
			if _, ok := refused.LoadAndDelete(c); !ok {
				client.Give(1)
			}
		}
	}
}

// read reads and checks a request's body. Without a refusal the caller must close the body.
func (s *httpServer) read(r *http.Request, limits ingest.Limits) (*ingest.Body, ingest.Content, *ingest.Refusal) {
	b, err := ingest.Read(r, limits, s.budget.For(s.client(r)))
	var c ingest.Content
	if err == nil {
		s.in.tel.ReceiverGpuflogHTTPRead.Add(r.Context(), b.Size())
		c, err = b.Check()
		s.in.tel.ReceiverGpuflogHTTPUnpacked.Add(r.Context(), b.Unpacked())
		if err == nil {
			return b, c, nil
		}
		b.Close()
	}
	var refusal *ingest.Refusal
	if !errors.As(err, &refusal) {
		refusal = ingest.Unreadable("%v", err)
	}
	if refusal.Status == http.StatusRequestTimeout && s.stopping.Err() != nil {
		refusal = ingest.Unavailable("the receiver is shutting down")
	}
	return nil, c, refusal
}

// window receives one window of a session: POST events/stream.
func (s *httpServer) window(r *http.Request) (*ingest.Reply, *ingest.Refusal) {
	id := r.Header.Get(headerSession)
	who := principalOf(r, s.auth)
	received := s.in.receiving(id, who)
	b, c, refusal := s.read(r, s.limits)
	received()
	if refusal != nil {
		return nil, refusal
	}
	defer b.Close()
	if id == "" {
		id = c.Session
	}
	if crc := r.Header.Get(headerCRC); crc != "" {
		switch want, err := strconv.ParseUint(strings.TrimSpace(crc), 10, 32); {
		case err != nil:
			return nil, ingest.Unreadable("%s is %q: it must be an unsigned decimal number of 32 bits", headerCRC, crc)
		case uint32(want) != b.CRC32():
			return nil, ingest.Unreadable("the body's checksum is %d, but %s is %d: the body is damaged", b.CRC32(), headerCRC, want)
		}
	}
	if ch, ok := gpuflog.ChannelNamed(r.Header.Get(headerChannel)); ok {
		c.Channel, c.Known = ch, true
	}
	session, refusal := s.in.open(r.Context(), id, who, false)
	if refusal != nil {
		return nil, refusal
	}
	defer session.unlock()
	reply, what, refusal := session.window(r.Context(), b, c, r.Header.Get(headerWindow) != "")
	if what != "" {
		s.in.tel.ReceiverGpuflogHTTPWindows.Add(r.Context(), 1, metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", string(what)))))
	}
	return reply, refusal
}

// end receives the client's end of a session: POST events/session-complete.
func (s *httpServer) end(r *http.Request) (*ingest.Reply, *ingest.Refusal) {
	id := r.Header.Get(headerSession)
	if id == "" {
		return nil, ingest.Unreadable("the request names no session: set %s", headerSession)
	}
	reply := &ingest.Reply{WindowAcknowledged: true}
	who := principalOf(r, s.auth)
	if !s.in.active(id, who) {
		return reply, nil // finished before, nothing of it ever came, or it is another principal's
	}
	session, refusal := s.in.open(r.Context(), id, who, false)
	if refusal != nil {
		return nil, refusal
	}
	defer session.unlock()
	if refusal := session.end(r.Context()); refusal != nil {
		return nil, refusal
	}
	return reply, nil
}

// envelopeBytes is the size of an envelope without its line.
const envelopeBytes = 64 << 10

// line receives a single line: POST events/{record type}.
func (s *httpServer) line(r *http.Request) (*ingest.Reply, *ingest.Refusal) {
	limits := s.limits
	limits.Bytes = min(limits.Bytes, 2*int64(limits.LineBytes)+envelopeBytes)
	b, _, refusal := s.read(r, limits)
	if refusal != nil {
		return nil, refusal
	}
	defer b.Close()
	rec, err := b.Line(r.PathValue("type"), r.Header.Get(headerKey))
	if err != nil {
		errors.As(err, &refusal)
		return nil, refusal
	}
	session, refusal := s.in.open(r.Context(), rec.Session, principalOf(r, s.auth), true)
	if refusal != nil {
		return nil, refusal
	}
	defer session.unlock()
	return session.line(r.Context(), &rec, b.Raw())
}
