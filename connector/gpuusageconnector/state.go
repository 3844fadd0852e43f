// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"encoding/binary"
	"strings"

	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/account"
	"github.com/gpuflight/gpuflight/internal/glob"
	"github.com/gpuflight/gpuflight/internal/histogram"
	"github.com/gpuflight/gpuflight/semconv"
)

// state is all that the connector knows. It changes by apply and flush alone, and in the same way
// whenever it is given the same batches and flushes in the same order. It is not safe for concurrent
// use.
type state struct {
	cfg      *Config
	explicit bool // explicit histograms of durations
	prices   []PriceConfig
	keys     *resourceKeys
	options  account.Options

	now      int64  // the latest moment that a record has told
	interval uint64 // number of the interval between flushes

	seen    *account.Seen
	parents *recent[string]  // names of spans that may be scopes, by span
	traces  *recent[request] // requests, by trace
	shared  shared
	waiting waiting

	services   []*service // number 0 holds those for which there is no room
	serviceIDs map[string]uint32
	labels     []*label // number 0 holds the devices for which there is no room
	labelIDs   map[labelName]uint32
	devices    []*device
	deviceIDs  map[deviceID]*device
	// evictAfter is when it may be worthwhile to search for a device that can be dropped.
	evictAfter int64
	series     int

	stats   stats
	scratch scratch
}

// service is a service: one set of kept resource attributes.
type service struct {
	key      string // encoded attributes
	scopes   names
	requests names
	cells    []*cell
	cellIDs  map[uint64]*cell
	costs    []*cost
	costIDs  map[costID]*cost
	usages   []*usage
	usageIDs map[uint32]*usage
	kernels  kernels
}

type costID struct{ scope, request, label uint32 }

// label identifies a device in the metrics. Devices without an id cannot be distinguished there: those
// of one host and model share a label.
type label struct {
	labelName
	name    string // hw.name
	created int64
	busy    int64
	account int64 // observed time
	idle    bill
	perHour float64 // price, −1 for none
	prices  string  // values of the attributes that prices ask for, encoded
}

type labelName struct{ id, host, anonymousName string }

// deviceID identifies a device by hw.id, or by process and ordinal.
type deviceID struct {
	id        string
	anonymous uint64
}

// device is what is accounted for by device.
type device struct {
	deviceID
	label    uint32
	lastSeen int64
	union    *account.Union
	ledger   *account.Ledger
	forced   int64 // of the ledger's count, what stats have
}

// requestRank says how well a span stands for the request of its trace.
type requestRank uint8

const (
	rankNone requestRank = iota
	rankRoot
	rankServer
)

// request is the span that stands for the request of a trace: the first of kind SERVER or CONSUMER,
// else the root.
type request struct {
	name  string
	rank  requestRank
	start int64
}

// stats are counted since they were last taken. They are not part of the state.
type stats struct {
	spans      [numOperations]int64
	duplicates int64
	noSpanID   int64
	noDeviceID int64
	lateNS     int64
	late       int64
	forgotten  int64 // ns
	forced     int64
	missed     int64
	overflow   [numOverflows]int64
}

// overflow is a bound.
type overflow uint8

const (
	overflowServices overflow = iota
	overflowScopes
	overflowRequests
	overflowDevices
	overflowSeries
	overflowKinds
	overflowUnresolved
	numOverflows
)

var overflowNames = [numOverflows]string{
	overflowServices: "services", overflowScopes: "scopes", overflowRequests: "requests", overflowDevices: "devices",
	overflowSeries: "series", overflowKinds: "copy_kinds", overflowUnresolved: "unresolved_scopes",
}

const numGaps = int(account.AfterCopy) + 1

// maxIntervals bounds the separate intervals of accounted time of a device: replayed sessions of
// different days have one each.
const maxIntervals = 1024

// scratch is memory that apply uses again.
type scratch struct {
	services []uint32
	devices  []*device
	labels   []uint32
	kernels  []kernelSlot
	again    []bool // by span: it was counted before
}

// seriesKey is what decides where a span is counted.
type seriesKey struct {
	service, device, scope uint32
	parent                 uint64
}

