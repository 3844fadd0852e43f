// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import (
	"math"
	"strconv"
)

const (
	// flushPeriod is the session time between two flushes of the buffered rows, in ns.
	flushPeriod = 250e6
	// rowLimit is the number of pending kernel, copy or allocation rows that causes a flush.
	rowLimit = 2048
	// metricRows is the number of samples in a batch of device or host metrics.
	metricRows = 4
	// isaBatchBase is the first batch id of ISA source maps.
	isaBatchBase = 1_000_000
	// noID represents "none" for CUPTI's unsigned 32-bit ids.
	noID = math.MaxUint32
)

// c3Encoder buffers rows and writes them as columnar batches, preceded by the required
// dictionaries.
type c3Encoder struct {
	w *Writer
	l line

	lastFlush int64
	batchID   map[string]int64

	kernels     []launch
	copies      []transfer
	syncs       []wait
	allocs      []memoryRow
	scopes      []scopeRow
	profile     []profileRow
	deviceRows  []int64
	hostRows    []int64
	metricTimes []int64

	dicts [dictCount]dictionary

	// detailHead and detailShape are the constant parts of a kernel_detail line. detailHead ends
	// before the correlation id. detailShape holds, for each kernel, the text between grid and
	// scope. paths and stacks are JSON-quoted.
	detailHead    string
	detailShape   []string
	paths, stacks []string

	// signature accumulates launches by scope path, for execution_signature.
	signatures map[int]*signature
	listed     bool
}

type memoryRow struct {
	allocation
	op, at int64
	corr   uint32
}

type scopeRow struct {
	at, instance, name, event, depth, repeat, warm, started int64
}

type profileRow struct {
	at, function, pc, metric, reason, kind, scope, file, line int64
	value                                                     uint64
}

type signature struct {
	hash     uint64
	launches int64
	kernels  map[int]struct{}
}

// The dictionaries, in the order of their keys in the record.
const (
	kernelDict = iota
	scopeDict
	functionDict
	metricDict
	fileDict
	symbolDict
	dictCount
)

var dictKeys = [dictCount]string{"kernel_dict", "scope_name_dict", "function_dict", "metric_dict", "source_file_dict", "func_symbol_dict"}

// dictionary numbers values from 1 and records which of them are not written yet.
type dictionary struct {
	ids    map[string]int64
	values []string
	sent   int
}

func (d *dictionary) id(v string) int64 {
	if id, ok := d.ids[v]; ok {
		return id
	}
	if d.ids == nil {
		d.ids = map[string]int64{}
	}
	d.values = append(d.values, v)
	id := int64(len(d.values))
	d.ids[v] = id
	return id
}

func newC3Encoder(w *Writer) *c3Encoder {
	e := &c3Encoder{w: w, lastFlush: w.host, batchID: map[string]int64{}, signatures: map[int]*signature{}}
	e.detailHead = string(e.record(1, "kernel_detail").int("pid", int64(w.pid)).str("app", w.cfg.App).raw(`,"corr_id":`))
	for i := range catalogue {
		k := &catalogue[i]
		s := k.shape()
		l := line(nil).key("block").raw(`"(`).intValue(k.block[0]).raw(",").intValue(k.block[1]).raw(",").intValue(k.block[2]).raw(`)"`).
			int("static_shared", k.staticShared).int("local_bytes", k.local).int("const_bytes", 0).
			fixed("occupancy", s.occupancy, 6).fixed("reg_occupancy", s.regOccupancy, 6).
			fixed("smem_occupancy", s.sharedOccupancy, 6).fixed("warp_occupancy", s.warpOccupancy, 6).
			fixed("block_occupancy", s.blockOccupancy, 6).str("limiting_resource", s.limiter).
			int("max_active_blocks", s.activeBlocks).int("local_mem_total_bytes", localPoolBytes).
			int("local_mem_per_thread_bytes", k.local).int("cache_config_requested", 0).
			int("cache_config_executed", s.cacheConfig).int("shared_mem_executed_bytes", s.sharedExecuted).
			raw(`,"user_scope":`)
		e.detailShape = append(e.detailShape, string(l))
	}
	for _, s := range w.stacks {
		e.stacks = append(e.stacks, string(line(nil).raw(`,"stack_trace":`).stringValue(s).raw("}")))
	}
	return e
}

func (e *c3Encoder) record(version int64, typ string) line {
	return e.l.record(version, typ).str("session_id", e.w.id)
}

