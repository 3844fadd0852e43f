// SPDX-License-Identifier: Apache-2.0

//go:build unix

package testcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// check rejects a folder if other users can change its content.
func check(info fs.FileInfo) error {
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("its owner is unknown")
	case !info.IsDir():
		return errors.New("it is not a folder")
	case int(owner.Uid) != os.Getuid():
		return fmt.Errorf("it belongs to user %d", owner.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("mode %v lets other users write", info.Mode().Perm())
	}
	return nil
}
