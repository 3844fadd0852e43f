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

// traceSupported reports whether gpuflight trace is supported on this system.
const traceSupported = true

// ending describes how a command ended: by a signal if signal is not 0, otherwise with an exit
// code.
type ending struct {
	code   int
	signal syscall.Signal
}

func (e ending) String() string {
	if e.signal != 0 {
		return fmt.Sprintf("was terminated by signal %d (%v)", int(e.signal), e.signal)
	}
	return fmt.Sprintf("ended with %d", e.code)
}

// caught returns the signals that gpuflight forwards to its command. It omits signals that cannot
// be caught, that a thread causes itself, or that concern gpuflight's own children and runtime. A
// signal that was ignored when gpuflight started (nohup, systemd services) stays ignored, also for
// the command.
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

// runCommand runs a command until it ends and forwards signals to it. It calls started with the
// process id. windowSignal is the signal that requests a deep window: USR1, USR2 or "". The command
// starts with this signal ignored, because it would terminate the command until the library is
// loaded. runCommand returns an error only if the command cannot be started.
func runCommand(cmd *exec.Cmd, windowSignal string, started func(pid int)) (ending, error) {
	for _, s := range ignoredAtStart() {
		// Without SIGCHLD nobody could wait for a child.
		if s != syscall.SIGCHLD {
			signal.Ignore(s)
		}
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, caught()...)
	defer signal.Stop(signals)
	window, wanted := map[string]os.Signal{"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2}[windowSignal]
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
		_ = cmd.Wait() // ProcessState has the result
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

// pass forwards a signal. A terminal sends the signals of its keys to its whole foreground process
// group, so the command already has them. A second ctrl-C often has another meaning than the first.
// Therefore pass does not forward these signals while gpuflight is in the foreground.
func pass(p *os.Process, s syscall.Signal) {
	switch s {
	case syscall.SIGPIPE:
		return // caused by gpuflight's closed stderr
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH:
		if !inForeground() {
			_ = p.Signal(s) // the command may have ended
		}
		if s == syscall.SIGTSTP {
			// The shell waits for this process to stop. It stops with the same signal, because the
			// kernel ignores it for orphaned process groups. Execution continues here after
			// SIGCONT.
			before := setDefault(s)
			raise(s)
			_ = sigaction(s, &before, nil)
		}
	default:
		_ = p.Signal(s)
	}
}

// inForeground reports whether this process is in the foreground of a terminal.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// die ends this process in the same way as the command: with the same signal or the same exit code.
func (e ending) die() {
	if e.signal == 0 {
		os.Exit(e.code)
	}
	// The command has written the core dump, if there is one.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	setDefault(e.signal)
	raise(e.signal)
	// The signal did not end this process. Use the shell's exit code for it.
	os.Exit(e.code)
}

// action is the kernel's struct sigaction.
type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// setDefault restores the default action of a signal and returns the previous action. Go's
// signal.Reset keeps Go's own handlers for some signals.
func setDefault(s syscall.Signal) (before action) {
	_ = sigaction(s, &action{}, &before) // fails for SIGKILL and SIGSTOP, which have no other action
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

// alive reports whether a process exists.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || err == syscall.EPERM
}
