// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/varint"
)

// codec writes values, or reads them if in is not nil. So one function describes a format for both.
// Equal values give equal bytes. A string is written once. A codec belongs to one goroutine.
type codec struct {
	out     []byte
	in      *varint.Reader
	known   map[string]uint64
	strings []string
	hashes  []uint64 // of the first strings
}

func reading(b []byte) *codec { return &codec{in: &varint.Reader{Rest: b}} }

func (c *codec) reads() bool { return c.in != nil }

func (c *codec) ints(all ...*int64) {
	for _, p := range all {
		if c.reads() {
			*p = c.in.Int()
		} else {
			c.out = binary.AppendVarint(c.out, *p)
		}
	}
}

func (c *codec) uint(p *uint64) {
	if c.reads() {
		*p = c.in.Uint()
	} else {
		c.out = binary.AppendUvarint(c.out, *p)
	}
}

func (c *codec) bools(all ...*bool) {
	for _, p := range all {
		v := uint64(0)
		if *p {
			v = 1
		}
		c.uint(&v)
		*p = v == 1
	}
}

func (c *codec) text(p *string) {
	if c.reads() {
		if i := c.index(); i >= 0 {
			*p = c.strings[i]
		}
		return
	}
	if i, ok := c.known[*p]; ok {
		c.out = binary.AppendUvarint(c.out, i)
		return
	}
	if c.known == nil {
		c.known = map[string]uint64{}
	}
	c.known[*p] = uint64(len(c.known) + 1)
	c.out = binary.AppendUvarint(c.out, 0)
	c.out = varint.AppendBytes(c.out, *p)
}

// index reads a string and returns its index in strings, or -1.
func (c *codec) index() int {
	switch i := c.in.Uint(); {
	case i == 0:
		c.strings = append(c.strings, string(c.in.Sized()))
		return len(c.strings) - 1
	case i <= uint64(len(c.strings)):
		return int(i) - 1
	}
	c.in.Fail("a string is unknown")
	return -1
}

// hashed reads a string and returns its hash, which it computes once.
func (c *codec) hashed(p *string) uint64 {
	i := c.index()
	if i < 0 {
		return 0
	}
	for len(c.hashes) <= i {
		c.hashes = append(c.hashes, fnvOf(c.strings[len(c.hashes)]))
	}
	*p = c.strings[i]
	return c.hashes[i]
}

func (c *codec) sized(p *[]byte) {
	if c.reads() {
		*p = c.in.Sized()
	} else {
		c.out = varint.AppendBytes(c.out, *p)
	}
}

// elements writes or reads the elements of a list. An empty list is read as nil.
func elements[T any](c *codec, p *[]T, each func(*T)) {
	if !c.reads() {
		c.out = binary.AppendUvarint(c.out, uint64(len(*p)))
	} else if n := c.in.Count(1); n > 0 {
		*p = make([]T, n)
	} else {
		*p = nil
	}
	for i := range *p {
		each(&(*p)[i])
	}
}

// entries writes or reads a map in the order of its keys. An empty map is read as nil.
func entries[K cmp.Ordered, V any](c *codec, p *map[K]V, each func(*K, *V)) {
	var keys []K
	if !c.reads() {
		keys = slices.Sorted(maps.Keys(*p))
	}
	values := *p
	if c.reads() {
		*p = nil
	}
	elements(c, &keys, func(k *K) {
		v := values[*k]
		each(k, &v)
		if c.reads() {
			if *p == nil {
				*p = map[K]V{}
			}
			(*p)[*k] = v
		}
	})
}

func (c *codec) ref(r *Ref) {
	span := uint64(r.Span)
	c.uint(&span)
	r.Span = store.SpanID(span)
	c.ints(&r.StartNs)
	c.text(&r.Name)
}

func (c *codec) optional(p **Ref) {
	has := *p != nil
	c.bools(&has)
	if has {
		if *p == nil {
			*p = &Ref{}
		}
		c.ref(*p)
	}
}

func (c *codec) parts(p *Parts) {
	c.ints(&p.WallNs, &p.ComputeNs, &p.CommunicationNs, &p.CopyNs, &p.IdleNs)
	c.sums(&p.Idle)
}

