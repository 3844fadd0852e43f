// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package cupti

// The functions here are those of gpufl_deep.h, in Go's types and nothing more.

/*
#include <stdlib.h>
#include "gpufl_deep.h"
#include "gpufl_deep_abi.h"
*/
import "C"

import (
	"strings"
	"time"
	"unsafe"
)

const (
	rcBadValue     = C.GPUFL_BAD_VALUE
	rcStopped      = C.GPUFL_STOPPED
	rcUnsupported  = C.GPUFL_UNSUPPORTED
	rcNoContext    = C.GPUFL_NO_CONTEXT
	rcCapture      = C.GPUFL_CAPTURE
	rcActivity     = C.GPUFL_ACTIVITY
	rcNotDeep      = C.GPUFL_NOT_DEEP
	rcExiting      = C.GPUFL_EXITING
	rcGivenUp      = C.GPUFL_GIVEN_UP
	rcNotQuiesced  = C.GPUFL_NOT_QUIESCED
	rcDevice       = C.GPUFL_DEVICE
	rcOnce         = C.GPUFL_ONCE
	rcTaken        = C.GPUFL_TAKEN
	rcUnresponsive = C.GPUFL_UNRESPONSIVE

	cuptiInvalidOperation = C.GPUFL_CUPTI_ERROR_INVALID_OPERATION
	cuptiOutOfMemory      = C.GPUFL_CUPTI_ERROR_OUT_OF_MEMORY
	cuptiNotCompatible    = C.GPUFL_CUPTI_ERROR_NOT_COMPATIBLE
	cuptiHardwareBusy     = C.GPUFL_CUPTI_ERROR_HARDWARE_BUSY
	cuptiNotSupported     = C.GPUFL_CUPTI_ERROR_NOT_SUPPORTED
	cuptiVirtualized      = C.GPUFL_CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED
	cuptiConfidential     = C.GPUFL_CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED
	cuptiMining           = C.GPUFL_CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED
	cuptiMIG              = C.GPUFL_CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED
	cuptiSLI              = C.GPUFL_CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED
	cuptiWSL              = C.GPUFL_CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED
)

// The numbers on both sides are the same, or this does not compile.
var (
	_ [EnginePCSampling - C.GPUFL_DEEP_PC]struct{}
	_ [EngineSASS - C.GPUFL_DEEP_SASS]struct{}
	_ [NumEngines - C.GPUFL_NUM_ENGINES]struct{}
	_ [C.GPUFL_NUM_ENGINES - NumEngines]struct{}
)

func coreDeepSupported(e Engine) int { return int(C.gpufl_deep_supported(C.int(e))) }
func coreDeepContexts() int          { return int(C.gpufl_deep_contexts()) }
func coreDeepObstacle() string       { return C.GoString(C.gpufl_deep_obstacle()) }
func coreDeepHolder() int            { return int(C.gpufl_deep_holder()) }
func coreDeepCall() string           { return C.GoString(C.gpufl_deep_call()) }
func coreDeepEnd()                   { C.gpufl_deep_end() }
func coreDeepGiveUp()                { C.gpufl_deep_give_up() }
func coreDeepStuck() bool            { return C.gpufl_deep_stuck() != 0 }
func coreDeepUnresponsive() bool     { return C.gpufl_deep_unresponsive() != 0 }
func corePause() int                 { return int(C.gpufl_pause()) }

// coreDeepBusyReason is what was not quiesced.
func coreDeepBusyReason() quiesceFailure {
	var thread C.int32_t
	what := C.GoString(C.gpufl_deep_busy_reason(&thread))
	return quiesceFailure{what: what, thread: int(thread)}
}

func coreDeepClose(limit time.Duration) int { return int(C.gpufl_deep_close(C.int64_t(limit))) }

func coreDeepCollect() (rc int, more bool) {
	var m C.int
	rc = int(C.gpufl_deep_collect(&m))
	return rc, m != 0
}

func coreResume() (int, Kinds) {
	var lost C.uint32_t
	rc := C.gpufl_resume(&lost)
	return int(rc), Kinds(lost)
}

