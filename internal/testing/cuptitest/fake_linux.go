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

static void *context(int device) {
	int (*f)(void **, unsigned, int);
	*(void **)&f = dlsym(cuda, "cuCtxCreate_v2");
	void *c = NULL;
	f(&c, 0, device);
	return c;
}

static int destroy(void *c) {
	int (*f)(void *);
	*(void **)&f = dlsym(cuda, "cuCtxDestroy_v2");
	return f(c);
}

static void *retain(int device) {
	int (*f)(void **, int);
	*(void **)&f = dlsym(cuda, "cuDevicePrimaryCtxRetain");
	void *c = NULL;
	f(&c, device);
	return c;
}

static int release(int device) {
	int (*f)(int);
	*(void **)&f = dlsym(cuda, "cuDevicePrimaryCtxRelease_v2");
	return f(device);
}

static uint32_t load_module(const void *image, size_t size) {
	uint32_t (*f)(const void *, size_t);
	*(void **)&f = dlsym(cuda, "fake_module_load");
	return f(image, size);
}

static int unload_module(uint32_t id) {
	int (*f)(uint32_t);
	*(void **)&f = dlsym(cuda, "fake_module_unload");
	return f(id);
}

static int begin_capture(uintptr_t stream) {
	int (*f)(void *, int);
	*(void **)&f = dlsym(cuda, "cuStreamBeginCapture_v2");
	return f((void *)stream, 0);
}

static int end_capture(uintptr_t stream) {
	int (*f)(void *, void **);
	*(void **)&f = dlsym(cuda, "cuStreamEndCapture");
	void *graph = NULL;
	return f((void *)stream, &graph);
}

static int destroy_stream(uintptr_t stream) {
	int (*f)(void *);
	*(void **)&f = dlsym(cuda, "cuStreamDestroy_v2");
	return f((void *)stream);
}

static void busy(int queries) {
	void (*f)(int);
	*(void **)&f = dlsym(cuda, "fake_busy");
	f(queries);
}

static int64_t broken_captures(void) {
	int64_t (*f)(void);
	*(void **)&f = dlsym(cuda, "fake_captures_broken");
	return f();
}

static uint64_t crc(const void *bytes, size_t n) {
	int (*f)(void *);
	*(void **)&f = dlsym(cupti, "cuptiGetCubinCrc");
	struct { size_t size, bytes; const void *cubin; uint64_t crc; } p = {32, n, bytes, 0};
	f(&p);
	return p.crc;
}

