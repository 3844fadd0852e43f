// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

// The functions here are the C core's, in Go's types and nothing more.

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fvisibility=hidden
#cgo LDFLAGS: -ldl -lpthread
#cgo noescape gpufl_push_scope
#cgo nocallback gpufl_push_scope
#cgo noescape gpufl_pop_scope
#cgo nocallback gpufl_pop_scope
#cgo noescape gpufl_next_scope_id
#cgo nocallback gpufl_next_scope_id
#cgo noescape gpufl_walk
#cgo nocallback gpufl_walk
#include <stdlib.h>
#include "gpufl_abi.h"
#include "gpufl_cupti.h"
*/
import "C"

import (
	"encoding/hex"
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// Results of the core, and those of CUPTI and the driver that mean something to us.
const (
	rcEnd         = C.GPUFL_END
	rcForked      = C.GPUFL_FORKED
	rcBusy        = C.GPUFL_BUSY
	rcNoLibrary   = C.GPUFL_NO_LIBRARY
	rcNoSymbol    = C.GPUFL_NO_SYMBOL
	rcNoMemory    = C.GPUFL_NO_MEMORY
	rcTimeout     = C.GPUFL_TIMEOUT
	rcNotDetached = C.GPUFL_NOT_DETACHED

	cuptiMultipleSubscribers    = C.GPUFL_CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
	cuptiOldProfiler            = C.GPUFL_CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED
	cuptiInsufficientPrivileges = C.GPUFL_CUPTI_ERROR_INSUFFICIENT_PRIVILEGES
	cuptiVirtualizedPrivileges  = C.GPUFL_CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES

	cudaNotInitialized = C.GPUFL_CUDA_ERROR_NOT_INITIALIZED
	cudaNoDevice       = C.GPUFL_CUDA_ERROR_NO_DEVICE

	maxBuffers = C.GPUFL_MAX_BUFFERS
)

// The numbers on both sides are the same, or this does not compile.
var (
	_ [KindKernel - C.GPUFL_KIND_KERNEL]struct{}
	_ [KindDriverAPI - C.GPUFL_KIND_DRIVER_API]struct{}
	_ [NumKinds - C.GPUFL_NUM_KINDS]struct{}
	_ [C.GPUFL_NUM_KINDS - NumKinds]struct{}
	_ [scopeTableBits - C.GPUFL_SCOPE_TABLE_BITS]struct{}
	_ [C.GPUFL_SCOPE_TABLE_BITS - scopeTableBits]struct{}
)

// coreError is nil for success.
func coreError(what string, rc int) error {
	switch rc {
	case C.GPUFL_OK:
		return nil
	case C.GPUFL_MISPLACED:
		return ErrMisplaced
	case C.GPUFL_FULL:
		return ErrTooDeep
	case C.GPUFL_FORKED:
		return ErrForked
	case C.GPUFL_STOPPED, C.GPUFL_CLOSED:
		return ErrNotRunning
	default:
		return fmt.Errorf("cupti: %s: %s", what, coreText(rc))
	}
}

// coreText describes a result, in CUPTI's words if it is CUPTI's.
func coreText(rc int) string {
	if rc > 0 {
		return fmt.Sprintf("CUPTI says %s (%d)", C.GoString(C.gpufl_result_string(C.int(rc))), rc)
	}
	if rc == rcUnresponsive {
		return unresponsiveDetail
	}
	return fmt.Sprintf("the collector's core answers %d", rc)
}

func coreLoad(path string, mappedOnly bool) (int, string) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var words [C.GPUFL_ERROR_SIZE]C.char
	var only C.int
	if mappedOnly {
		only = 1
	}
	rc := C.gpufl_load(p, only, &words[0])
	return int(rc), C.GoString(&words[0])
}