// kernelSlot is a batch's kernel as the state knows it.
type kernelSlot struct {
	known  bool
	member *member
	ns     int64
	label  uint32
	series *series // on the device of that label
}

func newState(cfg *Config) *state {
	s := &state{
		cfg: cfg, explicit: cfg.Histograms.Kind == kindExplicit, prices: cfg.Cost.Prices, keys: newResourceKeys(cfg),
		options: account.Options{
			SettleAfter: int64(cfg.SettleAfter), IdleGap: int64(cfg.IdleGap), LiveWithin: int64(cfg.LiveWithin),
			MaxPending: cfg.Limits.PendingSpans, GapThreshold: int64(cfg.GapThreshold), MaxStreams: cfg.Limits.Streams,
			MaxIntervals: maxIntervals,
		},
		seen:    account.NewSeen(cfg.Limits.RememberedSpans),
		parents: newRecent[string](cfg.Limits.RememberedParents), traces: newRecent[request](cfg.Limits.RememberedTraces),
		shared: shared{}, waiting: newWaiting(),
		serviceIDs: map[string]uint32{}, labelIDs: map[labelName]uint32{}, deviceIDs: map[deviceID]*device{},
	}
	s.services = []*service{s.newService("")}
	s.labels = []*label{{perHour: -1}}
	return s
}

func (s *state) newService(key string) *service {
	return &service{
		key: key, cellIDs: map[uint64]*cell{}, costIDs: map[costID]*cost{}, usageIDs: map[uint32]*usage{},
		kernels: newKernels(s.cfg.KernelNames),
	}
}

// apply takes a batch.
func (s *state) apply(b *batch) {
	s.now = max(s.now, b.arrived)
	s.others(b)

	c := &s.scratch
	c.services, c.devices, c.labels = c.services[:0], c.devices[:0], c.labels[:0]
	for _, v := range b.services {
		c.services = append(c.services, s.service(b.strings[v.key]))
	}
	for i := range b.devices {
		d, l := s.device(b, &b.devices[i])
		c.devices, c.labels = append(c.devices, d), append(c.labels, l)
	}
	c.kernels = c.kernels[:0]
	for range b.kernels {
		c.kernels = append(c.kernels, kernelSlot{})
	}

	// Duplicates first, in a loop that does nothing else: each lookup waits for the memory, and so
	// several wait at once.
	c.again = c.again[:0]
	for i := range b.spans {
		key := b.spans[i].key
		c.again = append(c.again, key != 0 && !s.seen.Add(key))
	}

	// Most spans follow one of the same service, device and parent.
	var (
		last                  seriesKey
		to                    *sums
		payer                 uint32
		use                   *usage
		useService, useDevice uint32
	)
	for i := range b.spans {
		w := &b.spans[i]
		if c.again[i] {
			s.stats.duplicates++
			continue
		}
		if w.key == 0 {
			s.stats.noSpanID++
		}
		s.stats.spans[w.op]++
		if b.devices[w.device].anonymous != 0 {
			s.stats.noDeviceID++
		}
		number, label := c.services[w.service], c.labels[w.device]
		v, d := s.services[number], c.devices[w.device]

		if w.op < numTimed {
			if at := (seriesKey{w.service, w.device, w.scope, w.parent}); to == nil || at != last {
				last = at
				to, payer = s.scopeOf(v, number, label, w.parent, b.strings[w.scope])
			}
			ns := w.end - w.start
			to.ns[w.op] += ns
			to.spans[w.op]++
			if w.node {
				to.nodes++
			}

			if use == nil || useService != w.service || useDevice != w.device {
				useService, useDevice = w.service, w.device
				use = s.usage(v, label)
			}
			if w.queue >= 0 {
				q := use.queue[w.op]
				if q == nil {
					q = s.newSeries()
					use.queue[w.op] = q
				}
				q.observe(w.queue)
				q.remember(w.queue, w, s.interval, s.cfg.Exemplars)
			}
			switch w.op {
			case opKernel:
				k := &c.kernels[w.what]
				k.ns += ns
				if k.series == nil || k.label != label {
					s.kernelSeries(k, v, use, b.strings[b.kernels[w.what].name], label)
				}
				k.series.observe(ns)
				k.series.remember(ns, w, s.interval, s.cfg.Exemplars)
			case opMemcpy:
				if w.bytes >= 0 {
					s.sizes(use, b.strings[w.what]).bytes.Observe(w.bytes)
				}
			}
		}
		if d == nil {
			continue
		}
		work := account.Work{
			Start: w.start, End: w.end, Key: w.key, Stream: w.stream, Process: number<<16 | uint32(w.process),
			Class: account.Wait, Arrived: s.now,
		}
		switch w.op {
		case opKernel, opGraph:
			// A graph traced as a whole is one span for all its kernels.
			work.Class = account.Kernel
			added, lost := d.union.Add(w.start, w.end)
			s.labels[label].busy += added
			s.stats.forgotten += lost
		case opMemcpy, opMemset:
			work.Class = account.Copy
		}
		if w.op < numTimed {
			work.Payer = payer
			binary.LittleEndian.PutUint64(work.Request[:], w.traceKey)
			binary.LittleEndian.PutUint64(work.Request[8:], w.parent)
		}
		d.ledger.Add(work)
		if d.ledger.Full() {
			s.settle(d, false)
		}
	}
	for i := range c.kernels {
		k := &c.kernels[i]
		if k.member != nil {
			k.member.score += k.ns
		} else if k.known {
			bk := b.kernels[i]
			s.services[c.services[bk.service]].kernels.track(b.strings[bk.name], k.ns)
		}
		*k = kernelSlot{} // holds on to nothing
	}
	clear(c.devices)
	s.boundPending()
}

