// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"context"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

// exporter passes the spans of our own provider to the client that also sends device work. So there
// is one connection, one queue and one time limit at the end, and a recording to a file has both.
type exporter struct{ client *otlp.Client }

// ExportSpans never fails: the client counts what it cannot send.
func (e exporter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.client.Traces(toTraces(spans))
	return nil
}

// Shutdown does nothing: the client belongs to the capture.
func (exporter) Shutdown(context.Context) error { return nil }

// toTraces translates spans, grouped by resource and instrumentation scope.
func toTraces(spans []sdktrace.ReadOnlySpan) ptrace.Traces {
	td := ptrace.NewTraces()
	type group struct {
		resource attribute.Distinct
		scope    instrumentation.Scope
	}
	resources := map[attribute.Distinct]ptrace.ResourceSpans{}
	groups := map[group]ptrace.SpanSlice{}
	for _, s := range spans {
		g := group{s.Resource().Equivalent(), s.InstrumentationScope()}
		to, ok := groups[g]
		if !ok {
			rs, ok := resources[g.resource]
			if !ok {
				rs = td.ResourceSpans().AppendEmpty()
				rs.SetSchemaUrl(s.Resource().SchemaURL())
				putAll(rs.Resource().Attributes(), s.Resource().Attributes())
				resources[g.resource] = rs
			}
			ss := rs.ScopeSpans().AppendEmpty()
			ss.SetSchemaUrl(g.scope.SchemaURL)
			ss.Scope().SetName(g.scope.Name)
			ss.Scope().SetVersion(g.scope.Version)
			putAll(ss.Scope().Attributes(), g.scope.Attributes.ToSlice())
			to = ss.Spans()
			groups[g] = to
		}
		putSpan(to.AppendEmpty(), s)
	}
	return td
}

func putSpan(to ptrace.Span, s sdktrace.ReadOnlySpan) {
	sc := s.SpanContext()
	to.SetTraceID(pcommon.TraceID(sc.TraceID()))
	to.SetSpanID(pcommon.SpanID(sc.SpanID()))
	to.TraceState().FromRaw(sc.TraceState().String())
	to.SetFlags(flags(sc.TraceFlags(), s.Parent().IsRemote()))
	if s.Parent().HasSpanID() {
		to.SetParentSpanID(pcommon.SpanID(s.Parent().SpanID()))
	}
	to.SetName(s.Name())
	to.SetKind(ptrace.SpanKind(s.SpanKind())) // the API numbers them as OTLP does
	to.SetStartTimestamp(pcommon.NewTimestampFromTime(s.StartTime()))
	to.SetEndTimestamp(pcommon.NewTimestampFromTime(s.EndTime()))
	putAll(to.Attributes(), s.Attributes())
	to.SetDroppedAttributesCount(uint32(s.DroppedAttributes()))
	for _, e := range s.Events() {
		x := to.Events().AppendEmpty()
		x.SetName(e.Name)
		x.SetTimestamp(pcommon.NewTimestampFromTime(e.Time))
		putAll(x.Attributes(), e.Attributes)
		x.SetDroppedAttributesCount(uint32(e.DroppedAttributeCount))
	}
	to.SetDroppedEventsCount(uint32(s.DroppedEvents()))
	for _, l := range s.Links() {
		x := to.Links().AppendEmpty()
		x.SetTraceID(pcommon.TraceID(l.SpanContext.TraceID()))
		x.SetSpanID(pcommon.SpanID(l.SpanContext.SpanID()))
		x.TraceState().FromRaw(l.SpanContext.TraceState().String())
		x.SetFlags(flags(l.SpanContext.TraceFlags(), l.SpanContext.IsRemote()))
		putAll(x.Attributes(), l.Attributes)
		x.SetDroppedAttributesCount(uint32(l.DroppedAttributeCount))
	}
	to.SetDroppedLinksCount(uint32(s.DroppedLinks()))
	switch s.Status().Code {
	case codes.Ok:
		to.Status().SetCode(ptrace.StatusCodeOk)
	case codes.Error:
		to.Status().SetCode(ptrace.StatusCodeError)
		to.Status().SetMessage(s.Status().Description)
	}
}

// flags are the W3C flags and, as OTLP has it, whether the parent (or the linked span) is remote.
func flags(f trace.TraceFlags, remote bool) uint32 {
	const hasIsRemote, isRemote = 0x100, 0x200
	v := uint32(f) | hasIsRemote
	if remote {
		v |= isRemote
	}
	return v
}

func putAll(to pcommon.Map, attributes []attribute.KeyValue) {
	to.EnsureCapacity(len(attributes))
	for _, a := range attributes {
		put(to, string(a.Key), a.Value)
	}
}

func put(to pcommon.Map, key string, v attribute.Value) {
	switch v.Type() {
	case attribute.BOOL:
		to.PutBool(key, v.AsBool())
	case attribute.INT64:
		to.PutInt(key, v.AsInt64())
	case attribute.FLOAT64:
		to.PutDouble(key, v.AsFloat64())
	case attribute.BOOLSLICE:
		s := to.PutEmptySlice(key)
		for _, x := range v.AsBoolSlice() {
			s.AppendEmpty().SetBool(x)
		}
	case attribute.INT64SLICE:
		s := to.PutEmptySlice(key)
		for _, x := range v.AsInt64Slice() {
			s.AppendEmpty().SetInt(x)
		}
	case attribute.FLOAT64SLICE:
		s := to.PutEmptySlice(key)
		for _, x := range v.AsFloat64Slice() {
			s.AppendEmpty().SetDouble(x)
		}
	case attribute.STRINGSLICE:
		s := to.PutEmptySlice(key)
		for _, x := range v.AsStringSlice() {
			s.AppendEmpty().SetStr(x)
		}
	default:
		to.PutStr(key, v.String())
	}
}
