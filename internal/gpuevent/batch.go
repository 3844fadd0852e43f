// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

// Signals says which signals a Batch builds. Events of the others are dropped at once.
type Signals struct{ Traces, Logs, Metrics bool }

// Batch collects events and translates each, as it comes, to pdata: one resource per [Session],
// found by its pointer, in the order in which the sessions first came. Events need not come sorted
// by session, but runs of one session are fastest. A Batch belongs to one goroutine.
type Batch struct {
	signals Signals
	traces  ptrace.Traces
	logs    plog.Logs
	metrics pmetric.Metrics

	spans, records, points, overflows int

	// last is the output of the session that came last; most batches hold no other.
	last    *output
	outputs map[*Session]*output
	// reserve is how many spans the last batch held: the next one is likely as large.
	reserve int

	spanAttrs, logAttrs, pointAttrs *attrs
	deviceSets, hostSets            pointSets
	text                            []byte
}

// output is where one session's events go.
type output struct {
	session *Session
	// only is the session's device, if it has exactly one.
	only *Device
	// capabilities are the compute capabilities in words, parallel to session.Devices.
	capabilities []string

	hasSpans, hasRecords, hasMetrics bool
	spans                            ptrace.SpanSlice
	records                          plog.LogRecordSlice
	metrics                          pmetric.MetricSlice
	hasPoints                        [numMetrics]bool
	points                           [numMetrics]pmetric.NumberDataPointSlice
}

// maxReserve bounds what is reserved for the next batch: 512 KiB of pointers.
const maxReserve = 1 << 16

// NewBatch returns an empty batch.
func NewBatch(s Signals) *Batch {
	b := &Batch{
		signals:    s,
		outputs:    map[*Session]*output{},
		spanAttrs:  newAttrs(spanKeys[:]),
		logAttrs:   newAttrs(logKeys[:]),
		pointAttrs: newAttrs(pointKeys[:]),
	}
	b.renew()
	return b
}

// Spans is the number of spans collected since the last Take.
func (b *Batch) Spans() int { return b.spans }

// LogRecords is the number of log records collected since the last Take.
func (b *Batch) LogRecords() int { return b.records }

// Points is the number of data points collected since the last Take.
func (b *Batch) Points() int { return b.points }

// maxItems bounds a batch, see Full. As OTLP in protobuf, 8192 spans of kernels are about 3 MB: one
// request of most exporters. A span with its attributes holds about 2 KiB of memory.
const maxItems = 8192

// Full reports whether the batch holds as much as it should: 8192 spans, log records, or groups of
// four data points, which are smaller. The caller takes the events before it adds more.
func (b *Batch) Full() bool { return b.spans+b.records+b.points/4 >= maxItems }

// Empty reports whether the batch holds no event.
func (b *Batch) Empty() bool { return b.spans+b.records+b.points == 0 }

// Overflows is the number of counter values above 2^63−1 since the last Take: what OpenTelemetry
// cannot hold as an integer and is kept as its decimal digits instead.
func (b *Batch) Overflows() int { return b.overflows }

// Take returns what was collected and empties the batch. The Batch keeps no reference to what it
// returns, nor to sessions or strings.
func (b *Batch) Take() (ptrace.Traces, plog.Logs, pmetric.Metrics) {
	traces, logs, metrics := b.traces, b.logs, b.metrics
	b.renew()
	return traces, logs, metrics
}

func (b *Batch) renew() {
	b.traces, b.logs, b.metrics = ptrace.NewTraces(), plog.NewLogs(), pmetric.NewMetrics()
	b.reserve = min(b.spans, maxReserve)
	b.spans, b.records, b.points, b.overflows = 0, 0, 0, 0
	b.last = nil
	clear(b.outputs)
	b.spanAttrs.forget()
	b.logAttrs.forget()
	b.pointAttrs.forget()
}

func (b *Batch) output(s *Session) *output {
	if b.last != nil && b.last.session == s {
		return b.last
	}
	o, ok := b.outputs[s]
	if !ok {
		o = &output{session: s}
		if len(s.Devices) == 1 {
			o.only = &s.Devices[0]
		}
		b.outputs[s] = o
	}
	b.last = o
	return o
}

