// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// kernelLine is a kernel_event of A2 (format document, section 3.3).
type kernelLine struct {
	name, scope, stack, limiter       []byte
	device, stream, grid, block       []byte
	depth, start, end                 gpuevent.Int
	apiStart, apiEnd                  gpuevent.Int
	dynShared, regs, static, executed gpuevent.Int
	localPerThread, corr              gpuevent.Int
	occupancy                         float64
	hasOccupancy, details             bool
}

func (d *Decoder) kernelEvent(r *record) bool {
	k := &d.kernel
	*k = kernelLine{}
	if !d.begin(r) {
		return false
	}
	for {
		key, done, ok := r.next()
		if !ok {
			return false
		}
		if done {
			break
		}
		switch string(key) {
		case "name":
			ok = r.strInto(&k.name)
		case "has_details":
			k.details, ok = r.boolean()
		case "device_id":
			ok = r.strInto(&k.device)
		case "stream_id":
			ok = r.strInto(&k.stream)
		case "stack_trace":
			ok = r.strInto(&k.stack)
		case "user_scope":
			ok = r.strInto(&k.scope)
		case "scope_depth":
			ok = r.intInto(&k.depth)
		case "start_ns":
			ok = r.intInto(&k.start)
		case "end_ns":
			ok = r.intInto(&k.end)
		case "api_start_ns":
			ok = r.intInto(&k.apiStart)
		case "api_exit_ns":
			ok = r.intInto(&k.apiEnd)
		case "grid":
			ok = r.strInto(&k.grid)
		case "block":
			ok = r.strInto(&k.block)
		case "dyn_shared_bytes":
			ok = r.intInto(&k.dynShared)
		case "num_regs":
			ok = r.intInto(&k.regs)
		case "static_shared_bytes":
			ok = r.intInto(&k.static)
		case "shared_mem_executed_bytes", "shared_mem_executed":
			ok = r.intInto(&k.executed)
		case "local_mem_per_thread_bytes", "local_bytes":
			var v gpuevent.Int
			if ok = r.intInto(&v); ok && (v.V > 0 || !k.localPerThread.OK) {
				k.localPerThread = v
			}
		case "occupancy":
			k.occupancy, ok = r.number()
			k.hasOccupancy = ok && !math.IsNaN(k.occupancy)
		case "limiting_resource":
			ok = r.strInto(&k.limiter)
		case "corr_id":
			ok = r.intInto(&k.corr)
		default:
			ok = r.field(key)
		}
		if !ok {
			return false
		}
	}
	if !k.start.OK || !k.end.OK || len(k.name) == 0 {
		d.reject(MissingField, "kernel_event without name, start_ns or end_ns")
		return true
	}
	s := d.owner(&r.head, k.start.V)
	if s == nil {
		return true
	}
	if !plausible(k.start.V, k.end.V) {
		d.reject(BadRow, fmt.Sprintf("kernel_event at %d to %d", k.start.V, k.end.V))
		return true
	}
	ev := &d.ev.kernel
	*ev = gpuevent.Kernel{Name: d.name(k.name)}
	it := d.work(s, &ev.Span, deviceLane, &workFields{
		start: k.start.V, end: k.end.V, apiStart: k.apiStart, apiEnd: k.apiEnd, corr: k.corr,
		device: k.device, stream: k.stream, stack: k.stack, scope: k.scope, depth: k.depth,
	})
	it.kernel = ev
	ev.Ref.Span = s.key.Span(gpuevent.KindKernel, uint64(k.start.V), hash64(k.name)^uint64(k.corr.V)<<32^uint64(ev.Stream.V)<<16^uint64(ev.Device.V))
	if k.details {
		ev.Grid, _ = dim3(k.grid)
		ev.Block, _ = dim3(k.block)
		ev.SharedDynamic, ev.SharedStatic, ev.RegistersPerThread = k.dynShared, k.static, k.regs
		ev.LocalPerThread = k.localPerThread
		ev.SharedExecuted = positive(k.executed)
		if k.hasOccupancy {
			ev.ReportedOccupancy = gpuevent.SomeFloat(k.occupancy)
		}
		ev.ReportedLimiter = limiter(k.limiter)
	}
	s.submit(d, it)
	return true
}

// workFields are what A2's kernel, copy and set events have in common.
type workFields struct {
	start, end             int64
	apiStart, apiEnd, corr gpuevent.Int
	device, stream         []byte
	stack, scope           []byte
	depth                  gpuevent.Int
}

