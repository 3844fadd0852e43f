// SPDX-License-Identifier: Apache-2.0

//go:build unix

package filestorageextension

import (
	"errors"
	"os"
	"syscall"
	"time"
)

const nonblock = syscall.O_NONBLOCK

// lock takes the lock that bbolt takes for writing. The lock ends when f is closed.
func lock(f *os.File, timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(50 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if time.Now().After(end) {
			return errInUse
		}
	}
}
