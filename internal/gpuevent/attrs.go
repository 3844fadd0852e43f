// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"math"
	"math/bits"

	"go.opentelemetry.io/collector/pdata/pcommon"
)

// attrs collects the attributes of one span, record or data point and writes them at once.
//
// pcommon.Map.PutStr and similar functions search the key among those that are there before they
// append, which at sixteen attributes is a hundred and twenty comparisons a span. Copying a map
// compares nothing. So attrs keeps, for each set of keys that occurs, a map with these keys and empty values,
// copies it, and sets the values by their position. For sixteen attributes, two of them arrays,
// that is 1.1 µs against 1.6 µs with the garbage collector off (BenchmarkWaysOfWritingAttributes).
// Nearly all that is left is 29 allocations: pdata holds each value in one of its own, and its
// interface leaves no way around.
//
// Attributes are named by slot: the index of their key in keys, at most 64. They come out in the
// order of their slots, whatever the order of the calls. A value that is unknown is not set.
type attrs struct {
	keys []string
	// present has a bit for each slot that is set, rest for those that write has yet to fill in.
	present, rest uint64
	values        [64]value
	dims          [maxDims][3]int64
	nDims         int
	shapes        map[uint64]pcommon.Map
	fill          func(string, pcommon.Value) bool
}

const (
	// maxDims is the most dimension triples of one event: grid, block and cluster.
	maxDims = 3
	// maxShapes bounds the sets of keys that are remembered. Real sources make a few dozen.
	maxShapes = 1024
)

type valueKind uint8

const (
	valueStr valueKind = iota
	valueInt
	valueDouble
	valueBool
	valueDims
)

// value is one attribute's value: a string, or a number's bits, or an index into dims.
type value struct {
	str  string
	num  uint64
	kind valueKind
}

func newAttrs(keys []string) *attrs {
	a := &attrs{keys: keys, shapes: map[uint64]pcommon.Map{}}
	a.fill = a.fillNext // bound once: a method value allocates
	return a
}

// str sets a string; "" is unknown.
func (a *attrs) str(slot int, v string) {
	if v != "" {
		a.set(slot, value{kind: valueStr, str: v})
	}
}

// some sets an integer if it is known.
func (a *attrs) some(slot int, v Int) {
	if v.OK {
		a.int(slot, v.V)
	}
}

func (a *attrs) int(slot int, v int64) {
	a.set(slot, value{kind: valueInt, num: uint64(v)})
}

// double sets a number; what is no number is unknown.
func (a *attrs) double(slot int, v float64) {
	if finite(v) {
		a.set(slot, value{kind: valueDouble, num: math.Float64bits(v)})
	}
}

// bool sets true or false.
func (a *attrs) bool(slot int, v bool) {
	x := value{kind: valueBool}
	if v {
		x.num = 1
	}
	a.set(slot, x)
}

// triple sets dimensions; those that begin with zero are unknown.
func (a *attrs) triple(slot int, v *[3]int64) {
	if v[0] == 0 {
		return
	}
	a.dims[a.nDims] = *v
	a.set(slot, value{kind: valueDims, num: uint64(a.nDims)})
	a.nDims++
}

func (a *attrs) set(slot int, v value) {
	a.values[slot] = v
	a.present |= 1 << slot
}

// write makes dest hold what was set, and forgets it.
func (a *attrs) write(dest pcommon.Map) {
	shape, ok := a.shapes[a.present]
	if !ok {
		shape = a.newShape()
	}
	shape.CopyTo(dest)
	a.rest = a.present
	dest.Range(a.fill)
	a.present, a.nDims = 0, 0
}

func (a *attrs) newShape() pcommon.Map {
	if len(a.shapes) >= maxShapes {
		clear(a.shapes)
	}
	shape := pcommon.NewMap()
	shape.EnsureCapacity(bits.OnesCount64(a.present))
	for rest := a.present; rest != 0; rest &= rest - 1 {
		shape.PutEmpty(a.keys[bits.TrailingZeros64(rest)])
	}
	a.shapes[a.present] = shape
	return shape
}

// fillNext sets the value of the lowest slot in rest; pcommon.Map.Range calls it in their order.
func (a *attrs) fillNext(_ string, dest pcommon.Value) bool {
	v := &a.values[bits.TrailingZeros64(a.rest)]
	a.rest &= a.rest - 1
	switch v.kind {
	case valueStr:
		dest.SetStr(v.str)
	case valueInt:
		dest.SetInt(int64(v.num))
	case valueDouble:
		dest.SetDouble(math.Float64frombits(v.num))
	case valueBool:
		dest.SetBool(v.num != 0)
	case valueDims:
		list := dest.SetEmptySlice()
		list.EnsureCapacity(3)
		for _, d := range &a.dims[v.num] {
			list.AppendEmpty().SetInt(d)
		}
	}
	return true
}

// forget drops the strings of the last event.
func (a *attrs) forget() { clear(a.values[:]) }

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// put adds attributes that a source names itself. Unknown values are left out.
func put(dest pcommon.Map, attributes []Attr) {
	for i := range attributes {
		switch a := &attributes[i]; a.Kind {
		case AttrString:
			if a.Str != "" {
				dest.PutStr(a.Key, a.Str)
			}
		case AttrInt:
			dest.PutInt(a.Key, a.Int)
		case AttrFloat:
			if finite(a.Float) {
				dest.PutDouble(a.Key, a.Float)
			}
		case AttrBool:
			dest.PutBool(a.Key, a.Bool)
		case AttrStrings:
			if len(a.Strings) > 0 {
				putStrings(dest, a.Key, a.Strings)
			}
		}
	}
}

func putStrings(dest pcommon.Map, key string, values []string) {
	list := dest.PutEmptySlice(key)
	list.EnsureCapacity(len(values))
	for _, v := range values {
		list.AppendEmpty().SetStr(v)
	}
}