// work fills the common part of an event of A2 and prepares its item.
func (d *Decoder) work(s *session, sp *gpuevent.Span, l lane, f *workFields) *item {
	sp.StartNs, sp.EndNs = f.start, f.end
	if f.apiStart.V >= minTime {
		sp.LaunchStartNs = f.apiStart
	}
	if f.apiEnd.V >= minTime {
		sp.LaunchEndNs = f.apiEnd
	}
	sp.Correlation = positive(f.corr)
	if v, ok := decimal(f.device); ok {
		sp.Device = gpuevent.Some(v)
	}
	if v, ok := decimal(f.stream); ok {
		sp.Stream = gpuevent.Some(v)
	}
	sp.Stack = d.stacks.get(f.stack)
	d.item = item{lane: l, at: f.start}
	it := &d.item
	if sp.LaunchStartNs.OK {
		it.at, it.exact = sp.LaunchStartNs.V, true
	}
	switch {
	case f.depth.OK && f.depth.V <= 0:
		it.where = outside
	case f.depth.OK:
		it.where, it.path = inPath, d.scopePath(f.scope, f.depth.V)
	}
	return it
}

// scopePath returns the first n names of a path.
func (d *Decoder) scopePath(p []byte, n int64) string {
	if l := len(d.lastPath); d.lastDepth == n && len(p) > l && p[l] == '|' && string(p[:l]) == d.lastPath {
		return d.lastPath
	}
	d.lastPath, d.lastDepth = d.text.get(ancestors(p, n)), n
	return d.lastPath
}

// ancestors returns the first n names of a path. Where upstream has cut the path off, it has fewer.
func ancestors(p []byte, n int64) []byte {
	for i, c := range p {
		if c == '|' {
			if n--; n == 0 {
				return p[:i]
			}
		}
	}
	return p
}

// plausible reports whether start and end are times on the wall clock. A reversed end is taken as
// the start by the translation.
func plausible(start, end int64) bool {
	return start >= minTime && start < maxTime && end < maxTime
}

func positive(v gpuevent.Int) gpuevent.Int {
	v.OK = v.OK && v.V > 0
	return v
}

func limiter(b []byte) string {
	switch string(b) {
	case "warps":
		return "warps"
	case "registers":
		return "registers"
	case "shared_mem":
		return "shared_memory"
	case "blocks":
		return "blocks"
	}
	return ""
}

// kernelRow is a row of kernel_event_batch that waits for its kernel_detail.
type kernelRow struct {
	start, end           int64
	kernel, stream, corr int64
	dynShared, regs      gpuevent.Int
	extKind, extID       gpuevent.Int
	batch, index         int64
	details, joined      bool
	// next is the next row with the same correlation id, as an absolute position, 0 for none; tail,
	// on the first of them, the last.
	next, tail uint64
}

// rowQueue holds the waiting rows in the order in which they came, and finds them by correlation id.
type rowQueue struct {
	rows []kernelRow
	// base is the absolute position of rows[0]; positions start at 1.
	base    uint64
	first   map[int64]uint64 // the oldest waiting row of a correlation id
	waiting int
	done    int // rows[:done] have left
}

func newRowQueue() rowQueue { return rowQueue{base: 1, first: map[int64]uint64{}} }

func (q *rowQueue) len() int { return q.waiting }

func (q *rowQueue) at(pos uint64) *kernelRow { return &q.rows[pos-q.base] }

func (q *rowQueue) push(r kernelRow) {
	pos := q.base + uint64(len(q.rows))
	r.next, r.tail, r.joined = 0, pos, false
	q.rows = append(q.rows, r)
	q.waiting++
	if head, ok := q.first[r.corr]; ok { // all nodes of one graph launch share an id
		h := q.at(head)
		q.at(h.tail).next = pos
		h.tail = pos
		return
	}
	q.first[r.corr] = pos
}

// take removes the oldest waiting row of a correlation id.
func (q *rowQueue) take(corr int64) (kernelRow, bool) {
	pos, ok := q.first[corr]
	if !ok {
		return kernelRow{}, false
	}
	r := *q.at(pos)
	q.remove(pos)
	return r, true
}

// remove takes a waiting row out.
func (q *rowQueue) remove(pos uint64) {
	r := q.at(pos)
	head := q.first[r.corr]
	switch {
	case head == pos && r.next == 0:
		delete(q.first, r.corr)
	case head == pos:
		q.first[r.corr] = r.next
		q.at(r.next).tail = r.tail
	default:
		p := head
		for q.at(p).next != pos {
			p = q.at(p).next
		}
		q.at(p).next = r.next
		if r.next == 0 {
			q.at(head).tail = p
		}
	}
	r.joined = true
	q.waiting--
	n := q.done
	for n < len(q.rows) && q.rows[n].joined {
		n++
	}
	q.done = n
	if n == len(q.rows) || n >= 4096 {
		q.rows = q.rows[:copy(q.rows, q.rows[n:])]
		q.base += uint64(n)
		q.done = 0
	}
}

