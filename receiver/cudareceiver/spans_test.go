// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
	"github.com/gpuflight/gpuflight/semconv"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// addProcess writes the files of /proc for a process, and returns its id.
func addProcess(t *testing.T, root string, pid int32, environment string) probe.ProcessID {
	t.Helper()
	dir := filepath.Join(root, "proc", fmt.Sprint(pid))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	stat := fmt.Sprintf("%d (train) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 100 1", pid)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "environ"), []byte(environment), 0o600))
	return probe.ProcessID{PID: pid, Start: 100 * 10_000_000}
}

func all(td ptrace.Traces) (spans []ptrace.Span) {
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, s := range ss.Spans().All() {
				spans = append(spans, s)
			}
		}
	}
	return spans
}

func TestASpanIsTheHostsCall(t *testing.T) {
	cfg := config()
	cfg.RootPath = t.TempDir()
	id := addProcess(t, cfg.RootPath, 7, "OTEL_SERVICE_NAME=training\x00TRACEPARENT="+parent+"\x00")
	w := newWindow(cfg, newDescriber(cfg), 10, 1)
	for _, c := range []struct {
		name, failed string
		call         probe.Call
		attributes   map[string]any
	}{
		{
			"cuLaunchKernelEx vectorized", "",
			probe.Call{
				Function: "cuLaunchKernelEx", Kind: probe.CallLaunch, Kernel: "_Z10vectorizedIfEvi", Grid: [3]uint32{8, 2, 1}, Block: [3]uint32{256, 1, 1},
				SharedBytes: 48, Stream: 7, HasStream: true,
			},
			map[string]any{
				semconv.CUDAKernelName: "void vectorized<float>(int)", semconv.CUDAKernelSymbol: "_Z10vectorizedIfEvi",
				semconv.CUDAKernelGrid: []any{int64(8), int64(2), int64(1)}, semconv.CUDAKernelBlock: []any{int64(256), int64(1), int64(1)},
				semconv.CUDAKernelSharedMemoryDynamic: int64(48), semconv.CUDAStreamID: int64(7),
			},
		},
		{
			"cuLaunchKernel", "cuLaunchKernel: launch_failed",
			probe.Call{Function: "cuLaunchKernel", Kind: probe.CallLaunch, Handle: 0x10, Code: 719},
			map[string]any{semconv.CUDAKernelSharedMemoryDynamic: int64(0), semconv.ErrorType: "launch_failed"},
		},
		{
			"cuGraphLaunch", "", probe.Call{Function: "cuGraphLaunch", Kind: probe.CallGraph, Handle: 1, HasStream: true},
			map[string]any{semconv.CUDAStreamID: int64(0)},
		},
		{
			"cuMemcpyHtoDAsync_v2", "",
			probe.Call{Function: "cuMemcpyHtoDAsync_v2", Kind: probe.CallCopy, CopyKind: "HtoD", Async: true, Bytes: 4096, HasBytes: true},
			map[string]any{semconv.CUDAMemcpyKind: "HtoD", semconv.CUDAMemcpyAsync: true, semconv.CUDAMemcpySize: int64(4096)},
		},
		{
			"cuMemcpyBatchAsync", "", probe.Call{Function: "cuMemcpyBatchAsync", Kind: probe.CallCopy, Async: true},
			map[string]any{semconv.CUDAMemcpyAsync: true},
		},
		{
			"cuMemsetD8Async", "", probe.Call{Function: "cuMemsetD8Async", Kind: probe.CallSet, Bytes: 3, HasBytes: true},
			map[string]any{semconv.CUDAMemsetSize: int64(3)},
		},
		{
			"cuMemAlloc_v2", "cuMemAlloc_v2: out_of_memory",
			probe.Call{Function: "cuMemAlloc_v2", Kind: probe.CallAlloc, MemoryKind: "device", Bytes: 1 << 30, HasBytes: true, Code: 2},
			map[string]any{semconv.CUDAMemoryKind: "device", semconv.CUDAMemorySize: int64(1 << 30), semconv.ErrorType: "out_of_memory"},
		},
		{
			"cuMemFree_v2", "", probe.Call{Function: "cuMemFree_v2", Kind: probe.CallFree, Address: 0x7000, HasAddress: true},
			map[string]any{semconv.CUDAMemoryAddress: int64(0x7000)},
		},
		{
			"cuStreamSynchronize", "", probe.Call{Function: "cuStreamSynchronize", Kind: probe.CallWait, Stream: 7, HasStream: true, Code: notReady},
			map[string]any{semconv.CUDAStreamID: int64(7)},
		},
	} {
		c.call.Process, c.call.Start, c.call.End = id, 100, 250
		td, n := w.spans([]probe.Call{c.call})
		require.Equal(t, 1, n)
		s := all(td)[0]
		assert.Equal(t, c.name, s.Name())
		assert.Equal(t, ptrace.SpanKindClient, s.Kind(), c.name)
		assert.EqualValues(t, 100, s.StartTimestamp())
		assert.EqualValues(t, 250, s.EndTimestamp())
		assert.Equal(t, "0af7651916cd43dd8448eb211c80319c", s.TraceID().String())
		assert.Equal(t, "b7ad6b7169203331", s.ParentSpanID().String())
		assert.EqualValues(t, 0x301, s.Flags(), "sampled, and the parent is remote")
		c.attributes[semconv.CUDAAPIName] = c.call.Function
		assert.Equal(t, c.attributes, s.Attributes().AsRaw(), c.name)
		assert.Equal(t, c.failed, s.Status().Message(), c.name)
		assert.Equal(t, c.failed != "", s.Status().Code() == ptrace.StatusCodeError, c.name)
		resource := td.ResourceSpans().At(0).Resource().Attributes().AsRaw()
		assert.Equal(t, "training", resource[semconv.ServiceName])
		assert.EqualValues(t, 7, resource[semconv.ProcessPID])
	}
	_, roots := w.roots(20)
	assert.Zero(t, roots, "its root is another's")
}