func coreDeepOpen(cfg *DeepConfig, names []string, rest time.Duration) int {
	flag := func(b bool) C.uint8_t {
		if b {
			return 1
		}
		return 0
	}
	raw := C.gpufl_deep_config{
		engine:         C.uint32_t(cfg.Engine),
		period:         C.uint32_t(cfg.PeriodLog2),
		serialize:      flag(cfg.Serialize),
		with_activity:  flag(cfg.WithActivity),
		hardware_bytes: C.size_t(cfg.HardwareBytes),
		num_names:      C.uint32_t(len(names)),
		max_rows:       C.uint32_t(max(cfg.MaxRows, minQueue)),
		limit_ns:       C.int64_t(rest),
	}
	if len(names) > 0 {
		// The array is C's as well: it holds pointers.
		list := (**C.char)(C.calloc(C.size_t(len(names)), C.size_t(unsafe.Sizeof((*C.char)(nil)))))
		all := unsafe.Slice(list, len(names))
		for i, name := range names {
			all[i] = C.CString(name)
		}
		defer func() {
			for _, p := range all {
				C.free(unsafe.Pointer(p))
			}
			C.free(unsafe.Pointer(list))
		}()
		raw.names = list
	}
	if cfg.LeaseDir != "" {
		raw.lease_dir = C.CString(cfg.LeaseDir)
		defer C.free(unsafe.Pointer(raw.lease_dir))
	}
	return int(C.gpufl_deep_open(&raw))
}

type rawDeepRow = C.gpufl_deep_row

func coreDeepRead(dst []rawDeepRow) int { return int(C.gpufl_deep_read(&dst[0], C.int(len(dst)))) }

func rowOf(raw *rawDeepRow) DeepRow {
	return DeepRow{
		Device: int32(raw.device), CRC: uint64(raw.crc), Function: uint32(raw.function), PC: uint64(raw.pc),
		What: uint32(raw.what), Correlation: uint32(raw.correlation), Value: uint64(raw.value),
	}
}

// text is telemetry's: names may be in any encoding.
func text(p *C.char) (string, bool) {
	if p == nil {
		return "", false
	}
	return strings.ToValidUTF8(C.GoString(p), "\uFFFD"), true
}

func coreDeepFunction(i int) (string, bool) { return text(C.gpufl_deep_function(C.uint32_t(i))) }
func coreDeepName(i int) (string, bool)     { return text(C.gpufl_deep_name(C.uint32_t(i))) }
func coreDeepMissing(i int) bool            { return C.gpufl_deep_missing(C.uint32_t(i)) != 0 }

func coreDeepTotals() DeepTotals {
	var raw C.gpufl_deep_counts
	C.gpufl_deep_get_counts(&raw)
	return DeepTotals{
		Samples: uint64(raw.samples), DroppedSamples: uint64(raw.dropped_samples), NonUserSamples: uint64(raw.non_user_samples),
		HardwareFull: uint64(raw.hardware_full), DroppedRecords: uint64(raw.dropped_records), Patched: uint64(raw.patched), Launched: uint64(raw.launched),
		LostRows: uint64(raw.lost_rows), LostValue: uint64(raw.lost_value), LostNames: uint64(raw.lost_names), Broken: uint64(raw.broken),
		Contexts: uint64(raw.contexts), SkippedContexts: uint64(raw.skipped_contexts), LostContexts: uint64(raw.lost_contexts),
		Deferred: uint64(raw.deferred), NotIdle: uint64(raw.not_idle), BlockedCalls: uint64(raw.blocked_calls), BarrierTimeouts: uint64(raw.barrier_timeouts), NamesKept: uint64(raw.names_kept),
		LongestBlock: time.Duration(raw.longest_block_ns),
	}
}

// cubinID is what the core calls an image.
type cubinID struct {
	Cubin
	id     uint32
	hasCRC bool
}

func coreCubins() []cubinID {
	raw := make([]C.gpufl_cubin, 256)
	n := int(C.gpufl_cubins(&raw[0], C.int(len(raw))))
	for n > len(raw) {
		raw = make([]C.gpufl_cubin, n+64)
		n = int(C.gpufl_cubins(&raw[0], C.int(len(raw))))
	}
	var all []cubinID
	for i := range raw[:max(n, 0)] {
		r := &raw[i]
		all = append(all, cubinID{
			Cubin: Cubin{CRC: uint64(r.crc), Size: int64(r.size), Loaded: r.loaded != 0},
			id:    uint32(r.id), hasCRC: r.has_crc != 0,
		})
	}
	return all
}

func coreCubinCopy(id uint32, size int64) []byte {
	image := make([]byte, size)
	if size == 0 || C.gpufl_cubin_copy(C.uint32_t(id), unsafe.Pointer(&image[0]), C.uint64_t(size)) == 0 {
		return nil
	}
	return image
}

func coreCubinStats() CubinStats {
	var raw C.gpufl_cubin_stats
	C.gpufl_get_cubin_stats(&raw)
	return CubinStats{
		Images: int(raw.images), Bytes: int64(raw.bytes),
		Refused: uint64(raw.refused), RefusedBytes: uint64(raw.refused_bytes), Evicted: uint64(raw.evicted),
	}
}

// coreForgetSASS is for tests: the next window of EngineSASS is as the first of a process.
func coreForgetSASS() { C.gpufl_sass_forget() }
