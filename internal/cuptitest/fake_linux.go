// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cuptitest

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include "fake/fake.h"

static void *cuda, *cupti;

// open_fakes keeps both open for the process: libcuda.so.1 is then found by that name.
static const char *open_fakes(const char *cuda_path, const char *cupti_path) {
	if (cuda == NULL && (cuda = dlopen(cuda_path, RTLD_NOW)) == NULL) return dlerror();
	if (cupti == NULL && (cupti = dlopen(cupti_path, RTLD_NOW)) == NULL) return dlerror();
	return NULL;
}

static int init(void) {
	int (*f)(unsigned);
	*(void **)&f = dlsym(cuda, "cuInit");
	return f(0);
}

static int run(int threads, uint64_t launches, const char *name) {
	int (*f)(int, uint64_t, const char *);
	*(void **)&f = dlsym(cuda, "fake_run");
	return f(threads, launches, name);
}

static int launch(const fake_kernel *k) {
	int (*f)(const fake_kernel *);
	*(void **)&f = dlsym(cuda, "fake_launch");
	return f(k);
}

static int graph(uintptr_t nodes) {
	int (*f)(void *, void *);
	*(void **)&f = dlsym(cuda, "cuGraphLaunch");
	return f((void *)nodes, NULL);
}

static int synchronize(void) {
	int (*f)(void);
	*(void **)&f = dlsym(cuda, "cuCtxSynchronize");
	return f();
}

// memory allocates, sets, copies there and back, and frees.
static int memory(size_t bytes) {
	int (*alloc)(uint64_t *, size_t), (*release)(uint64_t), (*set)(uint64_t, unsigned char, size_t);
	int (*to)(uint64_t, const void *, size_t), (*from)(void *, uint64_t, size_t);
	*(void **)&alloc = dlsym(cuda, "cuMemAlloc_v2");
	*(void **)&release = dlsym(cuda, "cuMemFree_v2");
	*(void **)&set = dlsym(cuda, "cuMemsetD8_v2");
	*(void **)&to = dlsym(cuda, "cuMemcpyHtoD_v2");
	*(void **)&from = dlsym(cuda, "cuMemcpyDtoH_v2");
	void *host = calloc(1, bytes);
	uint64_t device = 0;
	int result = alloc(&device, bytes) | set(device, 1, bytes) | to(device, host, bytes) | from(host, device, bytes) | release(device);
	free(host);
	return result;
}

static int64_t control(const char *what, int64_t value) {
	int64_t (*f)(const char *, int64_t);
	*(void **)&f = dlsym(cupti, "fake_control");
	return f(what, value);
}

static int deliver(const void *bytes, size_t n) {
	int (*f)(const void *, size_t);
	*(void **)&f = dlsym(cupti, "fake_deliver");
	return f(bytes, n);
}
*/
import "C"

import (
	"path/filepath"
	"sync"
	"testing"
	"unsafe"
)

// Fake is the fake GPU in this process. Any goroutine may call its methods.
type Fake struct {
	// Dir holds libcuda.so.1, CUPTI is the path of libcupti.so.13.
	Dir, CUPTI string
}