static void replay(const char *path) {
	void (*f)(const char *);
	*(void **)&f = dlsym(cupti, "fake_replay");
	f(path);
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

// Libraries compiles the fakes, opens them in this process, and sets GPUFLIGHT_CUPTI and
// LD_LIBRARY_PATH for it and its children until the test ends. The test is skipped where there is
// no C compiler.
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
	t.Setenv("GPUFLIGHT_CUPTI", f.CUPTI)
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

// names keeps the C copies of kernel names, few and permanent.
var names sync.Map

func cName(s string) *C.char {
	p, ok := names.Load(s)
	if !ok {
		p, _ = names.LoadOrStore(s, C.CString(s))
	}
	return p.(*C.char)
}

// Launch launches kernels of that name, n times, on the calling OS thread. The first has a grid of
// 1, the next of 2 blocks, and so on up to 1000 and again.
func (f *Fake) Launch(name string, n int) {
	for i := range n {
		f.LaunchKernel(Kernel{Name: name, Grid: [3]uint32{uint32(i%1000) + 1, 2, 3}, Block: [3]uint32{128, 1, 1}, Shared: 1024, Registers: 24, Stream: 7})
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

// Memory allocates some bytes on the device, sets them, copies them there and back and frees them:
// five calls, on the calling OS thread.
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
//	switched_concurrently   how often kinds were switched, or callbacks for launches off, beside a launch that somebody was told of: some threads
//	                  may have no records then, or not be told of
//	copied_concurrently     how often kinds of copies and sets were switched off, or a flush was forced, beside a copy or set: CUPTI may crash then
//	copy_hold         1: copies and sets do not return until it is 0
//	copying           how many are under way; not to be set
//	incomplete        1: a record of each buffer is not complete, so that only a forced flush gives it back
//	enabled, callbacks, subscribed   the activity kinds (bits), the number of callbacks, whether there is a subscriber; not to be set
//	missing_ends       of how many of the next launches the ends are not told
//	launch_ns         how long each launch, and each call about a module, takes
//	own_call          1: a thread of CUPTI's own launches, and is in that call until it is 0
//	own_called        1: it is; not to be set
//	hold              1: launches and calls about modules do not return until it is 0
//	held              how many such calls are under way that somebody was told of; not to be set
//
// and for windows:
//
//	counters_taken    the CUptiResult of asking for the counters
//	read_concurrently      how often that was asked while samples were taken
//	refuse_start      the CUptiResult of starting PC sampling
//	refuse_disable    that of disabling it, which is done all the same
//	start_makes_unresponsive     1: a start that is refused, or that there are no reasons, makes CUPTI unresponsive: no callbacks and no records until it is finalized
//	switched_unresponsive     how often kinds of activity were switched then: CUPTI may crash
//	refuse_pc, refuse_profiler, refuse_sass   the CUptiResult of enabling PC sampling, of cuptiProfilerInitialize, of configuring SASS metrics
//	unsupported       the first setting of the device that rules it out, from 1
//	no_reasons        1: PC sampling knows no stall reasons
//	pc_full           how many of the next questions find the hardware's buffer full
//	pc_drop, pc_non_user   samples of each launch that are dropped, or of no user's kernel
//	names_copied      1: each record has its own copy of its function's name
//	names_given       the copies that were made
//	sass_layout       1: the number of instances is that of one metric, else of all
//	broken            1 too many reasons, 2 no name, 3 an unknown reason or metric, 4 more records than were asked for
//	hang              1 reading samples, 2 enabling patches, 3 disabling: hangs until it is 0 again
//	start_ms          how long cuptiPCSamplingStart takes
//	data_ms           how long cuptiPCSamplingGetData takes
//	pc_remaining      how many of its answers say that there is more than there is
//	pc_raced          how often samples were read while a module was loaded or unloaded, or sampling was started, stopped or disabled or the counters
//	                  asked for during a launch, which locks the real one up
//	sass_raced        how often patches changed during a launch
//	sass_with_activity     how often patches were enabled beside kernel activity
//	armed             what is left armed; not to be set
//	resources         the number of callbacks about resources; not to be set
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

// Deliver hands bytes to the recorder as one completed buffer, whatever they are. It reports false
// if the recorder lent no buffer that is large enough.
func (f *Fake) Deliver(bytes []byte) bool {
	return C.deliver(unsafe.Pointer(unsafe.SliceData(bytes)), C.size_t(len(bytes))) == 0
}

// Context is a CUDA context.
type Context struct{ handle unsafe.Pointer }

// NewContext creates a context on a device, current on the calling OS thread.
func (f *Fake) NewContext(device int) Context { return Context{C.context(C.int(device))} }

// DestroyContext destroys it and returns the driver's result.
func (f *Fake) DestroyContext(c Context) int { return int(C.destroy(c.handle)) }

// RetainPrimary makes the primary context of a device active, ReleasePrimary undoes that once.
func (f *Fake) RetainPrimary(device int) Context { return Context{C.retain(C.int(device))} }

// ReleasePrimary returns the driver's result.
func (f *Fake) ReleasePrimary(device int) int { return int(C.release(C.int(device))) }

// LoadModule loads a module with these bytes as its image and returns its number.
func (f *Fake) LoadModule(image []byte) uint32 {
	return uint32(C.load_module(unsafe.Pointer(unsafe.SliceData(image)), C.size_t(len(image))))
}

// UnloadModule returns the driver's result.
func (f *Fake) UnloadModule(id uint32) int { return int(C.unload_module(C.uint32_t(id))) }

// CRC is the number by which CUPTI names an image.
func (f *Fake) CRC(image []byte) uint64 {
	return uint64(C.crc(unsafe.Pointer(unsafe.SliceData(image)), C.size_t(len(image))))
}

// BeginCapture begins to capture a stream, EndCapture ends it; both return the driver's result, 901
// for a capture that something else has ended.
func (f *Fake) BeginCapture(stream uintptr) int { return int(C.begin_capture(C.uintptr_t(stream))) }

// EndCapture is described at BeginCapture.
func (f *Fake) EndCapture(stream uintptr) int { return int(C.end_capture(C.uintptr_t(stream))) }

// DestroyStream destroys a stream, with its capture if there is one.
func (f *Fake) DestroyStream(stream uintptr) { C.destroy_stream(C.uintptr_t(stream)) }

// BrokenCaptures is how many captures something else has ended, ever.
func (f *Fake) BrokenCaptures() int64 { return int64(C.broken_captures()) }

// Busy has so many of the next questions about an event find the device at work; -1: nobody can
// ask.
func (f *Fake) Busy(queries int) { C.busy(C.int(queries)) }

// Replay has windows yield what a recording says, until the test ends.
func (f *Fake) Replay(t testing.TB, path string) {
	t.Helper()
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	C.replay(p)
	t.Cleanup(func() { C.replay(nil) })
}
