// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/procfs"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

const (
	// answerTime is how long a process may take for its first reply: its request time and a little.
	answerTime = requestTime + replyTime
	// maxListed bounds the processes of a list, maxAsked how many of them are asked at a time.
	maxListed = 256
	maxAsked  = 16
)

// Client asks processes. It may be used by any goroutine.
type Client struct {
	Place Place
	// patience is answerTime but in tests.
	patience time.Duration
}

// Listed is a process that listens.
type Listed struct {
	// PID is the id as seen from here.
	PID     int
	UID     int
	Process Process
	Report  deep.Report
	// Err says why Process and Report are empty.
	Err error
}

// Open requests a window and waits until it has closed. It calls accepted, if not nil, when the
// window opens. The error is a *deep.Error if the process rejected the request, one of this
// package's errors, or the cause of ctx. If ctx ends, the window continues. The result of an opened
// window is in the window.
func (c *Client) Open(ctx context.Context, pid int, q Request, accepted func(deep.Window)) (deep.Window, error) {
	e, err := c.exchange(ctx, pid, http.MethodPost, windowsPath, q)
	if err != nil {
		return deep.Window{}, err
	}
	defer e.close()
	r, err := e.reply()
	switch {
	case err != nil:
		return deep.Window{}, err
	case r.Outcome != nil:
		return deep.Window{}, &deep.Error{Outcome: *r.Outcome}
	case r.Window == nil:
		return deep.Window{}, errUnexpected
	}
	if accepted != nil {
		accepted(*r.Window)
	}
	e.timer.Stop() // the process bounds the rest: the window and the calls that close it
	if r, err = e.reply(); err != nil {
		return deep.Window{}, err
	}
	if r.Window == nil {
		return deep.Window{}, errUnexpected
	}
	return *r.Window, nil
}

// Close ends the open window of a process and reports whether there was one.
func (c *Client) Close(ctx context.Context, pid int) (found bool, err error) {
	e, err := c.exchange(ctx, pid, http.MethodDelete, windowsPath, nil)
	if err != nil {
		return false, err
	}
	defer e.close()
	r, err := e.reply()
	return r.Found, err
}

// Status returns the identity of a process and its report.
func (c *Client) Status(ctx context.Context, pid int) (Process, deep.Report, error) {
	e, err := c.exchange(ctx, pid, http.MethodGet, statusPath, nil)
	if err != nil {
		return Process{}, deep.Report{}, err
	}
	defer e.close()
	r, err := e.reply()
	if err == nil && (r.Process == nil || r.Report == nil) {
		err = errUnexpected
	}
	if err != nil {
		return Process{}, deep.Report{}, err
	}
	return *r.Process, *r.Report, nil
}

// List returns the processes of this user, for root those of all users, that can be asked, by id.
// Those in containers that share no folder with this process are not among them.
func (c *Client) List(ctx context.Context) []Listed {
	var list []Listed
	for _, f := range c.folders() {
		d, err := openDir(f.path, f.uid)
		if err != nil {
			continue // it is not there, or not what it should be
		}
		for _, pid := range d.pids() {
			if len(list) == maxListed || ctx.Err() != nil {
				break
			}
			if !exists(pid) || slices.ContainsFunc(list, func(l Listed) bool { return l.PID == pid }) {
				continue
			}
			if owner, err := listener(d.at(socketName(pid))); err != nil || owner != pid {
				continue // it has ended, or belongs to another namespace
			}
			list = append(list, Listed{PID: pid, UID: f.uid})
		}
		d.close()
	}
	// Together, so that those that do not answer keep nobody waiting.
	var asked sync.WaitGroup
	slots := make(chan struct{}, maxAsked)
	for i := range list {
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			l := &list[i]
			l.Process, l.Report, l.Err = c.Status(ctx, l.PID)
		})
	}
	asked.Wait()
	slices.SortFunc(list, func(a, b Listed) int { return a.PID - b.PID })
	return list
}

type userFolder struct {
	path string
	uid  int
}

// folders are those in which a List looks.
func (c *Client) folders() []userFolder {
	uid := os.Geteuid()
	list := []userFolder{{filepath.Join(c.Place.temp(), folder+"-"+strconv.Itoa(uid)), uid}}
	if filepath.IsAbs(c.Place.RuntimeDir) {
		list = append(list, userFolder{filepath.Join(c.Place.RuntimeDir, folder), uid})
	}
	if uid != 0 {
		return list
	}
	for _, pattern := range []string{filepath.Join(c.Place.temp(), folder+"-*"), "/run/user/*/" + folder} {
		paths, _ := filepath.Glob(pattern) // the patterns are good
		for _, path := range paths {
			digits := strings.TrimPrefix(filepath.Base(path), folder+"-")
			if digits == folder {
				digits = filepath.Base(filepath.Dir(path))
			}
			if owner, err := strconv.Atoi(digits); err == nil && owner != uid {
				list = append(list, userFolder{path, owner})
			}
		}
	}
	return list
}

var errUnexpected = errors.New("the process sent an unexpected response")

// exchange is a request and its response, which may have several JSON values.
type exchange struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	response *http.Response
	values   *json.Decoder
}

