// SPDX-License-Identifier: Apache-2.0

package main

import "syscall"

// endWithParent makes a child end with this process. The child has its own process group, so that
// ctrl-C reaches only this process.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
