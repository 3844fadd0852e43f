// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// MaxDepth is the deepest nesting of a value: a string is at depth 1, a string in a list at depth 2.
// Append writes an empty value for what is deeper, and the decoders reject it.
const MaxDepth = 64

// Get returns the value of a key.
func (a Attrs) Get(key string) (Value, bool) {
	i, ok := slices.BinarySearchFunc(a, key, func(x Attr, key string) int { return strings.Compare(x.Key, key) })
	if !ok {
		return Value{}, false
	}
	return a[i].Value, true
}

// Append appends the encoding of the attributes. Equal attributes have equal encodings, and the
// encoding of none is one zero byte. The format is stored and does not change:
//
//	attributes = count { key value }     keys ascending
//	key        = length bytes
//	value      = kind payload            kind: one byte, a ValueKind
//
// The payload depends on the kind:
//
//	KindEmpty               nothing
//	KindString, KindBytes   length bytes
//	KindBool                one byte, 0 or 1
//	KindInt                 a signed varint
//	KindDouble              the IEEE 754 number, 8 bytes in little-endian order
//	KindSlice               count { value }
//	KindMap                 attributes
//
// Counts and lengths are unsigned varints. Varints are those of encoding/binary, in their shortest
// form.
func (a Attrs) Append(dst []byte) []byte { return a.append(dst, MaxDepth) }

func (a Attrs) append(dst []byte, depth int) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(a)))
	for i := range a {
		dst = appendString(dst, a[i].Key)
		dst = a[i].Value.append(dst, depth)
	}
	return dst
}

// Append appends the encoding of the value. See [Attrs.Append] for the format.
func (v Value) Append(dst []byte) []byte { return v.append(dst, MaxDepth) }

func (v *Value) append(dst []byte, depth int) []byte {
	if depth == 0 {
		return append(dst, byte(KindEmpty))
	}
	dst = append(dst, byte(v.Kind))
	switch v.Kind {
	case KindString, KindBytes:
		dst = appendString(dst, v.Str)
	case KindBool:
		dst = append(dst, byte(v.Int))
	case KindInt:
		dst = binary.AppendVarint(dst, v.Int)
	case KindDouble:
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v.Double))
	case KindSlice:
		dst = binary.AppendUvarint(dst, uint64(len(v.Slice)))
		for i := range v.Slice {
			dst = v.Slice[i].append(dst, depth-1)
		}
	case KindMap:
		dst = v.Map.append(dst, depth-1)
	}
	return dst
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// DecodeAttrs decodes what [Attrs.Append] wrote. It accepts no other bytes: what it decodes has the
// same encoding again. The result does not refer to b.
func DecodeAttrs(b []byte) (Attrs, error) {
	d := decoder{rest: string(b), elements: len(b)}
	a := d.attrs(MaxDepth)
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("decode attributes: %w", err)
	}
	return a, nil
}

// DecodeValue decodes what [Value.Append] wrote, as [DecodeAttrs] does.
func DecodeValue(b []byte) (Value, error) {
	d := decoder{rest: string(b), elements: len(b)}
	v := d.value(MaxDepth)
	if err := d.end(); err != nil {
		return Value{}, fmt.Errorf("decode value: %w", err)
	}
	return v, nil
}

var (
	errShort    = errors.New("unexpected end")
	errTrailing = errors.New("bytes after the end")
	errVarint   = errors.New("varint too long")
	errKeys     = errors.New("keys not ascending")
	errKind     = errors.New("unknown kind")
	errBool     = errors.New("boolean neither 0 nor 1")
	errDepth    = errors.New("nested too deeply")
	errTooMany  = errors.New("count larger than the input")
	errTooLarge = errors.New("length larger than the input")
)

// decoder reads from the front of rest. After an error, all methods return zero values.
type decoder struct {
	rest string
	// elements is how many list elements and attributes the rest of the input can have. Each takes
	// a byte of its own, so that all counts together are at most the length of the input.
	elements int
	err      error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.rest = ""
}

func (d *decoder) end() error {
	if d.rest != "" {
		d.fail(errTrailing)
	}
	return d.err
}

func (d *decoder) byte() byte {
	if d.rest == "" {
		d.fail(errShort)
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

// uvarint reads a number in its shortest form.
func (d *decoder) uvarint() uint64 {
	var x uint64
	for shift := 0; shift < 64; shift += 7 {
		b := d.byte()
		x |= uint64(b&0x7f) << shift
		if b < 0x80 {
			if b == 0 && shift > 0 || shift == 63 && b > 1 {
				break
			}
			return x
		}
	}
	d.fail(errVarint)
	return 0
}

func (d *decoder) string() string {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.fail(errTooLarge)
		return ""
	}
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(d.elements) {
		d.fail(errTooMany)
		return 0
	}
	d.elements -= int(n)
	return int(n)
}

func (d *decoder) attrs(depth int) Attrs {
	n := d.count()
	if n == 0 {
		return nil
	}
	a := make(Attrs, n)
	for i := range a {
		a[i].Key = d.string()
		if i > 0 && a[i].Key <= a[i-1].Key {
			d.fail(errKeys)
		}
		a[i].Value = d.value(depth)
		if d.err != nil {
			return nil
		}
	}
	return a
}

func (d *decoder) value(depth int) Value {
	v := Value{Kind: ValueKind(d.byte())}
	if depth == 0 && v.Kind != KindEmpty {
		d.fail(errDepth)
	}
	if d.err != nil {
		return Value{}
	}
	switch v.Kind {
	case KindEmpty:
	case KindString, KindBytes:
		v.Str = d.string()
	case KindBool:
		v.Int = int64(d.byte())
		if v.Int > 1 {
			d.fail(errBool)
		}
	case KindInt:
		x := d.uvarint()
		v.Int = int64(x>>1) ^ -int64(x&1)
	case KindDouble:
		if len(d.rest) < 8 {
			d.fail(errShort)
			return Value{}
		}
		v.Double = math.Float64frombits(binary.LittleEndian.Uint64([]byte(d.rest[:8])))
		d.rest = d.rest[8:]
	case KindSlice:
		n := d.count()
		if n == 0 {
			break
		}
		v.Slice = make([]Value, n)
		for i := range v.Slice {
			if v.Slice[i] = d.value(depth - 1); d.err != nil {
				return Value{}
			}
		}
	case KindMap:
		v.Map = d.attrs(depth - 1)
	default:
		d.fail(errKind)
	}
	return v
}
