// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// runtimeProgram is a program that calls the driver through libcudart. inner is "1" for a driver
// that returns other addresses than those of its exported functions.
func runtimeProgram(t *testing.T, l *stubcuda.Libraries, inner string, env ...string) *stubcuda.Program {
	t.Helper()
	c := l.Start(t, append(env, "STUB_DRIVER="+l.Library, "STUB_INNER="+inner)...)
	c.Must("open %s", l.Library)
	c.Must("load %s", l.Runtime)
	return c
}

// checked waits until a libcudart is in a state.
func checked(t *testing.T, p *Probe, state RuntimeState, attached bool) RuntimeCheck {
	t.Helper()
	var last RuntimeCheck
	require.Eventually(t, func() bool {
		all := snapshot(t, p).Runtimes
		if len(all) != 1 {
			return false
		}
		last = all[0]
		return last.State == state && last.Attached == attached
	}, waitLimit, 50*time.Millisecond, "%s, %v", state, attached)
	return last
}

// A grid of 2 × 3 × 4 blocks of 32 threads, on stream 7.
const runtimeLaunch = "call %d cudaLaunchKernel 0x1234 0x300000002 4 0x100000020 1 0 0 7"

// work calls each function of the runtime once.
func work(t *testing.T, c *stubcuda.Program) {
	t.Helper()
	c.Must(runtimeLaunch, 100)
	c.Must("put 100 0x300000002 0x2000000004 0x100000001 0 7 0") // cudaLaunchConfig_t: grid 2 3 4, block 32 1 1
	c.Must("call 10 cudaLaunchKernelExC &100 0x1234 0")
	c.Must("call 5 cudaMemcpy 1 2 1000 1")
	c.Must("call 3 cudaMemcpyAsync 1 2 4096 1 7")
	c.Must("call 1 cudaStreamSynchronize 7")
	c.Must("call 4 cudaMemset 1 0 64")
	c.Must("call 1 cudaMalloc &0 512")
	c.Must("call 1 cudaMalloc &1 100")
	c.Must("call 1 cudaFree @0")
	c.Must("call 2 cudaDeviceSynchronize")
	assert.Equal(t, 700, c.Do("call 1 cudaGraphLaunch 0x42 7"))
	c.Must("call 1 cudaStreamBeginCapture 7 0")
	c.Must(runtimeLaunch, 6)
	c.Must("call 1 cudaStreamEndCapture 7 &2")
	c.Must("call 1 cudaGraphInstantiate &3 @2 0")
}

// worked asserts that each call of work is counted once, by the right library.
func worked(t *testing.T, got *Process, waits ...string) {
	t.Helper()
	require.NotNil(t, got)
	require.Len(t, got.Launches, 2)
	assert.Empty(t, got.Launches[0].Name)
	assert.EqualValues(t, 0x1234, got.Launches[0].Handle)
	assert.False(t, got.Launches[0].Captured)
	assert.EqualValues(t, 110, got.Launches[0].Calls)
	assert.EqualValues(t, 110*24, got.Launches[0].Grid.Sum)
	assert.EqualValues(t, 110*32, got.Launches[0].Block.Sum)
	assert.True(t, got.Launches[1].Captured)
	assert.EqualValues(t, 6, got.Launches[1].Calls)
	require.Len(t, got.Copies, 2)
	assert.Equal(t, "HtoD", got.Copies[0].Kind)
	assert.False(t, got.Copies[0].Async)
	assert.EqualValues(t, 5, got.Copies[0].Bytes.Count)
	assert.EqualValues(t, 5000, got.Copies[0].Bytes.Sum)
	assert.EqualValues(t, 5000, got.Copies[0].TimedBytes)
	assert.True(t, got.Copies[1].Async)
	assert.EqualValues(t, 3, got.Copies[1].Bytes.Count)
	assert.EqualValues(t, 3*4096, got.Copies[1].Bytes.Sum)
	assert.Equal(t, Volume{4, 256}, got.Sets)
	assert.Equal(t, []Memory{{Kind: "device", Allocated: Volume{2, 612}, Freed: Volume{1, 512}, InUse: 100}}, got.Memory)
	calls := map[string]uint64{}
	for _, w := range got.Waits {
		calls[w.Function] = w.Time.Count
	}
	assert.Equal(t, map[string]uint64{waits[0]: 1, waits[1]: 2}, calls)
}

func TestRuntime_DetachedAfterCheck(t *testing.T) {
	l := stubcuda.Build(t)
	c := runtimeProgram(t, l, "0", "STUB_FAIL=cuGraphLaunch=700")
	p := start(t, l, Options{})
	attached(t, p, l.Library, l.Runtime)
	assert.Equal(t, RuntimeCheck{Library: runtimePath(p), State: RuntimeChecking, Attached: true}, snapshot(t, p).Runtimes[0])
	unwatched(p, func() { work(t, c) }) // or it is detached from in the middle
	s := snapshot(t, p)
	lossless(t, s.Losses)
	got := s.of(c.PID())
	worked(t, got, "cuStreamSynchronize", "cuCtxSynchronize")
	assert.EqualValues(t, 1, got.Copies[1].Time.Count, "the last copy was waited for")
	assert.EqualValues(t, 4096, got.Copies[1].TimedBytes)
	assert.Equal(t, []Error{{"cuGraphLaunch", 700, 1}}, got.Errors)
	assert.EqualValues(t, 1, got.Graphs)

	passed := checked(t, p, RuntimePassed, false)
	assert.EqualValues(t, 116, passed.Reached)
	assert.Zero(t, passed.Bypassed)
	c.Must(runtimeLaunch, 1000)
	assert.EqualValues(t, 1110, snapshot(t, p).of(c.PID()).Launches[0].Calls)
	assert.EqualValues(t, 116, snapshot(t, p).Runtimes[0].Reached, "nobody looks any more")

	// With another driver the check restarts.
	c.Must("load %s", l.Marked)
	attached(t, p, l.Marked)
	checked(t, p, RuntimeChecking, true)
	c.Must(runtimeLaunch, 20)
	checked(t, p, RuntimePassed, false)
	assert.EqualValues(t, 1130, snapshot(t, p).of(c.PID()).Launches[0].Calls)
	lossless(t, snapshot(t, p).Losses)
	c.End()
	snapshot(t, p)
	empty(t, p)
}