func (c *codec) sums(s *CauseSums) {
	for i := range s {
		c.ints(&s[i])
	}
}

func (c *codec) mark(m *mark) {
	c.bools(&m.set)
	if m.set {
		c.ints(&m.ns, &m.pageable)
		c.parts(&m.sums)
	}
}

func (c *codec) maybe(v *store.Int) {
	c.bools(&v.OK)
	if v.OK {
		c.ints(&v.V)
	}
}

func (c *codec) step(s *Step) {
	c.ints(&s.Number, &s.StartNs, &s.Operations, &s.KernelNs, &s.QueueNs)
	c.text(&s.Name)
	c.ref(&s.First)
	c.parts(&s.Parts)
	c.text((*string)(&s.Bound))
	c.uint(&s.shapes)
	c.nameTimes(&s.kernels)
}

func (c *codec) nameTimes(t *nameTimes) {
	last := ""
	elements(c, (*[]nameTime)(t), func(x *nameTime) {
		c.text(&x.name)
		c.ints(&x.ns)
		if c.reads() && x.name <= last && last != "" {
			c.in.Fail("names are not in order")
		}
		last = x.name
	})
}

func (c *codec) gap(g *Gap) {
	c.cause(&g.Cause)
	c.ints(&g.StartNs, &g.EndNs, &g.PartNs)
	c.sums(&g.Idle)
	c.optional(&g.Before)
	c.optional(&g.After)
	c.text(&g.Call)
	c.text(&g.Scope)
	c.text(&g.Stack)
	c.text(&g.DelayStack)
}

// carry writes or reads a carry whose marks are relative. The configuration of its steps stays.
func (c *codec) carry(d *carry) {
	c.bools(&d.startup, &d.started, &d.page, &d.any)
	c.ints(&d.now, &d.lastEnd, &d.creditEnd, &d.hostEnd)
	for i := range d.ends {
		c.ints(&d.ends[i])
		c.ref(&d.endRefs[i])
	}
	// Of the last operation a gap needs these.
	class := uint64(d.last.class)
	c.uint(&class)
	d.last.class = min(class8(class), numClasses-1)
	lane := uint64(d.last.lane)
	c.uint(&lane)
	c.uint(&d.last.name)
	d.last.lane = uint32(lane)
	c.ints(&d.last.start, &d.launchedAt)
	c.bools(&d.last.launched, &d.last.fromHost, &d.last.kernel)
	c.ref(&d.last.ref)
	elements(c, &d.calls, func(x *call) {
		c.ints(&x.start, &x.end, &x.counted)
		c.cause(&x.cause)
		c.text(&x.name)
	})
	for i := range d.credits {
		x := &d.credits[i]
		c.ints(&x.ns, &x.latest, &x.end)
		c.text(&x.name)
	}
	s := &d.steps
	at := int64(math.MinInt64) // the start of the last scope that began a step
	if s.next > 0 {
		at = s.bounds[s.next-1].StartNs
	}
	c.ints(&at)
	if c.reads() {
		s.next, _ = slices.BinarySearchFunc(s.bounds, at, func(x Scope, at int64) int {
			if x.StartNs <= at {
				return -1
			}
			return 1
		})
	}
	open := s.open != nil
	c.bools(&s.begun, &open)
	if open {
		if s.open == nil || c.reads() {
			s.open = &Step{}
		}
		c.step(s.open)
	} else {
		s.open = nil
	}
	c.mark(&s.base)
}

func class8(v uint64) class { return class(min(v, math.MaxUint8)) }

func (c *codec) cause(p *Cause) {
	v := uint64(*p)
	c.uint(&v)
	if *p = Cause(v); v >= uint64(numCauses) {
		*p = Unknown
	}
}

func (c *codec) names(s *sums) {
	entries(c, &s.all, func(name *string, x **NameSum) {
		if *x == nil {
			*x = &NameSum{}
		}
		c.text(name)
		(*x).Name = *name
		c.ints(&(*x).Ns, &(*x).Count)
	})
}

