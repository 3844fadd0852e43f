// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/keys"
	"github.com/gpuflight/gpuflight/semconv"
)

// derivedUID begins the UIDs that this package derives from the content of a record. A record whose
// own UID begins in this way keeps it as an attribute too, so that converting back knows which one
// the record had.
const derivedUID = "\xff\x00gf"

// sampleSeverity is the severity text of samples.
const sampleSeverity = "INFO"

// Logs converts log records. The batches belong to the project.
func (d *Decoder) Logs(project string, ld plog.Logs) []*store.Batch {
	d.begin()
	for _, rl := range ld.ResourceLogs().All() {
		var b *builder
		var r resource
		for _, sl := range rl.ScopeLogs().All() {
			records := sl.LogRecords()
			if records.Len() == 0 {
				continue
			}
			if b == nil {
				b = d.builder(project, sessionOf(rl.Resource()))
				r = d.resource(rl.Resource(), rl.SchemaUrl())
			}
			origin := d.origin(b, &r, sl.Scope(), sl.SchemaUrl())
			for i := range records.Len() {
				d.record(b, records.At(i), origin)
			}
		}
	}
	return d.end()
}

func (d *Decoder) record(b *builder, lr plog.LogRecord, origin uint32) {
	kind := sampleKind(lr)
	if kind != 0 {
		if s, ok := d.sample(b, lr, kind, origin); ok {
			b.batch.Samples = append(b.batch.Samples, s)
			return
		}
	}
	row := store.Log{
		TimeNs: int64(lr.Timestamp()), ObservedNs: int64(lr.ObservedTimestamp()),
		Severity: uint8(lr.SeverityNumber()), SeverityText: lr.SeverityText(),
		Event: lr.EventName(), Body: d.value(lr.Body(), store.MaxDepth),
		Trace: store.TraceID(lr.TraceID()), Span: spanID(lr.SpanID()), Flags: uint32(lr.Flags()),
		Origin: origin, Attrs: d.attrs(lr.Attributes()), DroppedAttrs: lr.DroppedAttributesCount(),
	}
	if row.TimeNs == 0 && row.ObservedNs > 0 {
		row.TimeNs, row.ObservedNs = row.ObservedNs, -row.ObservedNs
	}
	if uid, _ := row.Attrs.Get(semconv.LogRecordUID); uid.Kind == store.KindString {
		var canonical bool
		if row.UID, canonical = parseUID(uid.Str); canonical {
			row.Attrs, _ = takeString(row.Attrs, semconv.LogRecordUID)
		}
	}
	if row.UID == (store.UID{}) {
		row.UID = d.contentUID(b, &row)
	}
	b.batch.Logs = append(b.batch.Logs, row)
}

// parseUID reads 32 hexadecimal digits. For another text, it hashes the text, and the attribute is
// not canonical: the UID does not say what it was.
func parseUID(s string) (uid store.UID, canonical bool) {
	if s == "" {
		return uid, false
	}
	if len(s) == 2*len(uid) && strings.ToLower(s) == s {
		if _, err := hex.Decode(uid[:], []byte(s)); err == nil && uid != (store.UID{}) {
			return uid, !strings.HasPrefix(string(uid[:]), derivedUID)
		}
	}
	return hashUID([]byte(s)), false
}

func hashUID(content []byte) (uid store.UID) {
	sum := sha256.Sum256(content)
	n := copy(uid[:], derivedUID)
	copy(uid[n:], sum[:])
	return uid
}

// contentUID derives a UID from the content and from the number of equal records before it in the batch. The time
// of observation counts only if the record has no other time.
func (d *Decoder) contentUID(b *builder, l *store.Log) store.UID {
	c := keys.AppendUint64(d.scratch[:0], b.batch.Origins[l.Origin].Key)
	c = keys.AppendUint64(keys.AppendUint64(c, uint64(l.TimeNs)), uint64(l.Severity))
	c = l.Body.Append(keys.AppendString(keys.AppendString(c, l.SeverityText), l.Event))
	c = keys.AppendUint64(append(c, l.Trace[:]...), uint64(l.Span))
	c = keys.AppendUint64(keys.AppendUint64(c, uint64(l.Flags)), uint64(l.DroppedAttrs))
	c = l.Attrs.Append(c)
	first := hashUID(c)
	if b.uids == nil {
		b.uids = map[store.UID]uint64{}
	}
	n := b.uids[first]
	b.uids[first] = n + 1
	d.scratch = keys.AppendUint64(c, n)
	if n == 0 {
		return first
	}
	return hashUID(d.scratch)
}