// Libraries compiles the fakes, opens them in this process, and sets GPUFL_CUPTI and LD_LIBRARY_PATH for it
// and its children until the test ends. The test is skipped where there is no C compiler.
func Libraries(t testing.TB) *Fake {
	t.Helper()
	dir := Build(t)
	f := &Fake{Dir: dir, CUPTI: filepath.Join(dir, "libcupti.so.13")}
	cuda, cupti := C.CString(filepath.Join(dir, "libcuda.so.1")), C.CString(f.CUPTI)
	defer C.free(unsafe.Pointer(cuda))
	defer C.free(unsafe.Pointer(cupti))
	if words := C.open_fakes(cuda, cupti); words != nil {
		t.Fatal(C.GoString(words))
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
	t.Setenv("GPUFL_CUPTI", f.CUPTI)
	return f
}

// Init calls cuInit and returns its result, 0 for success.
func (f *Fake) Init() int { return int(C.init()) }

// Kernel is a launch. Zero dimensions are 1.
type Kernel struct {
	Name        string // mangled
	Grid, Block [3]uint32
	// Shared is the dynamic shared memory in bytes.
	Shared, Registers, Stream, Device uint32
	DurationNs                        uint64 // 0: 1000
}

// names keeps the C copies of kernel names, few and for ever.
var names sync.Map

func cName(s string) *C.char {
	p, ok := names.Load(s)
	if !ok {
		p, _ = names.LoadOrStore(s, C.CString(s))
	}
	return p.(*C.char)
}

// Launch launches kernels of that name, n times, on the calling OS thread. The first has a grid of 1, the
// next of 2 blocks, and so on up to 1000 and again.
func (f *Fake) Launch(name string, n int) {
	for i := range n {
		f.LaunchKernel(Kernel{Name: name, Grid: [3]uint32{uint32(i%1000) + 1, 2, 3}, Block: [3]uint32{128, 1, 1}, Shared: 1024, Registers: 24, Stream: 7}) //nolint:gosec // Small.
	}
}

// LaunchKernel launches one kernel on the calling OS thread.
func (f *Fake) LaunchKernel(k Kernel) {
	raw := C.fake_kernel{
		name: cName(k.Name), shared: C.uint32_t(k.Shared), registers: C.uint32_t(k.Registers), stream: C.uint32_t(k.Stream), device: C.uint32_t(k.Device),
		duration_ns: C.uint64_t(k.DurationNs),
	}
	for i := range 3 {
		raw.grid[i], raw.block[i] = C.uint32_t(max(k.Grid[i], 1)), C.uint32_t(max(k.Block[i], 1))
	}
	C.launch(&raw)
}

// LaunchThreads has threads of the fake's own launch n kernels each, and waits for them.
func (f *Fake) LaunchThreads(threads, n int, name string) {
	p := C.CString(name)
	defer C.free(unsafe.Pointer(p))
	if C.run(C.int(threads), C.uint64_t(n), p) != 0 {
		panic("cuptitest: no thread could be started")
	}
}

// Memory allocates some bytes on the device, sets them, copies them there and back and frees them: five
// calls, on the calling OS thread.
func (f *Fake) Memory(bytes int) { C.memory(C.size_t(bytes)) }

// Graph launches a graph with so many kernels, on the calling OS thread.
func (f *Fake) Graph(nodes int) { C.graph(C.uintptr_t(nodes)) }

// Synchronize waits for the context.
func (f *Fake) Synchronize() { C.synchronize() }

// Control sets something and returns what it was:
//
//	version           what cuptiGetVersion answers
//	kernel_bytes      the length of kernel records
//	refuse_subscribe  the CUptiResult of cuptiSubscribe
//	refuse_kind       kind<<16 | CUptiResult of enabling that CUpti_ActivityKind
//	refuse_clock      1: no own timestamps
//	drop              how many of the next records are lost
//	correlation       the last correlation id
//	own_thread        1: buffers are completed by a thread of CUPTI's own
//	overhead_ns       above 0, each flush records that much overhead
//	silent            1: callbacks are not called
//	finalized         how often cuptiFinalize was called
//	not_zero          buffers that were promised to be zeroed and were not
//	enabled, callbacks, subscribed   the activity kinds (bits), the number of callbacks, whether there is a subscriber; not to be set
//
// -1 says that there is no such thing.
func (f *Fake) Control(what string, value int64) int64 {
	p := C.CString(what)
	defer C.free(unsafe.Pointer(p))
	return int64(C.control(p, C.int64_t(value)))
}

// Set is Control until the test ends.
func (f *Fake) Set(t testing.TB, what string, value int64) {
	t.Helper()
	old := f.Control(what, value)
	if old == -1 {
		t.Fatalf("the fake CUPTI has no %q", what)
	}
	t.Cleanup(func() { f.Control(what, old) })
}

// Deliver hands bytes to the recorder as one completed buffer, whatever they are. It reports false if the
// recorder lent no buffer that is large enough.
func (f *Fake) Deliver(bytes []byte) bool {
	return C.deliver(unsafe.Pointer(unsafe.SliceData(bytes)), C.size_t(len(bytes))) == 0
}
