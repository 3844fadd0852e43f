// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testInstance = "4be20f6a-7a3e-4d6c-9a51-08c1f5f2a001"

// records is a fake buffer.
type records struct {
	heads      []cupti.Head
	attachment uint32
	free       map[int]bool // by record: releases of memory
	released   bool
	poison     bool // Head panics
}

func (r *records) Len() int { r.check(); return len(r.heads) }

func (r *records) Attachment() uint32 { r.check(); return r.attachment }

func (r *records) Head(i int) *cupti.Head {
	r.check()
	if r.poison {
		panic("poisoned")
	}
	return &r.heads[i]
}

func (r *records) check() {
	if r.released {
		panic("used after Release")
	}
}

func (r *records) span(i int) gpuevent.Span {
	h := r.Head(i)
	s := gpuevent.Span{StartNs: h.Start, EndNs: h.End, Correlation: gpuevent.Some(int64(h.Correlation))}
	if h.Device >= 0 {
		s.Device = gpuevent.Some(int64(h.Device))
	}
	return s
}

func (r *records) Kernel(i int, k *gpuevent.Kernel) {
	k.Span, k.Name = r.span(i), r.heads[i].Name
}

func (r *records) Copy(i int, c *gpuevent.Copy) {
	c.Span, c.Kind, c.Bytes = r.span(i), r.heads[i].CopyKind, gpuevent.Some(r.heads[i].Bytes)
}

func (r *records) Set(i int, m *gpuevent.Set) {
	m.Span, m.Bytes = r.span(i), gpuevent.Some(r.heads[i].Bytes)
}
func (r *records) Sync(i int, y *gpuevent.Sync) { y.Span = r.span(i) }
func (r *records) Memory(i int, m *gpuevent.Memory) {
	m.Span, m.Free = r.span(i), r.free[i]
}
func (r *records) Graph(i int, g *gpuevent.Graph) { g.Span = r.span(i) }
func (r *records) API(int) string                 { return "cudaLaunchKernel" }
func (r *records) Release()                       { r.check(); r.released = true }

// source is a fake Source with the buffers of the test.
type source struct {
	mu      sync.Mutex
	queue   []*records // completed
	flushed []*records // complete with the next Flush
	events  []cupti.ScopeEvent
	stopped bool
	fail    error
	devices []gpuevent.Device
	stats   cupti.Stats
	status  cupti.Status
	nextID  uint64
	stack   []uint64
	stacks  []cupti.StackEvent
	all     []*records
	flushes int
}

var oneDevice = []gpuevent.Device{{Index: 0, Name: "Test GPU", UUID: "GPU-11111111-2222-3333-4444-555555555555"}}

func (s *source) Take(wait time.Duration) (Records, error) {
	end := time.Now().Add(wait)
	for {
		s.mu.Lock()
		switch {
		case s.fail != nil:
			defer s.mu.Unlock()
			return nil, s.fail
		case len(s.queue) > 0:
			defer s.mu.Unlock()
			b := s.queue[0]
			s.queue = s.queue[1:]
			return b, nil
		case s.stopped:
			defer s.mu.Unlock()
			return nil, io.EOF
		}
		s.mu.Unlock()
		if !time.Now().Before(end) {
			return nil, nil
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (s *source) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushes++
	s.queue = append(s.queue, s.flushed...)
	s.flushed = nil
	return nil
}

func (s *source) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

func (s *source) NoStacks() string { return "" }

func (s *source) StackEvents(dst []cupti.StackEvent) []cupti.StackEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst = append(dst, s.stacks...)
	s.stacks = nil
	return dst
}

func (s *source) ScopeEvents(dst []cupti.ScopeEvent) []cupti.ScopeEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst = append(dst, s.events...)
	s.events = nil
	return dst
}

func (s *source) Devices() []gpuevent.Device { return s.devices }
func (s *source) Stats() cupti.Stats         { return s.stats }
func (s *source) Status() cupti.Status       { return s.status }

