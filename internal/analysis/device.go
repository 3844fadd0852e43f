// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

const (
	// gapsPerCause is the number of example gaps of each cause.
	gapsPerCause = 20
	// maxCalls bounds the host calls that one gap considers one by one. Later ones extend the last.
	maxCalls = 1024
	// maxSumNames bounds the names of a sum, maxSumRows what a result has of them.
	maxSumNames = 1000
	maxSumRows  = 20
	otherName   = "_other"
)

// class is what a device does.
type class uint8

const (
	classCompute class = iota
	classCommunication
	classCopy
	numClasses
)

// work is an operation of a device, reduced to what the analysis needs.
type work struct {
	start, end             int64 // clipped to the interval
	class                  class
	launched               bool
	launchStart, launchEnd int64
	fromHost, toHost       bool // of copies
	pageable               bool
	ref                    Ref
	stack, delayStack      string
	queueNs                store.Int
	kernel                 bool
	lane                   uint32
	name, shape            uint64     // hashes: see shapeInfo
	late                   bool       // the launch returned when the device had no work left
	scope                  *scopeTime // nil if it is not needed
	own                    *OwnedOp   // nil if it is not listed
}

// call is a host call that may have blocked the host.
type call struct {
	start, end int64
	// counted is the time up to which the call has been attributed.
	counted int64
	cause   Cause
	name    string
}

// credit is how much later the host is because of calls that blocked it while the device worked.
type credit struct {
	ns   int64
	name string
	// latest is the blocked time of the last call, end when that call ended.
	latest, end int64
}

// creditLife is for how many times its blocked time a call can explain that the host is late, after
// the host was ahead of the device again. Without the call it would have been further ahead.
const creditLife = 4

// device sweeps over the operations of one device. All times up to now are partitioned. The work
// that has started reaches to the ends.
type device struct {
	id, model string
	index     store.Int
	from      int64
	requests  bool // see isRequests
	scopes    scopeCursor
	all       *Gaps  // gets all gaps if it is not nil
	owned     *Owned // gets operations if it is not nil
	carry
	tally
}

// carry is what the sweep of a device needs of the operations before. Its size does not depend on their
// number. With equal carries, the same operations give equal tallies.
type carry struct {
	startup bool // the interval begins with the session, and no kernel has started
	started bool // a kernel has started
	now     int64
	ends    [numClasses]int64
	endRefs [numClasses]Ref
	page    bool // the copy that ends last is of pageable memory
	last    work // that ended last
	any     bool
	lastEnd int64

	calls   []call
	credits [numCauses]credit
	// creditEnd is the latest end of a call in credits, hostEnd the latest end of any host call.
	creditEnd, hostEnd int64

	// launchedAt is the start of the last launch call.
	launchedAt int64

	steps stepper
}

// tally is what a sweep adds up. Tallies of consecutive intervals can be merged.
type tally struct {
	sums      Parts
	active    [2]mark           // begin of the first kernel and end of the last operation
	totals    [numClasses]int64 // unions of each class
	pageable  int64
	early     [numCauses][]Gap // examples before the first step
	kernels   int64
	kernelNs  int64
	queue     histogram
	callTimes histogram // durations of launch calls
	intervals histogram // between the starts of launch calls that follow one another
	pairs     map[uint64]*pair
	gaps      [numCauses][]Gap
	hostNames sums
	hostLines sums
	syncNames sums
	longest   [numClasses]longest
	small     map[uint32]*SmallKernel // by shape, nil for those that are large enough
	list      stepList
	groups    *groups // nil without operations, or if they are not needed
}

// longest is the longest time of a class without other work.
type longest struct {
	ns  int64
	ref Ref
}

func (d *device) busyEnd() int64 { return max(d.ends[0], d.ends[1], d.ends[2]) }

