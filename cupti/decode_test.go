// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// epoch is when the tests' recordings begin.
var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// addKernel is a mangled name, "add(int*)".
const addKernel = "_Z3addPi"

// Addresses of names in the tests: bookText knows them.
const (
	addName uint64 = 0x10000 + 8*iota
	otherName
	emptyName
	binaryName
	unmappedName
)

// bookText is a textReader over a table instead of memory.
type bookText map[uint64]string

func (b bookText) read(pointer uint64, cached []byte) ([]byte, bool) {
	s, ok := b[pointer]
	if !ok {
		return nil, false
	}
	if cached != nil && s == string(cached) {
		return cached, true
	}
	return []byte(s), true
}

var testNames = bookText{addName: addKernel, otherName: "vector_add", emptyName: "", binaryName: "a\x01b"}

// newTestDecoder returns a decoder for a recording that began at epoch, an hour ago.
func newTestDecoder() *decoder {
	d := newDecoder(epoch)
	d.now = func() time.Time { return epoch.Add(time.Hour) }
	d.names = newNameTable(testNames.read)
	return d
}

// indexWalker walks a buffer by the places where its records begin.
type indexWalker struct {
	base   uintptr
	begins []uint32
	// most is how many it gives at a time, 0 for all that fit; broken that it ends with an error.
	most   int
	broken bool
}

func newIndexWalker(data []byte, begins []uint32) *indexWalker {
	return &indexWalker{base: uintptr(unsafe.Pointer(unsafe.SliceData(data))), begins: begins}
}

func (w *indexWalker) walk(records []uintptr) int {
	n := min(len(records), len(w.begins))
	if w.most > 0 {
		n = min(n, w.most)
	}
	if n == 0 && w.broken {
		return -1
	}
	for i, b := range w.begins[:n] {
		records[i] = w.base + uintptr(b)
	}
	w.begins = w.begins[n:]
	return n
}

// buffer is one that is being written.
type buffer struct {
	data   []byte
	begins []uint32
}

func (b *buffer) add(records ...[]byte) *buffer {
	for _, r := range records {
		b.begins = append(b.begins, uint32(len(b.data)))
		b.data = append(b.data, r...)
	}
	return b
}

func (b *buffer) decode(d *decoder) *Batch {
	return d.decode(b.data, newIndexWalker(b.data, b.begins), nil)
}

// field is a value at a place in a record: uint8, uint16, uint32 or uint64.
type field struct {
	at    int
	value any
}

// record returns a record of n bytes that has 0xA5 wherever no field is set, so that what is not
// written cannot pass for what is.
func record(n int, kind uint32, fields ...field) []byte {
	r := make([]byte, n)
	for i := range r {
		r[i] = 0xA5
	}
	binary.LittleEndian.PutUint32(r, kind)
	for _, f := range fields {
		switch v := f.value.(type) {
		case uint8:
			r[f.at] = v
		case uint16:
			binary.LittleEndian.PutUint16(r[f.at:], v)
		case uint32:
			binary.LittleEndian.PutUint32(r[f.at:], v)
		case uint64:
			binary.LittleEndian.PutUint64(r[f.at:], v)
		default:
			panic("no such width")
		}
	}
	return r
}

// at is a time in the tests' recordings.
func at(ns int64) uint64 { return uint64(epoch.UnixNano() + ns) }