// plain starts one of the flat records that have the same form as in A2.
func (e *c3Encoder) plain(typ string) line {
	return e.l.flat(typ).int("pid", int64(e.w.pid)).str("app", e.w.cfg.App).str("session_id", e.w.id)
}

// batch starts a batch of the given columns.
func (e *c3Encoder) batch(version int64, typ string, base int64, columns string) line {
	e.batchID[typ]++
	return e.record(version, typ).int("batch_id", e.batchID[typ]).int("base_time_ns", base).
		raw(`,"columns":[`).raw(columns).raw(`],"rows":[`)
}

func (e *c3Encoder) emit(channel int, typ string, l line) {
	e.w.emit(channel, typ, l)
	e.l = l
}

func (e *c3Encoder) emitAll(typ string, l line) {
	e.w.all(typ, l)
	e.l = l
}

func (e *c3Encoder) engine() string {
	if e.w.cfg.Samples > 0 {
		return "nvidia.pc_sampling_with_sass"
	}
	return "nvidia.trace"
}

func (e *c3Encoder) header() {
	w := e.w
	l := e.l.record(1, "job_start").int("pid", int64(w.pid)).str("app", w.cfg.App).str("session_id", w.id).
		str("log_path", w.cfg.App).int("ts_ns", w.host).str("hostname", hostName).str("ip_addr", hostAddress)
	l = w.machine.snapshot(w.machine.host(l, false))
	l = w.machine.static(l, "gpu_static_devices", true)
	l = w.machine.static(l, "cuda_static_devices", true)
	e.emitAll("job_start", l.raw(`,"rocm_static_devices":[]`).str("session_kind", "trace").
		str("profiling_engine", e.engine()).raw("}"))
	w.host += 4e6
	e.system("system_start", "sampling_start")
	if w.cfg.Samples > 0 {
		l := e.record(1, "sass_config").int("ts_ns", w.host).int("device_id", 0).raw(`,"configured_metrics":[`)
		for i, m := range sassMetrics {
			if i > 0 {
				l = l.raw(",")
			}
			l = l.stringValue(m)
		}
		e.emit(deviceChannel, "sass_config", l.raw(`],"skipped_metrics":[`).stringValue(skippedMetric).raw("]}"))
	}
}

func (e *c3Encoder) system(typ, name string) {
	l := e.plain(typ).str("name", name).int("ts_ns", e.w.host)
	e.emit(systemChannel, typ, e.w.machine.snapshot(e.w.machine.host(l, false)).raw("}"))
}

func (e *c3Encoder) kernel(k *launch) {
	w := e.w
	e.dicts[kernelDict].id(catalogue[k.kernel].name)
	e.kernels = append(e.kernels, *k)
	s := e.signatures[k.path]
	if s == nil {
		s = &signature{hash: 14695981039346656037, kernels: map[int]struct{}{}}
		e.signatures[k.path] = s
	}
	s.hash = (s.hash ^ uint64(k.kernel)) * 1099511628211
	s.launches++
	s.kernels[k.kernel] = struct{}{}
	if len(e.kernels) >= rowLimit {
		w.pace(k.end)
		e.flushKernels()
	}
}

func (e *c3Encoder) copy(t *transfer) {
	e.copies = append(e.copies, *t)
	if len(e.copies) >= rowLimit {
		e.flushCopies()
	}
}

func (e *c3Encoder) set(t *transfer) {
	w := e.w
	w.pace(t.end)
	l := e.plain("memset_event").str("name", "memset").str("platform", "cuda").str("device_id", "0").
		key("stream_id").quoted(t.stream).str("stack_trace", w.stacks[t.stack]).
		str("user_scope", scopeOrGlobal(w.paths[t.path])+"|cudaMemsetAsync").int("scope_depth", int64(t.depth)).
		int("start_ns", t.start).int("end_ns", t.end).int("api_start_ns", t.apiStart).int("api_exit_ns", t.apiExit).
		int("corr_id", int64(t.corr)).int("bytes", t.bytes)
	e.emit(deviceChannel, "memset_event", l.raw("}"))
	w.countSet(t)
}

func (e *c3Encoder) sync(s *wait) {
	e.syncs = append(e.syncs, *s)
}

