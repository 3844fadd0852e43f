// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package cupti

import (
	"io"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// unsupported is the status of everything in this build.
var unsupported = Status{
	Reason: ReasonUnsupported,
	Detail: "recording needs Linux and a program that was built with cgo (CGO_ENABLED=1)",
}

// Collector records what the GPU does. In this build there never is one: [Open] fails.
type Collector struct{}

// Available says that this build cannot record.
func Available(string) Status { return unsupported }

// InitDriver fails in this build.
func InitDriver() error { return &Error{Status: unsupported} }

// Open fails in this build, with an [*Error].
func Open(Config) (*Collector, error) { return nil, &Error{Status: unsupported} }

// Status is that of [Available].
func (*Collector) Status() Status { return unsupported }

// Start fails.
func (*Collector) Start() error { return &Error{Status: unsupported} }

// Flush returns ErrNotRunning.
func (*Collector) Flush() error { return ErrNotRunning }

// Take returns nil, io.EOF.
func (*Collector) Take(time.Duration) (*Batch, error) { return nil, io.EOF }

// HasContext is false: there is nothing that a window could observe.
func (*Collector) HasContext() bool { return false }

// Pending is 0.
func (*Collector) Pending() int { return 0 }

// Stop does nothing.
func (*Collector) Stop(bool) error { return nil }

// Close does nothing.
func (*Collector) Close() error { return nil }

// Detach returns ErrNotRunning.
func (*Collector) Detach(time.Duration) (time.Duration, error) { return 0, ErrNotRunning }

// Attach returns ErrNotRunning.
func (*Collector) Attach() error { return ErrNotRunning }

// PushScope returns ErrNotRunning.
func (*Collector) PushScope(uint64) error { return ErrNotRunning }

// PopScope returns ErrNotRunning.
func (*Collector) PopScope(uint64) error { return ErrNotRunning }

// NextScopeID is 0: there are no scopes.
func (*Collector) NextScopeID() uint64 { return 0 }

// ScopeEvents returns dst as it is.
func (*Collector) ScopeEvents(dst []ScopeEvent) []ScopeEvent { return dst }

// StackEvents returns dst as it is.
func (*Collector) StackEvents(dst []StackEvent) []StackEvent { return dst }

// NoStacks is "".
func (*Collector) NoStacks() string { return "" }

// Devices is empty.
func (*Collector) Devices() []gpuevent.Device { return nil }

// Stats are zero.
func (*Collector) Stats() Stats { return Stats{} }

// DeepStatus is that of [Available].
func (*Collector) DeepStatus(Engine) Status { return unsupported }

// OpenDeep fails, with an [*Error].
func (*Collector) OpenDeep(DeepConfig) (*DeepWindow, error) {
	return nil, &Error{Status: unsupported}
}

// Pause returns ErrNotRunning.
func (*Collector) Pause() error { return ErrNotRunning }

// Resume returns ErrNotRunning.
func (*Collector) Resume() error { return ErrNotRunning }

// Cubins is empty.
func (*Collector) Cubins() []Cubin { return nil }

// CubinImage is nil.
func (*Collector) CubinImage(uint64) []byte { return nil }

// CubinStats are zero.
func (*Collector) CubinStats() CubinStats { return CubinStats{} }

// DeepWindow is a window that is open. In this build there never is one.
type DeepWindow struct{}

// Drain returns ErrNotRunning.
func (*DeepWindow) Drain() error { return ErrNotRunning }

// Close returns nil, ErrNotRunning.
func (*DeepWindow) Close() (*DeepResult, error) { return nil, ErrNotRunning }

// Thread is 0: not known in this build.
func Thread() uint32 { return 0 }