// exchange connects and sends a request. It returns when the headers of the response are there.
func (c *Client) exchange(ctx context.Context, pid int, method, path string, body any) (*exchange, error) {
	conn, err := c.dial(ctx, pid)
	if err != nil {
		return nil, err
	}
	var encoded []byte
	if body != nil {
		if encoded, err = json.Marshal(body); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	e := &exchange{}
	e.ctx, e.cancel = context.WithCancelCause(ctx)
	patience := c.patience
	if patience == 0 {
		patience = answerTime
	}
	e.timer = time.AfterFunc(patience, func() { e.cancel(ErrNotAnswering) })
	request, err := http.NewRequestWithContext(e.ctx, method, "http://gpuflight"+path, bytes.NewReader(encoded))
	if err != nil {
		_ = conn.Close()
		e.close()
		return nil, err
	}
	transport := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxRequest,
	}
	if e.response, err = transport.RoundTrip(request); err != nil { //nolint:bodyclose // e.close does
		_ = conn.Close()
		err = e.explain(err)
		e.close()
		return nil, err
	}
	e.values = json.NewDecoder(http.MaxBytesReader(nil, e.response.Body, maxReply))
	return e, nil
}

func (e *exchange) close() {
	e.timer.Stop()
	if e.response != nil {
		_ = e.response.Body.Close()
	}
	e.cancel(nil)
}

// reply decodes the next value of the response.
func (e *exchange) reply() (r reply, err error) {
	if err := e.values.Decode(&r); err != nil {
		return reply{}, e.explain(err)
	}
	if r.Error != "" {
		return reply{}, fmt.Errorf("the process says: %s", r.Error)
	}
	return r, nil
}

// explain describes an error of the connection.
func (e *exchange) explain(err error) error {
	var tooLarge *http.MaxBytesError
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case e.ctx.Err() != nil:
		return context.Cause(e.ctx)
	case errors.As(err, &tooLarge):
		return fmt.Errorf("the response has more than %d bytes", maxReply)
	case errors.As(err, &syntax), errors.As(err, &kind):
		return fmt.Errorf("the response is not valid: %w", err)
	}
	return fmt.Errorf("the process has ended, or does not answer: %w", err)
}

// dial finds the socket of a process and connects to it.
func (c *Client) dial(ctx context.Context, pid int) (*net.UnixConn, error) {
	status := procfs.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	uid, ok := userOf(status)
	if pid <= 0 || !ok || !exists(pid) {
		return nil, ErrNoProcess
	}
	own := pid
	if inner := procfs.ParseVPID(status); inner != 0 {
		own = int(inner)
	}
	problem := ErrNotListening
	for _, path := range c.paths(pid, uid) {
		d, err := openDir(path, uid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			problem = err
			continue
		}
		conn, err := d.connect(ctx, own, pid)
		d.close()
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
			problem = err
		}
	}
	return nil, problem
}

// connect connects to the socket of a process that calls itself own and is pid from here.
func (d *dir) connect(ctx context.Context, own, pid int) (*net.UnixConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", d.at(socketName(own)))
	if errors.Is(err, unix.EAGAIN) {
		return nil, ErrNotAnswering // more wait for it than the kernel lets
	}
	if err != nil {
		return nil, err
	}
	u := conn.(*net.UnixConn) //nolint:forcetypeassert // "unix" makes no other
	peer, err := peerOf(u)
	if err == nil && int(peer.Pid) != pid {
		err = fmt.Errorf("process %d listens in place of process %d", peer.Pid, pid)
	}
	if err != nil {
		_ = u.Close()
		return nil, err
	}
	return u, nil
}

// paths are the folders in which a process of a user may have its socket, best first. Each is
// looked for where the process sees it, if it may be looked at, and then where this one does.
func (c *Client) paths(pid, uid int) []string {
	private := folder + "-" + strconv.Itoa(uid)
	var inside []string
	add := func(path string) {
		if filepath.IsAbs(path) && !slices.Contains(inside, path) {
			inside = append(inside, path)
		}
	}
	for variable := range bytes.SplitSeq(procfs.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)), []byte{0}) {
		if v, ok := bytes.CutPrefix(variable, []byte("XDG_RUNTIME_DIR=")); ok && len(v) < 1024 {
			add(filepath.Join(string(v), folder))
		}
	}
	if uid == os.Geteuid() && c.Place.RuntimeDir != "" {
		add(filepath.Join(c.Place.RuntimeDir, folder))
	}
	add(fmt.Sprintf("/run/user/%d/%s", uid, folder))
	add(filepath.Join(c.Place.temp(), private))
	var list []string
	for _, path := range inside {
		list = append(list, fmt.Sprintf("/proc/%d/root%s", pid, path), path)
	}
	return list
}

// userOf returns the effective user id from the text of /proc/PID/status.
func userOf(status []byte) (uid int, ok bool) {
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "Uid:"); found {
			ids := strings.Fields(rest)
			if len(ids) < 2 {
				return 0, false
			}
			uid, err := strconv.Atoi(ids[1])
			return uid, err == nil
		}
	}
	return 0, false
}
