// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// message is an encoded protobuf message to which fields are appended.
type message []byte

func (m *message) number(field protowire.Number, v uint64) {
	*m = protowire.AppendTag(*m, field, protowire.VarintType)
	*m = protowire.AppendVarint(*m, v)
}

func (m *message) double(field protowire.Number, v float64) {
	*m = protowire.AppendTag(*m, field, protowire.Fixed64Type)
	*m = protowire.AppendFixed64(*m, math.Float64bits(v))
}

func (m *message) text(field protowire.Number, s string) {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	*m = protowire.AppendString(*m, s)
}

func (m *message) bytes(field protowire.Number, b []byte) {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	*m = protowire.AppendBytes(*m, b)
}

// begin starts an inner message, which end completes.
func (m *message) begin(field protowire.Number) (mark int) {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	*m = append(*m, 0)
	return len(*m)
}

// end writes the length before the inner message. Most fit into the one byte that begin left.
func (m *message) end(mark int) {
	n := len(*m) - mark
	if extra := protowire.SizeVarint(uint64(n)) - 1; extra > 0 {
		*m = append(*m, make([]byte, extra)...)
		copy((*m)[mark+extra:], (*m)[mark:mark+n])
	}
	protowire.AppendVarint((*m)[:mark-1], uint64(n))
}
