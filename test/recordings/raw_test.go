// SPDX-License-Identifier: Apache-2.0

//go:build linux

package recordings_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// This file computes the expectation from the raw lines with encoding/json and none of the
// decoder's code, so that an error in the decoder cannot be in both.

// record is one line.
type record map[string]any

func (r record) str(key string) string { s, _ := r[key].(string); return s }

// num returns an integer that may be written as a number or as a string of digits.
func (r record) num(key string) (int64, bool) {
	switch v := r[key].(type) {
	case json.Number:
		n, err := strconv.ParseInt(v.String(), 10, 64)
		return n, err == nil
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil
	}
	return 0, false
}

func (r record) int(key string) int64 { n, _ := r.num(key); return n }

func (r record) float(key string) float64 {
	n, _ := r[key].(json.Number)
	f, _ := n.Float64()
	return f
}

func (r record) bool(key string) bool { b, _ := r[key].(bool); return b }

func (r record) list(key string) []record {
	items, _ := r[key].([]any)
	out := make([]record, 0, len(items))
	for _, it := range items {
		if m, ok := it.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func (r record) strs(key string) []any { l, _ := r[key].([]any); return l }

// rows returns a batch's rows as records keyed by column name, with start_ns added.
func (r record) rows(t *testing.T) []record {
	columns := r.strs("columns")
	var out []record
	for _, row := range r.strs("rows") {
		cells, ok := row.([]any)
		require.True(t, ok && len(cells) == len(columns), "row of wrong length")
		m := record{}
		for i, c := range columns {
			name, _ := c.(string)
			m[name] = cells[i]
		}
		m["start_ns"] = json.Number(strconv.FormatInt(r.int("base_time_ns")+m.int("dt_ns"), 10))
		out = append(out, m)
	}
	return out
}

// work is one span that the lines require.
type work struct {
	session string
	op      string // cuda.operation
	start   int64
	end     int64
	raw     record
	detail  record // kernel_detail, nil if none
	name    string // kernel name as recorded
	// path is the enclosing scopes joined by '|', "" for none. It is valid only if pathKnown.
	path      string
	pathKnown bool
}

// scope is one scope instance.
type scope struct {
	name, path string
	tag        string
	instance   int64 // 0 if the format has none
	depth      int64
	start, end int64
	repeat     int64
	warmup     int64
	parent     *scope
}

// session is the data of one session in the lines.
type session struct {
	id    string
	app   string
	first record // init or job_start
	// flat marks the flat layout, in which the user_scope of a kernel_detail ends with the kernel's
	// name.
	flat   bool
	dict   map[string]map[int64]string
	work   []*work
	scopes []*scope
	// logs counts expected log records by event name; records holds their lines.
	logs map[string]int
	// samples are the PC sample and SASS metric rows.
	samples []record
	// signatures, devices and hosts are the lines or rows of logs and metric points.
	signatures []record
	devices    []record
	hosts      []record
	counters   []record
}

// allChannels are the records that GPU Flight copies into every channel of a session.
var allChannels = map[string]bool{
	"init": true, "job_start": true, "shutdown": true, "dictionary_update": true,
	"capture_capabilities": true, "segment_start": true, "segment_end": true, "run_end": true,
}

var channels = map[string]bool{"device": true, "scope": true, "system": true, "sass": true}

// recount reads every line under dir.
func recount(t *testing.T, dir string) map[string]*session {
	t.Helper()
	sessions := map[string]*session{}
	of := func(id string) *session {
		s := sessions[id]
		if s == nil {
			s = &session{id: id, dict: map[string]map[int64]string{}, logs: map[string]int{}}
			sessions[id] = s
		}
		return s
	}
	seen := map[string]bool{}
	var records []record
	process.Lines(t, dir, func(path string, line []byte) {
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.UseNumber()
		var r record
		require.NoError(t, dec.Decode(&r), path)
		if allChannels[r.str("type")] {
			// Copies are equal except for the order of keys in a dictionary, so the first file of
			// any channel will do.
			key := r.str("session_id") + string(line)
			if seen[key] {
				return
			}
			seen[key] = true
		}
		s := of(r.str("session_id"))
		base, _, _ := strings.Cut(filepath.Base(path), ".")
		s.flat = !channels[base]
		switch r.str("type") {
		case "init", "job_start":
			s.first, s.app = r, r.str("app")
		case "dictionary_update":
			s.define(t, r)
		}
		records = append(records, r)
	})

	details := map[string]record{} // session and correlation id
	for _, r := range records {
		if r.str("type") == "kernel_detail" {
			key := r.str("session_id") + "/" + strconv.FormatInt(r.int("corr_id"), 10)
			require.NotContains(t, details, key, "these recordings have one detail for each correlation id")
			details[key] = r
		}
	}
	open := map[string][]*scope{}
	for _, r := range records {
		of(r.str("session_id")).take(t, r, details, open)
	}
	for _, s := range sessions {
		s.nest()
	}
	return sessions
}

func (s *session) define(t *testing.T, r record) {
	for kind, v := range r {
		entries, ok := v.(map[string]any)
		if !ok {
			continue
		}
		if s.dict[kind] == nil {
			s.dict[kind] = map[int64]string{}
		}
		for id, name := range entries {
			n, err := strconv.ParseInt(id, 10, 64)
			require.NoError(t, err)
			s.dict[kind][n], _ = name.(string)
		}
	}
}

// take adds the telemetry of one record. Records of one channel are in order only within a file.
// Nothing here depends on the order of files except the pairing of A2 scopes, whose channel has one
// file in every recording.
func (s *session) take(t *testing.T, r record, details map[string]record, open map[string][]*scope) {
	t.Helper()
	add := func(op string, start, end int64, raw record) *work {
		w := &work{session: s.id, op: op, start: start, end: end, raw: raw}
		s.work = append(s.work, w)
		return w
	}
	switch typ := r.str("type"); typ {
	case "kernel_event":
		w := add("kernel", r.int("start_ns"), r.int("end_ns"), r)
		w.name = r.str("name")
		w.path, w.pathKnown = enclosing(r.str("user_scope"), true), true
	case "memcpy_event", "memset_event":
		w := add(strings.TrimSuffix(typ, "_event"), r.int("start_ns"), r.int("end_ns"), r)
		w.path, w.pathKnown = enclosing(r.str("user_scope"), true), true
	case "kernel_event_batch":
		for _, row := range r.rows(t) {
			w := add("kernel", row.int("start_ns"), row.int("start_ns")+row.int("duration_ns"), row)
			w.name = s.dict["kernel_dict"][row.int("kernel_id")]
			if d, ok := details[s.id+"/"+strconv.FormatInt(row.int("corr_id"), 10)]; ok {
				w.detail = d
				path := d.str("user_scope")
				w.path, w.pathKnown = enclosing(path, s.flat), true
			}
		}
	case "memcpy_event_batch":
		for _, row := range r.rows(t) {
			add("memcpy", row.int("start_ns"), row.int("start_ns")+row.int("duration_ns"), row)
		}
	case "synchronization_event_batch":
		for _, row := range r.rows(t) {
			add("synchronize", row.int("start_ns"), row.int("start_ns")+row.int("duration_ns"), row)
		}
	case "memory_alloc_event_batch":
		for _, row := range r.rows(t) {
			op := "malloc"
			if row.int("memory_op") == 2 {
				op = "free"
			}
			add(op, row.int("start_ns"), row.int("start_ns")+row.int("duration_ns"), row)
		}
	case "graph_launch_event":
		add("graph", r.int("start_ns"), r.int("end_ns"), r)
	case "nvtx_marker_event":
		if r.int("end_ns") > r.int("start_ns") {
			add("nvtx", r.int("start_ns"), r.int("end_ns"), r)
		} else {
			s.logs["cuda.marker"]++
		}
	case "scope_begin":
		sc := &scope{
			name: r.str("name"), path: r.str("user_scope"), tag: r.str("tag"),
			depth: r.int("scope_depth"), start: r.int("ts_ns"),
		}
		s.scopes = append(s.scopes, sc)
		key := s.id + "/" + r.str("scope_depth") + "/" + sc.path
		open[key] = append(open[key], sc)
		s.meters(r)
	case "scope_end":
		key := s.id + "/" + r.str("scope_depth") + "/" + r.str("user_scope")
		stack := open[key]
		require.NotEmpty(t, stack, "these recordings have no end without a begin")
		stack[len(stack)-1].end = r.int("ts_ns")
		open[key] = stack[:len(stack)-1]
		s.meters(r)
	case "scope_event_batch":
		for _, row := range r.rows(t) {
			s.scopeRow(t, row)
		}
	case "profile_sample":
		switch r.str("sample_kind") {
		case "pc_sampling":
			s.logs["cuda.pc_sample"]++
		case "sass_metric":
			s.logs["cuda.sass_metric"]++
		}
		s.samples = append(s.samples, r)
	case "profile_sample_batch":
		for _, row := range r.rows(t) {
			switch row.int("sample_kind") {
			case 0:
				s.logs["cuda.pc_sample"]++
			case 1:
				s.logs["cuda.sass_metric"]++
			default:
				continue // 2 is a source map, not a sample
			}
			s.samples = append(s.samples, row)
		}
	case "execution_signature":
		s.logs["cuda.execution_signature"]++
		s.signatures = append(s.signatures, r)
	case "capture_capabilities":
		s.logs["cuda.capture"]++
	case "sass_config", "pm_sampling_config":
		s.logs["cuda.profiler_config"]++
	case "graph_node_definition":
		s.logs["cuda.graph.node"]++
	case "deep_window_event":
		s.logs["cuda.deep_window"]++
	case "deep_window_rule_summary":
		s.logs["cuda.deep_window.rule"]++
	case "counter_data_quality_summary":
		s.logs["cuda.counter_quality"]++
	case "segment_start", "segment_end", "run_end":
		s.logs["cuda.session.segment"]++
	case "source_file_content":
		s.logs["cuda.source"]++
	case "cubin_disassembly", "ptx_disassembly":
		s.logs["cuda.sass_listing"]++
	case "device_metric_batch":
		s.devices = append(s.devices, r.rows(t)...)
	case "host_metric_batch":
		s.hosts = append(s.hosts, r.rows(t)...)
	case "perf_metric_event", "kernel_perf_metric_event", "pm_sample_batch":
		s.counters = append(s.counters, r)
	case "init", "job_start", "system_start", "system_stop", "system_sample":
		s.meters(r)
	case "shutdown", "dictionary_update", "kernel_detail":
	default:
		t.Fatalf("record type %q is in the recordings but not in this recount", typ)
	}
}

// meters adds the device and host values of a record at the record's time.
func (s *session) meters(r record) {
	for _, d := range r.list("devices") {
		d["start_ns"], d["device_id"] = r["ts_ns"], d["id"]
		s.devices = append(s.devices, d)
	}
	if h, ok := r["host"].(map[string]any); ok {
		h["start_ns"] = r["ts_ns"]
		s.hosts = append(s.hosts, h)
	}
}

// enclosing returns the scope path of a user_scope. It removes the work's own name if the format
// appends it, and is empty outside all scopes.
func enclosing(userScope string, named bool) string {
	if named {
		// In these recordings a name contains no '|', so the path ends before the last one.
		i := strings.LastIndexByte(userScope, '|')
		userScope = userScope[:max(i, 0)]
	}
	if userScope == "global" || strings.HasPrefix(userScope, "global|") {
		return ""
	}
	return userScope
}

func (s *session) scopeRow(t *testing.T, row record) {
	id := row.int("scope_instance_id")
	var sc *scope
	for _, have := range s.scopes {
		if have.instance == id {
			sc = have
		}
	}
	if sc == nil {
		sc = &scope{
			instance: id, name: s.dict["scope_name_dict"][row.int("name_id")],
			depth: row.int("depth"),
		}
		s.scopes = append(s.scopes, sc)
	}
	switch row.int("event_type") {
	case 0:
		sc.start, sc.repeat, sc.warmup = row.int("start_ns"), row.int("repeat"), row.int("warmup")
	case 1:
		sc.end = row.int("start_ns")
	default:
		t.Fatal("these recordings have no continued scopes")
	}
}

// nest finds each scope's parent by time and depth, and its path.
func (s *session) nest() {
	for _, sc := range s.scopes {
		for _, p := range s.scopes {
			if p.depth == sc.depth-1 && p.start <= sc.start && (p.end == 0 || p.end >= sc.end) {
				sc.parent = p
			}
		}
	}
	for _, sc := range s.scopes {
		if sc.path == "" {
			sc.path = sc.name
			for p := sc.parent; p != nil; p = p.parent {
				sc.path = p.name + "|" + sc.path
			}
		}
	}
}
