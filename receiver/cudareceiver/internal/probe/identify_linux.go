// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io/fs"
	"syscall"
)

// identify returns what tells a file from all others of the machine.
func identify(info fs.FileInfo) (device, inode uint64, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return s.Dev, s.Ino, true
}