// kernelRecord returns a good kernel of n bytes, changed by fields.
func kernelRecord(n int, fields ...field) []byte {
	return record(n, activityConcurrentKernel, append([]field{
		{kernelRegisters, uint16(32)},
		{kernelStart, at(1000)}, {kernelEnd, at(3500)},
		{kernelDevice, uint32(1)}, {kernelContext, uint32(2)}, {kernelStream, uint32(7)},
		{kernelGridX, uint32(2147483647)}, {kernelGridY, uint32(2)}, {kernelGridZ, uint32(3)},
		{kernelBlockX, uint32(256)}, {kernelBlockY, uint32(2)}, {kernelBlockZ, uint32(1)},
		{kernelSharedStatic, uint32(1024)}, {kernelSharedDynamic, uint32(2048)}, {kernelSharedUsed, uint32(8192)},
		{kernelLocal, uint32(16)}, {kernelCorrelation, uint32(99)}, {kernelName, addName},
		{kernelGraphNode, uint64(0)}, {kernelGraph, uint32(0)},
		{kernelClusterX, uint32(0)}, {kernelClusterY, uint32(0)}, {kernelClusterZ, uint32(0)},
	}, fields...)...)
}

func copyRecord(n int, kind uint32, correlation, node int, fields ...field) []byte {
	return record(n, kind, append([]field{
		{copyKind, uint8(1)}, {copySource, uint8(2)}, {copyDestination, uint8(3)}, {copyFlags, uint8(1)},
		{copyBytes, uint64(4096)}, {copyStart, at(10)}, {copyEnd, at(20)},
		{copyDevice, uint32(0)}, {copyContext, uint32(1)}, {copyStream, uint32(13)},
		{correlation, uint32(5)}, {node, uint64(0)},
	}, fields...)...)
}

func memoryRecord(fields ...field) []byte {
	return record(128, activityMemory2, append([]field{
		{memoryOperation, uint32(1)}, {memoryKind, uint32(3)}, {memoryCorrelation, uint32(8)},
		{memoryAddress, uint64(0x7f0000001000)}, {memorySize, uint64(1 << 20)}, {memoryTime, at(5)},
		{memoryDevice, uint32(0)}, {memoryContext, uint32(1)}, {memoryStream, uint32(0)},
	}, fields...)...)
}

func syncRecord(fields ...field) []byte {
	return record(56, activitySynchronization, append([]field{
		{syncType, uint32(3)}, {syncStart, at(5)}, {syncEnd, at(25)}, {syncCorrelation, uint32(9)},
		{syncContext, uint32(1)}, {syncStream, uint32(7)}, {syncEvent, uint32(noID)},
	}, fields...)...)
}

// apiRecord returns the record of a host call.
func apiRecord(kind, function, correlation uint32) []byte {
	return record(apiBytes, kind, field{apiFunction, function}, field{apiStart, at(1)}, field{apiEnd, at(1)},
		field{apiCorrelation, correlation})
}

// counted returns what a decoder has counted.
func counted(d *decoder) Stats {
	var s Stats
	d.addTo(&s)
	return s
}

func some(v int64) gpuevent.Int { return gpuevent.Some(v) }

func TestKernelHasWhatWasLaunched(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	batch := b.add(kernelRecord(216)).decode(d)
	if batch.Len() != 1 {
		t.Fatalf("%d records, %+v", batch.Len(), counted(d))
	}
	start, end := epoch.UnixNano()+1000, epoch.UnixNano()+3500
	h := *batch.Head(0)
	name := h.Name
	if name == nil || name.Full != "add(int*)" || name.Short != "add" || name.Symbol != addKernel {
		t.Fatalf("name is %+v", name)
	}
	if want := (Head{Kind: KindKernel, Device: 1, Correlation: 99, Start: start, End: end, Name: name}); h != want {
		t.Errorf("head is %+v, want %+v", h, want)
	}
	got := gpuevent.Kernel{
		// What must go, and what must stay.
		Span:      gpuevent.Span{Ref: gpuevent.Ref{Span: gpuevent.SpanID{1}}, ScopeName: "step", Stack: "old", Estimated: true},
		GraphNode: some(1), ReportedLimiter: "old", Cluster: [3]int64{1, 1, 1},
	}
	batch.Kernel(0, &got)
	want := gpuevent.Kernel{
		Span: gpuevent.Span{
			Ref: gpuevent.Ref{Span: gpuevent.SpanID{1}}, ScopeName: "step", StartNs: start, EndNs: end,
			Device: some(1), Stream: some(7), Context: some(2), Correlation: some(99),
		},
		Name: name, Grid: [3]int64{2147483647, 2, 3}, Block: [3]int64{256, 2, 1},
		RegistersPerThread: some(32), SharedStatic: some(1024), SharedDynamic: some(2048), SharedExecuted: some(8192),
		LocalPerThread: some(16),
	}
	if got != want {
		t.Errorf("kernel is\n%+v, want\n%+v", got, want)
	}
}