// runtimePath returns the path of the only libcudart.
func runtimePath(p *Probe) string {
	for _, l := range p.Libraries() {
		if strings.Contains(l.Path, "libcudart") {
			return l.Path
		}
	}
	return ""
}

func TestRuntime_BypassesDriver(t *testing.T) {
	l := stubcuda.Build(t)
	c := runtimeProgram(t, l, "1", "STUB_FAIL=cuGraphLaunch=700")
	var mu sync.Mutex
	var said []string
	p := start(t, l, Options{LaunchSampling: 11, Log: func(text string) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, text)
	}})
	attached(t, p, l.Library, l.Runtime)
	unwatched(p, func() { work(t, c) }) // or the check is told of a part of it
	s := snapshot(t, p)
	lossless(t, s.Losses)
	got := s.of(c.PID())
	worked(t, got, "cudaStreamSynchronize", "cudaDeviceSynchronize")
	assert.Equal(t, []Error{{"cudaGraphLaunch", 700, 1}}, got.Errors)
	assert.EqualValues(t, 1, got.Copies[1].Time.Count, "the last copy was waited for")
	assert.EqualValues(t, 4096, got.Copies[1].TimedBytes)
	assert.EqualValues(t, 1, got.Idle.Count)
	assert.EqualValues(t, 10, got.Enqueue.Count, "116 launches, one of 11")

	bypasses := checked(t, p, RuntimeBypasses, true)
	assert.EqualValues(t, 116, bypasses.Bypassed)
	assert.Zero(t, bypasses.Reached)
	mu.Lock()
	require.Len(t, said, 1)
	assert.Contains(t, said[0], "libcudart.so.13 bypass the driver's exported functions")
	mu.Unlock()

	// Calls that do not use the runtime are still counted at the driver, once.
	c.Must("call 1 cudaGraphInstantiate &3 @2 0")
	c.Must("launch 50 1 2 32")
	assert.Equal(t, 9, c.Do("call 1 cudaLaunchKernel 1 0x100000001 1 0x100000800 1 0 0 7"), "blocks are too large")
	s = snapshot(t, p)
	got = s.of(c.PID())
	var launches uint64
	for _, n := range got.Launches {
		launches += n.Calls
	}
	assert.EqualValues(t, 166, launches)
	assert.Contains(t, got.Errors, Error{"cudaLaunchKernel", 9, 1})
	lossless(t, s.Losses)
	c.End()
	snapshot(t, p)
	empty(t, p)
}

// One file of libcudart, with processes of both kinds at once.
func TestRuntime_MixedProcesses(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	outer, inner := runtimeProgram(t, l, "0"), runtimeProgram(t, l, "1")
	attached(t, p, l.Library, l.Runtime)
	// A check during the launches of only one process would detach the file.
	unwatched(p, func() {
		for range 10 {
			for _, c := range []*stubcuda.Program{outer, inner} {
				c.Must(runtimeLaunch, 1000)
				c.Must("call 100 cudaMemset 1 0 10")
			}
		}
	})
	s := snapshot(t, p)
	lossless(t, s.Losses)
	for _, c := range []*stubcuda.Program{outer, inner} {
		got := s.of(c.PID())
		require.NotNil(t, got)
		require.Len(t, got.Launches, 1)
		assert.EqualValues(t, 10_000, got.Launches[0].Calls)
		assert.Equal(t, Volume{1000, 10_000}, got.Sets)
	}
	checked(t, p, RuntimeBypasses, true)
	inner.End()
	// The first of these may be looked at together with the last that bypassed, and then say nothing.
	launches := 10_000
	require.Eventually(t, func() bool {
		outer.Must(runtimeLaunch, 50)
		launches += 50
		return snapshot(t, p).Runtimes[0].State == RuntimePassed
	}, waitLimit, 50*time.Millisecond)
	checked(t, p, RuntimePassed, false)
	assert.EqualValues(t, launches, snapshot(t, p).of(outer.PID()).Launches[0].Calls)
}

func TestRuntime_ForcedSource(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{Source: SourceRuntime})
	c := runtimeProgram(t, l, "0")
	attached(t, p, l.Library, l.Runtime)
	c.Must(runtimeLaunch, 100)
	checked(t, p, RuntimePassed, true)
	assert.EqualValues(t, 100, snapshot(t, p).of(c.PID()).Launches[0].Calls)
	require.NoError(t, p.Close())

	p = start(t, l, Options{Source: SourceDriver})
	attached(t, p, l.Library)
	c.Must(runtimeLaunch, 100)
	s := snapshot(t, p)
	assert.EqualValues(t, 100, s.of(c.PID()).Launches[0].Calls)
	assert.Empty(t, s.Runtimes)
	assert.Len(t, p.Libraries(), 1)
}

func TestRuntime_MaxRuntimes(t *testing.T) {
	spec, err := loadCuda()
	require.NoError(t, err)
	assert.EqualValues(t, maxRuntimes, spec.Maps["checks"].MaxEntries)
}