func coreUnload()            { C.gpufl_unload() }
func coreVersion() int       { return int(C.gpufl_version()) }
func coreDriverVersion() int { return int(C.gpufl_driver_version()) }
func coreDriverInit() int    { return int(C.gpufl_driver_init()) }
func coreProbe() int         { return int(C.gpufl_probe()) }
func coreStop() int          { return int(C.gpufl_stop()) }
func coreFinalize() int      { return int(C.gpufl_finalize()) }
func coreClose() int         { return int(C.gpufl_close()) }
func corePending() int       { return int(C.gpufl_pending()) }

func coreDriverLoad() (int, string) {
	var words [C.GPUFL_ERROR_SIZE]C.char
	rc := C.gpufl_driver_load(&words[0])
	return int(rc), C.GoString(&words[0])
}

func coreOpen(cfg Config) int {
	config := C.gpufl_config{
		buffer_bytes: C.size_t(cfg.BufferBytes),
		buffers:      C.uint32_t(cfg.Buffers),
		kinds:        C.uint32_t(cfg.Kinds),
	}
	if cfg.GraphNodes {
		config.graph_nodes = 1
	}
	if cfg.Detachable {
		config.detach = 1
	}
	if cfg.Stacks {
		config.stacks = 1
	}
	if cfg.Deep {
		config.deep = 1
		config.cubin_bytes = C.uint64_t(cfg.CubinBytes)
	}
	return int(C.gpufl_open(&config))
}

func coreStart() (kinds Kinds, rc, refusal int) {
	var enabled C.uint32_t
	var refused C.int
	rc = int(C.gpufl_start(&enabled, &refused))
	return Kinds(enabled), rc, int(refused)
}

func coreSuspend(limit time.Duration) int { return int(C.gpufl_suspend(C.int64_t(limit))) }

func coreSuspended() bool { return bool(C.gpufl_suspended()) }

// coreAttachment is how often CUPTI was finalized.
func coreAttachment() uint32 { return uint32(C.gpufl_attachment()) }

func coreFlush() int { return int(C.gpufl_flush()) }

func coreWait(d time.Duration) int { return int(C.gpufl_wait(C.int64_t(d))) }

// rawBuffer is a completed buffer in C's memory.
type rawBuffer C.gpufl_buffer

func coreTake() (*rawBuffer, int) {
	var b *C.gpufl_buffer
	rc := C.gpufl_take(&b)
	return (*rawBuffer)(b), int(rc)
}

// bytes is what CUPTI wrote. The memory is C's, and good until release.
func (b *rawBuffer) bytes() []byte   { return unsafe.Slice((*byte)(b.data), int(b.valid)) }
func (b *rawBuffer) anchorNs() int64 { return int64(b.anchor) }
func (b *rawBuffer) release()        { C.gpufl_release((*C.gpufl_buffer)(b)) }

// bufferWalker finds the records of a buffer by asking CUPTI. It is a walker of the decoder.
type bufferWalker struct {
	buffer *rawBuffer
	cursor unsafe.Pointer
}

func (w *bufferWalker) begin(b *rawBuffer) { w.buffer, w.cursor = b, nil }

func (w *bufferWalker) walk(records []uintptr) int {
	if len(records) == 0 {
		return 0
	}
	// The addresses are those of C's memory, so Go's collector has no interest in them.
	n := C.gpufl_walk((*C.gpufl_buffer)(w.buffer), &w.cursor, (*unsafe.Pointer)(unsafe.Pointer(&records[0])), C.int(min(len(records), math.MaxInt32)))
	return int(n)
}

func coreStats(s *Stats) {
	var raw C.gpufl_stats
	C.gpufl_get_stats(&raw)
	s.Dropped = uint64(raw.dropped)
	s.Requests = uint64(raw.requests)
	s.Refused = uint64(raw.refused)
	s.Unreturned = uint64(raw.unreturned)
	s.ScopesLost = uint64(raw.scopes_lost)
	s.ScopesMisplaced = uint64(raw.scopes_misplaced)
	s.StacksLost = uint64(raw.stacks_lost)
	s.StacksTime = time.Duration(raw.stacks_ns)
}

