// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/semconv"
)

// TestScopes_Numbered asks for steps with other names. They share a path, and each keeps its name.
func TestScopes_Numbered(t *testing.T) {
	b := &store.Batch{
		Session: "s", Origins: []store.Origin{{}}, Extras: []store.Extra{{}}, Lanes: []store.Lane{{}, {Key: 1, Device: "GPU-0"}},
		Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "gemm"}}, Places: []store.Place{{}}, Stacks: []store.Stack{{}}, Series: []store.Series{{}},
	}
	for i := range int64(300) {
		at, id := 1e18+1000*i, store.SpanID(i+1)
		name := fmt.Sprintf("step %d", i)
		b.Spans = append(b.Spans, store.Span{StartNs: at, EndNs: at + 900, Span: id, Name: name, Operation: semconv.CUDAOperationScope})
		b.Places = append(b.Places, store.Place{Key: uint64(id), Parent: id, ScopeName: name})
		b.Ops = append(b.Ops, store.Op{StartNs: at + 100, EndNs: at + 100 + i, Span: id + 1000, Lane: 1, Shape: 1, Place: uint32(i + 1)})
	}
	m := storetest.NewMemory()
	_, err := m.Write(context.Background(), []*store.Batch{b})
	require.NoError(t, err)
	s := newServer(m, options{loopback: true, version: "test", logger: zap.NewNop()})
	nodes := get[struct{ Nodes []scopeNode }](t, s, "/api/v1/sessions/s/scopes").Nodes
	require.Len(t, nodes, 2)
	assert.Equal(t, "step *", nodes[1].Name)
	assert.EqualValues(t, 300, nodes[1].Instances)
	assert.EqualValues(t, 299*150, nodes[1].Total.KernelNs)
	target := fmt.Sprintf("/api/v1/sessions/s/scopes/%d/instances?sort=device&limit=2", nodes[1].Path)
	type answer struct {
		Names     []string
		Instances []instanceAnswer
	}
	slowest := get[answer](t, s, target)
	assert.Equal(t, []string{"step *"}, slowest.Names)
	require.Len(t, slowest.Instances, 2)
	assert.Equal(t, "step 299", slowest.Instances[0].Name)
	one := get[answer](t, s, target+"&name=step+12").Instances
	require.Len(t, one, 1)
	assert.Equal(t, "step 12", one[0].Name)
	assert.EqualValues(t, 12, one[0].KernelNs)
	rows := get[struct {
		Operations []operationAnswer
	}](t, s, "/api/v1/sessions/s/operations?parent="+one[0].Span).Operations
	require.Len(t, rows, 1)
	assert.EqualValues(t, 12, rows[0].DurationNs)
	assert.Equal(t, "step 12", rows[0].Scope)
}
