// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// Add returns the smallest useful model: C = A + B, with float32 tensors of the shape [2]. A session
// on it shows whether an execution provider works.
func Add() []byte {
	port := func(name string) []byte {
		dim := message(nil, 1, protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 2))
		typed := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(tensor.Float32))
		typed = message(typed, 2, dim)
		return message(message(nil, 1, []byte(name)), 2, message(nil, 1, typed))
	}
	node := message(message(message(message(nil, 1, []byte("A")), 1, []byte("B")), 2, []byte("C")), 4, []byte("Add"))
	graph := message(message(nil, 1, node), 2, []byte("add"))
	graph = message(message(message(graph, 11, port("A")), 11, port("B")), 12, port("C"))
	opset := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 13)
	model := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 8)
	return message(message(model, 7, graph), 8, opset)
}

func message(to []byte, number protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), b)
}
