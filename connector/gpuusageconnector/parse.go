// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/numbered"
	"github.com/gpuflight/gpuflight/semconv"
)

// rejection is a reason why a span, or a value of it, is not counted.
type rejection uint8

const (
	rejectNoTime rejection = iota
	rejectEndBeforeStart
	rejectTimeOutOfRange
	rejectTooLong
	rejectOperation
	rejectQueue
	rejectSize
	numRejections
)

var rejectionNames = [numRejections]string{
	rejectNoTime:         "no_time",
	rejectEndBeforeStart: "end_before_start",
	rejectTimeOutOfRange: "time_out_of_range",
	rejectTooLong:        "too_long",
	rejectOperation:      "unknown_operation",
	rejectQueue:          "queue_duration",
	rejectSize:           "size",
}

// Longest strings that are kept, in bytes. They come from outside and are held for long.
const (
	maxKernelName = 1 << 10
	maxName       = 256 // of scopes, requests, kinds and devices
	maxResource   = 1 << 10
	noLimit       = math.MaxInt // for what was encoded here, and need not be text
)

// parser turns traces into batches. It belongs to one goroutine at a time and is used again.
type parser struct {
	keys     *resourceKeys
	b        batch
	rejected [numRejections]int64

	ids      map[string]uint32
	groups   map[string]uint32 // numbers of strings, by names of scopes and requests
	services map[string]uint32
	kernels  map[batchKernel]uint32
	names    map[kernelName]uint32
	devices  map[deviceName]uint32
	buf      []byte
	record   []byte // of the batch, for the log

	// The resource at hand.
	service  uint32
	process  uint16
	instance uint64
	host     uint32
	labels   uint32
	hwID     string
	hwName   string
	index    int64
	// The last device and kernel: most spans have the same as the one before.
	lastDevice       deviceName
	lastDeviceNumber uint32
	haveDevice       bool
	// followers are, for each kernel, the one that came after it last. Programs run their kernels in
	// loops, so that is mostly the next one again, and its long name need not be hashed.
	followers    []uint32
	lastKernel   uint32
	lastTrace    pcommon.TraceID
	lastTraceKey uint64
}

type kernelName struct {
	service uint32
	name    string
}

type deviceName struct {
	id, name string
	instance uint64 // 0 where id is known
	index    int64
}

func newParser(keys *resourceKeys) *parser {
	p := &parser{
		keys: keys, ids: map[string]uint32{}, groups: map[string]uint32{}, services: map[string]uint32{},
		kernels: map[batchKernel]uint32{}, names: map[kernelName]uint32{}, devices: map[deviceName]uint32{},
	}
	p.reset()
	return p
}

// reset forgets the batch. A parser that has grown by an uncommon one should not be used again.
func (p *parser) reset() {
	p.b.reset()
	p.followers, p.lastKernel = p.followers[:0], 0
	clear(p.rejected[:])
	clear(p.ids)
	clear(p.groups)
	clear(p.services)
	clear(p.kernels)
	clear(p.names)
	clear(p.devices)
}

// large says whether the parser holds so much that it is better left to the garbage collector.
func (p *parser) large() bool {
	return cap(p.b.spans) > 1<<17 || cap(p.b.strings) > 1<<15 || len(p.groups) > 1<<15 || cap(p.b.parents) > 1<<17 || cap(p.record) > 1<<22
}

// parse adds all spans of td. Nothing of td is changed; strings of it are kept.
func (p *parser) parse(td ptrace.Traces) {
	for _, rs := range td.ResourceSpans().All() {
		p.resource(rs.Resource())
		for _, ss := range rs.ScopeSpans().All() {
			spans := ss.Spans()
			for i := range spans.Len() {
				p.span(spans.At(i))
			}
		}
	}
}

