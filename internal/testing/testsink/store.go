// SPDX-License-Identifier: Apache-2.0

package testsink

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// Digest is a hash of an item's content, including its resource. Equal items have equal digests in
// all processes.
type Digest [16]byte

// SpanKey identifies a span for a store that keys on ids.
type SpanKey struct {
	Trace pcommon.TraceID
	Span  pcommon.SpanID
}

func (k SpanKey) String() string { return k.Trace.String() + "/" + k.Span.String() }

// Seen states the number and times of an item's arrivals.
type Seen struct {
	// Count is the number of arrivals, at least 1.
	Count int
	// First and Last are the times of the first and last arrival.
	First, Last time.Time
}

// Span is one distinct span.
type Span struct {
	SpanKey
	Seen
	Parent pcommon.SpanID
	Name   string
	// Session and App are the resource's service.instance.id and service.name.
	Session, App string
	// StartNs and EndNs are Unix nanoseconds.
	StartNs, EndNs uint64
	// Attrs and Resource hold the attributes as pcommon.Map.AsRaw returns them. In a Store with
	// keys they hold only those keys.
	Attrs, Resource map[string]any
	Links           []SpanKey
	Digest          Digest
	// Conflicts counts later arrivals with the same ids and different content. Other is the last of
	// them.
	Conflicts int
	Other     *Span
}

// LogRecord is one distinct log record.
type LogRecord struct {
	Seen
	// Event is the record's event name.
	Event, Body, Session string
	TimeNs               uint64
	SpanKey
	// Attrs and Resource are as in Span.
	Attrs, Resource map[string]any
	Digest          Digest
}

// Point is one distinct data point.
type Point struct {
	Seen
	Metric, Unit, Session string
	// Type is the metric's type: gauge, or sum with its temporality and monotonicity.
	Type   string
	TimeNs uint64
	// Value is an int64 or a float64.
	Value any
	// Attrs and Resource are as in Span.
	Attrs, Resource map[string]any
	Digest          Digest
}

// Store keeps distinct items. Create it with [NewStore].
type Store struct {
	keepAll bool
	keep    []string

	mu     sync.Mutex
	spans  map[SpanKey]*Span
	logs   map[Digest]*LogRecord
	points map[Digest]*Point
	counts Counts
}

// Counts are numbers of arrivals, including repeated ones.
type Counts struct{ Spans, Logs, Points int }

// NewStore returns an empty Store. Without keys it keeps all attributes, which suits some ten
// thousand items. With keys it keeps only those. Digests always include all attributes.
func NewStore(keys ...string) *Store {
	return &Store{
		keepAll: len(keys) == 0,
		keep:    keys,
		spans:   map[SpanKey]*Span{},
		logs:    map[Digest]*LogRecord{},
		points:  map[Digest]*Point{},
	}
}

// Traces, Logs and Metrics return consumers that feed the Store, for a component in this process.
func (s *Store) Traces() consumer.Traces {
	c, err := consumer.NewTraces(func(_ context.Context, td ptrace.Traces) error {
		s.AddTraces(td)
		return nil
	})
	return must(c, err)
}

// Logs returns a consumer of logs that feeds the Store.
func (s *Store) Logs() consumer.Logs {
	c, err := consumer.NewLogs(func(_ context.Context, ld plog.Logs) error {
		s.AddLogs(ld)
		return nil
	})
	return must(c, err)
}

// Metrics returns a consumer of metrics that feeds the Store.
func (s *Store) Metrics() consumer.Metrics {
	c, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		s.AddMetrics(md)
		return nil
	})
	return must(c, err)
}

// must is for constructors that fail only for a nil function.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// AddTraces records all spans of td.
func (s *Store) AddTraces(td ptrace.Traces) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range td.ResourceSpans().All() {
		resource := rs.Resource().Attributes()
		for _, ss := range rs.ScopeSpans().All() {
			for _, sp := range ss.Spans().All() {
				s.addSpan(now, resource, sp)
			}
		}
	}
}