func (e *c3Encoder) memory(m *allocation, free bool, at int64, corr uint32) {
	op := int64(1)
	if free {
		op = 2
	}
	e.allocs = append(e.allocs, memoryRow{allocation: *m, op: op, at: at, corr: corr})
	if len(e.allocs) >= rowLimit {
		e.flushMemory()
	}
}

func (e *c3Encoder) scope(s *scope, begin bool, at int64) {
	r := scopeRow{at: at, instance: s.instance, name: e.dicts[scopeDict].id(s.name), depth: int64(s.depth), started: s.start}
	if begin {
		r.repeat, r.warm = s.repeat, s.warm
	} else {
		r.event = 1
	}
	e.scopes = append(e.scopes, r)
}

func (e *c3Encoder) samples(at int64) {
	w := e.w
	scope := e.dicts[scopeDict].id(w.lastScope)
	for range w.cfg.Samples {
		s, pc := w.samplePoint()
		reason := stallReasons[w.rng.IntN(len(stallReasons))]
		e.profile = append(e.profile, profileRow{
			at: at, function: e.function(s), pc: int64(pc) * instructionBytes, metric: e.dicts[metricDict].id(reason.name),
			value: 1 + w.rng.Uint64N(40), reason: reason.index, kind: 0, scope: scope,
			file: e.dicts[fileDict].id(s.file), line: s.line[pc],
		})
		s, pc = w.samplePoint()
		e.profile = append(e.profile, profileRow{
			at: at, function: e.function(s), pc: int64(pc) * instructionBytes,
			metric: e.dicts[metricDict].id(sassMetrics[w.rng.IntN(len(sassMetrics))]),
			value:  w.sassValue(), kind: 1, scope: scope, file: e.dicts[fileDict].id(s.file), line: s.line[pc],
		})
	}
}

// function returns the id of the source's function. The symbol has the same id.
func (e *c3Encoder) function(s *source) int64 {
	for i := range catalogue {
		if catalogue[i].short == s.kernel {
			id := e.dicts[functionDict].id(catalogue[i].name + "@" + s.file)
			e.symbol(id, catalogue[i].symbol)
			return id
		}
	}
	return 0
}

// symbol sets the mangled name of a function. func_symbol_dict shares the ids of function_dict. Ids
// without a symbol stay empty and are not written.
func (e *c3Encoder) symbol(id int64, symbol string) {
	d := &e.dicts[symbolDict]
	for int64(len(d.values)) < id {
		d.values = append(d.values, "")
	}
	d.values[id-1] = symbol
}

func (e *c3Encoder) metrics(at int64) {
	e.w.pace(at)
	e.metricTimes = append(e.metricTimes, at)
	m := e.w.machine
	for i := range m.devices {
		d := &m.devices[i]
		e.deviceRows = append(e.deviceRows, at, int64(i), d.gpuUtil, d.memUtil, d.tempC, d.powerMW, d.usedMiB, deviceTotalMiB,
			d.clockSM, 0, 0, d.tempC, 0, d.energyMicroJoule, d.clockMem, d.rxBytes+d.txBytes, 0, 0)
	}
	e.hostRows = append(e.hostRows, at, m.cpuTenths*10, m.ramUsedMiB, m.ramTotalMiB)
	if len(e.metricTimes) >= metricRows {
		e.flushMetrics()
	}
}

func (e *c3Encoder) tick() {
	if e.w.host-e.lastFlush >= flushPeriod {
		e.w.pace(e.w.host)
		e.flush()
	}
}

// flush writes all buffered rows except metrics, which have their own limit.
func (e *c3Encoder) flush() {
	e.lastFlush = e.w.host
	e.list()
	e.flushScopes()
	e.flushKernels()
	e.flushCopies()
	e.flushProfile()
	e.flushSyncs()
	e.flushMemory()
}

// update writes the dictionary entries that are not written yet.
func (e *c3Encoder) update() {
	l := e.record(1, "dictionary_update")
	before := len(l)
	for i := range e.dicts {
		d := &e.dicts[i]
		first := true
		// The recorder's order is that of a hash table. Readers must accept any order, so use
		// newest first.
		for id := len(d.values); id > d.sent; id-- {
			if d.values[id-1] == "" {
				continue
			}
			if first {
				l = l.key(dictKeys[i]).raw("{")
			} else {
				l = l.raw(",")
			}
			first = false
			l = l.raw(`"`).intValue(int64(id)).raw(`":`).stringValue(d.values[id-1])
		}
		if !first {
			l = l.raw("}")
		}
		d.sent = len(d.values)
	}
	if len(l) > before {
		e.emitAll("dictionary_update", l.raw("}"))
	}
}

