// SPDX-License-Identifier: Apache-2.0

package filestorageextension

import (
	"math"
	"os"
	"syscall"
)

// freeBytes returns how much room the file system of f has for this user.
func freeBytes(f *os.File) int64 {
	var st syscall.Statfs_t
	if syscall.Fstatfs(int(f.Fd()), &st) != nil {
		return math.MaxInt64 >> 1 // unknown: writing will show
	}
	return int64(min(st.Bavail*uint64(st.Bsize), math.MaxInt64>>1))
}
