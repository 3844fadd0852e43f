// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
)

// pdata reads and writes whole requests only. To encode one message of OTLP, this file encodes a
// request with that message and removes what is around it: a chain of messages with one field each.

// Field numbers from the request to a span, and to a data point by the type of the metric.
var (
	spanPath  = []byte{1, 2, 2}
	pointPath = map[store.SeriesType][]byte{
		store.Gauge:                {1, 2, 2, 5, 1},
		store.Histogram:            {1, 2, 2, 9, 1},
		store.ExponentialHistogram: {1, 2, 2, 10, 1},
		store.Summary:              {1, 2, 2, 11, 1},
	}
)

// unwrap returns the message at the path. Other fields on the way are skipped.
func unwrap(b []byte, path []byte) []byte {
	for _, field := range path {
		for {
			tag, n := binary.Uvarint(b)
			if n <= 0 || tag&7 != 2 {
				return nil
			}
			length, m := binary.Uvarint(b[n:])
			if m <= 0 || length > uint64(len(b)-n-m) {
				return nil
			}
			content := b[n+m : n+m+int(length)]
			if tag>>3 == uint64(field) {
				b = content
				break
			}
			b = b[n+m+int(length):]
		}
	}
	return b
}

// wrap puts messages around b.
func wrap(b []byte, path []byte) []byte {
	for i := len(path) - 1; i >= 0; i-- {
		head := append(make([]byte, 0, len(b)+2+binary.MaxVarintLen64), path[i]<<3|2)
		b = append(binary.AppendUvarint(head, uint64(len(b))), b...)
	}
	return b
}

func encodeSpan(fill func(ptrace.Span)) []byte {
	td := ptrace.NewTraces()
	fill(td.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans().AppendEmpty())
	b, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(td)
	if err != nil {
		return nil // it returns no error
	}
	return unwrap(b, spanPath)
}

func decodeSpan(b []byte, what string) (ptrace.Span, error) {
	td, err := (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(wrap(b, spanPath))
	if err != nil {
		return ptrace.NewSpan(), fmt.Errorf("decode %s: %w", what, err)
	}
	return td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0), nil
}

// EncodeEvents encodes the events of a span as a Span message of OTLP that has only them. It returns
// nil for none.
func EncodeEvents(events ptrace.SpanEventSlice) []byte {
	if events.Len() == 0 {
		return nil
	}
	return encodeSpan(func(s ptrace.Span) { events.CopyTo(s.Events()) })
}

// DecodeEvents decodes what EncodeEvents encoded.
func DecodeEvents(b []byte, into ptrace.SpanEventSlice) error {
	if len(b) == 0 {
		return nil
	}
	s, err := decodeSpan(b, "events")
	s.Events().MoveAndAppendTo(into)
	return err
}

// EncodeLinks encodes the links of a span as a Span message of OTLP that has only them. It returns
// nil for none.
func EncodeLinks(links ptrace.SpanLinkSlice) []byte {
	if links.Len() == 0 {
		return nil
	}
	return encodeSpan(func(s ptrace.Span) { links.CopyTo(s.Links()) })
}

// DecodeLinks decodes what EncodeLinks encoded.
func DecodeLinks(b []byte, into ptrace.SpanLinkSlice) error {
	if len(b) == 0 {
		return nil
	}
	s, err := decodeSpan(b, "links")
	s.Links().MoveAndAppendTo(into)
	return err
}

func encodePoint(t store.SeriesType, fill func(pmetric.Metric)) []byte {
	md := pmetric.NewMetrics()
	fill(md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty())
	b, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
	if err != nil {
		return nil // it returns no error
	}
	return unwrap(b, pointPath[t])
}

var errPoint = errors.New("no data point of this type")

func decodePoint(t store.SeriesType, b []byte) (pmetric.Metric, error) {
	path, ok := pointPath[t]
	if !ok {
		return pmetric.NewMetric(), fmt.Errorf("decode point: %w", errPoint)
	}
	md, err := (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(wrap(b, path))
	if err != nil {
		return pmetric.NewMetric(), fmt.Errorf("decode point: %w", err)
	}
	return md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0), nil
}

// EncodeExemplars encodes exemplars as a NumberDataPoint message of OTLP that has only them. It
// returns nil for none.
func EncodeExemplars(exemplars pmetric.ExemplarSlice) []byte {
	if exemplars.Len() == 0 {
		return nil
	}
	return encodePoint(store.Gauge, func(m pmetric.Metric) {
		exemplars.CopyTo(m.SetEmptyGauge().DataPoints().AppendEmpty().Exemplars())
	})
}

// DecodeExemplars decodes what EncodeExemplars encoded.
func DecodeExemplars(b []byte, into pmetric.ExemplarSlice) error {
	if len(b) == 0 {
		return nil
	}
	m, err := decodePoint(store.Gauge, b)
	if err != nil {
		return err
	}
	m.Gauge().DataPoints().At(0).Exemplars().MoveAndAppendTo(into)
	return nil
}
