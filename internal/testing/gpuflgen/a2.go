// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import "strconv"

// The channels in the order of Writer.files.
const (
	deviceChannel = iota
	scopeChannel
	systemChannel
	sassChannel
)

// a2Encoder writes one line per event immediately. A2 has no records for synchronization,
// allocations and host metrics.
type a2Encoder struct {
	w *Writer
	l line
	// shapes and names are by index of the catalogue.
	shapes []launchShape
	names  []string
	// scopes is user_scope by path and kernel, JSON-quoted.
	scopes map[[2]int]string
	// padding holds enough frames for the longest line so far.
	padding []byte
}

var copyKindNames = map[int64][3]string{
	copyHtoD: {"HtoD", "Pinned", "Device"},
	copyDtoH: {"DtoH", "Device", "Pinned"},
	copyDtoD: {"DtoD", "Device", "Device"},
}

func newA2Encoder(w *Writer) *a2Encoder {
	e := &a2Encoder{w: w, scopes: map[[2]int]string{}}
	for i := range catalogue {
		e.shapes = append(e.shapes, catalogue[i].shape())
		e.names = append(e.names, w.kernelName(i))
	}
	return e
}

// common starts a record with the keys that all A2 records share.
func (e *a2Encoder) common(typ string) line {
	return e.l.flat(typ).int("pid", int64(e.w.pid)).str("app", e.w.cfg.App).str("session_id", e.w.id)
}

func (e *a2Encoder) emit(channel int, typ string, l line) {
	l = l.raw("}")
	e.w.emit(channel, typ, l)
	e.l = l
}

func (e *a2Encoder) emitAll(typ string, l line) {
	l = l.raw("}")
	e.w.all(typ, l)
	e.l = l
}

func (e *a2Encoder) header() {
	w := e.w
	l := e.common("init").str("log_path", w.cfg.App+".log").int("ts_ns", w.host)
	l = w.machine.snapshot(w.machine.host(l, false))
	e.emitAll("init", w.machine.static(l, "cuda_static_devices", false))
	w.host += 4e6
	e.system("system_start", "sampling_start", w.host, false)
}

func (e *a2Encoder) system(typ, name string, at int64, zeroHost bool) {
	l := e.common(typ).str("name", name).int("ts_ns", at)
	e.emit(systemChannel, typ, e.w.machine.snapshot(e.w.machine.host(l, zeroHost)))
}

func (e *a2Encoder) kernel(k *launch) {
	w := e.w
	w.pace(k.end)
	key := [2]int{k.path, k.kernel}
	scope, ok := e.scopes[key]
	if !ok {
		scope = string(appendString(nil, clip(scopeOrGlobal(w.paths[k.path])+"|"+e.names[k.kernel], nameBytes)))
		e.scopes[key] = scope
	}
	if w.cfg.compact() {
		e.compactKernel(k, scope)
	} else {
		e.fullKernel(k, scope)
	}
	w.countKernel(k)
}

// compactKernel writes only the keys that describe time and scope of a kernel. GPU Flight's
// recorder always writes all keys; this form measures readers on short lines.
func (e *a2Encoder) compactKernel(k *launch, scope string) {
	l := e.common("kernel_event").str("name", e.names[k.kernel]).bool("has_details", false).
		str("device_id", "0").key("stream_id").quoted(k.stream).key("user_scope").raw(scope).int("scope_depth", int64(k.depth)).
		int("start_ns", k.start).int("end_ns", k.end).int("corr_id", int64(k.corr))
	const emptyStack = len(`,"stack_trace":""`)
	if pad := e.w.cfg.LineBytes - len(l) - emptyStack - len("}\n"); pad > 0 {
		l = l.str("stack_trace", e.pad(pad))
	}
	e.emit(deviceChannel, "kernel_event", l)
}

func (e *a2Encoder) fullKernel(k *launch, scope string) {
	w := e.w
	spec, s := &catalogue[k.kernel], &e.shapes[k.kernel]
	details := !w.cfg.NoDetails
	l := e.common("kernel_event").str("name", e.names[k.kernel]).str("platform", "cuda").bool("has_details", details).
		str("device_id", "0").key("stream_id").quoted(k.stream).str("stack_trace", w.stacks[k.stack])
	stackEnd := len(l) - 1
	l = l.key("user_scope").raw(scope).int("scope_depth", int64(k.depth)).int("start_ns", k.start).int("end_ns", k.end).
		int("api_start_ns", k.apiStart).int("api_exit_ns", k.apiExit)
	if details {
		l = l.key("grid").raw(`"(`).intValue(k.grid).raw(`,1,1)"`).key("block").raw(`"(`).intValue(spec.block[0]).raw(",").
			intValue(spec.block[1]).raw(",").intValue(spec.block[2]).raw(`)"`)
	} else {
		l = l.str("grid", "").str("block", "")
		spec, s = &kernelSpec{}, &launchShape{}
	}
	l = l.int("dyn_shared_bytes", spec.dynShared).int("num_regs", spec.regs).int("static_shared_bytes", spec.staticShared).
		int("local_bytes", spec.local).int("const_bytes", 0).short("occupancy", s.occupancy).
		short("reg_occupancy", s.regOccupancy).short("smem_occupancy", s.sharedOccupancy).
		short("warp_occupancy", s.warpOccupancy).short("block_occupancy", s.blockOccupancy).
		str("limiting_resource", s.limiter).int("max_active_blocks", s.activeBlocks).int("corr_id", int64(k.corr))
	local := int64(localPoolBytes)
	if !details {
		local = 0
	}
	l = l.int("local_mem_total_bytes", local).int("cache_config_requested", 0).
		int("cache_config_executed", s.cacheConfig).int("shared_mem_executed_bytes", s.sharedExecuted)
	if pad := w.cfg.LineBytes - len(l) - len("}\n"); pad > 0 {
		l = append(l[:stackEnd], append([]byte(e.pad(pad)), l[stackEnd:]...)...)
	}
	e.emit(deviceChannel, "kernel_event", l)
}