// others remembers the spans of a batch that are no device work, and counts what has waited for them.
// All of a batch come before its device work.
func (s *state) others(b *batch) {
	for i := range b.parents {
		o := &b.parents[i]
		name := ""
		if o.name != 0 {
			name = s.shared.of(b.strings[o.name])
		}
		s.parents.put(o.key, name)
		for w := s.waiting.take(o.key); w != nil; w = w.sibling {
			s.fold(w, name)
		}
		if o.rank == rankNone || len(s.prices) == 0 {
			continue
		}
		r := request{name: name, rank: o.rank, start: o.start}
		if old, ok := s.traces.get(o.trace); !ok || r.rank > old.rank || r.rank == old.rank && r.start < old.start {
			s.traces.put(o.trace, r)
		}
	}
}

// fold counts what waited for a scope.
func (s *state) fold(o *orphans, scope string) {
	v, id := s.services[o.service], s.scope(o.service, scope)
	for _, c := range o.cells {
		s.cell(v, id, c.label, o.since).add(&c.sums)
	}
}

// giveUp counts the oldest entry that waits as work outside every scope.
func (s *state) giveUp() {
	o := s.waiting.takeOldest()
	for _, c := range o.cells {
		for _, n := range c.spans {
			s.stats.missed += n
		}
	}
	s.fold(o, "")
}

// A payer is a service, a scope and whether the scope is still unknown: 12, 19 and 1 bits.
func payerOf(service, scope uint32, unresolved bool) uint32 {
	p := service<<20 | scope<<1
	if unresolved {
		p |= 1
	}
	return p
}

// scopeOf returns where work under a parent is counted, and who pays for it.
func (s *state) scopeOf(v *service, number, label uint32, parent uint64, scope string) (*sums, uint32) {
	if scope == "" && parent != 0 {
		name, ok := s.parents.get(parent)
		if !ok {
			if s.waiting.n >= s.cfg.Limits.UnresolvedScopes && !s.waiting.has(number, parent) {
				s.stats.overflow[overflowUnresolved]++
				s.giveUp()
			}
			return s.waiting.of(number, parent, label, s.now), payerOf(number, noName, true)
		}
		scope = name
	}
	id := s.scope(number, scope)
	return &s.cell(v, id, label, s.now).sums, payerOf(number, id, false)
}

// scope returns the number of a service's scope. The service that stands for many keeps no names.
func (s *state) scope(service uint32, name string) uint32 {
	limit := s.cfg.Limits.Scopes
	if service == 0 {
		limit = 0
	}
	id, over := s.services[service].scopes.of(name, limit)
	if over && service != 0 {
		s.stats.overflow[overflowScopes]++
	}
	return id
}

