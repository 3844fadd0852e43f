// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"fmt"
	"slices"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/varint"
)

// stateVersion is the first number of a checkpoint. A checkpoint of another version is refused; the
// caller then starts from the beginning of the files, which gives the same ids again.
const stateVersion = 1

// AppendState appends what is needed to go on from here, without the dictionaries.
func (d *Decoder) AppendState(b []byte) []byte {
	c := coder{b: b}
	d.code(&c)
	return c.b
}

// AppendDictionaries appends the dictionaries of all sessions. They change seldom and can be large:
// DictionariesVersion tells whether they have changed since they were last saved.
func (d *Decoder) AppendDictionaries(b []byte) []byte {
	c := coder{b: b}
	d.codeDictionaries(&c)
	return c.b
}

// DictionariesVersion changes whenever what AppendDictionaries gives changes.
func (d *Decoder) DictionariesVersion() (v uint64) {
	for _, s := range d.sessions {
		v += s.dicts.version + 1
	}
	return v
}

// LoadState restores a Decoder that has not been fed yet. On an error it is as new.
func (d *Decoder) LoadState(state, dictionaries []byte) error {
	c := coder{Reader: varint.Reader{Rest: state}, reading: true}
	d.code(&c)
	if c.OK() && len(c.Rest) == 0 {
		c.Rest = dictionaries
		d.codeDictionaries(&c)
	}
	if len(c.Rest) != 0 {
		c.fail()
	}
	if !c.OK() {
		d.sessions, d.last = map[string]*session{}, nil
		return fmt.Errorf("checkpoint cannot be used: %s", c.Problem)
	}
	return nil
}

func (d *Decoder) code(c *coder) {
	version := uint64(stateVersion)
	if c.uint(&version); version != stateVersion {
		c.Fail(fmt.Sprintf("it has version %d, this release reads %d", version, stateVersion))
		return
	}
	c.bool(&d.tooOld)
	ids := sortedKeys(d.sessions)
	list(c, &ids, 8, func(id *string) {
		c.str(id)
		s := d.sessions[*id]
		if c.reading {
			s = newSession(*id)
			d.sessions[*id] = s
		}
		d.codeSession(c, s)
	})
}

func (d *Decoder) codeDictionaries(c *coder) {
	ids := sortedKeys(d.sessions)
	list(c, &ids, 2, func(id *string) {
		c.str(id)
		s := d.sessions[*id]
		if s == nil { // of a damaged checkpoint
			c.fail()
			return
		}
		t := &s.dicts
		for k := range t.m {
			table(c, &t.m[k], c.int, func(v *string) {
				c.str(v)
				if c.reading {
					t.bytes += len(*v) + entryBytes
				}
			})
		}
		if c.reading {
			t.version++
		}
	})
}

func (d *Decoder) codeSession(c *coder, s *session) {
	c.bool(&s.headed)
	c.bool(&s.tooOld)
	c.bool(&s.estimated)
	c.bool(&s.live)
	c.bool(&s.closed)
	for i := range s.seen {
		c.int(&s.seen[i])
		c.bool(&s.shut[i])
	}
	c.int(&s.scopeSeen)
	c.int(&s.hostSeen)
	c.int(&s.endTs)
	c.bool(&s.exit.crashed)
	c.optInt(&s.exit.code)
	c.optInt(&s.exit.signal)
	codeHeader(c, s)
	table(c, &s.once, c.uint, func(*struct{}) {})
	codeScopes(c, s)
	codeWindows(c, s)
	codeRows(c, s)
	for l := range s.held {
		q := &s.held[l]
		rest := q.items[q.first:]
		list(c, &rest, 4, func(it *item) { codeItem(c, d, it) })
		if c.reading {
			*q = itemQueue{items: rest}
		}
	}
	list(c, &s.lost, 4, func(it *item) { codeItem(c, d, it) })
}

