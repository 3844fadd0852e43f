// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// header decodes init (A) and job_start (B, C): format document, sections 3.2 and 4.3. It stands at
// the head of every channel; the first that is read counts.
func (d *Decoder) header(r *record) bool {
	m := d.meters()
	var devices []gpuevent.Device
	var hostname, addr, engine, kind []byte
	var extra attrList
	old := false
	if !r.fields(func(key []byte) (ok bool) {
		switch k := string(key); k {
		case "host", "devices":
			ok = m.take(r, key)
		case "gpu_static_devices", "cuda_static_devices", "rocm_static_devices":
			ok = array(r, func() bool {
				v, ok := takeStatic(r)
				if ok && len(devices) < 1024 {
					devices = addDevice(devices, v)
				}
				return ok
			})
		case "hostname":
			ok = r.strInto(&hostname)
		case "ip_addr":
			ok = r.strInto(&addr)
		case "session_kind":
			ok = r.strInto(&kind)
		case "profiling_engine":
			ok = r.strInto(&engine)
		case "system_rate_ms", "logPath", "scope_rate_ms":
			old = true
			ok = r.skip()
		default:
			if e := grouping[k]; e.key != "" {
				ok = e.take(r, &extra)
			} else {
				ok = r.field(key)
			}
		}
		return ok
	}) {
		return false
	}
	if old && r.typ == recInit {
		d.reject(TooOld, "init of generation A0 or A1")
		if len(r.head.session) > 0 {
			d.session(r.head.session).tooOld = true
		} else {
			d.tooOld = true // the oldest have no session ids at all
		}
		return true
	}
	s := d.owner(&r.head, r.head.ts.V)
	if s == nil {
		return true
	}
	if r.typ == recJobStart && s.closed {
		s.closed = false // the same session once more: ids are the same
	}
	if s.headed {
		return true
	}
	s.headed = true
	for i := range m.devices { // what the static list lacks
		devices = addDevice(devices, gpuevent.Device{
			Index: m.devices[i].Device, Name: m.devices[i].Name, UUID: m.devices[i].UUID, Vendor: m.devices[i].Vendor,
		})
	}
	ev := &gpuevent.Session{
		ID: s.id, App: d.text.get(r.head.app), PID: r.head.pid, HostName: text(hostname), HostIP: text(addr),
		Devices: devices, Distro: s.ev.Distro, Engine: text(engine), Kind: text(kind), Extra: extra,
	}
	if ts := r.head.ts.V; ts >= minTime && ts < maxTime {
		ev.StartNs = ts
	}
	s.ev = ev
	d.snapshot(s, ev.StartNs, m)
	return true
}

// groupKey says how a key of job_start that groups sessions becomes a resource attribute.
type groupKey struct {
	key    string
	number bool
}

var grouping = map[string]groupKey{
	"analysis_id":     {key: semconv.CUDAAnalysisID},
	"pass_index":      {semconv.CUDAAnalysisPassIndex, true},
	"pass_count":      {semconv.CUDAAnalysisPassCount, true},
	"run_id":          {key: semconv.CUDARunID},
	"segment_index":   {semconv.CUDASegmentIndex, true},
	"roll_chain_id":   {key: semconv.CUDARollChainID},
	"part_index":      {semconv.CUDARollChainPart, true},
	"previous_run_id": {key: semconv.CUDARunPreviousID},
}

func (g groupKey) take(r *record, l *attrList) bool {
	if r.null() {
		return true
	}
	if g.number {
		var v gpuevent.Int
		ok := r.intInto(&v)
		l.int(g.key, v)
		return ok
	}
	b, ok := r.str()
	l.str(g.key, text(b))
	return ok
}

