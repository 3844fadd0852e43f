// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "syscall"

// dieWithParent does what can be had here: nothing ties a child's life to ours, so after a
// SIGKILL of the demo its programs must be stopped by hand.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
