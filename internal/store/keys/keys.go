// SPDX-License-Identifier: Apache-2.0

// Package keys computes the keys of dictionary entries: 64-bit xxhashes of their content. Keys are
// stored, so what they hash does not change. They hash the fields in the order of the type, strings
// and lists after their length, and numbers in 8 bytes in little-endian order.
//
// The functions append to scratch what they hash, and return it for the next call.
package keys

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/gpuflight/gpuflight/internal/store"
)

// Hash returns the key of an entry that is not empty. 0 is the key of the empty entry.
func Hash(content []byte) uint64 { return max(xxhash.Sum64(content), 1) }

// Resource returns the hash of the part of an origin that the scopes of a resource share.
func Resource(scratch []byte, attrs store.Attrs, schemaURL string) (uint64, []byte) {
	scratch = attrs.Append(AppendString(scratch[:0], schemaURL))
	return xxhash.Sum64(scratch), scratch
}

// Origin returns the key of an origin whose Resource has this hash.
func Origin(scratch []byte, resource uint64, o *store.Origin) (uint64, []byte) {
	b := AppendUint64(scratch[:0], resource)
	b = AppendString(AppendString(AppendString(b, o.ScopeName), o.ScopeVersion), o.ScopeSchemaURL)
	scratch = o.ScopeAttrs.Append(b)
	return Hash(scratch), scratch
}

// Extra returns the key of extra attributes.
func Extra(scratch []byte, a store.Attrs) (uint64, []byte) {
	scratch = a.Append(scratch[:0])
	return Hash(scratch), scratch
}

// Lane returns the key of a lane.
func Lane(scratch []byte, l *store.Lane) (uint64, []byte) {
	b := AppendString(scratch[:0], l.Device)
	scratch = append(appendInt(appendInt(appendInt(b, l.DeviceIndex), l.Context), l.Stream), byte(l.Class))
	return Hash(scratch), scratch
}

// Shape returns the key of a shape.
func Shape(scratch []byte, s *store.Shape) (uint64, []byte) {
	b := append(scratch[:0], byte(s.Operation))
	b = AppendString(AppendString(AppendString(b, s.Name), s.FullName), s.Symbol)
	for _, dims := range [...][]int64{s.Grid, s.Block, s.Cluster} {
		b = AppendUint64(b, uint64(len(dims)))
		for _, n := range dims {
			b = AppendUint64(b, uint64(n))
		}
	}
	for _, n := range [...]store.Int{s.Registers, s.SharedStatic, s.SharedDynamic, s.SharedExecuted, s.LocalMemory} {
		b = appendInt(b, n)
	}
	scratch = s.Attrs.Append(b)
	return Hash(scratch), scratch
}

// Place returns the key of a place.
func Place(scratch []byte, p *store.Place) (uint64, []byte) {
	b := AppendUint64(append(scratch[:0], p.Trace[:]...), uint64(p.Parent))
	scratch = append(AppendString(AppendString(b, p.ScopeName), p.ScopePath), bit(p.Inferred))
	return Hash(scratch), scratch
}

// Stack returns the key of a stack.
func Stack(text string) uint64 { return max(xxhash.Sum64String(text), 1) }

// Metric returns the hash of a series without its attributes. origin is the key of its origin.
func Metric(scratch []byte, origin uint64, s *store.Series) (uint64, []byte) {
	b := AppendUint64(scratch[:0], origin)
	b = AppendString(AppendString(AppendString(b, s.Metric), s.Unit), s.Description)
	scratch = append(b, byte(s.Type), s.Temporality, bit(s.Monotonic))
	return Hash(scratch), scratch
}

// Series returns the key of a series of a metric with this hash.
func Series(scratch []byte, metric uint64, a store.Attrs) (uint64, []byte) {
	scratch = a.Append(AppendUint64(scratch[:0], metric))
	return Hash(scratch), scratch
}

// Set computes the keys of all entries of a batch, except the entries 0. A series must refer to an
// origin of the batch.
func Set(b *store.Batch) {
	var scratch []byte
	for i := 1; i < len(b.Origins); i++ {
		e := &b.Origins[i]
		var resource uint64
		resource, scratch = Resource(scratch, e.Resource, e.ResourceSchemaURL)
		e.Key, scratch = Origin(scratch, resource, e)
	}
	for i := 1; i < len(b.Extras); i++ {
		b.Extras[i].Key, scratch = Extra(scratch, b.Extras[i].Attrs)
	}
	for i := 1; i < len(b.Lanes); i++ {
		b.Lanes[i].Key, scratch = Lane(scratch, &b.Lanes[i])
	}
	for i := 1; i < len(b.Shapes); i++ {
		b.Shapes[i].Key, scratch = Shape(scratch, &b.Shapes[i])
	}
	for i := 1; i < len(b.Places); i++ {
		b.Places[i].Key, scratch = Place(scratch, &b.Places[i])
	}
	for i := 1; i < len(b.Stacks); i++ {
		b.Stacks[i].Key = Stack(b.Stacks[i].Text)
	}
	for i := 1; i < len(b.Series); i++ {
		e := &b.Series[i]
		var origin, metric uint64
		if e.Origin != 0 {
			origin = b.Origins[e.Origin].Key
		}
		metric, scratch = Metric(scratch, origin, e)
		e.Key, scratch = Series(scratch, metric, e.Attrs)
	}
}

// AppendString appends the length and the bytes of a string.
func AppendString(dst []byte, s string) []byte {
	return append(AppendUint64(dst, uint64(len(s))), s...)
}

// AppendUint64 appends a number in 8 bytes.
func AppendUint64(dst []byte, x uint64) []byte { return binary.LittleEndian.AppendUint64(dst, x) }

func appendInt(dst []byte, v store.Int) []byte {
	return AppendUint64(append(dst, bit(v.OK)), uint64(v.V))
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
