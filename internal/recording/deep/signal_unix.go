// SPDX-License-Identifier: Apache-2.0

//go:build unix

package deep

import (
	"os"
	"os/signal"
	"syscall"
)

// watchSignal returns a channel that receives a signal, nil without one, and how to end that. A
// signal that comes while the one before waits is one with it.
func watchSignal(name string) (<-chan os.Signal, func()) {
	number, ok := map[string]syscall.Signal{"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2}[name]
	if !ok {
		return nil, func() {}
	}
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, number)
	return heard, func() { signal.Stop(heard) }
}
