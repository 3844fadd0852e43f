// SPDX-License-Identifier: Apache-2.0

//go:build !(linux || darwin || dragonfly || freebsd || netbsd || openbsd)

package apikey

import (
	"io/fs"
	"os"
)

// lockFile does nothing: the system has no such locks.
func lockFile(*os.File) error { return nil }

func keepOwner(*os.File, fs.FileInfo) error { return nil }
