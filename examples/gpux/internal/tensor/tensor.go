// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// MaxElements is the largest number of elements of a tensor.
const MaxElements = 1 << 28

// Tensor is a dense tensor in row-major order. Shape is empty for a scalar. Data holds the elements
// in little-endian order, except those of strings, which are in Strings.
type Tensor struct {
	DType   DType
	Shape   []int64
	Data    []byte
	Strings []string
}

// Elements returns the number of elements of a shape. A negative dimension, and more than
// MaxElements, is an error.
func Elements(shape []int64) (int, error) {
	n, empty := uint64(1), false
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("the shape %v has a negative dimension", shape)
		}
		if d == 0 {
			empty = true
			continue
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if n = lo; hi != 0 || n > MaxElements {
			return 0, fmt.Errorf("the shape %v has more than %d elements", shape, MaxElements)
		}
	}
	if empty {
		return 0, nil
	}
	return int(n), nil
}

// New returns a tensor of zeros, or of empty strings.
func New(d DType, shape []int64) (*Tensor, error) {
	n, err := Elements(shape)
	if err != nil {
		return nil, err
	}
	t := &Tensor{DType: d, Shape: shape}
	if d == String {
		t.Strings = make([]string, n)
	} else {
		t.Data = make([]byte, n*d.Size())
	}
	return t, nil
}

// Len returns the number of elements.
func (t *Tensor) Len() int {
	if t.DType == String {
		return len(t.Strings)
	}
	return len(t.Data) / t.DType.Size()
}

// Rows returns the rows [from, to) of the first dimension, without a copy.
func (t *Tensor) Rows(from, to int64) *Tensor {
	row := 0
	if t.Shape[0] > 0 {
		row = t.Len() / int(t.Shape[0])
	}
	r := &Tensor{DType: t.DType, Shape: append([]int64{to - from}, t.Shape[1:]...)}
	if t.DType == String {
		r.Strings = t.Strings[int(from)*row : int(to)*row]
	} else {
		size := row * t.DType.Size()
		r.Data = t.Data[int(from)*size : int(to)*size]
	}
	return r
}

// Concat joins tensors along the first dimension. They must have one data type and equal other
// dimensions.
func Concat(ts []*Tensor) (*Tensor, error) {
	first := ts[0]
	r := &Tensor{DType: first.DType, Shape: append([]int64(nil), first.Shape...)}
	r.Shape[0] = 0
	for _, t := range ts {
		if t.DType != first.DType || !equalInner(t.Shape, first.Shape) {
			return nil, errors.New("the tensors have different types or shapes")
		}
		r.Shape[0] += t.Shape[0]
		r.Data = append(r.Data, t.Data...)
		r.Strings = append(r.Strings, t.Strings...)
	}
	return r, nil
}

func equalInner(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 1; i < len(a); i++ {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// putFloat writes a number to element i of a floating-point type.
func (t *Tensor) putFloat(i int, v float64) {
	switch t.DType {
	case Float32:
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(float32(v)))
	case Float64:
		binary.LittleEndian.PutUint64(t.Data[8*i:], math.Float64bits(v))
	case Float16:
		binary.LittleEndian.PutUint16(t.Data[2*i:], toFloat16(float32(v)))
	case BFloat16:
		binary.LittleEndian.PutUint16(t.Data[2*i:], toBFloat16(float32(v)))
	}
}

// putInt writes an integer, given as its magnitude and sign, to element i of an integer type.
func (t *Tensor) putInt(i int, magnitude uint64, negative bool) error {
	size := t.DType.Size()
	limit := uint64(1)<<(8*size-1) - 1
	switch t.DType {
	case Uint8, Uint16, Uint32, Uint64:
		limit = limit<<1 | 1
		if negative && magnitude > 0 {
			return fmt.Errorf("-%d is out of the range of %s", magnitude, t.DType)
		}
	default:
		if negative {
			limit++
		}
	}
	if magnitude > limit {
		sign := ""
		if negative {
			sign = "-"
		}
		return fmt.Errorf("%s%d is out of the range of %s", sign, magnitude, t.DType)
	}
	v := magnitude
	if negative {
		v = -v
	}
	switch size {
	case 1:
		t.Data[i] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(t.Data[2*i:], uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(t.Data[4*i:], uint32(v))
	default:
		binary.LittleEndian.PutUint64(t.Data[8*i:], v)
	}
	return nil
}

// float returns element i of a floating-point type.
func (t *Tensor) float(i int) float64 {
	switch t.DType {
	case Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:])))
	case Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(t.Data[8*i:]))
	case Float16:
		return float64(fromFloat16(binary.LittleEndian.Uint16(t.Data[2*i:])))
	default: // BFloat16
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.Data[2*i:])) << 16))
	}
}

// toFloat16 rounds to the nearest half-precision number, ties to even.
func toFloat16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 // not a number
	case b >= 0x47800000-0x1000: // 65520 and more round to infinity
		return sign | 0x7c00
	case b >= 0x38800000: // normal
		b += 0xfff + (b>>13)&1
		return sign | uint16((b-0x38000000)>>13)
	case b < 0x33000000: // below half of the smallest number
		return sign
	}
	shift := 126 - b>>23
	m := b&0x7fffff | 0x800000
	half := uint32(1) << (shift - 1)
	r := m >> shift
	if rest := m & (half<<1 - 1); rest > half || rest == half && r&1 == 1 {
		r++
	}
	return sign | uint16(r)
}

func fromFloat16(h uint16) float32 {
	sign, exponent, fraction := uint32(h&0x8000)<<16, uint32(h>>10)&0x1f, uint32(h&0x3ff)
	switch exponent {
	case 0:
		f := float32(fraction) / (1 << 24)
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// toBFloat16 rounds to the nearest bfloat16, ties to even.
func toBFloat16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + (b>>16)&1) >> 16)
}

// FromBinary returns the tensor with this shape whose elements are in data, in little-endian order. A
// string is its length as 4 bytes, and then its bytes. The tensor of numbers uses data.
func FromBinary(d DType, shape []int64, data []byte) (*Tensor, error) {
	n, err := Elements(shape)
	if err != nil {
		return nil, err
	}
	t := &Tensor{DType: d, Shape: shape}
	if d != String {
		if len(data) != n*d.Size() {
			return nil, fmt.Errorf("it has %d bytes, and %v of %s needs %d", len(data), shape, d, n*d.Size())
		}
		if t.Data = data; d == Bool {
			for i, b := range data {
				if b > 1 {
					return nil, fmt.Errorf("byte %d is %d, and a bool is 0 or 1", i, b)
				}
			}
		}
		return t, nil
	}
	for len(data) > 0 {
		if len(data) < 4 || uint64(binary.LittleEndian.Uint32(data)) > uint64(len(data)-4) {
			return nil, fmt.Errorf("string %d is cut off", len(t.Strings))
		}
		size := 4 + int(binary.LittleEndian.Uint32(data))
		t.Strings = append(t.Strings, string(data[4:size]))
		data = data[size:]
	}
	if len(t.Strings) != n {
		return nil, fmt.Errorf("it has %d strings, and %v needs %d", len(t.Strings), shape, n)
	}
	return t, nil
}

// AppendBinary adds the elements in the form that FromBinary reads.
func (t *Tensor) AppendBinary(to []byte) []byte {
	if t.DType != String {
		return append(to, t.Data...)
	}
	for _, s := range t.Strings {
		to = binary.LittleEndian.AppendUint32(to, uint32(len(s)))
		to = append(to, s...)
	}
	return to
}
