// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
)

// operation is the kind of a span of device work.
type operation uint8

const (
	opKernel operation = iota
	opMemcpy
	opMemset
	opGraph
	opSynchronize
	numOperations

	// numTimed is how many of them, the first ones, are device seconds.
	numTimed = opSynchronize
)

// maxSpan is the longest duration that is believed. No kernel runs for a week; a wrong clock makes
// spans of decades, which would drown every sum.
const maxSpan = int64(7 * 24 * time.Hour)

// batch is what one call of ConsumeTraces is about, parsed: all that the state needs, and nothing
// else. Strings are numbered; number 0 is the empty one.
type batch struct {
	arrived  int64
	strings  []string
	services []batchService
	devices  []batchDevice
	kernels  []batchKernel
	parents  []otherSpan
	spans    []workSpan
}

// batchService is a service: the resource attributes that are kept, encoded by resourceKeys.encode.
type batchService struct {
	key uint32
}

// batchDevice is a device.
type batchDevice struct {
	id, name uint32 // hw.id and hw.name
	host     uint32 // the kept attributes that describe the host, encoded
	labels   uint32 // values of the attributes that prices ask for, encoded
	// anonymous tells devices without an id apart: a hash of process and CUDA ordinal. 0 where there
	// is an id.
	anonymous uint64
}

// batchKernel is a kernel of a service.
type batchKernel struct {
	service, name uint32
}

// otherSpan is a span that is no device work: perhaps a scope of some, perhaps a request.
type otherSpan struct {
	key   uint64 // of the span, as in workSpan.parent
	trace uint64 // hash of the trace id, 0 for none
	start int64
	name  uint32 // 0 for the span of a session, which is no scope
	rank  requestRank
}

// workSpan is a span of device work. Times are Unix nanoseconds.
type workSpan struct {
	start, end int64
	queue      int64  // In ns, -1 if unknown.
	bytes      int64  // Of a copy, -1 if unknown.
	key        uint64 // Hash of trace and span id, 0 without a span id.
	parent     uint64 // Hash of trace and parent span id, 0 without a parent.
	traceKey   uint64 // Hash of the trace id, 0 without one.
	trace      pcommon.TraceID
	id         pcommon.SpanID
	service    uint32
	device     uint32
	what       uint32 // Kernel: number in batch.kernels. memcpy: string of the kind.
	scope      uint32 // String of cuda.scope.name, 0 if the span has none.
	stream     uint32 // hash of process, context and stream, 0 where unknown
	process    uint16 // hash
	op         operation
	node       bool // a kernel as a node of a graph
}

func (b *batch) reset() {
	clear(b.strings)
	b.strings = append(b.strings[:0], "")
	b.services = b.services[:0]
	b.devices = b.devices[:0]
	b.kernels = b.kernels[:0]
	b.parents = b.parents[:0]
	b.spans = b.spans[:0]
	b.arrived = 0
}
