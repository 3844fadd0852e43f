// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package otlp

import (
	"errors"
	"os"
	"syscall"
)

// tryLock acquires a file's lock. It returns errBusy if another process holds it, or
// errors.ErrUnsupported where there are no locks.
func tryLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
			// The observed program received a signal.
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
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // closing the file releases it as well
}