func (s *Store) addSpan(now time.Time, resource pcommon.Map, sp ptrace.Span) {
	s.counts.Spans++
	d := newDigester()
	d.attrs(resource)
	trace, span, parent := sp.TraceID(), sp.SpanID(), sp.ParentSpanID()
	d.bytes(trace[:])
	d.bytes(span[:])
	d.bytes(parent[:])
	d.str(sp.Name())
	d.num(uint64(sp.Kind()))
	d.num(uint64(sp.StartTimestamp()))
	d.num(uint64(sp.EndTimestamp()))
	d.num(uint64(sp.Status().Code()))
	d.str(sp.Status().Message())
	d.attrs(sp.Attributes())
	links := make([]SpanKey, 0, sp.Links().Len())
	for _, l := range sp.Links().All() {
		lt, ls := l.TraceID(), l.SpanID()
		d.bytes(lt[:])
		d.bytes(ls[:])
		d.attrs(l.Attributes())
		links = append(links, SpanKey{Trace: lt, Span: ls})
	}
	digest := d.sum()

	key := SpanKey{Trace: trace, Span: span}
	old, known := s.spans[key]
	if known {
		old.again(now)
		if old.Digest == digest {
			return
		}
	}
	v := &Span{
		SpanKey:  key,
		Seen:     once(now),
		Parent:   parent,
		Name:     sp.Name(),
		Session:  str(resource, "service.instance.id"),
		App:      str(resource, "service.name"),
		StartNs:  uint64(sp.StartTimestamp()),
		EndNs:    uint64(sp.EndTimestamp()),
		Attrs:    s.kept(sp.Attributes()),
		Resource: s.kept(resource),
		Links:    links,
		Digest:   digest,
	}
	if known {
		old.Conflicts++
		old.Other = v
		return
	}
	s.spans[key] = v
}

// AddLogs records all log records of ld.
func (s *Store) AddLogs(ld plog.Logs) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rl := range ld.ResourceLogs().All() {
		resource := rl.Resource().Attributes()
		for _, sl := range rl.ScopeLogs().All() {
			for _, lr := range sl.LogRecords().All() {
				s.addLog(now, resource, lr)
			}
		}
	}
}

func (s *Store) addLog(now time.Time, resource pcommon.Map, lr plog.LogRecord) {
	s.counts.Logs++
	d := newDigester()
	d.attrs(resource)
	trace, span := lr.TraceID(), lr.SpanID()
	d.bytes(trace[:])
	d.bytes(span[:])
	d.str(lr.EventName())
	d.num(uint64(lr.Timestamp()))
	d.num(uint64(lr.SeverityNumber()))
	d.str(lr.Body().AsString())
	d.attrs(lr.Attributes())
	digest := d.sum()

	if old, ok := s.logs[digest]; ok {
		old.again(now)
		return
	}
	s.logs[digest] = &LogRecord{
		Seen:     once(now),
		Event:    lr.EventName(),
		Body:     lr.Body().AsString(),
		Session:  str(resource, "service.instance.id"),
		TimeNs:   uint64(lr.Timestamp()),
		SpanKey:  SpanKey{Trace: trace, Span: span},
		Attrs:    s.kept(lr.Attributes()),
		Resource: s.kept(resource),
		Digest:   digest,
	}
}

// AddMetrics records all number data points of md. Tests send no histograms and summaries; each is
// recorded as one point with a nil value, so that a test notices it.
func (s *Store) AddMetrics(md pmetric.Metrics) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rm := range md.ResourceMetrics().All() {
		resource := rm.Resource().Attributes()
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				switch m.Type() {
				case pmetric.MetricTypeGauge:
					for _, p := range m.Gauge().DataPoints().All() {
						s.addPoint(now, resource, m, "gauge", p)
					}
				case pmetric.MetricTypeSum:
					kind := fmt.Sprintf("sum %s monotonic=%t", m.Sum().AggregationTemporality(), m.Sum().IsMonotonic())
					for _, p := range m.Sum().DataPoints().All() {
						s.addPoint(now, resource, m, kind, p)
					}
				default:
					s.addPoint(now, resource, m, m.Type().String(), pmetric.NewNumberDataPoint())
				}
			}
		}
	}
}

