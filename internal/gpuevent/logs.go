// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"math"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpuflight/gpuflight/semconv"
)

// Slots of the attributes of samples, in the order in which they are written.
const (
	logKernelName = iota
	logPCOffset
	logStallReason
	logSampleCount
	logMetricName
	logMetricValue
	logMetricOverflow
	logFile
	logLine
	logFunction
	logCorrelation
	logHWID
	logDevice
	logUID
	numLogSlots
)

var logKeys = [numLogSlots]string{
	logKernelName:     semconv.CUDAKernelName,
	logPCOffset:       semconv.CUDAPCOffset,
	logStallReason:    semconv.CUDAStallReason,
	logSampleCount:    semconv.CUDASampleCount,
	logMetricName:     semconv.CUDAMetricName,
	logMetricValue:    semconv.CUDAMetricValue,
	logMetricOverflow: semconv.CUDAMetricValueOverflow,
	logFile:           semconv.CodeFilePath,
	logLine:           semconv.CodeLineNumber,
	logFunction:       semconv.CodeFunctionName,
	logCorrelation:    semconv.CUDACorrelationID,
	logHWID:           semconv.HWID,
	logDevice:         semconv.CUDADeviceIndex,
	logUID:            semconv.LogRecordUID,
}

// stallPrefix begins CUPTI's names of reasons. It says nothing, and is on every one.
const stallPrefix = "smsp__pcsamp_warps_issue_stalled_"

// StallReason is a reason as telemetry spells it, from CUPTI's name.
func StallReason(name string) string { return strings.TrimPrefix(name, stallPrefix) }

// PCSample adds the log record of a program counter sample.
func (b *Batch) PCSample(s *Session, p *PCSample) {
	if !b.signals.Logs {
		return
	}
	reason := StallReason(p.Reason)
	a := b.logAttrs
	a.str(logStallReason, reason)
	a.str(logUID, p.UID.String())
	a.int(logSampleCount, p.Count)
	b.text = strconv.AppendInt(b.text[:0], p.Count, 10)
	b.text = append(b.text, " × "...)
	b.text = append(b.text, orElse(reason, "unknown")...)
	b.instruction(b.output(s), semconv.EventCUDAPCSample, &p.Ref, p.TimeNs, p.Function, p.PCOffset, p.File, p.Line, p.Device, p.Correlation)
}

// SASSMetric adds the log record of one counter of one instruction.
func (b *Batch) SASSMetric(s *Session, m *SASSMetric) {
	if !b.signals.Logs {
		return
	}
	a := b.logAttrs
	a.str(logMetricName, m.Metric)
	a.str(logUID, m.UID.String())
	b.text = append(b.text[:0], m.Metric...)
	b.text = append(b.text, " = "...)
	b.text = strconv.AppendUint(b.text, m.Value, 10)
	if m.Value <= math.MaxInt64 {
		a.int(logMetricValue, int64(m.Value))
	} else {
		a.str(logMetricOverflow, strconv.FormatUint(m.Value, 10))
		b.overflows++
	}
	b.instruction(b.output(s), semconv.EventCUDASASSMetric, &m.Ref, m.TimeNs, m.Function, m.PCOffset, m.File, m.Line, m.Device, m.Correlation)
}

// instruction adds a record about one instruction. Its body is b.text, and where that is known, in
// which function.
func (b *Batch) instruction(o *output, event string, r *Ref, timeNs int64, function *KernelName, pc Int, file string, line, device, correlation Int) {
	a := b.logAttrs
	if function != nil {
		a.str(logKernelName, function.Full)
		a.str(logFunction, function.Qualified)
		if function.Short != "" {
			b.text = append(b.text, " in "...)
			b.text = append(b.text, function.Short...)
		}
	}
	a.some(logPCOffset, pc)
	a.str(logFile, file)
	a.some(logLine, line)
	a.some(logCorrelation, correlation)
	a.some(logDevice, device)
	if i := o.device(device); i >= 0 {
		a.str(logHWID, o.session.Devices[i].UUID)
		a.int(logDevice, o.session.Devices[i].Index)
	}
	lr := b.newRecord(o)
	locate(lr, event, r, timeNs, SeverityInfo)
	lr.Body().SetStr(string(b.text))
	a.write(lr.Attributes())
}

// Record adds any other log record. Attributes without a value (an empty string or list, a number
// that is none) are left out.
func (b *Batch) Record(s *Session, r *Record) {
	if !b.signals.Logs {
		return
	}
	b.record(s, r, r.UID, r.Body, nil)
}

// Text adds the log records of a text, such as a source file or a disassembly: r with the text as
// body in place of its own. A text over [MaxTextBytes] becomes several records, one per piece of
// [SplitText], numbered by the cuda.text.chunk attributes, each with an id derived from r.UID. An empty text gives one record.
func (b *Batch) Text(s *Session, r *Record, text string) {
	if !b.signals.Logs {
		return
	}
	if len(text) <= MaxTextBytes {
		b.record(s, r, r.UID, text, nil)
		return
	}
	pieces := SplitText(text, MaxTextBytes)
	line := int64(1)
	for i, piece := range pieces {
		b.record(s, r, r.UID.piece(uint64(i)+1), piece, []Attr{
			I(semconv.CUDATextChunkIndex, int64(i)),
			I(semconv.CUDATextChunkCount, int64(len(pieces))),
			I(semconv.CUDATextChunkFirstLine, line),
		})
		line += int64(strings.Count(piece, "\n"))
	}
}

func (b *Batch) record(s *Session, r *Record, uid UID, body string, more []Attr) {
	lr := b.newRecord(b.output(s))
	locate(lr, r.Event, &r.Ref, r.TimeNs, r.Severity)
	if body != "" {
		lr.Body().SetStr(body)
	}
	dest := lr.Attributes()
	dest.EnsureCapacity(len(r.Attrs) + len(more) + 1)
	put(dest, r.Attrs)
	put(dest, more)
	putStr(dest, semconv.LogRecordUID, uid.String())
}

// locate sets what every record has. The time of observation stays unset: it would make a record
// read twice two different ones.
func locate(lr plog.LogRecord, event string, r *Ref, timeNs int64, severity Severity) {
	lr.SetEventName(event)
	lr.SetTraceID(pcommon.TraceID(r.Trace))
	lr.SetSpanID(pcommon.SpanID(r.Span))
	lr.SetTimestamp(timestamp(timeNs))
	number, text := severity.otel()
	lr.SetSeverityNumber(number)
	lr.SetSeverityText(text)
}

func (s Severity) otel() (plog.SeverityNumber, string) {
	switch s {
	case SeverityWarn:
		return plog.SeverityNumberWarn, "WARN"
	case SeverityError:
		return plog.SeverityNumberError, "ERROR"
	default:
		return plog.SeverityNumberInfo, "INFO"
	}
}