// advance partitions the time up to t, and returns the start of an idle part that ends at t.
func (d *device) advance(t int64) (idleFrom int64) {
	if t <= d.now {
		return t
	}
	for c := range d.ends {
		if until := min(d.ends[c], t); until > d.now {
			d.totals[c] += until - d.now
		}
	}
	at := d.now
	for c, ns := range [numClasses]*int64{&d.sums.ComputeNs, &d.sums.CommunicationNs, &d.sums.CopyNs} {
		if until := min(d.ends[c], t); until > at {
			*ns += until - at
			d.own(class(c), until-at)
			if part := until - at; part > d.longest[c].ns {
				d.longest[c].ns, d.longest[c].ref = part, d.endRefs[c]
			}
			if class(c) == classCopy && d.page {
				d.pageable += until - at
			}
			at = until
		}
	}
	d.sums.WallNs += t - d.now
	d.now = t
	if t > at && d.any { // the end of the last operation, so far
		d.active[1] = d.mark(at)
		d.active[1].sums.WallNs -= t - at
	}
	return at
}

// add adds an operation. Operations come in the order of their starts.
func (d *device) add(w *work) {
	if idle := d.advance(w.start); idle < w.start {
		d.gap(idle, w.start, w)
	}
	d.steps.begin(d, w)
	if w.launched {
		if w.class == classCopy && w.launchEnd > w.start {
			// The host was inside the call while the copy ran. It was blocked from its start.
			cause := CopyCall
			if w.toHost {
				cause = Sync
			}
			if busy := min(d.busyEnd(), w.start) - w.launchStart; busy > 0 && w.launchStart >= d.creditEnd {
				d.borrow(cause, busy, w.ref.Name, w.start)
			}
			d.addCall(call{start: w.start, end: w.launchEnd, cause: cause, name: w.ref.Name})
		} else {
			d.hostEnd = max(d.hostEnd, w.launchEnd)
		}
		if w.launchStart >= d.creditEnd && w.launchEnd <= d.busyEnd() {
			d.ahead(w.launchStart)
		}
		if w.class != classCopy {
			d.addLaunch(w)
		}
	}
	if w.class != classCopy {
		if !d.started {
			d.active[0] = d.mark(w.start)
			d.started, d.startup = true, false
		}
		d.kernels++
		d.kernelNs += w.end - w.start
	}
	if w.end >= d.ends[w.class] {
		d.ends[w.class], d.endRefs[w.class] = w.end, w.ref
		if w.scope != nil {
			d.groups.times.owner[w.class] = w.scope
		}
		if d.owned != nil {
			d.owned.owner[w.class] = w.own
		}
		if w.class == classCopy {
			d.page = w.pageable
		}
	}
	if !d.any || w.end > d.lastEnd {
		d.last, d.lastEnd, d.any = *w, w.end, true
	}
}

// addCall adds a host call. Calls come in the order of their starts, except those of copies.
func (d *device) addCall(c call) {
	if c.end <= c.start {
		return
	}
	c.counted = max(c.start, d.from)
	switch busy := d.busyEnd(); {
	case c.end <= busy && c.start >= d.last.start:
		// The device works during all of the call.
		d.borrow(c.cause, c.end-c.counted, c.name, c.end)
		d.hostEnd = max(d.hostEnd, c.end)
	case len(d.calls) == maxCalls:
		l := &d.calls[maxCalls-1]
		l.end = max(l.end, c.end)
	default:
		d.calls = append(d.calls, c)
	}
}

func (d *device) borrow(cause Cause, ns int64, name string, until int64) {
	if ns <= 0 {
		return
	}
	c := &d.credits[cause]
	if c.end != until {
		c.latest = 0
	}
	c.ns += ns
	c.latest += ns
	c.name, c.end = name, until
	d.creditEnd = max(d.creditEnd, until)
}

// ahead limits the credits when the host is ahead of the device again: to the last call, and to some
// time after it.
func (d *device) ahead(at int64) {
	for i := range d.credits {
		c := &d.credits[i]
		c.ns = min(c.ns, c.latest)
		if at-c.end > creditLife*c.latest {
			c.ns = 0
		}
	}
}

