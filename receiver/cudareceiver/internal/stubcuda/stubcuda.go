// SPDX-License-Identifier: Apache-2.0

package stubcuda

import (
	"bufio"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

//go:embed src
var sources embed.FS

// Libraries are the paths of the compiled files.
type Libraries struct {
	// Library is the path of a libcuda.so.1 whose functions begin with push %rbp. Marked is the
	// path of one whose functions begin with endbr64.
	Library, Marked string
	// Runtime is the path of a libcudart.so.13 that calls the driver as NVIDIA's does. Programs
	// that use it need STUB_DRIVER=Library in their environment. With STUB_INNER=1 the driver
	// returns addresses that differ from those of its exported functions. NCCL is the path of a
	// libnccl.so.2.
	Runtime, NCCL string
	dir, program  string
}

// Contains reports whether a path, possibly below /proc/PID/root, belongs to one of the libraries.
func (l *Libraries) Contains(path string) bool { return strings.Contains(path, l.dir+"/") }

// Build puts the libraries and the program into a folder of the test. They are compiled once per
// process. The test is skipped if there is no C compiler.
func Build(t testing.TB) *Libraries {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the stub driver needs Linux")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the stub driver needs a C compiler: ", err)
	}
	files, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// Each call creates new files, because the tests distinguish libraries by their inodes.
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &Libraries{
		dir:     dir,
		Library: filepath.Join(dir, plainDriver),
		Marked:  filepath.Join(dir, markedDriver),
		Runtime: filepath.Join(dir, runtimeLibrary),
		NCCL:    filepath.Join(dir, ncclLibrary),
		program: filepath.Join(dir, callsProgram),
	}
}

// Names of the compiled files, below the test's folder.
const (
	plainDriver    = "plain/libcuda.so.1"
	markedDriver   = "marked/libcuda.so.1"
	runtimeLibrary = "plain/libcudart.so.13"
	ncclLibrary    = "plain/libnccl.so.2"
	callsProgram   = "calls"
)

// compiled returns the contents of the files by name.
var compiled = sync.OnceValues(func() (files map[string][]byte, err error) {
	dir, err := os.MkdirTemp("", "stubcuda")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, name := range []string{"stub.h", "stub.c", "nccl.c", "runtime.c", "calls.c"} {
		text, err := sources.ReadFile("src/" + name)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	const none, branch = "-fcf-protection=none", "-fcf-protection=branch"
	library := []string{"-shared", "-fPIC", "-fvisibility=hidden"}
	driver := slices.Concat(library, []string{"-Wl,-soname,libcuda.so.1", "stub.c"})
	files = map[string][]byte{}
	for _, f := range []struct {
		name, protection string
		args             []string
	}{
		{plainDriver, none, driver},
		{markedDriver, branch, driver},
		{runtimeLibrary, none, append(slices.Clone(library), "runtime.c", "-ldl")},
		{ncclLibrary, none, append(slices.Clone(library), "nccl.c", "-ldl")},
		{callsProgram, none, []string{"calls.c", "-ldl", "-lpthread"}},
	} {
		flags := []string{"-std=c11", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-o", "out"}
		if runtime.GOARCH == "amd64" {
			flags = append(flags, f.protection)
		}
		cmd := exec.Command("cc", append(flags, f.args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", f.name, err, out)
		}
		if files[f.name], err = os.ReadFile(filepath.Join(dir, "out")); err != nil {
			return nil, err
		}
	}
	return files, nil
})

// Program is a running program that calls the driver on command.
type Program struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts the program with additional environment variables. It ends with the test or by
// [Program.End].
func (l *Libraries) Start(t testing.TB, env ...string) *Program {
	t.Helper()
	return start(t, l.program, env)
}

// StartNamed is like Start, but the program has another name.
func (l *Libraries) StartNamed(t testing.TB, name string) *Program {
	t.Helper()
	return start(t, l.Named(t, name), nil)
}

func start(t testing.TB, program string, env []string) *Program {
	t.Helper()
	p := &Program{t: t, cmd: exec.Command(program)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.End)
	return p
}

// Named returns the path of the program under another name.
func (l *Libraries) Named(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(l.dir, name)
	if err := os.Link(l.program, path); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return path
}

// PID returns the id of the process.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Do runs a command of calls.c and returns the driver's result, 0 for success.
func (p *Program) Do(format string, args ...any) int {
	p.t.Helper()
	line := fmt.Sprintf(format, args...)
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.t.Fatalf("%s: %v", line, err)
	}
	answer, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%s: %v", line, err)
	}
	if answer == "ok\n" {
		return 0
	}
	var result int
	if _, err := fmt.Sscanf(answer, "%d\n", &result); err != nil {
		p.t.Fatalf("%s: %q", line, answer)
	}
	if result < 0 {
		p.t.Fatalf("%s: unsupported command (%d)", line, result)
	}
	return result
}

// Must is like Do, but fails the test if the result is not 0.
func (p *Program) Must(format string, args ...any) {
	p.t.Helper()
	if result := p.Do(format, args...); result != 0 {
		p.t.Fatalf("%s: result %d", fmt.Sprintf(format, args...), result)
	}
}

// End closes the input of the program and waits until it exits.
func (p *Program) End() {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return // it has already exited
		}
	}
}
