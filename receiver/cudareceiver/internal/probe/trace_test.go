// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

const plenty = 1_000_000

// tracing starts a trace that lasts longer than any test, unless the options say otherwise.
func tracing(t *testing.T, p *Probe, o TraceOptions) *Trace {
	t.Helper()
	if o.Duration == 0 {
		o.Duration = time.Hour
	}
	if o.MaxCalls == 0 {
		o.MaxCalls = plenty
	}
	tr, err := p.Trace(o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tr.Stop()) })
	return tr
}

func take(tr *Trace) []Call {
	calls, _ := tr.Take()
	return calls
}

func of(calls []Call, function string) []Call {
	var out []Call
	for _, c := range calls {
		if c.Function == function {
			out = append(out, c)
		}
	}
	return out
}

func TestEachCallIsTraced(t *testing.T) {
	l := stubcuda.Build(t)
	c := l.Start(t, "STUB_FAIL=cuEventSynchronize=719")
	c.Must("open %s", l.Library)
	p := start(t, l, Options{})
	attached(t, p, l.Library)
	c.Must("function 1 _Z6kernelv")
	c.Must("kernel 2 gemm")
	c.Must("launch 5 1 8 256")
	tr := tracing(t, p, TraceOptions{})
	assert.Empty(t, take(tr), "what was before is not traced")

	began := time.Now().UnixNano()
	c.Must("threads 4")
	c.Must("launch 1000 1 8 256")
	c.Must("launchex 500 2 9 128")
	c.Must("cooperative 3 1 1 32")
	c.Must("copy cuMemcpyHtoDAsync_v2 100 4096")
	c.Must("copy cuMemcpyDtoH_v2 50 1000")
	c.Must("copy cuMemcpyPeerAsync 4 2048")
	c.Must("set cuMemsetD32Async 10 64")
	c.Must("wait cuStreamSynchronize 25")
	c.Must("threads 1")
	c.Must("alloc cuMemAlloc_v2 5 1024")
	c.Must("free cuMemFree_v2")
	c.Must("alloc cuMemAllocAsync 3 100")
	assert.Equal(t, 719, c.Do("wait cuEventSynchronize 1"))
	c.Must("capture 7 1")
	c.Must("graph 3")
	ended := time.Now().UnixNano()

	calls := take(tr)
	assert.Equal(t, TraceLosses{}, tr.Losses())
	began -= tr.clock.bound
	ended += tr.clock.bound
	last := map[int32]int64{}
	for _, one := range calls {
		assert.EqualValues(t, c.PID(), one.Process.PID)
		assert.LessOrEqual(t, one.Start, one.End)
		assert.GreaterOrEqual(t, one.Start, max(began, last[one.Thread]), "calls of a thread follow each other")
		assert.LessOrEqual(t, one.End, ended)
		last[one.Thread] = one.End
	}
	start, alive := startOf(p.reader.stat(uint32(c.PID())))
	require.True(t, alive)
	assert.Equal(t, start, calls[0].Process.Start)

	total := 0
	for _, want := range []struct {
		n    int
		call Call
	}{
		{4007, Call{Function: "cuLaunchKernel", Kind: CallLaunch, Kernel: "_Z6kernelv", Grid: [3]uint32{8, 1, 1}, Block: [3]uint32{256, 1, 1}, Stream: 7, HasStream: true}},
		{2000, Call{Function: "cuLaunchKernelEx", Kind: CallLaunch, Kernel: "gemm", Grid: [3]uint32{9, 1, 1}, Block: [3]uint32{128, 1, 1}, Stream: 7, HasStream: true}},
		{12, Call{Function: "cuLaunchCooperativeKernel", Kind: CallLaunch, Kernel: "_Z6kernelv", Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Stream: 7, HasStream: true}},
		{400, Call{Function: "cuMemcpyHtoDAsync_v2", Kind: CallCopy, CopyKind: "HtoD", Async: true, Bytes: 4096, HasBytes: true, Stream: 7, HasStream: true}},
		{200, Call{Function: "cuMemcpyDtoH_v2", Kind: CallCopy, CopyKind: "DtoH", Bytes: 1000, HasBytes: true}},
		{16, Call{Function: "cuMemcpyPeerAsync", Kind: CallCopy, CopyKind: "PtoP", Async: true, Bytes: 2048, HasBytes: true, Stream: 7, HasStream: true}},
		{40, Call{Function: "cuMemsetD32Async", Kind: CallSet, Bytes: 256, HasBytes: true, Stream: 7, HasStream: true}},
		{100, Call{Function: "cuStreamSynchronize", Kind: CallWait, Stream: 7, HasStream: true}},
		{5, Call{Function: "cuMemAlloc_v2", Kind: CallAlloc, MemoryKind: "device", Bytes: 1024, HasBytes: true, HasAddress: true}},
		{5, Call{Function: "cuMemFree_v2", Kind: CallFree, HasAddress: true}},
		{3, Call{Function: "cuMemAllocAsync", Kind: CallAlloc, MemoryKind: "async", Bytes: 100, HasBytes: true, HasAddress: true, HasStream: true}},
		{1, Call{Function: "cuEventSynchronize", Kind: CallWait, Code: 719}},
		{3, Call{Function: "cuGraphLaunch", Kind: CallGraph, Stream: 7, HasStream: true}},
	} {
		total += want.n
		got := of(calls, want.call.Function)
		require.Len(t, got, want.n, want.call.Function)
		for _, one := range got {
			if want.call.Kind == CallLaunch || want.call.Kind == CallGraph {
				assert.NotZero(t, one.Handle)
			}
			if want.call.HasAddress {
				assert.NotZero(t, one.Address)
			}
			one.Process, one.Thread, one.Start, one.End, one.Handle, one.Address = ProcessID{}, 0, 0, 0, 0, 0
			if one.Kernel == "_Z6kernelv" && one.Block[0] == 32 && one.Grid[0] == 1 {
				one.Grid, one.Block = want.call.Grid, want.call.Block // those of the capture
			}
			require.Equal(t, want.call, one)
		}
	}
	assert.Len(t, calls, total, "captures, names and modules are no calls of a trace")
	addresses := func(calls []Call) (out []uint64) {
		for _, one := range calls {
			out = append(out, one.Address)
		}
		slices.Sort(out)
		return out
	}
	assert.Equal(t, addresses(of(calls, "cuMemAlloc_v2")), addresses(of(calls, "cuMemFree_v2")))
}