// gap attributes the idle time [a, b), which w ends, or nothing if w is nil.
func (d *device) gap(a, b int64, w *work) {
	g := Gap{StartNs: a, EndNs: b}
	idle := &g.Idle
	var hostFrom, hostTo int64 // the longest part of host code
	switch {
	case w == nil:
		idle[NothingQueued] = b - a
	case d.startup:
		idle[StartUp] = b - a
	default:
		launch := b
		if w.launched {
			launch = min(max(w.launchStart, a), b)
			done := min(max(w.launchEnd, launch), b)
			d.launchParts(w, launch, done, b, idle)
		}
		d.hostParts(a, launch, w, &g, &hostFrom, &hostTo)
	}
	d.dropCalls(b)
	d.sums.IdleNs += b - a
	if w != nil {
		d.addPair(w, idle)
		w.late = w.launched && w.launchEnd > a
		if w.scope != nil {
			d.ownIdle(w.scope, idle)
		}
		if d.owned != nil {
			d.owned.idle(d, w, idle)
		}
	}
	for c, ns := range idle {
		d.sums.Idle[c] += ns
		if ns > g.PartNs {
			g.Cause, g.PartNs = Cause(c), ns
		}
	}
	if idle[Host]+idle[Unknown] > 0 {
		g.Scope = d.scopes.innermost(hostFrom + (hostTo-hostFrom)/2)
		d.hostNames.add(stem(g.Scope), idle[Host]+idle[Unknown])
		if w != nil && w.delayStack != "" {
			d.hostLines.add(programFrame(w.delayStack), idle[Host]+idle[Unknown])
		}
	}
	if idle[Sync] > 0 {
		d.syncNames.add(g.Call, idle[Sync])
	}
	d.keep(&g, w)
	if d.all != nil {
		d.all.add(d, g, w)
	}
}

// returned is the latest time at which the call that launched the last operation can have returned, if its
// times are unknown.
func (d *device) returned() int64 {
	if d.last.class == classCopy {
		return d.lastEnd
	}
	return d.last.start
}

// launchParts attributes the time from the launch to the start.
func (d *device) launchParts(w *work, launch, done, b int64, idle *CauseSums) {
	switch in := done - launch; {
	case w.class == classCopy && w.fromHost && w.pageable:
		idle[CopyCall] += in
	case w.launchEnd-w.launchStart > SlowLaunchNs:
		idle[SlowLaunch] += in
	default:
		idle[Launch] += in
	}
	latency := min(b-done, LatencyNs)
	idle[Latency] += latency
	idle[Queued] += b - done - latency
}

// hostParts attributes the time [a, launch) before the launch: to calls that the host was in, then to
// calls that made it late, then to other code.
func (d *device) hostParts(a, launch int64, w *work, g *Gap, hostFrom, hostTo *int64) {
	slices.SortStableFunc(d.calls, func(x, y call) int { return cmp.Compare(x.start, y.start) })
	at, rest := a, int64(0)
	other := func(from, to int64) {
		if to > from {
			rest += to - from
			if to-from > *hostTo-*hostFrom {
				*hostFrom, *hostTo = from, to
			}
		}
	}
	latest := d.hostEnd
	for i := range d.calls {
		c := &d.calls[i]
		cause := c.cause
		if cause == Sync && c.end >= a && d.last.class == classCopy && d.last.fromHost && d.any {
			cause = CopyCall // it waited for a copy
		}
		if before := min(c.end, a) - c.counted; before > 0 {
			d.borrow(cause, before, c.name, c.end)
		}
		from, to := max(c.start, at), min(c.end, launch)
		if to > from {
			other(at, from)
			g.Idle[cause] += to - from
			if g.Call == "" || cause == Sync {
				g.Call = c.name
			}
			at = to
		}
		if c.end <= launch {
			latest = max(latest, c.end)
		}
	}
	other(at, launch)
	if !w.launched {
		g.Idle[Unknown] += rest
		return
	}
	for _, cause := range [...]Cause{Allocator, CopyCall, Sync} {
		c := &d.credits[cause]
		part := min(c.ns, rest)
		if part > 0 {
			g.Idle[cause] += part
			c.ns -= part
			rest -= part
			if g.Call == "" || cause == Sync {
				g.Call = c.name
			}
		}
	}
	switch {
	case latest > 0 && max(w.launchStart-latest, *hostTo-*hostFrom) <= LaunchGapNs:
		g.Idle[Launch] += rest
		return
	case d.any && !d.last.launched && w.launchStart-d.returned() <= LaunchGapNs:
		g.Idle[Unknown] += rest // launch or host
		return
	}
	if d.requests {
		waits := min(rest, d.scopes.before(*hostFrom, *hostTo, launch))
		g.Idle[NothingQueued] += waits
		rest -= waits
	}
	g.Idle[Host] += rest
}

