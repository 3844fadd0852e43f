// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/keys"
	"github.com/gpuflight/gpuflight/semconv"
)

// slot is where an attribute of an operation goes. Each known key has its own slot below 64.
type slot uint8

const (
	slotOther slot = iota // no column: Extra
	slotOperation
	// Columns of Shape.
	slotFullName
	slotSymbol
	slotGrid
	slotBlock
	slotCluster
	slotRegisters
	slotSharedStatic
	slotSharedDynamic
	slotSharedExecuted
	slotLocal
	// Columns of Lane.
	slotDevice
	slotDeviceIndex
	slotContext
	slotStream
	// Columns of Place and Stack.
	slotScopeName
	slotScopePath
	slotInferred
	slotStack
	// Columns of Op.
	slotLaunchStart
	slotLaunchEnd
	slotQueue
	slotCorrelation
	slotCopySize
	slotSetSize
	slotMemorySize
	slotAddress
	slotTiming
	// Attributes that do not change between launches: Attrs of Shape.
	slotStatic
)

var slotOf = map[string]slot{
	semconv.CUDAOperation:                  slotOperation,
	semconv.CUDAKernelName:                 slotFullName,
	semconv.CUDAKernelSymbol:               slotSymbol,
	semconv.CUDAKernelGrid:                 slotGrid,
	semconv.CUDAKernelBlock:                slotBlock,
	semconv.CUDAKernelCluster:              slotCluster,
	semconv.CUDAKernelRegistersPerThread:   slotRegisters,
	semconv.CUDAKernelSharedMemoryStatic:   slotSharedStatic,
	semconv.CUDAKernelSharedMemoryDynamic:  slotSharedDynamic,
	semconv.CUDAKernelSharedMemoryExecuted: slotSharedExecuted,
	semconv.CUDAKernelLocalMemoryPerThread: slotLocal,
	semconv.HWID:                           slotDevice,
	semconv.CUDADeviceIndex:                slotDeviceIndex,
	semconv.CUDAContextID:                  slotContext,
	semconv.CUDAStreamID:                   slotStream,
	semconv.CUDAScopeName:                  slotScopeName,
	semconv.CUDAScopePath:                  slotScopePath,
	semconv.CUDAScopeInferred:              slotInferred,
	semconv.CodeStacktrace:                 slotStack,
	semconv.CUDALaunchStartTimeUnixNano:    slotLaunchStart,
	semconv.CUDALaunchEndTimeUnixNano:      slotLaunchEnd,
	semconv.CUDAQueueDuration:              slotQueue,
	semconv.CUDACorrelationID:              slotCorrelation,
	semconv.CUDAMemcpySize:                 slotCopySize,
	semconv.CUDAMemsetSize:                 slotSetSize,
	semconv.CUDAMemorySize:                 slotMemorySize,
	semconv.CUDAMemoryAddress:              slotAddress,
	semconv.CUDATiming:                     slotTiming,
}

func init() {
	for i, key := range []string{
		semconv.HWName, semconv.HWVendor, semconv.HWType,
		semconv.CUDADeviceComputeCapability, semconv.CUDADeviceSMCount,
		semconv.CUDAOccupancyReported, semconv.CUDAOccupancyReportedLimiter,
		semconv.CUDAOccupancyTheoretical, semconv.CUDAOccupancyLimiter,
		semconv.CUDAOccupancyActiveBlocksPerSM, semconv.CUDAOccupancyActiveWarpsPerSM,
		semconv.CUDAOccupancyWaves, semconv.CUDAOccupancyGridFill,
		semconv.CUDAMemcpyKind, semconv.CUDAMemcpySourceKind, semconv.CUDAMemcpyDestinationKind,
		semconv.CUDAMemcpyAsync, semconv.CUDAMemoryKind,
		semconv.CUDAGraphID, semconv.CUDAGraphNodeID, semconv.CUDAGraphExecKey,
	} {
		slotOf[key] = slotStatic + slot(i)
	}
}

var operations = map[string]store.Operation{
	semconv.CUDAOperationKernel:      store.OpKernel,
	semconv.CUDAOperationMemcpy:      store.OpCopy,
	semconv.CUDAOperationMemset:      store.OpSet,
	semconv.CUDAOperationSynchronize: store.OpSync,
	semconv.CUDAOperationGraph:       store.OpGraph,
	semconv.CUDAOperationMalloc:      store.OpAlloc,
	semconv.CUDAOperationFree:        store.OpFree,
}

