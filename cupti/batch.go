// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"math"
	"sync"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// Batch is one decoded buffer of records, in the order in which CUPTI delivered them, which is not
// that of their times.
//
// A Batch belongs to one goroutine at a time. All its methods panic after Release.
type Batch struct {
	// open is nil after Release.
	open       *openBatch
	attachment uint32
}

type openBatch struct {
	d       *decoder
	data    []byte
	parts   *parts
	offset  int64
	release func()
}

// parts are the heads of a buffer's good records, and where the records begin in it.
type parts struct {
	heads []Head
	at    []uint32
}

// add appends a zero head.
func (p *parts) add(at uintptr) *Head {
	p.at = append(p.at, uint32(at))
	p.heads = append(p.heads, Head{})
	return &p.heads[len(p.heads)-1]
}

// maxSpare bounds the memory that waits for the next buffer: some 3 MB for each of 8 MiB.
const maxSpare = 4

// spareParts are parts that may be used again. Batches may be released by any goroutine.
type spareParts struct {
	mu   sync.Mutex
	list []*parts
}

func (s *spareParts) get() *parts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.list); n > 0 {
		p := s.list[n-1]
		s.list = s.list[:n-1]
		return p
	}
	return &parts{}
}

func (s *spareParts) put(p *parts) {
	p.heads, p.at = p.heads[:0], p.at[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) < maxSpare {
		s.list = append(s.list, p)
	}
}

// Len is the number of good records. Overhead records and those of unknown kinds are counted in
// Stats only.
func (b *Batch) Len() int { return len(b.open.parts.heads) }

// Attachment is how often CUPTI had been finalized, by Detach or Stop, when the records were made.
// Correlation ids begin again each time: ids of batches with different attachments are unrelated.
func (b *Batch) Attachment() uint32 { return b.attachment }

// Head returns what is known of the i-th record. It is valid until Release.
func (b *Batch) Head(i int) *Head { return &b.open.parts.heads[i] }

// Release gives the buffer back to be filled again. Any goroutine may call it, once.
func (b *Batch) Release() {
	o := b.open
	b.open = nil
	o.d.spare.put(o.parts)
	if o.release != nil {
		o.release()
	}
}

// record returns the head and the bytes of the i-th record, which must be of one of two kinds.
func (b *Batch) record(i int, kind, or Kind) (*Head, []byte) {
	o := b.open
	h := &o.parts.heads[i]
	if h.Kind != kind && h.Kind != or {
		panic("cupti: record is of another kind")
	}
	return h, o.data[o.parts.at[i]:]
}

// Kernel fills in the i-th record, a KindKernel, but for Ref and ScopeName. Panics on another kind,
// as do the methods like it.
func (b *Batch) Kernel(i int, k *gpuevent.Kernel) {
	h, r := b.record(i, KindKernel, KindKernel)
	ref, scope := k.Ref, k.ScopeName
	*k = gpuevent.Kernel{Name: h.Name}
	k.Ref, k.ScopeName = ref, scope
	v := (*[kernelBytes]byte)(r)
	h.span(&k.Span, le.Uint32(v[kernelStream:]), le.Uint32(v[kernelContext:]))
	k.Grid = [3]int64{int64(i32(v[kernelGridX:])), int64(i32(v[kernelGridY:])), int64(i32(v[kernelGridZ:]))}
	k.Block = [3]int64{int64(i32(v[kernelBlockX:])), int64(i32(v[kernelBlockY:])), int64(i32(v[kernelBlockZ:]))}
	if x, y, z := le.Uint32(v[kernelClusterX:]), le.Uint32(v[kernelClusterY:]), le.Uint32(v[kernelClusterZ:]); x > 0 && y > 0 && z > 0 {
		k.Cluster = [3]int64{int64(x), int64(y), int64(z)}
	}
	k.RegistersPerThread = gpuevent.Some(int64(le.Uint16(v[kernelRegisters:])))
	k.SharedStatic = notNegative(i32(v[kernelSharedStatic:]))
	k.SharedDynamic = notNegative(i32(v[kernelSharedDynamic:]))
	k.SharedExecuted = gpuevent.Some(int64(le.Uint32(v[kernelSharedUsed:])))
	k.LocalPerThread = gpuevent.Some(int64(le.Uint32(v[kernelLocal:])))
	if node := le.Uint64(v[kernelGraphNode:]); node != 0 {
		k.GraphNode = id64(node)
	}
	k.GraphID = id32(le.Uint32(v[kernelGraph:]))
}

// span fills in what all device spans share.
func (h *Head) span(s *gpuevent.Span, stream, context uint32) {
	s.StartNs, s.EndNs = h.Start, h.End
	if h.Device >= 0 {
		s.Device = gpuevent.Some(int64(h.Device))
	}
	s.Stream, s.Context = id32(stream), id32(context)
	if h.Correlation != 0 {
		s.Correlation = gpuevent.Some(int64(h.Correlation))
	}
}