// quoted writes a number in quotes.
func (l line) quoted(v int64) line {
	l = append(l, '"')
	l = strconv.AppendInt(l, v, 10)
	return append(l, '"')
}

// pad returns a stack of exactly n bytes.
func (e *a2Encoder) pad(n int) string {
	const frame = "_PyEval_EvalFrameDefault|"
	for len(e.padding) < n {
		e.padding = append(e.padding, frame...)
	}
	return string(e.padding[:n])
}

// transferred writes the keys that copies and memory sets share.
func (e *a2Encoder) transferred(typ, name, api string, t *transfer) line {
	w := e.w
	w.pace(t.end)
	return e.common(typ).str("name", name).str("platform", "cuda").str("device_id", "0").key("stream_id").quoted(t.stream).
		str("stack_trace", w.stacks[t.stack]).str("user_scope", scopeOrGlobal(w.paths[t.path])+"|"+api).
		int("scope_depth", int64(t.depth)).int("start_ns", t.start).int("end_ns", t.end).
		int("api_start_ns", t.apiStart).int("api_exit_ns", t.apiExit).int("corr_id", int64(t.corr)).int("bytes", t.bytes)
}

func (e *a2Encoder) copy(t *transfer) {
	kind := copyKindNames[t.kind]
	l := e.transferred("memcpy_event", "memcpy", "cudaMemcpyAsync_v3020", t)
	e.emit(deviceChannel, "memcpy_event", l.str("copy_kind", kind[0]).str("src_kind", kind[1]).str("dst_kind", kind[2]))
	e.w.countCopy(t)
}

func (e *a2Encoder) set(t *transfer) {
	e.emit(deviceChannel, "memset_event", e.transferred("memset_event", "memset", "cudaMemsetAsync_v3020", t))
	e.w.countSet(t)
}

func (e *a2Encoder) sync(*wait) {}

func (e *a2Encoder) memory(*allocation, bool, int64, uint32) {}

func (e *a2Encoder) scope(s *scope, begin bool, at int64) {
	w := e.w
	w.pace(at)
	typ, row := "scope_begin", RowScopeBegin
	if !begin {
		typ, row = "scope_end", RowScopeEnd
	}
	l := e.common(typ).str("name", s.name).str("tag", "").int("ts_ns", at).
		str("user_scope", w.paths[s.path]).int("scope_depth", int64(s.depth))
	e.emit(scopeChannel, typ, w.machine.snapshot(w.machine.host(l, false)))
	w.sum.Rows[row]++
}

func (e *a2Encoder) samples(at int64) {
	w := e.w
	for range w.cfg.Samples {
		s, pc := w.samplePoint()
		reason := stallReasons[w.rng.IntN(len(stallReasons))]
		l := e.common("profile_sample").int("ts_ns", at).int("device_id", 0).int("corr_id", 0).
			str("sample_kind", "pc_sampling").int("sample_count", 1+int64(w.rng.IntN(40))).
			int("stall_reason", reason.index).str("reason_name", reason.name).
			str("source_file", s.file).str("function_name", s.symbol()).int("source_line", s.line[pc])
		e.emit(scopeChannel, "profile_sample", l)
		w.sum.Rows[RowPCSample]++

		s, pc = w.samplePoint()
		l = e.common("profile_sample").int("ts_ns", at).int("device_id", 0).int("corr_id", 0).
			str("sample_kind", "sass_metric").str("metric_name", sassMetrics[w.rng.IntN(2)]).
			uint("metric_value", w.sassValue()).
			str("pc_offset", "0x"+strconv.FormatInt(int64(pc)*instructionBytes, 16)).
			str("source_file", s.file).str("function_name", s.symbol()).int("source_line", s.line[pc])
		e.emit(scopeChannel, "profile_sample", l)
		w.sum.Rows[RowSASSMetric]++
	}
}

func (e *a2Encoder) metrics(at int64) {
	e.w.pace(at)
	e.system("system_sample", "", at, true)
	e.w.sum.Rows[RowDeviceMetric] += int64(len(e.w.machine.devices))
}

func (e *a2Encoder) tick() {}

func (e *a2Encoder) flush() {}

func (e *a2Encoder) footer() {
	w := e.w
	e.system("system_stop", "sampling_end", w.host, false)
	w.host += 2e6
	e.emitAll("shutdown", e.common("shutdown").int("ts_ns", w.host))
}

// instructionBytes is the size of one SASS instruction.
const instructionBytes = 16

// symbol is the mangled name of the source's kernel.
func (s *source) symbol() string {
	for i := range catalogue {
		if catalogue[i].short == s.kernel {
			return catalogue[i].symbol
		}
	}
	return s.kernel
}

// samplePoint draws an instruction of one of the functions with source.
func (w *Writer) samplePoint() (s *source, pc int) {
	s = &sources[w.rng.IntN(len(sources))]
	return s, w.rng.IntN(len(s.sass))
}

// sassValue draws a counter value. A few values need all 64 bits.
func (w *Writer) sassValue() uint64 {
	if w.rng.IntN(200) == 0 {
		return w.rng.Uint64() | 1<<63
	}
	return 4096 * (1 + w.rng.Uint64N(1<<12))
}
