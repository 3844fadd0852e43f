// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

const (
	defaultBufferBytes = 8 << 20
	defaultBuffers     = 32
	// waitSlice bounds how long Take is in C at a time.
	waitSlice = 100 * time.Millisecond
)

// current is the one Collector of the process, between Open and Close. It is also what is held
// while a library is looked for.
var current struct {
	mu sync.Mutex
	c  *Collector
}

// Collector records what the GPU does. See the package comment for who may call what; where nothing
// else is said methods may be called by any goroutine.
type Collector struct {
	cfg     Config
	begin   Stats // the core's counts when the Collector was opened
	decoder *decoder

	// mu orders Start, Stop and Close, and guards status, running and closed.
	mu      sync.Mutex
	status  Status
	running bool
	closed  bool

	// take is held while a buffer is taken and decoded, by Take or by Stop.
	take   sync.Mutex
	walker bufferWalker
	// decoded are batches that Stop decoded because their names would not outlive it.
	decoded []*Batch
	gone    bool // Close was called

	scopes      sync.Mutex
	scopeNames  map[textPointer]string
	scopeBuffer []rawScopeEvent
	stackBuffer []rawStackEvent

	devices struct {
		sync.Mutex
		list []gpuevent.Device
	}

	// deep orders what is done about windows. It is taken before mu.
	deep struct {
		sync.Mutex
		window   *DeepWindow // open, or nil
		stopping int         // calls of Stop that have closed it and go on
	}
}

// Available says whether this process could record, and if not, why and what to do about it. It
// starts nothing and calls no cuInit: that the driver works shows only when the application has
// called it, or [InitDriver]. library is a path as in [Config].
func Available(library string) Status {
	current.mu.Lock()
	defer current.mu.Unlock()
	if current.c != nil {
		return current.c.Status()
	}
	status := load(library)
	if !status.OK() {
		return status
	}
	if rc := coreProbe(); rc != 0 {
		return failed(status, rc)
	}
	status.Kinds = KindsOf(KindKernel, KindMemcpy, KindMemcpyP2P, KindMemset, KindMemory, KindSync, KindGraph, KindNVTX,
		KindExternal, KindOverhead, KindRuntimeAPI, KindDriverAPI)
	return status
}

// InitDriver calls cuInit, as every CUDA program does at first. It takes a while and is no good
// before a fork: it is for programs that want to know whether the driver works.
func InitDriver() error {
	status := driverStatus()
	if !status.OK() {
		return &Error{Status: status}
	}
	switch rc := coreDriverInit(); rc {
	case 0:
		return nil
	case cudaNoDevice:
		status.Reason, status.Detail = ReasonNoDevice, noDevice
	default:
		status.Reason = ReasonFailed
		status.Detail = fmt.Sprintf("the CUDA driver does not start (cuInit returned %d): check that nvidia-smi works", rc)
	}
	return &Error{Status: status}
}

// Open loads CUPTI and makes ready to record. It starts nothing. An error is an [*Error].
func Open(cfg Config) (*Collector, error) {
	if cfg.Kinds == 0 {
		cfg.Kinds = DefaultKinds
	}
	if cfg.BufferBytes == 0 {
		cfg.BufferBytes = defaultBufferBytes
	}
	if cfg.Buffers == 0 {
		cfg.Buffers = defaultBuffers
	}
	if cfg.CubinBytes <= 0 {
		cfg.CubinBytes = DefaultCubinBytes
	}
	current.mu.Lock()
	defer current.mu.Unlock()
	if current.c != nil {
		return nil, &Error{Status: Status{Reason: ReasonBusy, Detail: "this process records already: close the first collector before opening another"}}
	}
	status := load(cfg.Library)
	if !status.OK() {
		return nil, &Error{Status: status}
	}
	// Larger buffers than this could not be addressed by 32 bits, smaller ones hold hardly a
	// record.
	if cfg.BufferBytes < 4096 || cfg.BufferBytes > 1<<30 || cfg.Buffers < 1 || cfg.Buffers > maxBuffers {
		status.Reason = ReasonFailed
		status.Detail = fmt.Sprintf("cannot record with %d buffers of %d bytes: 1 to %d of 4 KiB to 1 GiB are possible", cfg.Buffers, cfg.BufferBytes, maxBuffers)
		return nil, &Error{Status: status}
	}
	if rc := coreOpen(cfg); rc != 0 {
		return nil, &Error{Status: failed(status, rc)}
	}
	c := &Collector{
		cfg:        cfg,
		status:     status,
		decoder:    newDecoder(time.Now()),
		scopeNames: map[textPointer]string{},
	}
	var begin Stats
	coreStats(&begin)
	c.begin = Stats{ScopesLost: begin.ScopesLost, ScopesMisplaced: begin.ScopesMisplaced, StacksLost: begin.StacksLost}
	current.c = c
	return c, nil
}

