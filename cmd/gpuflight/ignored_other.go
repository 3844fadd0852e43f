// SPDX-License-Identifier: Apache-2.0

//go:build linux && !cgo

package main

import "syscall"

// ignoredAtStart needs a C compiler at build time; without it only SIGHUP and SIGINT stay ignored, which
// Go's runtime respects by itself.
func ignoredAtStart() []syscall.Signal { return nil }
