// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"io"
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Field numbers of Perfetto's messages in protos/perfetto/trace/perfetto_trace.proto and
// protos/perfetto/trace/gpu, as of Perfetto 59.
const (
	fieldPacket = 1 // of Trace

	// TracePacket
	fieldClockSnapshot   = 6
	fieldTimestamp       = 8
	fieldSequence        = 10
	fieldTrackEvent      = 11
	fieldInterned        = 12
	fieldSequenceFlags   = 13
	fieldRenderStage     = 53
	fieldTrackDescriptor = 60
	fieldGPUInfo         = 128

	// InternedData; the last two are extensions of GpuInternedData.
	internedEventNames      = 2
	internedAnnotationNames = 3
	internedContexts        = 23
	internedSpecifications  = 24
	internedKernels         = 1000
	internedArgNames        = 1001

	// TrackEvent; the last is an extension of GpuTrackEvent.
	eventAnnotations = 4
	eventType        = 9
	eventName        = 10
	eventTrack       = 11
	eventCategories  = 22
	eventDouble      = 44
	eventGPU         = 3000

	typeBegin   = 1
	typeEnd     = 2
	typeInstant = 3
	typeCounter = 4

	apiCUDA         = 4
	categoryCompute = 2

	clockRealtime  = 1
	clockMonotonic = 3
	clockBoottime  = 6

	stateCleared = 1
	stateNeeded  = 2
)

// Ids of tracks. Those of an allocator follow trackProcess, those of metrics follow trackCounters.
const (
	trackProcess  = 1
	trackCounters = 1 << 32
)

// unknownContext is the id of the CUDA context of operations whose context is unknown.
const unknownContext = math.MaxUint32

// maxInterned bounds the interned strings and kernels. At the bound, the trace starts to define them
// again.
const maxInterned = 200_000

// stages are the kinds of operations on the device. The index is the interning id of the stage.
var stages = [...]struct{ name, description string }{
	1: {"Kernel", "a kernel"}, 2: {"Memory copy", "a copy"}, 3: {"Memory set", "a set"}, 4: {"Graph launch", "a launch of a CUDA graph"},
	5: {"Other", "another operation"},
}

func stageOf(o store.Operation) uint64 {
	switch o {
	case store.OpKernel:
		return 1
	case store.OpCopy:
		return 2
	case store.OpSet:
		return 3
	case store.OpGraph:
		return 4
	default:
		return 5
	}
}

// queueID is the interning id of a lane, after those of the stages.
func queueID(l *lane) uint64 { return uint64(100 + l.index) }

// perfetto writes a trace of Perfetto. All packets are one sequence.
type perfetto struct {
	*source
	w           *bufio.Writer
	tracks      *allocator
	events      uint64
	started     bool
	trace       message
	payload     message
	interned    message
	names       map[string]uint64
	keys        map[string]uint64 // names of annotations
	argNames    map[string]uint64
	kernels     map[uint32]uint64
	contexts    map[uint64]bool
	queues      map[int]bool
	nextIID     uint64
	err         error
	maxInterned int
	annotated   []arg
}

// Perfetto writes a session as a protobuf trace of Perfetto. Kernels, copies and sets are events of
// GPU queues, with launch parameters that Perfetto's GPU views understand. Scopes, requests and host
// calls are tracks of the process, and metrics are counters. The times of the trace are Unix
// nanoseconds.
func Perfetto(ctx context.Context, r store.Reader, q Query, w io.Writer) error {
	return writePerfetto(ctx, r, q, w, maxInterned)
}

