// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Options are sizes for [Generate].
type Options struct {
	// Projects each have Sessions sessions and data without a session. The sessions have the same
	// ids in each project.
	Projects, Sessions int
	// Ops is about the number of operations of a session.
	Ops int
	// Hostile adds rows with extreme values, and rows that stores reject.
	Hostile bool
}

// epoch is the start of the first session, in 2024.
const epoch = int64(1_710_000_000_123_456_789)

// Generate returns random sessions, each in one Batch. Equal arguments give equal batches.
func Generate(seed uint64, o Options) []*store.Batch {
	var batches []*store.Batch
	for p := range max(o.Projects, 1) {
		project := ""
		if p > 0 {
			project = fmt.Sprintf("project-%d", p)
		}
		for s := range o.Sessions {
			g := newGenerator(seed, uint64(p)<<32|uint64(s), project, fmt.Sprintf("session-%02d", s))
			g.start = epoch + int64(s)*3_600_000_000_000
			g.session(o)
			batches = append(batches, g.b)
		}
		g := newGenerator(seed, uint64(p)<<32|1<<31, project, "")
		g.start = epoch
		g.outside(o)
		batches = append(batches, g.b)
	}
	return batches
}

type generator struct {
	*rand.Rand
	b       *store.Batch
	indices map[any]uint32
	start   int64
	now     int64
	origin  uint32
	trace   store.TraceID
	device  map[string]int64 // the last end of a lane's work
}

func newGenerator(seed, stream uint64, project, session string) *generator {
	r := rand.New(rand.NewPCG(seed, stream))
	return &generator{
		Rand: r, indices: map[any]uint32{}, device: map[string]int64{},
		b: &store.Batch{
			Project: project, Session: session, Origins: make([]store.Origin, 1), Extras: make([]store.Extra, 1),
			Lanes: make([]store.Lane, 1), Shapes: make([]store.Shape, 1), Places: make([]store.Place, 1),
			Stacks: make([]store.Stack, 1), Series: make([]store.Series, 1),
		},
	}
}

// keyOf hashes the content of an entry. It is never 0.
func keyOf(content any) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%T%+q", content, fmt.Sprintf("%+v", content))
	return max(h.Sum64(), 1)
}

// intern returns the index of an entry, which has the key.
func intern[T any](g *generator, entries *[]T, e T, key uint64) uint32 {
	type id struct {
		kind string
		key  uint64
	}
	k := id{fmt.Sprintf("%T", e), key}
	i, ok := g.indices[k]
	if !ok {
		i = uint32(len(*entries))
		*entries = append(*entries, e)
		g.indices[k] = i
	}
	return i
}

func (g *generator) originOf(o store.Origin) uint32 {
	o.Key = keyOf(o)
	return intern(g, &g.b.Origins, o, o.Key)
}

func (g *generator) extra(a store.Attrs) uint32 {
	e := store.Extra{Attrs: a}
	e.Key = keyOf(e)
	return intern(g, &g.b.Extras, e, e.Key)
}

func (g *generator) lane(l store.Lane) uint32 {
	l.Key = keyOf(l)
	return intern(g, &g.b.Lanes, l, l.Key)
}

func (g *generator) shape(s store.Shape) uint32 {
	s.Key = keyOf(s)
	return intern(g, &g.b.Shapes, s, s.Key)
}

func (g *generator) place(p store.Place) uint32 {
	p.Key = keyOf(p)
	return intern(g, &g.b.Places, p, p.Key)
}

func (g *generator) stack(text string) uint32 {
	s := store.Stack{Text: text}
	s.Key = keyOf(s)
	return intern(g, &g.b.Stacks, s, s.Key)
}

func (g *generator) series(s store.Series) uint32 {
	s.Key = keyOf(struct {
		store.Series
		origin uint64
	}{s, g.b.Origins[s.Origin].Key})
	return intern(g, &g.b.Series, s, s.Key)
}

func (g *generator) id() store.SpanID { return store.SpanID(g.Uint64() | 1) }

