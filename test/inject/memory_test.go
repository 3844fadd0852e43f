// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inject

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/procfs"
)

// used returns the minor page faults and processor time of all threads of a process except the
// first.
func used(t *testing.T, pid int) (faults uint64, took time.Duration) {
	t.Helper()
	folder := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, thread := range threads {
		s, ok := procfs.ParseStat(procfs.ReadFile(folder + "/" + thread.Name() + "/stat"))
		if !ok || thread.Name() == strconv.Itoa(pid) {
			continue // it has exited, or is the first
		}
		faults += s.Faults
		took += s.Processor
	}
	return faults, took
}

// TestRecorder_ConstantMemory checks that the recorder reuses its memory. Releasing and
// reallocating pages costs the recorder time, and interrupts each processor that runs the program.
func TestRecorder_ConstantMemory(t *testing.T) {
	b := newBench(t)
	in, stdin, err := os.Pipe()
	require.NoError(t, err)
	defer stdin.Close()
	p := b.begin("steady", in)
	require.NoError(t, in.Close())
	began := time.Now()
	time.Sleep(3 * time.Second) // until the recorder has allocated its memory
	faults, took := used(t, p.pid)
	middle := time.Now()
	time.Sleep(5 * time.Second)
	faultsAfter, tookAfter := used(t, p.pid)
	part := time.Since(middle).Seconds() / time.Since(began).Seconds()
	require.NoError(t, stdin.Close())
	require.NoError(t, p.Wait(), p.stderr)
	all, _, _ := b.recorded()
	spans := part * float64(len(all))
	each := float64(faultsAfter-faults) / spans
	t.Logf("%.0f spans; of each %.3f page faults and %.1f µs", spans, each, float64((tookAfter-took).Microseconds())/spans)
	require.Greater(t, spans, 10_000.0)
	// With the default settings of the garbage collector it is about 0.3.
	assert.Less(t, each, 0.25)
}
