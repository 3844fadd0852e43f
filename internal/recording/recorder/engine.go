// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
	"github.com/gpuflight/gpuflight/internal/version"
)

const (
	// sendSpans is the number of spans in a request to the sink: about 5 MB of OTLP.
	sendSpans = 5000
	// portionBuffers bounds the buffers among which spans are selected together. More buffers would
	// need more memory for candidates and hardly change the selection.
	portionBuffers = 8
	// keepCandidates bounds the candidates whose memory is kept between rounds: 20 MB.
	keepCandidates = 1 << 19
)

// engine is the consumer of records. It holds the state derived from records and makes telemetry of
// it. It belongs to one goroutine.
type engine struct {
	cfg  Config
	src  Source
	sink Sink
	log  *slog.Logger
	key  gpuevent.SessionKey

	// session is the resource of the current batch. It is replaced when devices become known.
	// resource is the same for metrics.
	session  *gpuevent.Session
	resource pcommon.Resource
	batch    *gpuevent.Batch

	scopes *scopes
	totals *totals
	calls  *calls // nil unless host calls are recorded
	stacks launchStacks
	// attachment is the attachment of the correlation ids in calls.
	attachment uint32

	// figures are the inputs of rules; nil without rules.
	figures *rule.Figures
	windows windows
	// distorted is safe for all goroutines.
	distorted distortedIntervals
	// overhead is nil without an overhead budget.
	overhead *overheadLimiter
	// results are the results of windows. They are sent at the end of a round, when the kernels of
	// their time are known.
	results []*Window
	// texts are listings of functions. They are sent after results.
	texts []WindowTexts

	// work limits spans of device work; ranges limits NVTX ranges and marks.
	work, ranges bucket
	chooser      chooser
	candidates   []candidate
	// now is the start of the round by the local clock. lastSeen is the latest time in a record.
	now      time.Time
	lastSeen int64
	// number is the number of device spans so far. Their ids are derived from it.
	number uint64
	// logs is the number of log records so far. Their ids are derived from it.
	logs  uint64
	spans SpanCounts
	// unknown counts records with an unknown scope, unread those that were returned unread.
	unknown, unread uint64
	events          []cupti.ScopeEvent

	lastMetrics int64
	ownTime     func() time.Duration
	// wait returns when the sink has no backlog, or must not be waited for.
	wait func()

	// The following are reused for each event.
	kernel gpuevent.Kernel
	copy   gpuevent.Copy
	set    gpuevent.Set
	sync   gpuevent.Sync
	memory gpuevent.Memory
	graph  gpuevent.Graph
}

func newEngine(cfg Config, src Source, sink Sink, now time.Time) *engine {
	e := &engine{
		cfg: cfg, src: src, sink: sink, log: cfg.Logger, key: gpuevent.KeyOf(cfg.InstanceID),
		batch: gpuevent.NewBatch(gpuevent.Signals{Traces: true, Logs: true}),
		work:  newBucket(cfg.MaxSpansPerSecond, now), now: now,
		ownTime: func() time.Duration { return 0 }, wait: func() {},
	}
	// Ranges are bounded even if spans of device work are disabled.
	rate := cfg.MaxSpansPerSecond
	if rate < 0 {
		rate = defaultMaxSpansPerSecond
	}
	e.ranges = newBucket(rate, now)
	if cfg.Asked.Has(cupti.KindRuntimeAPI) || cfg.Asked.Has(cupti.KindDriverAPI) {
		e.calls = newCalls()
	}
	start := cfg.Start.UnixNano()
	names := newNames(cfg.Include, cfg.Exclude)
	if cfg.Rules != nil {
		if e.figures = cfg.Rules.Figures(); e.figures != nil {
			names.observe(e.figures)
		}
	}
	e.totals = newTotals(names, start)
	ref := sessionRef(cfg, e.key)
	e.scopes = newScopes(e, &scope{
		kind: gpuevent.KindSession, sampled: !cfg.HasParent || cfg.ParentSampled,
		first: ref, cur: ref, start: start,
		trace: &trace{id: ref.Trace, kind: gpuevent.KindSession, spans: 1},
	})
	e.describeSession(nil)
	return e
}

func sessionRef(cfg Config, key gpuevent.SessionKey) gpuevent.Ref {
	ref := gpuevent.Ref{Trace: gpuevent.SessionTrace(cfg.InstanceID), Span: key.Span(gpuevent.KindSession, 0, 0)}
	if cfg.HasParent {
		ref.Trace, ref.Parent = cfg.Parent.Trace, cfg.Parent.Span
	}
	return ref
}