// sampleKind returns the kind of sample that the record is, 0 if it is none or has fields that a
// Sample does not have.
func sampleKind(lr plog.LogRecord) store.SampleKind {
	var kind store.SampleKind
	switch lr.EventName() {
	case semconv.EventCUDAPCSample:
		kind = store.SampleStall
	case semconv.EventCUDASASSMetric:
		kind = store.SampleSASS
	default:
		return 0
	}
	if lr.SeverityNumber() != plog.SeverityNumberInfo || lr.SeverityText() != sampleSeverity ||
		lr.ObservedTimestamp() != 0 || lr.Flags() != 0 || lr.DroppedAttributesCount() != 0 {
		return 0
	}
	return kind
}

// sample converts a sample. It refuses one without a UID or a value, and one whose body is not what
// [AppendSample] derives.
func (d *Decoder) sample(b *builder, lr plog.LogRecord, kind store.SampleKind, origin uint32) (store.Sample, bool) {
	s := store.Sample{
		TimeNs: int64(lr.Timestamp()), Kind: kind, Trace: store.TraceID(lr.TraceID()), Span: spanID(lr.SpanID()), Origin: origin,
	}
	what, value := semconv.CUDAStallReason, semconv.CUDASampleCount
	if kind == store.SampleSASS {
		what, value = semconv.CUDAMetricName, semconv.CUDAMetricValue
	}
	var extra store.Attrs
	hasUID, hasValue := false, false
	var seen uint64
	for key, v := range lr.Attributes().All() {
		ok := false
		field := -1
		switch key {
		case semconv.LogRecordUID:
			field = 0
			if v.Type() == pcommon.ValueTypeStr {
				var canonical bool
				if s.UID, canonical = parseUID(v.Str()); !canonical {
					return s, false
				}
				ok, hasUID = true, true
			}
		case what:
			field, ok = 1, str(v, &s.What)
		case value:
			field = 2
			if v.Type() == pcommon.ValueTypeInt && v.Int() >= 0 && !hasValue {
				s.Value, ok, hasValue = uint64(v.Int()), true, true
			}
		case semconv.CUDAMetricValueOverflow:
			field = 3
			if kind == store.SampleSASS && v.Type() == pcommon.ValueTypeStr && !hasValue {
				n, err := strconv.ParseUint(v.Str(), 10, 64)
				if ok = err == nil && n > math.MaxInt64 && strconv.FormatUint(n, 10) == v.Str(); ok {
					s.Value, hasValue = n, true
				}
			}
		case semconv.CUDAKernelName:
			field, ok = 4, str(v, &s.Kernel)
		case semconv.CodeFunctionName:
			field, ok = 5, str(v, &s.Function)
		case semconv.CodeFilePath:
			field, ok = 6, str(v, &s.File)
		case semconv.CodeLineNumber:
			field, ok = 7, integer(v, &s.Line)
		case semconv.CUDAPCOffset:
			field, ok = 8, integer(v, &s.PC)
		case semconv.HWID:
			field, ok = 9, str(v, &s.Device)
		case semconv.CUDADeviceIndex:
			field, ok = 10, integer(v, &s.DeviceIndex)
		case semconv.CUDACorrelationID:
			field, ok = 11, integer(v, &s.Correlation)
		}
		if field >= 0 {
			if seen&(1<<field) != 0 {
				return s, false // an attribute twice
			}
			seen |= 1 << field
		}
		if !ok {
			extra = append(extra, store.Attr{Key: key, Value: d.value(v, store.MaxDepth)})
		}
	}
	if !hasUID || !hasValue || lr.Body().Type() != pcommon.ValueTypeStr {
		return s, false
	}
	if d.scratch = appendBody(d.scratch[:0], &s); string(d.scratch) != lr.Body().Str() {
		return s, false
	}
	if len(extra) > 0 {
		extra = sorted(extra)
		raw := extra.Append(d.scratch[:0])
		d.extra = append(d.extra[:0], raw...)
		s.Extra = d.extraOf(b, d.extra, func() store.Attrs { return extra })
	}
	return s, true
}

// appendBody appends the text of a sample, such as "12 × wait in softmax".
func appendBody(dst []byte, s *store.Sample) []byte {
	if s.Kind == store.SampleStall {
		dst = append(strconv.AppendUint(dst, s.Value, 10), " × "...)
		if s.What == "" {
			dst = append(dst, "unknown"...)
		}
		dst = append(dst, s.What...)
	} else {
		dst = strconv.AppendUint(append(append(dst, s.What...), " = "...), s.Value, 10)
	}
	if name := shortName(s.Function); name != "" {
		dst = append(append(dst, " in "...), name...)
	}
	return dst
}

// shortName returns a function without its namespaces: what follows the last "::" outside brackets.
func shortName(qualified string) string {
	depth, from := 0, 0
	for i := 0; i < len(qualified); i++ {
		switch qualified[i] {
		case '(', '<', '[', '{':
			depth++
		case ')', '>', ']', '}':
			depth--
		case ':':
			if depth == 0 && i+1 < len(qualified) && qualified[i+1] == ':' {
				i++
				from = i + 1
			}
		}
	}
	return qualified[from:]
}
