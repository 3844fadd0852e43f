// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// enough is more than anything here takes, on the busiest machine.
const enough = 2 * time.Minute

func TestMain(m *testing.M) {
	if place := os.Getenv("GPUFLIGHT_TEST_LISTEN"); place != "" {
		listenInChild(place)
	}
	goleak.VerifyTestMain(m)
}

// engines are armed at once and collect one row.
type engines struct{}

func (engines) Ready() bool                     { return true }
func (engines) Drain() error                    { return nil }
func (engines) Disarm() (deep.Collected, error) { return deep.Collected{Rows: 1}, nil }
func (e engines) Arm(engine deep.Engine, _ uint64) (deep.Session, error) {
	if engine == deep.SASS {
		return nil, deep.NewError(deep.StatusNoPermission, "")
	}
	return e, nil
}

type harness struct {
	t          *testing.T
	place      Place
	controller *deep.Controller
	server     *Server
	client     Client
	pid        int
}

func newHarness(t *testing.T, cfg deep.Config) *harness {
	t.Helper()
	return newSlowHarness(t, cfg, enough)
}

// newSlowHarness has a server that is patient with requests.
func newSlowHarness(t *testing.T, cfg deep.Config, patience time.Duration) *harness {
	t.Helper()
	h := &harness{t: t, place: Place{TempDir: t.TempDir()}, pid: os.Getpid()}
	h.client = patient(h.place)
	if cfg.Blackout == 0 {
		cfg.Blackout = -1
	}
	cfg.CoolDown, cfg.PerHour, cfg.Share = -1, 10_000, 1
	var err error
	if h.controller, err = deep.New(cfg, engines{}); err != nil {
		t.Fatal(err)
	}
	h.controller.Start()
	if h.server, err = listen(h.place, Process{Service: "trainer", Command: "train"}, h.controller, nil, patience); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.stop()
		h.server.Close()
	})
	return h
}

// patient returns a client that waits as long as it takes.
func patient(place Place) Client { return Client{Place: place, patience: enough} }

func (h *harness) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), enough)
	defer cancel()
	if err := h.controller.Stop(ctx); err != nil {
		h.t.Error(err)
	}
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	t.Cleanup(cancel)
	return ctx
}

// raw connects without a client.
func (h *harness) raw() *net.UnixConn {
	h.t.Helper()
	conn, err := net.Dial("unix", h.server.Path())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(enough)); err != nil {
		h.t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}

// listed returns the entry of a process in a client's list. Other tests may have processes too.
func listed(t *testing.T, c *Client, pid int) (l Listed, found bool) {
	t.Helper()
	for _, l := range c.List(limited(t)) {
		if l.PID == pid {
			return l, true
		}
	}
	return Listed{}, false
}

// receive waits for a value, or for the channel to be closed.
func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(enough):
		t.Fatal("nothing came")
	}
	return v
}

// readResponse reads the status code and the first JSON value of a response. An error without JSON,
// as net/http sends, is returned as reply.Error.
func readResponse(t *testing.T, conn net.Conn) (code int, r reply) {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if json.Unmarshal(body, &r) != nil {
		r.Error = string(body)
	}
	return response.StatusCode, r
}

