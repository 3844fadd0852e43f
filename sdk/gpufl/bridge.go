// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// logBridge passes log records of the recording to a LoggerProvider of the application.
type logBridge struct{ logger log.Logger }

func newLogBridge(p log.LoggerProvider) *logBridge {
	return &logBridge{p.Logger(instrumentationName, log.WithInstrumentationVersion(version()))}
}

// emit is for one goroutine at a time.
func (b *logBridge) emit(ld plog.Logs) {
	for _, rl := range ld.ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, from := range sl.LogRecords().All() {
				var to log.Record
				to.SetTimestamp(from.Timestamp().AsTime())
				to.SetObservedTimestamp(from.ObservedTimestamp().AsTime())
				if from.ObservedTimestamp() == 0 {
					to.SetObservedTimestamp(time.Now())
				}
				to.SetEventName(from.EventName())
				to.SetSeverity(log.Severity(from.SeverityNumber())) // the API numbers them as OTLP does
				to.SetSeverityText(from.SeverityText())
				to.SetBody(logValue(from.Body()))
				to.AddAttributes(logAttributes(from.Attributes())...)
				sc := trace.NewSpanContext(trace.SpanContextConfig{
					TraceID: trace.TraceID(from.TraceID()), SpanID: trace.SpanID(from.SpanID()), TraceFlags: trace.TraceFlags(from.Flags()),
				})
				b.logger.Emit(trace.ContextWithSpanContext(context.Background(), sc), to)
			}
		}
	}
}

func logValue(v pcommon.Value) log.Value {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return log.StringValue(v.Str())
	case pcommon.ValueTypeBool:
		return log.BoolValue(v.Bool())
	case pcommon.ValueTypeInt:
		return log.Int64Value(v.Int())
	case pcommon.ValueTypeDouble:
		return log.Float64Value(v.Double())
	case pcommon.ValueTypeBytes:
		return log.BytesValue(v.Bytes().AsRaw())
	case pcommon.ValueTypeSlice:
		var list []log.Value
		for _, e := range v.Slice().All() {
			list = append(list, logValue(e))
		}
		return log.SliceValue(list...)
	case pcommon.ValueTypeMap:
		return log.MapValue(logAttributes(v.Map())...)
	}
	return log.Value{}
}

func logAttributes(m pcommon.Map) []log.KeyValue {
	kvs := make([]log.KeyValue, 0, m.Len())
	for k, v := range m.All() {
		kvs = append(kvs, log.KeyValue{Key: k, Value: logValue(v)})
	}
	return kvs
}

// metricBridge makes sums and gauges of the recording asynchronous instruments of a MeterProvider of
// the application. It leaves the histograms, since the API has no asynchronous ones. Callbacks may
// come from any goroutine.
type metricBridge struct {
	meter  metric.Meter
	logger *slog.Logger

	mu     sync.Mutex
	points map[string][]point // the latest, by metric
	// known are the registered metrics, also those that could not be registered.
	known         map[string]bool
	registrations []metric.Registration
}

// point is one value of a metric.
type point struct {
	attributes metric.MeasurementOption
	integer    int64
	float      float64
}

func newMetricBridge(p metric.MeterProvider, logger *slog.Logger) *metricBridge {
	return &metricBridge{
		meter: p.Meter(instrumentationName, metric.WithInstrumentationVersion(version())), logger: logger,
		points: map[string][]point{}, known: map[string]bool{},
	}
}

// take removes sums and gauges from an export and stores their values.
func (b *metricBridge) take(md pmetric.Metrics) {
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
		rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
			sm.Metrics().RemoveIf(b.store)
			return sm.Metrics().Len() == 0
		})
		return rm.ScopeMetrics().Len() == 0
	})
}

// store reports whether the metric is an asynchronous instrument now.
func (b *metricBridge) store(m pmetric.Metric) bool {
	var from pmetric.NumberDataPointSlice
	switch m.Type() {
	case pmetric.MetricTypeSum:
		from = m.Sum().DataPoints()
	case pmetric.MetricTypeGauge:
		from = m.Gauge().DataPoints()
	default:
		return false
	}
	if from.Len() == 0 {
		return true
	}
	points := make([]point, 0, from.Len())
	for _, p := range from.All() {
		points = append(points, point{metric.WithAttributes(attributesOf(p.Attributes())...), p.IntValue(), p.DoubleValue()})
	}
	b.mu.Lock()
	b.points[m.Name()] = points
	known := b.known[m.Name()]
	b.known[m.Name()] = true
	b.mu.Unlock()
	if !known {
		if err := b.register(m, from.At(0).ValueType() == pmetric.NumberDataPointValueTypeInt); err != nil {
			b.logger.Warn("gpuflight: a metric cannot be registered", "metric", m.Name(), "error", err)
		}
	}
	return true
}

// register makes the instrument. It must not hold the lock: a reader may be in a callback.
func (b *metricBridge) register(m pmetric.Metric, integer bool) error {
	name, unit, text := m.Name(), metric.WithUnit(m.Unit()), metric.WithDescription(m.Description())
	gauge := m.Type() == pmetric.MetricTypeGauge
	monotonic := !gauge && m.Sum().IsMonotonic()
	var callback metric.Callback
	var instrument metric.Observable
	var err error
	if integer {
		var i metric.Int64Observable
		switch {
		case gauge:
			i, err = b.meter.Int64ObservableGauge(name, unit, text)
		case monotonic:
			i, err = b.meter.Int64ObservableCounter(name, unit, text)
		default:
			i, err = b.meter.Int64ObservableUpDownCounter(name, unit, text)
		}
		instrument = i
		callback = func(_ context.Context, o metric.Observer) error {
			for _, p := range b.latest(name) {
				o.ObserveInt64(i, p.integer, p.attributes)
			}
			return nil
		}
	} else {
		var f metric.Float64Observable
		switch {
		case gauge:
			f, err = b.meter.Float64ObservableGauge(name, unit, text)
		case monotonic:
			f, err = b.meter.Float64ObservableCounter(name, unit, text)
		default:
			f, err = b.meter.Float64ObservableUpDownCounter(name, unit, text)
		}
		instrument = f
		callback = func(_ context.Context, o metric.Observer) error {
			for _, p := range b.latest(name) {
				o.ObserveFloat64(f, p.float, p.attributes)
			}
			return nil
		}
	}
	if err != nil {
		return err
	}
	r, err := b.meter.RegisterCallback(callback, instrument)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.registrations = append(b.registrations, r)
	return nil
}

func (b *metricBridge) latest(name string) []point {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.points[name]
}

// close ends the callbacks. A nil bridge has none.
func (b *metricBridge) close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	registrations := b.registrations
	b.registrations = nil
	b.mu.Unlock()
	for _, r := range registrations {
		_ = r.Unregister() // the provider may have been shut down
	}
}

// attributesOf converts the attributes of a point, which are texts, numbers and booleans.
func attributesOf(m pcommon.Map) []attribute.KeyValue {
	kvs := make([]attribute.KeyValue, 0, m.Len())
	for k, v := range m.All() {
		key := attribute.Key(k)
		switch v.Type() {
		case pcommon.ValueTypeBool:
			kvs = append(kvs, key.Bool(v.Bool()))
		case pcommon.ValueTypeInt:
			kvs = append(kvs, key.Int64(v.Int()))
		case pcommon.ValueTypeDouble:
			kvs = append(kvs, key.Float64(v.Double()))
		default:
			kvs = append(kvs, key.String(v.AsString()))
		}
	}
	return kvs
}
