// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/semconv"
)

// spansOf returns the rows of a batch as spans.
func spansOf(b *store.Batch) (ptrace.Traces, error) {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr(semconv.ServiceName, "bench")
	rs.Resource().Attributes().PutStr(semconv.ServiceInstanceID, b.Session)
	ss := rs.ScopeSpans().AppendEmpty()
	ss.Scope().SetName("gpuflight")
	ss.Spans().EnsureCapacity(len(b.Ops) + len(b.Spans))
	for i := range b.Ops {
		o := &b.Ops[i]
		rows.AppendOp(&store.OpRow{
			Op: *o, LaneRef: &b.Lanes[o.Lane], ShapeRef: &b.Shapes[o.Shape], OriginRef: &b.Origins[o.Origin], PlaceRef: b.Places[o.Place],
		}, ss.Spans().AppendEmpty())
	}
	for i := range b.Spans {
		p := &b.Spans[i]
		if err := rows.AppendSpan(&store.SpanRow{Span: *p, OriginRef: &b.Origins[p.Origin]}, ss.Spans().AppendEmpty()); err != nil {
			return td, err
		}
	}
	return td, nil
}
