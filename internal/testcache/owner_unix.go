// SPDX-License-Identifier: Apache-2.0

//go:build unix

package testcache

import (
	"io/fs"
	"syscall"
)

func owner(info fs.FileInfo) (uid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
