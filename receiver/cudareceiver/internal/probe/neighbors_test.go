// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// Each test has an attacker, which takes as much of a table as possible, and a later victim. The
// victim's counts are exact. The attacker's calls are counted, or are losses of the attacker.

// attackerID is another user than the test's.
const attackerID = 54321

// sameOrOther runs a test with an attacker of the victim's user, and with one of another user.
func sameOrOther(t *testing.T, test func(t *testing.T, uid int)) {
	t.Helper()
	t.Run("same user", func(t *testing.T) { test(t, os.Geteuid()) })
	t.Run("other user", func(t *testing.T) { test(t, attackerID) })
}

// neighbors starts a probe, an attacker and a victim, both of which have loaded the driver.
func neighbors(t *testing.T, uid int, o Options, env ...string) (p *Probe, attacker, victim *stubcuda.Program) {
	t.Helper()
	l := stubcuda.Build(t)
	p = start(t, l, o)
	victim, attacker = l.Start(t, env...), l.Start(t, env...)
	for _, c := range []*stubcuda.Program{victim, attacker} {
		c.Must("open %s", l.Library)
		c.Must("load %s", l.NCCL)
	}
	attached(t, p, l.Library, l.NCCL)
	attacker.Must("user %d", uid)
	return p, attacker, victim
}

// launched returns a process's launches: all, and those of each named kernel.
func launched(p *Process) (all uint64, named map[string]uint64) {
	named = map[string]uint64{}
	if p == nil {
		return 0, named
	}
	for i := range p.Launches {
		all += p.Launches[i].Calls
		if p.Launches[i].Name != "" {
			named[p.Launches[i].Name] += p.Launches[i].Calls
		}
	}
	return all, named
}

func TestNeighbors_Kernels(t *testing.T) {
	sameOrOther(t, func(t *testing.T, uid int) {
		p, attacker, victim := neighbors(t, uid, Options{})
		attacker.Must("kernels 20000")
		attacker.Must("copy cuMemcpyHtoD_v2 10 4096")
		want := map[string]uint64{}
		for i := range 10 {
			victim.Must("function %d kernel%d", i, i)
			victim.Must("launch 500 %d 8 256", i)
			want[fmt.Sprintf("kernel%d", i)] = 500
		}
		victim.Must("copy cuMemcpyHtoD_v2 100 4096")
		victim.Must("alloc cuMemAlloc_v2 10 64")
		victim.Must("wait cuStreamSynchronize 5")
		victim.Must("call 6 ncclAllReduce 1 2 100 7 0 0 0")
		victim.Must("capture 7 1")
		victim.Must("graph 3")

		s := snapshot(t, p)
		all, named := launched(s.of(victim.PID()))
		t.Logf("victim: %d of 5,007 launches counted", all)
		want["kernel1"] += 7
		assert.Equal(t, want, named)
		got := s.of(victim.PID())
		require.NotNil(t, got)
		assert.EqualValues(t, 5007, all)
		require.Len(t, got.Copies, 1)
		assert.EqualValues(t, 100, got.Copies[0].Bytes.Count)
		assert.Equal(t, []Memory{{Kind: "device", Allocated: Volume{10, 640}, InUse: 640}}, got.Memory)
		require.Len(t, got.Waits, 1)
		assert.EqualValues(t, 5, got.Waits[0].Time.Count)
		require.Len(t, got.Collectives, 1)
		assert.EqualValues(t, 6, got.Collectives[0].Bytes.Count)
		assert.EqualValues(t, 21, got.GraphNodes)
		assert.Empty(t, lostOf(got))

		hostile := s.of(attacker.PID())
		require.NotNil(t, hostile)
		all, _ = launched(hostile)
		assert.EqualValues(t, 20_000, all+lostOf(hostile)["sums"])
		assert.EqualValues(t, 20_000, all, "the number of launches is exact without a line for each kernel")
		require.Len(t, hostile.Copies, 1, "kernels leave room for other calls")
		assert.EqualValues(t, 10, hostile.Copies[0].Bytes.Count)
		attacker.End()
		victim.End()
		snapshot(t, p)
		empty(t, p)
	})
}

