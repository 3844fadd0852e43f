// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestSpans_Stacks(t *testing.T) {
	f := newFixture(t, Config{})
	f.src.stacks = []cupti.StackEvent{
		{Correlation: 2, Text: "forward (net.py:7)\n<module> (train.py:3)"},
		{Correlation: 4, Text: "load (data.py:9)", Samples: 3},
		{Correlation: 4, Text: "forward (net.py:8)"},
		{Correlation: 0, Text: "none"},
	}
	f.start()
	f.src.deliver(kernel("first", 1, 10, 100), kernel("second", 2, 200, 100), copyHead("HtoD", 4096, 4, 400, 50), kernel("host", 0, 500, 10))
	f.stop()
	first, second, third := f.sink.spanNamed(t, "first"), f.sink.spanNamed(t, "second"), f.sink.operation("memcpy")[0]
	assert.Empty(t, attr(first.Attributes(), semconv.CodeStacktrace))
	assert.Equal(t, "forward (net.py:7)\n<module> (train.py:3)", attr(second.Attributes(), semconv.CodeStacktrace))
	assert.Empty(t, attr(second.Attributes(), semconv.CUDALaunchDelayStacktrace))
	assert.Equal(t, "forward (net.py:8)", attr(third.Attributes(), semconv.CodeStacktrace))
	assert.Equal(t, "load (data.py:9)", attr(third.Attributes(), semconv.CUDALaunchDelayStacktrace))
	assert.Empty(t, attr(f.sink.spanNamed(t, "host").Attributes(), semconv.CodeStacktrace))
}

// TestLaunchStacks_Bound checks that memory is bounded, and that ids of another attachment are others.
func TestLaunchStacks_Bound(t *testing.T) {
	src := &source{}
	var s launchStacks
	for id := range uint32(5 * maxStacks / 2) {
		src.stacks = append(src.stacks, cupti.StackEvent{Correlation: id + 1, Text: "f"})
	}
	s.learn(src)
	require.Len(t, s.older, maxStacks)
	require.Len(t, s.recent, maxStacks/2)
	assert.Equal(t, launchStack{}, s.of(1, 0), "it was replaced")
	assert.Equal(t, launchStack{launch: "f"}, s.of(maxStacks+1, 0))
	assert.Equal(t, launchStack{launch: "f"}, s.of(5*maxStacks/2, 0))
	assert.Equal(t, launchStack{}, s.of(5*maxStacks/2, 1))
	src.stacks = []cupti.StackEvent{{Correlation: 7, Attachment: 1, Text: "g"}}
	s.learn(src)
	assert.Equal(t, launchStack{launch: "g"}, s.of(7, 1))
	assert.Equal(t, launchStack{}, s.of(5*maxStacks/2, 0))
}

// TestNVTXRange_Forward checks the links of a backward pass under emit_nvtx.
func TestNVTXRange_Forward(t *testing.T) {
	f := newFixture(t, Config{})
	f.src.event(
		begin(1, 0, 1, 0, "aten::linear, seq = 5, op_id = 1"), begin(2, 1, 1, 1, "aten::addmm, seq = 5, op_id = 2"), endOf(2, 1, 3), endOf(1, 1, 4),
		begin(3, 0, 1, 5, "aten::relu, seq = 6"), endOf(3, 1, 6),
		begin(4, 0, 2, 10, "ReluBackward0, seq = 6, op_id = 9"), begin(5, 4, 2, 11, "aten::threshold_backward, seq = 7"), endOf(5, 2, 12), endOf(4, 2, 13),
		begin(6, 0, 2, 14, "autograd::engine::evaluate_function: AddmmBackward0, seq = 5"), endOf(6, 2, 15),
		begin(7, 0, 2, 16, "UnknownBackward0, seq = 99"), endOf(7, 2, 17),
		begin(8, 0, 2, 18, "mine, seq = many"), endOf(8, 2, 19),
	)
	f.start()
	f.stop()
	for backward, forward := range map[string]string{
		"ReluBackward0, seq = 6, op_id = 9":                            "aten::relu, seq = 6",
		"autograd::engine::evaluate_function: AddmmBackward0, seq = 5": "aten::addmm, seq = 5, op_id = 2",
		"UnknownBackward0, seq = 99":                                   "",
		"mine, seq = many":                                             "",
	} {
		links := f.sink.spanNamed(t, backward).Links()
		if forward == "" {
			assert.Equal(t, 1, links.Len(), backward)
			continue
		}
		require.Equal(t, 2, links.Len(), "to the session and to the forward operator")
		assert.Equal(t, f.sink.spanNamed(t, forward).SpanID(), links.At(1).SpanID(), backward)
		assert.Equal(t, f.sink.spanNamed(t, forward).TraceID(), links.At(1).TraceID(), backward)
	}
}