func (s *source) PushScope(id uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stack = append(s.stack, id)
	return nil
}

func (s *source) PopScope(id uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.stack); n == 0 || s.stack[n-1] != id {
		return errors.New("misplaced")
	}
	s.stack = s.stack[:len(s.stack)-1]
	return nil
}

func (s *source) NextScopeID() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	return s.nextID
}

func (s *source) deliver(heads ...cupti.Head) {
	s.add(&records{heads: heads})
}

func (s *source) add(b *records) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, b)
	s.all = append(s.all, b)
}

// deliverAtFlush completes a buffer at the next Flush.
func (s *source) deliverAtFlush(heads ...cupti.Head) {
	b := &records{heads: heads}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushed = append(s.flushed, b)
	s.all = append(s.all, b)
}

func (s *source) event(events ...cupti.ScopeEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, events...)
}

func (s *source) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, s.flushed...)
	s.flushed = nil
	s.stopped = true
}

// sink keeps all telemetry that it receives.
type sink struct {
	mu      sync.Mutex
	spans   []ptrace.Span
	logs    []plog.LogRecord
	metrics []pmetric.Metrics
	// resources are the resources of all signals.
	resources []pcommon.Map
	panics    bool
	backlog   atomic.Bool
}

func (s *sink) Backlog() bool { return s.backlog.Load() }

func (s *sink) Traces(t ptrace.Traces) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.panics {
		panic("sink")
	}
	for _, rs := range t.ResourceSpans().All() {
		s.resources = append(s.resources, rs.Resource().Attributes())
		for _, ss := range rs.ScopeSpans().All() {
			for _, x := range ss.Spans().All() {
				s.spans = append(s.spans, x)
			}
		}
	}
}

func (s *sink) Logs(l plog.Logs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rl := range l.ResourceLogs().All() {
		s.resources = append(s.resources, rl.Resource().Attributes())
		for _, sl := range rl.ScopeLogs().All() {
			for _, x := range sl.LogRecords().All() {
				s.logs = append(s.logs, x)
			}
		}
	}
}

func (s *sink) Metrics(m pmetric.Metrics) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics = append(s.metrics, m)
	s.resources = append(s.resources, m.ResourceMetrics().At(0).Resource().Attributes())
}

// count returns the number of metric exports.
func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.metrics)
}

// operation returns the spans of one operation.
func (s *sink) operation(op string) []ptrace.Span {
	var found []ptrace.Span
	for _, x := range s.spans {
		if attr(x.Attributes(), semconv.CUDAOperation) == op {
			found = append(found, x)
		}
	}
	return found
}

func (s *sink) spanNamed(t testing.TB, name string) ptrace.Span {
	t.Helper()
	var found []ptrace.Span
	for _, x := range s.spans {
		if x.Name() == name {
			found = append(found, x)
		}
	}
	require.Len(t, found, 1, name)
	return found[0]
}

// points returns the values of a metric's points by their attributes as text.
func (s *sink) points(name string) map[string]float64 {
	found := map[string]float64{}
	if len(s.metrics) == 0 {
		return found
	}
	m := s.metrics[len(s.metrics)-1]
	for _, x := range m.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if x.Name() != name {
			continue
		}
		switch x.Type() {
		case pmetric.MetricTypeSum:
			for _, p := range x.Sum().DataPoints().All() {
				v := p.DoubleValue()
				if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
					v = float64(p.IntValue())
				}
				found[series(p.Attributes())] = v
			}
		case pmetric.MetricTypeGauge:
			for _, p := range x.Gauge().DataPoints().All() {
				found[series(p.Attributes())] = p.DoubleValue()
			}
		case pmetric.MetricTypeHistogram:
			for _, p := range x.Histogram().DataPoints().All() {
				found[series(p.Attributes())] = p.Sum()
			}
		case pmetric.MetricTypeExponentialHistogram:
			for _, p := range x.ExponentialHistogram().DataPoints().All() {
				found[series(p.Attributes())] = float64(p.Count())
			}
		}
	}
	return found
}