// id32 is a number that CUPTI gives out from 1: 0 and all ones mean that there is none.
func id32(v uint32) gpuevent.Int {
	if v == 0 || v == noID {
		return gpuevent.Int{}
	}
	return gpuevent.Some(int64(v))
}

// id64 is a number that fits telemetry's integers.
func id64(v uint64) gpuevent.Int {
	if v > math.MaxInt64 {
		return gpuevent.Int{}
	}
	return gpuevent.Some(int64(v))
}

func notNegative(v int32) gpuevent.Int {
	if v < 0 {
		return gpuevent.Int{}
	}
	return gpuevent.Some(int64(v))
}

// Copy fills in the i-th record, a KindMemcpy or KindMemcpyP2P, but for Ref and ScopeName.
func (b *Batch) Copy(i int, c *gpuevent.Copy) {
	h, r := b.record(i, KindMemcpy, KindMemcpyP2P)
	ref, scope := c.Ref, c.ScopeName
	*c = gpuevent.Copy{
		Kind: h.CopyKind, Bytes: gpuevent.Some(h.Bytes),
		SourceKind: memoryKindName(uint32(r[copySource])), DestinationKind: memoryKindName(uint32(r[copyDestination])),
		Async: gpuevent.Some(int64(r[copyFlags] & flagAsync)),
	}
	c.Ref, c.ScopeName = ref, scope
	h.span(&c.Span, le.Uint32(r[copyStream:]), le.Uint32(r[copyContext:]))
}

// Set fills in the i-th record, a KindMemset, but for Ref and ScopeName.
func (b *Batch) Set(i int, s *gpuevent.Set) {
	h, r := b.record(i, KindMemset, KindMemset)
	ref, scope := s.Ref, s.ScopeName
	*s = gpuevent.Set{Bytes: gpuevent.Some(h.Bytes)}
	s.Ref, s.ScopeName = ref, scope
	h.span(&s.Span, le.Uint32(r[setStream:]), le.Uint32(r[setContext:]))
}

// Sync fills in the i-th record, a KindSync, but for Ref and ScopeName.
func (b *Batch) Sync(i int, s *gpuevent.Sync) {
	h, r := b.record(i, KindSync, KindSync)
	ref, scope := s.Ref, s.ScopeName
	*s = gpuevent.Sync{}
	s.Ref, s.ScopeName = ref, scope
	h.span(&s.Span, le.Uint32(r[syncStream:]), le.Uint32(r[syncContext:]))
	if kind := le.Uint32(r[syncType:]); kind <= uint32(gpuevent.SyncContext) {
		s.Kind = gpuevent.SyncKind(kind)
	}
	if s.Kind == gpuevent.SyncEvent || s.Kind == gpuevent.SyncStreamWaitEvent {
		s.Event = id32(le.Uint32(r[syncEvent:]))
	}
}

// Memory fills in the i-th record, a KindMemory, but for Ref and ScopeName.
func (b *Batch) Memory(i int, m *gpuevent.Memory) {
	h, r := b.record(i, KindMemory, KindMemory)
	ref, scope := m.Ref, m.ScopeName
	*m = gpuevent.Memory{
		Free:  le.Uint32(r[memoryOperation:]) == memoryReleased,
		Kind:  memoryKindName(le.Uint32(r[memoryKind:])),
		Bytes: gpuevent.Some(h.Bytes),
	}
	m.Ref, m.ScopeName = ref, scope
	if address := le.Uint64(r[memoryAddress:]); address != 0 {
		m.Address = id64(address)
	}
	h.span(&m.Span, le.Uint32(r[memoryStream:]), le.Uint32(r[memoryContext:]))
}

// Graph fills in the i-th record, a KindGraph, but for Ref and ScopeName.
func (b *Batch) Graph(i int, g *gpuevent.Graph) {
	h, r := b.record(i, KindGraph, KindGraph)
	ref, scope := g.Ref, g.ScopeName
	*g = gpuevent.Graph{GraphID: id32(le.Uint32(r[graphID:]))}
	g.Ref, g.ScopeName = ref, scope
	h.span(&g.Span, le.Uint32(r[graphStream:]), le.Uint32(r[graphContext:]))
}

// API returns the name of the i-th record's host call, a KindRuntimeAPI or KindDriverAPI.
func (b *Batch) API(i int) string {
	h, r := b.record(i, KindRuntimeAPI, KindDriverAPI)
	return apiName(h.Kind, le.Uint32(r[apiFunction:]))
}

func copyKindName(v uint8) string { return gpuevent.CopyKind(int64(v)) }

func memoryKindName(v uint32) string { return gpuevent.MemoryKind(int64(v)) }
