// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// Server answers requests for windows of its process. Goroutines may use it concurrently.
type Server struct {
	process    Process
	controller *deep.Controller
	log        *slog.Logger
	listener   *net.UnixListener
	http       http.Server
	stop       chan struct{}
	served     chan struct{}
	once       sync.Once
}

// limitedListener accepts a connection when a slot is free. netutil.LimitListener does the same,
// but its connections hide the descriptor that peerOf needs.
type limitedListener struct {
	*net.UnixListener
	slots chan struct{} // released by http.Server.ConnState
	stop  <-chan struct{}
}

func (l limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.stop:
		return nil, net.ErrClosed
	}
	conn, err := l.UnixListener.Accept()
	if err != nil {
		<-l.slots
	}
	return conn, err
}

// peerKey is the key of a connection's *unix.Ucred in the contexts of its requests.
type peerKey struct{}

// Listen creates the socket of this process and serves it until Close. It sets process.PID. log may
// be nil. It returns an error if the socket cannot be created; the controller works without it.
func Listen(p Place, process Process, c *deep.Controller, log *slog.Logger) (*Server, error) {
	return listen(p, process, c, log, requestTime)
}

func listen(p Place, process Process, c *deep.Controller, log *slog.Logger, patience time.Duration) (*Server, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	process.PID = os.Getpid()
	folder, err := p.Folder()
	if err != nil {
		return nil, fmt.Errorf("socket for deep windows: %w", err)
	}
	removeStale(folder)
	s := &Server{process: process, controller: c, log: log, stop: make(chan struct{}), served: make(chan struct{})}
	path := filepath.Join(folder, socketName(process.PID))
	// The folder's mode protects the socket.
	if s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
		return nil, fmt.Errorf("socket for deep windows: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+statusPath, s.status)
	mux.HandleFunc("POST "+windowsPath, s.open)
	mux.HandleFunc("DELETE "+windowsPath, s.close)
	limited := limitedListener{s.listener, make(chan struct{}, maxConnections), s.stop}
	// Responses have a deadline of their own each, since a window may take a minute.
	s.http = http.Server{
		Handler:           s.authorized(mux),
		ReadHeaderTimeout: patience,
		ReadTimeout:       patience,
		MaxHeaderBytes:    maxRequest,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				<-limited.slots
			}
		},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			peer, err := peerOf(conn)
			if err != nil {
				return ctx
			}
			return context.WithValue(ctx, peerKey{}, peer)
		},
	}
	s.http.SetKeepAlivesEnabled(false)
	go func() {
		defer close(s.served)
		_ = s.http.Serve(limited)
	}()
	return s, nil
}

// Path returns where the socket is, for people.
func (s *Server) Path() string { return s.listener.Addr().String() }

// Close removes the socket and ends the connections. Stop the controller first: clients that wait
// for a window then receive its result. Close takes replyTime at most. A second call waits as well.
func (s *Server) Close() {
	s.once.Do(func() {
		close(s.stop)
		ctx, cancel := context.WithTimeout(context.Background(), replyTime)
		defer cancel()
		if s.http.Shutdown(ctx) != nil {
			_ = s.http.Close()
		}
		<-s.served
	})
}

// authorized rejects requests of other users. Root is accepted.
func (s *Server) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, ok := r.Context().Value(peerKey{}).(*unix.Ucred)
		if !ok || peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
			s.reply(w, http.StatusForbidden, reply{Error: "only the user of the process and root may ask"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	report := s.controller.Report()
	s.reply(w, http.StatusOK, reply{Process: &s.process, Report: &report})
}

func (s *Server) close(w http.ResponseWriter, _ *http.Request) {
	s.reply(w, http.StatusOK, reply{Found: s.controller.Close()})
}

func (s *Server) open(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		s.reply(w, http.StatusRequestEntityTooLarge, reply{Error: fmt.Sprintf("the body has more than %d bytes", maxRequest)})
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.reply(w, http.StatusRequestTimeout, reply{Error: "the body did not arrive in time"})
		return
	case err != nil:
		return // the client has gone
	}
	q, err := parseRequest(body)
	if err != nil {
		s.reply(w, http.StatusBadRequest, reply{Error: err.Error()})
		return
	}
	if peer, ok := r.Context().Value(peerKey{}).(*unix.Ucred); ok {
		q.Why = fmt.Sprintf("gpuflight deep, process %d of user %d", peer.Pid, peer.Uid)
	}
	ticket, err := s.controller.RequestWindow(q)
	if err != nil {
		o := deep.Outcome{Status: deep.StatusFailed, Text: err.Error()}
		var e *deep.Error
		if errors.As(err, &e) {
			o = e.Outcome
		}
		s.reply(w, http.StatusConflict, reply{Outcome: &o})
		return
	}
	window := ticket.Window()
	s.reply(w, http.StatusOK, reply{Window: &window})
	select {
	case <-ticket.Done():
	case <-s.stop:
		select {
		case <-ticket.Done():
		default:
			s.reply(w, 0, reply{Error: "the process is at its end, and the window was not closed before"})
			return
		}
	}
	window = ticket.Window()
	s.reply(w, 0, reply{Window: &window})
}

// reply writes a JSON line and sends it. code 0 continues a response. A client that does not read
// within replyTime loses its connection.
func (s *Server) reply(w http.ResponseWriter, code int, r reply) {
	line, err := json.Marshal(r)
	if err != nil {
		s.log.Error("cannot encode a response about deep windows", "error", err)
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(replyTime))
	if code != 0 {
		w.Header().Set("Content-Type", "application/x-ndjson")
		w.WriteHeader(code)
	}
	_, _ = w.Write(append(line, '\n'))
	_ = control.Flush()
}

// peerOf returns the credentials of the process that connected, or that listens.
func peerOf(conn net.Conn) (cred *unix.Ucred, err error) {
	u, ok := conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	return cred, err
}
