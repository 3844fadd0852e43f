// SPDX-License-Identifier: Apache-2.0

//go:build linux

package front

import (
	"bytes"
	"context"
	_ "embed" // engine.py
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

//go:embed engine.py
var program []byte

// maxAnswer limits the answer of a statement in bytes. It is larger than all answers in tests.
const maxAnswer = 1 << 30

// Statement is a statement for an [Engine].
type Statement struct {
	// SQL is one statement, or several separated by semicolons if Insert is false.
	SQL string `json:"sql"`
	// Format is ClickHouse's name of the format of the answer, or of the data of an INSERT.
	Format string `json:"format"`
	// Insert marks an INSERT without FORMAT; its data follows.
	Insert bool `json:"insert"`
	// Database is the default database; "" selects "default".
	Database string `json:"database"`
	// Settings apply to this statement only.
	Settings map[string]string `json:"settings"`
	// Parameters replace {name:Type} in statements other than INSERT.
	Parameters map[string]string `json:"parameters"`
}

// Engine is ClickHouse's engine in a process of its own, with its tables in a folder. It is safe
// for concurrent use and runs statements sequentially.
type Engine struct {
	cmd      *exec.Cmd
	output   head
	requests *os.File
	answers  *os.File
	done     chan struct{}
	ended    error // set before done is closed

	processor atomic.Int64 // ns

	mu     sync.Mutex
	broken error // why the engine accepts no further statement
}

// Start starts an engine with the launcher of scripts/chdb. dir holds its tables and is created if
// missing. No other running engine may use it.
func Start(launcher, dir string) (*Engine, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "engine.py")
	if err := os.WriteFile(path, program, 0o600); err != nil {
		return nil, err
	}
	theirRequests, requests, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answers, theirAnswers, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirRequests.Close(), requests.Close())
	}
	e := &Engine{requests: requests, answers: answers, done: make(chan struct{})}
	e.cmd = exec.Command(launcher, path, filepath.Join(dir, "tables"))
	e.cmd.Dir = dir
	e.cmd.Stdout, e.cmd.Stderr = &e.output, &e.output
	e.cmd.ExtraFiles = []*os.File{theirRequests, theirAnswers} // 3 and 4
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the starting thread exits, so the thread must
		// stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := e.cmd.Start()
		started <- err
		if err == nil {
			e.ended = e.cmd.Wait()
			close(e.done)
		}
	}()
	err = errors.Join(<-started, theirRequests.Close(), theirAnswers.Close())
	if err != nil {
		return nil, errors.Join(err, requests.Close(), answers.Close())
	}
	if _, err := e.answer(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Run runs one statement and returns its answer. data is the input of an INSERT. After an
// [*Exception], which the engine reports, the next statement can run; after any other error none
// can. Run checks the context before the statement and does not interrupt it.
func (e *Engine) Run(ctx context.Context, s Statement, data []byte) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken != nil {
		return nil, e.broken
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	answer, err := e.run(s, data)
	if exception := (*Exception)(nil); err != nil && !errors.As(err, &exception) {
		e.broken = err
	}
	return answer, err
}

func (e *Engine) run(s Statement, data []byte) ([]byte, error) {
	if s.Parameters == nil {
		s.Parameters = map[string]string{} // the engine rejects null
	}
	head, err := json.Marshal(struct {
		Statement
		Data int `json:"data"`
	}{s, len(data)})
	if err != nil {
		return nil, err
	}
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(head))), head...)
	for _, b := range [][]byte{frame, data} {
		if _, err := e.requests.Write(b); err != nil {
			return nil, e.failed(err)
		}
	}
	return e.answer()
}

// answer reads one answer.
func (e *Engine) answer() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(e.answers, size[:]); err != nil {
		return nil, e.failed(err)
	}
	head := make([]byte, min(binary.BigEndian.Uint32(size[:]), maxAnswer))
	if _, err := io.ReadFull(e.answers, head); err != nil {
		return nil, e.failed(err)
	}
	var h struct {
		Error     string
		Data      int
		Processor int64
	}
	if err := json.Unmarshal(head, &h); err != nil {
		return nil, e.failed(err)
	}
	if h.Data < 0 || h.Data > maxAnswer {
		return nil, e.failed(fmt.Errorf("an answer of %d bytes, allowed are %d", h.Data, maxAnswer))
	}
	data := make([]byte, h.Data)
	if _, err := io.ReadFull(e.answers, data); err != nil {
		return nil, e.failed(err)
	}
	e.processor.Store(h.Processor)
	if h.Error != "" {
		return nil, newException(h.Error)
	}
	return data, nil
}

// failed ends a process that no longer answers and returns its output.
func (e *Engine) failed(err error) error {
	_ = e.cmd.Process.Kill() // fails only if it has exited
	<-e.done
	return fmt.Errorf("ClickHouse's engine: %w: %s", errors.Join(err, e.ended), e.output.Bytes())
}

// ProcessorTime returns the processor time of all threads until the end of the last statement,
// including background merges.
func (e *Engine) ProcessorTime() time.Duration { return time.Duration(e.processor.Load()) }

// Kill ends the process with SIGKILL, like a crash. The tables stay.
func (e *Engine) Kill() {
	_ = e.cmd.Process.Kill() // fails only if it has exited
	<-e.done
}

// Close waits for the statement in progress and ends the process.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken == nil {
		e.broken = errors.New("ClickHouse's engine was closed")
	}
	err := e.requests.Close()
	<-e.done
	err = errors.Join(err, e.answers.Close())
	if killed := (*exec.ExitError)(nil); errors.As(e.ended, &killed) && killed.Sys().(syscall.WaitStatus).Signaled() {
		return err // after Kill or failed, which have reported the error
	}
	if e.ended != nil {
		err = errors.Join(err, fmt.Errorf("ClickHouse's engine: %w: %s", e.ended, e.output.Bytes()))
	}
	return err
}

// head keeps the first part of the output, which contains the cause of a crash.
type head struct{ bytes.Buffer }

// Write never fails.
func (h *head) Write(b []byte) (int, error) {
	const limit = 64 << 10
	h.Buffer.Write(b[:min(len(b), max(0, limit-h.Len()))])
	return len(b), nil
}
