// SPDX-License-Identifier: Apache-2.0

//go:build linux && !cgo

package main

import "syscall"

// ignoredAtStart returns nil, because reading the signals requires cgo. Without it only SIGHUP and
// SIGINT stay ignored, which Go's runtime handles itself.
func ignoredAtStart() []syscall.Signal { return nil }
