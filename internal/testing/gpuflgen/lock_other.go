// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package gpuflgen

import (
	"errors"
	"os"
	"runtime"
)

// lockFile refuses: without the lock a reader would take the session for a dead one.
func lockFile(string) (*os.File, error) {
	return nil, errors.New("session folders cannot be locked on " + runtime.GOOS + ": use layout a2")
}
