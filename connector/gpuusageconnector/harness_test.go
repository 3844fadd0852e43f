// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/metadata"
	"github.com/gpuflight/gpuflight/semconv"
)

// epoch is a moment at which tests begin.
const testEpoch = int64(1_800_000_000_000_000_000)

// clock is a wall clock that tests move.
type clock struct {
	mu sync.Mutex
	at int64
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(0, c.at)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at += int64(d)
}

// rig is a connector with a clock of its own and no ticks: tests flush.
type rig struct {
	t    testing.TB
	c    *usageConnector
	sink *consumertest.MetricsSink
	clock
}

func testConfig(change ...func(*Config)) *Config {
	cfg := createDefaultConfig().(*Config)
	for _, f := range change {
		f(cfg)
	}
	return cfg
}

// newRig starts a connector. A storage may be given.
func newRig(t testing.TB, cfg *Config, st *memoryStorage) *rig {
	t.Helper()
	return newRigAt(t, cfg, st, testEpoch)
}

func newRigAt(t testing.TB, cfg *Config, st *memoryStorage, at int64) *rig {
	t.Helper()
	require.NoError(t, cfg.Validate())
	r := &rig{t: t, sink: &consumertest.MetricsSink{}, clock: clock{at: at}}
	r.c = newConnector(cfg, connectortest.NewNopSettings(metadata.Type), r.sink)
	r.c.now = r.clock.now
	r.c.ticks = func(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }
	host := storageHost{}
	if st != nil {
		id := component.MustNewID("memory")
		cfg.Storage = &id
		host[id] = st
	}
	require.NoError(t, r.c.Start(t.Context(), host))
	return r
}

func (r *rig) send(td ptrace.Traces) { require.NoError(r.t, r.c.ConsumeTraces(r.t.Context(), td)) }

// flush returns what is exported now.
func (r *rig) flush() pmetric.Metrics {
	r.sink.Reset()
	r.c.flush(context.Background(), false)
	return r.last()
}

// finish settles everything and returns what is exported.
func (r *rig) finish() pmetric.Metrics {
	r.sink.Reset()
	r.c.flush(context.Background(), true)
	return r.last()
}

func (r *rig) shutdown() { require.NoError(r.t, r.c.Shutdown(context.Background())) }

func (r *rig) last() pmetric.Metrics {
	all := r.sink.AllMetrics()
	if len(all) == 0 {
		return pmetric.NewMetrics()
	}
	return all[len(all)-1]
}

// kill leaves the connector as a killed process would: nothing is flushed, nothing is stored.
func (r *rig) kill() {
	r.c.cancel()
	<-r.c.done
	r.c.tel.Shutdown()
	r.c.stopOnce.Do(func() {})
}

// testSpan is a span of device work, or of something else where op is empty.
type testSpan struct {
	service, instance, host string
	device, model           string
	op                      string
	name                    string // of the kernel, the kind of the copy, or the span
	scope                   string
	kind                    ptrace.SpanKind
	trace, id, parent       uint64
	start, end              int64
	queue                   int64 // ns + 1; 0 is unknown
	bytes                   int64 // + 1
	stream                  int64 // + 1
	node                    bool
}

