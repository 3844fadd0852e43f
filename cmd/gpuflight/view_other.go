// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "syscall"

// endWithParent has no effect on systems without a signal for the death of the parent.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