// sizeSlot is the attribute that Op.Bytes has.
func sizeSlot(o store.Operation) slot {
	switch o {
	case store.OpCopy:
		return slotCopySize
	case store.OpSet:
		return slotSetSize
	case store.OpAlloc, store.OpFree:
		return slotMemorySize
	default:
		return slotOther
	}
}

func laneClass(o store.Operation) store.LaneClass {
	switch o {
	case store.OpCopy:
		return store.LaneCopy
	case store.OpSync, store.OpAlloc, store.OpFree:
		return store.LaneHost
	default:
		return store.LaneCompute
	}
}

// predicted is the key that the last operation had at a position. Operations of one kind have the
// same keys in the same order, so that comparing is faster than looking up.
type predicted struct {
	key  string
	slot slot
}

func (d *Decoder) slot(at int, key string) slot {
	if at < len(d.slots) {
		if p := &d.slots[at]; p.key == key {
			return p.slot
		}
	}
	s := slotOf[key]
	switch {
	case at < len(d.slots):
		d.slots[at] = predicted{key, s}
	case at == len(d.slots) && at < 64:
		d.slots = append(d.slots, predicted{key, s})
	}
	return s
}

// Traces converts spans. The batches belong to the project.
func (d *Decoder) Traces(project string, td ptrace.Traces) []*store.Batch {
	d.begin()
	for _, rs := range td.ResourceSpans().All() {
		var b *builder
		var r resource
		for _, ss := range rs.ScopeSpans().All() {
			spans := ss.Spans()
			if spans.Len() == 0 {
				continue
			}
			if b == nil {
				b = d.builder(project, sessionOf(rs.Resource()))
				r = d.resource(rs.Resource(), rs.SchemaUrl())
			}
			origin := d.origin(b, &r, ss.Scope(), ss.SchemaUrl())
			for i := range spans.Len() {
				span := spans.At(i)
				if kind, ok := operation(span); ok {
					b.batch.Ops = append(growTo(b.batch.Ops, spans.Len()-i), store.Op{Origin: origin})
					d.op(b, span, kind, &b.batch.Ops[len(b.batch.Ops)-1])
				} else {
					b.batch.Spans = append(b.batch.Spans, d.span(span, origin))
				}
			}
		}
	}
	return d.end()
}

// growTo reserves room for n rows if the slice is full.
func growTo[T any](s []T, n int) []T {
	if len(s) == cap(s) {
		return slices.Grow(s, n)
	}
	return s
}

// operation returns which operation the span is. A span with something that an Op cannot hold is
// none.
func operation(s ptrace.Span) (store.Operation, bool) {
	v, ok := s.Attributes().Get(semconv.CUDAOperation)
	if !ok || v.Type() != pcommon.ValueTypeStr {
		return 0, false
	}
	kind, ok := operations[v.Str()]
	return kind, ok &&
		s.Kind() == ptrace.SpanKindInternal && s.Flags() == 0 &&
		s.Events().Len() == 0 && s.Links().Len() == 0 &&
		s.Status().Code() == ptrace.StatusCodeUnset && s.Status().Message() == "" &&
		s.TraceState().AsRaw() == "" &&
		s.DroppedAttributesCount() == 0 && s.DroppedEventsCount() == 0 && s.DroppedLinksCount() == 0
}

func spanID(id pcommon.SpanID) store.SpanID { return store.SpanID(binary.BigEndian.Uint64(id[:])) }

