// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// graphSums are the sums about graphs.
type graphSums struct{ executed, captured, graphs, nodes, unknown uint64 }

func graphsOf(t *testing.T, p *Probe, c *stubcuda.Program) (sums graphSums) {
	t.Helper()
	s := snapshot(t, p)
	lossless(t, s.Losses)
	got := s.of(c.PID())
	require.NotNil(t, got)
	for _, n := range got.Launches {
		if n.Captured {
			sums.captured += n.Calls
		} else {
			sums.executed += n.Calls
		}
	}
	sums.graphs, sums.nodes, sums.unknown = got.Graphs, got.GraphNodes, got.GraphsUnknown
	return sums
}

// begun starts a probe and a program.
func begun(t *testing.T, env ...string) (*Probe, *stubcuda.Program) {
	t.Helper()
	l := stubcuda.Build(t)
	c := l.Start(t, env...)
	c.Must("open %s", l.Library)
	p := start(t, l, Options{})
	attached(t, p, l.Library)
	return p, c
}

// recording returns the number of captures in progress in the kernel's state. While it is 0,
// launches check nothing else.
func recording(t *testing.T, p *Probe) (n uint64) {
	t.Helper()
	require.NoError(t, p.objects.State.Lookup(uint32(2), &n))
	return n
}

func TestGraphs_CaptureOfSeveralStreams(t *testing.T) {
	p, c := begun(t)
	const launch = "call %d cuLaunchKernel 1 1 1 1 32 1 1 0 %d 0 0"
	c.Must("call 1 cuEventRecord 101 8") // before: of no capture
	c.Must("call 1 cuStreamBeginCapture_v2 7 0")
	assert.EqualValues(t, 1, recording(t, p))
	c.Must(launch, 2, 7)
	c.Must(launch, 10, 8)                      // not part of it yet
	c.Must("call 1 cuStreamWaitEvent 8 101 0") // an event of no capture
	c.Must(launch, 10, 8)
	c.Must("call 1 cuEventRecord 100 7")
	c.Must("call 1 cuStreamWaitEvent 8 100 0")
	c.Must(launch, 3, 8)
	c.Must("call 1 cuEventRecord 102 8") // and from there to a third
	c.Must("call 1 cuStreamWaitEvent 9 102 0")
	c.Must(launch, 4, 9)
	c.Must("call 1 cuStreamWaitEvent 7 102 0")
	c.Must("call 1 cuStreamEndCapture 7 &0")
	assert.Zero(t, recording(t, p))
	c.Must("call 1 cuGraphInstantiateWithFlags &1 @0 0")
	c.Must("call 5 cuGraphLaunch @1 7")
	assert.Equal(t, graphSums{executed: 20, captured: 9, graphs: 5, nodes: 45}, graphsOf(t, p, c))

	// The next capture has nothing of it, though streams and events are the same.
	c.Must("call 1 cuStreamBeginCapture_v2 7 0")
	c.Must(launch, 100, 8)
	c.Must("call 1 cuStreamWaitEvent 9 100 0")
	c.Must(launch, 100, 9)
	c.Must("call 1 cuStreamEndCapture 7 &2")
	c.Must(launch, 100, 7)
	assert.Equal(t, graphSums{executed: 320, captured: 9, graphs: 5, nodes: 45}, graphsOf(t, p, c))

	// Destroyed handles are deleted: two streams, three events, the graphs.
	before := count[cudaAddress, uint64](t, p.objects.Records, 1)
	c.Must("call 1 cuEventDestroy_v2 100")
	c.Must("call 1 cuEventDestroy_v2 102")
	c.Must("call 1 cuStreamDestroy_v2 8")
	c.Must("call 1 cuStreamDestroy_v2 9")
	c.Must("call 1 cuGraphDestroy @0")
	c.Must("call 1 cuGraphDestroy @2")
	c.Must("call 1 cuGraphExecDestroy @1")
	assert.Equal(t, 7, before-count[cudaAddress, uint64](t, p.objects.Records, 1))
	assert.Zero(t, count[cudaAddress, uint64](t, p.objects.Records, 1))
	c.End()
	snapshot(t, p)
	empty(t, p)
}