func TestKernelOfAGraphInClusters(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	// 12.x and 13.5 write other lengths, and a release that nobody knows yet another one; the
	// oldest kind of kernel record is the same struct.
	batch := b.add(
		kernelRecord(208, field{kernelGraphNode, uint64(1)<<32 | 4}, field{kernelGraph, uint32(6)},
			field{kernelClusterX, uint32(2)}, field{kernelClusterY, uint32(1)}, field{kernelClusterZ, uint32(1)}),
		kernelRecord(248, field{0, uint32(activityKernel)}, field{kernelName, otherName}),
		kernelRecord(1024),
	).decode(d)
	if batch.Len() != 3 {
		t.Fatalf("%d records, %+v", batch.Len(), counted(d))
	}
	var k gpuevent.Kernel
	batch.Kernel(0, &k)
	if !batch.Head(0).GraphNode || k.GraphNode != some(1<<32|4) || k.GraphID != some(6) || k.Cluster != [3]int64{2, 1, 1} {
		t.Errorf("graph node is %+v, graph %+v, cluster %v", k.GraphNode, k.GraphID, k.Cluster)
	}
	batch.Kernel(1, &k)
	if k.Name.Full != "vector_add" || k.GraphNode.OK || k.GraphID.OK || k.Cluster != [3]int64{} || batch.Head(1).GraphNode {
		t.Errorf("second kernel is %+v", k)
	}
}

func TestIDsThatMeanNoneAreAbsent(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	batch := b.add(kernelRecord(216, field{kernelDevice, uint32(noID)}, field{kernelContext, uint32(0)},
		field{kernelStream, uint32(0)}, field{kernelCorrelation, uint32(0)}, field{kernelSharedDynamic, uint32(noID)})).decode(d)
	var k gpuevent.Kernel
	batch.Kernel(0, &k)
	if k.Device.OK || k.Context.OK || k.Stream.OK || k.Correlation.OK || k.SharedDynamic.OK || batch.Head(0).Device != -1 {
		t.Errorf("kernel is %+v, head %+v", k, batch.Head(0))
	}
}

func TestCopies(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	batch := b.add(
		copyRecord(96, activityMemcpy, copyCorrelation, copyGraphNode),
		copyRecord(96, activityMemcpy2, peerCorrelation, peerGraphNode, field{copyKind, uint8(10)}, field{copySource, uint8(3)},
			field{copyFlags, uint8(0)}, field{peerGraphNode, uint64(3)}),
		copyRecord(88, activityMemcpy, copyCorrelation, copyGraphNode, field{copyKind, uint8(77)}, field{copySource, uint8(8)}, field{copyDestination, uint8(0)}),
	).decode(d)
	if batch.Len() != 3 {
		t.Fatalf("%d records, %+v", batch.Len(), counted(d))
	}
	span := gpuevent.Span{
		StartNs: epoch.UnixNano() + 10, EndNs: epoch.UnixNano() + 20,
		Device: some(0), Stream: some(13), Context: some(1), Correlation: some(5),
	}
	for i, want := range []gpuevent.Copy{
		{Span: span, Kind: "HtoD", Bytes: some(4096), SourceKind: "pinned", DestinationKind: "device", Async: some(1)},
		{Span: span, Kind: "PtoP", Bytes: some(4096), SourceKind: "device", DestinationKind: "device", Async: some(0)},
		{Span: span, Kind: "", Bytes: some(4096), SourceKind: "", DestinationKind: "", Async: some(1)},
	} {
		var got gpuevent.Copy
		batch.Copy(i, &got)
		if got != want {
			t.Errorf("copy %d is\n%+v, want\n%+v", i, got, want)
		}
		if h := batch.Head(i); h.Bytes != 4096 || h.CopyKind != want.Kind || h.GraphNode != (i == 1) || h.Correlation != 5 {
			t.Errorf("head %d is %+v", i, h)
		}
	}
	if batch.Head(0).Kind != KindMemcpy || batch.Head(1).Kind != KindMemcpyP2P {
		t.Errorf("kinds are %v and %v", batch.Head(0).Kind, batch.Head(1).Kind)
	}
}

