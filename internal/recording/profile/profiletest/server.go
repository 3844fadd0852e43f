// SPDX-License-Identifier: Apache-2.0

package profiletest

import (
	"context"
	"net"
	"sync"
	"testing"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // as a client may compress

	"github.com/gpuflight/gpuflight/internal/recording/profile"
)

// Server accepts profiles over gRPC.
type Server struct {
	pprofileotlp.UnimplementedGRPCServer
	// Rejected is the number of profiles that it rejects per request, with the message "not
	// these".
	Rejected int64

	mu       sync.Mutex
	requests []profile.Profiles
}

// Serve starts a server on a free port of loopback and returns its address. The test's clean-up
// stops it.
func (s *Server) Serve(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pprofileotlp.RegisterGRPCServer(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // it returns after Stop
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return l.Addr().String()
}

// Export accepts one request.
func (s *Server) Export(_ context.Context, r pprofileotlp.ExportRequest) (pprofileotlp.ExportResponse, error) {
	own := pprofile.NewProfiles()
	r.Profiles().CopyTo(own)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, profile.Of(own))
	answer := pprofileotlp.NewExportResponse()
	if s.Rejected > 0 {
		answer.PartialSuccess().SetRejectedProfiles(s.Rejected)
		answer.PartialSuccess().SetErrorMessage("not these")
	}
	return answer, nil
}

// Requests returns the received requests.
func (s *Server) Requests() []profile.Profiles {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]profile.Profiles(nil), s.requests...)
}
