// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import "time"

// Detach ends records and detaches CUPTI from the driver, and the session continues: Take does not
// return io.EOF, and scopes stay open. Attach has records made again. It needs Config.Detachable.
//
// The records of all work that was launched before can be taken. Detach waits for that work at most
// limit; the program does not wait. held is how long CUPTI was being finalized: calls of the driver
// may wait so long.
//
// On an error CUPTI is attached and records continue: ErrInFlight may be temporary, ErrNotDetached
// says that this CUPTI cannot be finalized. Other errors are ErrNotRunning, and CUPTI's message text,
// where records may be off; then Attach retries.
func (c *Collector) Detach(limit time.Duration) (held time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		return 0, ErrNotRunning
	}
	switch rc := coreSuspend(limit); rc {
	case 0:
	case rcNotDetached:
		return 0, ErrNotDetached
	case rcCapture:
		return 0, ErrInFlight
	case rcTimeout:
		return 0, c.resume(ErrInFlight)
	default:
		return 0, c.resume(coreError("detach", rc))
	}
	begin := time.Now()
	if err := c.finalize(); err != nil {
		return time.Since(begin), c.resume(err)
	}
	return time.Since(begin), nil
}

// resume switches records on again after Detach could not finish, and returns why it could not.
func (c *Collector) resume(why error) error {
	if err := c.startCore(); err != nil {
		return err
	}
	return why
}

// Attach undoes Detach. It does nothing where records are made already. An error is an [*Error], or
// ErrNotRunning; after an [*Error] CUPTI stays detached, because another profiler has it, for
// example, and Attach may be called again.
func (c *Collector) Attach() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.running:
		return ErrNotRunning
	case !coreSuspended():
		return nil
	}
	return c.startCore()
}
