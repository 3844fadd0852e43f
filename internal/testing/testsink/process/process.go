// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package process runs the programs under test: it finds them, starts them, keeps their output, and
// stops them with SIGTERM first, as a user would.
//
// The environment variable of a Binary selects its path. The default is Path, below the
// repository's root. If the binary is missing, the test is skipped. With GPUFLIGHT_REQUIRE=1 the
// test fails instead; CI sets it.
package process

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Binary names a program under test.
type Binary struct {
	// Env is the environment variable with its path.
	Env string
	// Path is the default path, relative to the repository's root.
	Path string
	// Make is the target that builds it.
	Make string
}

// The programs under test.
var (
	// Collector is the distribution.
	Collector = Binary{Env: "GPUFLIGHT_COLLECTOR", Path: "bin/otelcol-gpuflight", Make: "make build"}
	// Agent is the distribution without the store.
	Agent = Binary{Env: "GPUFLIGHT_AGENT", Path: "bin/otelcol-gpuflight-agent", Make: "make build"}
	// Jaeger is Jaeger 2.
	Jaeger = Binary{Env: "GPUFLIGHT_JAEGER", Path: ".tools/jaeger", Make: "make .tools/jaeger"}
	// Chdb is a Python interpreter with ClickHouse's engine; scripts/chdb fetches it.
	Chdb = Binary{Env: "GPUFLIGHT_CHDB", Path: ".tools/chdb/chdb", Make: "make .tools/chdb/chdb"}
)

// Find returns the program's absolute path. If it is missing, Find skips or fails the test; see the
// package comment.
func (b Binary) Find(t testing.TB) string {
	t.Helper()
	path := os.Getenv(b.Env)
	if path == "" {
		path = filepath.Join(Root(t), filepath.FromSlash(b.Path))
	}
	abs, err := filepath.Abs(path)
	if err == nil {
		_, err = exec.LookPath(abs)
	}
	if err != nil {
		Missing(t, fmt.Sprintf("%v; build it with %q or name it in %s", err, b.Make, b.Env))
	}
	return abs
}

// Missing skips the test with the given reason, or fails it with GPUFLIGHT_REQUIRE=1.
func Missing(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("GPUFLIGHT_REQUIRE") == "1" {
		t.Fatalf("GPUFLIGHT_REQUIRE=1, but %s", reason)
	}
	t.Skip(reason)
}

// Root returns the repository's root. The working directory must be a package folder, as go test
// sets it.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "builder-config.yaml")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no builder-config.yaml above the working directory")
		}
	}
}

// Recordings returns the folder of recorded sessions.
func Recordings(t testing.TB) string {
	t.Helper()
	return filepath.Join(Root(t), "internal", "testing", "testdata", "logs")
}

// Lines calls f with each line of each log file under dir. The order of files is undefined.
func Lines(t testing.TB, dir string, f func(path string, line []byte)) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		base := filepath.Base(path)
		isLog := strings.HasSuffix(base, ".log") || strings.HasSuffix(base, ".log.gz")
		if err != nil || d.IsDir() || !isLog {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		var in io.Reader = file
		if strings.HasSuffix(base, ".gz") {
			if in, err = gzip.NewReader(file); err != nil {
				return err
			}
		}
		buf := bufio.NewReaderSize(in, 1<<20)
		for {
			line, err := buf.ReadBytes('\n')
			if line = bytes.TrimSpace(line); len(line) > 0 {
				f(path, line)
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// Process is a running program.
type Process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	out  Output
	done chan struct{}
	err  error
	// killed is set by Kill. The output after it is ignored.
	killed bool
}

// Start runs a program. The test's cleanup kills it if it still runs, and prints the end of its
// output if the test failed.
func Start(t testing.TB, path string, args ...string) *Process {
	t.Helper()
	// See handlesSignals for the trap.
	ignoring := append([]string{"-c", `trap "" INT; exec "$@"`, "sh", path}, args...)
	p := &Process{t: t, name: filepath.Base(path), cmd: exec.Command("/bin/sh", ignoring...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.Dir = t.TempDir()
	// Do not wait for a child that outlives the program and keeps its output open.
	p.cmd.WaitDelay = time.Second
	// A test binary that panics or times out runs no cleanup, so the kernel kills the program.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the starting thread exits, so the thread must
		// stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	t.Cleanup(func() {
		quiet := p.killed
		if p.Running() {
			p.Kill()
		}
		if t.Failed() && !quiet {
			t.Logf("end of the output of %s:\n%s", p.name, p.Output())
		}
	})
	return p
}

// Running reports whether the program still runs.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the program with SIGKILL and waits for its end. The test fails if the program has
// already exited.
func (p *Process) Kill() {
	p.t.Helper()
	if !p.Running() {
		p.t.Errorf("%s ended by itself: %v\n%s", p.name, p.err, p.Output())
		return
	}
	p.killed = true
	_ = p.cmd.Process.Kill() // fails only if it has just exited
	<-p.done
}

// Stop ends the program with SIGTERM. The test fails if the program does not exit within limit, or
// with a status other than 0.
func (p *Process) Stop(limit time.Duration) {
	p.t.Helper()
	if !p.Running() {
		p.t.Errorf("%s ended by itself: %v", p.name, p.err)
		return
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("stop %s: %v", p.name, err)
	}
	select {
	case <-p.done:
		if p.err != nil {
			p.t.Errorf("%s after SIGTERM: %v", p.name, p.err)
		}
	case <-time.After(limit):
		p.t.Errorf("%s still runs %v after SIGTERM", p.name, limit)
		p.Kill()
	}
}

// PID returns the process id of the program.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output returns the last part of the program's output.
func (p *Process) Output() string { return p.out.String() }

// handlesSignals reports whether a Collector handles SIGINT, which it ignores from its start. It begins
// so after its message Ready, in the call that makes it handle SIGTERM. Until then, SIGTERM kills it.
func (p *Process) handlesSignals() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), "\nSigIgn:\t")
	mask, _, _ := strings.Cut(rest, "\n")
	ignored, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && ignored&(1<<(syscall.SIGINT-1)) == 0
}

// WaitOutput waits until the program prints text, and with Ready also until it can be stopped. The test
// fails if the program exits first or limit passes.
func (p *Process) WaitOutput(text string, limit time.Duration) {
	p.t.Helper()
	Eventually(p.t, limit, fmt.Sprintf("%s prints %q", p.name, text), func() bool {
		if strings.Contains(p.Output(), text) && (text != Ready || p.handlesSignals()) {
			return true
		}
		if !p.Running() {
			p.t.Fatalf("%s ended before it printed %q: %v\n%s", p.name, text, p.err, p.Output())
		}
		return false
	})
}

// Eventually polls until done returns true. The test fails with what if limit passes first.
func Eventually(t testing.TB, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// Output keeps the last 32 KiB that a program writes. It is safe for concurrent use. The zero value is empty.
type Output struct {
	mu  sync.Mutex
	buf []byte
}

// outputBytes is enough for a collector's configuration error or panic.
const outputBytes = 32 << 10

// Write never fails.
func (w *Output) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, b...)
	if over := len(w.buf) - outputBytes; over > 0 {
		if nl := bytes.IndexByte(w.buf[over:], '\n'); nl >= 0 {
			over += nl + 1
		}
		w.buf = append(w.buf[:0], w.buf[over:]...)
	}
	return len(b), nil
}

func (w *Output) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.buf)
}
