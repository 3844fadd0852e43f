// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/account"
	"github.com/gpuflight/gpuflight/internal/histogram"
	"github.com/gpuflight/gpuflight/internal/varint"
)

// snapshotVersion is raised when what follows changes: a state of another version is given up.
const snapshotVersion = 1

// snapshotHead is what stands before the state.
type snapshotHead struct {
	epoch, next uint64 // of the record that follows
	shape       string
	cost        CostConfig
}

// shape names the settings without which a state has no meaning.
func shape(cfg *Config) string {
	return fmt.Sprintf("histograms %s %d, resource attributes %s",
		cfg.Histograms.Kind, cfg.Histograms.MaxSize, strings.Join(cfg.ResourceAttributes, " "))
}

func appendSnapshotHead(b []byte, s *state, epoch, next uint64) []byte {
	b = appendUint(b, uint64(snapshotVersion))
	b = appendUint(b, epoch)
	b = appendUint(b, next)
	b = varint.AppendBytes(b, shape(s.cfg))
	c := &s.cfg.Cost
	b = varint.AppendBytes(b, c.Currency)
	b = appendUint(b, len(c.Prices))
	for _, p := range c.Prices {
		b = varint.AppendBytes(b, p.Device)
		b = appendFloat(b, p.PricePerHour)
		b = appendUint(b, len(p.Attributes))
		for _, k := range slices.Sorted(maps.Keys(p.Attributes)) {
			b = varint.AppendBytes(b, k)
			b = varint.AppendBytes(b, p.Attributes[k])
		}
	}
	return b
}

// loadSnapshotHead reads what appendSnapshotHead wrote and returns what follows.
func loadSnapshotHead(from []byte) (h snapshotHead, rest []byte, err error) {
	d := newDecoder(from)
	if v := d.Uint(); v != snapshotVersion {
		return h, nil, fmt.Errorf("version %d: %w", v, errDamaged)
	}
	h.epoch, h.next = d.Uint(), d.Uint()
	h.shape = d.string()
	h.cost.Currency = d.string()
	for n := d.Count(1); n > 0 && d.OK(); n-- {
		p := PriceConfig{Device: d.string(), PricePerHour: d.float()}
		for m := d.Count(1); m > 0 && d.OK(); m-- {
			if p.Attributes == nil {
				p.Attributes = map[string]string{}
			}
			k := d.string()
			p.Attributes[k] = d.string()
		}
		h.cost.Prices = append(h.cost.Prices, p)
	}
	if !d.OK() {
		return h, nil, errDamaged
	}
	return h, d.Rest, nil
}

// append appends the state. Exemplars and own telemetry are not part of it.
func (s *state) append(b []byte) []byte {
	b = binary.AppendVarint(b, s.now)
	b = s.seen.AppendState(b)
	b = appendRecent(b, s.parents, func(b []byte, name string) []byte { return varint.AppendBytes(b, name) })
	b = appendRecent(b, s.traces, func(b []byte, r request) []byte {
		b = varint.AppendBytes(b, r.name)
		return binary.AppendVarint(append(b, byte(r.rank)), r.start)
	})

	b = appendUint(b, len(s.labels)-1)
	for _, l := range s.labels[1:] {
		b = varint.AppendBytes(b, l.id)
		b = varint.AppendBytes(b, l.host)
		b = varint.AppendBytes(b, l.anonymousName)
		b = varint.AppendBytes(b, l.name)
		b = varint.AppendBytes(b, l.prices)
		b = binary.AppendVarint(b, l.created)
		b = binary.AppendVarint(b, l.busy)
		b = binary.AppendVarint(b, l.account)
		b = appendBill(b, &l.idle)
		b = appendFloat(b, l.perHour)
	}
	b = appendUint(b, len(s.services))
	for _, v := range s.services {
		b = v.append(b)
	}
	b = appendUint(b, s.waiting.n)
	for o := s.waiting.first; o != nil; o = o.next {
		b = appendUint(b, o.service)
		b = binary.LittleEndian.AppendUint64(b, o.parent)
		b = binary.AppendVarint(b, o.since)
		b = appendUint(b, len(o.cells))
		for _, c := range o.cells {
			b = appendUint(b, c.label)
			b = appendSums(b, &c.sums)
		}
	}
	b = appendUint(b, len(s.devices))
	for _, d := range s.devices {
		b = varint.AppendBytes(b, d.id)
		b = appendUint(b, d.anonymous)
		b = appendUint(b, d.label)
		b = binary.AppendVarint(b, d.lastSeen)
		b = d.union.AppendState(b)
		b = d.ledger.AppendState(b)
	}
	return b
}