// dropCalls forgets calls that end by b.
func (d *device) dropCalls(b int64) {
	keep := d.calls[:0]
	for i := range d.calls {
		c := &d.calls[i]
		if c.end <= b {
			d.hostEnd = max(d.hostEnd, c.end)
			continue
		}
		c.counted = max(c.counted, b)
		keep = append(keep, *c)
	}
	d.calls = keep
}

// keep keeps a gap that w ends as an example of each of its causes, if its part is large enough.
func (d *device) keep(g *Gap, w *work) {
	named := false
	for c, ns := range g.Idle {
		if ns == 0 {
			continue
		}
		list := d.gaps[c]
		if len(list) == gapsPerCause && ns <= list[len(list)-1].Idle[c] {
			continue
		}
		if !named {
			named = true
			g.name(d, w)
		}
		i, _ := slices.BinarySearchFunc(list, ns, func(x Gap, ns int64) int {
			if x.Idle[c] >= ns { // equal ones keep their order
				return -1
			}
			return 1
		})
		list = slices.Insert(list, i, *g)
		d.gaps[c] = list[:min(len(list), gapsPerCause)]
	}
}

// name sets the operations around a gap that w ends.
func (g *Gap) name(d *device, w *work) {
	if d.any {
		before := d.last.ref
		g.Before = &before
	}
	if w != nil {
		after := w.ref
		g.After, g.Stack, g.DelayStack = &after, w.stack, w.delayStack
	}
}

// mark is a time and the sums up to it. The zero mark is unset.
type mark struct {
	set      bool
	ns       int64
	sums     Parts
	pageable int64
}

func (d *device) mark(ns int64) mark { return mark{true, ns, d.sums, d.pageable} }

// shift moves a mark to sums that begin at another one.
func (m mark) shift(begin *mark) mark {
	if m.set {
		m.sums = m.sums.plus(&begin.sums)
		m.pageable += begin.pageable
	}
	return m
}

// firstStep forgets the examples before the first step. They are kept as examples of gaps only.
func (d *device) firstStep() {
	d.tally.firstStep()
	d.credits = [numCauses]credit{}
}

func (t *tally) firstStep() {
	t.early, t.gaps = t.gaps, [numCauses][]Gap{}
	t.hostNames, t.hostLines, t.syncNames = sums{}, sums{}, sums{}
	t.pairs = nil
	clear(t.longest[:])
}

// finish partitions the rest of the interval and returns the result.
func (d *device) finish(to int64) Device {
	if idle := d.advance(to); idle < to {
		d.gap(idle, to, nil)
	} else if d.any {
		d.active[1] = d.mark(to)
	}
	d.steps.end(d)
	if d.list.found() {
		d.active = d.list.active
	}
	out := Device{
		ID: d.id, Model: d.model, Index: -1, Parts: d.sums,
		CommunicationTotalNs: d.totals[classCommunication], CopyTotalNs: d.totals[classCopy], PageableCopyNs: d.active[1].pageable - d.active[0].pageable,
		Kernels: d.kernels, KernelNs: d.kernelNs, QueueP50Ns: d.queue.quantile(50),
		Launches:   d.launchRate(),
		HostScopes: d.hostNames.sorted(), HostLines: d.hostLines.sorted(), SyncCalls: d.syncNames.sorted(), Gaps: []Gap{},
		copies: d.longest[classCopy].ref, comms: d.longest[classCommunication].ref,
	}
	if d.index.OK {
		out.Index = d.index.V
	}
	if d.kernels > 0 {
		out.ActiveFromNs, out.ActiveToNs = d.active[0].ns, d.active[1].ns
		out.Active = d.active[1].sums.minus(&d.active[0].sums)
	}
	out.Bound = out.Active.bound()
	out.pairs = d.sortedPairs(out.Launches.IntervalP50Ns)
	seen := map[int64]bool{}
	for _, list := range append(d.early[:], d.gaps[:]...) {
		for i := range list {
			if !seen[list[i].StartNs] {
				seen[list[i].StartNs] = true
				out.Gaps = append(out.Gaps, list[i])
			}
		}
	}
	slices.SortFunc(out.Gaps, func(a, b Gap) int {
		return cmp.Or(cmp.Compare(b.EndNs-b.StartNs, a.EndNs-a.StartNs), cmp.Compare(a.StartNs, b.StartNs))
	})
	return out
}