func writePerfetto(ctx context.Context, r store.Reader, q Query, w io.Writer, maxInterned int) error {
	s, err := open(ctx, r, q)
	if err != nil {
		return err
	}
	p := &perfetto{source: s, maxInterned: maxInterned, w: bufio.NewWriterSize(w, 64<<10), nextIID: 1000}
	p.tracks = newAllocator(p.describe)
	p.reset()
	p.header()
	err = s.ops(func(o *store.OpRow) error {
		p.op(o)
		return p.err
	})
	if err == nil {
		err = s.spans(func(x *store.SpanRow) error {
			p.span(x)
			return p.err
		})
	}
	for _, event := range instantEvents {
		if err == nil {
			err = s.logs(event, func(l *store.LogRow) error {
				track, name := instantOf(p.tracks, l)
				p.instant(track.id, l.TimeNs, name, event, appendAttrs(p.annotated[:0], l.Attrs))
				return p.err
			})
		}
	}
	if err == nil {
		err = p.counters()
	}
	return cmp.Or(err, p.err, p.w.Flush())
}

// instantEvents are the log records that are shown as instants.
var instantEvents = [...]string{semconv.EventCUDAMarker, semconv.EventGPUXID}

// instantOf returns the track and the name of a log record.
func instantOf(a *allocator, l *store.LogRow) (*track, string) {
	if l.Event == semconv.EventGPUXID {
		return a.instant("XID errors"), "XID " + text(l.Attrs, semconv.GPUXIDCode)
	}
	return a.instant("markers"), cmp.Or(text(l.Attrs, semconv.CUDAMarkerName), textOf(l.Body), l.Event)
}

// reset forgets what is interned. Interning ids are not used again.
func (p *perfetto) reset() {
	p.started = false
	p.names, p.keys, p.argNames = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	p.kernels, p.contexts, p.queues = map[uint32]uint64{}, map[uint64]bool{}, map[int]bool{}
	p.interned = p.interned[:0]
	for i := 1; i < len(stages); i++ {
		m := p.interned.begin(internedSpecifications)
		p.interned.number(1, uint64(i))
		p.interned.text(2, stages[i].name)
		p.interned.text(3, stages[i].description)
		if i == 1 {
			p.interned.number(4, categoryCompute)
		}
		p.interned.end(m)
	}
}

// packet writes a packet with p.payload as a field. Time 0 means none.
func (p *perfetto) packet(field protowire.Number, at int64) {
	p.trace = p.trace[:0]
	m := p.trace.begin(fieldPacket)
	if at > 0 {
		p.trace.number(fieldTimestamp, uint64(at))
	}
	p.trace.number(fieldSequence, 1)
	flags := uint64(stateNeeded)
	if !p.started {
		flags |= stateCleared
		p.started = true
	}
	p.trace.number(fieldSequenceFlags, flags)
	if len(p.interned) > 0 {
		p.trace.bytes(fieldInterned, p.interned)
	}
	p.trace.bytes(field, p.payload)
	p.trace.end(m)
	if p.err == nil {
		_, p.err = p.w.Write(p.trace)
	}
	p.payload, p.interned = p.payload[:0], p.interned[:0]
	if len(p.names)+len(p.keys)+len(p.argNames)+len(p.kernels)+len(p.contexts) > p.maxInterned {
		p.reset()
	}
}

func (p *perfetto) header() {
	// Without a clock of its own, a packet has the time of the boot clock. All clocks are equal here,
	// so that Perfetto shows the time of day.
	for _, clock := range []uint64{clockBoottime, clockMonotonic, clockRealtime} {
		m := p.payload.begin(1)
		p.payload.number(1, clock)
		p.payload.number(2, uint64(max(p.base, 0)))
		p.payload.end(m)
	}
	p.payload.number(2, clockBoottime)
	p.packet(fieldClockSnapshot, 0)

	next := 0
	for _, g := range p.gpus {
		for ; next <= g.id; next++ { // Perfetto finds a device by its position
			m := p.payload.begin(1)
			if next == g.id {
				p.payload.text(1, g.name)
				p.payload.text(2, "NVIDIA")
				if id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(g.device, "GPU-"), "-", "")); err == nil && len(id) == 16 {
					p.payload.bytes(5, id)
				}
			}
			p.payload.end(m)
		}
	}
	p.packet(fieldGPUInfo, 0)

	p.payload.number(1, trackProcess)
	m := p.payload.begin(3)
	p.payload.number(1, uint64(p.pid()))
	p.payload.text(6, cmp.Or(p.info.Service, "unnamed"))
	for _, label := range []string{"session " + p.info.ID, p.info.Host} {
		if label != "" {
			p.payload.text(8, strings.ToValidUTF8(label, "\uFFFD"))
		}
	}
	p.payload.end(m)
	p.payload.number(11, 3) // child tracks in the order of their ranks
	p.packet(fieldTrackDescriptor, 0)
}

