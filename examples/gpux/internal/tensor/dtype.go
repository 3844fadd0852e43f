// SPDX-License-Identifier: Apache-2.0

// Package tensor holds the values that go into a model and come out of it, and converts them from and
// to JSON by the data type that the model declares.
package tensor

import "fmt"

// DType is the data type of the elements of a tensor. The numbers are those of ONNX's
// TensorProto.DataType.
type DType int32

// Data types that a model can have as inputs and outputs here.
const (
	Float32  DType = 1
	Uint8    DType = 2
	Int8     DType = 3
	Uint16   DType = 4
	Int16    DType = 5
	Int32    DType = 6
	Int64    DType = 7
	String   DType = 8
	Bool     DType = 9
	Float16  DType = 10
	Float64  DType = 11
	Uint32   DType = 12
	Uint64   DType = 13
	BFloat16 DType = 16
)

// types has the name of a type in gpux.yml, its name in KServe's protocol, and the bytes of an
// element. A string has no fixed size. It is no map, because each element of a JSON list needs its size.
var types = [BFloat16 + 1]struct {
	name, kserve string
	size         int
}{
	Float32: {"float32", "FP32", 4}, Float64: {"float64", "FP64", 8},
	Float16: {"float16", "FP16", 2}, BFloat16: {"bfloat16", "BF16", 2},
	Int8: {"int8", "INT8", 1}, Int16: {"int16", "INT16", 2},
	Int32: {"int32", "INT32", 4}, Int64: {"int64", "INT64", 8},
	Uint8: {"uint8", "UINT8", 1}, Uint16: {"uint16", "UINT16", 2},
	Uint32: {"uint32", "UINT32", 4}, Uint64: {"uint64", "UINT64", 8},
	Bool: {"bool", "BOOL", 1}, String: {"string", "BYTES", 0},
}

// Known says whether tensors of this type are supported.
func (d DType) Known() bool { return d >= 0 && int(d) < len(types) && types[d].name != "" }

// String returns the name of gpux.yml, such as float32.
func (d DType) String() string {
	if d.Known() {
		return types[d].name
	}
	return fmt.Sprintf("ONNX type %d", int32(d))
}

// KServe returns the name in KServe's protocol, such as FP32.
func (d DType) KServe() string {
	if d.Known() {
		return types[d].kserve
	}
	return ""
}

// Size returns the bytes of an element, 0 for strings.
func (d DType) Size() int {
	if d.Known() {
		return types[d].size
	}
	return 0
}

// ParseDType returns the type with this name in gpux.yml.
func ParseDType(name string) (DType, error) {
	for d, t := range types {
		if t.name == name && name != "" {
			return DType(d), nil
		}
	}
	return 0, fmt.Errorf("%q is no data type; use one of float32, float64, float16, bfloat16, int8 to int64, uint8 to uint64, bool, string", name)
}

// ParseKServe returns the type with this name in KServe's protocol.
func ParseKServe(name string) (DType, error) {
	for d, t := range types {
		if t.kserve == name && name != "" {
			return DType(d), nil
		}
	}
	return 0, fmt.Errorf("%q is no data type of the protocol", name)
}