func TestATraceEndsByItselfAndDetaches(t *testing.T) {
	l := stubcuda.Build(t)
	c := l.Start(t)
	c.Must("open %s", l.Library)
	p := start(t, l, Options{})
	attached(t, p, l.Library)
	before := len(p.links)
	tr := tracing(t, p, TraceOptions{})
	assert.NotEmpty(t, tr.entries)
	assert.NotEmpty(t, tr.returns)
	_, err := p.Trace(TraceOptions{Duration: time.Second, MaxCalls: 1})
	require.ErrorContains(t, err, "on already")
	c.Must("launch 10 1 8 256")
	over := func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.trace == nil }
	tr.timer.Reset(0) // as if its time were over
	require.Eventually(t, over, waitLimit, 10*time.Millisecond)
	c.Must("launch 10 1 8 256")
	calls, on := tr.Take()
	assert.False(t, on)
	assert.Len(t, calls, 10)
	assert.Empty(t, tr.entries)
	assert.Empty(t, tr.returns)
	assert.Nil(t, p.reader.beforeFree)
	assert.Len(t, p.links, before)
	assert.Equal(t, TraceLosses{}, tr.Losses())
	lossless(t, snapshot(t, p).Losses)

	tracing(t, p, TraceOptions{Duration: time.Millisecond})
	require.Eventually(t, over, waitLimit, 10*time.Millisecond, "its time is that of the options")

	again := tracing(t, p, TraceOptions{})
	c.Must("launch 3 1 8 256")
	assert.Len(t, take(again), 3)
	require.NoError(t, p.Close())
	_, on = again.Take()
	assert.False(t, on, "it ends with the probe")
	_, err = p.Trace(TraceOptions{Duration: time.Second})
	require.ErrorIs(t, err, errNotStarted)
}