// op fills an operation.
func (d *Decoder) op(b *builder, s ptrace.Span, kind store.Operation, op *store.Op) {
	op.StartNs, op.EndNs, op.Span = int64(s.StartTimestamp()), int64(s.EndTimestamp()), spanID(s.SpanID())
	lane := store.Lane{Class: laneClass(kind)}
	place := store.Place{Trace: store.TraceID(s.TraceID()), Parent: spanID(s.ParentSpanID())}
	stack := ""
	size := sizeSlot(kind)
	d.extra = d.extra[:0]
	d.shape = keys.AppendString(append(d.shape[:0], byte(kind)), s.Name())

	var seen, extra uint64 // slots
	i := -1
	for key, v := range s.Attributes().All() {
		i++
		at := d.slot(i, key)
		if at != slotOther {
			if seen&(1<<at) != 0 {
				continue
			}
			seen |= 1 << at
		}
		var ok bool
		switch at {
		case slotOperation:
			ok = true
		case slotFullName, slotSymbol:
			if ok = nonEmpty(v); ok {
				d.shape = keys.AppendString(append(d.shape, byte(at)), v.Str())
			}
		case slotRegisters, slotSharedStatic, slotSharedDynamic, slotSharedExecuted, slotLocal:
			if ok = v.Type() == pcommon.ValueTypeInt; ok {
				d.shape = keys.AppendUint64(append(d.shape, byte(at)), uint64(v.Int()))
			}
		case slotGrid, slotBlock, slotCluster:
			d.shape, ok = appendInts(d.shape, at, v)
		case slotDevice:
			ok = str(v, &lane.Device)
		case slotDeviceIndex:
			ok = integer(v, &lane.DeviceIndex)
		case slotContext:
			ok = integer(v, &lane.Context)
		case slotStream:
			ok = integer(v, &lane.Stream)
		case slotScopeName:
			ok = str(v, &place.ScopeName)
		case slotScopePath:
			ok = str(v, &place.ScopePath)
		case slotInferred:
			place.Inferred = v.Bool() // false if it is no boolean
			ok = place.Inferred
		case slotStack:
			ok = str(v, &stack)
		case slotLaunchStart:
			ok = integer(v, &op.LaunchStartNs)
		case slotLaunchEnd:
			ok = integer(v, &op.LaunchEndNs)
		case slotQueue:
			op.QueueNs, ok = queueNs(v)
		case slotCorrelation:
			ok = integer(v, &op.Correlation)
		case slotCopySize, slotSetSize, slotMemorySize:
			ok = at == size && integer(v, &op.Bytes)
		case slotAddress:
			ok = integer(v, &op.Address)
		case slotTiming:
			op.Estimated = v.Type() == pcommon.ValueTypeStr && v.Str() == semconv.CUDATimingEstimated
			ok = op.Estimated
		default:
			if ok = at >= slotStatic; ok {
				d.shape = appendRaw(append(d.shape, byte(at)), v, store.MaxDepth)
			}
		}
		if !ok {
			d.extra = appendRaw(keys.AppendString(d.extra, key), v, store.MaxDepth)
			extra |= 1 << at
		}
	}

	op.Shape = d.shapeOf(b, s, kind, seen&^extra)
	op.Extra = d.extraOf(b, d.extra, func() store.Attrs {
		return d.selected(s.Attributes(), func(at slot) bool { return at == slotOther || extra&(1<<at) != 0 })
	})
	var fresh bool
	if op.Lane, fresh = b.lanes.find(lane, len(b.batch.Lanes)); fresh {
		lane.Key, d.scratch = keys.Lane(d.scratch, &lane)
		b.batch.Lanes = append(b.batch.Lanes, lane)
	}
	if op.Place, fresh = b.places.find(place, len(b.batch.Places)); fresh {
		place.Key, d.scratch = keys.Place(d.scratch, &place)
		b.batch.Places = append(b.batch.Places, place)
	}
	if op.Stack, fresh = b.stacks.find(stack, len(b.batch.Stacks)); fresh {
		b.batch.Stacks = append(b.batch.Stacks, store.Stack{Key: keys.Stack(stack), Text: stack})
	}
}

// selected converts attributes whose slot is wanted. The first of equal keys remains.
func (d *Decoder) selected(m pcommon.Map, wanted func(slot) bool) store.Attrs {
	var a store.Attrs
	for k, v := range m.All() {
		if wanted(slotOf[k]) {
			a = append(a, store.Attr{Key: k, Value: d.value(v, store.MaxDepth)})
		}
	}
	return sorted(a)
}

func nonEmpty(v pcommon.Value) bool { return v.Type() == pcommon.ValueTypeStr && v.Str() != "" }

func str(v pcommon.Value, into *string) bool {
	if v.Type() != pcommon.ValueTypeStr {
		return false
	}
	*into = v.Str()
	return *into != ""
}

func integer(v pcommon.Value, into *store.Int) bool {
	if v.Type() != pcommon.ValueTypeInt {
		return false
	}
	*into = store.Some(v.Int())
	return true
}

// queueNs converts seconds to nanoseconds, if converting back gives the identical number.
func queueNs(v pcommon.Value) (store.Int, bool) {
	if v.Type() != pcommon.ValueTypeDouble {
		return store.Int{}, false
	}
	seconds := v.Double()
	ns := math.Round(seconds * 1e9)
	if !(math.Abs(ns) < 1<<62) || math.Float64bits(queueSeconds(int64(ns))) != math.Float64bits(seconds) {
		return store.Int{}, false
	}
	return store.Some(int64(ns)), true
}

