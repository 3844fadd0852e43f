// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// The functions of this file set fields of an empty destination.

// AppendOrigin sets the resource and the instrumentation scope. The caller sets the two schema URLs.
func AppendOrigin(o *store.Origin, r pcommon.Resource, s pcommon.InstrumentationScope) {
	AppendAttrs(o.Resource, r.Attributes())
	s.SetName(o.ScopeName)
	s.SetVersion(o.ScopeVersion)
	AppendAttrs(o.ScopeAttrs, s.Attributes())
}

func pdataID(id store.SpanID) (out pcommon.SpanID) {
	binary.BigEndian.PutUint64(out[:], uint64(id))
	return out
}

func putString(m pcommon.Map, key, v string) {
	if v != "" {
		m.PutStr(key, v)
	}
}

func putInt(m pcommon.Map, key string, v store.Int) {
	if v.OK {
		m.PutInt(key, v.V)
	}
}

func putInts(m pcommon.Map, key string, v []int64) {
	if len(v) == 0 {
		return
	}
	list := m.PutEmptySlice(key)
	list.EnsureCapacity(len(v))
	for _, n := range v {
		list.AppendEmpty().SetInt(n)
	}
}

var operationNames = func() map[store.Operation]string {
	names := map[store.Operation]string{}
	for name, o := range operations {
		names[o] = name
	}
	return names
}()

var sizeKeys = map[slot]string{
	slotCopySize:   semconv.CUDAMemcpySize,
	slotSetSize:    semconv.CUDAMemsetSize,
	slotMemorySize: semconv.CUDAMemorySize,
}

// AppendOp sets a span to an operation.
func AppendOp(row *store.OpRow, into ptrace.Span) {
	into.SetKind(ptrace.SpanKindInternal)
	into.SetStartTimestamp(pcommon.Timestamp(row.StartNs))
	into.SetEndTimestamp(pcommon.Timestamp(row.EndNs))
	into.SetSpanID(pdataID(row.Op.Span))
	into.SetTraceID(pcommon.TraceID(row.PlaceRef.Trace))
	into.SetParentSpanID(pdataID(row.PlaceRef.Parent))
	s, l := row.ShapeRef, row.LaneRef
	into.SetName(s.Name)
	a := into.Attributes()
	a.EnsureCapacity(24 + len(s.Attrs) + len(row.Attrs))
	putString(a, semconv.CUDAOperation, operationNames[s.Operation])
	putString(a, semconv.CUDAKernelName, s.FullName)
	putString(a, semconv.CUDAKernelSymbol, s.Symbol)
	putInts(a, semconv.CUDAKernelGrid, s.Grid)
	putInts(a, semconv.CUDAKernelBlock, s.Block)
	putInts(a, semconv.CUDAKernelCluster, s.Cluster)
	putInt(a, semconv.CUDAKernelRegistersPerThread, s.Registers)
	putInt(a, semconv.CUDAKernelSharedMemoryStatic, s.SharedStatic)
	putInt(a, semconv.CUDAKernelSharedMemoryDynamic, s.SharedDynamic)
	putInt(a, semconv.CUDAKernelSharedMemoryExecuted, s.SharedExecuted)
	putInt(a, semconv.CUDAKernelLocalMemoryPerThread, s.LocalMemory)
	AppendAttrs(s.Attrs, a)
	if key := sizeKeys[sizeSlot(s.Operation)]; key != "" {
		putInt(a, key, row.Bytes)
	}
	putInt(a, semconv.CUDAMemoryAddress, row.Address)
	putInt(a, semconv.CUDAStreamID, l.Stream)
	putInt(a, semconv.CUDAContextID, l.Context)
	putInt(a, semconv.CUDACorrelationID, row.Correlation)
	putInt(a, semconv.CUDALaunchStartTimeUnixNano, row.LaunchStartNs)
	putInt(a, semconv.CUDALaunchEndTimeUnixNano, row.LaunchEndNs)
	if row.QueueNs.OK {
		a.PutDouble(semconv.CUDAQueueDuration, queueSeconds(row.QueueNs.V))
	}
	if row.Estimated {
		a.PutStr(semconv.CUDATiming, semconv.CUDATimingEstimated)
	}
	putString(a, semconv.CUDAScopeName, row.PlaceRef.ScopeName)
	if row.PlaceRef.Inferred {
		a.PutBool(semconv.CUDAScopeInferred, true)
	}
	putString(a, semconv.CUDAScopePath, row.PlaceRef.ScopePath)
	putString(a, semconv.HWID, l.Device)
	putInt(a, semconv.CUDADeviceIndex, l.DeviceIndex)
	putString(a, semconv.CodeStacktrace, row.StackText)
	AppendAttrs(row.Attrs, a)
}

