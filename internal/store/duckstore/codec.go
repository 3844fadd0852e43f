// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/varint"
)

var errRecord = errors.New("the record is damaged")

// codec encodes a batch or decodes it: each method does either, so that both have the same fields. Unlike
// encoding/gob, a record needs no types of an earlier one. Times are differences to the row before.
type codec struct {
	decode bool
	b      []byte // what was encoded
	varint.Reader
	last int64
}

func (c *codec) uvarint(v uint64) uint64 {
	if c.decode {
		return c.Uint()
	}
	c.b = binary.AppendUvarint(c.b, v)
	return v
}

// unsigned does an unsigned integer of any size.
func unsigned[T ~uint8 | ~uint32 | ~uint64](c *codec, v *T) { *v = T(c.uvarint(uint64(*v))) }

func (c *codec) int(v *int64) {
	*v = c.signed(*v)
}

func (c *codec) signed(v int64) int64 {
	if c.decode {
		return c.Int()
	}
	c.b = binary.AppendVarint(c.b, v)
	return v
}

// time does a time that is near that of the row before.
func (c *codec) time(v *int64) {
	*v = c.last + c.signed(*v-c.last)
	c.last = *v
}

func (c *codec) bool(v *bool) {
	n := uint64(0)
	if *v {
		n = 1
	}
	*v = c.uvarint(n) != 0
}

// maybe does an integer that may be unknown. Most known ones are near base.
func (c *codec) maybe(v *store.Int, base int64) {
	if c.bool(&v.OK); v.OK {
		v.V = base + c.signed(v.V-base)
	}
}

// fixed does 8 bytes that do not compress.
func (c *codec) fixed(v *uint64) {
	if c.decode {
		*v = c.Fixed()
	} else {
		c.b = binary.LittleEndian.AppendUint64(c.b, *v)
	}
}

func (c *codec) bytes16(v *[16]byte) {
	if c.decode {
		copy(v[:], c.Bytes(16))
	} else {
		c.b = append(c.b, v[:]...)
	}
}

func (c *codec) string(v *string) {
	if c.decode {
		*v = string(c.Sized())
	} else {
		c.b = varint.AppendBytes(c.b, *v)
	}
}

func (c *codec) bytes(v *[]byte) {
	if !c.decode {
		c.b = varint.AppendBytes(c.b, *v)
	} else if b := c.Sized(); len(b) > 0 {
		*v = append([]byte(nil), b...)
	}
}

func (c *codec) attrs(v *store.Attrs) {
	var b []byte
	if !c.decode && len(*v) > 0 {
		b = v.Append(nil)
	}
	if c.bytes(&b); c.decode && len(b) > 0 {
		var err error
		if *v, err = store.DecodeAttrs(b); err != nil {
			c.Fail("attributes or a value are damaged")
		}
	}
}

func (c *codec) value(v *store.Value) {
	var b []byte
	if !c.decode {
		b = v.Append(nil)
	}
	if c.bytes(&b); c.decode && c.OK() {
		var err error
		if *v, err = store.DecodeValue(b); err != nil {
			c.Fail("attributes or a value are damaged")
		}
	}
}

// list does the elements of a list. Each takes at least a byte.
func list[T any](c *codec, v *[]T, each func(*T)) {
	if c.decode {
		n := c.Count(1)
		if n == 0 {
			return
		}
		*v = make([]T, n)
	} else {
		c.uvarint(uint64(len(*v)))
	}
	c.last = 0
	for i := range *v {
		if each(&(*v)[i]); !c.OK() {
			return
		}
	}
}

func (c *codec) batch(b *store.Batch) {
	c.string(&b.Project)
	c.string(&b.Session)
	list(c, &b.Origins, func(o *store.Origin) {
		c.fixed(&o.Key)
		c.attrs(&o.Resource)
		c.string(&o.ResourceSchemaURL)
		c.string(&o.ScopeName)
		c.string(&o.ScopeVersion)
		c.attrs(&o.ScopeAttrs)
		c.string(&o.ScopeSchemaURL)
	})
	list(c, &b.Extras, func(e *store.Extra) {
		c.fixed(&e.Key)
		c.attrs(&e.Attrs)
	})
	list(c, &b.Lanes, func(l *store.Lane) {
		c.fixed(&l.Key)
		c.string(&l.Device)
		c.maybe(&l.DeviceIndex, 0)
		c.maybe(&l.Context, 0)
		c.maybe(&l.Stream, 0)
		unsigned(c, &l.Class)
	})
	list(c, &b.Shapes, c.shape)
	list(c, &b.Places, func(p *store.Place) {
		c.fixed(&p.Key)
		c.bytes16((*[16]byte)(&p.Trace))
		c.fixed((*uint64)(&p.Parent))
		c.string(&p.ScopeName)
		c.string(&p.ScopePath)
		c.bool(&p.Inferred)
	})
	list(c, &b.Stacks, func(s *store.Stack) {
		c.fixed(&s.Key)
		c.string(&s.Text)
	})
	list(c, &b.Series, func(s *store.Series) {
		c.fixed(&s.Key)
		c.string(&s.Metric)
		c.string(&s.Unit)
		c.string(&s.Description)
		unsigned(c, &s.Type)
		unsigned(c, &s.Temporality)
		c.bool(&s.Monotonic)
		c.attrs(&s.Attrs)
		unsigned(c, &s.Origin)
	})
	list(c, &b.Ops, c.op)
	list(c, &b.Spans, c.span)
	list(c, &b.Samples, c.sample)
	list(c, &b.Logs, c.log)
	list(c, &b.Points, func(p *store.Point) {
		unsigned(c, &p.Series)
		c.time(&p.TimeNs)
		c.int(&p.StartNs)
		unsigned(c, &p.Flags)
		c.maybe(&p.Int, 0)
		if c.bool(&p.HasDouble); p.HasDouble {
			bits := math.Float64bits(p.Double)
			c.fixed(&bits)
			p.Double = math.Float64frombits(bits)
		}
		c.bytes(&p.Data)
		c.bytes(&p.Exemplars)
	})
}