func codeHeader(c *coder, s *session) {
	ev := *s.ev
	c.str(&ev.App)
	c.optInt(&ev.PID)
	c.str(&ev.HostName)
	c.str(&ev.HostIP)
	c.int(&ev.StartNs)
	c.str(&ev.Distro)
	c.str(&ev.Engine)
	c.str(&ev.Kind)
	list(c, &ev.Devices, 6, func(v *gpuevent.Device) {
		c.int(&v.Index)
		c.str(&v.Name)
		c.str(&v.UUID)
		c.str(&v.Vendor)
		c.optInt(&v.ComputeMajor)
		c.optInt(&v.ComputeMinor)
		c.optInt(&v.SMCount)
	})
	list(c, &ev.Extra, 3, func(a *gpuevent.Attr) {
		c.str(&a.Key)
		kind := uint64(a.Kind)
		c.uint(&kind)
		a.Kind = gpuevent.AttrKind(kind)
		c.str(&a.Str)
		c.int(&a.Int)
	})
	if c.reading {
		s.ev = &ev
	}
}

func (c *coder) family(f *family) {
	for l := range f.lanes {
		st := &f.lanes[l]
		c.uint(&st.part)
		used := int64(st.used)
		c.int(&used)
		st.used = int(used)
		table(c, &st.reps, c.uint, func(v **rep) {
			if c.reading {
				*v = &rep{}
			}
			r := *v
			c.str(&r.name)
			c.bytes(r.span[:])
			c.bytes(r.parent[:])
			c.ref(&r.link)
			c.int(&r.start)
			c.int(&r.end)
			c.optInt(&r.instance)
			c.optInt(&r.depth)
			c.bool(&r.session)
			c.optInt(&r.window)
		})
	}
}

// codeScopes codes the known instances, and those of their ancestors that are not known any more
// but still hold the trace's family.
func codeScopes(c *coder, s *session) {
	t := &s.scopes
	c.uint(&t.nextSeq)
	var order []*scope
	known := map[*scope]bool{}
	if !c.reading {
		index := map[*scope]bool{}
		var add func(x *scope)
		add = func(x *scope) {
			if x == nil || index[x] {
				return
			}
			add(x.parent)
			add(rootOf(x))
			index[x] = true
			order = append(order, x)
		}
		for _, x := range t.all {
			add(x)
			known[x] = true
		}
		if s.order.last != nil {
			add(s.order.last)
		}
	}
	place := map[*scope]uint64{}
	list(c, &order, 12, func(p **scope) {
		if c.reading {
			*p = &scope{}
		}
		x := *p
		place[x] = uint64(len(place)) + 1
		parent, root := place[x.parent], place[x.root]
		c.uint(&parent)
		c.uint(&root) // its own place if it is a root
		c.uint(&x.num)
		c.uint(&x.seq)
		full, name, launched, barren := "", "", false, false
		if !c.reading {
			full, name, launched, barren = x.path.full, x.path.name, x.path.launched, x.path.barren
		}
		c.str(&full)
		c.str(&name)
		c.bool(&launched)
		c.bool(&barren)
		c.int(&x.depth)
		c.int(&x.start)
		c.int(&x.end)
		c.bool(&x.open)
		c.str(&x.tag)
		c.optInt(&x.instance)
		c.optInt(&x.repeat)
		c.optInt(&x.warm)
		c.optInt(&x.original)
		c.uint(&x.homePart)
		c.bytes(x.trace[:])
		c.bytes(x.span[:])
		c.bytes(x.above[:])
		isKnown := known[x]
		c.bool(&isKnown)
		isRoot := x.root == x
		c.bool(&isRoot)
		if c.reading {
			at := func(n uint64) *scope {
				if n == 0 || n > uint64(len(order)) || !c.OK() {
					return nil
				}
				return order[n-1]
			}
			if x.parent = at(parent); parent >= uint64(len(order)) && parent != 0 {
				c.fail()
				return
			}
			if isRoot {
				x.root, x.family = x, &family{kind: gpuevent.KindScope, num: x.num}
			} else if x.root = at(root); x.root == nil || x.root == x || x.root.family == nil {
				c.fail()
				return
			}
			if isRoot && x.parent != nil {
				c.fail()
				return
			}
			x.path = t.a2Path(full, name)
			x.path.launched, x.path.barren = launched, barren
			if isKnown {
				t.all = append(t.all, x)
				t.byNum[x.num] = x
				x.path.insts = append(x.path.insts, x)
				if x.open {
					t.open = append(t.open, x)
				}
			}
		}
		if isRoot {
			c.family(x.family)
		}
	})
	last := place[s.order.last]
	c.uint(&last)
	c.int(&s.order.lastEnd)
	if c.reading && last > 0 {
		if last > uint64(len(order)) {
			c.fail()
			return
		}
		s.order.last = order[last-1]
	}
	if c.reading && !slices.IsSortedFunc(t.all, func(a, b *scope) int { return int(int64(a.seq) - int64(b.seq)) }) {
		slices.SortFunc(t.all, func(a, b *scope) int {
			if a.seq < b.seq {
				return -1
			}
			return 1
		})
	}
}