func (g *generator) traceID() (t store.TraceID) {
	binary.BigEndian.PutUint64(t[:], g.Uint64())
	binary.BigEndian.PutUint64(t[8:], g.Uint64()|1)
	return t
}

func (g *generator) uid() store.UID { return store.UID(g.traceID()) }

// chance is true once in n times.
func (g *generator) chance(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g *generator, list []T) T { return list[g.IntN(len(list))] }

// odd are strings and numbers that often break programs.
var (
	oddStrings = []string{
		"", " ", "a'b", `"`, "\\", "line\nbreak", "\x00", "a\x00b", "é", "İ", "日本語", "🙂", "%s", "NULL", "a|b", "|",
		strings.Repeat("long ", 300), "Vec<T, (2)>::op()[int]", "\u202e", "\t",
	}
	oddInts = []int64{0, -1, 1, math.MaxInt64, math.MinInt64, math.MaxUint32, 1 << 53, 1<<53 + 1, -1 << 31, 255, 256, 65536}
)

func (g *generator) int(odd bool) store.Int {
	switch {
	case g.chance(4):
		return store.Int{}
	case odd:
		return store.Some(pick(g, oddInts))
	}
	return store.Some(g.Int64N(1 << 20))
}

func (g *generator) value(depth int) store.Value {
	switch k := store.ValueKind(g.IntN(8)); k {
	case store.KindString:
		return store.Value{Kind: k, Str: pick(g, oddStrings)}
	case store.KindBytes:
		return store.Value{Kind: k, Str: "\xff\x00\x80" + pick(g, oddStrings)}
	case store.KindBool:
		return store.Value{Kind: k, Int: g.Int64N(2)}
	case store.KindInt:
		return store.Value{Kind: k, Int: pick(g, oddInts)}
	case store.KindDouble:
		return store.Value{Kind: k, Double: pick(g, []float64{0, math.Copysign(0, -1), 1.5, math.NaN(), math.Inf(1),
			math.MaxFloat64, math.SmallestNonzeroFloat64})}
	case store.KindSlice:
		v := store.Value{Kind: k}
		for range g.IntN(3) * min(depth, 1) {
			v.Slice = append(v.Slice, g.value(depth-1))
		}
		return v
	case store.KindMap:
		v := store.Value{Kind: k}
		if depth > 0 {
			v.Map = g.attrs(depth - 1)
		}
		return v
	}
	return store.Value{}
}

func (g *generator) attrs(depth int) store.Attrs {
	var a store.Attrs
	for range g.IntN(4) {
		a = append(a, store.Attr{Key: pick(g, oddStrings), Value: g.value(depth)})
	}
	return sortAttrs(a)
}

func sortAttrs(a store.Attrs) store.Attrs {
	slices.SortStableFunc(a, func(x, y store.Attr) int { return cmp.Compare(x.Key, y.Key) })
	return slices.CompactFunc(a, func(x, y store.Attr) bool { return x.Key == y.Key })
}

func str(key, v string) store.Attr {
	return store.Attr{Key: key, Value: store.Value{Kind: store.KindString, Str: v}}
}

func num(key string, v int64) store.Attr {
	return store.Attr{Key: key, Value: store.Value{Kind: store.KindInt, Int: v}}
}

var kernelNames = []string{"gemm", "Softmax", "layer_norm", "relu", "adam", "reduce", "embedding", "attention", ""}