func takeStatic(r *record) (v gpuevent.Device, ok bool) {
	ok = object(r, func(key []byte) (ok bool) {
		switch string(key) {
		case "id":
			v.Index, _, ok = r.integer()
		case "name":
			var b []byte
			ok = r.strInto(&b)
			v.Name = text(b)
		case "uuid":
			var b []byte
			ok = r.strInto(&b)
			v.UUID = text(b)
		case "vendor":
			var b []byte
			ok = r.strInto(&b)
			v.Vendor = text(b)
		case "compute_major", "compute_minor": // a string in A2 and early B, a number since
			var n gpuevent.Int
			if r.peek() == '"' {
				var b []byte
				ok = r.strInto(&b)
				n.V, n.OK = decimal(b)
			} else {
				ok = r.intInto(&n)
			}
			if string(key) == "compute_major" {
				v.ComputeMajor = n
			} else {
				v.ComputeMinor = n
			}
		case "multi_processor_count":
			ok = r.intInto(&v.SMCount)
			v.SMCount = positive(v.SMCount)
		default:
			ok = r.skip()
		}
		return ok
	})
	return v, ok
}

// addDevice merges what several lists say of one device.
func addDevice(list []gpuevent.Device, v gpuevent.Device) []gpuevent.Device {
	for i := range list {
		have := &list[i]
		if have.Index != v.Index || (have.UUID != "" && v.UUID != "" && have.UUID != v.UUID) {
			continue
		}
		fill := func(s *string, v string) {
			if *s == "" {
				*s = v
			}
		}
		fill(&have.Name, v.Name)
		fill(&have.UUID, v.UUID)
		fill(&have.Vendor, v.Vendor)
		if !have.ComputeMajor.OK {
			have.ComputeMajor, have.ComputeMinor = v.ComputeMajor, v.ComputeMinor
		}
		if !have.SMCount.OK {
			have.SMCount = v.SMCount
		}
		return list
	}
	return append(list, v)
}

func (d *Decoder) shutdown(r *record) bool {
	var code, signal gpuevent.Int
	signaled, crashed := false, false
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "exit_code":
			ok = r.intInto(&code)
		case "signal":
			ok = r.intInto(&signal)
		case "signaled":
			signaled, ok = r.boolean()
		case "crashed":
			crashed, ok = r.boolean()
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
	s.shut[d.channel] = true
	if r.head.ts.V >= minTime && r.head.ts.V < maxTime {
		s.endTs = max(s.endTs, r.head.ts.V)
	}
	if code.OK {
		s.exit.code = code
	}
	if signaled {
		s.exit.signal = signal
	}
	s.exit.crashed = s.exit.crashed || crashed
	if d.channel == Scope {
		s.drain(d)
	}
	return true
}

// dictKind is one of the dictionaries of a session.
type dictKind uint8

const (
	dictKernel dictKind = iota
	dictScope
	dictFunction
	dictMetric
	dictSource
	dictSymbol
	numDicts
)

var dictByName = map[string]dictKind{
	"kernel_dict": dictKernel, "scope_name_dict": dictScope, "function_dict": dictFunction,
	"metric_dict": dictMetric, "source_file_dict": dictSource, "func_symbol_dict": dictSymbol,
}

// dictionaries are the names of a session by id (format document, section 4.4). Every channel
// carries all of them, so most entries come four times.
type dictionaries struct {
	m       [numDicts]map[int64]string
	kernels map[int64]*gpuevent.KernelName
	bytes   int
	// version grows with every change.
	version uint64
}

// lookup returns the string of an id.
func (t *dictionaries) lookup(k dictKind, id int64) (string, bool) {
	v, ok := t.m[k][id]
	return v, ok
}

// entryBytes is about what an entry takes besides its string.
const entryBytes = 48

// set enters a string; false if there is no room. A later definition wins.
func (t *dictionaries) set(k dictKind, id int64, v []byte, limit int) bool {
	old, ok := t.m[k][id]
	if ok && old == string(v) {
		return true
	}
	size := len(v) + entryBytes - len(old)
	if t.bytes+size > limit {
		return false
	}
	if t.m[k] == nil {
		t.m[k] = map[int64]string{}
	}
	t.m[k][id] = text(v)
	t.bytes += size
	t.version++
	if k == dictKernel {
		delete(t.kernels, id)
	}
	return true
}

