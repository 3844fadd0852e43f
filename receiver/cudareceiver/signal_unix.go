// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cudareceiver

import (
	"os"
	"os/signal"
	"syscall"
)

// listen sends to a channel when the Collector receives SIGUSR1, until signal.Stop. No other part
// of the Collector uses this signal.
func listen(to chan<- os.Signal) { signal.Notify(to, syscall.SIGUSR1) }
