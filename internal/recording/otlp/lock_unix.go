// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package otlp

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes a file's lock or returns errBusy, or errors.ErrUnsupported where there are no locks.
func tryLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
			// A signal of the program that we are in.
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errBusy
		case errors.Is(err, syscall.ENOLCK):
			return errors.ErrUnsupported
		default:
			return err // ENOSYS and EOPNOTSUPP are errors.ErrUnsupported
		}
	}
}

func unlock(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // closing does it as well
}