// session generates a process that trains in steps, with kernels on several devices and streams.
func (g *generator) session(o Options) {
	resource := sortAttrs(store.Attrs{
		str(semconv.ServiceName, pick(g, []string{"Trainer", "server"})), str(semconv.HostName, fmt.Sprintf("host-%d", g.IntN(3))),
		str(semconv.CUDARunID, fmt.Sprintf("run-%d", g.IntN(2))), num(semconv.CUDARunRank, g.Int64N(8)),
		num(semconv.CUDARunSize, 8), num(semconv.ProcessPID, g.Int64N(1<<22)),
	})
	early := store.Origin{Resource: resource[:3], ScopeName: "early"}
	g.origin = g.originOf(store.Origin{Resource: resource, ResourceSchemaURL: "https://example.org/1", ScopeName: "gpuflight",
		ScopeVersion: "0.2.0", ScopeAttrs: g.attrs(1)})
	g.now = g.start
	g.trace = g.traceID()
	root := g.id()
	train := g.span(root, "train", semconv.CUDAOperationScope)
	for step := 0; len(g.b.Ops) < o.Ops; step++ {
		if g.chance(5) {
			g.request()
		}
		g.step(train, step)
		if g.chance(10) {
			// A pause, so that the session has long gaps and several bins of each level.
			g.now += g.Int64N(20_000_000_000)
		}
	}
	g.finish(train, "train", root)
	g.b.Spans = append(g.b.Spans, store.Span{
		StartNs: g.start, EndNs: g.now, Trace: g.trace, Span: root, Kind: 1, Name: "session",
		Operation: semconv.CUDAOperationSession, Origin: g.originOf(early), Attrs: g.attrs(2),
	})
	g.oddSpans(root)
	g.measurements()
	if o.Hostile {
		g.hostile()
	}
}

// open is a scope that has not ended.
type open struct {
	id    store.SpanID
	start int64
	attrs store.Attrs
}

// span starts a scope. A first version of it may arrive before it ends.
func (g *generator) span(parent store.SpanID, name, operation string) open {
	s := open{g.id(), g.now, g.attrs(1)}
	if g.chance(3) {
		g.b.Spans = append(g.b.Spans, store.Span{
			StartNs: s.start, EndNs: s.start + g.Int64N(2), Trace: g.trace, Span: s.id, Parent: parent, Kind: 1, Name: name,
			Operation: operation, Origin: g.origin, Attrs: store.Attrs{num("version", 1)},
		})
	}
	g.now += g.Int64N(5000)
	return s
}

func (g *generator) finish(s open, name string, parent store.SpanID) {
	g.now += g.Int64N(5000) + 2
	g.b.Spans = append(g.b.Spans, store.Span{
		StartNs: s.start, EndNs: g.now, Trace: g.trace, Span: s.id, Parent: parent, Kind: 1, Status: uint8(g.IntN(3)),
		Name: name, Operation: semconv.CUDAOperationScope, Origin: g.origin, Attrs: s.attrs,
	})
}

// step generates a step. In half of the sessions each has another name.
func (g *generator) step(train open, n int) {
	stepName := "step"
	if g.trace[0]%2 == 0 {
		stepName = fmt.Sprintf("step %d/%x", n, 4096+n)
	}
	step := g.span(train.id, stepName, semconv.CUDAOperationScope)
	for _, name := range []string{"forward", "backward", "optimizer"} {
		phase := g.span(step.id, name, semconv.CUDAOperationScope)
		for range 2 + g.IntN(8) {
			g.launch(g.place(store.Place{Trace: g.trace, Parent: phase.id, ScopeName: name, Inferred: g.chance(9)}))
		}
		if g.chance(3) {
			inner := g.span(phase.id, pick(g, []string{"forward", "layer", "İ", ""}), semconv.CUDAOperationScope)
			inner.attrs = sortAttrs(append(inner.attrs, num(semconv.CUDACollectiveSize, g.Int64N(math.MaxInt64))))
			g.launch(g.place(store.Place{Trace: g.trace, Parent: inner.id}))
			g.finish(inner, pick(g, []string{"layer", "forward"}), phase.id)
		}
		g.finish(phase, name, step.id)
	}
	g.launch(g.place(store.Place{Trace: g.trace, Parent: step.id, ScopeName: stepName}))
	g.finish(step, stepName, train.id)
	// Parents that never arrive, and work outside every scope.
	switch g.IntN(5) {
	case 0:
		g.launch(0)
	case 1:
		g.launch(g.place(store.Place{Parent: g.id()}))
	case 2:
		g.launch(g.place(store.Place{Parent: g.id(), ScopeName: stepName}))
	case 3:
		g.launch(g.place(store.Place{Trace: g.trace, Parent: g.id(), ScopeName: "layer", ScopePath: "train|" + stepName + "|layer"}))
	}
}

