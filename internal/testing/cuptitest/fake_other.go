// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package cuptitest

import "testing"

// Fake is the fake GPU in this process. In this build there is none.
type Fake struct{ Dir, CUPTI string }

// Kernel is a launch.
type Kernel struct {
	Name                              string
	Grid, Block                       [3]uint32
	Shared, Registers, Stream, Device uint32
	DurationNs                        uint64
}

// Libraries skips the test: it needs Linux and cgo.
func Libraries(t testing.TB) *Fake {
	t.Helper()
	t.Skip("the fake CUDA driver needs Linux and cgo")
	return nil
}

func (f *Fake) Init() int                      { return -1 }
func (f *Fake) CRC([]byte) uint64              { return 0 }
func (f *Fake) Launch(string, int)             {}
func (f *Fake) LaunchKernel(Kernel)            {}
func (f *Fake) LaunchThreads(int, int, string) {}
func (f *Fake) Memory(int)                     {}
func (f *Fake) Graph(int)                      {}
func (f *Fake) Synchronize()                   {}
func (f *Fake) Control(string, int64) int64    { return -1 }
func (f *Fake) Set(testing.TB, string, int64)  {}
func (f *Fake) Deliver([]byte) bool            { return false }

// Context is a CUDA context.
type Context struct{}

func (f *Fake) NewContext(int) Context     { return Context{} }
func (f *Fake) DestroyContext(Context) int { return -1 }
func (f *Fake) RetainPrimary(int) Context  { return Context{} }
func (f *Fake) ReleasePrimary(int) int     { return -1 }
func (f *Fake) LoadModule([]byte) uint32   { return 0 }
func (f *Fake) UnloadModule(uint32) int    { return -1 }
func (f *Fake) BeginCapture(uintptr) int   { return -1 }
func (f *Fake) EndCapture(uintptr) int     { return -1 }
func (f *Fake) DestroyStream(uintptr)      {}
func (f *Fake) BrokenCaptures() int64      { return 0 }
func (f *Fake) Busy(int)                   {}
func (f *Fake) Replay(testing.TB, string)  {}