// pid returns the id of the process, 1 if it is unknown.
func (s *source) pid() int64 {
	if s.info.PID.OK && s.info.PID.V > 0 && s.info.PID.V <= math.MaxInt32 {
		return s.info.PID.V
	}
	return 1
}

func (p *perfetto) describe(t *track) { p.descriptor(uint64(trackProcess+t.id), t.name, t.rank, "") }

// descriptor defines a track of the process. With a unit it is a counter.
func (p *perfetto) descriptor(id uint64, name string, rank int, unit string) {
	saved, interned := p.payload, p.interned // of an event in progress
	p.payload, p.interned = nil, nil
	p.payload.number(1, id)
	p.payload.text(2, name)
	p.payload.number(5, trackProcess)
	if unit != "" {
		m := p.payload.begin(8)
		p.payload.text(6, unit)
		p.payload.end(m)
	}
	p.payload.number(12, uint64(rank))
	p.payload.number(15, 2) // do not merge tracks with equal names
	p.packet(fieldTrackDescriptor, 0)
	p.payload, p.interned = saved, interned
}

// intern returns the id of a string, and defines it if it is new.
func (p *perfetto) intern(known map[string]uint64, field protowire.Number, s string) uint64 {
	id, ok := known[s]
	if !ok {
		p.nextIID++
		id = p.nextIID
		known[s] = id
		m := p.interned.begin(field)
		p.interned.number(1, id)
		p.interned.text(2, s)
		p.interned.end(m)
	}
	return id
}

// onHost reports whether an operation is work of the host.
func onHost(o *store.OpRow) bool {
	switch o.ShapeRef.Operation {
	case store.OpSync, store.OpAlloc, store.OpFree:
		return true
	default:
		return false
	}
}

func (p *perfetto) op(o *store.OpRow) {
	l := p.laneOf(o)
	start, end := o.StartNs, end(o.StartNs, o.EndNs)
	args := appendOp(p.annotated[:0], o)
	if onHost(o) {
		t := p.tracks.wait(l, start, end)
		p.slice(t, l.name, start, end, o.ShapeRef.Name, "host", appendAttrs(args, o.ShapeRef.Attrs), 0)
		return
	}
	p.events++
	id := p.events
	if from, to, ok := launchOf(o); ok {
		var none []arg
		p.slice(p.tracks.launch(l, from, to), l.name+" launches", from, to, "launch "+o.ShapeRef.Name, "launch", appendInt(none, "correlation", o.Correlation), id)
	}
	m := &p.payload
	m.number(1, id)
	m.number(2, uint64(end-start))
	m.number(5, p.context(&l.Lane))
	m.number(11, uint64(l.gpu.id))
	m.number(13, p.queue(l))
	m.number(14, stageOf(o.ShapeRef.Operation))
	m.number(20, p.intern(p.names, internedEventNames, o.ShapeRef.Name))
	if o.Correlation.OK {
		m.number(10, uint64(uint32(o.Correlation.V)))
	}
	for _, a := range args {
		x := m.begin(6)
		m.text(1, a.name)
		m.text(2, textOf(a.value))
		m.end(x)
	}
	if o.ShapeRef.Operation == store.OpKernel {
		m.number(19, p.kernel(o.Shape, o.ShapeRef, l))
		x := m.begin(21)
		p.dimensions(1, o.ShapeRef.Grid)
		p.dimensions(2, o.ShapeRef.Block)
		m.end(x)
	} else {
		for _, a := range o.ShapeRef.Attrs {
			if v := textOf(a.Value); v != "" {
				x := m.begin(6)
				m.text(1, a.Key)
				m.text(2, v)
				m.end(x)
			}
		}
	}
	p.packet(fieldRenderStage, start)
}

