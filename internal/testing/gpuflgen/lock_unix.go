// SPDX-License-Identifier: Apache-2.0

//go:build unix

package gpuflgen

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// lockFile creates the file and locks it with fcntl, as the recorder does. The process holds the
// lock until it closes the file or exits.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	lk := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &lk); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}