func TestGraphs_Kernels(t *testing.T) {
	p, c := begun(t)
	c.Must("capture 7 1") // its graph and its executable form are the program's
	c.Must("graph 1")

	// Without capture: two kernels, a child graph of two, and a child added as a generic node.
	c.Must("call 1 cuGraphCreate &0 0")
	c.Must("call 2 cuGraphAddKernelNode_v2 &1 @0 0 0 0")
	c.Must("call 1 cuGraphCreate &2 0")
	c.Must("call 1 cuGraphAddKernelNode_v2 &1 @2 0 0 0")
	c.Must("put 10 0 0") // the parameters of a kernel
	c.Must("call 1 cuGraphAddNode_v2 &1 @2 0 0 0 &10")
	c.Must("put 10 1 0") // a copy
	c.Must("call 1 cuGraphAddNode_v2 &1 @2 0 0 0 &10")
	c.Must("call 1 cuGraphAddChildGraphNode &1 @0 0 0 @2")
	c.Must("put 10 4 0 @2") // a child
	c.Must("call 1 cuGraphAddNode_v2 &1 @0 0 0 0 &10")
	c.Must("call 1 cuGraphInstantiate &3 @0 0 0 0")
	c.Must("call 10 cuGraphLaunch @3 7")
	assert.Equal(t, graphSums{captured: 7, graphs: 11, nodes: 7 + 60}, graphsOf(t, p, c))

	// A copy of it continues in a capture.
	c.Must("call 1 cuGraphClone &4 @0")
	c.Must("call 1 cuStreamBeginCaptureToGraph 9 @4 0 0 0 0")
	c.Must("call 4 cuLaunchKernel 1 1 1 1 32 1 1 0 9 0 0")
	c.Must("call 1 cuStreamEndCapture 9 &5")
	c.Must("call 1 cuGraphExecUpdate_v2 @3 @5 0")
	c.Must("call 1 cuGraphLaunch @3 7")
	sums := graphSums{captured: 11, graphs: 12, nodes: 67 + 10}
	assert.Equal(t, sums, graphsOf(t, p, c))

	// A graph that is launched during a capture becomes part of the capture.
	c.Must("call 1 cuStreamBeginCapture_v2 9 0")
	c.Must("call 3 cuGraphLaunch @3 9")
	c.Must("call 1 cuStreamEndCapture 9 &6")
	assert.Equal(t, sums, graphsOf(t, p, c))
	c.Must("call 1 cuGraphInstantiateWithFlags &6 @6 0")
	c.Must("call 1 cuGraphLaunch @6 7")
	sums.graphs, sums.nodes = 13, 77+30
	assert.Equal(t, sums, graphsOf(t, p, c))

	// Unknown are the number of executions of a conditional node's body, and the kernels of earlier
	// graphs.
	c.Must("put 10 13 0")
	c.Must("call 1 cuGraphAddNode_v2 &1 @2 0 0 0 &10")
	c.Must("call 1 cuGraphAddChildGraphNode &1 @0 0 0 @2")
	c.Must("call 1 cuGraphInstantiate &7 @0 0 0 0")
	c.Must("call 2 cuGraphLaunch @7 7")
	c.Must("call 1 cuStreamBeginCaptureToGraph 9 0x4242 0 0 0 0")
	c.Must("call 1 cuLaunchKernel 1 1 1 1 32 1 1 0 9 0 0")
	c.Must("call 1 cuStreamEndCapture 9 &8")
	c.Must("call 1 cuGraphInstantiate &9 @8 0 0 0")
	c.Must("call 1 cuGraphLaunch @9 7")
	after := graphsOf(t, p, c)
	assert.Equal(t, sums.nodes, after.nodes)
	assert.EqualValues(t, 3, after.unknown)
	assert.EqualValues(t, 16, after.graphs)
}

func TestGraphs_ProcessEndsDuringCapture(t *testing.T) {
	p, c := begun(t)
	c.Must("call 1 cuStreamBeginCapture_v2 7 0")
	c.Must("call 1 cuStreamBeginCapture_v2 8 0")
	c.Must("call 1 cuStreamBeginCapture_v2 8 0") // it had ended without our seeing
	assert.EqualValues(t, 2, recording(t, p))
	c.Must("fork call 1 cuStreamBeginCapture_v2 7 0")
	assert.EqualValues(t, 2, recording(t, p))
	c.End()
	assert.Zero(t, recording(t, p))
	snapshot(t, p)
	empty(t, p)
}