func TestSetsMemoryWaitsGraphsAndCalls(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	batch := b.add(
		record(104, activityMemset, field{setBytes, uint64(12)}, field{setStart, at(1)}, field{setEnd, at(2)},
			field{setDevice, uint32(3)}, field{setContext, uint32(4)}, field{setStream, uint32(5)},
			field{setCorrelation, uint32(6)}, field{setGraphNode, uint64(7)}),
		memoryRecord(),
		memoryRecord(field{memoryOperation, uint32(2)}, field{memoryKind, uint32(5)}, field{memoryAddress, uint64(0)}, field{memoryDevice, uint32(noID)}),
		syncRecord(),
		syncRecord(field{syncType, uint32(1)}, field{syncStream, uint32(noID)}, field{syncEvent, uint32(21)}),
		syncRecord(field{syncType, uint32(99)}, field{syncEvent, uint32(21)}),
		record(56, activityGraphTrace, field{graphCorrelation, uint32(31)}, field{graphStart, at(40)}, field{graphEnd, at(50)},
			field{graphDevice, uint32(0)}, field{graphID, uint32(32)}, field{graphContext, uint32(33)}, field{graphStream, uint32(34)}),
		apiRecord(activityRuntime, 211, 41),
		apiRecord(activityDriver, 307, 42),
		apiRecord(activityDriver, 4000, 43),
	).decode(d)
	if batch.Len() != 10 {
		t.Fatalf("%d records, %+v", batch.Len(), counted(d))
	}
	ns := epoch.UnixNano()

	var set gpuevent.Set
	batch.Set(0, &set)
	if want := (gpuevent.Set{Bytes: some(12), Span: gpuevent.Span{StartNs: ns + 1, EndNs: ns + 2, Device: some(3), Context: some(4), Stream: some(5), Correlation: some(6)}}); set != want || !batch.Head(0).GraphNode || batch.Head(0).Kind != KindMemset {
		t.Errorf("set is %+v, head %+v", set, batch.Head(0))
	}

	for i, want := range map[int]gpuevent.Memory{
		1: {Kind: "device", Bytes: some(1 << 20), Address: some(0x7f0000001000), Span: gpuevent.Span{StartNs: ns + 5, EndNs: ns + 5, Device: some(0), Context: some(1), Correlation: some(8)}},
		2: {Free: true, Kind: "managed", Bytes: some(1 << 20), Span: gpuevent.Span{StartNs: ns + 5, EndNs: ns + 5, Context: some(1), Correlation: some(8)}},
	} {
		var got gpuevent.Memory
		batch.Memory(i, &got)
		if got != want || batch.Head(i).Kind != KindMemory || batch.Head(i).Bytes != 1<<20 {
			t.Errorf("memory is\n%+v, want\n%+v", got, want)
		}
	}

	span := gpuevent.Span{StartNs: ns + 5, EndNs: ns + 25, Context: some(1), Stream: some(7), Correlation: some(9)}
	noStream := span
	noStream.Stream = gpuevent.Int{}
	for i, want := range map[int]gpuevent.Sync{
		3: {Span: span, Kind: gpuevent.SyncStream},
		4: {Span: noStream, Kind: gpuevent.SyncEvent, Event: some(21)},
		5: {Span: span},
	} {
		var got gpuevent.Sync
		batch.Sync(i, &got)
		if got != want || batch.Head(i).Device != -1 {
			t.Errorf("sync %d is\n%+v, want\n%+v", i, got, want)
		}
	}

	var graph gpuevent.Graph
	batch.Graph(6, &graph)
	if want := (gpuevent.Graph{GraphID: some(32), Span: gpuevent.Span{StartNs: ns + 40, EndNs: ns + 50, Device: some(0), Context: some(33), Stream: some(34), Correlation: some(31)}}); graph != want {
		t.Errorf("graph is %+v", graph)
	}

	for i, want := range map[int]string{7: "cudaLaunchKernel", 8: "cuLaunchKernel", 9: "cuda_driver_4000"} {
		if got := batch.API(i); got != want || !batch.Head(i).Host || batch.Head(i).Correlation != uint32(34+i) {
			t.Errorf("call is %q, want %q; head %+v", got, want, batch.Head(i))
		}
	}
}

