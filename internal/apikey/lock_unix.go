// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package apikey

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// lockFile waits for a file's lock, which the system releases with the file.
func lockFile(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// keepOwner gives a file the owner of another one. Only root can change an owner.
func keepOwner(f *os.File, old fs.FileInfo) error {
	if s, ok := old.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		return f.Chown(int(s.Uid), int(s.Gid))
	}
	return nil
}
