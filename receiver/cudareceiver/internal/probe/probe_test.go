// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// waitLimit bounds the wait for asynchronous events, which are fast unless the machine is very busy.
const waitLimit = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unwatched calls do while the probe does not scan.
func unwatched(p *Probe, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// start starts a probe for the test's libraries only. It skips the test if eBPF is not allowed.
func start(t *testing.T, l *stubcuda.Libraries, o Options) *Probe {
	t.Helper()
	if o.RescanInterval == 0 {
		o.RescanInterval = time.Hour // what is loaded later is found by the kernel's word
	}
	return started(t, l, New(o))
}

func started(t *testing.T, l *stubcuda.Libraries, p *Probe) *Probe {
	t.Helper()
	p.only = l.Contains
	if os.Geteuid() != 0 {
		t.Skip("needs root, for eBPF")
	}
	err := p.Start(t.Context())
	if errors.Is(err, os.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("eBPF is not to be had here: ", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

func snapshot(t *testing.T, p *Probe) *Snapshot {
	t.Helper()
	s, err := p.Snapshot()
	require.NoError(t, err)
	return s
}

// of returns the sums of a process, or nil.
func (s *Snapshot) of(pid int) *Process {
	for i := range s.Processes {
		if int(s.Processes[i].ID.PID) == pid {
			return &s.Processes[i]
		}
	}
	return nil
}

// attached waits until n libraries of the test are attached.
func attached(t *testing.T, p *Probe, paths ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		have := map[uint64]bool{}
		for _, l := range p.Libraries() {
			have[l.Inode] = true
		}
		for _, path := range paths {
			if !have[fileAt(t, path).inode] {
				return false
			}
		}
		return true
	}, waitLimit, 10*time.Millisecond)
}

// fileAt identifies the file at a path.
func fileAt(t *testing.T, path string) file {
	t.Helper()
	o, err := openPath(path)
	require.NoError(t, err)
	o.close()
	return o.id
}

func count[K comparable, V any](t *testing.T, m *ebpf.Map, processors int) int {
	t.Helper()
	n := 0
	require.NoError(t, forEach(m, processors, func(K, []V) { n++ }))
	return n
}

// empty asserts that no map of the kernel has entries.
func empty(t *testing.T, p *Probe) {
	t.Helper()
	o := p.objects
	assert.Zero(t, count[cudaSumKey, cudaSum](t, o.Sums, p.reader.cpus), "sums")
	assert.Zero(t, count[uint32, uint64](t, o.Processes, 1), "processes")
	assert.Zero(t, count[uint64, cudaRun](t, o.Runs, 1), "runs")
	assert.Zero(t, count[uint64, cudaIdentity](t, o.Identities, 1), "identities")
	assert.Zero(t, count[cudaAddress, cudaAllocation](t, o.Allocations, 1), "allocations")
	assert.Zero(t, count[cudaAddress, uint64](t, o.Records, 1), "records")
	threads := 0
	var id, next uint64
	for err := o.Threads.NextKey(nil, &next); err == nil; err = o.Threads.NextKey(id, &next) {
		threads++
		id = next
	}
	assert.Zero(t, threads, "threads")
	assert.Empty(t, held(t, p), "shares")
}

// held returns the non-zero shares of users and of all together in each map, by their index in
// shares.
func held(t *testing.T, p *Probe) map[uint32][cudaShareClassCLASSES]int64 {
	t.Helper()
	all := map[uint32][cudaShareClassCLASSES]int64{}
	require.NoError(t, forEach(p.objects.Shares, 1, func(user uint32, added []cudaShare) {
		var freed cudaShare
		require.NoError(t, p.objects.Freed.Lookup(user, &freed))
		n := added[0].Used
		for i := range n {
			n[i] -= freed.Used[i]
		}
		if n != [cudaShareClassCLASSES]int64{} {
			all[user] = n
		}
	}))
	return all
}

func lossless(t *testing.T, l Losses) {
	t.Helper()
	for name, n := range l.MapFull {
		assert.Zero(t, n, name)
	}
	assert.Zero(t, l.RingFull)
	assert.Zero(t, l.Folded)
	assert.Empty(t, l.Users)
	assert.Zero(t, l.InFlight)
	assert.Zero(t, l.NamesEvicted)
	assert.Zero(t, l.AttachFailed)
	assert.Zero(t, l.Slow)
}

func TestProbe_AllCalls(t *testing.T) {
	l := stubcuda.Build(t)
	c := l.Start(t, "STUB_FAIL=cuEventSynchronize=719")
	c.Must("open %s", l.Library)
	p := start(t, l, Options{LaunchSampling: 10})
	attached(t, p, l.Library)

	c.Must("function 1 _Z6kernelv")
	c.Must("kernel 2 gemm")
	c.Must("launch 100 1 8 256")
	c.Must("launchex 50 2 9 128")
	c.Must("cooperative 3 1 1 32")
	c.Must("copy cuMemcpyHtoDAsync_v2 10 4096")
	c.Must("wait cuStreamSynchronize 2")
	c.Must("copy cuMemcpyDtoH_v2 5 1000")
	c.Must("copy cuMemcpyPeerAsync 4 2048")
	c.Must("set cuMemsetD32Async 10 64")
	c.Must("alloc cuMemAlloc_v2 5 1024")
	c.Must("alloc cuMemAllocAsync 3 100")
	assert.Equal(t, 719, c.Do("wait cuEventSynchronize 1"))
	c.Must("capture 7 1")
	c.Must("graph 3")

	s := snapshot(t, p)
	lossless(t, s.Losses)
	got := s.of(c.PID())
	require.NotNil(t, got)
	assert.False(t, got.Ended)
	began, alive := startOf(p.reader.stat(uint32(c.PID())))
	assert.True(t, alive)
	assert.Equal(t, began, got.ID.Start)

	require.Len(t, got.Launches, 3)
	launches := got.Launches
	assert.Equal(t, "_Z6kernelv", launches[0].Name)
	assert.EqualValues(t, 103, launches[0].Calls)
	assert.EqualValues(t, 803, launches[0].Grid.Sum)
	assert.EqualValues(t, 8, launches[0].Grid.Max)
	assert.EqualValues(t, 100, launches[0].Grid.Buckets[3])
	assert.EqualValues(t, 3, launches[0].Grid.Buckets[0])
	assert.EqualValues(t, 100, launches[0].Block.Buckets[8])
	assert.True(t, launches[1].Captured)
	assert.EqualValues(t, 7, launches[1].Calls)
	assert.Equal(t, "gemm", launches[2].Name)
	assert.EqualValues(t, 50, launches[2].Calls)
	assert.EqualValues(t, 450, launches[2].Grid.Sum)
	assert.EqualValues(t, 50, launches[2].Grid.Buckets[4])
	assert.EqualValues(t, 50*128, launches[2].Block.Sum)
	assert.EqualValues(t, 16, got.Enqueue.Count, "160 launches, one of ten")
	assert.EqualValues(t, 3, got.Graphs)
	assert.EqualValues(t, 21, got.GraphNodes)
	assert.Zero(t, got.GraphsUnknown)

	require.Len(t, got.Copies, 3)
	back, there, peer := got.Copies[0], got.Copies[1], got.Copies[2]
	assert.Equal(t, "DtoH", back.Kind)
	assert.EqualValues(t, 5000, back.Bytes.Sum)
	assert.EqualValues(t, 5, back.Time.Count)
	assert.EqualValues(t, 5000, back.TimedBytes)
	assert.Equal(t, "HtoD", there.Kind)
	assert.True(t, there.Async)
	assert.EqualValues(t, 10, there.Bytes.Buckets[12])
	assert.EqualValues(t, 1, there.Time.Count, "only the last was waited for at once")
	assert.EqualValues(t, 4096, there.TimedBytes)
	assert.Equal(t, "PtoP", peer.Kind)
	assert.EqualValues(t, 8192, peer.Bytes.Sum)
	assert.Equal(t, Volume{10, 10 * 64 * 4}, got.Sets)

	require.Len(t, got.Memory, 2)
	assert.Equal(t, Memory{Kind: "async", Allocated: Volume{3, 300}, InUse: 300}, got.Memory[0])
	assert.Equal(t, Memory{Kind: "device", Allocated: Volume{5, 5120}, InUse: 5120}, got.Memory[1])
	require.Len(t, got.Waits, 2)
	assert.Equal(t, "cuStreamSynchronize", got.Waits[1].Function)
	assert.EqualValues(t, 2, got.Waits[1].Time.Count)
	assert.Equal(t, []Error{{"cuEventSynchronize", 719, 1}}, got.Errors)
	assert.EqualValues(t, 1, got.Idle.Count)

	c.End()
	s = snapshot(t, p)
	last := s.of(c.PID())
	require.NotNil(t, last)
	assert.True(t, last.Ended)
	assert.EqualValues(t, 103, last.Launches[0].Calls)
	assert.Nil(t, snapshot(t, p).of(c.PID()), "in one Snapshot only")
	empty(t, p)
}

func TestThreeMillionCallsAreExact(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	l := stubcuda.Build(t)
	early := l.Start(t)
	early.Must("open %s", l.Library)
	p := start(t, l, Options{})
	attached(t, p, l.Library)
	late := l.Start(t)
	late.Must("open %s", l.Library)
	marked := l.Start(t)
	marked.Must("open %s", l.Marked)
	attached(t, p, l.Marked)

	all := []*stubcuda.Program{early, late, marked}
	done := make(chan struct{}, len(all))
	for _, c := range all {
		go func() {
			defer func() { done <- struct{}{} }()
			c.Do("threads 8")
			c.Do("launch 75000 1 3 64")
			c.Do("copy cuMemcpyHtoDAsync_v2 50000 12345")
			c.Do("fork launch 1000 1 3 64")
		}()
	}
	for range all {
		<-done
	}
	s := snapshot(t, p)
	lossless(t, s.Losses)
	for _, c := range all {
		got := s.of(c.PID())
		require.NotNil(t, got)
		require.Len(t, got.Launches, 1)
		assert.EqualValues(t, 600_000, got.Launches[0].Calls)
		assert.EqualValues(t, 1_800_000, got.Launches[0].Grid.Sum)
		assert.EqualValues(t, 600_000*64, got.Launches[0].Block.Sum)
		require.Len(t, got.Copies, 1)
		assert.EqualValues(t, 400_000, got.Copies[0].Bytes.Count)
		assert.EqualValues(t, 400_000*12345, got.Copies[0].Bytes.Sum)
	}
	assert.Len(t, s.Processes, 6, "with a child of each")
	for _, c := range all {
		c.End()
	}
	for range 2 {
		snapshot(t, p)
	}
	empty(t, p)
}

// Linux before 6.6 has no links for many probes, and some kernels have no type information.
func TestProbe_OlderKernels(t *testing.T) {
	l := stubcuda.Build(t)
	p := New(Options{RescanInterval: 50 * time.Millisecond})
	p.plain = true
	started(t, l, p)
	assert.Nil(t, p.mappings)
	c := l.Start(t)
	c.Must("open %s", l.Library)
	attached(t, p, l.Library)
	c.Must("kernel 2 gemm")
	c.Must("threads 4")
	c.Must("launchex 1000 2 9 128")
	c.Must("copy cuMemcpyDtoH_v2 1000 77")
	s := snapshot(t, p)
	lossless(t, s.Losses)
	got := s.of(c.PID())
	require.NotNil(t, got)
	began, _ := startOf(p.reader.stat(uint32(c.PID())))
	assert.Equal(t, began, got.ID.Start)
	require.Len(t, got.Launches, 1)
	assert.Equal(t, "gemm", got.Launches[0].Name)
	assert.EqualValues(t, 4000, got.Launches[0].Calls)
	assert.EqualValues(t, 36000, got.Launches[0].Grid.Sum)
	assert.EqualValues(t, 4000*77, got.Copies[0].TimedBytes)
	c.End()
	assert.True(t, snapshot(t, p).of(c.PID()).Ended)
	empty(t, p)
}

func TestProbe_FullMaps(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{MaxSums: 4, MaxAllocations: 16, RingBytes: uint32(os.Getpagesize())})
	c := l.Start(t)
	c.Must("open %s", l.Library)
	attached(t, p, l.Library)
	c.Must("alloc cuMemAlloc_v2 100 64")
	c.Must("function 1 _Z6kernelv")
	for i := range 10 {
		c.Must("launch 10 1 %d 32", 1<<i)
	}
	s := snapshot(t, p)
	assert.EqualValues(t, 94, s.Losses.MapFull["allocations"], "a process that is alone has a third of the map")
	got := s.of(c.PID())
	assert.EqualValues(t, 94, got.Lost["allocations"])
	require.Len(t, got.Memory, 1)
	assert.Equal(t, Volume{100, 6400}, got.Memory[0].Allocated)
	assert.EqualValues(t, 6*64, got.Memory[0].InUse)
	var launches, other uint64
	for _, n := range got.Launches {
		launches += n.Calls
		if n.Other {
			other += n.Calls
		}
	}
	assert.EqualValues(t, 100, launches)
	assert.EqualValues(t, 90, other, "the sum of allocations and that of the first launches have a line")
	assert.Equal(t, other, s.Losses.Folded)
	assert.Zero(t, s.Losses.MapFull["sums"])
	assert.LessOrEqual(t, count[cudaSumKey, cudaSum](t, p.objects.Sums, p.reader.cpus), 4)
	c.End()
	snapshot(t, p)
	empty(t, p)
}

func TestAFullRingIsCounted(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{RingBytes: uint32(os.Getpagesize())})
	c := l.Start(t)
	c.Must("open %s", l.Library)
	attached(t, p, l.Library)
	const asked = 200
	unwatched(p, func() {
		for i := range asked {
			c.Must("function %d kernel%d", i%60, i)
		}
	})
	s := snapshot(t, p)
	assert.Positive(t, s.Losses.RingFull)
	assert.Less(t, s.Losses.RingFull, uint64(asked))
}

