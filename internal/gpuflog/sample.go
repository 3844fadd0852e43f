// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// The values of sample_kind.
const (
	samplePC   = 0
	sampleSASS = 1
	sampleISA  = 2 // a source map, not a measurement
)

// profileSample decodes profile_sample of A2 (format document, section 3.6). A sample names no
// scope; it belongs to the one that was open when the host decoded it.
func (d *Decoder) profileSample(r *record) bool {
	var device, corr, count, stall, line gpuevent.Int
	var reason, file, function, metric, pc, kind []byte
	var value int64
	hasValue := false
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "device_id":
			ok = r.intInto(&device)
		case "corr_id":
			ok = r.intInto(&corr)
		case "sample_kind":
			ok = r.strInto(&kind)
		case "source_file":
			ok = r.strInto(&file)
		case "function_name":
			ok = r.strInto(&function)
		case "source_line":
			ok = r.intInto(&line)
		case "sample_count":
			ok = r.intInto(&count)
		case "stall_reason":
			ok = r.intInto(&stall)
		case "reason_name":
			ok = r.strInto(&reason)
		case "metric_name":
			ok = r.strInto(&metric)
		case "metric_value":
			value, _, ok = r.integer()
			hasValue = ok
		case "pc_offset":
			ok = r.strInto(&pc)
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	s := d.owner(&r.head, r.head.ts.V)
	if s == nil {
		return true
	}
	ts := r.head.ts.V
	if ts < minTime || ts > maxTime { // the activity API's samples have 0
		ts = s.timeIn(d.channel)
	}
	var name *gpuevent.KernelName
	if len(function) > 0 {
		name = d.name(function)
	}
	ref := s.refAt(ts)
	var offset gpuevent.Int
	if v, ok := hexadecimal(pc); ok {
		offset = gpuevent.Some(v)
	}
	sent := false
	if count.V > 0 {
		if len(reason) == 0 && stall.OK {
			reason = strconv.AppendInt([]byte("stall_"), stall.V, 10)
		}
		d.out.PCSample(s.ev, &gpuevent.PCSample{
			Ref: ref, UID: d.uids.next(s.key), TimeNs: ts, Function: name, PCOffset: offset, Reason: d.text.get(reason), Count: count.V,
			File: d.text.get(file), Line: positive(line), Device: device, Correlation: positive(corr),
		})
		sent = true
	}
	if len(metric) > 0 && hasValue {
		d.sass(s, &gpuevent.SASSMetric{
			Ref: ref, UID: d.uids.next(s.key), TimeNs: ts, Function: name, PCOffset: offset, Metric: d.text.get(metric), Value: uint64(value),
			File: d.text.get(file), Line: positive(line), Device: device, Correlation: positive(corr),
		})
		sent = true
	}
	if !sent {
		d.reject(MissingField, "profile_sample with neither samples nor a metric")
	}
	return true
}

func (d *Decoder) sass(s *session, m *gpuevent.SASSMetric) {
	if m.Value>>63 != 0 {
		d.stats.Rejects[ValueOutOfRange]++
	}
	d.out.SASSMetric(s.ev, m)
}

