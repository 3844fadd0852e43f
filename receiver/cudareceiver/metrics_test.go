// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
	"github.com/gpuflight/gpuflight/semconv"
)

var began = time.Unix(1000, 0)

// at returns the time of the nth snapshot.
func at(n int) time.Time { return began.Add(time.Duration(n) * 10 * time.Second) }

func config() *Config { return createDefaultConfig().(*Config) }

// fakeProc lays out a /proc with one process.
func fakeProc(t *testing.T, root string, pid, ticks int, name, cgroup, environ string) {
	t.Helper()
	dir := filepath.Join(root, "proc", fmt.Sprint(pid))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for file, text := range map[string]string{
		"stat":    fmt.Sprintf("%d (%s) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 %d 1", pid, name, ticks),
		"cgroup":  "0::" + cgroup + "\n",
		"status":  fmt.Sprintf("NSpid:\t%d\t1\n", pid),
		"environ": environ,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
}

// points lists all points of metrics: name, attributes, value, and the start in seconds after began.
func points(md pmetric.Metrics) []string {
	var out []string
	since := func(ts pcommon.Timestamp) int { return int(ts.AsTime().Sub(began).Seconds()) }
	for _, rm := range md.ResourceMetrics().All() {
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			switch m.Type() {
			case pmetric.MetricTypeSum:
				for _, p := range m.Sum().DataPoints().All() {
					out = append(out, fmt.Sprintf("%s %v %d since %d", m.Name(), p.Attributes().AsRaw(), p.IntValue(), since(p.StartTimestamp())))
				}
			case pmetric.MetricTypeHistogram:
				for _, p := range m.Histogram().DataPoints().All() {
					out = append(out, fmt.Sprintf("%s %v n=%d sum=%g max=%g since %d", m.Name(), p.Attributes().AsRaw(), p.Count(), p.Sum(), p.Max(), since(p.StartTimestamp())))
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// everything is a process that did a bit of all.
func everything(id probe.ProcessID) probe.Process {
	captured := launch("_Z3mulv", 7)
	captured.Captured = true
	return probe.Process{
		ID: id, Launches: []probe.Launch{launch("_Z3addv", 3), captured},
		Graphs: 4, GraphNodes: 28, GraphsUnknown: 1,
		Copies: []probe.Copy{
			{Kind: "HtoD", Bytes: values(12, 2), Time: values(20, 2), TimedBytes: 8192},
			{Kind: "DtoH", Async: true, Bytes: values(3, 5)},
			{Bytes: values(3, 1)},
		},
		Sets: probe.Volume{Calls: 2, Bytes: 64},
		Memory: []probe.Memory{
			{Kind: "device", Allocated: probe.Volume{Calls: 3, Bytes: 300}, Freed: probe.Volume{Calls: 1, Bytes: 100}, InUse: 200},
			{Kind: "pinned", Allocated: probe.Volume{Calls: 1, Bytes: 10}, Freed: probe.Volume{Calls: 1, Bytes: 10}},
		},
		Waits:   []probe.Wait{{Function: "cuStreamSynchronize", Time: values(30, 1)}},
		Errors:  []probe.Error{{Function: "cuMemAlloc_v2", Code: 2, Calls: 6}, {Function: "ncclAllReduce", Code: 5, Calls: 1}},
		Modules: 9, Enqueue: values(10, 8), SampleEvery: 100, Idle: values(15, 2),
		Collectives: []probe.Collective{{Function: "ncclAllReduce", Bytes: values(20, 2), Time: values(16, 2)}},
	}
}

func TestEverySumBecomesAMetric(t *testing.T) {
	cfg := config()
	cfg.RootPath = t.TempDir()
	ps := newProcesses(cfg, began)
	md, n := ps.metrics(&probe.Snapshot{Time: at(1), Processes: []probe.Process{everything(probe.ProcessID{PID: 7, Start: 70_000_000})}})
	assert.Equal(t, counts{reported: 1}, n)
	assert.Equal(t, []string{
		"gpu.cuda.api.duration map[cuda.api.name:ncclAllReduce] n=2 sum=0.000131072 max=6.5536e-05 since 0",
		"gpu.cuda.collective.size map[cuda.api.name:ncclAllReduce] n=2 sum=2.097152e+06 max=1.048576e+06 since 0",
		"gpu.cuda.errors map[cuda.api.name:cuMemAlloc_v2 error.type:out_of_memory] 6 since 0",
		"gpu.cuda.errors map[cuda.api.name:ncclAllReduce error.type:nccl_5] 1 since 0",
		"gpu.cuda.graph.launch.calls map[] 4 since 0",
		"gpu.cuda.graph.node.launches map[] 28 since 0",
		"gpu.cuda.graph.unknown.launches map[] 1 since 0",
		"gpu.cuda.idle.duration map[] n=2 sum=6.5536e-05 max=3.2768e-05 since 0",
		"gpu.cuda.kernel.block.size map[cuda.kernel.name:add()] n=3 sum=768 max=0 since 0",
		"gpu.cuda.kernel.captured.launches map[cuda.kernel.name:mul()] 7 since 0",
		"gpu.cuda.kernel.grid.size map[cuda.kernel.name:add()] n=3 sum=48 max=0 since 0",
		"gpu.cuda.kernel.launch.calls map[cuda.kernel.name:add()] 3 since 0",
		"gpu.cuda.kernel.launch.duration map[] n=8 sum=8.192e-06 max=1.024e-06 since 0",
		"gpu.cuda.memory.allocation.calls map[cuda.memory.kind:device] 3 since 0",
		"gpu.cuda.memory.allocation.calls map[cuda.memory.kind:pinned] 1 since 0",
		"gpu.cuda.memory.allocations map[cuda.memory.kind:device] 300 since 0",
		"gpu.cuda.memory.allocations map[cuda.memory.kind:pinned] 10 since 0",
		"gpu.cuda.memory.copies map[cuda.memcpy.async:false cuda.memcpy.kind:HtoD] n=2 sum=8192 max=4096 since 0",
		"gpu.cuda.memory.copies map[cuda.memcpy.async:false] n=1 sum=8 max=8 since 0",
		"gpu.cuda.memory.copies map[cuda.memcpy.async:true cuda.memcpy.kind:DtoH] n=5 sum=40 max=8 since 0",
		"gpu.cuda.memory.copy.duration map[cuda.memcpy.async:false cuda.memcpy.kind:HtoD] n=2 sum=0.002097152 max=0.001048576 since 0",
		"gpu.cuda.memory.copy.timed.bytes map[cuda.memcpy.async:false cuda.memcpy.kind:HtoD] 8192 since 0",
		"gpu.cuda.memory.free.bytes map[cuda.memory.kind:device] 100 since 0",
		"gpu.cuda.memory.free.bytes map[cuda.memory.kind:pinned] 10 since 0",
		"gpu.cuda.memory.free.calls map[cuda.memory.kind:device] 1 since 0",
		"gpu.cuda.memory.free.calls map[cuda.memory.kind:pinned] 1 since 0",
		"gpu.cuda.memory.in_use map[cuda.memory.kind:device] 200 since 0",
		"gpu.cuda.memory.in_use map[cuda.memory.kind:pinned] 0 since 0",
		"gpu.cuda.memset.bytes map[] 64 since 0",
		"gpu.cuda.memset.calls map[] 2 since 0",
		"gpu.cuda.module.loads map[] 9 since 0",
		"gpu.cuda.sync.wait.duration map[cuda.api.name:cuStreamSynchronize] n=1 sum=1.073741824 max=1.073741824 since 0",
	}, points(md))

	// Names, units, kinds and attributes are those of the conventions.
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		d, ok := registered[m.Name()]
		require.True(t, ok, m.Name())
		assert.Equal(t, d.Unit, m.Unit(), m.Name())
		assert.NotEmpty(t, m.Description())
		check := func(a pcommon.Map) {
			for key := range a.All() {
				assert.Contains(t, d.Attributes, key, m.Name())
			}
		}
		if m.Type() == pmetric.MetricTypeHistogram {
			assert.Equal(t, semconv.Histogram, d.Instrument, m.Name())
			assert.Equal(t, pmetric.AggregationTemporalityCumulative, m.Histogram().AggregationTemporality())
			for _, p := range m.Histogram().DataPoints().All() {
				check(p.Attributes())
				assert.Equal(t, p.ExplicitBounds().Len()+1, p.BucketCounts().Len())
				assert.Equal(t, at(1), p.Timestamp().AsTime().Local())
			}
			continue
		}
		assert.Equal(t, d.Instrument == semconv.Counter, m.Sum().IsMonotonic(), m.Name())
		assert.Equal(t, pmetric.AggregationTemporalityCumulative, m.Sum().AggregationTemporality())
		for _, p := range m.Sum().DataPoints().All() {
			check(p.Attributes())
		}
	}
}

func TestBucketsKeepTheKernelsBounds(t *testing.T) {
	var h probe.Histogram
	for i := range h.Buckets {
		h.Buckets[i] = 1
	}
	h.Count = 9999 // was read while a call was being counted
	w := &writer{metrics: pmetric.NewMetricSlice()}
	p, ok := w.histogram(semconv.MetricGPUCUDAKernelBlockSize, blockBounds, 1).point(&h, 0)
	require.True(t, ok)
	assert.Equal(t, uint64(64), p.Count())
	assert.Equal(t, []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}, p.ExplicitBounds().AsRaw())
	assert.Equal(t, []uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 53}, p.BucketCounts().AsRaw())

	p, ok = w.histogram(semconv.MetricGPUCUDAMemoryCopies, sizeBounds, 1).point(&h, 0)
	require.True(t, ok)
	assert.Equal(t, []uint64{11, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 31}, p.BucketCounts().AsRaw())
	assert.InDelta(t, 1<<10, p.ExplicitBounds().At(0), 0)
	assert.InDelta(t, 1<<32, p.ExplicitBounds().At(11), 0)

	p, ok = w.histogram(semconv.MetricGPUCUDAIdleDuration, timeBounds, 1e9).point(&h, 0)
	require.True(t, ok)
	assert.InDelta(t, 256e-9, p.ExplicitBounds().At(0), 1e-15)
	assert.InDelta(t, 17.179869184, p.ExplicitBounds().At(p.ExplicitBounds().Len()-1), 1e-9)
}

func TestAProcessIsAResource(t *testing.T) {
	cfg := config()
	cfg.RootPath, cfg.HostName = t.TempDir(), "node-1"
	const uid = "01234567-89ab-cdef-0123-456789abcdef"
	fakeProc(t, cfg.RootPath, 7, 100, "python", "/kubepods/pod"+uid, "OTEL_SERVICE_NAME=train\x00OTEL_RESOURCE_ATTRIBUTES=team=ml,process.pid=1,host.name=liar\x00")
	version := filepath.Join(cfg.RootPath, "sys/module/nvidia/version")
	require.NoError(t, os.MkdirAll(filepath.Dir(version), 0o700))
	require.NoError(t, os.WriteFile(version, []byte("580.159.04\n"), 0o600))
	id := probe.ProcessID{PID: 7, Start: 100 * 10_000_000}
	ps := newProcesses(cfg, began)
	md, _ := ps.metrics(&probe.Snapshot{Time: at(1), Processes: []probe.Process{{ID: id, Graphs: 1}}})
	a := md.ResourceMetrics().At(0).Resource().Attributes().AsRaw()
	instance := a["service.instance.id"]
	assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, instance)
	assert.Equal(t, map[string]any{
		"service.name": "train", "service.instance.id": instance, "team": "ml", "host.name": "node-1",
		"process.pid": int64(7), "process.vpid": int64(1), "process.executable.name": "python", "k8s.pod.uid": uid,
		"hw.driver_version": "580.159.04", "telemetry.sdk.name": "gpuflight-ebpf",
	}, a)
	assert.Equal(t, semconv.SchemaURL, md.ResourceMetrics().At(0).SchemaUrl())

	// The last sums come from a process that /proc does not know any more; after them it is forgotten, and
	// its id may be another's.
	require.NoError(t, os.RemoveAll(filepath.Join(cfg.RootPath, "proc/7")))
	md, _ = ps.metrics(&probe.Snapshot{Time: at(2), Processes: []probe.Process{{ID: id, Ended: true, Graphs: 3}}})
	assert.Equal(t, a, md.ResourceMetrics().At(0).Resource().Attributes().AsRaw())
	assert.Equal(t, []string{"gpu.cuda.graph.launch.calls map[] 3 since 0"}, points(md))
	assert.Empty(t, ps.known)

	again := probe.ProcessID{PID: 7, Start: 200 * 10_000_000}
	md, n := ps.metrics(&probe.Snapshot{Time: at(3), Processes: []probe.Process{{ID: again, Graphs: 2}}})
	assert.Equal(t, counts{reported: 1}, n)
	assert.Equal(t, []string{"gpu.cuda.graph.launch.calls map[] 2 since 20"}, points(md), "what it did, it did since the snapshot before")
	other := md.ResourceMetrics().At(0).Resource().Attributes().AsRaw()
	assert.NotEqual(t, instance, other["service.instance.id"])
	assert.NotContains(t, other, "service.name")

	// The kernel names a process that has ended before its first collection.
	container := strings.Repeat("0a", 32)
	md, _ = ps.metrics(&probe.Snapshot{Time: at(3), Processes: []probe.Process{{
		ID: probe.ProcessID{PID: 8, Start: 1}, Ended: true, Graphs: 2,
		Identity: probe.Identity{Executable: "short", Cgroup: "0::/docker/" + container + "\n"},
	}}})
	short := md.ResourceMetrics().At(0).Resource().Attributes().AsRaw()
	assert.Equal(t, "short", short["process.executable.name"])
	assert.Equal(t, container, short["container.id"])
	assert.Equal(t, "node-1", short["host.name"])

	md, n = ps.metrics(&probe.Snapshot{Time: at(4)})
	assert.Zero(t, md.DataPointCount())
	assert.Zero(t, n)
	assert.Empty(t, ps.known)
}

func TestProcessesAreSelectedAndBounded(t *testing.T) {
	cfg := config()
	cfg.RootPath = t.TempDir()
	cfg.MaxProcesses = 2
	cfg.Exclude.Executables = []string{"probe*"}
	fakeProc(t, cfg.RootPath, 1, 1, "probe-agent", "/", "")
	var processes []probe.Process
	for pid := range int32(4) {
		processes = append(processes, probe.Process{ID: probe.ProcessID{PID: pid + 1, Start: 10_000_000}, Graphs: uint64(pid) + 1})
	}
	ps := newProcesses(cfg, began)
	for i := range 3 {
		md, n := ps.metrics(&probe.Snapshot{Time: at(i + 1), Processes: processes})
		assert.Equal(t, counts{reported: 2, excluded: 1, dropped: 1}, n)
		assert.Equal(t, []string{"gpu.cuda.graph.launch.calls map[] 2 since 0", "gpu.cuda.graph.launch.calls map[] 3 since 0"}, points(md))
	}
	processes[1].Ended = true
	_, n := ps.metrics(&probe.Snapshot{Time: at(4), Processes: processes})
	assert.Equal(t, counts{reported: 2, excluded: 1, dropped: 1}, n)
	processes[3].Ended = true
	_, n = ps.metrics(&probe.Snapshot{Time: at(5), Processes: processes})
	assert.Equal(t, counts{reported: 2, excluded: 1, dropped: 1, lost: 1}, n)
	processes[3].Ended = false
	processes = slices.Delete(processes, 1, 2)
	md, n := ps.metrics(&probe.Snapshot{Time: at(5), Processes: processes})
	assert.Equal(t, counts{reported: 2, excluded: 1}, n, "there is room again")
	assert.Equal(t, []string{"gpu.cuda.graph.launch.calls map[] 3 since 0", "gpu.cuda.graph.launch.calls map[] 4 since 0"}, points(md), "the newcomer's sums are older than the last snapshot")
	assert.Len(t, ps.known, 3)
}

func TestProcesses_OneUserWithTenThousand(t *testing.T) {
	cfg := config()
	cfg.RootPath = t.TempDir()
	var processes []probe.Process
	for pid := range int32(10_000) {
		processes = append(processes, probe.Process{ID: probe.ProcessID{PID: pid + 1, Start: 10_000_000}, User: 1, Graphs: 1})
	}
	ps := newProcesses(cfg, began)
	_, n := ps.metrics(&probe.Snapshot{Time: at(1), Processes: processes})
	assert.Equal(t, counts{reported: 256, dropped: 9744}, n)
	victims := 0
	for pid := range int32(200) {
		processes = append(processes, probe.Process{ID: probe.ProcessID{PID: pid + 20_001, Start: 10_000_000}, User: 2, Graphs: 1})
	}
	md, n := ps.metrics(&probe.Snapshot{Time: at(2), Processes: processes})
	for _, rm := range md.ResourceMetrics().All() {
		if v, _ := rm.Resource().Attributes().Get("process.pid"); v.Int() > 20_000 {
			victims++
		}
	}
	assert.Equal(t, 128, victims, "half of what the first user left")
	assert.Equal(t, counts{reported: 256 + 128, dropped: 9744 + 72}, n)
	_, n = ps.metrics(&probe.Snapshot{Time: at(3), Processes: processes[10_000:]})
	assert.Equal(t, counts{reported: 128, dropped: 72}, n, "those of the first user were there until now")
	_, n = ps.metrics(&probe.Snapshot{Time: at(4), Processes: processes[10_000:]})
	assert.Equal(t, counts{reported: 200}, n)
}

func TestCallsBeyondTheShareOfAProcess(t *testing.T) {
	cfg := config()
	cfg.RootPath = t.TempDir()
	ps := newProcesses(cfg, began)
	md, _ := ps.metrics(&probe.Snapshot{Time: at(1), Processes: []probe.Process{{
		ID: probe.ProcessID{PID: 1, Start: 10_000_000}, Lost: map[string]uint64{"threads": 3, "allocations": 2},
		Launches: []probe.Launch{{Other: true, Calls: 7}},
	}}})
	assert.Equal(t, []string{
		"gpu.cuda.calls.lost map[cuda.lost.reason:allocations] 2 since 0",
		"gpu.cuda.calls.lost map[cuda.lost.reason:threads] 3 since 0",
		"gpu.cuda.kernel.launch.calls map[cuda.kernel.name:_other] 7 since 0",
	}, points(md))
}

func TestErrorNames(t *testing.T) {
	for _, c := range []struct {
		function string
		code     int32
		want     string
	}{
		{"cuLaunchKernel", 700, "illegal_address"},
		{"cuLaunchKernel", 719, "launch_failed"},
		{"cuLaunchKernel", 12345, "cuda_12345"},
		{"", -1, "cuda_-1"},
		{"cudaMalloc", 2, "cudart_2"},
		{"ncclSend", 3, "nccl_3"},
	} {
		assert.Equal(t, c.want, errorName(c.function, c.code))
	}
}