// oldest returns the oldest waiting row and its position; nil if there is none.
func (q *rowQueue) oldest() (*kernelRow, uint64) {
	for i := q.done; i < len(q.rows); i++ {
		if !q.rows[i].joined {
			return &q.rows[i], q.base + uint64(i)
		}
	}
	return nil, 0
}

func (d *Decoder) kernelBatch(r *record) bool {
	var b batch
	s, ok := d.batch(r, &b)
	if s == nil {
		return ok
	}
	// The details of a batch are written right behind it, so a row of an earlier batch for which
	// the recorder promised none will not get one.
	if d.from == 0 {
		s.releaseUndetailed(d)
	}
	for b.next(d) {
		start, end, ok := b.span(d)
		if !ok {
			continue
		}
		s.saw(d.channel, start)
		row := kernelRow{
			start: start, end: end, kernel: b.row.get(colKernelID), stream: b.row.get(colStream),
			corr: b.row.get(colCorr), dynShared: b.row.opt(colDynShared), regs: positive(b.row.opt(colNumRegs)),
			extKind: positive(b.row.opt(colExternalKind)), batch: b.id, index: b.index,
			details: b.row.get(colHasDetails) != 0,
		}
		if row.extKind.OK {
			row.extID = b.row.opt(colExternalID)
		}
		if det, ok := s.details.take(row.corr); ok {
			d.joined(s, &row, &det)
			continue
		}
		s.rows.push(row)
		if s.rows.len() > d.opt.MaxRows || len(s.rows.rows)-s.rows.done > 2*d.opt.MaxRows {
			old, pos := s.rows.oldest()
			s.expireRow(d, *old, pos)
		}
	}
	s.expireRows(d, s.seen[Device]-int64(d.opt.JoinTimeout))
	return true
}

// releaseUndetailed sends the waiting rows for which no detail was promised.
func (s *session) releaseUndetailed(d *Decoder) {
	q := &s.rows
	if q.waiting == 0 {
		return
	}
	// A removal may drop rows behind the current one from the queue too.
	for pos := q.base; pos < q.base+uint64(len(q.rows)) && d.room(); pos = max(pos+1, q.base) {
		if r := *q.at(pos); !r.joined && !r.details {
			s.expireRow(d, r, pos)
		}
	}
}

// expireRows sends the rows that started before a time without their details.
func (s *session) expireRows(d *Decoder, before int64) {
	for s.rows.waiting > 0 && d.room() {
		r, pos := s.rows.oldest()
		if r.start >= before {
			break
		}
		s.expireRow(d, *r, pos)
	}
	s.details.expire(before, func() { d.reject(DetailWithoutRow, "") })
}

func (s *session) expireRow(d *Decoder, r kernelRow, pos uint64) {
	s.rows.remove(pos)
	if r.details {
		d.stats.JoinsExpired++
	}
	d.joined(s, &r, nil)
}

// kernelDetail is a kernel_detail record, its strings interned.
type kernelDetail struct {
	corr                        int64
	grid, block                 [3]int64
	static, executed, local     gpuevent.Int
	occupancy                   gpuevent.Float
	limiter                     string
	scope                       string
	stack                       string
	seen                        int64
	scopeB, gridB, blockB, stkB []byte
}

func (d *Decoder) kernelDetail(r *record) bool {
	k := &d.detail
	*k = kernelDetail{corr: -1}
	if !d.begin(r) {
		return false
	}
	for {
		key, done, ok := r.next()
		if !ok {
			return false
		}
		if done {
			break
		}
		switch string(key) {
		case "corr_id":
			k.corr, _, ok = r.integer()
		case "grid":
			ok = r.strInto(&k.gridB)
		case "block":
			ok = r.strInto(&k.blockB)
		case "static_shared":
			ok = r.intInto(&k.static)
		case "local_bytes", "local_mem_per_thread_bytes":
			var v gpuevent.Int
			if ok = r.intInto(&v); ok && (v.V > 0 || !k.local.OK) {
				k.local = v
			}
		case "shared_mem_executed_bytes":
			ok = r.intInto(&k.executed)
		case "occupancy":
			var f float64
			if f, ok = r.number(); ok && !math.IsNaN(f) {
				k.occupancy = gpuevent.SomeFloat(f)
			}
		case "limiting_resource":
			var b []byte
			ok = r.strInto(&b)
			k.limiter = limiter(b)
		case "user_scope":
			ok = r.strInto(&k.scopeB)
		case "stack_trace":
			ok = r.strInto(&k.stkB)
		default:
			ok = r.field(key)
		}
		if !ok {
			return false
		}
	}
	if k.corr < 0 {
		d.reject(MissingField, "kernel_detail without corr_id")
		return true
	}
	s := d.owner(&r.head, 0)
	if s == nil {
		return true
	}
	k.grid, _ = dim3(k.gridB)
	k.block, _ = dim3(k.blockB)
	k.scope, k.stack = d.text.get(k.scopeB), d.stacks.get(k.stkB)
	k.scopeB, k.gridB, k.blockB, k.stkB = nil, nil, nil, nil
	row, ok := s.rows.take(k.corr)
	if !ok {
		k.seen = s.seen[Device]
		if !s.details.put(*k) {
			d.reject(DetailWithoutRow, fmt.Sprintf("correlation id %d", k.corr))
		}
		return true
	}
	d.joined(s, &row, k)
	return true
}

