// SPDX-License-Identifier: Apache-2.0

// Package onnx reads what an ONNX file declares (inputs, outputs, operators, producer) without ONNX
// Runtime. The format is protobuf: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
package onnx

import (
	"errors"
	"fmt"
	"os"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// Model is what a file declares.
type Model struct {
	IRVersion       int64
	Producer        string
	ProducerVersion string
	Domain          string
	Version         int64
	Doc             string
	Graph           string
	// Opsets is the version of each domain of operators; "" is ONNX's own.
	Opsets map[string]int64
	// Operators counts the nodes of the graph by type, without those of subgraphs.
	Operators map[string]int
	Metadata  map[string]string
	// Inputs has no initializers.
	Inputs, Outputs []Value
}

// Value is an input or output. Kind is "tensor" for a tensor, otherwise what it is instead.
type Value struct {
	Name  string
	Kind  string
	DType tensor.DType
	// Ranked says that the shape is known. Dims then has its dimensions, which may be unknown.
	Ranked bool
	Dims   []Dim
}

// Dim is a dimension. Size is -1 if it is unknown; Name is then its symbol, if it has one.
type Dim struct {
	Size int64
	Name string
}

// Shape returns the sizes, with -1 for unknown dimensions; nil if the rank is unknown.
func (v Value) Shape() []int64 {
	if !v.Ranked {
		return nil
	}
	shape := make([]int64, len(v.Dims))
	for i, d := range v.Dims {
		shape[i] = d.Size
	}
	return shape
}

// Text writes the shape with the names of its unknown dimensions.
func (v Value) Text() string {
	if !v.Ranked {
		return "any"
	}
	text := "["
	for i, d := range v.Dims {
		if i > 0 {
			text += ", "
		}
		switch {
		case d.Size >= 0:
			text += fmt.Sprint(d.Size)
		case d.Name != "":
			text += d.Name
		default:
			text += "?"
		}
	}
	return text + "]"
}

// ReadFile reads a model. ONNX files have at most 2 GiB, the limit of protobuf.
func ReadFile(path string) (*Model, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > 1<<31 {
		return nil, fmt.Errorf("%s: the file is larger than 2 GiB, which no ONNX file can be", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Parse reads a model from memory.
func Parse(data []byte) (*Model, error) {
	m := &Model{Opsets: map[string]int64{}, Operators: map[string]int{}, Metadata: map[string]string{}}
	graphs := 0
	err := fields(data, func(number protowire.Number, v uint64, b []byte) error {
		switch number {
		case 1:
			m.IRVersion = int64(v)
		case 2:
			m.Producer = string(b)
		case 3:
			m.ProducerVersion = string(b)
		case 4:
			m.Domain = string(b)
		case 5:
			m.Version = int64(v)
		case 6:
			m.Doc = string(b)
		case 7:
			graphs++
			return m.graph(b)
		case 8:
			domain, version := "", int64(0)
			err := fields(b, func(number protowire.Number, v uint64, b []byte) error {
				switch number {
				case 1:
					domain = string(b)
				case 2:
					version = int64(v)
				}
				return nil
			})
			m.Opsets[domain] = version
			return err
		case 14:
			key, value := "", ""
			err := fields(b, func(number protowire.Number, _ uint64, b []byte) error {
				switch number {
				case 1:
					key = string(b)
				case 2:
					value = string(b)
				}
				return nil
			})
			m.Metadata[key] = value
			return err
		}
		return nil
	})
	if err == nil && graphs != 1 {
		err = errors.New("it has no graph")
	}
	if err != nil {
		return nil, fmt.Errorf("this is no ONNX model: %w", err)
	}
	return m, nil
}

func (m *Model) graph(data []byte) error {
	initializers := map[string]bool{}
	var inputs []Value
	err := fields(data, func(number protowire.Number, _ uint64, b []byte) error {
		switch number {
		case 1: // a node, whose type is field 4
			return fields(b, func(number protowire.Number, _ uint64, b []byte) error {
				if number == 4 {
					m.Operators[string(b)]++
				}
				return nil
			})
		case 2:
			m.Graph = string(b)
		case 5: // a tensor, whose name is field 8
			return fields(b, func(number protowire.Number, _ uint64, b []byte) error {
				if number == 8 {
					initializers[string(b)] = true
				}
				return nil
			})
		case 11, 12:
			v, err := value(b)
			if err != nil {
				return err
			}
			if number == 11 {
				inputs = append(inputs, v)
			} else {
				m.Outputs = append(m.Outputs, v)
			}
		}
		return nil
	})
	for _, v := range inputs {
		if !initializers[v.Name] {
			m.Inputs = append(m.Inputs, v)
		}
	}
	return err
}

// kinds are the fields of TypeProto.
var kinds = map[protowire.Number]string{1: "tensor", 4: "sequence", 5: "map", 7: "opaque", 8: "sparse tensor", 9: "optional"}

func value(data []byte) (Value, error) {
	v := Value{Kind: "untyped"}
	err := fields(data, func(number protowire.Number, _ uint64, b []byte) error {
		switch number {
		case 1:
			v.Name = string(b)
		case 2:
			return fields(b, func(number protowire.Number, _ uint64, b []byte) error {
				if kind, ok := kinds[number]; ok {
					v.Kind = kind
				}
				if number != 1 {
					return nil
				}
				return v.tensor(b)
			})
		}
		return nil
	})
	return v, err
}

func (v *Value) tensor(data []byte) error {
	return fields(data, func(number protowire.Number, n uint64, b []byte) error {
		switch number {
		case 1:
			v.DType = tensor.DType(n)
		case 2:
			v.Ranked = true
			return fields(b, func(number protowire.Number, _ uint64, b []byte) error {
				if number != 1 {
					return nil
				}
				d := Dim{Size: -1}
				err := fields(b, func(number protowire.Number, n uint64, b []byte) error {
					switch number {
					case 1:
						d.Size = max(int64(n), -1)
					case 2:
						d.Name = string(b)
					}
					return nil
				})
				v.Dims = append(v.Dims, d)
				return err
			})
		}
		return nil
	})
}

// fields calls f for each varint and each length-delimited field of a message.
func fields(data []byte, f func(number protowire.Number, v uint64, b []byte) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			b, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if kind == protowire.VarintType || kind == protowire.BytesType {
			if err := f(number, v, b); err != nil {
				return err
			}
		}
	}
	return nil
}
