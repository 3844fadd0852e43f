// SPDX-License-Identifier: Apache-2.0

//go:build linux

package recordings_test

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
)

// demangled maps the mangled names of the A2 recordings to the output of c++filt.
var demangled = map[string]string{
	"_Z18block_reduce_naivePKfPfi":     "block_reduce_naive(float const*, float*, int)",
	"_Z22block_reduce_optimizedPKfPfi": "block_reduce_optimized(float const*, float*, int)",
	"_Z9vectorAddPiS_S_i":              "vectorAdd(int*, int*, int*, int)",
}

// copyKinds are the numbers of copy_kind.
var copyKinds = []string{"", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"}

// memoryKinds are the numbers of memory_kind.
var memoryKinds = []string{"", "pageable", "pinned", "device", "array", "managed", "device_static", "managed_static"}

// syncNames are the span names by sync_type.
var syncNames = []string{
	"synchronize", "cudaEventSynchronize", "cudaStreamWaitEvent", "cudaStreamSynchronize", "cudaDeviceSynchronize",
}

// none is GPU Flight's value of an id that does not apply.
const none = int64(4294967295)

// attributes returns exactly the attributes that the span of w must have.
func (s *session) attributes(w *work) map[string]any {
	r, a := w.raw, map[string]any{"cuda.operation": w.op}
	id := func(key string, r record, field string) {
		if n, ok := r.num(field); ok && n != none {
			a[key] = n
		}
	}
	id("cuda.stream.id", r, "stream_id")
	if n := r.int("corr_id"); n != 0 { // 0 is CUPTI's "none"
		a["cuda.correlation.id"] = n
	}
	id("cuda.context.id", r, "context_id")
	s.device(a, r)
	if start, ok := r.num("api_start_ns"); ok {
		end := r.int("api_exit_ns")
		a["cuda.launch.start_time_unix_nano"] = start
		a["cuda.launch.end_time_unix_nano"] = end
		if wait := w.start - end; wait >= 0 {
			a["cuda.queue.duration"] = float64(wait) / 1e9
		}
	}
	if st := stack(r.str("stack_trace")); st != "" {
		a["code.stacktrace"] = st
	}
	if n := r.int("external_kind"); n != 0 {
		a["cuda.external.kind"] = n
		a["cuda.external.id"] = r.int("external_id")
	}
	if n := r.int("function_id"); n != 0 && w.op == "synchronize" {
		a["code.stacktrace"] = stack(s.dict["function_dict"][n])
	}

	switch w.op {
	case "kernel":
		s.kernelAttributes(a, w)
	case "memcpy":
		kind := r.str("copy_kind")
		if n, ok := r.num("copy_kind"); ok {
			kind = copyKinds[n]
		}
		a["cuda.memcpy.kind"] = kind
		a["cuda.memcpy.size"] = r.int("bytes")
		for key, field := range map[string]string{
			"cuda.memcpy.source.kind": "src_kind", "cuda.memcpy.destination.kind": "dst_kind",
		} {
			if v := r.str(field); v != "" && v != "Unknown" {
				a[key] = strings.ToLower(v)
			}
		}
	case "memset":
		a["cuda.memset.size"] = r.int("bytes")
	case "synchronize":
		if r.int("event_id") != 0 { // this wait has no event
			id("cuda.event.id", r, "event_id")
		}
	case "malloc", "free":
		a["cuda.memory.size"] = r.int("bytes")
		a["cuda.memory.address"] = r.int("address")
		if k := memoryKinds[r.int("memory_kind")]; k != "" {
			a["cuda.memory.kind"] = k
		}
	case "graph":
		id("cuda.graph.id", r, "graph_id")
		a["cuda.graph.exec.key"] = r.str("graph_exec_key")
	}
	return a
}

func (s *session) kernelAttributes(a map[string]any, w *work) {
	a["cuda.kernel.name"] = w.name
	if full, ok := demangled[w.name]; ok {
		a["cuda.kernel.name"], a["cuda.kernel.symbol"] = full, w.name
	}
	r, d := w.raw, w.detail
	num := func(key string, r record, fields ...string) {
		for _, f := range fields {
			if n, ok := r.num(f); ok {
				a[key] = n
				return
			}
		}
	}
	if w.detail == nil { // a batch's row without details, or an A2 line, which has its own
		if d = r; !r.bool("has_details") && r["name"] != nil {
			return
		}
	}
	if st := stack(d.str("stack_trace")); st != "" {
		a["code.stacktrace"] = st
	}
	if v := dims(d.str("grid")); v != nil {
		a["cuda.kernel.grid"] = v
	}
	if v := dims(d.str("block")); v != nil {
		a["cuda.kernel.block"] = v
	}
	num("cuda.kernel.registers_per_thread", r, "num_regs")
	if w.detail != nil || r["name"] != nil || r.int("dyn_shared") > 0 {
		num("cuda.kernel.shared_memory.dynamic", r, "dyn_shared", "dyn_shared_bytes")
	}
	num("cuda.kernel.shared_memory.static", d, "static_shared", "static_shared_bytes")
	if d.int("shared_mem_executed_bytes") > 0 { // GPU Flight writes 0 for unknown
		num("cuda.kernel.shared_memory.executed", d, "shared_mem_executed_bytes")
	}
	num("cuda.kernel.local_memory.per_thread", d, "local_mem_per_thread_bytes", "local_bytes")
	if _, ok := d["occupancy"]; ok {
		a["cuda.occupancy.reported"] = d.float("occupancy")
	}
	if l := d.str("limiting_resource"); l != "" {
		if l == "shared_mem" {
			l = "shared_memory"
		}
		a["cuda.occupancy.reported_limiter"] = l
	}
}

// statics returns the session's devices by ordinal.
func (s *session) statics() map[int64]record {
	out := map[int64]record{}
	for _, key := range []string{"gpu_static_devices", "cuda_static_devices", "devices"} {
		for _, d := range s.first.list(key) {
			if _, ok := out[d.int("id")]; !ok {
				out[d.int("id")] = d
			}
		}
	}
	return out
}

// device adds the identity of the device: the one in the record, or the only one. The properties of
// an only device are in the resource, see resource.
func (s *session) device(a map[string]any, r record) {
	statics := s.statics()
	n, ok := r.num("device_id")
	if !ok {
		if len(statics) != 1 {
			return
		}
		for n = range statics { //nolint:revive // takes the one key
		}
	}
	d := statics[n]
	a["cuda.device.index"] = n
	a["hw.id"] = d.str("uuid")
	if len(statics) > 1 {
		kind(a, d)
		if a["cuda.operation"] == "kernel" {
			capability(a, d)
		}
	}
}

func kind(a map[string]any, d record) {
	a["hw.name"], a["hw.vendor"], a["hw.type"] = d.str("name"), d.str("vendor"), "gpu"
	if d.str("vendor") == "" { // A2's static list has no vendor; all its devices are NVIDIA's
		a["hw.vendor"] = "NVIDIA"
	}
}

func capability(a map[string]any, d record) {
	a["cuda.device.compute_capability"] = formatInt(d.int("compute_major")) + "." + formatInt(d.int("compute_minor"))
	a["cuda.device.sm_count"] = d.int("multi_processor_count")
}

// resource returns all attributes that the session's resource must have.
func (s *session) resource() map[string]any {
	a := map[string]any{
		"service.name": s.app, "service.instance.id": s.id, "process.pid": s.first.int("pid"),
		"telemetry.distro.name": "gpuflight",
	}
	for key, field := range map[string]string{
		"host.name": "hostname", "cuda.session.kind": "session_kind", "cuda.session.engine": "profiling_engine",
		"cuda.analysis.id": "analysis_id", "cuda.run.id": "run_id", "cuda.roll_chain.id": "roll_chain_id",
	} {
		if v := s.first.str(field); v != "" {
			a[key] = v
		}
	}
	for key, field := range map[string]string{
		"cuda.analysis.pass.index": "pass_index", "cuda.analysis.pass.count": "pass_count",
		"cuda.segment.index": "segment_index", "cuda.roll_chain.part": "part_index",
	} {
		if n, ok := s.first.num(field); ok {
			a[key] = n
		}
	}
	if v := s.first.str("ip_addr"); v != "" {
		a["host.ip"] = []any{v}
	}
	if statics := s.statics(); len(statics) == 1 {
		for _, d := range statics {
			kind(a, d)
			capability(a, d)
		}
	}
	return a
}

// stack converts frames joined by '|', outermost first, into one frame per line, outermost last.
func stack(s string) string {
	if s == "global" {
		return ""
	}
	frames := slices.DeleteFunc(strings.Split(s, "|"), func(f string) bool { return f == "" })
	slices.Reverse(frames)
	return strings.Join(frames, "\n")
}

// spanName returns the required name of the span of w. The simplest rule that fits the recordings
// derives the short name of a kernel.
func spanName(w *work, sp testsink.Span) string {
	switch w.op {
	case "kernel":
		full, _ := sp.Attrs["cuda.kernel.name"].(string)
		if strings.ContainsAny(full, "\"\\") && sp.Name != "" && strings.Contains(full, sp.Name) {
			return sp.Name // not a function name: every part of it is valid
		}
		return shortName(full)
	case "memcpy":
		kind, _ := sp.Attrs["cuda.memcpy.kind"].(string)
		return strings.TrimSpace("memcpy " + kind)
	case "synchronize":
		return syncNames[w.raw.int("sync_type")]
	}
	return w.op
}

// shortName strips nested text (template arguments, parameters), and then everything before the
// last space and the last "::".
func shortName(full string) string {
	if rest, ok := strings.CutPrefix(full, "_ZN"); ok {
		return lastIdentifier(rest) // truncated at 255 bytes, so it cannot be demangled
	}
	full = strings.ReplaceAll(full, "(anonymous namespace)::", "")
	var out strings.Builder
	depth := 0
	for _, c := range full {
		switch c {
		case '<', '(', '{':
			depth++
		case '>', ')', '}':
			depth--
		default:
			if depth == 0 {
				out.WriteRune(c)
			}
		}
	}
	name := strings.TrimSpace(out.String())
	if i := strings.LastIndex(name, "::"); i >= 0 {
		name = name[i+2:]
	}
	if i := strings.LastIndexByte(name, ' '); i >= 0 && strings.HasPrefix(name, "void ") {
		name = name[i+1:]
	}
	return name
}

// lastIdentifier returns the last of the length-prefixed identifiers at the start of a nested
// mangled name.
func lastIdentifier(s string) (last string) {
	for {
		digits := 0
		for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(s[:digits])
		if err != nil || digits+n > len(s) {
			return last
		}
		last, s = s[digits:digits+n], s[digits+n:]
	}
}

func formatInt(n int64) string { return strconv.FormatInt(n, 10) }