// Status says what works. Kinds and Missing are known after Start. Where CUPTI tells of nothing any
// more (ReasonUnresponsive) all are missing, and Detail says so.
func (c *Collector) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	if coreDeepUnresponsive() {
		s.Kinds, s.Missing, s.Detail = 0, s.Missing|s.Kinds, unresponsiveDetail
	}
	return s
}

// Start begins recording. It may be called again after Stop. A kind that the library does not know
// is not an error: see Status. An error is an [*Error], or ErrNotRunning after Close.
func (c *Collector) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrNotRunning
	}
	if c.running {
		return nil
	}
	if err := c.startCore(); err != nil {
		return err
	}
	c.running = true
	return nil
}

// startCore has the core record and notes which kinds work.
func (c *Collector) startCore() error {
	kinds, rc, refusal := coreStart()
	if rc != 0 {
		return &Error{Status: failed(c.status, rc)}
	}
	c.status.Kinds = kinds
	c.status.Missing = c.cfg.Kinds &^ kinds
	if c.cfg.GraphNodes {
		// Its launches are not missing: the nodes stand for them.
		c.status.Missing &^= KindsOf(KindGraph)
	}
	c.status.Detail = ""
	if c.status.Missing != 0 && refusal != 0 {
		c.status.Detail = fmt.Sprintf("CUPTI does not record everything that was asked for: %s", coreText(refusal))
	}
	return nil
}

// Flush asks CUPTI for the buffers whose records are all complete. They are then there for Take.
func (c *Collector) Flush() error {
	return coreError("flush", coreFlush())
}

// Take returns the next completed buffer, decoded. It returns nil, nil if there is none within the
// time, and nil, io.EOF after Stop or Close when all is taken. Only one goroutine may call it.
func (c *Collector) Take(wait time.Duration) (*Batch, error) {
	until := time.Now().Add(wait)
	for {
		b, err := c.next()
		if b != nil || err != nil {
			return b, err
		}
		left := time.Until(until)
		if left <= 0 {
			return nil, nil //nolint:nilnil // The contract: no buffer, and no end.
		}
		if rc := coreWait(min(left, waitSlice)); rc == rcForked {
			return nil, ErrForked
		}
	}
}

// next takes and decodes a buffer without waiting.
func (c *Collector) next() (*Batch, error) {
	c.take.Lock()
	defer c.take.Unlock()
	if len(c.decoded) > 0 {
		b := c.decoded[0]
		c.decoded[0] = nil
		c.decoded = c.decoded[1:]
		return b, nil
	}
	if c.gone {
		return nil, io.EOF
	}
	return c.decodeNext()
}

// decodeNext is called with take held.
func (c *Collector) decodeNext() (*Batch, error) {
	raw, rc := coreTake()
	switch {
	case raw != nil:
		c.decoder.setOffset(raw.anchorNs())
		c.decoder.scopes = coreScopeTable()
		c.walker.begin(raw)
		b := c.decoder.decode(raw.bytes(), &c.walker, raw.release)
		b.attachment = coreAttachment() // Detach decodes all buffers before it finalizes CUPTI
		return b, nil
	case rc == rcEnd:
		return nil, io.EOF
	case rc == rcForked:
		return nil, ErrForked
	default:
		return nil, nil //nolint:nilnil // As in Take.
	}
}

