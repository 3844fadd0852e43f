// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/keys"
)

// Metrics converts data points. The batches belong to the project.
func (d *Decoder) Metrics(project string, md pmetric.Metrics) []*store.Batch {
	d.begin()
	for _, rm := range md.ResourceMetrics().All() {
		var b *builder
		var r resource
		for _, sm := range rm.ScopeMetrics().All() {
			var origin uint32
			first := true
			for _, m := range sm.Metrics().All() {
				if points(m) == 0 {
					continue
				}
				if b == nil {
					session := ""
					if !observed(rm.Resource()) {
						session = sessionOf(rm.Resource())
					}
					b = d.builder(project, session)
					r = d.resource(rm.Resource(), rm.SchemaUrl())
				}
				if first {
					first = false
					origin = d.origin(b, &r, sm.Scope(), sm.SchemaUrl())
				}
				d.metric(b, m, origin)
			}
		}
	}
	return d.end()
}

func points(m pmetric.Metric) int {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints().Len()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints().Len()
	case pmetric.MetricTypeHistogram:
		return m.Histogram().DataPoints().Len()
	case pmetric.MetricTypeExponentialHistogram:
		return m.ExponentialHistogram().DataPoints().Len()
	case pmetric.MetricTypeSummary:
		return m.Summary().DataPoints().Len()
	default:
		return 0
	}
}

// point is what the data points of all types have.
type point interface {
	Attributes() pcommon.Map
	Timestamp() pcommon.Timestamp
	StartTimestamp() pcommon.Timestamp
	Flags() pmetric.DataPointFlags
}

func (d *Decoder) metric(b *builder, m pmetric.Metric, origin uint32) {
	if m.Metadata().Len() > 0 {
		d.stats.Metadata++
	}
	s := store.Series{Metric: m.Name(), Unit: m.Unit(), Description: m.Description(), Origin: origin}
	// head distinguishes the metrics of a batch. It is short, because each point appends it.
	head := func() (h uint64) {
		h, d.scratch = keys.Metric(d.scratch, b.batch.Origins[origin].Key, &s)
		return h
	}
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		s.Type = store.Gauge
		d.numbers(b, &s, head(), m.Gauge().DataPoints())
	case pmetric.MetricTypeSum:
		s.Type, s.Temporality, s.Monotonic = store.Sum, uint8(m.Sum().AggregationTemporality()), m.Sum().IsMonotonic()
		d.numbers(b, &s, head(), m.Sum().DataPoints())
	case pmetric.MetricTypeHistogram:
		s.Type, s.Temporality = store.Histogram, uint8(m.Histogram().AggregationTemporality())
		h := head()
		for _, p := range m.Histogram().DataPoints().All() {
			row := d.point(b, &s, h, p)
			row.Exemplars = EncodeExemplars(p.Exemplars())
			row.Data = encodePoint(s.Type, func(m pmetric.Metric) {
				c := m.SetEmptyHistogram().DataPoints().AppendEmpty()
				p.CopyTo(c)
				c.Attributes().Clear()
				c.Exemplars().RemoveIf(func(pmetric.Exemplar) bool { return true })
			})
		}
	case pmetric.MetricTypeExponentialHistogram:
		s.Type, s.Temporality = store.ExponentialHistogram, uint8(m.ExponentialHistogram().AggregationTemporality())
		h := head()
		for _, p := range m.ExponentialHistogram().DataPoints().All() {
			row := d.point(b, &s, h, p)
			row.Exemplars = EncodeExemplars(p.Exemplars())
			row.Data = encodePoint(s.Type, func(m pmetric.Metric) {
				c := m.SetEmptyExponentialHistogram().DataPoints().AppendEmpty()
				p.CopyTo(c)
				c.Attributes().Clear()
				c.Exemplars().RemoveIf(func(pmetric.Exemplar) bool { return true })
			})
		}
	case pmetric.MetricTypeSummary:
		s.Type = store.Summary
		h := head()
		for _, p := range m.Summary().DataPoints().All() {
			row := d.point(b, &s, h, p)
			row.Data = encodePoint(s.Type, func(m pmetric.Metric) {
				c := m.SetEmptySummary().DataPoints().AppendEmpty()
				p.CopyTo(c)
				c.Attributes().Clear()
			})
		}
	}
}

func (d *Decoder) numbers(b *builder, s *store.Series, head uint64, points pmetric.NumberDataPointSlice) {
	for _, p := range points.All() {
		row := d.point(b, s, head, p)
		row.Exemplars = EncodeExemplars(p.Exemplars())
		switch p.ValueType() {
		case pmetric.NumberDataPointValueTypeInt:
			row.Int = store.Some(p.IntValue())
		case pmetric.NumberDataPointValueTypeDouble:
			row.Double, row.HasDouble = p.DoubleValue(), true
		}
	}
}

// point adds a row without its value.
func (d *Decoder) point(b *builder, metric *store.Series, head uint64, p point) *store.Point {
	d.extra = keys.AppendUint64(d.extra[:0], head)
	for k, v := range p.Attributes().All() {
		d.extra = appendRaw(keys.AppendString(d.extra, k), v, store.MaxDepth)
	}
	at, h, ok := b.series.find(d.extra)
	if !ok {
		s := *metric
		s.Attrs = d.attrs(p.Attributes())
		s.Key, d.scratch = keys.Series(d.scratch, head, s.Attrs)
		var fresh bool
		if at, fresh = b.series.add(h, s.Key, len(b.batch.Series)); fresh {
			b.batch.Series = append(b.batch.Series, s)
		}
	}
	b.batch.Points = append(b.batch.Points, store.Point{
		Series: at, TimeNs: int64(p.Timestamp()), StartNs: int64(p.StartTimestamp()), Flags: uint32(p.Flags()),
	})
	return &b.batch.Points[len(b.batch.Points)-1]
}
