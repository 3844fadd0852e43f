// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cudareceiver

import "os"

// listen does nothing: there is no such signal here, and no driver that could be traced either.
func listen(chan<- os.Signal) {}