// newSpan appends a span to the session's.
func (b *Batch) newSpan(o *output) ptrace.Span {
	if !o.hasSpans {
		o.hasSpans = true
		rs := b.traces.ResourceSpans().AppendEmpty()
		rs.SetSchemaUrl(semconv.SchemaURL)
		o.resource(rs.Resource().Attributes())
		ss := rs.ScopeSpans().AppendEmpty()
		ss.SetSchemaUrl(semconv.SchemaURL)
		ss.Scope().SetName(semconv.ScopeName)
		o.spans = ss.Spans()
		o.spans.EnsureCapacity(b.reserve)
		b.reserve = 0
	}
	b.spans++
	return o.spans.AppendEmpty()
}

// newRecord appends a log record to the session's.
func (b *Batch) newRecord(o *output) plog.LogRecord {
	if !o.hasRecords {
		o.hasRecords = true
		rl := b.logs.ResourceLogs().AppendEmpty()
		rl.SetSchemaUrl(semconv.SchemaURL)
		o.resource(rl.Resource().Attributes())
		sl := rl.ScopeLogs().AppendEmpty()
		sl.SetSchemaUrl(semconv.SchemaURL)
		sl.Scope().SetName(semconv.ScopeName)
		o.records = sl.LogRecords()
	}
	b.records++
	return o.records.AppendEmpty()
}

// resource writes the attributes that all telemetry of the session has in common.
//
// If the session has one device, its properties are here: name, vendor, type, compute capability and
// multiprocessors. Each span then has only the device's identity (hw.id and cuda.device.index). With several devices, each span has all properties of its device. Data points
// always have all of them, because most stores keep metrics without their resource.
func (o *output) resource(dest pcommon.Map) {
	s := o.session
	dest.EnsureCapacity(17 + len(s.Extra))
	name := s.App
	if name == "" {
		name = semconv.UnknownService
	}
	dest.PutStr(semconv.ServiceName, name)
	putStr(dest, semconv.ServiceInstanceID, s.ID)
	putInt(dest, semconv.ProcessPID, s.PID)
	putStr(dest, semconv.HostName, s.HostName)
	if s.HostIP != "" {
		putStrings(dest, semconv.HostIP, []string{s.HostIP})
	}
	putStr(dest, semconv.TelemetryDistroName, s.Distro)
	putStr(dest, semconv.TelemetryDistroVersion, s.DistroVersion)
	putStr(dest, semconv.CUDASessionKind, s.Kind)
	putStr(dest, semconv.CUDASessionEngine, s.Engine)
	if d := o.only; d != nil {
		putStr(dest, semconv.HWName, d.Name)
		putStr(dest, semconv.HWVendor, d.Vendor)
		dest.PutStr(semconv.HWType, semconv.HWTypeGPU)
		putStr(dest, semconv.CUDADeviceComputeCapability, o.capability(0))
		putInt(dest, semconv.CUDADeviceSMCount, d.SMCount)
	}
	put(dest, s.Extra)
}

func putStr(dest pcommon.Map, key, v string) {
	if v != "" {
		dest.PutStr(key, v)
	}
}

func putInt(dest pcommon.Map, key string, v Int) {
	if v.OK {
		dest.PutInt(key, v.V)
	}
}

// device returns the position of the device with the given ordinal in session.Devices, or of the
// only device if the ordinal is unknown; -1 if there is none.
func (o *output) device(ordinal Int) int {
	if !ordinal.OK {
		if o.only == nil {
			return -1
		}
		return 0
	}
	for i := range o.session.Devices {
		if o.session.Devices[i].Index == ordinal.V {
			return i
		}
	}
	return -1
}

// capability returns the compute capability of the i-th device ("9.0"), "" if unknown.
func (o *output) capability(i int) string {
	if o.capabilities == nil {
		o.capabilities = make([]string, len(o.session.Devices))
		for k := range o.session.Devices {
			if d := &o.session.Devices[k]; d.ComputeMajor.OK && d.ComputeMinor.OK {
				o.capabilities[k] = strconv.FormatInt(d.ComputeMajor.V, 10) + "." + strconv.FormatInt(d.ComputeMinor.V, 10)
			}
		}
	}
	return o.capabilities[i]
}

// timestamp converts Unix nanoseconds; times before 1970 do not exist in OTLP.
func timestamp(ns int64) pcommon.Timestamp {
	return pcommon.Timestamp(max(ns, 0))
}