func rootOf(x *scope) *scope {
	if x.root == x {
		return nil
	}
	return x.root
}

func codeWindows(c *coder, s *session) {
	table(c, &s.windows, c.int, func(v **window) {
		if c.reading {
			*v = &window{}
		}
		w := *v
		c.int(&w.index)
		c.int(&w.first)
		c.int(&w.last)
		w.family.kind, w.family.num, w.family.window = gpuevent.KindWindow, uint64(w.index), w
		c.family(&w.family)
	})
	if !c.reading {
		return
	}
	for i, w := range s.windows {
		if w.index != i {
			c.fail()
		}
	}
}

func codeRows(c *coder, s *session) {
	var rows []kernelRow
	if !c.reading {
		for i := range s.rows.rows {
			if !s.rows.rows[i].joined {
				rows = append(rows, s.rows.rows[i])
			}
		}
	}
	list(c, &rows, 8, func(r *kernelRow) {
		for _, v := range [...]*int64{&r.start, &r.end, &r.kernel, &r.stream, &r.corr, &r.batch, &r.index} {
			c.int(v)
		}
		for _, v := range [...]*gpuevent.Int{&r.dynShared, &r.regs, &r.extKind, &r.extID} {
			c.optInt(v)
		}
		c.bool(&r.details)
		if c.reading && c.OK() {
			s.rows.push(*r)
		}
	})
	var details []kernelDetail
	if !c.reading {
		for _, corr := range s.details.order {
			if k, ok := s.details.m[corr]; ok {
				details = append(details, k)
			}
		}
	}
	list(c, &details, 8, func(k *kernelDetail) {
		c.int(&k.corr)
		for i := range k.grid {
			c.int(&k.grid[i])
			c.int(&k.block[i])
		}
		c.optInt(&k.static)
		c.optInt(&k.executed)
		c.optInt(&k.local)
		c.optFloat(&k.occupancy)
		c.str(&k.limiter)
		c.str(&k.scope)
		c.str(&k.stack)
		c.int(&k.seen)
		if c.reading && c.OK() {
			s.details.put(*k)
		}
	})
}

func codeSpan(c *coder, sp *gpuevent.Span) {
	c.ref(&sp.Ref)
	c.int(&sp.StartNs)
	c.int(&sp.EndNs)
	for _, v := range [...]*gpuevent.Int{
		&sp.LaunchStartNs, &sp.LaunchEndNs, &sp.Device, &sp.Stream, &sp.Context, &sp.Correlation,
		&sp.ExternalKind, &sp.ExternalID,
	} {
		c.optInt(v)
	}
	c.str(&sp.Stack)
	c.str(&sp.ScopePath)
	c.bool(&sp.Estimated)
}

