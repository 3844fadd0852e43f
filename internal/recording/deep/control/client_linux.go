// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	// maxListed bounds the processes of a list.
	maxListed = 256
)

// Client sends requests to processes. It is safe for concurrent use.
type Client struct {
	Place Place
	// patience replaces answerTime in tests.
	patience time.Duration
}

// Listed is a process that accepts requests.
type Listed struct {
	// PID is the id in the PID namespace of the client.
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
	body, err := json.Marshal(q)
	if err != nil {
		return deep.Window{}, err
	}
	a, err := c.send(ctx, pid, http.MethodPost, windowsPath, body)
	if err != nil {
		return deep.Window{}, err
	}
	defer a.close()
	r, err := a.next()
	if err == nil && r.Outcome != nil {
		err = &deep.Error{Outcome: *r.Outcome}
	}
	if err != nil {
		return deep.Window{}, err
	}
	if r.Window != nil && accepted != nil {
		accepted(*r.Window)
	}
	if r, err = a.next(); err != nil {
		return deep.Window{}, err
	}
	if r.Window == nil {
		return deep.Window{}, errUnexpected
	}
	return *r.Window, nil
}

// Close ends the open window of a process and reports whether there was one.
func (c *Client) Close(ctx context.Context, pid int) (found bool, err error) {
	a, err := c.send(ctx, pid, http.MethodDelete, windowsPath, nil)
	if err != nil {
		return false, err
	}
	defer a.close()
	r, err := a.next()
	return r.Found, err
}

// Status returns the identity of a process and its report.
func (c *Client) Status(ctx context.Context, pid int) (Process, deep.Report, error) {
	a, err := c.send(ctx, pid, http.MethodGet, statusPath, nil)
	if err != nil {
		return Process{}, deep.Report{}, err
	}
	defer a.close()
	r, err := a.next()
	if err == nil && (r.Process == nil || r.Report == nil) {
		err = errUnexpected
	}
	if err != nil {
		return Process{}, deep.Report{}, err
	}
	return *r.Process, *r.Report, nil
}

// List returns the processes of this user, for root those of all users, that accept requests, by
// id.
func (c *Client) List(ctx context.Context) []Listed {
	var list []Listed
	folders, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	for _, path := range folders {
		pid, err := strconv.Atoi(filepath.Base(path))
		uid := int(procfs.ParseUID(procfs.ReadFile(path + "/status")))
		if err != nil || os.Geteuid() != 0 && os.Geteuid() != uid || len(list) == maxListed {
			continue
		}
		if conn, err := c.dial(ctx, pid); err == nil {
			_ = conn.Close()
			list = append(list, Listed{PID: pid, UID: uid})
		}
	}
	// Concurrently, so that one that does not answer does not delay the others.
	var asked sync.WaitGroup
	for i := range list {
		asked.Go(func() {
			l := &list[i]
			l.Process, l.Report, l.Err = c.Status(ctx, l.PID)
		})
	}
	asked.Wait()
	slices.SortFunc(list, func(a, b Listed) int { return a.PID - b.PID })
	return list
}

var errUnexpected = errors.New("the process sent an unexpected response")

// answer is a response, which may have several JSON values.
type answer struct {
	ctx      context.Context
	response *http.Response
	values   *json.Decoder
}

func (a *answer) close() { _ = a.response.Body.Close() }

// send connects and sends a request. It returns when the headers of the response are there.
func (c *Client) send(ctx context.Context, pid int, method, path string, body []byte) (*answer, error) {
	conn, err := c.dial(ctx, pid)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxRequest,
		ResponseHeaderTimeout:  cmp.Or(c.patience, answerTime),
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://gpuflight"+path, bytes.NewReader(body))
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	response, err := transport.RoundTrip(request) //nolint:bodyclose // answer.close does
	if err != nil {
		_ = conn.Close()
		return nil, explain(ctx, err)
	}
	return &answer{ctx, response, json.NewDecoder(http.MaxBytesReader(nil, response.Body, maxReply))}, nil
}

// next decodes the next value of the response.
func (a *answer) next() (r reply, err error) {
	if err := a.values.Decode(&r); err != nil {
		return reply{}, explain(a.ctx, err)
	}
	if r.Error != "" {
		return reply{}, fmt.Errorf("the process says: %s", r.Error)
	}
	return r, nil
}

// explain describes an error of the connection.
func explain(ctx context.Context, err error) error {
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &timeout) && timeout.Timeout():
		return ErrNotAnswering
	}
	return fmt.Errorf("the process has ended, or its response is not valid: %w", err)
}

// dial finds the socket of a process and connects to it. A process in a container is reached
// through /proc/PID/root, under the id that it has in its own PID namespace.
func (c *Client) dial(ctx context.Context, pid int) (*net.UnixConn, error) {
	status := procfs.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	uid := procfs.ParseUID(status)
	if pid <= 0 || uid == procfs.UnknownUser {
		return nil, ErrNoProcess
	}
	name := socketName(cmp.Or(int(procfs.ParseVPID(status)), pid))
	own := c.Place
	for variable := range strings.SplitSeq(string(procfs.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))), "\x00") {
		if value, ok := strings.CutPrefix(variable, "XDG_RUNTIME_DIR="); ok {
			own.RuntimeDir = value
		}
	}
	problem := ErrNotListening
	for _, folder := range append(own.folders(int(uid)), c.Place.folders(int(uid))...) {
		for _, root := range []string{fmt.Sprintf("/proc/%d/root", pid), ""} {
			conn, err := connect(ctx, filepath.Join(root, folder, name), pid)
			switch {
			case err == nil:
				return conn, nil
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case errors.Is(err, unix.EAGAIN): // the queue of the socket is full
				problem = ErrNotAnswering
			case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) && !errors.Is(err, unix.ECONNREFUSED):
				problem = err
			}
		}
	}
	return nil, problem
}

// connect connects to a socket that must be of a process.
func connect(ctx context.Context, path string, pid int) (*net.UnixConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
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