func (p *perfetto) dimensions(field protowire.Number, size []int64) {
	if len(size) == 0 {
		return
	}
	m := p.payload.begin(field)
	for i, v := range size[:min(len(size), 3)] {
		p.payload.number(protowire.Number(i+1), uint64(min(max(v, 0), math.MaxUint32)))
	}
	p.payload.end(m)
}

// context returns the id of a CUDA context, and defines it if it is new.
func (p *perfetto) context(l *store.Lane) uint64 {
	id := uint64(unknownContext)
	if l.Context.OK && l.Context.V > 0 && l.Context.V < unknownContext {
		id = uint64(l.Context.V)
	}
	if !p.contexts[id] {
		p.contexts[id] = true
		m := p.interned.begin(internedContexts)
		p.interned.number(1, id)
		p.interned.number(2, uint64(p.pid()))
		p.interned.number(3, apiCUDA)
		p.interned.end(m)
	}
	return id
}

// queue returns the id of a lane, and defines it if it is new.
func (p *perfetto) queue(l *lane) uint64 {
	id := queueID(l)
	if !p.queues[l.index] {
		p.queues[l.index] = true
		m := p.interned.begin(internedSpecifications)
		p.interned.number(1, id)
		p.interned.text(2, l.name)
		p.interned.end(m)
	}
	return id
}

// kernel returns the id of a shape, and defines it if it is new. The names of its parameters are
// those that Perfetto's GPU compute views read.
func (p *perfetto) kernel(shape uint32, s *store.Shape, l *lane) uint64 {
	if id, ok := p.kernels[shape]; ok {
		return id
	}
	p.nextIID++
	id := p.nextIID
	p.kernels[shape] = id
	var args []arg
	args = appendInt(args, "registers_per_thread", s.Registers)
	args = appendInt(args, "shared_mem_static", s.SharedStatic)
	args = appendInt(args, "shared_mem_dynamic", s.SharedDynamic)
	args = appendInt(args, "shared_mem_config_size", s.SharedExecuted)
	if threads, ok := product(s.Block); ok {
		args = append(args, number("workgroup_size", threads))
		if blocks, ok := product(s.Grid); ok {
			args = append(args, number("grid_size", blocks))
			if n, ok := product([]int64{threads, blocks}); ok {
				args = append(args, number("thread_count", n))
			}
		}
	}
	if v, ok := s.Attrs.Get(semconv.CUDAOccupancyTheoretical); ok && v.Kind == store.KindDouble {
		args = append(args, arg{"sm__maximum_warps_per_active_cycle_pct", store.Value{Kind: store.KindDouble, Double: 100 * v.Double}})
	}
	if v, ok := s.Attrs.Get(semconv.CUDAOccupancyActiveWarpsPerSM); ok {
		args = append(args, arg{"sm__maximum_warps_avg_per_active_cycle", v})
	}
	if v, ok := s.Attrs.Get(semconv.CUDAOccupancyWaves); ok {
		args = append(args, arg{"waves_per_multiprocessor", v})
	}
	args = append(args, number("process_id", p.pid()), word("process_name", cmp.Or(p.info.Service, "unnamed")))
	args = appendInt(args, "local memory per thread", s.LocalMemory)
	args = appendAttrs(args, s.Attrs)
	ids := make([]uint64, len(args)) // defining a name must not begin within the kernel
	for i, a := range args {
		ids[i] = p.intern(p.argNames, internedArgNames, a.name)
	}
	m := p.interned.begin(internedKernels)
	p.interned.number(1, id)
	p.interned.text(2, cmp.Or(s.Symbol, s.FullName, s.Name))
	p.interned.text(3, cmp.Or(s.FullName, s.Name))
	if arch := cmp.Or(text(s.Attrs, semconv.CUDADeviceComputeCapability), text(p.info.Resource, semconv.CUDADeviceComputeCapability)); arch != "" {
		p.interned.text(4, "sm_"+strings.ReplaceAll(arch, ".", ""))
	}
	for i, a := range args {
		x := p.interned.begin(5)
		p.interned.number(1, ids[i])
		switch a.value.Kind {
		case store.KindInt:
			p.interned.number(3, uint64(a.value.Int))
		case store.KindDouble:
			p.interned.double(5, a.value.Double)
		default:
			p.interned.text(6, textOf(a.value))
		}
		p.interned.end(x)
	}
	p.interned.end(m)
	return id
}