func (c *codec) shape(s *store.Shape) {
	c.fixed(&s.Key)
	unsigned(c, &s.Operation)
	c.string(&s.Name)
	c.string(&s.FullName)
	c.string(&s.Symbol)
	for _, l := range []*[]int64{&s.Grid, &s.Block, &s.Cluster} {
		list(c, l, c.int)
	}
	for _, v := range []*store.Int{&s.Registers, &s.SharedStatic, &s.SharedDynamic, &s.SharedExecuted, &s.LocalMemory} {
		c.maybe(v, 0)
	}
	c.attrs(&s.Attrs)
}

func (c *codec) op(o *store.Op) {
	c.time(&o.StartNs)
	o.EndNs = o.StartNs + c.signed(o.EndNs-o.StartNs)
	c.fixed((*uint64)(&o.Span))
	for _, v := range [...]*uint32{&o.Lane, &o.Shape, &o.Place, &o.Stack, &o.Origin, &o.Extra} {
		unsigned(c, v)
	}
	c.maybe(&o.LaunchStartNs, o.StartNs)
	c.maybe(&o.LaunchEndNs, o.StartNs)
	c.maybe(&o.QueueNs, 0)
	c.maybe(&o.Correlation, 0)
	c.maybe(&o.Bytes, 0)
	c.maybe(&o.Address, 0)
	c.bool(&o.Estimated)
}

func (c *codec) span(p *store.Span) {
	c.time(&p.StartNs)
	p.EndNs = p.StartNs + c.signed(p.EndNs-p.StartNs)
	c.bytes16((*[16]byte)(&p.Trace))
	c.fixed((*uint64)(&p.Span))
	c.fixed((*uint64)(&p.Parent))
	unsigned(c, &p.Kind)
	unsigned(c, &p.Status)
	c.string(&p.StatusMessage)
	c.string(&p.Name)
	c.string(&p.TraceState)
	unsigned(c, &p.Flags)
	c.string(&p.Operation)
	unsigned(c, &p.Origin)
	c.attrs(&p.Attrs)
	c.bytes(&p.Events)
	c.bytes(&p.Links)
	unsigned(c, &p.DroppedAttrs)
	unsigned(c, &p.DroppedEvents)
	unsigned(c, &p.DroppedLinks)
}

func (c *codec) sample(s *store.Sample) {
	c.bytes16((*[16]byte)(&s.UID))
	c.time(&s.TimeNs)
	unsigned(c, &s.Kind)
	c.string(&s.What)
	unsigned(c, &s.Value)
	c.string(&s.Kernel)
	c.string(&s.Function)
	c.string(&s.File)
	c.maybe(&s.Line, 0)
	c.maybe(&s.PC, 0)
	c.bytes16((*[16]byte)(&s.Trace))
	c.fixed((*uint64)(&s.Span))
	c.string(&s.Device)
	c.maybe(&s.DeviceIndex, 0)
	c.maybe(&s.Correlation, 0)
	unsigned(c, &s.Origin)
	unsigned(c, &s.Extra)
}

func (c *codec) log(l *store.Log) {
	c.bytes16((*[16]byte)(&l.UID))
	c.time(&l.TimeNs)
	c.int(&l.ObservedNs)
	unsigned(c, &l.Severity)
	c.string(&l.SeverityText)
	c.string(&l.Event)
	c.value(&l.Body)
	c.bytes16((*[16]byte)(&l.Trace))
	c.fixed((*uint64)(&l.Span))
	unsigned(c, &l.Flags)
	unsigned(c, &l.Origin)
	c.attrs(&l.Attrs)
	unsigned(c, &l.DroppedAttrs)
}

// encodeBatch appends the encoding of a batch.
func encodeBatch(dst []byte, b *store.Batch) []byte {
	c := codec{b: dst}
	x := *b // the codec writes the fields that it reads
	c.batch(&x)
	return c.b
}

func decodeBatch(b []byte) (*store.Batch, error) {
	c := codec{decode: true, Reader: varint.Reader{Rest: b}}
	out := &store.Batch{}
	c.batch(out)
	if !c.OK() || len(c.Rest) > 0 {
		return nil, errRecord
	}
	return out, nil
}