// request generates a span of another instrumentation, with a trace of its own.
func (g *generator) request() {
	trace, id := g.traceID(), g.id()
	start := g.now
	g.launch(g.place(store.Place{Trace: trace, Parent: id}))
	g.b.Spans = append(g.b.Spans, store.Span{
		StartNs: start, EndNs: g.now + g.Int64N(1000), Trace: trace, Span: id, Parent: g.id(), Kind: 2, Status: 1,
		StatusMessage: "ok", Name: "POST /generate", TraceState: "a=b", Flags: 0x101,
		Origin: g.originOf(store.Origin{Resource: g.b.Origins[g.origin].Resource, ScopeName: "http"}), Attrs: g.attrs(2),
		Events: []byte{0, 1, 255}, Links: []byte("link"), DroppedAttrs: 1, DroppedEvents: 2, DroppedLinks: math.MaxUint32,
	})
}

// launch generates one operation.
func (g *generator) launch(place uint32) {
	g.now += 500 + g.Int64N(4000)
	device, stream := g.IntN(2), g.IntN(3)
	lane := store.Lane{
		Device: fmt.Sprintf("GPU-%d", device), DeviceIndex: store.Some(int64(device)),
		Context: store.Some(int64(1 + g.IntN(2))), Stream: store.Some(int64(stream)),
	}
	shape := store.Shape{Operation: store.OpKernel}
	length := 200 + g.Int64N(1<<g.IntN(18))
	o := store.Op{
		Span: g.id(), Place: place, Origin: g.origin, LaunchStartNs: store.Some(g.now - 300), LaunchEndNs: store.Some(g.now - 100),
		Correlation: store.Some(g.Int64N(1 << 32)), Estimated: g.chance(20),
	}
	switch g.IntN(16) {
	case 0, 1:
		kind := pick(g, []string{"HtoD", "DtoH", "DtoD"})
		lane.Class = store.LaneCopy
		shape = store.Shape{Operation: store.OpCopy, Name: "memcpy " + kind, Attrs: store.Attrs{str("kind", kind)}}
		o.Bytes = store.Some(g.Int64N(1 << 30))
	case 2:
		shape = store.Shape{Operation: store.OpSet, Name: "memset"}
		o.Bytes = store.Some(4096)
	case 3:
		lane.Class = store.LaneHost
		shape = store.Shape{Operation: store.OpSync, Name: "synchronize"}
	case 4:
		lane.Class = store.LaneHost
		shape = store.Shape{Operation: pick(g, []store.Operation{store.OpAlloc, store.OpFree}), Name: "memory"}
		o.Bytes, o.Address = store.Some(1<<20), store.Some(g.Int64())
	case 5:
		shape = store.Shape{Operation: store.OpGraph, Name: "graph"}
	default:
		name := pick(g, kernelNames)
		n := int64(1) << g.IntN(3)
		shape.Name, shape.FullName, shape.Symbol = name, "void "+name+"<float, "+fmt.Sprint(n)+">(float*)", "_Z"+name
		shape.Grid, shape.Block = []int64{n, 1, 1}, []int64{128, 1, 1}
		shape.Registers, shape.SharedStatic = store.Some(32*n), store.Some(0)
		if n == 4 {
			shape.Cluster = []int64{2, 1, 1}
			shape.Attrs = store.Attrs{num("occupancy", 50)}
		}
	}
	// Half of the operations start after the ones before them in the lane, the others overlap.
	key := fmt.Sprint(lane)
	o.StartNs = g.now
	if g.chance(2) {
		o.StartNs = max(o.StartNs, g.device[key])
	}
	if g.chance(30) {
		length = 0
	}
	if g.chance(40) {
		length = g.Int64N(400_000_000) // touches several bins of a level
	}
	o.EndNs = o.StartNs + length
	g.device[key] = max(g.device[key], o.EndNs)
	if !g.chance(4) {
		o.QueueNs = store.Some(o.StartNs - o.LaunchEndNs.V)
	}
	if g.chance(3) {
		o.Stack = g.stack(fmt.Sprintf("main\ntrain_step\nline %d", g.IntN(20)))
	}
	if g.chance(6) {
		o.Extra = g.extra(g.attrs(2))
	}
	o.Lane, o.Shape = g.lane(lane), g.shape(shape)
	g.b.Ops = append(g.b.Ops, o)
	if g.chance(12) && shape.Operation == store.OpKernel {
		// The same start, and sometimes the same end, in the same lane.
		shape.Grid = []int64{7, 7, 7}
		o.Span, o.Shape, o.EndNs = g.id(), g.shape(shape), o.EndNs+g.Int64N(2)
		g.b.Ops = append(g.b.Ops, o)
	}
}

