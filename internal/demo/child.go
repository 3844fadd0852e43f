// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// child is a program that runs beside the demo. Its methods belong to one goroutine.
type child struct {
	name string
	log  string
	cmd  *exec.Cmd
	// done is closed when the program has ended; err is set before.
	done chan struct{}
	err  error
}

// start runs the program with its output in the file log, which is made. The environment is
// the demo's own and then env.
//
// The child gets a process group of its own, so that a ctrl-C at the terminal reaches the
// demo alone and the order of stopping is kept, and it dies with the demo, even by SIGKILL.
func start(path string, args []string, log string, env ...string) (*child, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c := &child{name: filepath.Base(path), log: log, done: make(chan struct{})}
	c.cmd = exec.Command(path, args...)
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = out, out
	c.cmd.SysProcAttr = dieWithParent()
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// ready waits until a GET of url is answered with 200.
func (c *child) ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if answers(ctx, url) {
			return nil
		}
		select {
		case <-c.done:
			return c.died()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %v\n%s", c.name, startTimeout, c.tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// died describes an end that nobody asked for.
func (c *child) died() error {
	how := "without an error"
	if c.err != nil {
		how = c.err.Error()
	}
	return fmt.Errorf("%s ended by itself: %s\n%s", c.name, how, c.tail())
}

// stop asks the program to end, and ends it when it does not. An end with an error status
// is an error: shutting down is part of what is shown. It does nothing when the program has
// ended already.
func (c *child) stop() error {
	select {
	case <-c.done:
		return nil
	default:
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", c.name, err)
	}
	select {
	case <-c.done:
		if c.err != nil {
			return fmt.Errorf("%s, asked to stop: %w\n%s", c.name, c.err, c.tail())
		}
		return nil
	case <-time.After(stopTimeout):
	}
	err := c.cmd.Process.Kill()
	<-c.done
	return errors.Join(fmt.Errorf("%s did not stop within %v and was killed", c.name, stopTimeout), err)
}

// tail returns the last lines of the program's log, for an error message.
func (c *child) tail() string {
	const lines = 15
	text, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	rows := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	return string(bytes.Join(rows[max(0, len(rows)-lines):], []byte("\n")))
}