// describeSession sets the session's resource.
func (e *engine) describeSession(devices []gpuevent.Device) {
	cfg := &e.cfg
	s := &gpuevent.Session{
		ID: cfg.InstanceID, App: cfg.ServiceName, HostName: cfg.HostName,
		StartNs: e.totals.start, Devices: devices, Distro: distroName, DistroVersion: version.String(), Extra: cfg.Resource,
	}
	if cfg.PID != 0 {
		s.PID = gpuevent.Some(int64(cfg.PID))
	}
	e.session = s
	// Only gpuevent writes resources. Make one with a span and keep it for metrics.
	b := gpuevent.NewBatch(gpuevent.Signals{Traces: true})
	b.SessionSpan(s, &gpuevent.SessionSpan{})
	t, _, _ := b.Take()
	e.resource = pcommon.NewResource()
	t.ResourceSpans().At(0).Resource().CopyTo(e.resource)
}

// learnDevices queries the devices until there are some. A library that the driver loads starts
// before the devices exist.
func (e *engine) learnDevices() {
	if len(e.session.Devices) > 0 {
		return
	}
	if devices := e.src.Devices(); len(devices) > 0 {
		e.describeSession(append([]gpuevent.Device(nil), devices...))
	}
}

// seen updates lastSeen.
func (e *engine) seen(ns int64) { e.lastSeen = max(e.lastSeen, ns) }

// learnCalls reads the host calls of a buffer.
func (e *engine) learnCalls(b Records) {
	if a := b.Attachment(); a != e.attachment {
		// Correlation ids restart with each attachment.
		e.attachment, e.calls = a, newCalls()
	}
	for i := range b.Len() {
		h := b.Head(i)
		if h.Kind != cupti.KindRuntimeAPI && h.Kind != cupti.KindDriverAPI || h.Correlation == 0 {
			continue
		}
		e.seen(h.End)
		c := call{h.Start, h.End}
		// A runtime call and the driver call inside it may share an id. The outer call counts.
		if other, ok := e.calls.get(h.Correlation); ok && other.start <= c.end && c.start <= other.end {
			c = call{min(c.start, other.start), max(c.end, other.end)}
		}
		e.calls.put(h.Correlation, c)
	}
}

// process makes telemetry of buffers and releases them.
func (e *engine) process(held []Records) {
	e.learnDevices()
	records := 0
	for _, b := range held {
		records += b.Len()
	}
	// Share the budget by the number of records, so that the first portion does not use all of it.
	budget := e.work.available(e.now)
	for len(held) > 0 {
		n := min(len(held), portionBuffers)
		portion := 0
		for _, b := range held[:n] {
			portion += b.Len()
		}
		share := budget
		if portion < records {
			share = int(int64(budget) * int64(portion) / int64(records))
		}
		used := e.portion(held[:n], share)
		e.work.take(used)
		budget -= used
		records -= portion
		for _, b := range held[:n] {
			b.Release()
		}
		held = held[n:]
	}
}

// portion makes telemetry of some buffers with at most budget spans. It returns their number.
func (e *engine) portion(held []Records, budget int) int {
	e.candidates = e.candidates[:0]
	for i, b := range held {
		e.count(b, uint16(i))
	}
	used := e.chooser.choose(e.candidates, groups, budget)
	for i := range e.candidates {
		c := &e.candidates[i]
		if c.chosen {
			e.emit(held[c.buffer], c)
			continue
		}
		e.spans.LeftOut++
		e.totals.leftOut(c.op, c.group, c.device)
	}
	if cap(e.candidates) > keepCandidates {
		e.candidates, e.chooser.order = nil, nil
	} else {
		clear(e.candidates) // release the scopes
	}
	return used
}

// Groups that share the spans: kernel names, kinds of copies, other operations.
const (
	groupCopies = maxNames + 1
	groupOthers = groupCopies + maxCopyKinds
	groups      = groupOthers + int(numOperations)
)

// count is the first pass over a buffer. It updates the metrics and collects candidates for spans.
func (e *engine) count(b Records, buffer uint16) {
	minNs := int64(e.cfg.MinDuration)
	for i := range b.Len() {
		h := b.Head(i)
		var op operation
		switch h.Kind {
		case cupti.KindKernel:
			op = opKernel
		case cupti.KindMemcpy, cupti.KindMemcpyP2P:
			op = opCopy
		case cupti.KindMemset:
			op = opSet
		case cupti.KindGraph:
			op = opGraph
		case cupti.KindSync:
			op = opSync
		case cupti.KindMemory:
			op = opAlloc
			e.memory = gpuevent.Memory{}
			if b.Memory(i, &e.memory); e.memory.Free {
				op = opFree
			}
		default:
			continue
		}
		e.lastSeen = max(e.lastSeen, h.End)
		s := e.scopeOf(h)
		device := deviceSlot(h.Device)
		c := candidate{ns: max(0, h.End-h.Start), scope: s, index: uint32(i), buffer: buffer, op: op, device: device}
		wanted := !e.cfg.KernelsOnly && (c.ns >= minNs || op == opAlloc || op == opFree)
		if op == opKernel {
			c.group = e.totals.kernel(h, s.label, device)
			wanted = c.ns >= minNs && !e.totals.names.all[c.group].filtered
		} else {
			e.totals.other(op, h, s.label, device)
			c.group = groupOthers + uint32(op)
			if op == opCopy {
				c.group = groupCopies + uint32(e.totals.kind(h.CopyKind))
			}
		}
		switch {
		case !e.visible(s).sampled:
			e.spans.Unsampled++
			e.totals.leftOut(op, c.group, device)
		case !wanted:
			e.spans.LeftOut++
			e.totals.leftOut(op, c.group, device)
		default:
			e.candidates = append(e.candidates, c)
		}
	}
}