// oddSpans generates spans with unusual parents.
func (g *generator) oddSpans(root store.SpanID) {
	add := func(id, parent store.SpanID, name, operation string) {
		g.now += 1 + g.Int64N(1000)
		g.b.Spans = append(g.b.Spans, store.Span{
			StartNs: g.now, EndNs: g.now + g.Int64N(1<<20), Trace: g.trace, Span: id, Parent: parent, Name: name, Operation: operation,
		})
	}
	scope := semconv.CUDAOperationScope
	below := func(parent store.SpanID, name string) {
		g.launch(g.place(store.Place{Parent: parent, ScopeName: name}))
	}
	a, b, self, window, twice := g.id(), g.id(), g.id(), g.id(), g.id()
	add(a, b, "cycle-a", scope)
	add(b, a, "cycle-b", scope)
	add(self, self, "self", scope)
	add(g.id(), self, "below-self", scope)
	add(window, root, "window", semconv.CUDAOperationDeepWindow)
	add(g.id(), window, "below-window", scope)
	add(g.id(), g.id(), "orphan", scope)
	add(g.id(), g.b.Ops[0].Span, "below-kernel", scope)
	add(g.id(), 0, "", scope)
	add(0, 0, "zero", scope)
	add(0, a, "zero", scope)
	add(twice, 0, "first", scope)
	add(twice, root, "second", scope)
	add(g.id(), twice, "below-twice", "")
	for _, p := range []store.SpanID{a, self, window, twice, root} {
		below(p, "")
		below(p, "named")
	}
	parent := store.SpanID(0)
	for i := range store.MaxScopeDepth + 3 {
		id := g.id()
		add(id, parent, fmt.Sprintf("deep-%d", i%3), scope)
		if i >= store.MaxScopeDepth-2 {
			below(id, "deep")
		}
		parent = id
	}
	g.launch(g.place(store.Place{ScopePath: strings.Repeat("p|", store.MaxScopeDepth+5)}))
	g.launch(g.place(store.Place{ScopePath: "|", ScopeName: "x"}))
	g.launch(g.place(store.Place{ScopePath: "train", Parent: twice}))
}

// measurements generates samples, logs and metrics.
func (g *generator) measurements() {
	span := g.now - g.start
	for range 40 {
		p := store.Sample{
			UID: g.uid(), TimeNs: g.start + g.Int64N(span), Kind: store.SampleKind(1 + g.IntN(2)),
			What: pick(g, []string{"stalled_long_scoreboard", "inst_executed", ""}), Value: g.Uint64N(1000),
			Kernel: pick(g, kernelNames), Function: pick(g, []string{"f", "F", "g"}), File: pick(g, []string{"", "a.cu"}),
			Line: store.Some(g.Int64N(3)), PC: store.Some(g.Int64N(4) * 16), Trace: g.trace, Span: pick(g, g.b.Ops).Span,
			Device: "GPU-0", DeviceIndex: store.Some(0), Correlation: g.int(false), Origin: g.origin,
		}
		if g.chance(4) {
			p.Line, p.PC, p.Extra = store.Int{}, store.Int{}, g.extra(g.attrs(1))
		}
		g.b.Samples = append(g.b.Samples, p)
	}
	for range 20 {
		g.log(g.start + g.Int64N(span))
	}
	for i := range 6 {
		g.metric(pick(g, []string{"gpu.power", "gpu.memory"}), store.SeriesType(1+i%5), g.start, span, 40)
	}
}

