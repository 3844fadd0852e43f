// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
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

func (engines) Ready() bool                                    { return true }
func (engines) PausesActivity(deep.Engine) bool                { return false }
func (engines) Pause(context.Context) error                    { return nil }
func (engines) Resume(context.Context, bool) error             { return nil }
func (engines) Drain(context.Context) error                    { return nil }
func (engines) Disarm(context.Context) (deep.Collected, error) { return deep.Collected{Rows: 1}, nil }
func (e engines) Arm(_ context.Context, engine deep.Engine, _ deep.Options) (deep.Session, error) {
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
	conn, err := net.Dial("unix", h.server.dir.at(socketName(h.pid)))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(enough)); err != nil {
		h.t.Fatal(err)
	}
	return conn.(*net.UnixConn)
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

func readReply(t *testing.T, conn net.Conn) Reply {
	t.Helper()
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var r Reply
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatal(err)
	}
	return r
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
	if c := h.server.Counts(); c != (Counts{Requests: 2, Malformed: 4}) {
		t.Errorf("counts %+v", c)
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
	list := h.client.List(ctx)
	if len(list) != 1 || list[0].PID != h.pid || list[0].UID != os.Geteuid() || list[0].Err != nil || list[0].Process != p || list[0].Report.Open == nil {
		t.Errorf("list %+v", list)
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
	if list := h.client.List(limited(t)); len(list) != 0 {
		t.Errorf("list %+v", list)
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

func TestBadRequests(t *testing.T) {
	h := newHarness(t, deep.Config{})
	for _, tc := range []struct{ name, sent, answer string }{
		{"garbage", "\x00\xff\x01 garbage\n", "the request is no line of JSON"},
		{"a line of HTTP", "GET / HTTP/1.1\r\n\r\n", "the request is no line of JSON"},
		{"an empty line", "\n", "the request is no line of JSON"},
		{"another type", "[1]\n", "the request is no line of JSON"},
		{"deep nesting", strings.Repeat("[", 4000) + "\n", "the request is no line of JSON"},
		{"nothing to do", "{}\n", `"" is nothing to do; there are open, close and status`},
		{"something else to do", `{"do":"` + strings.Repeat("x", 1000) + "\"}\n", "is nothing to do; there are open, close and status"},
		{"no end", `{"do":"status"}`, "the request has no end of line"},
		{"a mebibyte", strings.Repeat("x", 1<<20) + "\n", "the request has more than 4096 bytes"},
		{"a mebibyte without end", strings.Repeat("x", 1<<20), "the request has more than 4096 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := h.raw()
			go func() {
				_, _ = conn.Write([]byte(tc.sent)) // it may be cut off
				_ = conn.CloseWrite()
			}()
			r := readReply(t, conn)
			if r.Event != Wrong || !strings.Contains(r.Error, tc.answer) || len(r.Error) > 200 {
				t.Errorf("reply %+v", r)
			}
		})
	}
	if c := h.server.Counts(); c.Malformed != 10 || c.Requests != 0 {
		t.Errorf("counts %+v", c)
	}
	if _, _, err := h.client.Status(limited(t), h.pid); err != nil {
		t.Error(err)
	}
}

func TestSlowClient(t *testing.T) {
	h := newSlowHarness(t, deep.Config{}, 50*time.Millisecond)
	conn := h.raw()
	if _, err := conn.Write([]byte(`{"do":`)); err != nil {
		t.Fatal(err)
	}
	if r := readReply(t, conn); r.Event != Wrong || r.Error != "the request did not come within 50ms" {
		t.Errorf("reply %+v", r)
	}
	// One that says nothing at all is sent away as well; one that goes is no mistake.
	if r := readReply(t, h.raw()); r.Event != Wrong {
		t.Errorf("reply %+v", r)
	}
	_ = h.raw().Close()
	h.server.Close()
	if c := h.server.Counts(); c.Malformed != 2 {
		t.Errorf("counts %+v", c)
	}
}

func TestHundredConnections(t *testing.T) {
	h := newHarness(t, deep.Config{})
	var conns []*net.UnixConn
	for range 100 {
		conns = append(conns, h.raw())
	}
	// They are taken in order, and the first say nothing yet.
	for i, conn := range conns[maxConnections:] {
		if r := readReply(t, conn); r.Event != Wrong || !strings.Contains(r.Error, "too many connections") {
			t.Fatalf("connection %d: %+v", i, r)
		}
	}
	for i, conn := range conns[:maxConnections] {
		if _, err := conn.Write([]byte("{\"do\":\"status\"}\n")); err != nil {
			t.Fatal(err)
		}
		if r := readReply(t, conn); r.Event != State {
			t.Fatalf("connection %d: %+v", i, r)
		}
	}
	if c := h.server.Counts(); c.Crowded != 84 || c.Requests != maxConnections {
		t.Errorf("counts %+v", c)
	}
	// The last reply is written just before its place is free again.
	for {
		_, _, err := h.client.Status(limited(t), h.pid)
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "too many connections") {
			t.Fatal(err)
		}
	}
}

// TestOtherUsersAreRefused connects as another user, to a folder that was opened to all on purpose.
func TestOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can connect as another user")
	}
	h := newHarness(t, deep.Config{})
	for path, mode := range map[string]os.FileMode{h.server.dir.path: 0o755, h.server.Path(): 0o777} {
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
			// The main thread does not end, and the user of the process is its user. It is held until
			// another one has done it.
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
		connected <- unix.Connect(fd, &unix.SockaddrUnix{Name: h.server.dir.at(socketName(h.pid))})
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
	if r := readReply(t, conn); r.Event != Wrong || r.Error != "only the user of the process and root may ask" {
		t.Errorf("reply %+v", r)
	}
	if c := h.server.Counts(); c.Strangers != 1 || c.Requests != 0 {
		t.Errorf("counts %+v", c)
	}
	// And the client uses no folder that others can change.
	if _, _, err := h.client.Status(limited(t), h.pid); err == nil || !strings.Contains(err.Error(), "it must belong to user 0 with mode 0700") {
		t.Errorf("error %v", err)
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
	d, err := makeDir(place)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.at(socketName(os.Getpid())), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client := Client{Place: place, patience: 50 * time.Millisecond}
	if list := client.List(limited(t)); len(list) != 1 || !errors.Is(list[0].Err, ErrNotAnswering) {
		t.Errorf("list %+v", list)
	}
	// And one that answers what nobody asked for.
	client = patient(place)
	for _, tc := range []struct{ answer, problem string }{
		{"hello\n", "the process answers what is no reply"},
		{"{\"event\":\"party\"}\n", `the process answers with an unexpected "party"`},
		{"{\"event\":\"status\"}\n", `the process answers with an unexpected "status"`},
		{strings.Repeat("x", maxReply+1<<16), "the process answers with more than 1048576 bytes"},
		{"", "the process has ended, or does not answer"},
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
				if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
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
	for _, s := range []string{`{"do":"open","engine":"pc","for":"2s"}`, `{"do":"status"}`, `{"do":1}`, "[", "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		alloctest.Limit{PerByte: 1 << 6, Constant: 1 << 14}.Check(t, len(line), func() { _, _, _ = parseRequest(line) })
		do, r, err := parseRequest(line)
		switch {
		case err != nil:
			if do != "" || len(err.Error()) > 400 || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q, %v", do, err)
			}
		case do == DoOpen:
			if r.Cause != deep.CauseSocket || r.For != 0 && (r.For < deep.MinFor || r.For > deep.MaxFor) || r.Why != "" {
				t.Errorf("%+v", r)
			}
			if r.Engine != "" && r.Engine != deep.PC && r.Engine != deep.SASS && r.Engine != deep.Both {
				t.Errorf("engine %q", r.Engine)
			}
		case do != DoClose && do != DoStatus:
			t.Errorf("do %q", do)
		}
	})
}
