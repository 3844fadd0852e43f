// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// traceSupported says whether gpuflight trace works on this system.
const traceSupported = true

// ending is how a command ended: with an exit code, or by a signal if that is not 0.
type ending struct {
	code   int
	signal syscall.Signal
}

func (e ending) String() string {
	if e.signal != 0 {
		return fmt.Sprintf("was ended by signal %d (%v)", int(e.signal), e.signal)
	}
	return fmt.Sprintf("ended with %d", e.code)
}

// caught are the signals that gpuflight passes on to its command. Not among them are those that cannot be
// caught, those that a thread causes itself, and those of its own children and runtime. A signal that
// was ignored when gpuflight began stays so, for the command too (nohup, services of systemd).
func caught() []os.Signal {
	var list []os.Signal
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGTTIN, syscall.SIGTTOU,
			syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGSYS, syscall.SIGPROF, 32, 33:
			continue
		}
		if !signal.Ignored(n) {
			list = append(list, n)
		}
	}
	return list
}

// runCommand runs a command to its end and passes signals on to it. started is called with its process
// id. asks is the signal by which it is asked for a deep window, USR1, USR2 or "": the command begins with that one
// ignored, since it would end it until the library is there. The error is that it could not be started.
func runCommand(cmd *exec.Cmd, asks string, started func(pid int)) (ending, error) {
	for _, s := range ignoredAtStart() {
		// But for SIGCHLD: nobody could be waited for.
		if s != syscall.SIGCHLD {
			signal.Ignore(s)
		}
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, caught()...)
	defer signal.Stop(signals)
	window, wanted := map[string]os.Signal{"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2}[asks]
	wanted = wanted && !signal.Ignored(window)
	if wanted {
		signal.Ignore(window)
	}
	if err := cmd.Start(); err != nil {
		return ending{}, err
	}
	if wanted {
		signal.Notify(signals, window)
	}
	started(cmd.Process.Pid)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in its state
	}()
	for {
		select {
		case s := <-signals:
			pass(cmd.Process, s.(syscall.Signal))
		case <-done:
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if ok && status.Signaled() {
				return ending{code: 128 + int(status.Signal()), signal: status.Signal()}, nil
			}
			return ending{code: cmd.ProcessState.ExitCode()}, nil
		}
	}
}

// pass passes a signal on. What the keys of a terminal send goes to the whole group in its foreground,
// to the command as well: passed on, the command would get it twice, and a second ctrl-C often means
// another thing than the first. So in the foreground these are taken as the terminal's.
func pass(p *os.Process, s syscall.Signal) {
	switch s {
	case syscall.SIGPIPE:
		return // gpuflight's own: its stderr is closed
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH:
		if !inForeground() {
			_ = p.Signal(s) // it may have ended just now
		}
		if s == syscall.SIGTSTP {
			// The shell waits for this process to stop. By the same signal, since the kernel ignores it for
			// groups that nobody could continue. It goes on here after SIGCONT.
			before := setDefault(s)
			raise(s)
			_ = sigaction(s, &before, nil)
		}
	default:
		_ = p.Signal(s)
	}
}

// inForeground says whether this process is in the foreground of a terminal.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// die ends this process as the command ended: by the same signal, so that whoever waits sees no
// difference.
func (e ending) die() {
	if e.signal == 0 {
		os.Exit(e.code)
	}
	// The command has left the core dump, if there is one.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	setDefault(e.signal)
	raise(e.signal)
	// A signal that does not end this process: the shell's convention is the next best.
	os.Exit(e.code)
}

// action is the kernel's struct sigaction.
type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// setDefault makes a signal do what it does by default and returns what it did. Go's signal.Reset leaves
// handlers of Go's own for some.
func setDefault(s syscall.Signal) (before action) {
	_ = sigaction(s, &action{}, &before) // fails for SIGKILL and SIGSTOP, which need it not
	return before
}

func sigaction(s syscall.Signal, to, before *action) error {
	if _, _, err := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(before)), unsafe.Sizeof(to.mask), 0, 0); err != 0 {
		return err
	}
	return nil
}

// raise sends a signal to the calling thread, so that it is delivered before raise returns.
func raise(s syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mask := unix.Sigset_t{}
	mask.Val[(s-1)/64] = 1 << ((s - 1) % 64)
	_ = unix.PthreadSigmask(unix.SIG_UNBLOCK, &mask, nil)
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), s)
}

// alive says whether a process exists.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || err == syscall.EPERM
}
