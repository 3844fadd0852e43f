// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cudareceiver

import (
	"os"
	"os/signal"
	"syscall"
)

// listen sends to a channel when the collector gets SIGUSR1, which nothing else in it listens to, until signal.Stop.
func listen(to chan<- os.Signal) { signal.Notify(to, syscall.SIGUSR1) }