func TestTheKernelHasNoLinksOfATraceThatEnded(t *testing.T) {
	l := stubcuda.Build(t)
	c := l.Start(t)
	c.Must("open %s", l.Library)
	p := start(t, l, Options{})
	attached(t, p, l.Library)
	tr := tracing(t, p, TraceOptions{})
	var ids []link.ID
	for _, links := range [][]link.Link{tr.entries, tr.returns} {
		for _, l := range links {
			info, err := l.Info()
			require.NoError(t, err)
			ids = append(ids, info.ID)
		}
	}
	require.Len(t, ids, 10, "one for each program, and one for the returns")
	there := func(id link.ID) bool {
		l, err := link.NewFromID(id)
		if err == nil {
			_ = l.Close()
		}
		return err == nil
	}
	for _, id := range ids {
		assert.True(t, there(id))
	}
	require.NoError(t, tr.Stop())
	for _, id := range ids {
		assert.Eventually(t, func() bool { return !there(id) }, waitLimit, 10*time.Millisecond)
	}
}

func TestCallsOfATraceWithoutRoomAreCounted(t *testing.T) {
	l := stubcuda.Build(t)
	c := l.Start(t)
	c.Must("open %s", l.Library)
	p := start(t, l, Options{})
	attached(t, p, l.Library)
	c.Must("threads 4")

	tr := tracing(t, p, TraceOptions{RingBytes: uint32(os.Getpagesize())})
	c.Must("launch 1000 1 8 256")
	n := len(take(tr))
	assert.EqualValues(t, 4000, uint64(n)+tr.Losses().RingFull)
	assert.Positive(t, n)
	assert.Positive(t, tr.Losses().RingFull)
	require.NoError(t, tr.Stop())
	assert.EqualValues(t, 4000, uint64(n)+tr.Losses().RingFull, "also when it has ended")
	assert.Zero(t, tr.Losses().Unfinished)

	tr = tracing(t, p, TraceOptions{RingBytes: uint32(os.Getpagesize())})
	ring := os.Getpagesize() / int(eventBytes)
	for range 20 { // snapshots read the ring, and nobody takes the calls
		c.Must("threads 1")
		c.Must("launch %d 1 8 256", ring)
		snapshot(t, p)
	}
	n = len(take(tr))
	assert.LessOrEqual(t, n, (maxPending+1)*ring)
	n += len(take(tr))
	assert.EqualValues(t, 20*ring, uint64(n)+tr.Losses().RingFull)
	require.NoError(t, tr.Stop())
	c.Must("threads 4")

	tr = tracing(t, p, TraceOptions{MaxCalls: 100})
	c.Must("launch 1000 1 8 256")
	assert.Len(t, take(tr), 100)
	c.Must("launch 10 1 8 256")
	assert.Empty(t, take(tr))
	assert.EqualValues(t, 3940, tr.Losses().Beyond)
	require.NoError(t, tr.Stop())

	tr = tracing(t, p, TraceOptions{MaxInFlight: 1})
	c.Must("launch 20000 1 8 256")
	n = len(take(tr))
	losses := tr.Losses()
	assert.EqualValues(t, 80_000, uint64(n)+losses.InFlightFull+losses.RingFull)
}

func TestATraceIsOfTheProcessesSelected(t *testing.T) {
	l := stubcuda.Build(t)
	a, b := l.Start(t), l.Start(t)
	a.Must("open %s", l.Library)
	b.Must("open %s", l.Library)
	p := start(t, l, Options{})
	attached(t, p, l.Library)
	tr := tracing(t, p, TraceOptions{Select: func(id ProcessID, _ uint32, _ Identity) bool { return int(id.PID) == a.PID() }})
	a.Must("launch 10 1 8 256")
	b.Must("launch 10 1 8 256")
	calls := take(tr)
	require.Len(t, calls, 10)
	assert.EqualValues(t, a.PID(), calls[9].Process.PID)
	assert.Equal(t, TraceLosses{}, tr.Losses())
}

