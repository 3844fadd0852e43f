// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
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

// Open asks a process for a window and waits until it has closed. accepted, if not nil, is told of the window
// when it opens. The error is a *deep.Error if the process refused, one of this package's, or ctx's: then the
// window goes on without the client. What came of a window that was opened is in the window.
func (c *Client) Open(ctx context.Context, pid int, q Request, accepted func(deep.Window)) (deep.Window, error) {
	q.Do = DoOpen
	conn, err := c.ask(ctx, pid, q)
	if err != nil {
		return deep.Window{}, err
	}
	defer conn.close()
	r, err := conn.reply()
	if err != nil {
		return deep.Window{}, err
	}
	if r.Event == Refused && r.Outcome != nil {
		return deep.Window{}, &deep.Error{Outcome: *r.Outcome}
	}
	if r.Event != Accepted || r.Window == nil {
		return deep.Window{}, r.unexpected()
	}
	if accepted != nil {
		accepted(*r.Window)
	}
	conn.patience(0) // bounded by the process: the window, and what its calls may take
	if r, err = conn.reply(); err != nil {
		return deep.Window{}, err
	}
	if r.Event != Closed || r.Window == nil {
		return deep.Window{}, r.unexpected()
	}
	return *r.Window, nil
}

// Close ends the window that is open in a process and says whether there was one.
func (c *Client) Close(ctx context.Context, pid int) (found bool, err error) {
	r, err := c.once(ctx, pid, Request{Do: DoClose})
	if err != nil {
		return false, err
	}
	if r.Event != Closed {
		return false, r.unexpected()
	}
	return r.Found, nil
}

// Status returns who a process is and what it has done.
func (c *Client) Status(ctx context.Context, pid int) (Process, deep.Report, error) {
	r, err := c.once(ctx, pid, Request{Do: DoStatus})
	if err != nil {
		return Process{}, deep.Report{}, err
	}
	if r.Event != State || r.Process == nil || r.Report == nil {
		return Process{}, deep.Report{}, r.unexpected()
	}
	return *r.Process, *r.Report, nil
}

// List returns the processes of this user, for root those of all users, that can be asked, by id. Those in
// containers that share no folder with this process are not among them.
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

// once asks and returns the only reply.
func (c *Client) once(ctx context.Context, pid int, q Request) (Reply, error) {
	conn, err := c.ask(ctx, pid, q)
	if err != nil {
		return Reply{}, err
	}
	defer conn.close()
	return conn.reply()
}

// connection is one to a process.
type connection struct {
	ctx  context.Context
	stop func() bool
	conn *net.UnixConn
	in   *bufio.Reader
}

// ask connects and sends a request.
func (c *Client) ask(ctx context.Context, pid int, q Request) (*connection, error) {
	u, err := c.dial(ctx, pid)
	if err != nil {
		return nil, err
	}
	conn := &connection{ctx: ctx, conn: u, in: bufio.NewReader(u)}
	if c.patience > 0 {
		conn.patience(c.patience)
	} else {
		conn.patience(answerTime)
	}
	// A context that ends makes all that waits return.
	conn.stop = context.AfterFunc(ctx, func() { _ = u.Close() })
	line, err := json.Marshal(q)
	if err != nil {
		conn.close()
		return nil, err
	}
	if _, err := u.Write(append(line, '\n')); err != nil && !errors.Is(err, unix.EPIPE) {
		conn.close()
		return nil, conn.why(err)
	} // after EPIPE there is a reply that says why
	return conn, nil
}

func (c *connection) close() {
	c.stop()
	_ = c.conn.Close()
}

// patience bounds what follows; 0 is no bound.
func (c *connection) patience(d time.Duration) {
	var t time.Time
	if d > 0 {
		t = time.Now().Add(d)
	}
	_ = c.conn.SetDeadline(t)
}

// reply reads a line.
func (c *connection) reply() (Reply, error) {
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return Reply{}, c.why(err)
		}
		if len(line) > maxReply {
			return Reply{}, fmt.Errorf("the process answers with more than %d bytes", maxReply)
		}
	}
	var r Reply
	if err := json.Unmarshal(line, &r); err != nil {
		return Reply{}, fmt.Errorf("the process answers what is no reply: %w", err)
	}
	return r, nil
}

// why says what an error of the connection means.
func (c *connection) why(err error) error {
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrNotAnswering
	}
	return fmt.Errorf("the process has ended, or does not answer: %w", err)
}

func (r *Reply) unexpected() error {
	if r.Event == Wrong {
		return fmt.Errorf("the process says: %s", r.Error)
	}
	return fmt.Errorf("the process answers with an unexpected %.32q", r.Event)
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

// paths are the folders in which a process of a user may have its socket, best first. Each is looked for
// where the process sees it, if it may be looked at, and then where this one does.
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