func (g *generator) log(at int64) {
	l := store.Log{
		UID: g.uid(), TimeNs: at, ObservedNs: at + 5, Severity: uint8(g.IntN(25)), SeverityText: pick(g, []string{"", "INFO"}),
		Event: pick(g, []string{"", "cuda.marker", "nvml.xid"}), Body: g.value(2), Flags: g.Uint32(), Origin: g.origin,
		Attrs: g.attrs(2), DroppedAttrs: g.Uint32N(2),
	}
	if g.chance(2) {
		l.Trace, l.Span = g.trace, g.id()
	}
	g.b.Logs = append(g.b.Logs, l)
	if g.chance(3) {
		l.UID = g.uid() // equal but for the UID
		g.b.Logs = append(g.b.Logs, l)
	}
}

func (g *generator) metric(name string, kind store.SeriesType, start, span int64, n int) {
	series := g.series(store.Series{
		Metric: name, Unit: "W", Description: "d", Type: kind, Temporality: uint8(g.IntN(3)), Monotonic: g.chance(2),
		Attrs:  sortAttrs(append(g.attrs(1), str(semconv.HWID, fmt.Sprintf("GPU-%d", g.IntN(2))))),
		Origin: g.origin,
	})
	at := start
	for range n {
		at += 1 + g.Int64N(span/int64(n))
		p := store.Point{Series: series, TimeNs: at, StartNs: start, Flags: uint32(g.IntN(2))}
		switch {
		case kind > store.Sum:
			p.Data = []byte{byte(g.Int()), 0, 255}
			p.Exemplars = []byte("e")
		case g.chance(2):
			p.Int = store.Some(g.Int64N(20) - 10)
		default:
			p.Double, p.HasDouble = g.NormFloat64(), true
			if g.chance(10) {
				p.Double = math.NaN()
			}
		}
		g.b.Points = append(g.b.Points, p)
	}
}

// outside generates data without a session, on three days.
func (g *generator) outside(o Options) {
	g.origin = g.originOf(store.Origin{Resource: store.Attrs{str(semconv.HostName, "host-0")}})
	g.trace = g.traceID()
	for day := range int64(3) {
		g.now = g.start + day*dayNs
		for range o.Ops / 50 {
			g.request()
			g.log(g.now)
		}
		g.measurementsAt(g.now)
	}
	g.metric("gpu.temperature", store.Gauge, g.start, 3*dayNs, 90)
}

func (g *generator) measurementsAt(at int64) {
	g.b.Samples = append(g.b.Samples, store.Sample{UID: g.uid(), TimeNs: at, Kind: store.SampleStall, What: "w", Value: 1})
	g.metric("gpu.power", store.Gauge, at, 3_600_000_000_000, 20)
}

