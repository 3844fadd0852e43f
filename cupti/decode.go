// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"time"
	"unsafe"
)

// farNs is how far from now, or before the begin of recording, a time may lie.
const farNs = int64(24 * time.Hour)

// maxGridYZ and the like are what no CUDA device allows more of (CUDA programming guide, compute
// capabilities); a grid's x is bounded by its type.
const (
	maxGridYZ       = 65535
	maxBlockThreads = 1024
	maxCluster      = 64
)

// walkRecords is how many records are asked for at a time: enough that crossing into C costs
// nothing, and little enough to stay in the first-level cache.
const walkRecords = 2048

// walker finds the records of a buffer. walk fills in the addresses of the next ones, in order, and
// returns how many; 0 at the end, less where the rest of the buffer cannot be walked.
type walker interface {
	walk(records []uintptr) int
}

// decoder reads buffers. It belongs to the goroutine that calls Take, except for addTo.
type decoder struct {
	begin, offset int64
	now           func() time.Time
	names         *nameTable
	// scopes says in which scope a correlation id's call was made. Take sets it before each decode.
	scopes scopeTable
	chunk  []uintptr
	// spare are the decoded parts of batches that were released, at most as many as were out at a
	// time.
	spare spareParts

	records, unknown atomic.Uint64
	rejected         [NumRejects]atomic.Uint64
	overhead         atomic.Int64
}

// newDecoder returns a decoder of the records of a CUPTI whose recording began at a time. All
// versions write what is read here in the same places; see the table in layout.go.
func newDecoder(begin time.Time) *decoder {
	return &decoder{
		begin: begin.UnixNano(),
		now:   time.Now,
		names: newNameTable(memoryText),
		chunk: make([]uintptr, walkRecords),
	}
}

// setOffset sets what is added to every time in the buffers to come, to make it Unix time: 0 where
// CUPTI uses a registered clock.
func (d *decoder) setOffset(ns int64) { d.offset = ns }

// addTo adds what was seen so far. Any goroutine may call it.
func (d *decoder) addTo(s *Stats) {
	s.Records += d.records.Load()
	s.Unknown += d.unknown.Load()
	for i := range d.rejected {
		s.Rejected[i] += d.rejected[i].Load()
	}
	s.Overhead += time.Duration(d.overhead.Load())
}

// pass is the decoding of one buffer.
type pass struct {
	d        *decoder
	data     []byte
	parts    *parts
	from, to int64 // plausible times
	counts   struct {
		records, unknown uint64
		rejected         [NumRejects]uint64
		overhead         int64
	}
}

// decode reads a buffer: data is what CUPTI wrote, w knows where its records are. The Batch keeps
// data, and calls release, if that is not nil, when it is done with it.
func (d *decoder) decode(data []byte, w walker, release func()) *Batch {
	p := pass{d: d, data: data, parts: d.spare.get()}
	p.from, p.to = d.begin-farNs, d.now().UnixNano()+farNs
	d.names.begin()
	p.walk(w)
	d.records.Add(p.counts.records)
	d.unknown.Add(p.counts.unknown)
	d.overhead.Add(p.counts.overhead)
	for i, n := range p.counts.rejected {
		if n > 0 {
			d.rejected[i].Add(n)
		}
	}
	return &Batch{open: &openBatch{d: d, data: data, parts: p.parts, offset: d.offset, release: release}}
}

// walk decodes record by record. How long one may be is known by where the next begins, so each is
// decoded when the next is known.
func (p *pass) walk(w walker) {
	if len(p.data) == 0 {
		return
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(p.data)))
	size := uintptr(len(p.data))
	at, have := uintptr(0), false
	for {
		n := w.walk(p.d.chunk)
		if n < 0 {
			// Nobody knows how many records that are: one at least.
			p.counts.records++
			p.reject(RejectShort)
		}
		if n <= 0 {
			break
		}
		for _, address := range p.d.chunk[:min(n, len(p.d.chunk))] {
			// A wrap-around below base makes it larger than size too.
			offset := address - base
			if offset >= size || have && offset <= at {
				// A walk that leaves the buffer or turns back has lost its way. What it says of the
				// record before is no better, but that record is read within the buffer at worst.
				p.counts.records++
				p.reject(RejectShort)
				if have {
					p.record(at, size)
				}
				return
			}
			if have {
				p.record(at, offset)
			}
			at, have = offset, true
		}
	}
	if have {
		p.record(at, size)
	}
}