// room says whether there is room for one more series.
func (s *state) room() bool {
	if s.series >= s.cfg.Limits.Series {
		s.stats.overflow[overflowSeries]++
		return false
	}
	s.series++
	return true
}

// cell returns the counters of a scope on a device, that count since created if they are new. Without room for them it is those of all others,
// of which there is one per device.
func (s *state) cell(v *service, scope, label uint32, created int64) *cell {
	id := uint64(scope)<<32 | uint64(label)
	c := v.cellIDs[id]
	if c == nil {
		if !s.room() {
			v, scope = s.services[0], others
			id = uint64(scope)<<32 | uint64(label)
			if c = v.cellIDs[id]; c != nil {
				return c
			}
		}
		c = &cell{scope: scope, label: label, created: created}
		v.cells = append(v.cells, c)
		v.cellIDs[id] = c
	}
	return c
}

// cost returns the bill of a scope and request on a device.
func (s *state) cost(v *service, id costID) *cost {
	c := v.costIDs[id]
	if c == nil {
		if !s.room() {
			v, id = s.services[0], costID{others, others, id.label}
			if c = v.costIDs[id]; c != nil {
				return c
			}
		}
		// It has cost nothing since the device was first seen.
		c = &cost{scope: id.scope, request: id.request, label: id.label, created: s.labels[id.label].created}
		v.costs = append(v.costs, c)
		v.costIDs[id] = c
	}
	return c
}

// usage returns the histograms of a service on a device.
func (s *state) usage(v *service, label uint32) *usage {
	u := v.usageIDs[label]
	if u == nil {
		if !s.room() {
			v = s.services[0]
			if u = v.usageIDs[label]; u != nil {
				return u
			}
		}
		u = &usage{label: label}
		v.usages = append(v.usages, u)
		v.usageIDs[label] = u
	}
	return u
}

// newSeries returns an empty histogram. It does not ask for room: the number of those that are made
// this way is a small multiple of what did.
func (s *state) newSeries() *series {
	return newSeries(s.now, s.explicit, s.cfg.Histograms.MaxSize)
}

// kernelSeries finds where a batch's kernel is counted on a device.
func (s *state) kernelSeries(k *kernelSlot, v *service, use *usage, name string, label uint32) {
	k.label = label
	if !k.known {
		k.known = true
		if v != s.services[0] {
			k.member = v.kernels.member(name)
		}
	}
	if k.member != nil {
		if ks := k.member.of(label); ks != nil {
			k.series = ks.series
			return
		}
		if s.room() {
			ks := &kernelSeries{label: label, series: s.newSeries()}
			k.member.add(ks)
			k.series = ks.series
			return
		}
	}
	if use.other == nil {
		use.other = s.newSeries()
	}
	k.series = use.other
}

// sizes returns the histogram of a kind of copies.
func (s *state) sizes(u *usage, kind string) *sizes {
	for _, z := range u.copies {
		if z.kind == kind {
			return z
		}
	}
	if len(u.copies) >= maxKinds && kind != otherName {
		s.stats.overflow[overflowKinds]++
		return s.sizes(u, otherName)
	}
	z := &sizes{kind: kind, created: s.now, bytes: histogram.NewExplicit(copyBounds)}
	u.copies = append(u.copies, z)
	return z
}

// service returns the number of a service.
func (s *state) service(key string) uint32 {
	if id, ok := s.serviceIDs[key]; ok {
		return id
	}
	if len(s.services) > s.cfg.Limits.Services {
		s.stats.overflow[overflowServices]++
		return 0
	}
	id := uint32(len(s.services))
	key = strings.Clone(key)
	s.services = append(s.services, s.newService(key))
	s.serviceIDs[key] = id
	return id
}