func TestNamesPastTheLimitAreCounted(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{MaxNames: 3})
	c := l.Start(t)
	c.Must("open %s", l.Library)
	attached(t, p, l.Library)
	for i := range 5 {
		c.Must("function %d kernel%d", i, i)
		c.Must("launch 10 %d 1 32", i)
	}
	s := snapshot(t, p)
	assert.EqualValues(t, 2, s.Losses.NamesEvicted)
	named, calls := 0, uint64(0)
	for _, n := range s.of(c.PID()).Launches {
		calls += n.Calls
		if n.Name != "" {
			named++
		}
	}
	assert.Equal(t, 3, named)
	assert.EqualValues(t, 50, calls)
}

func TestSumsGoOnThroughExec(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	c := l.Start(t)
	c.Must("open %s", l.Library)
	attached(t, p, l.Library)
	c.Must("launch 10 1 2 32")
	c.Must("alloc cuMemAlloc_v2 2 512")
	c.Must("exec")
	for range 2 { // what came before is read, freed in the kernel, and kept
		got := snapshot(t, p).of(c.PID())
		require.NotNil(t, got)
		assert.False(t, got.Ended)
		assert.EqualValues(t, 10, got.Launches[0].Calls)
		assert.Equal(t, []Memory{{Kind: "device", Allocated: Volume{2, 1024}}}, got.Memory)
	}
	empty(t, p)
	c.Must("open %s", l.Library)
	c.Must("launch 5 1 2 32")
	c.Must("alloc cuMemAlloc_v2 1 100")
	s := snapshot(t, p)
	assert.Len(t, s.Processes, 1)
	got := s.of(c.PID())
	assert.EqualValues(t, 15, got.Launches[0].Calls)
	assert.Equal(t, []Memory{{Kind: "device", Allocated: Volume{3, 1124}, InUse: 100}}, got.Memory)
	c.End()
	assert.True(t, snapshot(t, p).of(c.PID()).Ended)
	assert.Empty(t, snapshot(t, p).Processes)
	assert.Empty(t, p.reader.kept)
	empty(t, p)
}