func (v *service) append(b []byte) []byte {
	b = varint.AppendBytes(b, v.key)
	for _, n := range []*names{&v.scopes, &v.requests} {
		b = appendUint(b, len(n.list))
		for _, name := range n.list {
			b = varint.AppendBytes(b, name)
		}
	}
	b = appendUint(b, len(v.cells))
	for _, c := range v.cells {
		b = appendUint(b, c.scope)
		b = appendUint(b, c.label)
		b = binary.AppendVarint(b, c.created)
		b = appendSums(b, &c.sums)
	}
	b = appendUint(b, len(v.costs))
	for _, c := range v.costs {
		b = appendUint(b, c.scope)
		b = appendUint(b, c.request)
		b = appendUint(b, c.label)
		b = binary.AppendVarint(b, c.created)
		b = appendBill(b, &c.bill)
	}
	b = appendUint(b, len(v.usages))
	for _, u := range v.usages {
		b = appendUint(b, u.label)
		for _, q := range u.queue {
			b = appendSeries(b, q)
		}
		for _, g := range u.gaps {
			b = appendSeries(b, g)
		}
		b = appendSeries(b, u.other)
		b = appendUint(b, len(u.copies))
		for _, z := range u.copies {
			b = varint.AppendBytes(b, z.kind)
			b = binary.AppendVarint(b, z.created)
			b = z.bytes.AppendState(b)
		}
	}
	b = appendUint(b, len(v.kernels.members))
	for _, m := range v.kernels.members {
		b = varint.AppendBytes(b, m.name)
		b = binary.AppendVarint(b, m.score)
		b = appendUint(b, len(m.series))
		for _, ks := range m.series {
			b = appendUint(b, ks.label)
			b = appendSeries(b, ks.series)
		}
	}
	b = appendUint(b, len(v.kernels.candidates))
	for _, c := range v.kernels.candidates {
		b = varint.AppendBytes(b, c.name)
		b = binary.AppendVarint(b, c.count)
		b = binary.AppendVarint(b, c.err)
	}
	return b
}

func appendSums(b []byte, s *sums) []byte {
	for i := range s.ns {
		b = binary.AppendVarint(b, s.ns[i])
		b = binary.AppendVarint(b, s.spans[i])
	}
	return binary.AppendVarint(b, s.nodes)
}

func appendBill(b []byte, v *bill) []byte { return appendFloat(binary.AppendVarint(b, v.ns), v.before) }

// appendSeries appends a histogram, or that there is none.
func appendSeries(b []byte, s *series) []byte {
	if s == nil {
		return append(b, 0)
	}
	b = binary.AppendVarint(append(b, 1), s.created)
	if s.exp != nil {
		return s.exp.AppendState(b)
	}
	return s.exact.AppendState(b)
}

func appendRecent[V any](b []byte, r *recent[V], value func([]byte, V) []byte) []byte {
	for _, m := range []map[uint64]V{r.old, r.cur} {
		b = appendUint(b, len(m))
		for k, v := range m {
			b = value(binary.LittleEndian.AppendUint64(b, k), v)
		}
	}
	return b
}

