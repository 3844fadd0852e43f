// SPDX-License-Identifier: Apache-2.0

package testsink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // the exporter's default compression
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Mode is how a [Server] answers.
type Mode int

// The ways to answer.
const (
	// Accept records the data and returns success.
	Accept Mode = iota
	// Unavailable returns UNAVAILABLE, which can be retried.
	Unavailable
	// Exhausted returns RESOURCE_EXHAUSTED with a RetryInfo of 50 ms, which can be retried.
	Exhausted
	// Invalid returns INVALID_ARGUMENT, a permanent error.
	Invalid
	// Hang does not answer until the caller's deadline or a change of the mode. It records nothing.
	Hang
	// Swallow records the data and then hangs, so the caller must send it again.
	Swallow
)

// String returns the mode's name.
func (m Mode) String() string {
	names := [...]string{"accept", "unavailable", "exhausted", "invalid", "hang", "swallow"}
	if m < 0 || int(m) >= len(names) {
		return fmt.Sprintf("mode %d", int(m))
	}
	return names[m]
}

// maxMessage is larger than all messages of the tests. A size error must not be confused with the
// faults that tests cause.
const maxMessage = 256 << 20

// Server is an OTLP gRPC endpoint on loopback that fills a Store.
type Server struct {
	store *Store
	grpc  *grpc.Server
	addr  string
	done  chan struct{}
	err   error

	mu      sync.Mutex
	mode    Mode
	changed chan struct{} // closed and replaced at each change of mode
	answers map[Mode]int
}

// Listen starts a Server that accepts all data into store. An empty addr selects a free loopback
// port.
func Listen(store *Store, addr string) (*Server, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("test sink: %w", err)
	}
	s := &Server{
		store:   store,
		grpc:    grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage)),
		addr:    l.Addr().String(),
		done:    make(chan struct{}),
		changed: make(chan struct{}),
		answers: map[Mode]int{},
	}
	ptraceotlp.RegisterGRPCServer(s.grpc, &traceService{s: s})
	plogotlp.RegisterGRPCServer(s.grpc, &logService{s: s})
	pmetricotlp.RegisterGRPCServer(s.grpc, &metricService{s: s})
	go func() {
		defer close(s.done)
		s.err = s.grpc.Serve(l)
	}()
	return s, nil
}

// Endpoint returns the server's address as host:port.
func (s *Server) Endpoint() string { return s.addr }

// SetMode sets the answer to later requests. Requests that hang return UNAVAILABLE.
func (s *Server) SetMode(m Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m == s.mode {
		return
	}
	s.mode = m
	close(s.changed)
	s.changed = make(chan struct{})
}

// Answers returns how many requests were answered in mode m.
func (s *Server) Answers(m Mode) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answers[m]
}

// Close stops the server immediately and drops requests in flight.
func (s *Server) Close() error {
	s.SetMode(Unavailable) // unblocks hanging requests
	s.grpc.Stop()
	<-s.done
	if s.err != nil && !errors.Is(s.err, grpc.ErrServerStopped) {
		return fmt.Errorf("test sink: %w", s.err)
	}
	return nil
}

// answer calls add if the mode records data, and returns the error to answer with.
func (s *Server) answer(ctx context.Context, add func()) error {
	s.mu.Lock()
	mode, changed := s.mode, s.changed
	s.answers[mode]++
	s.mu.Unlock()
	switch mode {
	case Accept:
		add()
		return nil
	case Exhausted:
		st, err := status.New(codes.ResourceExhausted, "test sink: exhausted").
			WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(50 * time.Millisecond)})
		if err != nil {
			return err
		}
		return st.Err()
	case Invalid:
		return status.Error(codes.InvalidArgument, "test sink: invalid")
	case Hang, Swallow:
		if mode == Swallow {
			add()
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-changed:
		}
	}
	return status.Error(codes.Unavailable, "test sink: unavailable")
}

type traceService struct {
	ptraceotlp.UnimplementedGRPCServer
	s *Server
}

// Export accepts one request of spans.
func (t *traceService) Export(ctx context.Context, r ptraceotlp.ExportRequest) (ptraceotlp.ExportResponse, error) {
	return ptraceotlp.NewExportResponse(), t.s.answer(ctx, func() { t.s.store.AddTraces(r.Traces()) })
}

type logService struct {
	plogotlp.UnimplementedGRPCServer
	s *Server
}

// Export accepts one request of log records.
func (l *logService) Export(ctx context.Context, r plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	return plogotlp.NewExportResponse(), l.s.answer(ctx, func() { l.s.store.AddLogs(r.Logs()) })
}

type metricService struct {
	pmetricotlp.UnimplementedGRPCServer
	s *Server
}

// Export accepts one request of data points.
func (m *metricService) Export(ctx context.Context, r pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	return pmetricotlp.NewExportResponse(), m.s.answer(ctx, func() { m.s.store.AddMetrics(r.Metrics()) })
}