func TestNeighbors_KernelsOfManyProcesses(t *testing.T) {
	p, attacker, victim := neighbors(t, attackerID, Options{})
	attacker.Must("children 50 kernels 400")
	victim.Must("function 1 _Z6kernelv")
	victim.Must("launch 5000 1 8 256")
	s := snapshot(t, p)
	all, named := launched(s.of(victim.PID()))
	t.Logf("victim: %d of 5,000 launches counted", all)
	assert.Equal(t, map[string]uint64{"_Z6kernelv": 5000}, named)
	var hostile, other uint64
	for i := range s.Processes {
		if int(s.Processes[i].ID.PID) != victim.PID() {
			all, _ := launched(&s.Processes[i])
			assert.EqualValues(t, 400, all)
			hostile += all
			for _, l := range s.Processes[i].Launches {
				if l.Other {
					other += l.Calls
				}
			}
		}
	}
	assert.EqualValues(t, 20_000, hostile)
	assert.InDelta(t, defaultSums/2, hostile-other, 64, "a user has half of the map")
}

func TestNeighbors_Threads(t *testing.T) {
	sameOrOther(t, func(t *testing.T, uid int) {
		p, attacker, victim := neighbors(t, uid, Options{MaxThreads: 300})
		attacker.Must("park 400 launch")
		victim.Must("function 1 _Z6kernelv")
		victim.Must("threads 8")
		victim.Must("launch 625 1 8 256")
		victim.Must("copy cuMemcpyDtoH_v2 10 4096")
		s := snapshot(t, p)
		all, named := launched(s.of(victim.PID()))
		t.Logf("victim: %d of 5,000 launches counted", all)
		assert.Equal(t, map[string]uint64{"_Z6kernelv": 5000}, named)
		got := s.of(victim.PID())
		require.NotNil(t, got)
		require.Len(t, got.Copies, 1)
		assert.EqualValues(t, 80, got.Copies[0].Time.Count)
		assert.Empty(t, lostOf(got))
		hostile, _ := launched(s.of(attacker.PID()))
		assert.EqualValues(t, 400, hostile)
		attacker.End()
		victim.End()
		snapshot(t, p)
		empty(t, p)
	})
}

func TestNeighbors_ThreadsThatReplaceTheirProgram(t *testing.T) {
	p, attacker, victim := neighbors(t, os.Geteuid(), Options{MaxThreads: 30})
	library := ""
	for _, l := range p.Libraries() {
		if filepath.Base(l.Path) == "libcuda.so.1" {
			library = l.Path
		}
	}
	require.NotEmpty(t, library)
	for range 40 {
		attacker.Must("execthread")
		attacker.Must("open %s", library)
		snapshot(t, p)
	}
	victim.Must("launch 100 1 8 256")
	all, _ := launched(snapshot(t, p).of(victim.PID()))
	assert.EqualValues(t, 100, all)
	all, _ = launched(snapshot(t, p).of(attacker.PID()))
	assert.EqualValues(t, 40, all)
	attacker.End()
	victim.End()
	snapshot(t, p)
	empty(t, p)
}

func TestNeighbors_Allocations(t *testing.T) {
	sameOrOther(t, func(t *testing.T, uid int) {
		p, attacker, victim := neighbors(t, uid, Options{MaxAllocations: 600})
		attacker.Must("alloc cuMemAlloc_v2 1000 64")
		victim.Must("alloc cuMemAlloc_v2 50 64")
		s := snapshot(t, p)
		got, hostile := s.of(victim.PID()), s.of(attacker.PID())
		require.NotNil(t, got)
		assert.Equal(t, []Memory{{Kind: "device", Allocated: Volume{50, 3200}, InUse: 3200}}, got.Memory)
		assert.Empty(t, lostOf(got))
		require.Len(t, hostile.Memory, 1)
		assert.Equal(t, Volume{1000, 64_000}, hostile.Memory[0].Allocated)
		assert.EqualValues(t, 1000, uint64(hostile.Memory[0].InUse)/64+lostOf(hostile)["allocations"])

		victim.Must("free cuMemFree_v2")
		attacker.Must("free cuMemFree_v2")
		s = snapshot(t, p)
		assert.Zero(t, s.of(victim.PID()).Memory[0].InUse)
		assert.Zero(t, s.of(attacker.PID()).Memory[0].InUse)
		attacker.Must("alloc cuMemAlloc_v2 50 64")
		assert.EqualValues(t, 3200, snapshot(t, p).of(attacker.PID()).Memory[0].InUse, "what was released is free again")
		attacker.End()
		victim.End()
		snapshot(t, p)
		empty(t, p)
	})
}

