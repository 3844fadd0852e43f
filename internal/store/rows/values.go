// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/keys"
)

// attrs converts attributes.
func (d *Decoder) attrs(m pcommon.Map) store.Attrs {
	return d.attrsBelow(m, store.MaxDepth)
}

func (d *Decoder) attrsBelow(m pcommon.Map, depth int) store.Attrs {
	if m.Len() == 0 {
		return nil
	}
	a := make(store.Attrs, 0, m.Len())
	for k, v := range m.All() {
		a = append(a, store.Attr{Key: k, Value: d.value(v, depth)})
	}
	return sorted(a)
}

// sorted sorts attributes and keeps the first of equal keys.
func sorted(a store.Attrs) store.Attrs {
	byKey := func(x, y store.Attr) int { return strings.Compare(x.Key, y.Key) }
	if !slices.IsSortedFunc(a, byKey) {
		slices.SortStableFunc(a, byKey)
	}
	return slices.CompactFunc(a, func(x, y store.Attr) bool { return x.Key == y.Key })
}

func (d *Decoder) value(v pcommon.Value, depth int) store.Value {
	kind := v.Type()
	if depth == 0 {
		if kind != pcommon.ValueTypeEmpty {
			d.stats.TooDeep++
		}
		return store.Value{}
	}
	switch kind {
	case pcommon.ValueTypeStr:
		return store.Value{Kind: store.KindString, Str: v.Str()}
	case pcommon.ValueTypeInt:
		return store.Value{Kind: store.KindInt, Int: v.Int()}
	case pcommon.ValueTypeDouble:
		return store.Value{Kind: store.KindDouble, Double: v.Double()}
	case pcommon.ValueTypeBool:
		return store.Value{Kind: store.KindBool, Int: bit(v.Bool())}
	case pcommon.ValueTypeBytes:
		return store.Value{Kind: store.KindBytes, Str: string(v.Bytes().AsRaw())}
	case pcommon.ValueTypeMap:
		return store.Value{Kind: store.KindMap, Map: d.attrsBelow(v.Map(), depth-1)}
	case pcommon.ValueTypeSlice:
		list := v.Slice()
		if list.Len() == 0 {
			return store.Value{Kind: store.KindSlice}
		}
		out := make([]store.Value, list.Len())
		for i := range out {
			out[i] = d.value(list.At(i), depth-1)
		}
		return store.Value{Kind: store.KindSlice, Slice: out}
	default:
		return store.Value{}
	}
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// appendRaw appends a value to the bytes that distinguish contents within one batch. Unlike the
// encoding of package store, maps keep the order of their keys.
func appendRaw(dst []byte, v pcommon.Value, depth int) []byte {
	kind := v.Type()
	if depth == 0 {
		return append(dst, byte(pcommon.ValueTypeEmpty))
	}
	dst = append(dst, byte(kind))
	switch kind {
	case pcommon.ValueTypeStr:
		dst = keys.AppendString(dst, v.Str())
	case pcommon.ValueTypeInt:
		dst = keys.AppendUint64(dst, uint64(v.Int()))
	case pcommon.ValueTypeDouble:
		dst = keys.AppendUint64(dst, math.Float64bits(v.Double()))
	case pcommon.ValueTypeBool:
		dst = append(dst, byte(bit(v.Bool())))
	case pcommon.ValueTypeBytes:
		b := v.Bytes()
		dst = keys.AppendUint64(dst, uint64(b.Len()))
		dst = append(dst, b.AsRaw()...)
	case pcommon.ValueTypeMap:
		m := v.Map()
		dst = keys.AppendUint64(dst, uint64(m.Len()))
		for k, x := range m.All() {
			dst = appendRaw(keys.AppendString(dst, k), x, depth-1)
		}
	case pcommon.ValueTypeSlice:
		list := v.Slice()
		dst = keys.AppendUint64(dst, uint64(list.Len()))
		for i := range list.Len() {
			dst = appendRaw(dst, list.At(i), depth-1)
		}
	}
	return dst
}

// AppendAttrs adds attributes to a map.
func AppendAttrs(a store.Attrs, into pcommon.Map) {
	if len(a) == 0 {
		return
	}
	into.EnsureCapacity(into.Len() + len(a))
	for i := range a {
		AppendValue(&a[i].Value, into.PutEmpty(a[i].Key))
	}
}

// AppendValue sets a value.
func AppendValue(v *store.Value, into pcommon.Value) {
	switch v.Kind {
	case store.KindString:
		into.SetStr(v.Str)
	case store.KindBool:
		into.SetBool(v.Int != 0)
	case store.KindInt:
		into.SetInt(v.Int)
	case store.KindDouble:
		into.SetDouble(v.Double)
	case store.KindBytes:
		into.SetEmptyBytes().FromRaw([]byte(v.Str))
	case store.KindSlice:
		list := into.SetEmptySlice()
		list.EnsureCapacity(len(v.Slice))
		for i := range v.Slice {
			AppendValue(&v.Slice[i], list.AppendEmpty())
		}
	case store.KindMap:
		AppendAttrs(v.Map, into.SetEmptyMap())
	}
}