func (e *c3Encoder) flushScopes() {
	if len(e.scopes) == 0 {
		return
	}
	e.update()
	base := e.scopes[0].at
	l := e.batch(3, "scope_event_batch", base, `"dt_ns","scope_instance_id","name_id","event_type","depth","repeat","warmup","original_start_ns"`)
	for i, r := range e.scopes {
		l = l.row(i == 0, r.at-base, r.instance, r.name, r.event, r.depth, r.repeat, r.warm, r.started)
		if r.event == 0 {
			e.w.sum.Rows[RowScopeBegin]++
		} else {
			e.w.sum.Rows[RowScopeEnd]++
		}
	}
	e.emit(scopeChannel, "scope_event_batch", l.raw("]}"))
	e.scopes = e.scopes[:0]
}

func (e *c3Encoder) flushKernels() {
	if len(e.kernels) == 0 {
		return
	}
	w := e.w
	e.update()
	details := int64(1)
	if w.cfg.NoDetails {
		details = 0
	}
	base := e.kernels[0].start
	l := e.batch(1, "kernel_event_batch", base, `"dt_ns","kernel_id","stream_id","duration_ns","corr_id","dyn_shared","num_regs","has_details","external_kind","external_id"`)
	for i := range e.kernels {
		k := &e.kernels[i]
		spec := &catalogue[k.kernel]
		l = l.row(i == 0, k.start-base, e.dicts[kernelDict].id(spec.name), k.stream, k.end-k.start, int64(k.corr), spec.dynShared, spec.regs, details, 0, 0)
		w.countKernel(k)
	}
	e.emit(deviceChannel, "kernel_event_batch", l.raw("]}"))
	if details == 1 {
		for i := range e.kernels {
			e.detail(&e.kernels[i])
		}
	}
	e.kernels = e.kernels[:0]
}

func (e *c3Encoder) detail(k *launch) {
	for len(e.paths) < len(e.w.paths) {
		e.paths = append(e.paths, string(appendString(nil, scopeOrGlobal(e.w.paths[len(e.paths)]))))
	}
	l := append(e.l[:0], e.detailHead...)
	l = strconv.AppendUint(l, uint64(k.corr), 10)
	l = l.raw(`,"grid":"(`).intValue(k.grid).raw(`,1,1)"`).raw(e.detailShape[k.kernel]).raw(e.paths[k.path]).raw(e.stacks[k.stack])
	e.emit(deviceChannel, "kernel_detail", l)
	e.w.sum.Rows[RowKernelDetail]++
}

func (e *c3Encoder) flushCopies() {
	if len(e.copies) == 0 {
		return
	}
	base := e.copies[0].start
	l := e.batch(1, "memcpy_event_batch", base, `"dt_ns","stream_id","duration_ns","bytes","copy_kind","corr_id"`)
	for i := range e.copies {
		t := &e.copies[i]
		l = l.row(i == 0, t.start-base, t.stream, t.end-t.start, t.bytes, t.kind, int64(t.corr))
		e.w.countCopy(t)
	}
	e.emit(deviceChannel, "memcpy_event_batch", l.raw("]}"))
	e.copies = e.copies[:0]
}

const profileColumns = `"dt_ns","corr_id","device_id","function_id","pc_offset","metric_id","metric_value","stall_reason","sample_kind","scope_name_id","source_file_id","source_line"`

func (e *c3Encoder) flushProfile() {
	if len(e.profile) == 0 {
		return
	}
	e.update()
	base := e.profile[0].at
	l := e.batch(1, "profile_sample_batch", base, profileColumns)
	for i, r := range e.profile {
		if i > 0 {
			l = l.raw(",")
		}
		l = l.profileRow(r, base)
		if r.kind == 0 {
			e.w.sum.Rows[RowPCSample]++
		} else {
			e.w.sum.Rows[RowSASSMetric]++
		}
	}
	e.emit(scopeChannel, "profile_sample_batch", l.raw("]}"))
	e.profile = e.profile[:0]
}

func (l line) profileRow(r profileRow, base int64) line {
	l = l.raw("[").intValue(r.at - base).raw(",0,0,").intValue(r.function).raw(",").intValue(r.pc).raw(",").intValue(r.metric).raw(",")
	l = strconv.AppendUint(l, r.value, 10)
	return l.raw(",").intValue(r.reason).raw(",").intValue(r.kind).raw(",").intValue(r.scope).raw(",").
		intValue(r.file).raw(",").intValue(r.line).raw("]")
}