// sampleBatch decodes profile_sample_batch (format document, section 4.6). A row belongs to the
// youngest instance, begun before it, of the scope that it names.
func (d *Decoder) sampleBatch(r *record) bool {
	var b batch
	s, ok := d.batch(r, &b)
	if s == nil {
		return ok
	}
	var at sampleScope
	var fn sampleFunction
	for b.next(d) {
		kind := b.row.get(colSampleKind)
		if kind == sampleISA {
			continue
		}
		t, ok := b.time(d)
		if !ok {
			continue
		}
		s.saw(d.channel, t)
		ref := at.find(d, s, t, b.row.get(colScopeNameID))
		fn.find(d, s, b.row.get(colFunctionID))
		file := fn.file
		if id := b.row.get(colSourceFileID); id != 0 {
			if f, ok := s.dicts.lookup(dictSource, id); ok {
				file = f
			} else {
				d.reject(UnknownID, "source file "+strconv.FormatInt(id, 10))
			}
		}
		metric := ""
		if id := b.row.get(colMetricID); id != 0 {
			if metric, ok = s.dicts.lookup(dictMetric, id); !ok {
				d.reject(UnknownID, "metric "+strconv.FormatInt(id, 10))
			}
		}
		switch kind {
		case samplePC:
			if metric == "" {
				metric = "stall_" + strconv.FormatInt(b.row.get(colStallReason), 10)
			}
			d.out.PCSample(s.ev, &gpuevent.PCSample{
				Ref: ref, UID: d.uids.next(s.key), TimeNs: t, Function: fn.name, PCOffset: b.row.opt(colPCOffset), Reason: metric,
				Count: b.row.get(colMetricValue), File: file, Line: b.row.optPos(colSourceLine),
				Device: b.row.optID(colDevice), Correlation: b.row.optPos(colCorr),
			})
		case sampleSASS:
			d.sass(s, &gpuevent.SASSMetric{
				Ref: ref, UID: d.uids.next(s.key), TimeNs: t, Function: fn.name, PCOffset: b.row.opt(colPCOffset), Metric: metric,
				Value: uint64(b.row.get(colMetricValue)), File: file, Line: b.row.optPos(colSourceLine),
				Device: b.row.optID(colDevice), Correlation: b.row.optPos(colCorr),
			})
		default:
			d.reject(BadRow, "sample_kind "+strconv.FormatInt(kind, 10))
		}
	}
	return true
}

// sampleScope finds the scope of a sample; rows of one kernel follow each other and share it.
type sampleScope struct {
	t, id int64
	ref   gpuevent.Ref
	set   bool
}

func (a *sampleScope) find(d *Decoder, s *session, t, id int64) gpuevent.Ref {
	if a.set && a.t == t && a.id == id {
		return a.ref
	}
	*a = sampleScope{t: t, id: id, set: true, ref: s.logRef()}
	if id == 0 {
		return a.ref
	}
	name, ok := s.dicts.lookup(dictScope, id)
	if !ok {
		d.reject(UnknownID, "scope name "+strconv.FormatInt(id, 10))
		return a.ref
	}
	for i, n := len(s.scopes.all)-1, 0; i >= 0 && n < 4096; i, n = i-1, n+1 {
		if x := s.scopes.all[i]; x.start <= t && x.path.name == name {
			a.ref = s.refOf(x)
			break
		}
	}
	return a.ref
}

// sampleFunction resolves a function id: "<function>@<source file>".
type sampleFunction struct {
	id   int64
	name *gpuevent.KernelName
	file string
}

func (f *sampleFunction) find(d *Decoder, s *session, id int64) {
	if f.id == id && f.name != nil {
		return
	}
	*f = sampleFunction{id: id}
	if id == 0 {
		return
	}
	v, ok := s.dicts.lookup(dictFunction, id)
	if !ok {
		d.reject(UnknownID, "function "+strconv.FormatInt(id, 10))
		return
	}
	if cut := strings.LastIndexByte(v, '@'); cut >= 0 {
		v, f.file = v[:cut], v[cut+1:]
	}
	f.name = d.name([]byte(v))
	if sym, ok := s.dicts.lookup(dictSymbol, id); ok && sym != f.name.Full && f.name.Symbol == "" {
		n := *f.name
		n.Symbol = sym
		f.name = &n
	}
}

// pmBatch decodes pm_sample_batch.
func (d *Decoder) pmBatch(r *record) bool {
	var b batch
	s, ok := d.batch(r, &b)
	if s == nil {
		return ok
	}
	for b.next(d) {
		t, ok := b.time(d)
		if !ok {
			continue
		}
		if !b.row.has[colValue] {
			d.reject(BadRow, "pm sample that is not a number")
			continue
		}
		s.saw(d.channel, t)
		metric, ok := s.dicts.lookup(dictMetric, b.row.get(colMetricID))
		if !ok {
			d.reject(UnknownID, "metric "+strconv.FormatInt(b.row.get(colMetricID), 10))
			metric = "metric_" + strconv.FormatInt(b.row.get(colMetricID), 10)
		}
		c := gpuevent.Counter{TimeNs: t, Name: metric, Value: b.row.f, Device: b.row.optID(colDevice)}
		if id := b.row.get(colScopeNameID); id != 0 {
			c.Scope, _ = s.dicts.lookup(dictScope, id)
		}
		d.out.Counter(s.ev, &c)
	}
	return true
}