// The numbers of processes are given out in turn; the kernel lets root set where it stands.
func TestProbe_ReusedProcessID(t *testing.T) {
	const last = "/proc/sys/kernel/ns_last_pid"
	if _, err := os.Stat(last); err != nil {
		t.Skip("this kernel does not let process ids be chosen: ", err)
	}
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	first := l.Start(t)
	first.Must("open %s", l.Library)
	attached(t, p, l.Library)
	first.Must("launch 10 1 2 32")
	first.End()
	time.Sleep(20 * time.Millisecond) // start times have a resolution of 10 ms
	for range 200 {
		require.NoError(t, os.WriteFile(last, []byte(strconv.Itoa(first.PID()-1)), 0))
		second := l.Start(t)
		if second.PID() != first.PID() {
			second.End()
			continue
		}
		second.Must("open %s", l.Library)
		second.Must("launch 7 1 2 32")
		s := snapshot(t, p)
		require.Len(t, s.Processes, 2)
		assert.Less(t, s.Processes[0].ID.Start, s.Processes[1].ID.Start)
		assert.True(t, s.Processes[0].Ended)
		assert.EqualValues(t, 10, s.Processes[0].Launches[0].Calls)
		assert.False(t, s.Processes[1].Ended)
		assert.EqualValues(t, 7, s.Processes[1].Launches[0].Calls)
		return
	}
	t.Skip("the machine is too busy to be given the same process id twice")
}