// unnamed stands for a kernel whose name is not known.
var unnamed = &gpuevent.KernelName{Short: "kernel"}

func (t *dictionaries) kernelName(d *Decoder, id int64) *gpuevent.KernelName {
	if n := t.kernels[id]; n != nil {
		return n
	}
	v, ok := t.m[dictKernel][id]
	if !ok {
		d.reject(UnknownID, "kernel "+strconv.FormatInt(id, 10))
		return unnamed
	}
	if t.kernels == nil {
		t.kernels = map[int64]*gpuevent.KernelName{}
	}
	n := d.name([]byte(v))
	t.kernels[id] = n
	return n
}

func (d *Decoder) dictionary(r *record) bool {
	type part struct {
		kind dictKind
		at   int
	}
	var parts [numDicts]part
	n := 0
	if !r.fields(func(key []byte) (ok bool) {
		if k, known := dictByName[string(key)]; known && n < len(parts) {
			r.space()
			parts[n] = part{k, r.i}
			n++
			ok = r.skip()
		} else {
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	s := d.owner(&r.head, 0)
	if s == nil {
		return true
	}
	for _, p := range parts[:n] {
		r.i = p.at
		ok := object(r, func(key []byte) bool {
			v, ok := r.str()
			if !ok {
				return false
			}
			id, sound := decimal(key)
			if !sound {
				d.reject(BadRow, "dictionary id "+excerpt(key))
				return true
			}
			if !s.dicts.set(p.kind, id, v, d.opt.MaxDictionaryBytes) {
				d.reject(DictionaryFull, "session "+s.id)
			}
			return true
		})
		if !ok {
			return false
		}
	}
	return true
}

// capabilities decodes capture_capabilities (format document, section 4.9).
func (d *Decoder) capabilities(r *record) bool {
	var requested, selected []byte
	var features, status, mode, reason, message []string
	synthetic := false
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "requested_engine":
			ok = r.strInto(&requested)
		case "selected_engine":
			ok = r.strInto(&selected)
		case "capabilities":
			ok = array(r, func() bool {
				var f, st, mo, re, msg []byte
				ok := object(r, func(key []byte) bool {
					switch string(key) {
					case "feature":
						return r.strInto(&f)
					case "status":
						return r.strInto(&st)
					case "mode":
						return r.strInto(&mo)
					case "reason_code":
						return r.strInto(&re)
					case "message":
						return r.strInto(&msg)
					}
					return r.skip()
				})
				if string(f) == "kernel_events" && string(mo) == "launch_callbacks_synthetic" {
					synthetic = true
				}
				if len(features) < 256 {
					features, status = append(features, text(f)), append(status, text(st))
					mode, reason = append(mode, text(mo)), append(reason, text(re))
					message = append(message, text(msg))
				}
				return ok
			})
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
	s.estimated = s.estimated || synthetic
	if !s.first(r.b) {
		return true
	}
	var attrs attrList
	attrs.str(semconv.CUDACaptureRequestedEngine, text(requested))
	attrs.str(semconv.CUDACaptureSelectedEngine, text(selected))
	attrs.strs(semconv.CUDACaptureFeature, features)
	attrs.strs(semconv.CUDACaptureStatus, status)
	attrs.strs(semconv.CUDACaptureMode, mode)
	attrs.strs(semconv.CUDACaptureReason, reason)
	attrs.strs(semconv.CUDACaptureMessage, message)
	s.record(d, r.head.ts.V, s.logRef(), semconv.EventCUDACapture, captureBody(string(selected), features, status), attrs...)
	return true
}

func captureBody(engine string, features, status []string) string {
	var collected, not []string
	for i, f := range features {
		switch status[i] {
		case "collected":
			collected = append(collected, f)
		case "fallback", "partial", "skipped", "disabled":
			not = append(not, f+" "+status[i])
		}
	}
	b := "capture with " + engine + ": collected " + strings.Join(collected, ", ")
	if len(not) > 0 {
		b += "; " + strings.Join(not, ", ")
	}
	return b
}

// segment decodes segment_start, segment_end and run_end.
func (d *Decoder) segment(r *record) bool {
	var attrs attrList
	phase := map[recordType]string{
		recSegmentStart: semconv.CUDASegmentPhaseStart, recSegmentEnd: semconv.CUDASegmentPhaseEnd, recRunEnd: semconv.CUDASegmentPhaseRunEnd,
	}[r.typ]
	attrs.str(semconv.CUDASegmentPhase, phase)
	for {
		key, done, ok := r.next()
		if !ok {
			return false
		}
		if done {
			break
		}
		var name string
		number := true
		switch string(key) {
		case "run_id":
			name, number = semconv.CUDARunID, false
		case "previous_session_id":
			name, number = semconv.CUDASegmentPreviousSessionID, false
		case "deferred_by":
			name, number = semconv.CUDASegmentDeferredBy, false
		case "end_reason":
			name, number = semconv.CUDASegmentEndReason, false
		case "rollover_reason":
			name, number = semconv.CUDASegmentRolloverReason, false
		case "segment_index", "final_segment_index":
			name = semconv.CUDASegmentIndex
		case "actual_start_ns", "actual_end_ns", "ended_ns":
			name = semconv.CUDASegmentBoundaryTimeUnixNano
		case "requested_boundary_ns":
			name = semconv.CUDASegmentRequestedBoundaryTimeUnixNano
		case "records_outside_segment_window":
			name = semconv.CUDASegmentRecordsOutside
		case "requested_rollover_ns":
			name = semconv.CUDASegmentRolloverRequestedTimeUnixNano
		case "actual_rollover_ns":
			name = semconv.CUDASegmentRolloverTimeUnixNano
		case "boundary_delay_ns":
			var v gpuevent.Int
			ok = r.intInto(&v)
			attrs.float(semconv.CUDASegmentBoundaryDelay, scaled(v, 1e9))
			if !ok {
				return false
			}
			continue
		case "synthetic":
			v, ok := r.boolean()
			if !ok {
				return false
			}
			attrs = append(attrs, gpuevent.B(semconv.CUDARecordSynthetic, v))
			continue
		default:
			if !r.field(key) {
				return false
			}
			continue
		}
		if !(groupKey{name, number}).take(r, &attrs) {
			return false
		}
	}
	s := d.owner(&r.head, r.head.ts.V)
	if s == nil || !s.first(r.b) {
		return true
	}
	s.record(d, r.head.ts.V, s.logRef(), semconv.EventCUDASessionSegment, recordNames[r.typ], attrs...)
	return true
}

// recorderConfig decodes sass_config and pm_sampling_config.
func (d *Decoder) recorderConfig(r *record) bool {
	var device, interval, samples gpuevent.Int
	var preset []byte
	var configured, skipped []string
	list := func(l *[]string) bool {
		return array(r, func() bool {
			b, ok := r.str()
			if len(*l) < 4096 {
				*l = append(*l, text(b))
			}
			return ok
		})
	}
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "device_id":
			ok = r.intInto(&device)
		case "interval_us":
			ok = r.intInto(&interval)
		case "max_samples":
			ok = r.intInto(&samples)
		case "preset":
			ok = r.strInto(&preset)
		case "configured_metrics", "metrics":
			ok = list(&configured)
		case "skipped_metrics":
			ok = list(&skipped)
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
	kind := semconv.CUDAProfilerKindSASSMetrics
	if r.typ == recPMConfig {
		kind = semconv.CUDAProfilerKindPmSampling
	}
	var attrs attrList
	attrs.str(semconv.CUDAProfilerKind, kind)
	attrs.int(semconv.CUDADeviceIndex, device)
	attrs.float(semconv.CUDAProfilerInterval, scaled(interval, 1e6))
	attrs.int(semconv.CUDAProfilerMaxSamples, samples)
	attrs.str(semconv.CUDAProfilerPreset, text(preset))
	attrs.strs(semconv.CUDAProfilerMetricsConfigured, configured)
	attrs.strs(semconv.CUDAProfilerMetricsSkipped, skipped)
	body := fmt.Sprintf("%s with %d metrics", kind, len(configured))
	s.record(d, r.head.ts.V, s.logRef(), semconv.EventCUDAProfilerConfig, body, attrs...)
	return true
}

// signature decodes execution_signature.
func (d *Decoder) signature(r *record) bool {
	var scope, value []byte
	var launches, distinct gpuevent.Int
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "scope_name":
			ok = r.strInto(&scope)
		case "signature":
			ok = r.strInto(&value)
		case "launch_count":
			ok = r.intInto(&launches)
		case "distinct_kernels":
			ok = r.intInto(&distinct)
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
	var attrs attrList
	attrs.str(semconv.CUDAScopePath, text(scope))
	attrs.str(semconv.CUDASignatureValue, text(value))
	attrs.int(semconv.CUDASignatureLaunches, launches)
	attrs.int(semconv.CUDASignatureDistinctKernels, distinct)
	body := fmt.Sprintf("%d launches of %d kernels", launches.V, distinct.V)
	s.record(d, r.head.ts.V, s.logRef(), semconv.EventCUDAExecutionSignature, body, attrs...)
	return true
}

// deepWindow decodes deep_window_event.
func (d *Decoder) deepWindow(r *record) bool {
	var name, reason []byte
	var engines []string
	var start, end, launches, wantMs, wantLaunches gpuevent.Int
	var attrs attrList
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "name":
			ok = r.strInto(&name)
		case "close_reason":
			ok = r.strInto(&reason)
		case "engines":
			ok = array(r, func() bool {
				b, ok := r.str()
				if len(engines) < 64 {
					engines = append(engines, text(b))
				}
				return ok
			})
		case "start_ns":
			ok = r.intInto(&start)
		case "end_ns":
			ok = r.intInto(&end)
		case "launches_covered":
			ok = r.intInto(&launches)
		case "requested_duration_ms":
			ok = r.intInto(&wantMs)
		case "requested_max_launches":
			ok = r.intInto(&wantLaunches)
		case "trigger":
			ok = r.null() || trigger(r, &attrs)
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	s := d.owner(&r.head, end.V)
	if s == nil {
		return true
	}
	attrs.str(semconv.CUDADeepWindowName, text(name))
	attrs.str(semconv.CUDADeepWindowCloseReason, text(reason))
	attrs.strs(semconv.CUDADeepWindowEngines, engines)
	attrs.int(semconv.CUDADeepWindowStartTimeUnixNano, start)
	attrs.int(semconv.CUDADeepWindowEndTimeUnixNano, end)
	attrs.int(semconv.CUDADeepWindowLaunches, launches)
	attrs.float(semconv.CUDADeepWindowRequestedDuration, scaled(wantMs, 1000))
	attrs.int(semconv.CUDADeepWindowRequestedLaunches, positive(wantLaunches))
	s.record(d, start.V, s.logRef(), semconv.EventCUDADeepWindow, "deep window "+text(name)+" closed: "+text(reason), attrs...)
	return true
}

func trigger(r *record, attrs *attrList) bool {
	return object(r, func(key []byte) bool {
		text1 := func(name string) bool {
			b, ok := r.str()
			attrs.str(name, text(b))
			return ok
		}
		fl := func(name string, per float64) bool {
			f, ok := r.number()
			attrs.float(name, gpuevent.Float{V: f / per, OK: ok && f == f})
			return ok
		}
		in := func(name string) bool {
			var v gpuevent.Int
			ok := r.intInto(&v)
			attrs.int(name, v)
			return ok
		}
		switch string(key) {
		case "rule_id":
			return text1(semconv.CUDADeepWindowRuleID)
		case "metric":
			return text1(semconv.CUDADeepWindowRuleMetric)
		case "op":
			return text1(semconv.CUDADeepWindowRuleOperator)
		case "threshold":
			return fl(semconv.CUDADeepWindowRuleThreshold, 1)
		case "rearm_threshold":
			return fl(semconv.CUDADeepWindowRuleRearmThreshold, 1)
		case "observed":
			return fl(semconv.CUDADeepWindowRuleObserved, 1)
		case "rate_window_ms":
			return fl(semconv.CUDADeepWindowRuleRateWindow, 1000)
		case "sustained_ms":
			return fl(semconv.CUDADeepWindowRuleSustained, 1000)
		case "first_true_ns":
			return in(semconv.CUDADeepWindowRuleFirstTrueTimeUnixNano)
		case "fired_ns":
			return in(semconv.CUDADeepWindowRuleFiredTimeUnixNano)
		}
		return r.skip()
	})
}

// plainRecord decodes a flat record whose fields become attributes one by one.
func (d *Decoder) plainRecord(r *record, event, body string, fields map[string]string) bool {
	var attrs attrList
	var ts int64
	if !r.fields(func(key []byte) (ok bool) {
		name := fields[string(key)]
		switch {
		case string(key) == "emitted_ns":
			ts, _, ok = r.integer()
		case name == "":
			ok = r.field(key)
		case name == semconv.CUDADeepWindowRuleLastValue:
			var f float64
			f, ok = r.number()
			attrs.float(name, gpuevent.Float{V: f, OK: ok && f == f})
		case r.peek() == '"':
			var b []byte
			ok = r.strInto(&b)
			attrs.str(name, text(b))
		default:
			start := r.i
			var v gpuevent.Int
			if ok = r.intInto(&v); ok {
				attrs.int(name, v)
				break
			}
			r.i = start
			var f float64
			if f, ok = r.number(); ok && f == f {
				attrs.float(name, gpuevent.SomeFloat(f))
			}
		}
		return ok
	}) {
		return false
	}
	if s := d.owner(&r.head, ts); s != nil {
		s.record(d, ts, s.logRef(), event, body, attrs...)
	}
	return true
}

var deepRuleFields = map[string]string{
	"rule_id": semconv.CUDADeepWindowRuleID, "expression": semconv.CUDADeepWindowRuleExpression,
	"state": semconv.CUDADeepWindowRuleState, "outcome": semconv.CUDADeepWindowRuleOutcome,
	"reason": semconv.CUDADeepWindowRuleReason, "metric_state": semconv.CUDADeepWindowRuleMetricState,
	"samples_seen": semconv.CUDADeepWindowRuleSamplesSeen, "windows_opened": semconv.CUDADeepWindowRuleWindowsOpened,
	"truncated_samples":     semconv.CUDADeepWindowRuleTruncatedSamples,
	"metric_quality_resets": semconv.CUDADeepWindowRuleQualityResets,
	"last_quality_reason":   semconv.CUDADeepWindowRuleQualityReason,
	"state_sequence":        semconv.CUDADeepWindowRuleStateSequence,
	"last_value":            semconv.CUDADeepWindowRuleLastValue,
	"last_observed_ns":      semconv.CUDADeepWindowRuleLastObservedTimeUnixNano,
}

func (d *Decoder) deepRule(r *record) bool {
	return d.plainRecord(r, semconv.EventCUDADeepWindowRule, "deep window rule", deepRuleFields)
}

var counterQualityFields = map[string]string{
	"source": semconv.CUDACounterQualitySource, "schema_version": semconv.CUDACounterQualitySchemaVersion,
	"tracked_counters": semconv.CUDACounterQualityTrackedCounters, "samples_observed": semconv.CUDACounterQualitySamplesObserved,
	"registration_rejected":  semconv.CUDACounterQualityRegistrationRejected,
	"unknown_id_samples":     semconv.CUDACounterQualityUnknownIDSamples,
	"unavailable_samples":    semconv.CUDACounterQualityUnavailableSamples,
	"negative_delta_samples": semconv.CUDACounterQualityNegativeDeltaSamples,
	"rate_windows_discarded": semconv.CUDACounterQualityRateWindowsDiscarded,
}

func (d *Decoder) counterQuality(r *record) bool {
	return d.plainRecord(r, semconv.EventCUDACounterQuality, "quality of application counters", counterQualityFields)
}