// load reads what append wrote into a new state. Its bounds may differ from those of the state that
// was saved: what there is already stays.
func (s *state) load(from []byte) error {
	d := newDecoder(from)
	s.now = d.Int()
	d.nested(s.seen.LoadState)
	loadRecent(d, s.parents, d.string)
	loadRecent(d, s.traces, func() request {
		return request{name: d.string(), rank: requestRank(d.below(int(rankServer) + 1)), start: d.Int()}
	})
	s.loadLabels(d)
	s.loadServices(d)
	for n := d.Count(1); n > 0 && d.OK(); n-- {
		service, parent, since := d.below(len(s.services)), d.Fixed(), d.Int()
		if s.waiting.has(service, parent) {
			d.fail()
		}
		for m := d.Count(1); m > 0 && d.OK(); m-- {
			label := d.below(len(s.labels))
			loadSums(d, s.waiting.of(service, parent, label, since))
		}
	}
	s.loadDevices(d)
	if !d.OK() || len(d.Rest) != 0 {
		return errDamaged
	}
	return nil
}

// adopt makes the state's prices those of other settings, which differ from its own in nothing else.
// What was charged so far stays as it is.
func (s *state) adopt(cfg *Config) {
	sameCurrency := s.cfg.Cost.Currency == cfg.Cost.Currency
	sameKeys := slices.Equal(s.keys.priced, newResourceKeys(cfg).priced)
	s.cfg, s.prices, s.keys = cfg, cfg.Cost.Prices, newResourceKeys(cfg)
	if !sameCurrency {
		s.forgetCosts()
	}
	for i, l := range s.labels {
		if !sameKeys {
			l.prices = "" // until the device is seen again
		}
		if i > 0 {
			s.reprice(uint32(i))
		}
	}
}

func (s *state) loadLabels(d *decoder) {
	for n := d.Count(1); n > 0 && d.OK(); n-- {
		l := &label{}
		l.id, l.host, l.anonymousName = d.string(), d.string(), d.string()
		l.name, l.prices = d.string(), d.string()
		l.created, l.busy, l.account = d.Int(), d.Int(), d.Int()
		loadBill(d, &l.idle)
		l.perHour = d.float()
		name := l.labelName
		if name.id != "" {
			name = labelName{id: name.id}
		}
		if _, ok := s.labelIDs[name]; ok {
			d.fail()
			return
		}
		s.labelIDs[name] = uint32(len(s.labels))
		s.labels = append(s.labels, l)
	}
}

func (s *state) loadServices(d *decoder) {
	n := d.Count(1)
	if n == 0 || n > maxServices {
		d.fail()
	}
	for i := 0; i < n && d.OK(); i++ {
		key := d.string()
		v := s.services[0]
		if i > 0 {
			if _, ok := s.serviceIDs[key]; ok {
				d.fail()
				return
			}
			v = s.newService(key)
			s.serviceIDs[key] = uint32(len(s.services))
			s.services = append(s.services, v)
		}
		s.loadService(d, v)
	}
}