func (s *Store) addPoint(now time.Time, resource pcommon.Map, m pmetric.Metric, kind string, p pmetric.NumberDataPoint) {
	s.counts.Points++
	var value any
	d := newDigester()
	d.attrs(resource)
	d.str(m.Name())
	d.str(m.Unit())
	d.str(kind)
	d.num(uint64(p.StartTimestamp()))
	d.num(uint64(p.Timestamp()))
	switch p.ValueType() {
	case pmetric.NumberDataPointValueTypeInt:
		value = p.IntValue()
		d.num(uint64(p.IntValue()))
	case pmetric.NumberDataPointValueTypeDouble:
		value = p.DoubleValue()
		d.num(math.Float64bits(p.DoubleValue()))
	}
	d.attrs(p.Attributes())
	digest := d.sum()

	if old, ok := s.points[digest]; ok {
		old.again(now)
		return
	}
	s.points[digest] = &Point{
		Seen:     once(now),
		Metric:   m.Name(),
		Unit:     m.Unit(),
		Session:  str(resource, "service.instance.id"),
		Type:     kind,
		TimeNs:   uint64(p.Timestamp()),
		Value:    value,
		Attrs:    s.kept(p.Attributes()),
		Resource: s.kept(resource),
		Digest:   digest,
	}
}

// Spans returns copies of the distinct spans in undefined order. They share their maps, which the
// caller must not change.
func (s *Store) Spans() []Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return values(s.spans)
}

// LogRecords returns the distinct log records in undefined order.
func (s *Store) LogRecords() []LogRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return values(s.logs)
}

// Points returns the distinct data points in undefined order.
func (s *Store) Points() []Point {
	s.mu.Lock()
	defer s.mu.Unlock()
	return values(s.points)
}

// Counts returns the numbers of arrivals so far.
func (s *Store) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Distinct returns the numbers of distinct items so far.
func (s *Store) Distinct() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Counts{Spans: len(s.spans), Logs: len(s.logs), Points: len(s.points)}
}

// Settle waits until no item has arrived for quiet and done returns true (nil: always). It returns
// false if limit passes first.
func (s *Store) Settle(quiet, limit time.Duration, done func() bool) bool {
	begin := time.Now()
	last, since := s.Counts(), begin
	for time.Since(begin) < limit {
		time.Sleep(20 * time.Millisecond)
		if now := s.Counts(); now != last {
			last, since = now, time.Now()
			continue
		}
		if time.Since(since) >= quiet && (done == nil || done()) {
			return true
		}
	}
	return false
}

func (s *Store) kept(m pcommon.Map) map[string]any {
	if s.keepAll {
		return m.AsRaw()
	}
	var out map[string]any
	for _, k := range s.keep {
		if v, ok := m.Get(k); ok {
			if out == nil {
				out = map[string]any{}
			}
			out[k] = v.AsRaw()
		}
	}
	return out
}

func (s *Seen) again(now time.Time) {
	s.Count++
	s.Last = now
}

func once(now time.Time) Seen { return Seen{Count: 1, First: now, Last: now} }

func values[K comparable, V any](m map[K]*V) []V {
	out := make([]V, 0, len(m))
	for v := range maps.Values(m) {
		out = append(out, *v)
	}
	return out
}

func str(m pcommon.Map, key string) string {
	if v, ok := m.Get(key); ok {
		return v.AsString()
	}
	return ""
}

// digester hashes fields with their lengths, so that moving bytes between fields changes the hash.
type digester struct{ h hash.Hash }

func newDigester() digester { return digester{sha256.New()} }

func (d digester) num(v uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	d.h.Write(b[:])
}

func (d digester) bytes(b []byte) {
	d.num(uint64(len(b)))
	d.h.Write(b)
}

func (d digester) str(s string) { d.bytes([]byte(s)) }

// attrs sorts the keys, because their order in a message has no meaning.
func (d digester) attrs(m pcommon.Map) {
	keys := make([]string, 0, m.Len())
	for k := range m.All() {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	d.num(uint64(len(keys)))
	for _, k := range keys {
		v, _ := m.Get(k)
		d.str(k)
		d.num(uint64(v.Type()))
		d.str(v.AsString())
	}
}

func (d digester) sum() (out Digest) {
	copy(out[:], d.h.Sum(nil))
	return out
}