func TestEveryBadRecordIsCountedByItsReason(t *testing.T) {
	day := int64(24 * time.Hour)
	for name, c := range map[string]struct {
		record []byte
		reason Reject
	}{
		"a kernel that never started":     {kernelRecord(216, field{kernelStart, uint64(0)}), RejectZeroTime},
		"a kernel that never ended":       {kernelRecord(216, field{kernelEnd, uint64(0)}), RejectZeroTime},
		"a kernel that ends before":       {kernelRecord(216, field{kernelEnd, at(999)}), RejectReversed},
		"a kernel of 1970":                {kernelRecord(216, field{kernelStart, uint64(1)}), RejectFarTime},
		"a kernel of the day before":      {kernelRecord(216, field{kernelStart, at(-day - 1)}), RejectFarTime},
		"a kernel of the day after":       {kernelRecord(216, field{kernelEnd, at(day + int64(time.Hour) + 1)}), RejectFarTime},
		"a kernel of the far future":      {kernelRecord(216, field{kernelEnd, uint64(1<<64 - 1)}), RejectFarTime},
		"a kernel beyond all time":        {kernelRecord(216, field{kernelStart, uint64(1<<64 - 2)}, field{kernelEnd, uint64(1<<64 - 1)}), RejectFarTime},
		"a kernel that is cut":            {kernelRecord(199), RejectShort},
		"a kernel without a name":         {kernelRecord(216, field{kernelName, uint64(0)}), RejectName},
		"a kernel with an empty name":     {kernelRecord(216, field{kernelName, emptyName}), RejectName},
		"a kernel with bytes for a name":  {kernelRecord(216, field{kernelName, binaryName}), RejectName},
		"a kernel whose name is nowhere":  {kernelRecord(216, field{kernelName, unmappedName}), RejectName},
		"a grid of nothing":               {kernelRecord(216, field{kernelGridY, uint32(0)}), RejectShape},
		"a negative grid":                 {kernelRecord(216, field{kernelGridX, uint32(1 << 31)}), RejectShape},
		"a grid too deep":                 {kernelRecord(216, field{kernelGridZ, uint32(65536)}), RejectShape},
		"a block of nothing":              {kernelRecord(216, field{kernelBlockZ, uint32(0)}), RejectShape},
		"a block with too many threads":   {kernelRecord(216, field{kernelBlockY, uint32(5)}), RejectShape},
		"a block whose product overflows": {kernelRecord(216, field{kernelBlockX, uint32(1 << 30)}, field{kernelBlockY, uint32(1 << 30)}, field{kernelBlockZ, uint32(16)}), RejectShape},
		"a cluster of all the world":      {kernelRecord(216, field{kernelClusterX, uint32(noID)}), RejectShape},
		"a copy that is cut":              {copyRecord(87, activityMemcpy, copyCorrelation, copyGraphNode), RejectShort},
		"a peer copy that is cut":         {copyRecord(88, activityMemcpy2, peerCorrelation, peerGraphNode), RejectShort},
		"a copy of too much":              {copyRecord(96, activityMemcpy, copyCorrelation, copyGraphNode, field{copyBytes, uint64(1 << 63)}), RejectShape},
		"a copy without times":            {copyRecord(96, activityMemcpy, copyCorrelation, copyGraphNode, field{copyStart, uint64(0)}, field{copyEnd, uint64(0)}), RejectZeroTime},
		"a set that is cut":               {record(80, activityMemset), RejectShort},
		"a set of 1970":                   {record(88, activityMemset, field{setStart, uint64(5)}, field{setEnd, at(5)}), RejectFarTime},
		"memory that is cut":              {memoryRecord()[:119], RejectShort},
		"memory neither taken nor given":  {memoryRecord(field{memoryOperation, uint32(3)}), RejectShape},
		"memory at no time":               {memoryRecord(field{memoryTime, uint64(0)}), RejectZeroTime},
		"a wait without times":            {syncRecord(field{syncStart, uint64(0)}, field{syncEnd, uint64(0)}), RejectZeroTime},
		"a wait that is cut":              {syncRecord()[:32], RejectShort},
		"a graph that is cut":             {record(47, activityGraphTrace), RejectShort},
		"a call that is cut":              {record(32, activityRuntime), RejectShort},
		"overhead that is cut":            {record(32, activityOverhead), RejectShort},
		"overhead that ends before":       {record(56, activityOverhead, field{overheadStart, at(2)}, field{overheadEnd, at(1)}), RejectReversed},
		"three bytes":                     {[]byte{10, 0, 0}, RejectShort},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestDecoder()
			var b buffer
			// Good neighbours must survive it. The bad one is last where it is too short to hold an
			// address.
			b.add(kernelRecord(216), c.record)
			if len(c.record)%8 == 0 {
				b.add(kernelRecord(216))
			}
			batch := b.decode(d)
			want := Stats{Records: uint64(len(b.begins))}
			want.Rejected[c.reason] = 1
			if got := counted(d); got != want {
				t.Errorf("counted %+v, want %+v", got, want)
			}
			if batch.Len() != len(b.begins)-1 {
				t.Errorf("%d records", batch.Len())
			}
		})
	}
}