func TestNeighbors_Records(t *testing.T) {
	sameOrOther(t, func(t *testing.T, uid int) {
		p, attacker, victim := neighbors(t, uid, Options{})
		attacker.Must("events 70000")
		victim.Must("function 1 _Z6kernelv")
		victim.Must("capture 7 1")
		victim.Must("graph 3")
		s := snapshot(t, p)
		got := s.of(victim.PID())
		require.NotNil(t, got)
		assert.EqualValues(t, 3, got.Graphs)
		assert.EqualValues(t, 21, got.GraphNodes)
		assert.Zero(t, got.GraphsUnknown)
		require.Len(t, got.Launches, 1)
		assert.True(t, got.Launches[0].Captured)
		assert.Empty(t, lostOf(got))
		assert.EqualValues(t, 70_002, uint64(count[cudaAddress, uint64](t, p.objects.Records, 1))-2+lostOf(s.of(attacker.PID()))["records"],
			"the attacker's events, its capture and its stream, and the victim's graphs")
		attacker.End()
		victim.End()
		snapshot(t, p)
		empty(t, p)
	})
}

func TestNeighbors_Names(t *testing.T) {
	sameOrOther(t, func(t *testing.T, uid int) {
		p, attacker, victim := neighbors(t, uid, Options{})
		want := map[string]uint64{}
		unwatched(p, func() { // the ring is not emptied meanwhile
			attacker.Must("names 5000")
			for i := range 50 {
				victim.Must("function %d kernel%d", i, i)
				victim.Must("launch 100 %d 8 256", i)
				want[fmt.Sprintf("kernel%d", i)] = 100
			}
		})
		s := snapshot(t, p)
		_, named := launched(s.of(victim.PID()))
		assert.Equal(t, want, named)
		assert.Empty(t, lostOf(s.of(victim.PID())))
		assert.Positive(t, s.Losses.RingFull)
		assert.Equal(t, s.Losses.RingFull, lostOf(s.of(attacker.PID()))["names"])
		attacker.Must("names 100")
		assert.Equal(t, s.Losses.RingFull, snapshot(t, p).Losses.RingFull, "the ring was emptied")
	})
}

func TestNeighbors_Processes(t *testing.T) {
	p, attacker, victim := neighbors(t, attackerID, Options{MaxProcesses: 40})
	attacker.Must("children 100 kernels 3")
	victim.Must("function 1 _Z6kernelv")
	victim.Must("launch 5000 1 8 256")
	s := snapshot(t, p)
	all, named := launched(s.of(victim.PID()))
	t.Logf("victim: %d of 5,000 launches counted", all)
	assert.Equal(t, map[string]uint64{"_Z6kernelv": 5000}, named)
	assert.Empty(t, lostOf(s.of(victim.PID())))
	var hostile uint64
	for i := range s.Processes {
		if int(s.Processes[i].ID.PID) != victim.PID() {
			all, _ := launched(&s.Processes[i])
			hostile += all
		}
	}
	assert.EqualValues(t, 60, hostile, "a user has half of the map")
	assert.EqualValues(t, 300, hostile+refused(s)[attackerID])
	attacker.End()
	victim.End()
	require.Eventually(t, func() bool {
		return len(snapshot(t, p).Processes) == 0
	}, waitLimit, 10*time.Millisecond, "children end with their parent, and soon after")
	empty(t, p)
}

// A user may have 65,536 further ids in a namespace, as /etc/subuid allows.
func TestNeighbors_UsersOfANamespace(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{MaxProcesses: 40})
	if !knowsNamespaces(p) {
		t.Skip("this kernel has no type information")
	}
	victim := l.Start(t)
	victim.Must("open %s", l.Library)
	attached(t, p, l.Library)
	const ids = 200_000
	for i := range 5 {
		attacker := l.Start(t)
		attacker.Must("open %s", l.Library)
		attacker.Must("user %d", attackerID)
		attacker.Must("namespace")
		for kind, id := range map[string]int{"uid": ids + i, "gid": os.Getegid()} {
			path := fmt.Sprintf("/proc/%d/%s_map", attacker.PID(), kind)
			require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "0 %d 1", id), 0))
		}
		attacker.Must("user 0")
		if i > 0 {
			attacker.Must("namespace 0 0 1") // in the one of the user
		}
		attacker.Must("children 20 kernels 3")
	}
	victim.Must("launch 5000 1 8 256")
	s := snapshot(t, p)
	all, _ := launched(s.of(victim.PID()))
	assert.EqualValues(t, 5000, all)
	assert.Len(t, s.Processes, 21, "half of the map, and the victim")
	assert.Equal(t, map[uint32]uint64{attackerID: 240}, refused(s))
}