func TestCallsWithoutAParentAreUnderASpanOfTheirOwn(t *testing.T) {
	cfg := config()
	cfg.RootPath = t.TempDir()
	var processes []probe.ProcessID
	for i, text := range []string{
		"", "TRACEPARENT=\x00", "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01\x00",
		"TRACEPARENT=00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01\x00", "TRACEPARENT=ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\x00",
		"TRACEPARENT=" + parent + "-x\x00", "TRACEPARENT=" + parent[:54] + "\x00", "TRACEPARENT=" + parent, // the last one was cut off
	} {
		processes = append(processes, addProcess(t, cfg.RootPath, int32(i+1), text))
	}
	w := newWindow(cfg, newDescriber(cfg), 10, 3)
	var calls []probe.Call
	for range 2 {
		for _, id := range processes {
			calls = append(calls, probe.Call{Process: id, User: 1000, Function: "cuCtxSynchronize", Kind: probe.CallWait, Start: 11, End: 12})
		}
	}
	td, n := w.spans(calls)
	require.Equal(t, len(calls), n)
	under := map[string]int{}
	ids := map[string]bool{}
	for _, s := range all(td) {
		assert.False(t, s.TraceID().IsEmpty())
		assert.NotEqual(t, parent[3:35], s.TraceID().String())
		assert.EqualValues(t, 0x101, s.Flags())
		under[s.TraceID().String()+s.ParentSpanID().String()]++
		ids[s.SpanID().String()] = true
	}
	assert.Len(t, under, len(processes), "a trace for each process")
	assert.Len(t, ids, len(calls))
	td, n = w.roots(20)
	require.Equal(t, len(processes), n)
	for _, s := range all(td) {
		assert.Equal(t, 2, under[s.TraceID().String()+s.SpanID().String()])
		assert.True(t, s.ParentSpanID().IsEmpty())
		assert.Equal(t, "train", s.Name())
		assert.Equal(t, ptrace.SpanKindInternal, s.Kind())
		assert.EqualValues(t, 10, s.StartTimestamp())
		assert.EqualValues(t, 20, s.EndTimestamp())
		assert.Equal(t, map[string]any{semconv.CUDAOperation: "session", semconv.CUDASessionWindow: int64(3)}, s.Attributes().AsRaw())
	}
}

func TestProcessesOfAWindowAreSelectedAndBounded(t *testing.T) {
	cfg := config()
	cfg.RootPath = t.TempDir()
	cfg.MaxProcesses = 3
	cfg.Exclude.PIDs = []int32{2}
	w := newWindow(cfg, newDescriber(cfg), 0, 1)
	var calls []probe.Call
	var selected []bool
	for pid := range int32(5) {
		id := addProcess(t, cfg.RootPath, pid+1, "")
		selected = append(selected, w.selects(id, 1000, probe.Identity{}))
		calls = append(calls, probe.Call{Process: id, User: 1000, Function: "cuCtxSynchronize", Kind: probe.CallWait})
	}
	assert.Equal(t, []bool{true, false, true, true, true}, selected, "what is too many is counted later")
	td, n := w.spans(calls)
	assert.Equal(t, 2, n)
	assert.EqualValues(t, 2, w.left())
	var pids []int64
	for _, rs := range td.ResourceSpans().All() {
		v, _ := rs.Resource().Attributes().Get(semconv.ProcessPID)
		pids = append(pids, v.Int())
	}
	slices.Sort(pids)
	assert.Equal(t, []int64{1, 3}, pids)
}

func TestNamesOfAWindowAreBounded(t *testing.T) {
	cfg := config()
	cfg.RootPath = t.TempDir()
	w := newWindow(cfg, newDescriber(cfg), 0, 1)
	calls := make([]probe.Call, maxKernelNames+10)
	for i := range calls {
		calls[i] = probe.Call{Function: "cuLaunchKernel", Kernel: fmt.Sprintf("kernel%d", i)}
	}
	td, n := w.spans(calls)
	assert.Equal(t, len(calls), n)
	assert.Equal(t, fmt.Sprintf("cuLaunchKernel kernel%d", len(calls)-1), all(td)[len(calls)-1].Name())
	assert.Len(t, w.names, 10)
}