func TestLastRecordIsCutAtTheEndOfTheBuffer(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	b.add(kernelRecord(216), kernelRecord(216))
	b.data = b.data[:len(b.data)-17] // 199 bytes
	if batch := b.decode(d); batch.Len() != 1 || counted(d).Rejected[RejectShort] != 1 {
		t.Errorf("%d records, %+v", batch.Len(), counted(d))
	}
}

func TestUnknownKindsAreCounted(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	batch := b.add(record(80, 50), record(64, 0xFFFFFFFF), record(8, 0), record(24, 39)).decode(d)
	if got, want := counted(d), (Stats{Records: 4, Unknown: 4}); got != want || batch.Len() != 0 {
		t.Errorf("%d records, %+v", batch.Len(), got)
	}
}

func TestOverheadIsCUPTIsOwnOnly(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	for i, kind := range []uint32{overheadFlush, overheadInstrumentation, overheadResource, overheadRequest, overheadUVM, 1, 4 << 16, 5 << 16, 6 << 16} {
		b.add(record(56, activityOverhead, field{overheadKind, kind}, field{overheadStart, at(1)}, field{overheadEnd, at(1 + 1<<i)}))
	}
	batch := b.decode(d)
	if got, want := counted(d), (Stats{Records: 9, Overhead: 31}); got != want || batch.Len() != 0 {
		t.Errorf("%d records, %+v", batch.Len(), got)
	}
}

