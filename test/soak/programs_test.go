// SPDX-License-Identifier: Apache-2.0

//go:build linux

package soak

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stub is the compiled stub of the driver and the program that calls it.
type stub struct{ dir, library, program string }

func build(t *testing.T) stub {
	source, err := filepath.Abs("../../receiver/cudareceiver/internal/stubcuda/src")
	require.NoError(t, err)
	s := stub{dir: t.TempDir()}
	s.library, s.program = filepath.Join(s.dir, "libcuda.so.1"), filepath.Join(s.dir, "calls")
	flags := []string{"-std=c11", "-O1", "-fno-omit-frame-pointer", "-fcf-protection=none", "-Wall", "-Wextra", "-Werror"}
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", filepath.Join(source, "stub.c"), "-o", s.library},
		{filepath.Join(source, "calls.c"), "-o", s.program, "-ldl", "-lpthread"},
	} {
		out, err := exec.CommandContext(t.Context(), "cc", append(flags, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return s
}

// copied copies the library to another file, as another container would have it.
func (s stub) copied(name string) (string, error) {
	text, err := os.ReadFile(s.library)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "libcuda.so.1")
	return path, os.WriteFile(path, text, 0o755)
}

// program is a running program; it reads one command per line (stubcuda/src/calls.c).
type program struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (s stub) start() (*program, error) {
	p := &program{cmd: exec.Command(s.program)}
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// do runs commands, which must all succeed.
func (p *program) do(commands ...string) error {
	for _, c := range commands {
		if _, err := fmt.Fprintln(p.in, c); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		answer, err := p.out.ReadString('\n')
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		if answer != "ok\n" {
			return fmt.Errorf("%s: %s", c, strings.TrimSpace(answer))
		}
	}
	return nil
}

// end closes its input and waits for its exit. An exit code is not an error.
func (p *program) end() error { return errors.Join(p.in.Close(), exited(p.cmd.Wait())) }

// kill ends it by SIGKILL.
func (p *program) kill() error {
	return errors.Join(p.cmd.Process.Kill(), exited(p.cmd.Wait()))
}

// leave ends it by _exit, without clean-up.
func (p *program) leave() error {
	_, err := fmt.Fprintln(p.in, "leave 3")
	return errors.Join(err, exited(p.cmd.Wait()))
}

func exited(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}