func (s *state) loadService(d *decoder, v *service) {
	for _, n := range []*names{&v.scopes, &v.requests} {
		for m := d.Count(1); m > 0 && d.OK(); m-- {
			name := d.string()
			if _, ok := n.ids[name]; ok || name == "" {
				d.fail()
				return
			}
			n.add(name)
		}
	}
	if len(v.scopes.list) > maxScopes-2 {
		d.fail()
	}
	for n := d.Count(1); n > 0 && d.OK(); n-- {
		c := &cell{scope: d.below(len(v.scopes.list) + 2), label: d.below(len(s.labels)), created: d.Int()}
		loadSums(d, &c.sums)
		id := uint64(c.scope)<<32 | uint64(c.label)
		if v.cellIDs[id] != nil {
			d.fail()
			return
		}
		v.cells, v.cellIDs[id] = append(v.cells, c), c
		s.series++
	}
	for n := d.Count(1); n > 0 && d.OK(); n-- {
		c := &cost{scope: d.below(len(v.scopes.list) + 2), request: d.below(len(v.requests.list) + 2), label: d.below(len(s.labels)), created: d.Int()}
		loadBill(d, &c.bill)
		id := costID{c.scope, c.request, c.label}
		if v.costIDs[id] != nil {
			d.fail()
			return
		}
		v.costs, v.costIDs[id] = append(v.costs, c), c
		s.series++
	}
	for n := d.Count(1); n > 0 && d.OK(); n-- {
		u := &usage{label: d.below(len(s.labels))}
		if v.usageIDs[u.label] != nil {
			d.fail()
			return
		}
		for i := range u.queue {
			u.queue[i] = s.loadSeries(d)
		}
		for i := range u.gaps {
			u.gaps[i] = s.loadSeries(d)
		}
		u.other = s.loadSeries(d)
		for m := d.Count(1); m > 0 && d.OK(); m-- {
			z := &sizes{kind: d.string(), created: d.Int(), bytes: histogram.NewExplicit(copyBounds)}
			d.nested(z.bytes.LoadState)
			u.copies = append(u.copies, z)
		}
		v.usages, v.usageIDs[u.label] = append(v.usages, u), u
		s.series++
	}
	k := &v.kernels
	for n := d.Count(1); n > 0 && d.OK(); n-- {
		m := &member{name: d.string(), score: d.Int()}
		if k.byName[m.name] != nil {
			d.fail()
			return
		}
		for i := d.Count(1); i > 0 && d.OK(); i-- {
			ks := &kernelSeries{label: d.below(len(s.labels)), series: s.loadSeries(d)}
			if ks.series == nil || len(m.series) > 0 && m.series[len(m.series)-1].label >= ks.label {
				d.fail()
				return
			}
			m.series = append(m.series, ks)
			s.series++
		}
		k.members, k.byName[m.name] = append(k.members, m), m
	}
	for n := d.Count(1); n > 0 && d.OK(); n-- {
		c := &candidate{name: d.string(), count: d.Int(), err: d.Int(), at: len(k.candidates)}
		if k.byCand[c.name] != nil {
			d.fail()
			return
		}
		k.candidates, k.byCand[c.name] = append(k.candidates, c), c
	}
	heap.Init(&k.candidates)
	// There may be fewer now than there were.
	for len(k.candidates) > perMember*k.limit {
		c := heap.Pop(&k.candidates).(*candidate)
		delete(k.byCand, c.name)
	}
}

func (s *state) loadDevices(d *decoder) {
	for n := d.Count(1); n > 0 && d.OK(); n-- {
		v := &device{deviceID: deviceID{d.string(), d.Uint()}, label: d.below(len(s.labels)), lastSeen: d.Int()}
		if s.deviceIDs[v.deviceID] != nil || v.label == 0 {
			d.fail()
			return
		}
		v.union, v.ledger = account.NewUnion(s.cfg.Limits.IntervalsPerDevice), account.NewLedger(s.options)
		d.nested(v.union.LoadState)
		d.nested(v.ledger.LoadState)
		v.forced = v.ledger.Forced()
		s.devices, s.deviceIDs[v.deviceID] = append(s.devices, v), v
	}
}

// forgetCosts drops what is in another currency.
func (s *state) forgetCosts() {
	for _, l := range s.labels {
		l.idle = bill{}
	}
	for _, v := range s.services {
		s.series -= len(v.costs)
		v.costs = nil
		clear(v.costIDs)
	}
}

func loadSums(d *decoder, s *sums) {
	for i := range s.ns {
		s.ns[i], s.spans[i] = d.Int(), d.Int()
	}
	s.nodes = d.Int()
}

func loadBill(d *decoder, b *bill) { b.ns, b.before = d.Int(), d.float() }

// loadSeries reads a histogram, nil where there was none.
func (s *state) loadSeries(d *decoder) *series {
	if d.below(2) == 0 {
		return nil
	}
	v := s.newSeries()
	v.created = d.Int()
	if v.exp != nil {
		d.nested(v.exp.LoadState)
	} else {
		d.nested(v.exact.LoadState)
	}
	return v
}

func loadRecent[V any](d *decoder, r *recent[V], value func() V) {
	for _, m := range []map[uint64]V{r.old, r.cur} {
		for n := d.Count(1); n > 0 && d.OK(); n-- {
			k := d.Fixed()
			m[k] = value()
		}
	}
}