// joined sends a kernel row with its detail, nil if that has not come.
func (d *Decoder) joined(s *session, r *kernelRow, k *kernelDetail) {
	ev := &d.ev.kernel
	*ev = gpuevent.Kernel{Name: s.dicts.kernelName(d, r.kernel)}
	ev.StartNs, ev.EndNs = r.start, r.end
	ev.Ref.Span = s.key.Span(gpuevent.KindKernel, uint64(r.batch), uint64(r.index))
	ev.Stream = gpuevent.Some(r.stream)
	ev.Correlation = positive(gpuevent.Some(r.corr))
	ev.ExternalKind, ev.ExternalID = r.extKind, r.extID
	ev.RegistersPerThread = r.regs
	if r.details || r.dynShared.V > 0 {
		ev.SharedDynamic = r.dynShared
	}
	ev.Estimated = s.estimated
	it := &d.item
	*it = item{lane: deviceLane, at: r.start, kernel: ev}
	if k != nil {
		ev.Grid, ev.Block = k.grid, k.block
		ev.SharedStatic, ev.LocalPerThread = k.static, k.local
		ev.SharedExecuted = positive(k.executed)
		ev.ReportedOccupancy, ev.ReportedLimiter = k.occupancy, k.limiter
		ev.Stack = k.stack
		it.where, it.path = d.detailPath(k.scope, ev.Name)
	}
	s.submit(d, it)
}

// detailPath returns the scope path of a kernel_detail. Layouts before C2 end it with the kernel's
// name (cut off at 255 bytes).
func (d *Decoder) detailPath(scope string, name *gpuevent.KernelName) (placeKind, string) {
	if d.opt.KernelNameInPath {
		last := scope
		cut := -1
		for i := len(scope) - 1; i >= 0; i-- {
			if scope[i] == '|' {
				last, cut = scope[i+1:], i
				break
			}
		}
		if cut >= 0 && isName(name, last, len(scope) >= 254) {
			scope = scope[:cut]
		}
	}
	switch scope {
	case "":
		return byTime, ""
	case globalPath:
		return outside, ""
	}
	return inPath, scope
}

// detailTable holds details that came before their rows.
type detailTable struct {
	m     map[int64]kernelDetail
	order []int64
}

const maxDetails = 4096

func newDetailTable() detailTable { return detailTable{m: map[int64]kernelDetail{}} }

func (t *detailTable) put(k kernelDetail) bool {
	if _, dup := t.m[k.corr]; dup || len(t.m) >= maxDetails {
		return false
	}
	t.m[k.corr] = k
	t.order = append(t.order, k.corr)
	return true
}

func (t *detailTable) take(corr int64) (kernelDetail, bool) {
	if len(t.m) == 0 {
		return kernelDetail{}, false
	}
	k, ok := t.m[corr]
	if ok {
		delete(t.m, corr)
	}
	return k, ok
}

func (t *detailTable) expire(before int64, lost func()) {
	for len(t.order) > 0 {
		k, ok := t.m[t.order[0]]
		if ok && k.seen >= before {
			return
		}
		if ok {
			delete(t.m, t.order[0])
			lost()
		}
		t.order = t.order[1:]
	}
}

// isName reports whether s is the kernel's name as upstream writes it, or its beginning if it was cut.
func isName(n *gpuevent.KernelName, s string, cut bool) bool {
	for _, full := range [2]string{n.Full, n.Symbol} {
		if full != "" && (s == full || (cut && strings.HasPrefix(full, s))) {
			return true
		}
	}
	return false
}