func queueSeconds(ns int64) float64 { return float64(ns) / 1e9 }

// appendInts appends a list of integers. It refuses other values and an empty list.
func appendInts(dst []byte, at slot, v pcommon.Value) ([]byte, bool) {
	if v.Type() != pcommon.ValueTypeSlice || v.Slice().Len() == 0 {
		return dst, false
	}
	list := v.Slice()
	out := keys.AppendUint64(append(dst, byte(at)), uint64(list.Len()))
	for i := range list.Len() {
		x := list.At(i)
		if x.Type() != pcommon.ValueTypeInt {
			return dst, false
		}
		out = keys.AppendUint64(out, uint64(x.Int()))
	}
	return out, true
}

// shapeOf returns the index of the operation's shape, whose attributes are in the given slots.
func (d *Decoder) shapeOf(b *builder, s ptrace.Span, kind store.Operation, in uint64) uint32 {
	at, h, ok := b.shapes.find(d.shape)
	if ok {
		return at
	}
	shape := store.Shape{Operation: kind, Name: s.Name()}
	var seen uint64
	for key, v := range s.Attributes().All() {
		at := slotOf[key]
		if in&(1<<at) == 0 || seen&(1<<at) != 0 {
			continue
		}
		seen |= 1 << at
		switch at {
		case slotFullName:
			shape.FullName = v.Str()
		case slotSymbol:
			shape.Symbol = v.Str()
		case slotGrid:
			shape.Grid = ints(v.Slice())
		case slotBlock:
			shape.Block = ints(v.Slice())
		case slotCluster:
			shape.Cluster = ints(v.Slice())
		case slotRegisters:
			shape.Registers = store.Some(v.Int())
		case slotSharedStatic:
			shape.SharedStatic = store.Some(v.Int())
		case slotSharedDynamic:
			shape.SharedDynamic = store.Some(v.Int())
		case slotSharedExecuted:
			shape.SharedExecuted = store.Some(v.Int())
		case slotLocal:
			shape.LocalMemory = store.Some(v.Int())
		default:
			if at >= slotStatic {
				shape.Attrs = append(shape.Attrs, store.Attr{Key: key, Value: d.value(v, store.MaxDepth)})
			}
		}
	}
	shape.Attrs = sorted(shape.Attrs)
	shape.Key, d.scratch = keys.Shape(d.scratch, &shape)
	at, fresh := b.shapes.add(h, shape.Key, len(b.batch.Shapes))
	if fresh {
		b.batch.Shapes = append(b.batch.Shapes, shape)
	}
	return at
}

func ints(s pcommon.Slice) []int64 {
	out := make([]int64, s.Len())
	for i := range out {
		out[i] = s.At(i).Int()
	}
	return out
}

func (d *Decoder) span(s ptrace.Span, origin uint32) store.Span {
	row := store.Span{
		StartNs: int64(s.StartTimestamp()), EndNs: int64(s.EndTimestamp()),
		Trace: store.TraceID(s.TraceID()), Span: spanID(s.SpanID()), Parent: spanID(s.ParentSpanID()),
		Kind: uint8(s.Kind()), Status: uint8(s.Status().Code()), StatusMessage: s.Status().Message(),
		Name: s.Name(), TraceState: s.TraceState().AsRaw(), Flags: s.Flags(),
		Origin: origin, Attrs: d.attrs(s.Attributes()),
		Events: EncodeEvents(s.Events()), Links: EncodeLinks(s.Links()),
		DroppedAttrs: s.DroppedAttributesCount(), DroppedEvents: s.DroppedEventsCount(), DroppedLinks: s.DroppedLinksCount(),
	}
	row.Attrs, row.Operation = takeString(row.Attrs, semconv.CUDAOperation)
	return row
}

// takeString removes an attribute that is a string and not empty, and returns it.
func takeString(a store.Attrs, key string) (store.Attrs, string) {
	i, ok := slices.BinarySearchFunc(a, key, compareKey)
	if !ok || a[i].Value.Kind != store.KindString || a[i].Value.Str == "" {
		return a, ""
	}
	s := a[i].Value.Str
	return slices.Delete(a, i, i+1), s
}

func compareKey(a store.Attr, key string) int { return strings.Compare(a.Key, key) }