// device returns a device and the number of its label. Without room for it there is none, and the
// label is 0.
func (s *state) device(b *batch, bd *batchDevice) (*device, uint32) {
	id := deviceID{b.strings[bd.id], bd.anonymous}
	d := s.deviceIDs[id]
	if d == nil {
		if len(s.devices) >= s.cfg.Limits.Devices && !s.evict() {
			s.stats.overflow[overflowDevices]++
			return nil, s.label(b, bd)
		}
		l := s.label(b, bd)
		if l == 0 {
			return nil, 0
		}
		d = &device{deviceID: id, label: l, union: account.NewUnion(s.cfg.Limits.IntervalsPerDevice), ledger: account.NewLedger(s.options)}
		s.devices = append(s.devices, d)
		s.deviceIDs[id] = d
	}
	d.lastSeen = s.now
	if l := s.labels[d.label]; l.name == "" && bd.name != 0 || l.prices == "" && bd.labels != 0 {
		// It was not known before, or the prices ask for something else than in the last run.
		if l.name == "" {
			l.name = b.strings[bd.name]
		}
		if l.prices == "" {
			l.prices = b.strings[bd.labels]
		}
		s.reprice(d.label)
	}
	return d, d.label
}

// label returns the number of a device's label.
func (s *state) label(b *batch, bd *batchDevice) uint32 {
	n := labelName{id: b.strings[bd.id]}
	if n.id == "" {
		n.host, n.anonymousName = b.strings[bd.host], b.strings[bd.name]
	}
	if id, ok := s.labelIDs[n]; ok {
		return id
	}
	if len(s.labels) > s.cfg.Limits.Devices {
		s.stats.overflow[overflowDevices]++
		return 0
	}
	id := uint32(len(s.labels))
	l := &label{labelName: n, name: b.strings[bd.name], created: s.now, prices: b.strings[bd.labels]}
	l.host = b.strings[bd.host] // where it was first seen
	l.perHour = s.price(l)
	s.labels = append(s.labels, l)
	s.labelIDs[n] = id
	return id
}

// price returns the price of an hour of a device, −1 where none is set.
func (s *state) price(l *label) float64 {
	values := map[string]string{}
	decodeResource(l.prices, s.keys.priced, func(name, value string) { values[name] = value })
next:
	for i := range s.prices {
		p := &s.prices[i]
		if p.Device != "" && !glob.Match(p.Device, l.name) && !glob.Match(p.Device, l.id) {
			continue
		}
		for k, v := range p.Attributes {
			if got, ok := values[k]; !ok || got != v {
				continue next
			}
		}
		return p.PricePerHour
	}
	return -1
}

// reprice looks for a device's price again. What it has cost so far stays as it is.
func (s *state) reprice(number uint32) {
	l := s.labels[number]
	was := l.perHour
	if l.perHour = s.price(l); l.perHour == was {
		return
	}
	settle := func(b *bill) { *b = bill{before: b.amount(max(was, 0))} }
	settle(&l.idle)
	for _, v := range s.services {
		for _, c := range v.costs {
			if c.label == number {
				settle(&c.bill)
			}
		}
	}
}

// evict drops the device that was silent for longest, if that is longer than its idle time counts.
// What it used stays in the metrics.
func (s *state) evict() bool {
	if s.now < s.evictAfter || len(s.devices) == 0 {
		return false
	}
	oldest := 0
	for i, d := range s.devices {
		if d.lastSeen < s.devices[oldest].lastSeen {
			oldest = i
		}
	}
	d := s.devices[oldest]
	if d.lastSeen > s.now-s.options.IdleGap {
		s.evictAfter = d.lastSeen + s.options.IdleGap
		return false
	}
	s.settle(d, true)
	delete(s.deviceIDs, d.deviceID)
	s.devices = append(s.devices[:oldest], s.devices[oldest+1:]...)
	return true
}

// boundPending settles the device with the most pending work before its time when all together have
// too much. A single device's ledger bounds itself.
func (s *state) boundPending() {
	for len(s.devices) > 1 {
		total, most := 0, s.devices[0]
		for _, d := range s.devices {
			n := d.ledger.Pending()
			total += n
			if n > most.ledger.Pending() {
				most = d
			}
		}
		if total <= s.cfg.Limits.PendingSpans {
			return
		}
		s.stats.forced += int64(most.ledger.Pending())
		s.settle(most, true)
	}
}

