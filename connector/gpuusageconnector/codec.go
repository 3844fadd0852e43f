// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"encoding/binary"
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"
)

func appendUint[T ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64](b []byte, v T) []byte {
	return binary.AppendUvarint(b, uint64(v))
}

func appendInt(b []byte, v int64) []byte { return binary.AppendVarint(b, v) }

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendFloat(b []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
}

// decoder reads what the functions above wrote. After a mistake everything is zero and bad is set.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() { d.b, d.bad = nil, true }

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// below reads a number that must be less than limit.
func (d *decoder) below(limit int) uint32 {
	v := d.uint()
	if v >= uint64(limit) {
		d.fail()
		return 0
	}
	return uint32(v)
}

// count reads the number of elements that follow, each of at least one byte: so a damaged one cannot
// ask for more memory than the input has.
func (d *decoder) count() int {
	v := d.uint()
	if v > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(v)
}

func (d *decoder) string() string { return string(d.bytes(d.count())) }

func (d *decoder) bytes(n int) []byte {
	if n > len(d.b) {
		d.fail()
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint64() uint64 {
	v := d.bytes(8)
	if v == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(v)
}

func (d *decoder) float() float64 {
	v := math.Float64frombits(d.uint64())
	if math.IsNaN(v) || math.IsInf(v, 0) {
		d.fail()
		return 0
	}
	return v
}

// nested hands the rest to a part that decodes itself.
func (d *decoder) nested(load func([]byte) ([]byte, error)) {
	if d.bad {
		return
	}
	rest, err := load(d.b)
	if err != nil {
		d.fail()
		return
	}
	d.b = rest
}

// append appends the batch without its time of arrival. Times are differences to the span before,
// traces and parents are numbered as far as they repeat: a span takes about 25 bytes.
func (b *batch) append(to []byte) []byte {
	to = appendUint(to, len(b.strings)-1)
	for _, s := range b.strings[1:] {
		to = appendString(to, s)
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
			to = appendInt(to, o.start)
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
		to = appendInt(to, w.start-last.start)
		to = appendInt(to, w.end-w.start)
		to = appendInt(to, w.queue)
		switch w.op {
		case opKernel:
			to = appendUint(to, w.what)
		case opMemcpy:
			to = appendUint(to, w.what)
			to = appendInt(to, w.bytes)
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
	d := decoder{b: from}
	for n := d.count(); n > 0; n-- {
		b.strings = append(b.strings, d.string())
	}
	strings := len(b.strings)
	for n := d.count(); n > 0; n-- {
		b.services = append(b.services, batchService{key: d.below(strings)})
	}
	for n := d.count(); n > 0; n-- {
		b.devices = append(b.devices, batchDevice{
			id: d.below(strings), name: d.below(strings), host: d.below(strings), labels: d.below(strings), anonymous: d.uint(),
		})
	}
	for n := d.count(); n > 0; n-- {
		b.kernels = append(b.kernels, batchKernel{service: d.below(len(b.services)), name: d.below(strings)})
	}
	for n := d.count(); n > 0; n-- {
		o := otherSpan{key: d.uint64(), name: d.below(strings), rank: requestRank(d.below(int(rankServer) + 1))}
		if o.rank != rankNone {
			o.trace, o.start = d.uint64(), d.int()
		}
		b.parents = append(b.parents, o)
	}
	var last workSpan
	for n := d.count(); n > 0; n-- {
		flags := byte(d.below(1 << 7))
		w := workSpan{op: operation(flags & spanOperation), node: flags&spanNode != 0, queue: -1, bytes: -1}
		w.trace, w.parent = last.trace, last.parent
		w.service, w.device, w.process, w.stream, w.scope = last.service, last.device, last.process, last.stream, last.scope
		if flags&spanSameTrace == 0 {
			copy(w.trace[:], d.bytes(len(w.trace)))
		}
		copy(w.id[:], d.bytes(len(w.id)))
		if flags&spanSameParent == 0 {
			w.parent = d.uint64()
		}
		if flags&spanSamePlace == 0 {
			w.service, w.device = d.below(len(b.services)), d.below(len(b.devices))
			w.process = uint16(d.below(math.MaxUint16 + 1))
			w.stream = d.below(math.MaxUint32 + 1)
			w.scope = d.below(strings)
		} else if len(b.spans) == 0 {
			d.fail()
		}
		w.start = last.start + d.int()
		duration := d.int()
		w.end = w.start + duration
		w.queue = d.int()
		switch w.op {
		case opKernel:
			if w.what = d.below(len(b.kernels)); !d.bad && b.kernels[w.what].service != w.service {
				d.fail()
			}
		case opMemcpy:
			w.what, w.bytes = d.below(strings), d.int()
		}
		if d.bad || w.op >= numOperations || w.start <= 0 || duration < 0 || duration > maxSpan || w.end < 0 ||
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
	if d.bad || len(d.b) != 0 {
		return errDamaged
	}
	return nil
}
