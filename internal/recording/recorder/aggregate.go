// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/histogram"
	"github.com/gpuflight/gpuflight/semconv"
)

// operation is a kind of device work.
type operation uint8

const (
	opKernel operation = iota
	opCopy
	opSet
	opGraph
	opSync
	opAlloc
	opFree
	numOperations
)

var operationNames = [numOperations]string{
	opKernel: semconv.CUDAOperationKernel,
	opCopy:   semconv.CUDAOperationMemcpy,
	opSet:    semconv.CUDAOperationMemset,
	opGraph:  semconv.CUDAOperationGraph,
	opSync:   semconv.CUDAOperationSynchronize,
	opAlloc:  semconv.CUDAOperationMalloc,
	opFree:   semconv.CUDAOperationFree,
}

// onDevice reports whether the operation occupies the device and counts in device seconds.
func (o operation) onDevice() bool { return o <= opGraph }

const (
	// maxDevices bounds the devices that are distinguished, by ordinal. No process sees more.
	maxDevices = 64
	// maxCells bounds kernel series by name, scope and device.
	maxCells = 20_000
	// maxCopyKinds bounds the kinds of copies; CUPTI has eleven.
	maxCopyKinds = 16
	// topNames is the number of kernel names with series of their own.
	topNames = 200
	// buckets is the bucket limit of a duration histogram, the default of the usage connector.
	buckets = 160
)

// copyBounds are the buckets of copy sizes in bytes: the powers of 4 from 1 KiB to 4 GiB. They
// equal those of the usage connector.
var copyBounds = func() []int64 {
	var b []int64
	for n := int64(1 << 10); n <= 1<<32; n *= 4 {
		b = append(b, n)
	}
	return b
}()

// cell counts the kernels of one name, scope and device.
type cell struct {
	key             uint64
	name, label     uint32
	device          uint8
	launches, nodes uint64
	created         int64
	usage           *usage
	work            *work
}

// usage counts the kernels of one name on one device.
type usage struct {
	name    uint32
	device  uint8
	created int64
	// durations is nil until the first.
	durations *histogram.Exponential
	// without counts kernels without a span.
	without uint64
}

// work counts the operations of one scope on one device.
type work struct {
	label  uint32
	device uint8
	count  [numOperations]uint64
	ns     [numOperations]uint64
}

// copies counts the copies of one kind on one device.
type copies struct {
	kind   int
	device uint8
	bytes  *histogram.Explicit
	ns     uint64
}

// totals holds all exact totals of the session. The consumer owns it.
type totals struct {
	names *names
	cells map[uint64]*cell
	list  []*cell
	// lastKey and lastCell cache the most recently used cell.
	lastKey   uint64
	lastCell  *cell
	usages    map[uint64]*usage
	usageList []*usage
	works     map[uint64]*work
	workList  []*work
	kinds     []string
	copies    []*copies
	// By device.
	setBytes, setNs  [maxDevices + 1]uint64
	sets             [maxDevices + 1]uint64
	allocated, freed uint64
	// without counts work other than kernels without a span, by operation and device.
	without [numOperations][maxDevices + 1]uint64
	start   int64
	kernels uint64
}

func newTotals(n *names, start int64) *totals {
	return &totals{
		names: n, cells: map[uint64]*cell{}, usages: map[uint64]*usage{}, works: map[uint64]*work{},
		start: start, lastKey: ^uint64(0),
	}
}

// deviceSlot returns the array index of a device, or 0 for none.
func deviceSlot(ordinal int32) uint8 {
	if ordinal < 0 || ordinal >= maxDevices {
		return 0
	}
	return uint8(ordinal + 1)
}

func (t *totals) work(label uint32, device uint8) *work {
	key := uint64(label)<<8 | uint64(device)
	w := t.works[key]
	if w == nil {
		w = &work{label: label, device: device}
		t.works[key] = w
		t.workList = append(t.workList, w)
	}
	return w
}

func (t *totals) usage(name uint32, device uint8) *usage {
	key := uint64(name)<<8 | uint64(device)
	u := t.usages[key]
	if u == nil {
		u = &usage{name: name, device: device, created: t.start, durations: histogram.NewExponential(buckets)}
		t.usages[key] = u
		t.usageList = append(t.usageList, u)
		t.names.all[name].usages = append(t.names.all[name].usages, u)
	}
	return u
}

// cell returns the series of a name, scope and device. Above maxCells the scope is _other.
func (t *totals) cell(name, label uint32, device uint8) *cell {
	key := uint64(name)<<32 | uint64(label)<<8 | uint64(device)
	if key == t.lastKey {
		return t.lastCell
	}
	c := t.cells[key]
	if c == nil {
		if len(t.list) >= maxCells && label != labelOther && name != otherIndex {
			return t.cell(name, labelOther, device)
		}
		c = &cell{
			key: key, name: name, label: label, device: device, created: t.start,
			usage: t.usage(name, device), work: t.work(label, device),
		}
		t.cells[key] = c
		t.list = append(t.list, c)
		t.names.all[name].cells = append(t.names.all[name].cells, c)
	}
	t.lastKey, t.lastCell = key, c
	return c
}

// kernel counts a kernel and returns its name's index.
func (t *totals) kernel(h *cupti.Head, label uint32, device uint8) uint32 {
	i := t.names.index(h.Name)
	ns := max(0, h.End-h.Start)
	n := &t.names.all[i]
	n.count++
	n.ns += uint64(ns)
	n.maxNs = max(n.maxNs, ns)
	t.kernels++
	if n.series != nil {
		n.series.Observe(ns)
	}
	c := t.cell(i, label, device)
	if h.GraphNode {
		c.nodes++
	} else {
		c.launches++
	}
	c.usage.durations.Observe(ns)
	c.work.count[opKernel]++
	c.work.ns[opKernel] += uint64(ns)
	return i
}

// other counts any other operation.
func (t *totals) other(op operation, h *cupti.Head, label uint32, device uint8) {
	ns := max(0, h.End-h.Start)
	w := t.work(label, device)
	w.count[op]++
	w.ns[op] += uint64(ns)
	switch op {
	case opCopy:
		c := t.copy(t.kind(h.CopyKind), device)
		c.bytes.Observe(h.Bytes)
		c.ns += uint64(ns)
	case opSet:
		t.sets[device]++
		t.setBytes[device] += uint64(max(h.Bytes, 0))
		t.setNs[device] += uint64(ns)
	case opAlloc:
		t.allocated += uint64(max(h.Bytes, 0))
	case opFree:
		t.freed += uint64(max(h.Bytes, 0))
	}
}

// kind returns the index of a kind of copy. Kinds above the bound share the last index.
func (t *totals) kind(kind string) int {
	for i, k := range t.kinds {
		if k == kind {
			return i
		}
	}
	if len(t.kinds) >= maxCopyKinds-1 {
		kind = otherName
		if len(t.kinds) == maxCopyKinds {
			return maxCopyKinds - 1
		}
	}
	t.kinds = append(t.kinds, kind)
	return len(t.kinds) - 1
}

func (t *totals) copy(kind int, device uint8) *copies {
	for _, c := range t.copies {
		if c.kind == kind && c.device == device {
			return c
		}
	}
	c := &copies{kind: kind, device: device, bytes: histogram.NewExplicit(copyBounds)}
	t.copies = append(t.copies, c)
	return c
}

// leftOut counts work without a span.
func (t *totals) leftOut(op operation, name uint32, device uint8) {
	if op == opKernel {
		t.usage(name, device).without++
	} else {
		t.without[op][device]++
	}
}