// hostile adds rows with extreme values, and rows that stores reject.
func (g *generator) hostile() {
	const latest = store.MaxTimeNs
	times := [][2]int64{
		{0, 0}, {0, 1}, {1, 0}, {latest, latest}, {latest, 0}, {latest - 1, latest}, {g.start, 0}, {g.start + 1, latest},
		{g.start + 2, g.start + 2}, {g.now, g.start},
		// Rejected.
		{-1, 5}, {5, -1}, {latest + 1, latest}, {latest, latest + 1}, {math.MinInt64, math.MaxInt64},
		{math.MaxInt64, math.MinInt64},
	}
	for i, t := range times {
		for k := range 3 {
			odd := func() store.Int { return g.int(true) }
			shape := store.Shape{
				Operation: store.OpKernel, Name: pick(g, oddStrings), FullName: pick(g, oddStrings), Symbol: pick(g, oddStrings),
				Grid: []int64{math.MaxInt64, -1}, Block: []int64{}, Cluster: oddInts, Registers: odd(), SharedStatic: odd(),
				SharedDynamic: odd(), SharedExecuted: odd(), LocalMemory: odd(), Attrs: g.attrs(3),
			}
			if k == 2 {
				shape.Operation = pick(g, []store.Operation{0, store.OpCopy, 99, 255})
			}
			op := store.Op{
				StartNs: t[0], EndNs: t[1], Span: store.SpanID(i*3 + k), LaunchStartNs: odd(), LaunchEndNs: odd(), QueueNs: odd(),
				Correlation: odd(), Bytes: odd(), Address: odd(), Origin: g.origin, Extra: g.extra(g.attrs(3)),
				Lane: g.lane(store.Lane{
					Device: pick(g, []string{"", "odd", "\x00"}), DeviceIndex: odd(), Context: odd(), Stream: odd(),
					Class: pick(g, []store.LaneClass{0, 1, 2, 200}),
				}),
				Shape: g.shape(shape), Stack: g.stack(pick(g, oddStrings)),
				Place: g.place(store.Place{
					Trace: g.traceID(), Parent: math.MaxUint64, ScopeName: pick(g, oddStrings), ScopePath: pick(g, oddStrings),
				}),
			}
			if k == 0 {
				op.Lane, op.Shape, op.Place, op.Origin = 0, 0, 0, 0
			}
			g.b.Ops = append(g.b.Ops, op)
			g.b.Spans = append(g.b.Spans, store.Span{
				StartNs: t[0], EndNs: t[1], Trace: g.traceID(), Span: store.SpanID(math.MaxUint64 - uint64(k)), Parent: g.id(),
				Kind: 255, Status: 255, StatusMessage: pick(g, oddStrings), Name: pick(g, oddStrings),
				TraceState: pick(g, oddStrings), Flags: math.MaxUint32, Operation: pick(g, oddStrings), Attrs: g.attrs(4),
				Events: []byte{}, DroppedAttrs: math.MaxUint32,
			})
		}
		g.b.Samples = append(g.b.Samples, store.Sample{
			UID: g.uid(), TimeNs: t[0], Kind: store.SampleKind(i * 17), What: pick(g, oddStrings), Value: math.MaxUint64,
			Kernel: pick(g, oddStrings), Function: pick(g, oddStrings), File: pick(g, oddStrings), Line: g.int(true),
			PC: g.int(true), DeviceIndex: g.int(true), Correlation: g.int(true),
		})
		g.b.Logs = append(g.b.Logs, store.Log{
			UID: g.uid(), TimeNs: t[0], ObservedNs: pick(g, oddInts), Severity: 255, SeverityText: pick(g, oddStrings),
			Event: pick(g, oddStrings), Body: g.value(5), Flags: math.MaxUint32, Attrs: g.attrs(4), DroppedAttrs: math.MaxUint32,
		})
	}
	s := g.series(store.Series{Metric: pick(g, oddStrings), Unit: "\x00", Type: 200, Temporality: 255, Attrs: g.attrs(3)})
	for i, v := range []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64} {
		g.b.Points = append(g.b.Points, store.Point{Series: s, TimeNs: g.start + int64(i), StartNs: math.MinInt64, Double: v, HasDouble: true})
	}
	for i, v := range oddInts {
		g.b.Points = append(g.b.Points, store.Point{Series: s, TimeNs: g.start + 100 + int64(i), StartNs: math.MaxInt64, Int: store.Some(v)})
	}
	g.b.Points = append(g.b.Points, store.Point{Series: s, TimeNs: -1}, store.Point{Series: s, TimeNs: latest}, store.Point{TimeNs: 5},
		store.Point{Series: math.MaxUint32, TimeNs: 5})
	g.b.Ops = append(g.b.Ops, store.Op{StartNs: 9, Lane: math.MaxUint32}, store.Op{StartNs: 9, Extra: math.MaxUint32})
	g.b.Spans = append(g.b.Spans, store.Span{StartNs: 9, Origin: math.MaxUint32})
}