func (e *c3Encoder) flushSyncs() {
	if len(e.syncs) == 0 {
		return
	}
	stack := e.w.stacks[0]
	if stack != "" {
		stack += "|"
	}
	function := e.dicts[functionDict].id(stack + "cudaStreamSynchronize")
	e.update()
	base := e.syncs[0].start
	l := e.batch(1, "synchronization_event_batch", base, `"dt_ns","duration_ns","sync_type","stream_id","event_id","context_id","corr_id","function_id"`)
	for i, s := range e.syncs {
		const streamSync = 3
		l = l.row(i == 0, s.start-base, s.nanos, streamSync, s.stream, noID, 1, int64(s.corr), function)
		e.w.sum.Rows[RowSync]++
	}
	e.emit(scopeChannel, "synchronization_event_batch", l.raw("]}"))
	e.syncs = e.syncs[:0]
}

func (e *c3Encoder) flushMemory() {
	if len(e.allocs) == 0 {
		return
	}
	base := e.allocs[0].at
	l := e.batch(1, "memory_alloc_event_batch", base, `"dt_ns","duration_ns","memory_op","memory_kind","address","bytes","device_id","stream_id","corr_id"`)
	for i, r := range e.allocs {
		const deviceMemory = 3
		l = l.row(i == 0, r.at-base, 0, r.op, deviceMemory, int64(r.address), r.bytes, 0, noID, int64(r.corr))
		if r.op == 1 {
			e.w.sum.Rows[RowAlloc]++
			e.w.sum.AllocBytes += r.bytes
		} else {
			e.w.sum.Rows[RowFree]++
		}
	}
	e.emit(scopeChannel, "memory_alloc_event_batch", l.raw("]}"))
	e.allocs = e.allocs[:0]
}

// deviceColumns is the number of cells of a row in deviceRows.
const deviceColumns = 18

func (e *c3Encoder) flushMetrics() {
	if len(e.metricTimes) == 0 {
		return
	}
	base := e.metricTimes[0]
	l := e.batch(1, "device_metric_batch", base, `"dt_ns","device_id","gpu_util","mem_util","temp_c","power_mw","used_mib","total_mib","clock_sm","fan_speed_pct","temp_mem_c","temp_junction_c","voltage_mv","energy_uj","clock_mem","pcie_bw_bps","ecc_corrected","ecc_uncorrected"`)
	for i := 0; i < len(e.deviceRows); i += deviceColumns {
		r := e.deviceRows[i : i+deviceColumns]
		r[0] -= base
		l = l.row(i == 0, r...)
		e.w.sum.Rows[RowDeviceMetric]++
	}
	e.emit(systemChannel, "device_metric_batch", l.raw("]}"))

	const typ = "host_metric_batch"
	e.batchID[typ]++
	l = e.record(1, typ).str("hostname", hostName).str("ip_addr", hostAddress).int("batch_id", e.batchID[typ]).
		int("base_time_ns", base).raw(`,"columns":["dt_ns","cpu_pct_x100","ram_used_mib","ram_total_mib"],"rows":[`)
	for i := 0; i < len(e.hostRows); i += 4 {
		r := e.hostRows[i : i+4]
		r[0] -= base
		l = l.row(i == 0, r...)
		e.w.sum.Rows[RowHostMetric]++
	}
	e.emit(systemChannel, typ, l.raw("]}"))
	e.metricTimes, e.deviceRows, e.hostRows = e.metricTimes[:0], e.deviceRows[:0], e.hostRows[:0]
}