// product multiplies positive numbers, unless the result exceeds 2^62.
func product(size []int64) (n int64, ok bool) {
	n = 1
	for _, v := range size {
		if v <= 0 || n > 1<<62/v {
			return 0, false
		}
		n *= v
	}
	return n, len(size) > 0
}

func (p *perfetto) span(x *store.SpanRow) {
	t, group := p.tracks.span(x)
	p.slice(t, group, x.StartNs, end(x.StartNs, x.EndNs), x.Name, cmp.Or(x.Operation, "request"), appendSpan(p.annotated[:0], x), 0)
}

// slice writes a slice of a track, or an instant if the track is nil. GPU is the event of the device
// that the slice launched, 0 for none.
func (p *perfetto) slice(t *track, group string, start, end int64, name, category string, args []arg, gpu uint64) {
	if t == nil {
		args = append(args, number("duration ns", end-start))
		p.instant(p.tracks.instant(group+", more than can be shown").id, start, name, category, args)
		return
	}
	p.event(typeBegin, t.id, start, name, category, args, gpu)
	m := &p.payload
	m.number(eventType, typeEnd)
	m.number(eventTrack, uint64(trackProcess+t.id))
	p.packet(fieldTrackEvent, end)
}

func (p *perfetto) instant(track int, at int64, name, category string, args []arg) {
	p.event(typeInstant, track, at, name, category, args, 0)
}

func (p *perfetto) event(kind uint64, track int, at int64, name, category string, args []arg, gpu uint64) {
	m := &p.payload
	m.number(eventType, kind)
	m.number(eventTrack, uint64(trackProcess+track))
	m.number(eventName, p.intern(p.names, internedEventNames, name))
	m.text(eventCategories, category)
	for _, a := range args {
		key := p.intern(p.keys, internedAnnotationNames, a.name)
		x := m.begin(eventAnnotations)
		m.number(1, key)
		switch a.value.Kind {
		case store.KindBool:
			m.number(2, uint64(a.value.Int))
		case store.KindInt:
			m.number(4, uint64(a.value.Int))
		case store.KindDouble:
			m.double(5, a.value.Double)
		default:
			m.text(6, textOf(a.value))
		}
		m.end(x)
	}
	if gpu != 0 {
		x := m.begin(eventGPU)
		m.number(1, gpu)
		m.end(x)
	}
	p.annotated = args
	p.packet(fieldTrackEvent, at)
}

func (p *perfetto) counters() error {
	list, err := p.series()
	if err != nil {
		return err
	}
	for i := range list {
		x := &list[i]
		id := uint64(trackCounters + i)
		p.descriptor(id, x.name, rankCounters, cmp.Or(x.Unit, "1"))
		err := p.points(x, func(at int64, v float64) error {
			m := &p.payload
			m.number(eventType, typeCounter)
			m.number(eventTrack, id)
			m.double(eventDouble, v)
			p.packet(fieldTrackEvent, at)
			return p.err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