func corePush(id uint64) int  { return int(C.gpufl_push_scope(C.uint64_t(id))) }
func corePop(id uint64) int   { return int(C.gpufl_pop_scope(C.uint64_t(id))) }
func coreNextScopeID() uint64 { return uint64(C.gpufl_next_scope_id()) }

// coreScopeTable is the table of which launch belongs to which scope, in C's memory permanently.
func coreScopeTable() scopeTable {
	at := C.gpufl_scope_table()
	if at == nil {
		return scopeTable{}
	}
	return scopeTable{slots: unsafe.Slice((*uint64)(at), 1<<scopeTableBits)}
}

type (
	rawScopeEvent = C.gpufl_scope_event
	rawStackEvent = C.gpufl_stack_event
	textPointer   = *C.char
)

func coreScopeEvents(dst []rawScopeEvent) int {
	return int(C.gpufl_scope_events(&dst[0], C.int(len(dst))))
}

func coreStackEvents(dst []rawStackEvent) int {
	return int(C.gpufl_stack_events(&dst[0], C.int(len(dst))))
}

func coreStacksReason() string {
	at := C.gpufl_stacks_reason()
	if at == nil {
		return ""
	}
	return C.GoString(at)
}

func coreGoString(at textPointer) string { return C.GoString(at) }

func (c *Collector) scopeEvent(e *rawScopeEvent) ScopeEvent {
	event := ScopeEvent{
		What:            ScopeEventKind(e.what),
		ID:              uint64(e.id),
		Parent:          uint64(e.parent),
		TimeNs:          int64(e.time_ns),
		Thread:          uint32(e.thread),
		Name:            c.name(e.name),
		Domain:          c.name(e.domain),
		Color:           uint32(e.color),
		CollectiveBytes: uint64(e.collective_bytes),
		Nested:          e.nested != 0,
		Program:         e.program != 0,
	}
	if event.What == ScopeSpan {
		event.Sampled = e.sampled != 0
		for i, b := range e.trace {
			event.Span.Trace[i] = byte(b)
		}
		for i, b := range e.span {
			event.Span.Span[i] = byte(b)
		}
	}
	return event
}

func (c *Collector) stackEvent(e *rawStackEvent) StackEvent {
	return StackEvent{Correlation: uint32(e.correlation), Attachment: uint32(e.attachment), Text: c.name(e.text), Samples: int(e.samples)}
}

// coreDevices returns the driver's devices, or its error.
func coreDevices() ([]gpuevent.Device, int) {
	raw := make([]C.gpufl_device, 16)
	var n int
	for {
		n = int(C.gpufl_devices(&raw[0], C.int(len(raw))))
		if n <= len(raw) {
			break
		}
		raw = make([]C.gpufl_device, n)
	}
	if n < 0 {
		return nil, -n
	}
	devices := make([]gpuevent.Device, 0, n)
	for i := range raw[:n] {
		devices = append(devices, deviceOf(&raw[i]))
	}
	return devices, 0
}

func deviceOf(raw *C.gpufl_device) gpuevent.Device {
	known := func(v C.int32_t) gpuevent.Int {
		if v < 0 {
			return gpuevent.Int{}
		}
		return gpuevent.Some(int64(v))
	}
	d := gpuevent.Device{
		Index:        int64(raw.ordinal),
		Name:         C.GoString(&raw.name[0]),
		Vendor:       "NVIDIA",
		ComputeMajor: known(raw.major),
		ComputeMinor: known(raw.minor),
		SMCount:      known(raw.sm_count),
	}
	if raw.has_uuid != 0 {
		var id [16]byte
		for i := range id {
			id[i] = byte(raw.uuid[i])
		}
		prefix := "GPU-"
		if raw.mig != 0 {
			prefix = "MIG-"
		}
		h := hex.EncodeToString(id[:])
		d.UUID = prefix + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	}
	return d
}