func traceID(n uint64) (id pcommon.TraceID) {
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

func spanID(n uint64) (id pcommon.SpanID) {
	binary.BigEndian.PutUint64(id[:], n)
	return id
}

// traces builds traces: neighbouring spans of one process share a resource.
func traces(spans ...testSpan) ptrace.Traces {
	td := ptrace.NewTraces()
	var out ptrace.SpanSlice
	for i := range spans {
		s := &spans[i]
		if i == 0 || s.service != spans[i-1].service || s.instance != spans[i-1].instance || s.host != spans[i-1].host {
			rs := td.ResourceSpans().AppendEmpty()
			a := rs.Resource().Attributes()
			putKnown(a, semconv.ServiceName, s.service)
			putKnown(a, semconv.ServiceInstanceID, s.instance)
			putKnown(a, semconv.HostName, s.host)
			out = rs.ScopeSpans().AppendEmpty().Spans()
		}
		p := out.AppendEmpty()
		p.SetTraceID(traceID(s.trace))
		p.SetSpanID(spanID(s.id))
		p.SetParentSpanID(spanID(s.parent))
		p.SetStartTimestamp(pcommon.Timestamp(s.start))
		p.SetEndTimestamp(pcommon.Timestamp(s.end))
		p.SetKind(s.kind)
		p.SetName(s.name)
		a := p.Attributes()
		putKnown(a, semconv.CUDAOperation, s.op)
		putKnown(a, semconv.HWID, s.device)
		putKnown(a, semconv.HWName, s.model)
		putKnown(a, semconv.CUDAScopeName, s.scope)
		switch s.op {
		case semconv.CUDAOperationKernel:
			putKnown(a, semconv.CUDAKernelName, s.name)
		case semconv.CUDAOperationMemcpy:
			putKnown(a, semconv.CUDAMemcpyKind, s.name)
		}
		if s.queue > 0 {
			a.PutDouble(semconv.CUDAQueueDuration, float64(s.queue-1)/1e9)
		}
		if s.bytes > 0 {
			a.PutInt(semconv.CUDAMemcpySize, s.bytes-1)
		}
		if s.stream > 0 {
			a.PutInt(semconv.CUDAContextID, 1)
			a.PutInt(semconv.CUDAStreamID, s.stream-1)
		}
		if s.node {
			a.PutInt(semconv.CUDAGraphID, 1)
		}
	}
	return td
}

// points reads an export: for each metric, the value of each series by its attributes, resource
// attributes first. Histograms have their sum; their count is under the metric's name and "#".
func points(t testing.TB, md pmetric.Metrics) map[string]map[string]float64 {
	t.Helper()
	out := map[string]map[string]float64{}
	put := func(metric, series string, v float64) {
		if out[metric] == nil {
			out[metric] = map[string]float64{}
		}
		if _, ok := out[metric][series]; ok {
			t.Fatalf("%s has %s twice", metric, series)
		}
		out[metric][series] = v
	}
	for _, rm := range md.ResourceMetrics().All() {
		resource := attributes(rm.Resource().Attributes())
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				switch m.Type() {
				case pmetric.MetricTypeSum:
					for _, p := range m.Sum().DataPoints().All() {
						v := p.DoubleValue()
						if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
							v = float64(p.IntValue())
						}
						put(m.Name(), resource+attributes(p.Attributes()), v)
					}
				case pmetric.MetricTypeExponentialHistogram:
					for _, p := range m.ExponentialHistogram().DataPoints().All() {
						series := resource + attributes(p.Attributes())
						put(m.Name(), series, p.Sum())
						put(m.Name()+"#", series, float64(p.Count()))
					}
				case pmetric.MetricTypeHistogram:
					for _, p := range m.Histogram().DataPoints().All() {
						series := resource + attributes(p.Attributes())
						put(m.Name(), series, p.Sum())
						put(m.Name()+"#", series, float64(p.Count()))
					}
				}
			}
		}
	}
	return out
}

// attributes writes attributes as {a=b, …}, in the order of their names.
func attributes(m pcommon.Map) string {
	raw := m.AsRaw()
	return fmt.Sprint(raw)
}

// total sums a metric over all series.
func total(m map[string]float64) float64 {
	sum := 0.0
	for _, v := range m {
		sum += v
	}
	return sum
}

// ns turns seconds into whole nanoseconds.
func ns(seconds float64) int64 {
	if seconds < 0 {
		return -ns(-seconds)
	}
	return int64(seconds*1e9 + 0.5)
}

type storageHost map[component.ID]component.Component

func (h storageHost) GetExtensions() map[component.ID]component.Component { return h }

// memoryStorage is a storage extension in memory. Its content survives its clients.
type memoryStorage struct {
	component.StartFunc
	component.ShutdownFunc
	mu   sync.Mutex
	kv   map[string][]byte
	fail bool
}

func newMemoryStorage() *memoryStorage { return &memoryStorage{kv: map[string][]byte{}} }

func (m *memoryStorage) GetClient(context.Context, component.Kind, component.ID, string) (storage.Client, error) {
	return m, nil
}

var errFull = errors.New("disk is full")

func (m *memoryStorage) setFail(fail bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = fail
}

func (m *memoryStorage) Get(ctx context.Context, key string) ([]byte, error) {
	op := storage.GetOperation(key)
	err := m.Batch(ctx, op)
	return op.Value, err
}

func (m *memoryStorage) Set(ctx context.Context, key string, value []byte) error {
	return m.Batch(ctx, storage.SetOperation(key, value))
}

func (m *memoryStorage) Delete(ctx context.Context, key string) error {
	return m.Batch(ctx, storage.DeleteOperation(key))
}

func (m *memoryStorage) Batch(_ context.Context, ops ...*storage.Operation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, op := range ops {
		if m.fail && op.Type != storage.Get {
			return errFull
		}
		switch op.Type {
		case storage.Get:
			op.Value = m.kv[op.Key]
		case storage.Set:
			m.kv[op.Key] = append([]byte(nil), op.Value...)
		case storage.Delete:
			delete(m.kv, op.Key)
		}
	}
	return nil
}

func (m *memoryStorage) Close(context.Context) error { return nil }