func (p *pass) reject(r Reject) { p.counts.rejected[r]++ }

// record decodes the record that lies in data[at:end].
func (p *pass) record(at, end uintptr) {
	p.counts.records++
	r := p.data[at:end]
	if len(r) < headBytes {
		p.reject(RejectShort)
		return
	}
	switch le.Uint32(r) {
	case activityConcurrentKernel, activityKernel:
		p.kernel(r, at)
	case activityMemcpy:
		p.copy(r, at, KindMemcpy, memcpyBytes, copyCorrelation, copyGraphNode)
	case activityMemcpy2:
		p.copy(r, at, KindMemcpyP2P, peerBytes, peerCorrelation, peerGraphNode)
	case activityMemset:
		p.set(r, at)
	case activityMemory2:
		p.memory(r, at)
	case activitySynchronization:
		p.sync(r, at)
	case activityGraphTrace:
		p.graph(r, at)
	case activityRuntime:
		p.api(r, at, KindRuntimeAPI)
	case activityDriver:
		p.api(r, at, KindDriverAPI)
	case activityOverhead:
		p.overhead(r)
	default:
		p.counts.unknown++
	}
}

var le = binary.LittleEndian

// times returns the record's times as Unix time.
func (p *pass) times(rawStart, rawEnd uint64) (start, end int64, ok bool) {
	if rawStart == 0 || rawEnd == 0 {
		p.reject(RejectZeroTime)
		return 0, 0, false
	}
	if rawEnd < rawStart {
		p.reject(RejectReversed)
		return 0, 0, false
	}
	start, end = int64(rawStart)+p.d.offset, int64(rawEnd)+p.d.offset
	if start < p.from || end > p.to || end < start {
		p.reject(RejectFarTime)
		return 0, 0, false
	}
	return start, end, true
}

// add appends the head of a good record.
func (p *pass) add(at uintptr, kind Kind, correlation uint32) *Head {
	h := p.parts.add(at)
	h.Kind, h.Correlation = kind, correlation
	if correlation != 0 {
		h.Scope, h.ScopeInferred = p.d.scopes.of(correlation)
	}
	return h
}

func (p *pass) kernel(r []byte, at uintptr) {
	if len(r) < kernelBytes {
		p.reject(RejectShort)
		return
	}
	k := (*[kernelBytes]byte)(r)
	start, end, ok := p.times(le.Uint64(k[kernelStart:]), le.Uint64(k[kernelEnd:]))
	if !ok {
		return
	}
	if !launchable(k) {
		p.reject(RejectShape)
		return
	}
	name := p.d.names.get(le.Uint64(k[kernelName:]))
	if name == nil {
		p.reject(RejectName)
		return
	}
	h := p.add(at, KindKernel, le.Uint32(k[kernelCorrelation:]))
	h.Device = ordinal(le.Uint32(k[kernelDevice:]))
	h.Start, h.End = start, end
	h.Name = name
	h.GraphNode = le.Uint64(k[kernelGraphNode:]) != 0
}

// launchable reports whether a launch can have the dimensions.
func launchable(k *[kernelBytes]byte) bool {
	grid := [3]int32{i32(k[kernelGridX:]), i32(k[kernelGridY:]), i32(k[kernelGridZ:])}
	block := [3]int32{i32(k[kernelBlockX:]), i32(k[kernelBlockY:]), i32(k[kernelBlockZ:])}
	if grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[1] > maxGridYZ || grid[2] > maxGridYZ {
		return false
	}
	for _, n := range block {
		if n < 1 || n > maxBlockThreads {
			return false
		}
	}
	if int64(block[0])*int64(block[1])*int64(block[2]) > maxBlockThreads {
		return false
	}
	// All three are 0 where there is no cluster, and before Hopper.
	x, y, z := le.Uint32(k[kernelClusterX:]), le.Uint32(k[kernelClusterY:]), le.Uint32(k[kernelClusterZ:])
	return x <= maxCluster && y <= maxCluster && z <= maxCluster
}

// i32 and ordinal read what CUPTI stores in 32 bits.
func i32(b []byte) int32 { return int32(le.Uint32(b)) }

func ordinal(v uint32) int32 {
	if v > math.MaxInt32 {
		return -1
	}
	return int32(v)
}

