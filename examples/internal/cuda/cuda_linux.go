// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cuda

/*
#cgo LDFLAGS: -ldl
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

var opened struct {
	sync.Mutex
	done bool
}

// Open opens the driver and initialises it. The error is ErrUnavailable where there is none, or no
// device.
func Open() error {
	opened.Lock()
	defer opened.Unlock()
	if opened.done {
		return nil
	}
	// dlerror is per thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var why *C.char
	if C.driver_open(&why) != 0 {
		return fmt.Errorf("%w: %s", ErrUnavailable, C.GoString(why))
	}
	if err := check("cuInit", C.driver_init()); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	opened.done = true
	return nil
}

func check(call string, result C.int) error {
	if result == 0 {
		return nil
	}
	return &Error{Call: call, Result: int(result)}
}

// Context is a device's primary context, the one that CUDA's runtime uses as well.
type Context struct {
	device C.int
	handle C.handle
	name   string
}

// NewContext returns the context of the device with that ordinal. Close gives it back.
func NewContext(ordinal int) (*Context, error) {
	if err := Open(); err != nil {
		return nil, err
	}
	c := &Context{}
	if err := check("cuDeviceGet", C.device_get(&c.device, C.int(ordinal))); err != nil {
		return nil, err
	}
	var name [256]C.char
	if err := check("cuDeviceGetName", C.device_name(&name[0], C.int(len(name)), c.device)); err != nil {
		return nil, err
	}
	c.name = C.GoString(&name[0])
	if err := check("cuDevicePrimaryCtxRetain", C.context_retain(&c.handle, c.device)); err != nil {
		return nil, err
	}
	return c, nil
}

// Name is the device's.
func (c *Context) Name() string { return c.name }

// Close gives the context back.
func (c *Context) Close() error {
	return check("cuDevicePrimaryCtxRelease", C.context_release(c.device))
}

// Do calls f with the context current. f must not hand CUDA work to other goroutines.
func (c *Context) Do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := check("cuCtxSetCurrent", C.context_use(c.handle)); err != nil {
		return err
	}
	return f()
}

// Synchronize waits for everything that the context was asked to do.
func (c *Context) Synchronize() error { return check("cuCtxSynchronize", C.context_wait()) }

// Module holds compiled kernels.
type Module struct{ handle C.handle }

// Load compiles PTX.
func (c *Context) Load(ptx string) (*Module, error) {
	text := C.CString(ptx)
	defer C.free(unsafe.Pointer(text))
	m := &Module{}
	if err := check("cuModuleLoadData", C.module_load(&m.handle, text)); err != nil {
		return nil, err
	}
	return m, nil
}

// Close unloads the module.
func (m *Module) Close() error { return check("cuModuleUnload", C.module_unload(m.handle)) }

// Function is a kernel.
type Function struct {
	handle C.handle
	Name   string
}

// Function returns a kernel of the module.
func (m *Module) Function(name string) (*Function, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	f := &Function{Name: name}
	if err := check("cuModuleGetFunction", C.module_function(&f.handle, m.handle, text)); err != nil {
		return nil, err
	}
	return f, nil
}

// Resources queries what the kernel needs; ok is false where the driver does not report it.
func (f *Function) Resources() (r Resources, ok bool) {
	for attribute, to := range map[C.int]*int{C.ATTRIBUTE_REGISTERS: &r.RegistersPerThread, C.ATTRIBUTE_SHARED: &r.SharedBytes, C.ATTRIBUTE_LOCAL: &r.LocalBytes} {
		var v C.int
		if C.function_attribute(&v, attribute, f.handle) != 0 {
			return Resources{}, false
		}
		*to = int(v)
	}
	return r, true
}

// Stream is an order of work.
type Stream struct{ handle C.handle }

// NewStream makes a stream that does not wait for the default one. Close ends it.
func (c *Context) NewStream() (*Stream, error) {
	s := &Stream{}
	if err := check("cuStreamCreate", C.stream_create(&s.handle)); err != nil {
		return nil, err
	}
	return s, nil
}

// Synchronize waits for the work in the stream.
func (s *Stream) Synchronize() error { return check("cuStreamSynchronize", C.stream_wait(s.handle)) }

// Close ends the stream.
func (s *Stream) Close() error { return check("cuStreamDestroy", C.stream_destroy(s.handle)) }

// Launch queues a kernel. Arguments are DevicePtr and uint32.
func (s *Stream) Launch(f *Function, grid, block Size, sharedBytes uint32, arguments ...any) error {
	if len(arguments) > C.MAX_ARGUMENTS {
		return fmt.Errorf("launch %s: %d arguments, at most %d are possible", f.Name, len(arguments), C.MAX_ARGUMENTS)
	}
	grid, block = grid.full(), block.full()
	l := C.launch{function: f.handle, stream: s.handle, shared: C.uint(sharedBytes)}
	for i := range 3 {
		l.grid[i], l.block[i] = C.uint(grid[i]), C.uint(block[i])
	}
	for i, a := range arguments {
		// Little endian: the low half is where the driver looks for an argument of 32 bits.
		switch v := a.(type) {
		case DevicePtr:
			l.arguments[i] = C.uint64_t(v)
		case uint32:
			l.arguments[i] = C.uint64_t(v)
		default:
			return fmt.Errorf("launch %s: argument %d is a %T", f.Name, i, a)
		}
	}
	return check("cuLaunchKernel", C.launch_kernel(&l))
}

// DevicePtr is an address on the device.
type DevicePtr uint64

// Alloc returns memory on the device.
func (c *Context) Alloc(bytes int) (DevicePtr, error) {
	var p C.uint64_t
	if err := check("cuMemAlloc", C.memory_alloc(&p, C.size_t(bytes))); err != nil {
		return 0, err
	}
	return DevicePtr(p), nil
}

// Free gives it back.
func (c *Context) Free(p DevicePtr) error { return check("cuMemFree", C.memory_free(C.uint64_t(p))) }

// Host is memory of the host that stays where it is, as copies in the background need it.
type Host struct{ p unsafe.Pointer }

// NewHost returns n floats, all 0, and the memory that they are in.
func NewHost(n int) ([]float32, *Host, error) {
	p := C.calloc(C.size_t(n), 4)
	if p == nil {
		return nil, nil, errors.New("out of memory")
	}
	return unsafe.Slice((*float32)(p), n), &Host{p}, nil
}

// Free gives it back. The floats must not be used any more.
func (h *Host) Free() { C.free(h.p) }

// CopyToDevice queues a copy of floats that are in a Host.
func (s *Stream) CopyToDevice(to DevicePtr, from []float32) error {
	return check("cuMemcpyHtoDAsync", C.copy_to_device(C.uint64_t(to), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(4*len(from)), s.handle))
}

// CopyToHost queues a copy into floats that are in a Host.
func (s *Stream) CopyToHost(to []float32, from DevicePtr) error {
	return check("cuMemcpyDtoHAsync", C.copy_to_host(unsafe.Pointer(unsafe.SliceData(to)), C.uint64_t(from), C.size_t(4*len(to)), s.handle))
}

// Graph is recorded work.
type Graph struct{ handle C.handle }

// Record makes a graph of what f queues in the stream; f's work does not run.
func (s *Stream) Record(f func() error) (*Graph, error) {
	if err := check("cuStreamBeginCapture", C.capture_begin(s.handle)); err != nil {
		return nil, err
	}
	err := f()
	g := &Graph{}
	if e := check("cuStreamEndCapture", C.capture_end(s.handle, &g.handle)); err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Launch queues the graph.
func (g *Graph) Launch(s *Stream) error {
	return check("cuGraphLaunch", C.graph_launch(g.handle, s.handle))
}

// Close gives the graph back.
func (g *Graph) Close() error { return check("cuGraphExecDestroy", C.graph_destroy(g.handle)) }
