// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"os"

	"golang.org/x/sys/unix"
)

// fileOf returns what tells a regular file from all others of the machine; false if there is none, or it is of
// another kind.
func fileOf(path string) (file, bool, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return file{}, false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if s.Mode&unix.S_IFMT != unix.S_IFREG {
		return file{}, false, nil
	}
	id := file{device: s.Dev, inode: s.Ino}
	var of unix.Statfs_t
	if unix.Statfs(path, &of) == nil && of.Type == unix.OVERLAYFS_SUPER_MAGIC {
		// Each container of an image has a device of its own over the same files, and a probe is on the file: with
		// one for each container every call would be counted as often. The inode's number is that of the file below
		// (Documentation/filesystems/overlayfs.rst, "Inode properties"), and no other file gets it while a probe holds
		// it; size and time tell files of different file systems below apart.
		id.device = overlay | uint64(s.Size)<<20 ^ uint64(s.Mtim.Nano()) //nolint:gosec // As bits.
	}
	return id, true, nil
}

// overlay marks what stands in for a device; devices have at most 44 bits (MKDEV of 12 and 20, as stat shows them).
const overlay = 1 << 63