// Pending is the number of completed buffers that wait for Take.
func (c *Collector) Pending() int {
	c.take.Lock()
	defer c.take.Unlock()
	if c.gone {
		return len(c.decoded)
	}
	return len(c.decoded) + corePending()
}

// Stop ends recording. What was recorded can still be taken, up to io.EOF. With finalize, CUPTI is
// detached from the driver. Otherwise the driver may stay slower, which does not matter when the
// process is about to end. ErrNotDetached says that recording has stopped and CUPTI is still
// attached. Stop does nothing if nothing is recorded. A window that is open is closed first, within
// its CloseLimit; its Close has the result.
func (c *Collector) Stop(finalize bool) error {
	defer c.endDeep()()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		return nil
	}
	stop := coreStop
	if coreDeepStuck() {
		// A CUPTI that never came back from a window may have locks that this needs.
		stop = func() int { return bounded(DefaultCloseLimit, coreStop) }
	}
	err := coreError("stop", stop())
	c.running = false
	if finalize {
		err = errors.Join(err, c.finalize())
	}
	return err
}

// finalize decodes what is pending and detaches CUPTI. The names in records belong to CUPTI, so
// nobody may decode during or after that.
func (c *Collector) finalize() error {
	c.take.Lock()
	defer c.take.Unlock()
	for {
		b, err := c.decodeNext()
		if b == nil {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			break
		}
		c.decoded = append(c.decoded, b)
	}
	rc := coreFinalize()
	if rc == rcNotDetached {
		return ErrNotDetached
	}
	return coreError("finalize", rc)
}

