// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package cuda

import "fmt"

var errSystem = fmt.Errorf("%w: these examples need Linux, and cgo to be built", ErrUnavailable)

// The following types and functions match those on Linux. All functions return errSystem.
type (
	Context  struct{}
	Module   struct{}
	Function struct{ Name string }
	Stream   struct{}
	Graph    struct{}
	Host     struct{}
	// DevicePtr is an address on the device.
	DevicePtr uint64
)

func Open() error                           { return errSystem }
func NewContext(int) (*Context, error)      { return nil, errSystem }
func NewHost(int) ([]float32, *Host, error) { return nil, nil, errSystem }

func (*Context) Name() string                                      { return "" }
func (*Context) Close() error                                      { return errSystem }
func (*Context) Do(func() error) error                             { return errSystem }
func (*Context) Synchronize() error                                { return errSystem }
func (*Context) Load(string) (*Module, error)                      { return nil, errSystem }
func (*Context) NewStream() (*Stream, error)                       { return nil, errSystem }
func (*Context) Alloc(int) (DevicePtr, error)                      { return 0, errSystem }
func (*Context) Free(DevicePtr) error                              { return errSystem }
func (*Module) Close() error                                       { return errSystem }
func (*Module) Function(string) (*Function, error)                 { return nil, errSystem }
func (*Function) Resources() (Resources, bool)                     { return Resources{}, false }
func (*Stream) Synchronize() error                                 { return errSystem }
func (*Stream) Close() error                                       { return errSystem }
func (*Stream) Launch(*Function, Size, Size, uint32, ...any) error { return errSystem }
func (*Stream) CopyToDevice(DevicePtr, []float32) error            { return errSystem }
func (*Stream) CopyToHost([]float32, DevicePtr) error              { return errSystem }
func (*Stream) Record(func() error) (*Graph, error)                { return nil, errSystem }
func (*Graph) Launch(*Stream) error                                { return errSystem }
func (*Graph) Close() error                                        { return errSystem }
func (*Host) Free()                                                {}
