// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestScopeSums(t *testing.T) {
	scope := func(name string, span, parent store.SpanID, start, end int64) store.Span {
		return store.Span{Name: name, Span: span, Parent: parent, StartNs: start, EndNs: end, Operation: semconv.CUDAOperationScope}
	}
	part := scope("step 2", 9, 0, 400, 500)
	part.Attrs = store.Attrs{{Key: semconv.CUDAScopePart, Value: store.Value{Kind: store.KindInt, Int: 1}}}
	b := &store.Batch{
		Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel}, {Key: 2, Operation: store.OpCopy}, {Key: 3, Operation: store.OpSync}},
		Places: []store.Place{{}, {Key: 1, Parent: 1}, {Key: 2, Parent: 3}, {Key: 3, ScopePath: "step 7|forward"}, {Key: 4, ScopeName: "other"}},
		Spans:  []store.Span{scope("step 1", 1, 0, 0, 100), scope("step 2", 2, 0, 100, 350), scope("forward", 3, 2, 120, 130), part},
		Ops: []store.Op{
			{StartNs: 10, EndNs: 20, Span: 11, Shape: 1, Place: 1},
			{StartNs: 130, EndNs: 150, Span: 12, Shape: 1, Place: 2},
			{StartNs: 150, EndNs: 155, Span: 13, Shape: 2, Place: 2},
			{StartNs: 160, EndNs: 161, Span: 14, Shape: 1, Place: 3},
			{StartNs: 170, EndNs: 270, Span: 15, Shape: 3, Place: 3}, // a wait of the host
			{StartNs: 180, EndNs: 181, Span: 16, Shape: 1, Place: 4},
			{StartNs: 190, EndNs: 290, Span: 17, Shape: 1},
		},
	}
	var c Collection
	c.Add(b)
	c.Add(b) // again
	assert.Equal(t, []ScopeSum{
		{Path: []string{"step"}, Count: 2, WallNs: 350, MaxNs: 250, Longest: Ref{2, 100, "step 2"}, Kernels: 3, DeviceNs: 36, SelfNs: 10},
		{Path: []string{"step", "forward"}, Count: 1, WallNs: 10, MaxNs: 10, Longest: Ref{3, 120, "forward"}, Kernels: 2, DeviceNs: 26, SelfNs: 26},
		{Path: []string{"other"}, Kernels: 1, DeviceNs: 1, SelfNs: 1},
	}, ScopeSums([]*Collection{&c}))
}
