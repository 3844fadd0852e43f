// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

/*
#include <signal.h>
#include <stddef.h>

static unsigned long long ignored;

// Go's runtime handles most signals, also ignored ones, and its commands get the default action. So
// this constructor reads the actions before the runtime starts.
__attribute__((constructor)) static void read_ignored(void) {
	struct sigaction a;

	for (int sig = 1; sig <= 64; sig++)
		if (sigaction(sig, NULL, &a) == 0 && a.sa_handler == SIG_IGN) ignored |= 1ULL << (sig - 1);
}

static unsigned long long ignored_at_start(void) { return ignored; }
*/
import "C"

import "syscall"

// ignoredAtStart returns the signals that were ignored when this process started.
func ignoredAtStart() (list []syscall.Signal) {
	set := uint64(C.ignored_at_start())
	for s := syscall.Signal(1); s <= 64; s++ {
		if set&(1<<(s-1)) != 0 {
			list = append(list, s)
		}
	}
	return list
}
