// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

func TestNCCL_Collectives(t *testing.T) {
	l := stubcuda.Build(t)
	c := l.Start(t, "STUB_FAIL=ncclRecv=5,ncclAllGather=7")
	c.Must("open %s", l.Library)
	c.Must("load %s", l.NCCL)
	p := start(t, l, Options{})
	attached(t, p, l.Library, l.NCCL)

	c.Must("call 10 ncclAllReduce 1 2 100 7 0 0 0")                 // float32
	c.Must("call 3 ncclReduceScatter 1 2 100 9 0 0 0")              // bfloat16
	assert.Equal(t, 7, c.Do("call 2 ncclAllGather 1 2 100 10 0 0")) // float8, of a communicator that does not block
	c.Must("call 1 ncclBcast 1 100 8 0 0 0")                        // float64
	c.Must("call 1 ncclAllReduce 1 2 100 77 0 0 0")                 // no datatype
	assert.Equal(t, 5, c.Do("call 1 ncclRecv 1 100 4 0 0 0"))
	c.Must("call 2 ncclGroupStart")
	c.Must("call 5 ncclSend 1 1000 2 0 0 0") // int32
	c.Must("call 2 ncclGroupEnd")
	c.Must("call 1 ncclSend 1 1000 2 0 0 0")

	s := snapshot(t, p)
	assert.EqualValues(t, 1, s.Losses.MapFull["datatypes"])
	assert.Zero(t, s.Losses.InFlight)
	assert.Zero(t, s.Losses.Slow)
	got := s.of(c.PID())
	require.NotNil(t, got)
	type sums struct{ calls, bytes, timed uint64 }
	have := map[string]sums{}
	for _, n := range got.Collectives {
		have[n.Function] = sums{n.Bytes.Count, n.Bytes.Sum, n.Time.Count}
	}
	assert.Equal(t, map[string]sums{
		"ncclAllReduce":     {11, 4000, 11},
		"ncclReduceScatter": {3, 600, 3},
		"ncclAllGather":     {2, 200, 2},
		"ncclBroadcast":     {1, 800, 1},
		"ncclRecv":          {1, 800, 0},
		"ncclSend":          {6, 24000, 1},
		"ncclGroupEnd":      {0, 0, 1},
	}, have)
	assert.Equal(t, []Error{{"ncclRecv", 5, 1}}, got.Errors)
	c.End()
	snapshot(t, p)
	empty(t, p)
}

func TestNCCL_Disabled(t *testing.T) {
	l := stubcuda.Build(t)
	c := l.Start(t)
	c.Must("open %s", l.Library)
	c.Must("load %s", l.NCCL)
	p := start(t, l, Options{WithoutNCCL: true})
	attached(t, p, l.Library)
	c.Must("launch 1 1 1 32")
	c.Must("call 10 ncclAllReduce 1 2 100 7 0 0 0")
	got := snapshot(t, p).of(c.PID())
	require.NotNil(t, got)
	assert.Empty(t, got.Collectives)
	assert.Len(t, p.Libraries(), 1)
}