// total returns the sum of a metric's integer points.
func (s *sink) total(name string) uint64 {
	total := uint64(0)
	for _, v := range s.points(name) {
		total += uint64(v)
	}
	return total
}

// series returns the attributes of a point as text, without the device.
func series(a pcommon.Map) string {
	text := ""
	for _, key := range []string{semconv.CUDAOperation, semconv.CUDAKernelName, semconv.CUDAScopeName, semconv.CUDAMemcpyKind, semconv.ErrorType, semconv.GpuflightOverheadKind} {
		if v := attr(a, key); v != "" {
			text += v + "|"
		}
	}
	return text
}

func attr(a pcommon.Map, key string) string {
	v, ok := a.Get(key)
	if !ok {
		return ""
	}
	return v.AsString()
}

// fixture is a recorder between a source and a sink.
type fixture struct {
	t    testing.TB
	src  *source
	sink *sink
	r    *Recorder
}

func newFixture(t testing.TB, cfg Config) *fixture {
	t.Helper()
	f := &fixture{t: t, src: &source{devices: oneDevice, stats: cupti.Stats{}}, sink: &sink{}}
	if cfg.InstanceID == "" {
		cfg.InstanceID = testInstance
	}
	if cfg.ServiceName == "" {
		cfg.ServiceName = "app"
	}
	if cfg.FlushInterval == 0 {
		cfg.FlushInterval = 2 * time.Millisecond
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r, err := New(cfg, f.src, f.sink)
	require.NoError(t, err)
	f.r = r
	return f
}

func (f *fixture) start() *fixture {
	f.r.Start()
	return f
}

// stop stops the source and the recorder.
func (f *fixture) stop() Summary {
	f.t.Helper()
	f.src.end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := f.r.Stop(ctx)
	for _, b := range f.src.all {
		require.True(f.t, b.released, "a buffer was not given back")
	}
	return s
}

// base is a time in the past, so that no record is in the future.
var base = time.Now().Add(-time.Hour).UnixNano()

var testNames = map[string]*gpuevent.KernelName{}

func nameOf(s string) *gpuevent.KernelName {
	if testNames[s] == nil {
		testNames[s] = gpuevent.NewKernelName(s)
	}
	return testNames[s]
}

func kernel(name string, correlation uint32, start, ns int64) cupti.Head {
	return cupti.Head{Kind: cupti.KindKernel, Name: nameOf(name), Correlation: correlation, Start: base + start, End: base + start + ns}
}

func node(name string, correlation uint32, start, ns int64) cupti.Head {
	h := kernel(name, correlation, start, ns)
	h.GraphNode = true
	return h
}

func copyHead(kind string, bytes int64, correlation uint32, start, ns int64) cupti.Head {
	return cupti.Head{Kind: cupti.KindMemcpy, CopyKind: kind, Bytes: bytes, Correlation: correlation, Start: base + start, End: base + start + ns}
}

// in sets the scope of a record.
func in(scope uint64, h cupti.Head) cupti.Head {
	h.Scope = scope
	return h
}

func refOf(trace, span byte) gpuevent.Ref {
	return gpuevent.Ref{Trace: gpuevent.TraceID{15: trace}, Span: gpuevent.SpanID{7: span}}
}

func begin(id, parent uint64, thread uint32, at int64, name string) cupti.ScopeEvent {
	return cupti.ScopeEvent{What: cupti.ScopeBegin, ID: id, Parent: parent, Thread: thread, TimeNs: base + at, Name: name, Nested: true}
}

func endOf(id uint64, thread uint32, at int64) cupti.ScopeEvent {
	return cupti.ScopeEvent{What: cupti.ScopeEnd, ID: id, Thread: thread, TimeNs: base + at, Nested: true}
}

// firstUID is the id of the first log record of the session.
var firstUID = gpuevent.KeyOf(testInstance).UID(1, 0).String()
