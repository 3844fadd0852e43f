// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openWithoutWaiting makes opening a pipe return immediately.
const openWithoutWaiting = syscall.O_NONBLOCK

// lowest is the priority of nvdisasm. The application has precedence.
const lowest = 19

// maxDiagnostic bounds the stored standard error of nvdisasm, in bytes.
const maxDiagnostic = 4 << 10

// run starts nvdisasm with the arguments and the image. read must read its output to the end. The
// program gets the image from memory, under a path of its own. Nothing is written to disk, and
// nothing remains if it or this process is killed.
func (d *Disassembler) run(ctx context.Context, args []string, image []byte, read func(io.Reader) error) (err error) {
	limit := d.TimeLimit
	if limit <= 0 {
		limit = DefaultTimeLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	fd, err := unix.MemfdCreate("cubin", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memory for the image: %w", err)
	}
	in := os.NewFile(uintptr(fd), "cubin")
	defer in.Close()
	if _, err := in.Write(image); err != nil {
		return fmt.Errorf("memory for the image: %w", err)
	}

	// The first extra file of a command has number 3.
	cmd := exec.CommandContext(ctx, d.Path, append(args, "/proc/self/fd/3")...)
	cmd.ExtraFiles = []*os.File{in}
	// The environment of this process may load a CUDA profiler. It must not do so in nvdisasm.
	cmd.Env = []string{"LC_ALL=C"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second // if a child process holds the output
	diagnostic := &tail{}
	cmd.Stderr = diagnostic
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("nvdisasm, %s: %w", d.Path, err)
	}
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return d.late(ctx.Err())
		}
		return fmt.Errorf("nvdisasm, %s: %w", d.Path, err)
	}
	d.restrain(cmd.Process.Pid, limit)
	readErr, ended := read(out), ctx.Err()
	if readErr != nil {
		// The remaining output is not needed.
		cancel()
	}
	waitErr := cmd.Wait()
	switch {
	case ended != nil:
		return d.late(ended)
	case readErr != nil && waitErr != nil && len(diagnostic.b) > 0:
		return fmt.Errorf("nvdisasm, %s: %w%s", d.Path, readErr, diagnostic)
	case readErr != nil:
		return fmt.Errorf("nvdisasm, %s: %w", d.Path, readErr)
	case errors.Is(waitErr, syscall.ECHILD):
		// The application may wait for all children, including ours. The output is known to be
		// complete without the exit status.
		return nil
	case waitErr != nil:
		return fmt.Errorf("nvdisasm, %s: %w%s", d.Path, waitErr, diagnostic)
	}
	return nil
}

func (d *Disassembler) late(err error) error {
	return fmt.Errorf("nvdisasm, %s: not done in time: %w", d.Path, err)
}

// restrain limits the resources of the program and lowers its priority. The program already runs,
// but has hardly begun to read its image. If it has ended, there is nothing to limit.
func (d *Disassembler) restrain(pid int, limit time.Duration) {
	memory := d.MemoryLimit
	if memory <= 0 {
		memory = DefaultMemoryLimit
	}
	for resource, most := range map[int]uint64{
		unix.RLIMIT_AS: uint64(memory), unix.RLIMIT_CPU: uint64(limit/time.Second) + 1, unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: 0,
	} {
		_ = unix.Prlimit(pid, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, pid, lowest)
}

// tail keeps the beginning of the written data.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[:min(len(p), maxDiagnostic-len(t.b))]...)
	return len(p), nil
}

// String returns the first line, as the end of an error message.
func (t *tail) String() string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(t.b), []byte("\n"))
	if len(line) == 0 {
		return ""
	}
	return ": " + strings.ToValidUTF8(string(line), "\uFFFD")
}

// trusted returns the path of the program, without links, if only root and this user can have
// installed it.
func trusted(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if err := executable(path); err != nil {
		return "", err
	}
	for at := path; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return "", err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return "", errors.New("owner unknown")
		}
		if uid := os.Geteuid(); stat.Uid != 0 && int(stat.Uid) != uid {
			return "", fmt.Errorf("not run: %s belongs to user %d, neither root nor this one", at, stat.Uid)
		}
		if info.Mode()&0o002 != 0 && (!info.IsDir() || info.Mode()&os.ModeSticky == 0) {
			return "", fmt.Errorf("not run: %s is writable by everybody", at)
		}
		if at == filepath.Dir(at) {
			return path, nil
		}
	}
}