func TestOpen(t *testing.T) {
	h := newHarness(t, deep.Config{})
	var accepted deep.Window
	w, err := h.client.Open(limited(t), h.pid, Request{Engine: "pc", For: "20ms"}, func(w deep.Window) { accepted = w })
	if err != nil {
		t.Fatal(err)
	}
	if w.Outcome.Status != deep.StatusCollected || w.Cause != deep.CauseSocket || w.For != 20*time.Millisecond || w.Collected.Rows != 1 || len(w.Parts) != 1 || w.Closed != deep.ClosedTime {
		t.Errorf("window %+v", w)
	}
	if want := fmt.Sprintf("gpuflight deep, process %d of user %d", h.pid, os.Geteuid()); w.Why != want {
		t.Errorf("why %q, want %q", w.Why, want)
	}
	if accepted.ID != w.ID || !accepted.Start.Equal(w.Start) || !accepted.End.IsZero() {
		t.Errorf("accepted %+v", accepted)
	}
	// An engine that cannot is an outcome of the window; a request that is refused is an error.
	if w, err = h.client.Open(limited(t), h.pid, Request{Engine: "sass"}, nil); err != nil || w.Outcome.Status != deep.StatusNoPermission {
		t.Errorf("%+v, %v", w, err)
	}
	for _, bad := range []Request{{Engine: "nvtx"}, {For: "2m"}, {For: "0"}, {For: "soon"}} {
		if _, err := h.client.Open(limited(t), h.pid, bad, nil); err == nil || !strings.Contains(err.Error(), "the process says: ") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestRefusal(t *testing.T) {
	h := newHarness(t, deep.Config{Blackout: time.Hour})
	_, err := h.client.Open(limited(t), h.pid, Request{}, func(deep.Window) { t.Error("accepted") })
	var e *deep.Error
	if !errors.As(err, &e) || e.Outcome.Status != deep.StatusBlackout {
		t.Errorf("error %v", err)
	}
}

func TestStatusListAndClose(t *testing.T) {
	h := newHarness(t, deep.Config{})
	found, err := h.client.Close(limited(t), h.pid)
	if err != nil || found {
		t.Errorf("closed a window that there was not: %t, %v", found, err)
	}
	opened := make(chan struct{})
	type result struct {
		w   deep.Window
		err error
	}
	done := make(chan result, 1)
	ctx := limited(t)
	go func() {
		w, err := h.client.Open(ctx, h.pid, Request{For: "1m"}, func(deep.Window) { close(opened) })
		done <- result{w, err}
	}()
	select {
	case <-opened:
	case r := <-done:
		t.Fatalf("%+v", r)
	}
	p, report, err := h.client.Status(ctx, h.pid)
	if err != nil || p != (Process{PID: h.pid, Service: "trainer", Command: "train"}) || report.Open == nil || report.Open.For != time.Minute {
		t.Errorf("%+v, %+v, %v", p, report, err)
	}
	if l, found := listed(t, &h.client, h.pid); !found || l.UID != os.Geteuid() || l.Err != nil || l.Process != p || l.Report.Open == nil {
		t.Errorf("listed %+v, %t", l, found)
	}
	if found, err = h.client.Close(ctx, h.pid); err != nil || !found {
		t.Errorf("closed %t, %v", found, err)
	}
	r := receive(t, done)
	if r.err != nil || r.w.Closed != deep.ClosedAsked {
		t.Errorf("%+v", r)
	}
}

// TestWhoAsksMayGo leaves while the window is open: it has its time all the same.
func TestWhoAsksMayGo(t *testing.T) {
	closed := make(chan deep.Window, 1)
	h := newHarness(t, deep.Config{Closed: func(w deep.Window) { closed <- w }})
	ctx, cancel := context.WithCancelCause(limited(t))
	gone := errors.New("gone")
	_, err := h.client.Open(ctx, h.pid, Request{For: "300ms"}, func(deep.Window) { cancel(gone) })
	if !errors.Is(err, gone) {
		t.Errorf("error %v", err)
	}
	if w := receive(t, closed); w.Closed != deep.ClosedTime {
		t.Errorf("window %+v", w)
	}
}

func TestEndOfTheProcess(t *testing.T) {
	h := newHarness(t, deep.Config{})
	path := h.server.Path()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	open := func() <-chan error {
		opened, done := make(chan struct{}), make(chan error, 1)
		ctx := limited(t)
		go func() {
			w, err := h.client.Open(ctx, h.pid, Request{For: "1m"}, func(deep.Window) { close(opened) })
			// It may have been accepted and not begun.
			if err == nil && w.Closed != deep.ClosedExit && w.Outcome.Status != deep.StatusAtExit {
				err = fmt.Errorf("window %+v", w)
			}
			done <- err
		}()
		receive(t, opened)
		return done
	}
	done := open()
	idle := h.raw()
	h.stop()
	if err := receive(t, done); err != nil {
		t.Error(err)
	}
	h.server.Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if n, err := idle.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("an idle connection reads %d bytes, %v", n, err)
	}
	if _, _, err := h.client.Status(limited(t), h.pid); !errors.Is(err, ErrNotListening) {
		t.Errorf("error %v", err)
	}
	if l, found := listed(t, &h.client, h.pid); found {
		t.Errorf("listed %+v", l)
	}
	h.server.Close()
}

// TestCloseDoesNotWaitForAWindow ends the server alone: who waits is told.
func TestCloseDoesNotWaitForAWindow(t *testing.T) {
	h := newHarness(t, deep.Config{})
	done := make(chan error, 1)
	opened := make(chan struct{})
	ctx := limited(t)
	go func() {
		_, err := h.client.Open(ctx, h.pid, Request{For: "1m"}, func(deep.Window) { close(opened) })
		done <- err
	}()
	receive(t, opened)
	h.server.Close()
	if err := receive(t, done); err == nil || !strings.Contains(err.Error(), "the process is at its end") {
		t.Errorf("error %v", err)
	}
}

func post(body string) string {
	return fmt.Sprintf("POST /windows HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func TestBadRequests(t *testing.T) {
	h := newHarness(t, deep.Config{})
	const notJSON = "the body is not JSON"
	for _, tc := range []struct {
		name, sent string
		code       int
		answer     string
	}{
		{"garbage", "\x00\xff\x01 garbage\r\n\r\n", 400, ""},
		{"another path", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404, ""},
		{"another method", "PUT /windows HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405, ""},
		{"a header of a mebibyte", "GET /status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", 431, ""},
		{"an empty body", post(""), 400, notJSON},
		{"no JSON", post("\x00\xff"), 400, notJSON},
		{"another type", post("[1]"), 400, notJSON},
		{"deep nesting", post(strings.Repeat("[", 4000)), 400, notJSON},
		{"an unknown engine", post(`{"engine":"` + strings.Repeat("x", 1000) + `"}`), 400, "is unknown; use pc, sass or both"},
		{"a body of a mebibyte", post(strings.Repeat("x", 1<<20)), 413, "the body has more than 4096 bytes"},
		{"one byte too many", post("{}" + strings.Repeat(" ", maxRequest-1)), 413, "the body has more than 4096 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := h.raw()
			go func() { _, _ = io.WriteString(conn, tc.sent) }() // the server may cut it off
			code, r := readResponse(t, conn)
			if code != tc.code || !strings.Contains(r.Error, tc.answer) || len(r.Error) > 200 {
				t.Errorf("status %d, reply %+v", code, r)
			}
		})
	}
	_, report, err := h.client.Status(limited(t), h.pid)
	if err != nil || report.Windows != 0 || report.Attempts != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestSlowClient(t *testing.T) {
	h := newSlowHarness(t, deep.Config{}, time.Second)
	t.Run("header", func(t *testing.T) {
		conn := h.raw()
		if _, err := io.WriteString(conn, "GET /status HT"); err != nil {
			t.Fatal(err)
		}
		if code, r := readResponse(t, conn); code != 400 {
			t.Errorf("status %d, reply %+v", code, r)
		}
	})
	t.Run("body", func(t *testing.T) {
		conn := h.raw()
		if _, err := io.WriteString(conn, "POST /windows HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		if code, r := readResponse(t, conn); code != 408 || r.Error != "the body did not arrive in time" {
			t.Errorf("status %d, reply %+v", code, r)
		}
	})
}

// TestHundredConnections has more idle connections than are served. A request waits until they are
// closed, and is answered.
func TestHundredConnections(t *testing.T) {
	h := newSlowHarness(t, deep.Config{}, 500*time.Millisecond)
	for range 100 {
		h.raw()
	}
	began := time.Now()
	if _, _, err := h.client.Status(limited(t), h.pid); err != nil {
		t.Error(err)
	}
	// 96 of the idle connections fill six rounds of maxConnections before the request has its turn.
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("answered after %v: more than %d connections were served at a time", took, maxConnections)
	}
}

// TestOtherUsersAreRefused connects as another user, to a folder that was opened to all on purpose.
func TestOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can connect as another user")
	}
	h := newHarness(t, deep.Config{})
	for path, mode := range map[string]os.FileMode{
		filepath.Dir(h.place.TempDir): 0o755, filepath.Dir(h.server.Path()): 0o755, h.server.Path(): 0o777,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan error)
	var connect func()
	connect = func() {
		// Never unlocked: the thread ends with its user id.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread does not end, and the user of the process is its user. It is held
			// until another one has done it.
			defer runtime.UnlockOSThread()
			done := make(chan struct{})
			go func() {
				defer close(done)
				connect()
			}()
			<-done
			return
		}
		none := ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, none, 12345, none); errno != 0 {
			connected <- errno
			return
		}
		connected <- unix.Connect(fd, &unix.SockaddrUnix{Name: h.server.Path()})
	}
	go connect()
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "connection")
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(enough)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(conn, post("{}")) }()
	if code, r := readResponse(t, conn); code != 403 || r.Error != "only the user of the process and root may ask" {
		t.Errorf("status %d, reply %+v", code, r)
	}
	if report := h.controller.Report(); report.Windows != 0 || report.Attempts != 0 || report.Open != nil {
		t.Errorf("a window was opened: %+v", report)
	}
}