// resource reads what all spans of a resource have in common.
func (p *parser) resource(r pcommon.Resource) {
	attrs := r.Attributes()
	p.hwID, p.hwName, p.index = "", "", -1
	p.haveDevice = false
	var instance, host string
	var pid int64
	for k, v := range attrs.All() {
		switch k {
		case semconv.HWID:
			p.hwID = v.AsString()
		case semconv.HWName:
			p.hwName = v.AsString()
		case semconv.CUDADeviceIndex:
			p.index = intOr(v, -1)
		case semconv.ServiceInstanceID:
			instance = v.AsString()
		case semconv.HostName:
			host = v.AsString()
		case semconv.ProcessPID:
			pid = intOr(v, 0)
		}
	}
	key := p.keys.encode(p.buf[:0], attrs, p.keys.kept, false)
	service, ok := p.services[string(key)]
	if !ok {
		id := p.intern(string(key), noLimit)
		service = uint32(len(p.b.services))
		p.b.services = append(p.b.services, batchService{key: id})
		p.services[p.b.strings[id]] = service
	}
	p.service = service
	p.buf = p.keys.encode(key[:0], attrs, p.keys.kept, true)
	p.host = p.intern(string(p.buf), noLimit)
	p.buf = p.keys.encode(p.buf[:0], attrs, p.keys.priced, false)
	p.labels = p.intern(string(p.buf), noLimit)
	// Without an instance, host and process id distinguish processes.
	p.buf = append(p.buf[:0], instance...)
	if instance == "" {
		p.buf = append(append(p.buf, 0), host...)
		p.buf = binary.LittleEndian.AppendUint64(p.buf, uint64(pid))
	}
	p.instance = xxhash.Sum64(p.buf)
	p.process = uint16(p.instance)
}

// span adds one span.
func (p *parser) span(span ptrace.Span) {
	var (
		op                   string
		hwID, hwName         = p.hwID, p.hwName
		index                = p.index
		kernel, kind, scope  string
		queue                float64
		haveQueue, haveBytes bool
		bytes                int64
		stream, context      int64
		haveStream, node     bool
	)
	for k, v := range span.Attributes().All() {
		switch k {
		case semconv.CUDAOperation:
			op = v.Str()
		case semconv.HWID:
			hwID = v.Str()
		case semconv.HWName:
			hwName = v.Str()
		case semconv.CUDADeviceIndex:
			index = v.Int()
		case semconv.CUDAKernelName:
			kernel = v.Str()
		case semconv.CUDAMemcpyKind:
			kind = v.Str()
		case semconv.CUDAMemcpySize:
			bytes, haveBytes = intOr(v, -1), true
		case semconv.CUDAScopeName:
			scope = v.Str()
		case semconv.CUDAQueueDuration:
			queue, haveQueue = v.Double(), true
			if v.Type() == pcommon.ValueTypeInt {
				queue = float64(v.Int())
			}
		case semconv.CUDAStreamID:
			stream, haveStream = v.Int(), v.Type() == pcommon.ValueTypeInt
		case semconv.CUDAContextID:
			context = v.Int()
		case semconv.CUDAGraphID, semconv.CUDAGraphNodeID:
			node = true
		}
	}
	trace, id := span.TraceID(), span.SpanID()
	w := workSpan{queue: -1, bytes: -1, trace: trace, id: id, service: p.service, process: p.process}
	switch op {
	case semconv.CUDAOperationKernel:
		w.op = opKernel
	case semconv.CUDAOperationMemcpy:
		w.op = opMemcpy
	case semconv.CUDAOperationMemset:
		w.op = opMemset
	case semconv.CUDAOperationGraph:
		w.op = opGraph
	case semconv.CUDAOperationSynchronize:
		w.op = opSynchronize
	case semconv.CUDAOperationMalloc, semconv.CUDAOperationFree:
		return // calls of the host, and no scope of anything
	case "", semconv.CUDAOperationScope, semconv.CUDAOperationSession, semconv.CUDAOperationDeepWindow:
		p.other(span, op)
		return
	default:
		p.rejected[rejectOperation]++
		return
	}
	start, end := span.StartTimestamp(), span.EndTimestamp()
	switch {
	case start == 0 || end == 0:
		p.rejected[rejectNoTime]++
		return
	case end > math.MaxInt64 || start > math.MaxInt64:
		p.rejected[rejectTimeOutOfRange]++
		return
	case end < start:
		p.rejected[rejectEndBeforeStart]++
		return
	case int64(end-start) > maxSpan:
		p.rejected[rejectTooLong]++
		return
	}
	w.start, w.end = int64(start), int64(end)
	if !id.IsEmpty() {
		w.key = spanKey(trace, id)
	}
	w.traceKey = p.traceKey(trace)
	if parent := span.ParentSpanID(); !parent.IsEmpty() {
		w.parent = spanKey(trace, parent)
	}
	w.device = p.device(hwID, hwName, index)
	if scope != "" {
		w.scope = p.group(scope)
	}
	if haveStream {
		w.stream = p.stream(context, stream)
	}
	if haveQueue {
		if queue >= 0 && queue <= float64(maxSpan)/1e9 {
			w.queue = int64(math.Round(queue * 1e9))
		} else {
			p.rejected[rejectQueue]++
		}
	}
	switch w.op {
	case opKernel:
		w.node = node
		if kernel == "" {
			kernel = span.Name()
		}
		w.what = p.kernel(kernel)
	case opMemcpy:
		w.what = p.intern(kind, maxName)
		if haveBytes && bytes >= 0 {
			w.bytes = bytes
		} else if haveBytes {
			p.rejected[rejectSize]++
		}
	}
	p.b.spans = append(p.b.spans, w)
}

