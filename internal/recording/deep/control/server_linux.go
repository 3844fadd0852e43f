// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// Server answers requests to one process. Its methods may be called by any goroutine.
type Server struct {
	process    Process
	controller *deep.Controller
	log        *slog.Logger
	dir        *dir
	inode      uint64
	// requestTime is how long a request may take to come.
	requestTime time.Duration
	listener    *net.UnixListener
	slots       chan struct{}
	stop        chan struct{}
	once        sync.Once
	running     sync.WaitGroup

	mu     sync.Mutex
	counts Counts
}

// Counts are what a server has answered.
type Counts struct {
	// Requests were understood, whatever came of them.
	Requests uint64
	// Malformed requests were too long, late, or made no sense; Strangers are other users' connections,
	// Crowded those above the number that is served at a time.
	Malformed, Strangers, Crowded uint64
}

// Listen makes the socket of this process and answers on it until Close. process.PID is filled in. A nil
// logger drops what is logged. It errs where no socket can be made; the controller is as good without.
func Listen(p Place, process Process, c *deep.Controller, log *slog.Logger) (*Server, error) {
	return listen(p, process, c, log, requestTime)
}

func listen(p Place, process Process, c *deep.Controller, log *slog.Logger, patience time.Duration) (*Server, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	process.PID = os.Getpid()
	d, err := makeDir(p)
	if err != nil {
		return nil, fmt.Errorf("socket for deep windows: %w", err)
	}
	d.clean()
	s := &Server{
		process: process, controller: c, log: log, dir: d, requestTime: patience,
		slots: make(chan struct{}, maxConnections), stop: make(chan struct{}),
	}
	if err := s.bind(); err != nil {
		d.close()
		return nil, fmt.Errorf("socket for deep windows: %w", err)
	}
	s.running.Add(1)
	go s.accept()
	return s, nil
}

// bind makes the socket under another name first: under its own it listens from the beginning, so that
// nobody takes it for stale.
func (s *Server) bind() (err error) {
	fd := int(s.dir.file.Fd())
	name, first := socketName(s.process.PID), fmt.Sprint(s.process.PID, unfinished)
	_ = unix.Unlinkat(fd, first, 0) // of a process that had the id before
	s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: s.dir.at(first), Net: "unix"})
	if err != nil {
		return err
	}
	s.listener.SetUnlinkOnClose(false) // Close does, if it is still ours
	defer func() {
		_ = unix.Unlinkat(fd, first, 0)
		if err != nil {
			_ = s.listener.Close()
		}
	}()
	if err := unix.Fchmodat(fd, first, 0o600, 0); err != nil {
		return fmt.Errorf("set the mode of %s: %w", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, first, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("look at %s: %w", name, err)
	}
	s.inode = st.Ino
	err = unix.Linkat(fd, first, fd, name, 0)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s is there already: of this process, or of another with the same id in another PID namespace that shares %s", name, s.dir.path)
	}
	return err
}

// Path returns where the socket is, for people.
func (s *Server) Path() string { return s.dir.path + "/" + socketName(s.process.PID) }

// Counts returns what was answered until now.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Close removes the socket and ends the connections. Clients that wait for a window are told its end if it
// has closed: stop the controller first. It takes as long as a reply may, at most. A second call waits
// likewise.
func (s *Server) Close() {
	s.once.Do(func() {
		var st unix.Stat_t
		fd, name := int(s.dir.file.Fd()), socketName(s.process.PID)
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Ino == s.inode {
			_ = unix.Unlinkat(fd, name, 0)
		}
		close(s.stop)
		_ = s.listener.Close()
		s.running.Wait()
		s.dir.close()
	})
}