// AppendSpan sets a span.
func AppendSpan(row *store.SpanRow, into ptrace.Span) error {
	into.SetStartTimestamp(pcommon.Timestamp(row.StartNs))
	into.SetEndTimestamp(pcommon.Timestamp(row.EndNs))
	into.SetTraceID(pcommon.TraceID(row.Trace))
	into.SetSpanID(pdataID(row.Span.Span))
	into.SetParentSpanID(pdataID(row.Parent))
	into.SetKind(ptrace.SpanKind(row.Kind))
	into.Status().SetCode(ptrace.StatusCode(row.Status))
	into.Status().SetMessage(row.StatusMessage)
	into.SetName(row.Name)
	into.TraceState().FromRaw(row.TraceState)
	into.SetFlags(row.Flags)
	into.SetDroppedAttributesCount(row.DroppedAttrs)
	into.SetDroppedEventsCount(row.DroppedEvents)
	into.SetDroppedLinksCount(row.DroppedLinks)
	putString(into.Attributes(), semconv.CUDAOperation, row.Operation)
	AppendAttrs(row.Attrs, into.Attributes())
	if err := DecodeEvents(row.Events, into.Events()); err != nil {
		return err
	}
	return DecodeLinks(row.Links, into.Links())
}

func putUID(uid store.UID, into pcommon.Map) {
	if string(uid[:len(derivedUID)]) != derivedUID {
		into.PutStr(semconv.LogRecordUID, hex.EncodeToString(uid[:]))
	}
}

// AppendLog sets a log record.
func AppendLog(row *store.Log, into plog.LogRecord) {
	if row.TimeNs > 0 && row.ObservedNs == -row.TimeNs {
		into.SetObservedTimestamp(pcommon.Timestamp(row.TimeNs))
	} else {
		into.SetTimestamp(pcommon.Timestamp(row.TimeNs))
		into.SetObservedTimestamp(pcommon.Timestamp(row.ObservedNs))
	}
	into.SetSeverityNumber(plog.SeverityNumber(row.Severity))
	into.SetSeverityText(row.SeverityText)
	into.SetEventName(row.Event)
	AppendValue(&row.Body, into.Body())
	into.SetTraceID(pcommon.TraceID(row.Trace))
	into.SetSpanID(pdataID(row.Span))
	into.SetFlags(plog.LogRecordFlags(row.Flags))
	into.SetDroppedAttributesCount(row.DroppedAttrs)
	putUID(row.UID, into.Attributes())
	AppendAttrs(row.Attrs, into.Attributes())
}

