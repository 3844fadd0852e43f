// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns a function that returns the processor time of the calling thread since this
// call. Both must be called on the same thread.
func threadTime() func() time.Duration {
	read := func() time.Duration {
		var u unix.Rusage
		if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
			return 0
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	begin := read()
	return func() time.Duration { return max(0, read()-begin) }
}