func TestNoSuchProcess(t *testing.T) {
	client := patient(Place{TempDir: t.TempDir()})
	for _, pid := range []int{-1, 0, ended(t)} {
		if _, _, err := client.Status(limited(t), pid); !errors.Is(err, ErrNoProcess) {
			t.Errorf("%d: %v", pid, err)
		}
	}
	if _, _, err := client.Status(limited(t), os.Getpid()); !errors.Is(err, ErrNotListening) {
		t.Errorf("error %v", err)
	}
}

// TestListSaysWhoDoesNotAnswer has processes that take connections and say nothing, or nonsense.
func TestListSaysWhoDoesNotAnswer(t *testing.T) {
	place := Place{TempDir: t.TempDir()}
	folder, err := place.Folder()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(folder, socketName(os.Getpid())), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client := Client{Place: place, patience: 50 * time.Millisecond}
	if l, found := listed(t, &client, os.Getpid()); !found || !errors.Is(l.Err, ErrNotAnswering) {
		t.Errorf("listed %+v, %t", l, found)
	}
	// And one that answers what nobody asked for.
	client = patient(place)
	const ok = "HTTP/1.1 200 OK\r\n\r\n"
	for _, tc := range []struct{ answer, problem string }{
		{"hello\n", "the process has ended, or its response is not valid"},
		{ok + "hello\n", "the process has ended, or its response is not valid"},
		{ok + "{}\n", "the process sent an unexpected response"},
		{ok + `{"error":"` + strings.Repeat("x", maxReply+1<<16), "request body too large"},
		{ok, "the process has ended, or its response is not valid"},
		{"", "the process has ended, or its response is not valid"},
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.AcceptUnix()
				if err != nil {
					return
				}
				// Those of List are still in the queue, and closed.
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					_ = conn.Close()
					continue
				}
				_, err = conn.Write([]byte(tc.answer))
				_ = conn.Close()
				if err == nil || errors.Is(err, unix.EPIPE) && len(tc.answer) > maxReply {
					return
				}
			}
		}()
		if _, _, err := client.Status(limited(t), os.Getpid()); err == nil || !strings.Contains(err.Error(), tc.problem) {
			t.Errorf("%.20q: %v", tc.answer, err)
		}
		_ = l.SetDeadline(time.Now()) // if it is not done
		<-done
		_ = l.SetDeadline(time.Time{})
	}
}

func FuzzRequest(f *testing.F) {
	for _, s := range []string{`{"engine":"pc","for":"2s"}`, `{}`, `{"engine":1}`, "[", "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		alloctest.Limit{PerByte: 1 << 6, Constant: 1 << 14}.Check(t, len(body), func() { _, _ = parseRequest(body) })
		r, err := parseRequest(body)
		if err != nil {
			if len(err.Error()) > 400 || strings.Contains(err.Error(), "\n") {
				t.Error(err)
			}
			return
		}
		if r.Cause != deep.CauseSocket || r.For != 0 && (r.For < deep.MinFor || r.For > deep.MaxFor) || r.Why != "" {
			t.Errorf("%+v", r)
		}
		if r.Engine != "" && r.Engine != deep.PC && r.Engine != deep.SASS && r.Engine != deep.Both {
			t.Errorf("engine %q", r.Engine)
		}
	})
}