func TestLibrariesThatComeWhileATraceIsOnAreTraced(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	tr := tracing(t, p, TraceOptions{})
	c := l.Start(t)
	c.Must("open %s", l.Marked)
	attached(t, p, l.Marked)
	c.Must("launch 10 1 8 256")
	assert.Len(t, take(tr), 10)
}

// A process that ends is forgotten, with its kernels' names, when its sums are read. Its calls were before.
func TestCallsOfAProcessThatEndedHaveTheirNames(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	c := l.Start(t)
	c.Must("open %s", l.Library)
	attached(t, p, l.Library)
	tr := tracing(t, p, TraceOptions{})
	c.Must("function 1 _Z6kernelv")
	c.Must("launch 10 1 8 256")
	began, _ := startOf(p.reader.stat(uint32(c.PID())))
	c.End()
	snapshot(t, p)
	empty(t, p)
	calls := take(tr)
	require.Len(t, calls, 10)
	assert.Equal(t, "_Z6kernelv", calls[9].Kernel)
	assert.Equal(t, ProcessID{int32(c.PID()), began}, calls[9].Process)
}

func TestTracesOfOlderKernelsAreTheSame(t *testing.T) {
	l := stubcuda.Build(t)
	c := l.Start(t)
	c.Must("open %s", l.Library)
	p := New(Options{})
	p.plain = true
	started(t, l, p)
	attached(t, p, l.Library)
	tr := tracing(t, p, TraceOptions{})
	c.Must("function 1 gemm")
	c.Must("threads 4")
	c.Must("launchex 100 1 8 256")
	c.Must("wait cuCtxSynchronize 10")
	calls := take(tr)
	assert.Len(t, of(calls, "cuLaunchKernelEx"), 400)
	assert.Len(t, of(calls, "cuCtxSynchronize"), 40)
	assert.Equal(t, "gemm", of(calls, "cuLaunchKernelEx")[0].Kernel)
}

func TestLaunchesAreOfProcessesThatLive(t *testing.T) {
	l := stubcuda.Build(t)
	c := l.Start(t)
	c.Must("open %s", l.Library)
	p := start(t, l, Options{})
	attached(t, p, l.Library)
	c.Must("launch 10 1 8 256")
	c.Must("capture 2 1")
	c.Must("graph 3")
	n, err := p.Launches()
	require.NoError(t, err)
	require.Len(t, n, 1)
	for id, calls := range n {
		assert.EqualValues(t, c.PID(), id.PID)
		assert.EqualValues(t, 15, calls)
	}
	c.End()
	n, err = p.Launches()
	require.NoError(t, err)
	assert.Empty(t, n)
	assert.NotNil(t, snapshot(t, p).of(c.PID()), "it was left for the Snapshot")
}

func TestTheClockIsMeasuredAgainOnlyIfItWasSet(t *testing.T) {
	monotonic, wall := int64(1000), int64(5_000_000)
	c := clock{
		monotonic: func() int64 { monotonic += 100; return monotonic },
		real:      func() int64 { return wall + monotonic },
		bound:     unmeasured,
	}
	c.measure()
	assert.InDelta(t, 5_000_000, c.offset, float64(c.bound))
	assert.LessOrEqual(t, c.bound, int64(101))
	first := c.offset
	wall += 20 // within what a measurement is known to
	c.measure()
	assert.Equal(t, first, c.offset)
	wall += 1_000_000
	c.measure()
	assert.InDelta(t, 6_000_000, c.offset, 200)
	assert.Equal(t, c.offset+7, c.wall(7))

	machine := newClock()
	assert.Less(t, machine.bound, int64(100_000))
	before := time.Now().UnixNano()
	got := machine.wall(uint64(machine.monotonic()))
	after := time.Now().UnixNano()
	assert.GreaterOrEqual(t, got, before-1_000_000)
	assert.LessOrEqual(t, got, after+1_000_000)
}
