// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cudareceiver

import "os"

// listen does nothing: this system has neither the signal nor a driver that can be traced.
func listen(chan<- os.Signal) {}