func TestCorrelationsWrapAround(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	batch := b.add(
		kernelRecord(216, field{kernelCorrelation, uint32(1<<32 - 1)}),
		kernelRecord(216, field{kernelCorrelation, uint32(1)}),
	).decode(d)
	var first, second gpuevent.Kernel
	batch.Kernel(0, &first)
	batch.Kernel(1, &second)
	if first.Correlation != some(1<<32-1) || second.Correlation != some(1) || batch.Head(0).Correlation != 1<<32-1 {
		t.Errorf("correlations are %+v and %+v", first.Correlation, second.Correlation)
	}
}

func TestScopeIsThatOfTheCall(t *testing.T) {
	d := newTestDecoder()
	d.scopes = scopesOf(map[uint32]uint64{99: 1 << 40, 5: 3, 9: 4, 0: 7})
	var b buffer
	batch := b.add(
		kernelRecord(216),
		kernelRecord(216, field{kernelCorrelation, uint32(99 + 1<<scopeTableBits)}), // another launch in the same slot
		kernelRecord(216, field{kernelCorrelation, uint32(0)}),
		copyRecord(96, activityMemcpy, copyCorrelation, copyGraphNode),
		syncRecord(),
		memoryRecord(),
	).decode(d)
	for i, want := range []uint64{1 << 40, 0, 0, 3, 4, 0} {
		if got := batch.Head(i).Scope; got != want {
			t.Errorf("scope %d is %d, want %d", i, got, want)
		}
	}
}

// scopesOf returns a table as the C core fills it.
func scopesOf(scopes map[uint32]uint64) scopeTable {
	t := scopeTable{slots: make([]uint64, 1<<scopeTableBits)}
	for correlation, scope := range scopes {
		t.slots[correlation%(1<<scopeTableBits)] = uint64(correlation>>scopeTableBits)<<scopeIDBits | scope
	}
	return t
}

func TestOffsetMovesEveryTime(t *testing.T) {
	d := newTestDecoder()
	d.setOffset(epoch.UnixNano())
	var b buffer
	// CUPTI's own clock counts from the machine's start.
	batch := b.add(kernelRecord(216, field{kernelStart, uint64(500)}, field{kernelEnd, uint64(700)})).decode(d)
	if batch.Len() != 1 || batch.Head(0).Start != epoch.UnixNano()+500 || batch.Head(0).End != epoch.UnixNano()+700 {
		t.Fatalf("%d records, %+v", batch.Len(), counted(d))
	}
}

func TestWalkInSmallSteps(t *testing.T) {
	for _, most := range []int{1, 2, 3} {
		d := newTestDecoder()
		var b buffer
		for range 100 {
			b.add(kernelRecord(216), apiRecord(activityDriver, 1, 2))
		}
		w := newIndexWalker(b.data, b.begins)
		w.most = most
		if batch := d.decode(b.data, w, nil); batch.Len() != 200 || counted(d) != (Stats{Records: 200}) {
			t.Errorf("in steps of %d: %d records, %+v", most, batch.Len(), counted(d))
		}
	}
}

func TestWalkThatLosesItsWay(t *testing.T) {
	var b buffer
	b.add(kernelRecord(216), kernelRecord(216), kernelRecord(216))
	for name, begins := range map[string][]uint32{
		"turns back":        {0, 216, 0, 216},
		"stays where it is": {0, 216, 216, 216},
		"leaves at the end": {0, 216, 648},
		"leaves far":        {0, 216, 1 << 31, 432},
		"leaves the most":   {0, 216, 0xFFFFFFFF},
	} {
		d := newTestDecoder()
		batch := d.decode(b.data, newIndexWalker(b.data, begins), nil)
		want := Stats{Records: 3}
		want.Rejected[RejectShort] = 1
		if got := counted(d); got != want || batch.Len() != 2 {
			t.Errorf("%s: %d records, %+v", name, batch.Len(), got)
		}
	}
	d := newTestDecoder()
	w := newIndexWalker(b.data, b.begins[:2])
	w.broken = true
	batch := d.decode(b.data, w, nil)
	if got := counted(d); got.Records != 3 || got.Rejected[RejectShort] != 1 || batch.Len() != 2 {
		t.Errorf("broken: %d records, %+v", batch.Len(), got)
	}
}