func TestProbe_ShortProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	c := l.Start(t)
	c.Must("open %s", l.Library)
	attached(t, p, l.Library)
	const processes = 10_000
	seen, calls := 0, uint64(0)
	note := func() {
		for _, one := range snapshot(t, p).Processes {
			assert.True(t, one.Ended)
			seen++
			calls += one.Launches[0].Calls
		}
	}
	for i := range processes {
		c.Must("fork launch 3 1 2 32")
		if i%3000 == 0 {
			note()
		}
	}
	c.End()
	note()
	lossless(t, snapshot(t, p).Losses)
	assert.Equal(t, processes, seen)
	assert.EqualValues(t, 3*processes, calls)
	empty(t, p)
	assert.Empty(t, p.reader.starts)
	assert.Empty(t, p.reader.identities)
	assert.Empty(t, p.reader.names)
	assert.Empty(t, p.reader.ended)
}

func TestCloseWorksBeforeStartAndTwice(t *testing.T) {
	p := New(Options{})
	require.NoError(t, p.Close())
	_, err := p.Snapshot()
	require.ErrorIs(t, err, errNotStarted)
	require.NoError(t, p.Close())
}

func TestModulesAndReleasesAreCounted(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	c := l.Start(t)
	c.Must("open %s", l.Library)
	attached(t, p, l.Library)
	c.Must("call 3 cuModuleLoadData &0 0")
	c.Must("call 2 cuLibraryLoadData &1 0 0 0 0 0 0 0")
	c.Must("alloc cuMemAlloc_v2 5 1024")
	c.Must("free cuMemFree_v2")
	c.Must("alloc cuMemAlloc_v2 2 100")
	c.Must("call 4 cuMemFree_v2 0") // freeing nothing is nothing
	s := snapshot(t, p)
	lossless(t, s.Losses)
	got := s.of(c.PID())
	require.NotNil(t, got)
	assert.EqualValues(t, 5, got.Modules)
	assert.Equal(t, []Memory{{Kind: "device", Allocated: Volume{7, 5320}, Freed: Volume{5, 5120}, InUse: 200}}, got.Memory)
}