// other adds a span that is no device work.
func (p *parser) other(span ptrace.Span, op string) {
	if span.SpanID().IsEmpty() {
		return // nothing can name it as its parent
	}
	trace := span.TraceID()
	o := otherSpan{key: spanKey(trace, span.SpanID())}
	if op != semconv.CUDAOperationSession && op != semconv.CUDAOperationDeepWindow {
		o.name = p.group(span.Name())
	}
	if op == "" && !trace.IsEmpty() && o.name != 0 {
		switch kind := span.Kind(); {
		case kind == ptrace.SpanKindServer || kind == ptrace.SpanKindConsumer:
			o.rank = rankServer
		case span.ParentSpanID().IsEmpty():
			o.rank = rankRoot
		}
		if o.rank != rankNone {
			o.trace = p.traceKey(trace)
			o.start = int64(min(span.StartTimestamp(), math.MaxInt64))
		}
	}
	p.b.parents = append(p.b.parents, o)
}

func (p *parser) device(id, name string, index int64) uint32 {
	n := deviceName{id: id, name: name}
	if id == "" {
		n.instance, n.index = p.instance, index
	}
	if p.haveDevice && n == p.lastDevice {
		return p.lastDeviceNumber
	}
	d, ok := p.devices[n]
	if !ok {
		d = uint32(len(p.b.devices))
		bd := batchDevice{id: p.intern(id, maxName), name: p.intern(name, maxName), host: p.host, labels: p.labels}
		if id == "" {
			var key [16]byte
			binary.LittleEndian.PutUint64(key[:], n.instance)
			binary.LittleEndian.PutUint64(key[8:], uint64(n.index))
			bd.anonymous = max(xxhash.Sum64(key[:]), 1)
		}
		p.b.devices = append(p.b.devices, bd)
		p.devices[n] = d
	}
	p.lastDevice, p.lastDeviceNumber, p.haveDevice = n, d, true
	return d
}

func (p *parser) kernel(name string) uint32 {
	if int(p.lastKernel) < len(p.followers) {
		k := p.followers[p.lastKernel]
		if bk := &p.b.kernels[k]; bk.service == p.service && p.b.strings[bk.name] == name {
			p.lastKernel = k
			return k
		}
	}
	n := kernelName{p.service, name}
	k, ok := p.names[n]
	if !ok {
		// Two long names may be the same once they are cut.
		bk := batchKernel{p.service, p.intern(name, maxKernelName)}
		if k, ok = p.kernels[bk]; !ok {
			k = uint32(len(p.b.kernels))
			p.b.kernels = append(p.b.kernels, bk)
			p.followers = append(p.followers, k)
			p.kernels[bk] = k
		}
		p.names[n] = k
	}
	p.followers[p.lastKernel] = k
	p.lastKernel = k
	return k
}

// stream numbers a stream by a hash, so that no table of them has to be kept.
func (p *parser) stream(context, stream int64) uint32 {
	var key [24]byte
	binary.LittleEndian.PutUint64(key[:], p.instance)
	binary.LittleEndian.PutUint64(key[8:], uint64(context))
	binary.LittleEndian.PutUint64(key[16:], uint64(stream))
	return max(uint32(xxhash.Sum64(key[:])), 1)
}