func TestEmptyBuffer(t *testing.T) {
	d := newTestDecoder()
	if batch := d.decode(nil, &indexWalker{}, nil); batch.Len() != 0 || counted(d) != (Stats{}) {
		t.Errorf("%d records, %+v", batch.Len(), counted(d))
	}
}

func TestReleaseGivesTheBufferBackOnce(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	b.add(kernelRecord(216))
	released := 0
	batch := d.decode(b.data, newIndexWalker(b.data, b.begins), func() { released++ })
	batch.Release()
	if released != 1 {
		t.Errorf("released %d times", released)
	}
	for name, use := range map[string]func(){
		"Len": func() { batch.Len() }, "Head": func() { batch.Head(0) }, "Kernel": func() { batch.Kernel(0, new(gpuevent.Kernel)) },
		"Release": batch.Release,
	} {
		if !panics(use) {
			t.Errorf("%s after Release does not panic", name)
		}
	}
	if released != 1 {
		t.Errorf("released %d times", released)
	}
}

func TestRecordsOfAnotherKindPanic(t *testing.T) {
	d := newTestDecoder()
	var b buffer
	batch := b.add(kernelRecord(216)).decode(d)
	if !panics(func() { batch.Copy(0, new(gpuevent.Copy)) }) || !panics(func() { batch.API(0) }) {
		t.Error("a kernel passes for something else")
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func TestDecodingAllocatesNothingPerRecord(t *testing.T) {
	d, data, begins := benchmarkBuffer(1000)
	var k gpuevent.Kernel
	allocs := testing.AllocsPerRun(20, func() {
		batch := d.decode(data, newIndexWalker(data, begins), nil)
		for i := range batch.Len() {
			batch.Kernel(i, &k)
		}
		batch.Release()
	})
	// The walker, the Batch and what it points at.
	if allocs > 4 {
		t.Errorf("%v allocations a buffer of 1000 kernels", allocs)
	}
}

// benchmarkBuffer returns n kernels of some twenty names, as a program of small kernels makes them.
func benchmarkBuffer(n int) (*decoder, []byte, []uint32) {
	d := newTestDecoder()
	names := bookText{}
	for i := range 20 {
		names[0x20000+uint64(i)*64] = "_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi" + string(rune('a'+i))
	}
	d.names = newNameTable(names.read)
	var b buffer
	for i := range n {
		b.add(kernelRecord(216, field{kernelName, 0x20000 + uint64(i%20)*64}, field{kernelCorrelation, uint32(i)}))
	}
	return d, b.data, b.begins
}

const benchmarkRecords = 38_000 // one buffer of 8 MiB

func BenchmarkHeads(b *testing.B) {
	d, data, begins := benchmarkBuffer(benchmarkRecords)
	b.ReportAllocs()
	for b.Loop() {
		batch := d.decode(data, newIndexWalker(data, begins), nil)
		if batch.Len() != benchmarkRecords {
			b.Fatal(batch.Len())
		}
		batch.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchmarkRecords, "ns/kernel")
}

func BenchmarkKernels(b *testing.B) {
	d, data, begins := benchmarkBuffer(benchmarkRecords)
	var k gpuevent.Kernel
	b.ReportAllocs()
	for b.Loop() {
		batch := d.decode(data, newIndexWalker(data, begins), nil)
		for i := range batch.Len() {
			batch.Kernel(i, &k)
		}
		batch.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchmarkRecords, "ns/kernel")
}