// Processes of most containers have the user id of root or another common one.
func TestNeighbors_Containers(t *testing.T) {
	p, attacker, victim := neighbors(t, os.Geteuid(), Options{MaxProcesses: 40})
	if !knowsNamespaces(p) {
		t.Skip("this kernel has no type information")
	}
	attacker.Must("container")
	attacker.Must("children 100 kernels 3")
	victim.Must("container")
	victim.Must("children 5 launch 1000 1 8 256")
	s := snapshot(t, p)
	var got, hostile uint64
	for i := range s.Processes {
		all, _ := launched(&s.Processes[i])
		if all == 1000 {
			got += all
		} else {
			hostile += all
		}
	}
	t.Logf("victim: %d of 5,000 launches counted", got)
	assert.EqualValues(t, 5000, got)
	var lost uint64
	for _, n := range refused(s) {
		lost += n
	}
	assert.EqualValues(t, 300, hostile+lost)
	assert.EqualValues(t, 60, hostile, "a container has half of the map")
}

func TestNeighbors_ProcessesThatEnded(t *testing.T) {
	p, attacker, victim := neighbors(t, attackerID, Options{MaxProcesses: 40})
	unwatched(p, func() {
		for range 10 {
			for range 10 {
				attacker.Must("fork kernels 3")
			}
			require.NoError(t, p.reader.takeEnded())
		}
		victim.Must("fork launch 5 1 8 256")
		require.NoError(t, p.reader.takeEnded())
	})
	s := snapshot(t, p)
	var ended, got int
	for i := range s.Processes {
		all, _ := launched(&s.Processes[i])
		if all == 5 {
			got++
		} else {
			assert.EqualValues(t, 3, all)
			ended++
		}
	}
	assert.Equal(t, 1, got, "the victim's child")
	assert.EqualValues(t, 100, uint64(ended)+s.Losses.MapFull["ended"])
}

func TestNeighbors_TracedCalls(t *testing.T) {
	sameOrOther(t, func(t *testing.T, uid int) {
		p, attacker, victim := neighbors(t, uid, Options{})
		calls := func(tr *Trace) (got, hostile int) {
			for _, c := range take(tr) {
				if int(c.Process.PID) == victim.PID() {
					got++
				} else {
					hostile++
				}
			}
			return got, hostile
		}
		t.Run("ring", func(t *testing.T) {
			tr := tracing(t, p, TraceOptions{RingBytes: uint32(16 * os.Getpagesize())})
			for range 2 {
				unwatched(p, func() {
					attacker.Must("launch 5000 1 8 256")
					victim.Must("launch 30 1 8 256")
				})
				got, hostile := calls(tr)
				assert.Equal(t, 30, got)
				assert.Positive(t, hostile)
				assert.Zero(t, tracedLosses(tr)[int32(victim.PID())])
			}
			require.NoError(t, tr.Stop())
			assert.Equal(t, tr.Losses().RingFull, tracedLosses(tr)[int32(attacker.PID())])
		})
		t.Run("spans", func(t *testing.T) {
			tr := tracing(t, p, TraceOptions{MaxCalls: 100})
			attacker.Must("launch 5000 1 8 256")
			victim.Must("launch 30 1 8 256")
			got, hostile := calls(tr)
			assert.Equal(t, 30, got)
			assert.EqualValues(t, 5000, uint64(hostile)+tracedLosses(tr)[int32(attacker.PID())])
			require.NoError(t, tr.Stop())
		})
	})
}

func TestNeighbors_TracedCallsInFlight(t *testing.T) {
	sameOrOther(t, func(t *testing.T, uid int) {
		p, attacker, victim := neighbors(t, uid, Options{}, "STUB_BLOCK=1")
		tr := tracing(t, p, TraceOptions{MaxInFlight: 90})
		attacker.Must("park 120 wait")
		require.Eventually(t, func() bool {
			n := uint64(0)
			require.NoError(t, forEach(tr.objects.Flights, 1, func(traceFlight, []traceEvent) { n++ }))
			return n+tr.Losses().InFlightFull == 120
		}, waitLimit, 10*time.Millisecond)
		victim.Must("threads 4")
		victim.Must("launch 25 1 8 256")
		n := 0
		for _, c := range take(tr) {
			assert.EqualValues(t, victim.PID(), c.Process.PID)
			n++
		}
		assert.Equal(t, 100, n)
		require.NoError(t, tr.Stop())
		losses := tr.Losses()
		assert.EqualValues(t, 120, losses.Unfinished+tracedLosses(tr)[int32(attacker.PID())])
	})
}