func (s *Server) accept() {
	defer s.running.Done()
	for {
		conn, err := s.listener.AcceptUnix()
		select {
		case <-s.stop:
			if err == nil {
				_ = conn.Close()
			}
			return
		default:
		}
		if err != nil {
			// Too many files are open, likely. It passes, or it does not and nobody is answered.
			s.log.Debug("cannot take a connection for deep windows", "error", err)
			select {
			case <-s.stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		select {
		case s.slots <- struct{}{}:
		default:
			s.count(func(c *Counts) { c.Crowded++ })
			s.reply(conn, wrong("too many connections; ask again later"))
			_ = conn.Close()
			continue
		}
		s.running.Add(1)
		go func() {
			defer s.running.Done()
			defer func() { <-s.slots }()
			defer func() { _ = conn.Close() }()
			defer func() {
				if p := recover(); p != nil {
					s.log.Error("a request for a deep window failed", "error", p)
				}
			}()
			s.serve(conn)
		}()
	}
}

func (s *Server) count(f func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.counts)
}

// serve answers one connection.
func (s *Server) serve(conn *net.UnixConn) {
	if os.Getpid() != s.process.PID {
		return // a forked child; Go does not run there, but if it did
	}
	peer, err := peerOf(conn)
	if err != nil || peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		s.count(func(c *Counts) { c.Strangers++ })
		s.reply(conn, wrong("only the user of the process and root may ask"))
		return
	}
	line, err := s.read(conn)
	if errors.Is(err, errSilent) {
		return // it only looked whether somebody listens
	}
	var do string
	var r deep.Request
	if err == nil {
		do, r, err = parseRequest(line)
	}
	if err != nil {
		s.count(func(c *Counts) { c.Malformed++ })
		s.reply(conn, wrong(err.Error()))
		return
	}
	s.count(func(c *Counts) { c.Requests++ })
	switch do {
	case DoStatus:
		report := s.controller.Report()
		s.reply(conn, Reply{Event: State, Process: &s.process, Report: &report})
	case DoClose:
		s.reply(conn, Reply{Event: Closed, Found: s.controller.Close()})
	default:
		r.Why = fmt.Sprintf("gpuflight deep, process %d of user %d", peer.Pid, peer.Uid)
		s.open(conn, r)
	}
}

func (s *Server) open(conn *net.UnixConn, r deep.Request) {
	ticket, err := s.controller.RequestWindow(r)
	if err != nil {
		o := deep.Outcome{Status: deep.StatusFailed, Text: err.Error()}
		var e *deep.Error
		if errors.As(err, &e) {
			o = e.Outcome
		}
		s.reply(conn, Reply{Event: Refused, Outcome: &o})
		return
	}
	w := ticket.Window()
	s.reply(conn, Reply{Event: Accepted, Window: &w})
	select {
	case <-ticket.Done():
	case <-s.stop:
		select {
		case <-ticket.Done():
		default:
			s.reply(conn, wrong("the process is at its end, and the window was not closed before"))
			return
		}
	}
	w = ticket.Window()
	s.reply(conn, Reply{Event: Closed, Window: &w})
}

// errSilent says that a connection was closed before anything was said.
var errSilent = errors.New("nothing was said")

// read reads a request's line.
func (s *Server) read(conn *net.UnixConn) ([]byte, error) {
	_ = conn.SetReadDeadline(time.Now().Add(s.requestTime))
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-s.stop:
			_ = conn.SetReadDeadline(time.Now())
		case <-done:
		}
	}()
	line, err := bufio.NewReaderSize(conn, maxRequest).ReadSlice('\n')
	switch {
	case err == nil:
		return line, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("the request has more than %d bytes", maxRequest)
	case errors.Is(err, os.ErrDeadlineExceeded):
		select {
		case <-s.stop:
			return nil, errSilent
		default:
		}
		return nil, fmt.Errorf("the request did not come within %v", s.requestTime)
	case len(line) == 0:
		return nil, errSilent
	case errors.Is(err, io.EOF):
		return nil, errors.New("the request has no end of line")
	}
	return nil, err
}

// reply writes a line. Whoever does not read it does not want it.
func (s *Server) reply(conn *net.UnixConn, r Reply) {
	line, err := json.Marshal(r)
	if err != nil {
		s.log.Error("cannot write a reply about deep windows", "error", err)
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(replyTime))
	_, _ = conn.Write(append(line, '\n'))
}

func wrong(problem string) Reply { return Reply{Event: Wrong, Error: problem} }

// peerOf returns who is at the other end: who connected, or who listens.
func peerOf(conn *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
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
