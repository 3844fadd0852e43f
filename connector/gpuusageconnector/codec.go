// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"encoding/binary"
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/internal/varint"
)

func appendUint[T ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64](b []byte, v T) []byte {
	return binary.AppendUvarint(b, uint64(v))
}

func appendFloat(b []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
}

// decoder reads stored state.
type decoder struct{ varint.Reader }

func newDecoder(b []byte) *decoder { return &decoder{varint.Reader{Rest: b}} }

func (d *decoder) fail() { d.Fail("a value is out of range") }

// below reads a number that must be less than limit.
func (d *decoder) below(limit int) uint32 {
	v := d.Uint()
	if v >= uint64(limit) {
		d.fail()
		return 0
	}
	return uint32(v)
}

func (d *decoder) string() string { return string(d.Sized()) }

func (d *decoder) float() float64 {
	v := math.Float64frombits(d.Fixed())
	if math.IsNaN(v) || math.IsInf(v, 0) {
		d.fail()
		return 0
	}
	return v
}

// nested passes the rest to load, which returns what follows its part.
func (d *decoder) nested(load func([]byte) ([]byte, error)) {
	if !d.OK() {
		return
	}
	rest, err := load(d.Rest)
	if err != nil {
		d.fail()
		return
	}
	d.Rest = rest
}

// append appends the batch without its time of arrival. Times are differences to the span before,
// traces and parents are numbered as far as they repeat: a span takes about 25 bytes.
func (b *batch) append(to []byte) []byte {
	to = appendUint(to, len(b.strings)-1)
	for _, s := range b.strings[1:] {
		to = varint.AppendBytes(to, s)
	}
	to = appendUint(to, len(b.services))
	for _, v := range b.services {
		to = appendUint(to, v.key)
	}
	to = appendUint(to, len(b.devices))
	for i := range b.devices {
		d := &b.devices[i]
		to = appendUint(to, d.id)
		to = appendUint(to, d.name)
		to = appendUint(to, d.host)
		to = appendUint(to, d.labels)
		to = appendUint(to, d.anonymous)
	}
	to = appendUint(to, len(b.kernels))
	for _, k := range b.kernels {
		to = appendUint(to, k.service)
		to = appendUint(to, k.name)
	}
	to = appendUint(to, len(b.parents))
	for i := range b.parents {
		o := &b.parents[i]
		to = binary.LittleEndian.AppendUint64(to, o.key)
		to = appendUint(to, o.name)
		to = append(to, byte(o.rank))
		if o.rank != rankNone {
			to = binary.LittleEndian.AppendUint64(to, o.trace)
			to = binary.AppendVarint(to, o.start)
		}
	}
	to = appendUint(to, len(b.spans))
	var last workSpan
	for i := range b.spans {
		w := &b.spans[i]
		flags := byte(w.op)
		if w.node {
			flags |= spanNode
		}
		if w.trace == last.trace && i > 0 {
			flags |= spanSameTrace
		}
		if w.parent == last.parent && i > 0 {
			flags |= spanSameParent
		}
		if w.service == last.service && w.device == last.device && w.process == last.process && w.stream == last.stream && w.scope == last.scope && i > 0 {
			flags |= spanSamePlace
		}
		to = append(to, flags)
		if flags&spanSameTrace == 0 {
			to = append(to, w.trace[:]...)
		}
		to = append(to, w.id[:]...)
		if flags&spanSameParent == 0 {
			to = binary.LittleEndian.AppendUint64(to, w.parent)
		}
		if flags&spanSamePlace == 0 {
			to = appendUint(to, w.service)
			to = appendUint(to, w.device)
			to = appendUint(to, w.process)
			to = appendUint(to, w.stream)
			to = appendUint(to, w.scope)
		}
		to = binary.AppendVarint(to, w.start-last.start)
		to = binary.AppendVarint(to, w.end-w.start)
		to = binary.AppendVarint(to, w.queue)
		switch w.op {
		case opKernel:
			to = appendUint(to, w.what)
		case opMemcpy:
			to = appendUint(to, w.what)
			to = binary.AppendVarint(to, w.bytes)
		}
		last = *w
	}
	return to
}

// Flags of a span, beside its operation in the lowest three bits.
const (
	spanOperation  = 7
	spanNode       = 1 << 3
	spanSameTrace  = 1 << 4
	spanSameParent = 1 << 5
	spanSamePlace  = 1 << 6
)

// load reads what append wrote. It checks all that apply relies on.
func (b *batch) load(from []byte) error {
	b.reset()
	d := newDecoder(from)
	for n := d.Count(1); n > 0; n-- {
		b.strings = append(b.strings, d.string())
	}
	strings := len(b.strings)
	for n := d.Count(1); n > 0; n-- {
		b.services = append(b.services, batchService{key: d.below(strings)})
	}
	for n := d.Count(1); n > 0; n-- {
		b.devices = append(b.devices, batchDevice{
			id: d.below(strings), name: d.below(strings), host: d.below(strings), labels: d.below(strings), anonymous: d.Uint(),
		})
	}
	for n := d.Count(1); n > 0; n-- {
		b.kernels = append(b.kernels, batchKernel{service: d.below(len(b.services)), name: d.below(strings)})
	}
	for n := d.Count(1); n > 0; n-- {
		o := otherSpan{key: d.Fixed(), name: d.below(strings), rank: requestRank(d.below(int(rankServer) + 1))}
		if o.rank != rankNone {
			o.trace, o.start = d.Fixed(), d.Int()
		}
		b.parents = append(b.parents, o)
	}
	var last workSpan
	for n := d.Count(1); n > 0; n-- {
		flags := byte(d.below(1 << 7))
		w := workSpan{op: operation(flags & spanOperation), node: flags&spanNode != 0, queue: -1, bytes: -1}
		w.trace, w.parent = last.trace, last.parent
		w.service, w.device, w.process, w.stream, w.scope = last.service, last.device, last.process, last.stream, last.scope
		if flags&spanSameTrace == 0 {
			copy(w.trace[:], d.Bytes(len(w.trace)))
		}
		copy(w.id[:], d.Bytes(len(w.id)))
		if flags&spanSameParent == 0 {
			w.parent = d.Fixed()
		}
		if flags&spanSamePlace == 0 {
			w.service, w.device = d.below(len(b.services)), d.below(len(b.devices))
			w.process = uint16(d.below(math.MaxUint16 + 1))
			w.stream = d.below(math.MaxUint32 + 1)
			w.scope = d.below(strings)
		} else if len(b.spans) == 0 {
			d.fail()
		}
		w.start = last.start + d.Int()
		duration := d.Int()
		w.end = w.start + duration
		w.queue = d.Int()
		switch w.op {
		case opKernel:
			if w.what = d.below(len(b.kernels)); d.OK() && b.kernels[w.what].service != w.service {
				d.fail()
			}
		case opMemcpy:
			w.what, w.bytes = d.below(strings), d.Int()
		}
		if !d.OK() || w.op >= numOperations || w.start <= 0 || duration < 0 || duration > maxSpan || w.end < 0 ||
			w.queue < -1 || w.queue > maxSpan || w.bytes < -1 {
			return errDamaged
		}
		if w.id != (pcommon.SpanID{}) {
			w.key = spanKey(w.trace, w.id)
		}
		w.traceKey = hashTrace(w.trace)
		b.spans = append(b.spans, w)
		last = w
	}
	if !d.OK() || len(d.Rest) != 0 {
		return errDamaged
	}
	return nil
}