// list writes source text, listings and their map to source lines. It runs once, before the first
// samples.
func (e *c3Encoder) list() {
	if e.listed || len(e.profile) == 0 {
		return
	}
	e.listed = true
	isa := e.dicts[metricDict].id(isaMapMetric)
	for i := range sources {
		e.function(&sources[i])
		e.dicts[fileDict].id(sources[i].file)
	}
	e.update()
	written := map[string]bool{}
	for i := range sources {
		s := &sources[i]
		if !written[s.file] {
			written[s.file] = true
			l := e.record(1, "source_file_content").int("source_file_id", e.dicts[fileDict].id(s.file)).raw(`,"lines":[`)
			for j, text := range s.lines {
				if j > 0 {
					l = l.raw(",")
				}
				l = l.stringValue(text)
			}
			e.emit(sassChannel, "source_file_content", l.raw("]}"))
		}
		l := e.record(1, "cubin_disassembly").uint("cubin_crc", s.crc).str("function_name", s.symbol()).raw(`,"entries":[`)
		for j, text := range s.sass {
			if j > 0 {
				l = l.raw(",")
			}
			l = l.raw(`{"pc":`).intValue(int64(j)*instructionBytes).str("sass", text).raw("}")
		}
		e.emit(sassChannel, "cubin_disassembly", l.raw("]}"))
	}
	for i := range sources {
		s := &sources[i]
		// The recorder stamps these with the steady clock.
		l := e.record(1, "profile_sample_batch").int("batch_id", isaBatchBase+int64(i)+1).
			int("base_time_ns", monoBaseMillis*1e6+int64(i)).raw(`,"columns":[`).raw(profileColumns).raw(`],"rows":[`)
		for j := range s.sass {
			if j > 0 {
				l = l.raw(",")
			}
			l = l.profileRow(profileRow{
				function: e.function(s), pc: int64(j) * instructionBytes, metric: isa, value: 1, kind: 2,
				file: e.dicts[fileDict].id(s.file), line: s.line[j],
			}, 0)
		}
		e.emitAll("profile_sample_batch", l.raw("]}"))
		e.w.sum.Rows[RowISAMap] += int64(len(s.sass))
	}
}

// capability is one line of the final report on the recorded data.
type capability struct {
	feature, status, mode, reason, message string
	requested                              bool
}

func (e *c3Encoder) capabilities() []capability {
	got := func(on bool, feature, mode, message string) capability {
		if !on {
			return capability{feature: feature, status: "not_requested", mode: "disabled", reason: "not_selected_or_not_operational", message: "Not collected in this session."}
		}
		return capability{feature: feature, status: "collected", mode: mode, message: message, requested: true}
	}
	samples := e.w.cfg.Samples > 0
	return []capability{
		got(true, "kernel_events", "cupti_activity", "Kernel rows were collected."),
		got(true, "kernel_names", "cupti_activity_name", "Kernel names were collected."),
		got(!e.w.cfg.NoDetails, "kernel_details", "cupti_activity_details", "Kernel details were collected."),
		got(true, "memcpy_activity", "cupti_memcpy_activity", "Copies and memory sets were collected."),
		got(true, "sync_activity", "cupti_synchronization", "Synchronization was collected."),
		got(true, "memory_activity", "cupti_memory", "Allocations were collected."),
		got(samples, "cubin_disassembly", "cubin_capture", "Listings were written."),
		got(samples, "sass_metrics", "cupti_sass_metrics", "SASS metrics were collected."),
		got(samples, "pc_sampling", "cupti_pc_sampling", "PC samples were collected."),
		{feature: "nvtx_markers", status: "enabled_no_data", mode: "cupti_marker_activity", reason: "enabled_but_no_records", message: "No completed ranges.", requested: true},
	}
}

func (e *c3Encoder) footer() {
	w := e.w
	e.flush()
	e.flushMetrics()
	w.host += 1e6
	l := e.record(1, "capture_capabilities").int("ts_ns", w.host).str("requested_engine", e.engine()).
		str("selected_engine", e.engine()).raw(`,"capabilities":[`)
	for i, c := range e.capabilities() {
		if i > 0 {
			l = l.raw(",")
		}
		l = l.raw(`{"feature":`).stringValue(c.feature).bool("requested", c.requested).str("status", c.status).
			str("mode", c.mode).str("reason_code", c.reason).str("message", c.message).raw("}")
	}
	e.emitAll("capture_capabilities", l.raw("]}"))
	for path := range w.paths {
		if s := e.signatures[path]; s != nil {
			l := e.record(1, "execution_signature").int("ts_ns", w.host).str("scope_name", w.paths[path]).
				str("signature", strconv.FormatUint(s.hash, 10)).int("launch_count", s.launches).
				int("distinct_kernels", int64(len(s.kernels)))
			e.emit(scopeChannel, "execution_signature", l.raw("}"))
		}
	}
	w.host += 1e6
	e.system("system_stop", "sampling_end")
	w.host += 2e6
	e.emitAll("shutdown", e.plain("shutdown").int("ts_ns", w.host).raw("}"))
}
