// SPDX-License-Identifier: Apache-2.0

package orttest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// The numbers of fields are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.

func part(to []byte, number protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), b)
}

func varint(to []byte, number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), v)
}

// Value declares a tensor. A dimension is an int or a name.
func Value(name string, d tensor.DType, dims ...any) []byte {
	shape := []byte{}
	for _, dim := range dims {
		if name, ok := dim.(string); ok {
			shape = part(shape, 1, part(nil, 2, []byte(name)))
		} else {
			shape = part(shape, 1, varint(nil, 1, uint64(dim.(int))))
		}
	}
	typed := part(varint(nil, 1, uint64(d)), 2, shape)
	return part(part(nil, 1, []byte(name)), 2, part(nil, 1, typed))
}

// Node is a node with attributes.
func Node(operator string, inputs, outputs []string, attributes ...[]byte) (n []byte) {
	for _, name := range inputs {
		n = part(n, 1, []byte(name))
	}
	for _, name := range outputs {
		n = part(n, 2, []byte(name))
	}
	n = part(n, 4, []byte(operator))
	for _, a := range attributes {
		n = part(n, 5, a)
	}
	return n
}

// Integer is an attribute.
func Integer(name string, v uint64) []byte {
	return varint(varint(part(nil, 1, []byte(name)), 3, v), 20, 2)
}

// Metadata is a pair that can be appended to the file of a model.
func Metadata(key, value string) []byte {
	return part(nil, 14, part(part(nil, 1, []byte(key)), 2, []byte(value)))
}

// Model writes a model of one node, and an initializer unless it is nil, to a file.
func Model(t testing.TB, node, initializer, input, output []byte) (path string) {
	t.Helper()
	graph := part(part(nil, 1, node), 2, []byte("g"))
	if initializer != nil {
		graph = part(graph, 5, initializer)
	}
	graph = part(part(graph, 11, input), 12, output)
	path = filepath.Join(t.TempDir(), "m.onnx")
	require.NoError(t, os.WriteFile(path, part(part(varint(nil, 1, 8), 7, graph), 8, varint(nil, 2, 13)), 0o600))
	return path
}

// Endless writes a model that never ends: its output y is its input x, of one float32, after 2^62
// iterations of a loop.
func Endless(t testing.TB) (path string) {
	t.Helper()
	body := part(nil, 1, Node("Identity", []string{"go_on"}, []string{"go_on_out"}))
	body = part(body, 1, Node("Sin", []string{"state"}, []string{"state_out"}))
	body = part(body, 2, []byte("body"))
	body = part(body, 11, Value("i", tensor.Int64))
	body = part(body, 11, Value("go_on", tensor.Bool))
	body = part(body, 11, Value("state", tensor.Float32, 1))
	body = part(body, 12, Value("go_on_out", tensor.Bool))
	body = part(body, 12, Value("state_out", tensor.Float32, 1))
	loop := Node("Loop", []string{"n", "", "x"}, []string{"y"}, varint(part(part(nil, 1, []byte("body")), 6, body), 20, 5))
	n := part(varint(varint(nil, 2, uint64(tensor.Int64)), 7, 1<<62), 8, []byte("n"))
	return Model(t, loop, n, Value("x", tensor.Float32, 1), Value("y", tensor.Float32, 1))
}