// AppendSample sets a log record to a sample with the extra attributes.
func AppendSample(row *store.Sample, extra store.Attrs, into plog.LogRecord) {
	into.SetTimestamp(pcommon.Timestamp(row.TimeNs))
	into.SetTraceID(pcommon.TraceID(row.Trace))
	into.SetSpanID(pdataID(row.Span))
	into.SetSeverityNumber(plog.SeverityNumberInfo)
	into.SetSeverityText(sampleSeverity)
	into.Body().SetStr(string(appendBody(nil, row)))
	a := into.Attributes()
	a.EnsureCapacity(12 + len(extra))
	switch row.Kind {
	case store.SampleStall:
		into.SetEventName(semconv.EventCUDAPCSample)
		putString(a, semconv.CUDAStallReason, row.What)
		a.PutInt(semconv.CUDASampleCount, int64(row.Value))
	default:
		into.SetEventName(semconv.EventCUDASASSMetric)
		putString(a, semconv.CUDAMetricName, row.What)
		if row.Value <= math.MaxInt64 {
			a.PutInt(semconv.CUDAMetricValue, int64(row.Value))
		} else {
			a.PutStr(semconv.CUDAMetricValueOverflow, strconv.FormatUint(row.Value, 10))
		}
	}
	putString(a, semconv.CUDAKernelName, row.Kernel)
	putString(a, semconv.CodeFunctionName, row.Function)
	putString(a, semconv.CodeFilePath, row.File)
	putInt(a, semconv.CodeLineNumber, row.Line)
	putInt(a, semconv.CUDAPCOffset, row.PC)
	putString(a, semconv.HWID, row.Device)
	putInt(a, semconv.CUDADeviceIndex, row.DeviceIndex)
	putInt(a, semconv.CUDACorrelationID, row.Correlation)
	putUID(row.UID, a)
	AppendAttrs(extra, a)
}

// AppendSeries sets a metric without points.
func AppendSeries(s *store.Series, into pmetric.Metric) {
	into.SetName(s.Metric)
	into.SetUnit(s.Unit)
	into.SetDescription(s.Description)
	temporality := pmetric.AggregationTemporality(s.Temporality)
	switch s.Type {
	case store.Gauge:
		into.SetEmptyGauge()
	case store.Sum:
		into.SetEmptySum().SetAggregationTemporality(temporality)
		into.Sum().SetIsMonotonic(s.Monotonic)
	case store.Histogram:
		into.SetEmptyHistogram().SetAggregationTemporality(temporality)
	case store.ExponentialHistogram:
		into.SetEmptyExponentialHistogram().SetAggregationTemporality(temporality)
	case store.Summary:
		into.SetEmptySummary()
	}
}

// AppendPoint adds a point of the series to a metric that [AppendSeries] has set.
func AppendPoint(s *store.Series, p *store.Point, into pmetric.Metric) error {
	switch s.Type {
	case store.Gauge:
		return appendNumber(s, p, into.Gauge().DataPoints().AppendEmpty())
	case store.Sum:
		return appendNumber(s, p, into.Sum().DataPoints().AppendEmpty())
	}
	m, err := decodePoint(s.Type, p.Data)
	if err != nil {
		return err
	}
	switch s.Type {
	case store.Histogram:
		q := into.Histogram().DataPoints().AppendEmpty()
		m.Histogram().DataPoints().At(0).MoveTo(q)
		AppendAttrs(s.Attrs, q.Attributes())
		return DecodeExemplars(p.Exemplars, q.Exemplars())
	case store.ExponentialHistogram:
		q := into.ExponentialHistogram().DataPoints().AppendEmpty()
		m.ExponentialHistogram().DataPoints().At(0).MoveTo(q)
		AppendAttrs(s.Attrs, q.Attributes())
		return DecodeExemplars(p.Exemplars, q.Exemplars())
	default:
		q := into.Summary().DataPoints().AppendEmpty()
		m.Summary().DataPoints().At(0).MoveTo(q)
		AppendAttrs(s.Attrs, q.Attributes())
		return nil
	}
}

func appendNumber(s *store.Series, p *store.Point, into pmetric.NumberDataPoint) error {
	into.SetTimestamp(pcommon.Timestamp(p.TimeNs))
	into.SetStartTimestamp(pcommon.Timestamp(p.StartNs))
	into.SetFlags(pmetric.DataPointFlags(p.Flags))
	switch {
	case p.Int.OK:
		into.SetIntValue(p.Int.V)
	case p.HasDouble:
		into.SetDoubleValue(p.Double)
	}
	AppendAttrs(s.Attrs, into.Attributes())
	return DecodeExemplars(p.Exemplars, into.Exemplars())
}