// sums adds nanoseconds by name.
type sums struct{ all map[string]*NameSum }

func (s *sums) add(name string, ns int64) {
	if ns <= 0 {
		return
	}
	x := s.of(name)
	x.Ns += ns
	x.Count++
}

// of returns the sum of a name, that of all others if there are too many names.
func (s *sums) of(name string) *NameSum {
	if s.all == nil {
		s.all = map[string]*NameSum{}
	}
	x, ok := s.all[name]
	if !ok {
		if len(s.all) >= maxSumNames {
			name = otherName
			x = s.all[name]
		}
		if x == nil {
			x = &NameSum{Name: name}
			s.all[name] = x
		}
	}
	return x
}

func (s *sums) sorted() []NameSum {
	list := make([]NameSum, 0, len(s.all))
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		list = append(list, *s.all[name])
	}
	slices.SortStableFunc(list, func(a, b NameSum) int { return cmp.Compare(b.Ns, a.Ns) })
	return list[:min(len(list), maxSumRows)]
}

// isCommunication says whether a kernel is one of NCCL, by its name: ncclKernel_…, ncclDevKernel_…,
// also of RCCL, which keeps the names.
func isCommunication(s *store.Shape) bool {
	return strings.HasPrefix(s.Name, "nccl") || strings.HasPrefix(s.FullName, "nccl")
}

func text(a store.Attrs, key string) string {
	if v := attr(a, key); v.Kind == store.KindString {
		return v.Str
	}
	return ""
}

// shapeInfo is what the analysis needs of a shape.
type shapeInfo struct {
	class            class
	fromHost, toHost bool
	pageable         bool
	name             string
	hash             uint64 // of the name
	shape            uint64 // hash of all that a repetition has in common
}

func fnvOf(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // it never fails
	return h.Sum64()
}

func infoOf(s *store.Shape) shapeInfo {
	info := shapeInfo{name: s.Name, hash: fnvOf(s.Name)}
	info.shape = fnvOf(fmt.Sprint(s.Operation, s.Name, s.FullName, s.Grid, s.Block))
	switch s.Operation {
	case store.OpCopy, store.OpSet:
		info.class = classCopy
		kind := text(s.Attrs, semconv.CUDAMemcpyKind)
		info.fromHost, info.toHost = strings.HasPrefix(kind, "Hto"), strings.HasSuffix(kind, "toH")
		info.pageable = text(s.Attrs, semconv.CUDAMemcpySourceKind) == semconv.CUDAMemcpySourceKindPageable || text(s.Attrs, semconv.CUDAMemcpyDestinationKind) == semconv.CUDAMemcpySourceKindPageable
	default:
		if isCommunication(s) {
			info.class = classCommunication
		}
	}
	return info
}

// programFrame returns the innermost frame of the program's own code, or of the stack if all frames are
// of installed packages and of Python itself.
func programFrame(stack string) string {
	first, _, _ := strings.Cut(stack, "\n")
	for f := range strings.SplitSeq(stack, "\n") {
		if !strings.Contains(f, "-packages/") && !strings.Contains(f, "/lib/python3.") && !strings.Contains(f, " (<frozen ") {
			return f
		}
	}
	return first
}