// intern numbers a string, cut to a length.
func (p *parser) intern(s string, limit int) uint32 {
	if s == "" {
		return 0
	}
	if len(s) > limit {
		s = cut(s, limit)
	}
	id, ok := p.ids[s]
	if ok {
		return id
	}
	if limit != noLimit && !utf8.ValidString(s) {
		return p.intern(cut(s, limit), limit)
	}
	id = uint32(len(p.b.strings))
	p.b.strings = append(p.b.strings, s)
	p.ids[s] = id
	return id
}

// group numbers the name under which a scope or request is counted: steps, iterations, batches and epochs
// share their pattern.
func (p *parser) group(name string) uint32 {
	id, ok := p.groups[name]
	if !ok {
		group := cut(name, maxName)
		if pattern := numbered.Pattern(group); pattern != group && numbered.Counts(pattern) {
			group = pattern
		}
		id = p.intern(group, maxName)
		p.groups[name] = id
	}
	return id
}

// cut makes a string valid UTF-8 of at most limit bytes, with … in place of what is cut off.
func cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	const ellipsis = "…"
	n := limit - len(ellipsis)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + ellipsis
}

// spanKey identifies a span by a hash of its ids; it is never 0.
func spanKey(trace pcommon.TraceID, span pcommon.SpanID) uint64 {
	var key [24]byte
	copy(key[:], trace[:])
	copy(key[16:], span[:])
	return max(xxhash.Sum64(key[:]), 1)
}

// hashTrace identifies a trace; it is 0 for none only.
func hashTrace(trace pcommon.TraceID) uint64 {
	if trace.IsEmpty() {
		return 0
	}
	return max(xxhash.Sum64(trace[:]), 1)
}

// traceKey is hashTrace, for spans most of which are of the same trace as the one before.
func (p *parser) traceKey(trace pcommon.TraceID) uint64 {
	if trace != p.lastTrace {
		p.lastTrace, p.lastTraceKey = trace, hashTrace(trace)
	}
	return p.lastTraceKey
}

func intOr(v pcommon.Value, other int64) int64 {
	if v.Type() != pcommon.ValueTypeInt {
		return other
	}
	return v.Int()
}

// resourceKeys says which resource attributes are kept.
type resourceKeys struct {
	kept   []string
	priced []string // that prices ask for
}

func newResourceKeys(cfg *Config) *resourceKeys {
	k := &resourceKeys{kept: cfg.ResourceAttributes}
	for _, p := range cfg.Cost.Prices {
		for name := range p.Attributes {
			if !slices.Contains(k.priced, name) {
				k.priced = append(k.priced, name)
			}
		}
	}
	slices.Sort(k.priced)
	return k
}

// hostPrefixes begin the names of attributes that describe where a process runs and not what it is.
var hostPrefixes = []string{"host.", "cloud.", "k8s.node.", "k8s.cluster."}

func describesHost(name string) bool {
	return slices.ContainsFunc(hostPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// encode appends the values of the named attributes, in their order. Each value is its length + 1 and
// the value as a string. An absent value is a 0, as is one that does not describe the host if hostOnly
// is set.
func (r *resourceKeys) encode(b []byte, attrs pcommon.Map, names []string, hostOnly bool) []byte {
	for _, name := range names {
		v, ok := attrs.Get(name)
		if !ok || hostOnly && !describesHost(name) {
			b = append(b, 0)
			continue
		}
		s := cut(v.AsString(), maxResource)
		b = binary.AppendUvarint(b, uint64(len(s))+1)
		b = append(b, s...)
	}
	return b
}

// decode calls put for each attribute that encode found. A damaged key ends it.
func decodeResource(key string, names []string, put func(name, value string)) {
	for _, name := range names {
		n, size := binary.Uvarint([]byte(key[:min(len(key), binary.MaxVarintLen64)]))
		if size <= 0 || n > uint64(len(key)-size)+1 {
			return
		}
		key = key[size:]
		if n > 0 {
			put(name, key[:n-1])
			key = key[n-1:]
		}
	}
}