func (c *codec) tally(t *tally) {
	c.parts(&t.sums)
	c.ints(&t.pageable, &t.kernels, &t.kernelNs)
	for i := range t.active {
		c.mark(&t.active[i])
	}
	for i := range numClasses {
		c.ints(&t.totals[i], &t.longest[i].ns)
		c.ref(&t.longest[i].ref)
	}
	for i := range numCauses {
		elements(c, &t.early[i], c.gap)
		elements(c, &t.gaps[i], c.gap)
	}
	c.histogram(&t.queue)
	c.histogram(&t.callTimes)
	c.histogram(&t.intervals)
	c.pairs(&t.pairs)
	c.names(&t.hostNames)
	c.names(&t.hostLines)
	c.names(&t.syncNames)
	if !c.reads() {
		t.small = maps.Clone(t.small)
		maps.DeleteFunc(t.small, func(_ uint32, x *SmallKernel) bool { return x == nil })
	}
	entries(c, &t.small, func(shape *uint32, p **SmallKernel) {
		if *p == nil {
			*p = &SmallKernel{}
		}
		x, id := *p, uint64(*shape)
		c.uint(&id)
		*shape = uint32(id)
		c.text(&x.Name)
		c.text(&x.Limiter)
		elements(c, &x.Grid, func(n *int64) { c.ints(n) })
		elements(c, &x.Block, func(n *int64) { c.ints(n) })
		for _, v := range []*float64{&x.Fill, &x.Waves, &x.Occupancy} {
			bits := math.Float64bits(*v)
			c.uint(&bits)
			*v = math.Float64frombits(bits)
		}
		c.ints(&x.Count, &x.Ns, &x.longestNs)
		c.ref(&x.Longest)
	})
	l := &t.list
	c.bools(&l.first, &l.more)
	for i := range l.active {
		c.mark(&l.active[i])
	}
	elements(c, &l.list, c.step)
	c.nameTimes(&l.totals)
	elements(c, &l.longest, func(i *int) {
		v := int64(*i)
		c.ints(&v)
		if *i = int(v); c.reads() && (v < 0 || v >= int64(len(l.list))) {
			c.in.Fail("a step is unknown")
			*i = 0
		}
	})
}

func (c *codec) allGroups(all *map[string]*groups) {
	entries(c, all, func(id *string, x **groups) {
		c.text(id)
		if *x == nil {
			*x = &groups{}
		}
		for kind := range numKinds {
			var list []*Group
			if !c.reads() {
				for _, g := range (*x).sorted(kind) {
					list = append(list, g)
				}
			}
			elements(c, &list, func(p **Group) {
				if c.reads() {
					*p = &Group{}
				}
				g := *p
				c.text(&g.Name)
				c.text(&g.FullName)
				elements(c, &g.Grid, func(n *int64) { c.ints(n) })
				elements(c, &g.Block, func(n *int64) { c.ints(n) })
				elements(c, &g.Path, c.text)
				if c.ints(&g.Count, &g.SumNs); c.reads() && (g.Count < 0 || g.Count > math.MaxInt32) {
					c.in.Fail("a group has too many operations")
					g.Count = 0
				}
				c.optional(&g.Longest)
				c.ints(&g.longestNs)
				c.series(&g.Calls)
				c.series(&g.Steps)
				if c.reads() {
					if (*x).all[kind] == nil {
						(*x).all[kind] = map[string]*Group{}
					}
					(*x).all[kind][g.key(kind)] = g
				}
			})
		}
		c.scopeTimes(&(*x).times)
	})
}

func (c *codec) series(s *Series) {
	size := int64(s.Size)
	c.ints(&size)
	if s.Size = int(size); size < 0 || size > math.MaxInt32 {
		c.in.Fail("the size of a cell is out of range")
		s.Size = 0
	}
	elements(c, &s.Cells, func(x *Cell) { c.ints(&x.Count, &x.Ns) })
	if c.reads() && (len(s.Cells) > maxCells || s.Size == 0 && len(s.Cells) > 0) {
		c.in.Fail("there are too many cells")
		*s = Series{}
	}
}