// scopeOf returns the scope in which a record's call was made.
func (e *engine) scopeOf(h *cupti.Head) *scope {
	if h.Scope == 0 {
		return e.scopes.session
	}
	s := e.scopes.find(h.Scope)
	if s == nil {
		e.unknown++
		return e.scopes.session
	}
	return s
}

// emit is the second pass over a record: it makes the span.
func (e *engine) emit(b Records, c *candidate) {
	around := e.visible(c.scope)
	e.room(around)
	parent := e.place(around)
	e.number++
	i := int(c.index)
	h := b.Head(i)
	if t := around.trace; t != nil {
		t.spans++
		t.touch(h.Start, h.End)
	}
	var span *gpuevent.Span
	kind := gpuevent.KindKernel
	switch c.op {
	case opKernel:
		e.kernel = gpuevent.Kernel{}
		b.Kernel(i, &e.kernel)
		span = &e.kernel.Span
		if e.kernel.Name == nil {
			e.kernel.Name = e.totals.names.all[otherIndex].name
		}
	case opCopy:
		e.copy, kind = gpuevent.Copy{}, gpuevent.KindCopy
		b.Copy(i, &e.copy)
		span = &e.copy.Span
	case opSet:
		e.set, kind = gpuevent.Set{}, gpuevent.KindSet
		b.Set(i, &e.set)
		span = &e.set.Span
	case opGraph:
		e.graph, kind = gpuevent.Graph{}, gpuevent.KindGraph
		b.Graph(i, &e.graph)
		span = &e.graph.Span
	case opSync:
		e.sync, kind = gpuevent.Sync{}, gpuevent.KindSync
		b.Sync(i, &e.sync)
		span = &e.sync.Span
	default:
		e.memory, kind = gpuevent.Memory{}, gpuevent.KindMemory
		b.Memory(i, &e.memory)
		span = &e.memory.Span
	}
	span.Ref = gpuevent.Ref{Trace: parent.Trace, Span: e.key.Span(kind, e.number, 0), Parent: parent.Span}
	span.ScopeName = c.scope.name
	span.ScopeInferred = h.ScopeInferred
	if c.op.onDevice() && e.distorted.overlaps(h.Start, h.End) {
		span.Estimated = true
	}
	if c.op == opKernel {
		e.windows.launched(h, span.Ref, c.scope)
	}
	if e.calls != nil && h.Correlation != 0 {
		if asked, ok := e.calls.get(h.Correlation); ok {
			span.LaunchStartNs, span.LaunchEndNs = gpuevent.Some(asked.start), gpuevent.Some(asked.end)
		}
	}
	stacks := e.stacks.of(h.Correlation, b.Attachment())
	span.Stack, span.StackBefore = stacks.launch, stacks.before
	if span.Stack == "" {
		span.Stack, c.scope.stack = c.scope.stack, ""
	}
	switch c.op {
	case opKernel:
		e.batch.Kernel(e.session, &e.kernel)
	case opCopy:
		e.batch.Copy(e.session, &e.copy)
	case opSet:
		e.batch.Set(e.session, &e.set)
	case opGraph:
		e.batch.Graph(e.session, &e.graph)
	case opSync:
		e.batch.Sync(e.session, &e.sync)
	default:
		e.batch.Memory(e.session, &e.memory)
	}
	e.spans.Emitted++
	e.sendIfFull()
}

func (e *engine) sendIfFull() {
	if e.batch.Spans() >= sendSpans || e.batch.LogRecords() >= sendSpans {
		e.send()
	}
}

// send passes the current batch to the sink.
func (e *engine) send() {
	if e.batch.Spans() == 0 && e.batch.LogRecords() == 0 {
		return
	}
	spans, records := e.batch.Spans(), e.batch.LogRecords()
	traces, logs, _ := e.batch.Take()
	if spans > 0 {
		e.wait()
		e.sink.Traces(traces)
	}
	if records > 0 {
		e.sink.Logs(logs)
	}
}

// tick runs the periodic work that is due.
func (e *engine) tick() {
	now := e.now.UnixNano()
	e.learnDevices()
	if e.calls != nil {
		e.calls.age(now)
	}
	e.scopes.forget(now)
	if e.overhead != nil {
		e.overhead.own.Store(int64(e.ownTime()))
	}
	if e.figures != nil {
		e.cfg.Rules.Tick(e.now)
	}
	if now-e.lastMetrics >= int64(e.cfg.MetricInterval) {
		if e.lastMetrics != 0 {
			e.sendMetrics()
		}
		e.lastMetrics = now
	}
}