func TestGraphs_FailedCapture(t *testing.T) {
	p, c := begun(t, "STUB_FAIL=cuStreamEndCapture=904")
	c.Must("call 1 cuStreamBeginCapture_v2 7 0")
	c.Must("call 1 cuLaunchKernel 1 1 1 1 32 1 1 0 7 0 0")
	assert.Equal(t, 904, c.Do("call 1 cuStreamEndCapture 7 &0"))
	c.Must("call 2 cuLaunchKernel 1 1 1 1 32 1 1 0 7 0 0")
	assert.Zero(t, recording(t, p))
	assert.Equal(t, graphSums{executed: 2, captured: 1}, graphsOf(t, p, c))

	p, c = begun(t, "STUB_FAIL=cuStreamEndCapture=908")
	c.Must("call 1 cuStreamBeginCapture_v2 7 0")
	assert.Equal(t, 908, c.Do("call 1 cuStreamEndCapture 7 &0"), "of another thread: it goes on")
	c.Must("call 2 cuLaunchKernel 1 1 1 1 32 1 1 0 7 0 0")
	assert.Equal(t, graphSums{captured: 2}, graphsOf(t, p, c))
}

func TestTwoHandlesOfAKernelHaveItsName(t *testing.T) {
	p, c := begun(t)
	c.Must("put 1 0x6d6d6567") // "gemm"
	c.Must("call 1 cuLibraryGetKernel &0 1 &1")
	c.Must("call 1000 cuKernelGetFunction &2 @0") // once for each launch, as some do
	c.Must("call 5 cuLaunchKernel @2 1 1 1 32 1 1 0 7 0 0")
	c.Must("call 2 cuLaunchKernel @0 1 1 1 32 1 1 0 7 0 0")
	s := snapshot(t, p)
	lossless(t, s.Losses)
	got := s.of(c.PID())
	require.Len(t, got.Launches, 1)
	assert.Equal(t, "gemm", got.Launches[0].Name)
	assert.EqualValues(t, 7, got.Launches[0].Calls)
}

func TestCopiesThatStructuresDescribe(t *testing.T) {
	p, c := begun(t)
	// CUDA_MEMCPY2D of 8 bytes each: source and destination type at 2 and 9, width and height at 14.
	c.Must("put 0 0 0 1 0 0 0 0 0 0 2 0 0 0 0 100 30")
	c.Must("call 2 cuMemcpy2D_v2 &0")
	// CUDA_MEMCPY3D: types at 4 and 15, extent at 22.
	c.Must("put 32 0 0 0 0 2 0 0 0 0 0 0 0 0 0 0 3 0 0 0 0 0 0 10 20 30")
	c.Must("call 1 cuMemcpy3DAsync_v2 &32 7")
	c.Must("call 1 cuMemcpyWithAttributesAsync 1 2 500 0 7")
	c.Must("put 64 100 200 300")
	c.Must("call 1 cuMemcpyBatchAsync_v2 0 0 &64 3 0 0 0 7")
	// CUDA_MEMCPY3D_BATCH_OP: 14 of 8 bytes, extent at 10.
	c.Must("put 80 0 0 0 0 0 0 0 0 0 0 2 3 4 0")
	c.Must("put 94 0 0 0 0 0 0 0 0 0 0 5 6 7 0")
	c.Must("call 1 cuMemcpy3DBatchAsync_v2 2 &80 0 7")
	s := snapshot(t, p)
	lossless(t, s.Losses)
	got := s.of(c.PID())
	require.NotNil(t, got)
	type sums struct {
		kind         string
		async        bool
		calls, bytes uint64
	}
	var have []sums
	for _, n := range got.Copies {
		have = append(have, sums{n.Kind, n.Async, n.Bytes.Count, n.Bytes.Sum})
	}
	assert.Equal(t, []sums{
		{"", true, 6, 500 + 600 + 24 + 210},
		{"DtoA", true, 1, 6000},
		{"HtoD", false, 2, 6000},
	}, have)
}
