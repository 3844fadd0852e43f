// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package gpuflgen

import (
	"errors"
	"os"
	"runtime"
)

// lockFile returns an error: without the lock, a reader would regard the session as ended.
func lockFile(string) (*os.File, error) {
	return nil, errors.New("session folders cannot be locked on " + runtime.GOOS + ": use layout a2")
}