// flush brings the state to a moment at which it is exported. With all set, everything that waits is
// settled.
func (s *state) flush(now int64, all bool) {
	s.now = max(s.now, now)
	for s.waiting.n > 0 && (all || s.now-s.waiting.first.since >= int64(s.cfg.ScopeWait)) {
		s.giveUp()
	}
	for _, d := range s.devices {
		s.settle(d, all)
	}
	for _, v := range s.services {
		v.kernels.swap(func(m *member) {
			for _, ks := range m.series {
				u := s.usage(v, ks.label)
				if u.other == nil {
					u.other = s.newSeries()
					u.other.created = ks.created
				}
				u.other.merge(ks.series)
				s.series--
			}
		})
	}
}

// settle divides a device's time among those who used it.
func (s *state) settle(d *device, all bool) {
	d.ledger.Settle(s.now, all, &sink{s: s, label: d.label, l: s.labels[d.label]})
	forced := d.ledger.Forced()
	s.stats.forced += forced - d.forced
	d.forced = forced
}

// nextInterval begins another interval: exemplars are of one interval.
func (s *state) nextInterval() { s.interval++ }

// sink books what a ledger has settled.
type sink struct {
	s     *state
	label uint32
	l     *label
	// The last bill: most payments are for the same as the one before.
	payer   uint32
	request [16]byte
	last    *cost
}

// Pay books device time of a payer.
func (b *sink) Pay(payer uint32, request [16]byte, ns int64) {
	b.l.account += ns
	if b.l.perHour < 0 {
		return
	}
	if b.last == nil || payer != b.payer || request != b.request {
		b.payer, b.request = payer, request
		b.last = b.find(payer, request)
	}
	b.last.ns += ns
}

func (b *sink) find(payer uint32, request [16]byte) *cost {
	s := b.s
	number := payer >> 20
	id := costID{scope: payer >> 1 & (maxScopes - 1), label: b.label}
	if number >= uint32(len(s.services)) || !s.services[number].scopes.valid(id.scope) {
		number, id.scope = 0, others // from a damaged state
	}
	v := s.services[number]
	if payer&1 != 0 {
		// Its parent may have come in the meantime.
		if name, ok := s.parents.get(binary.LittleEndian.Uint64(request[8:])); ok {
			id.scope = s.scope(number, name)
		}
	}
	if trace := binary.LittleEndian.Uint64(request[:]); trace != 0 {
		if r, ok := s.traces.get(trace); ok {
			limit := s.cfg.Limits.Requests
			if number == 0 {
				limit = 0
			}
			var over bool
			if id.request, over = v.requests.of(r.name, limit); over {
				s.stats.overflow[overflowRequests]++
			}
		}
	}
	return s.cost(v, id)
}

// Idle books idle time.
func (b *sink) Idle(ns int64) {
	b.l.account += ns
	if b.l.perHour >= 0 {
		b.l.idle.ns += ns
	}
}

// Gap books a time between two kernels of a stream.
func (b *sink) Gap(stream, process uint32, after account.Cause, start, end int64) {
	if stream == 0 || int(after) >= numGaps { // kernels whose stream is unknown have nothing in common
		return
	}
	service := process >> 16
	if service >= uint32(len(b.s.services)) {
		service = 0 // from a damaged state
	}
	u := b.s.usage(b.s.services[service], b.label)
	if u.gaps[after] == nil {
		u.gaps[after] = b.s.newSeries()
		u.gaps[after].created = b.l.created
	}
	u.gaps[after].observe(end - start)
}

// Late counts time that came too late.
func (b *sink) Late(_ uint32, ns int64) {
	b.s.stats.late++
	b.s.stats.lateNS += ns
}

// gapNames are the values of the attribute, by cause.
var gapNames = [numGaps]string{
	account.AfterHost: semconv.CUDAGapAfterHost, account.AfterSync: semconv.CUDAGapAfterSync, account.AfterCopy: semconv.CUDAGapAfterCopy,
}

// operationNames are the values of the attribute, by operation.
var operationNames = [numOperations]string{
	opKernel: semconv.CUDAOperationKernel, opMemcpy: semconv.CUDAOperationMemcpy, opMemset: semconv.CUDAOperationMemset,
	opGraph: semconv.CUDAOperationGraph, opSynchronize: semconv.CUDAOperationSynchronize,
}

// pending returns how many spans wait to be settled.
func (s *state) pending() int {
	n := 0
	for _, d := range s.devices {
		n += d.ledger.Pending()
	}
	return n
}