// The values that say which event an item holds.
const (
	codeKernel = iota
	codeCopy
	codeSet
	codeSync
	codeMemory
	codeGraph
	codeNVTX
)

func codeItem(c *coder, d *Decoder, it *item) {
	kind := uint64(codeKernel)
	switch {
	case it.copy != nil:
		kind = codeCopy
	case it.set != nil:
		kind = codeSet
	case it.sync != nil:
		kind = codeSync
	case it.memory != nil:
		kind = codeMemory
	case it.graph != nil:
		kind = codeGraph
	case it.nvtx != nil:
		kind = codeNVTX
	}
	c.uint(&kind)
	l, where := uint64(it.lane), uint64(it.where)
	c.uint(&l)
	c.int(&it.at)
	c.bool(&it.exact)
	c.uint(&where)
	c.str(&it.path)
	c.int(&it.arrived)
	if l >= uint64(numLanes) || where > uint64(inPath) {
		c.fail()
		return
	}
	it.lane, it.where = lane(l), placeKind(where)
	switch kind {
	case codeKernel:
		if c.reading {
			it.kernel = &gpuevent.Kernel{}
		}
		codeKernelEvent(c, d, it.kernel)
	case codeCopy:
		if c.reading {
			it.copy = &gpuevent.Copy{}
		}
		e := it.copy
		codeSpan(c, &e.Span)
		c.str(&e.Kind)
		c.optInt(&e.Bytes)
		c.str(&e.SourceKind)
		c.str(&e.DestinationKind)
		c.optInt(&e.Async)
	case codeSet:
		if c.reading {
			it.set = &gpuevent.Set{}
		}
		codeSpan(c, &it.set.Span)
		c.optInt(&it.set.Bytes)
	case codeSync:
		if c.reading {
			it.sync = &gpuevent.Sync{}
		}
		codeSpan(c, &it.sync.Span)
		k := uint64(it.sync.Kind)
		c.uint(&k)
		it.sync.Kind = gpuevent.SyncKind(k)
		c.optInt(&it.sync.Event)
	case codeMemory:
		if c.reading {
			it.memory = &gpuevent.Memory{}
		}
		e := it.memory
		codeSpan(c, &e.Span)
		c.bool(&e.Free)
		c.str(&e.Kind)
		c.optInt(&e.Bytes)
		c.optInt(&e.Address)
	case codeGraph:
		if c.reading {
			it.graph = &gpuevent.Graph{}
		}
		codeSpan(c, &it.graph.Span)
		c.optInt(&it.graph.GraphID)
		c.str(&it.graph.ExecKey)
	case codeNVTX:
		if c.reading {
			it.nvtx = &gpuevent.Scope{Source: gpuevent.ScopeNVTX}
		}
		e := it.nvtx
		c.ref(&e.Ref)
		c.int(&e.StartNs)
		c.int(&e.EndNs)
		c.str(&e.Name)
		c.str(&e.Domain)
		c.optInt(&e.Instance)
	default:
		c.fail()
	}
}

func codeKernelEvent(c *coder, d *Decoder, k *gpuevent.Kernel) {
	codeSpan(c, &k.Span)
	raw := ""
	if !c.reading {
		if raw = k.Name.Symbol; raw == "" {
			raw = k.Name.Full
		}
	}
	c.str(&raw)
	if c.reading {
		if k.Name = unnamed; raw != "" {
			k.Name = d.name([]byte(raw))
		}
	}
	for _, dim := range [...]*[3]int64{&k.Grid, &k.Block, &k.Cluster} {
		for i := range dim {
			c.int(&dim[i])
		}
	}
	for _, v := range [...]*gpuevent.Int{
		&k.RegistersPerThread, &k.SharedStatic, &k.SharedDynamic, &k.SharedExecuted, &k.LocalPerThread,
		&k.GraphID, &k.GraphNode,
	} {
		c.optInt(v)
	}
	c.optFloat(&k.ReportedOccupancy)
	c.str(&k.ReportedLimiter)
}
