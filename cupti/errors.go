// SPDX-License-Identifier: Apache-2.0

package cupti

import "errors"

// Errors of a Collector's methods. Other errors carry CUPTI's message text.
var (
	// ErrMisplaced says that a scope was not the innermost of the calling thread when it ended. It
	// ended all the same: on its own thread if it was on another.
	ErrMisplaced = errors.New("cupti: scope ended out of order or on another thread")
	// ErrNotRunning says that the Collector is not started, or closed.
	ErrNotRunning = errors.New("cupti: not recording")
	// ErrForked says that this process was forked from one that recorded.
	ErrForked = errors.New("cupti: forked from a process that records")
	// ErrTooDeep says that the thread has no room for another scope.
	ErrTooDeep = errors.New("cupti: too many scopes are open on this thread")
	// ErrFull says that a window has no room for more figures: those that it has are whole.
	ErrFull = errors.New("cupti: the window has no room for more figures")
	// ErrNotDetached says that recording stopped and CUPTI stays attached to the driver, which may
	// cost a little until the process ends.
	ErrNotDetached = errors.New("cupti: could not be detached from the driver")
	// ErrInFlight says that Detach was too early: work did not finish in time, or a stream is being
	// captured. Records continue, and Detach may be called again.
	ErrInFlight = errors.New("cupti: detach: work whose records would be lost is in flight")
)