func (p *pass) copy(r []byte, at uintptr, kind Kind, least, correlation, graphNode int) {
	if len(r) < least {
		p.reject(RejectShort)
		return
	}
	start, end, ok := p.times(le.Uint64(r[copyStart:]), le.Uint64(r[copyEnd:]))
	if !ok {
		return
	}
	size, ok := p.size(le.Uint64(r[copyBytes:]))
	if !ok {
		return
	}
	h := p.add(at, kind, le.Uint32(r[correlation:]))
	h.Device = ordinal(le.Uint32(r[copyDevice:]))
	h.Start, h.End = start, end
	h.Bytes = size
	h.CopyKind = copyKindName(r[copyKind])
	h.GraphNode = le.Uint64(r[graphNode:]) != 0
}

// size returns a number of bytes that can be one.
func (p *pass) size(v uint64) (int64, bool) {
	if v > math.MaxInt64 {
		p.reject(RejectShape)
		return 0, false
	}
	return int64(v), true
}

func (p *pass) set(r []byte, at uintptr) {
	if len(r) < memsetBytes {
		p.reject(RejectShort)
		return
	}
	start, end, ok := p.times(le.Uint64(r[setStart:]), le.Uint64(r[setEnd:]))
	if !ok {
		return
	}
	size, ok := p.size(le.Uint64(r[setBytes:]))
	if !ok {
		return
	}
	h := p.add(at, KindMemset, le.Uint32(r[setCorrelation:]))
	h.Device = ordinal(le.Uint32(r[setDevice:]))
	h.Start, h.End = start, end
	h.Bytes = size
	h.GraphNode = le.Uint64(r[setGraphNode:]) != 0
}

func (p *pass) memory(r []byte, at uintptr) {
	if len(r) < memoryBytes {
		p.reject(RejectShort)
		return
	}
	when := le.Uint64(r[memoryTime:])
	start, _, ok := p.times(when, when)
	if !ok {
		return
	}
	if op := le.Uint32(r[memoryOperation:]); op != memoryAllocated && op != memoryReleased {
		p.reject(RejectShape)
		return
	}
	size, ok := p.size(le.Uint64(r[memorySize:]))
	if !ok {
		return
	}
	h := p.add(at, KindMemory, le.Uint32(r[memoryCorrelation:]))
	h.Device = ordinal(le.Uint32(r[memoryDevice:]))
	h.Start, h.End = start, start
	h.Bytes = size
}

func (p *pass) sync(r []byte, at uintptr) {
	if len(r) < syncBytes {
		p.reject(RejectShort)
		return
	}
	start, end, ok := p.times(le.Uint64(r[syncStart:]), le.Uint64(r[syncEnd:]))
	if !ok {
		return
	}
	h := p.add(at, KindSync, le.Uint32(r[syncCorrelation:]))
	h.Device = -1
	h.Start, h.End = start, end
}

func (p *pass) graph(r []byte, at uintptr) {
	if len(r) < graphBytes {
		p.reject(RejectShort)
		return
	}
	start, end, ok := p.times(le.Uint64(r[graphStart:]), le.Uint64(r[graphEnd:]))
	if !ok {
		return
	}
	h := p.add(at, KindGraph, le.Uint32(r[graphCorrelation:]))
	h.Device = ordinal(le.Uint32(r[graphDevice:]))
	h.Start, h.End = start, end
}

func (p *pass) api(r []byte, at uintptr, kind Kind) {
	if len(r) < apiBytes {
		p.reject(RejectShort)
		return
	}
	start, end, ok := p.times(le.Uint64(r[apiStart:]), le.Uint64(r[apiEnd:]))
	if !ok {
		return
	}
	h := p.add(at, kind, le.Uint32(r[apiCorrelation:]))
	h.Device = -1
	h.Start, h.End = start, end
	h.Host = true
}

// overhead sums and makes no Head.
func (p *pass) overhead(r []byte) {
	if len(r) < overheadBytes {
		p.reject(RejectShort)
		return
	}
	start, end, ok := p.times(le.Uint64(r[overheadStart:]), le.Uint64(r[overheadEnd:]))
	if !ok {
		return
	}
	switch le.Uint32(r[overheadKind:]) {
	case overheadFlush, overheadInstrumentation, overheadResource, overheadRequest, overheadUVM:
		p.counts.overhead += end - start
	}
}