// Close gives everything back, after Stop, which it does if need be. Batches that are still out
// stay good until their Release. Close may be called again.
func (c *Collector) Close() error {
	current.mu.Lock()
	defer current.mu.Unlock()
	c.deep.Lock()
	c.deep.stopping++ // for good: no window opens any more
	c.deep.Unlock()
	err := c.Stop(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.take.Lock()
	c.gone = true
	err = errors.Join(err, coreError("close", coreClose()))
	c.take.Unlock()
	current.c = nil
	return err
}

// PushScope makes id, which came from NextScopeID, the scope of what the calling OS thread launches
// until PopScope. The caller has locked its goroutine to the thread. ErrTooDeep says that it is
// not.
func (c *Collector) PushScope(id uint64) error {
	return coreError("scope", corePush(id))
}

// PopScope ends a scope. ErrMisplaced says that it was not the innermost of the calling thread.
func (c *Collector) PopScope(id uint64) error {
	return coreError("scope", corePop(id))
}

// NextScopeID returns a number that no other scope of the process has, NVTX ranges included. It
// counts from 1.
func (c *Collector) NextScopeID() uint64 { return coreNextScopeID() }

// ScopeEvents appends to dst what NVTX has told since the last call, in the order of time on each
// thread.
func (c *Collector) ScopeEvents(dst []ScopeEvent) []ScopeEvent {
	c.scopes.Lock()
	defer c.scopes.Unlock()
	if c.scopeBuffer == nil {
		c.scopeBuffer = make([]rawScopeEvent, 1024)
	}
	for {
		n := coreScopeEvents(c.scopeBuffer)
		for i := range c.scopeBuffer[:n] {
			dst = append(dst, c.scopeEvent(&c.scopeBuffer[i]))
		}
		if n < len(c.scopeBuffer) {
			return dst
		}
	}
}

// StackEvents appends to dst the stacks of launches since the last call. Take records before: then
// their stacks are known.
func (c *Collector) StackEvents(dst []StackEvent) []StackEvent {
	if !c.cfg.Stacks {
		return dst
	}
	c.scopes.Lock()
	defer c.scopes.Unlock()
	if c.stackBuffer == nil {
		c.stackBuffer = make([]rawStackEvent, 256)
	}
	for {
		n := coreStackEvents(c.stackBuffer)
		for i := range c.stackBuffer[:n] {
			dst = append(dst, c.stackEvent(&c.stackBuffer[i]))
		}
		if n < len(c.stackBuffer) {
			return dst
		}
	}
}

// NoStacks returns why stacks are not sampled, "" if they are or were not requested.
func (c *Collector) NoStacks() string {
	if !c.cfg.Stacks {
		return ""
	}
	return coreStacksReason()
}

// name returns the text at an address that the core promises to keep. Applications may name things
// in any encoding, telemetry is UTF-8.
func (c *Collector) name(at textPointer) string {
	if at == nil {
		return ""
	}
	s, ok := c.scopeNames[at]
	if !ok {
		s = strings.ToValidUTF8(coreGoString(at), "\uFFFD")
		c.scopeNames[at] = s
	}
	return s
}

// Devices returns the GPUs of this process. It is empty until the application has initialised
// the driver, which this package does not do for it.
func (c *Collector) Devices() []gpuevent.Device {
	c.devices.Lock()
	defer c.devices.Unlock()
	if len(c.devices.list) == 0 {
		c.devices.list, _ = askDevices()
	}
	return append([]gpuevent.Device(nil), c.devices.list...)
}

// Stats returns the sums since Open.
func (c *Collector) Stats() Stats {
	var s Stats
	coreStats(&s)
	s.ScopesLost -= c.begin.ScopesLost
	s.ScopesMisplaced -= c.begin.ScopesMisplaced
	s.StacksLost -= c.begin.StacksLost
	c.decoder.addTo(&s)
	return s
}

// Thread returns the calling OS thread's id, as the kernel numbers it.
func Thread() uint32 { return uint32(syscall.Gettid()) }

const (
	noDevice = "the CUDA driver finds no GPU: is one there (nvidia-smi), and is it given to this container or hidden by CUDA_VISIBLE_DEVICES?"
	noDriver = "the CUDA driver (libcuda.so.1) is not there: install the NVIDIA driver; in a container use the NVIDIA runtime with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)

// driverStatus loads the driver and sees whether it has a GPU, as far as it says without cuInit.
func driverStatus() Status {
	var status Status
	rc, words := coreDriverLoad()
	switch {
	case rc == rcForked:
		return failed(status, rc)
	case rc != 0:
		status.Reason, status.Detail = ReasonNoDriver, noDriver+" ("+words+")"
		return status
	}
	status.Driver = coreDriverVersion()
	devices, rc := askDevices()
	switch {
	case rc == cudaNoDevice || rc == 0 && len(devices) == 0,
		rc == cudaNotInitialized && !hasDeviceNode():
		status.Reason, status.Detail = ReasonNoDevice, noDevice
	case rc > 0 && rc != cudaNotInitialized:
		status.Reason = ReasonFailed
		status.Detail = fmt.Sprintf("list the GPUs: cuDeviceGetCount returns %d: check nvidia-smi", rc)
	}
	return status
}

// deviceAnswer is what the driver says of its devices.
type deviceAnswer struct {
	done    chan struct{}
	devices []gpuevent.Device
	rc      int
}

// asking is the question that the driver has not answered yet, if any.
var asking struct {
	sync.Mutex
	answer *deviceAnswer
}

// driverTimeout is how long the driver may take to answer. It does so at once, but not while cuInit
// runs. cuInit calls an injection library on a thread that must continue for cuInit to end, so the
// query runs on another thread.
const driverTimeout = 50 * time.Millisecond

// driverBusy is no result of the driver's.
const driverBusy = -1

// askDevices returns the driver's devices or its error; driverBusy if it has no time for us.
func askDevices() ([]gpuevent.Device, int) {
	asking.Lock()
	a := asking.answer
	if a == nil {
		a = &deviceAnswer{done: make(chan struct{})}
		asking.answer = a
		go func() {
			a.devices, a.rc = coreDevices()
			asking.Lock()
			asking.answer = nil
			asking.Unlock()
			close(a.done)
		}()
	}
	asking.Unlock()
	select {
	case <-a.done:
		return a.devices, a.rc
	case <-time.After(driverTimeout):
		return nil, driverBusy
	}
}

// hasDeviceNode looks for a GPU where the driver puts it: NVIDIA's device files, those of Tegra,
// and that of Windows' Linux.
func hasDeviceNode() bool {
	for _, pattern := range []string{"/dev/nvidia[0-9]*", "/dev/nvhost-*gpu*", "/dev/nvgpu*", "/dev/dxg"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return true
		}
	}
	return false
}

// load finds and opens driver and CUPTI. The caller holds current.mu.
func load(library string) Status {
	status := driverStatus()
	if !status.OK() {
		return status
	}
	places := []place{{path: library}}
	if library == "" {
		maps, _ := os.ReadFile("/proc/self/maps")
		places = locator{
			maps:   string(maps),
			getenv: os.Getenv,
			glob:   func(pattern string) []string { found, _ := filepath.Glob(pattern); return found },
			arch:   runtime.GOARCH,
			driver: status.Driver,
		}.places()
	}
	var why Status // of the best that did not fit
	var words []string
	for _, p := range places {
		if status.Driver > 0 && p.major > status.Driver/1000 {
			// Opening it would only bring another CUPTI into the process.
			if why.OK() && (p.mapped || filepath.IsAbs(p.path)) {
				why = Status{Reason: ReasonVersion, Detail: newerThanDriver(p.path, p.major, status.Driver), Library: p.path}
			}
			continue
		}
		rc, text := coreLoad(p.path, p.mapped)
		switch rc {
		case 0:
			version := coreVersion()
			if detail := incompatibility(p.path, version, status.Driver); detail != "" {
				if why.OK() {
					why = Status{Reason: ReasonVersion, Detail: detail, Library: p.path, Version: version}
				}
				coreUnload()
				continue
			}
			status.Library, status.Version = p.path, version
			return status
		case rcNoSymbol:
			if why.OK() {
				why = Status{Reason: ReasonVersion, Detail: p.path + " is not a usable libcupti (" + text + "): install libcupti of CUDA 12 or later", Library: p.path}
			}
		case rcBusy:
			status.Reason = ReasonFailed
			status.Detail = "this process has used another libcupti already, and a second one does not work: leave the path empty, or start the process anew"
			return status
		case rcForked:
			return failed(status, rc)
		case rcNoLibrary:
			if filepath.IsAbs(p.path) || library != "" {
				words = append(words, text)
			}
		default:
			// It opened and does not even return its version: CUPTI 13.5 without a driver that it
			// likes.
			if why.OK() {
				why = failed(Status{Library: p.path}, rc)
				why.Detail = p.path + " does not work with this driver: " + why.Detail
			}
		}
	}
	if !why.OK() {
		why.Driver = status.Driver
		return why
	}
	status.Reason = ReasonNoLibrary
	status.Detail = "libcupti is not there: install the CUDA toolkit, or the Python package nvidia-cuda-cupti" +
		" (nvidia-cuda-cupti-cu12 for CUDA 12), or say where it is"
	if len(words) > 0 {
		status.Detail += " (" + strings.Join(words, "; ") + ")"
	}
	return status
}

// failed turns a result of the core, or of CUPTI, into what a user can act on.
func failed(status Status, rc int) Status {
	switch rc {
	case rcForked:
		status.Reason = ReasonForked
		status.Detail = "this process was forked from one that records: CUDA and CUPTI do not survive a fork; start it by exec"
	case rcBusy:
		status.Reason = ReasonBusy
		status.Detail = "this process records already: close the first collector before opening another"
	case cuptiMultipleSubscribers, cuptiOldProfiler:
		status.Reason = ReasonOtherProfiler
		status.Detail = "another profiler holds CUPTI (Nsight, cuda-gdb, compute-sanitizer, torch.profiler, another tracer, or CUDA_INJECTION64_PATH): run without it"
	case cuptiInsufficientPrivileges, cuptiVirtualizedPrivileges:
		status.Reason = ReasonPermission
		status.Detail = "the driver lets only root profile: load the kernel module with NVreg_RestrictProfilingToAdminUsers=0, or give the process CAP_SYS_ADMIN" +
			"; on a virtual GPU have profiling enabled in its host"
	case rcNoMemory:
		status.Reason = ReasonFailed
		status.Detail = "there is no memory for the buffers"
	default:
		status.Reason = ReasonFailed
		status.Detail = coreText(rc)
	}
	return status
}
