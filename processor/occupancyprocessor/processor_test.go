// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpuflight/gpuflight/internal/occupancy"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
	"github.com/gpuflight/gpuflight/processor/occupancyprocessor/internal/metadata"
	"github.com/gpuflight/gpuflight/semconv"
)

// raw is a set of attributes.
type raw = map[string]any

// h200 is the resource of a session with one H200.
func h200() raw {
	return raw{semconv.CUDADeviceComputeCapability: "9.0", semconv.CUDADeviceSMCount: 132, semconv.HWName: "NVIDIA H200"}
}

// reduce is a kernel that runs 8 blocks of 8 warps on a multiprocessor of an H200.
func reduce(changes raw) raw {
	return with(raw{
		semconv.CUDAOperation:                  semconv.CUDAOperationKernel,
		semconv.CUDAKernelName:                 "block_reduce_naive(float const*, float*, int)",
		semconv.CUDAKernelGrid:                 []any{16384, 1, 1},
		semconv.CUDAKernelBlock:                []any{256, 1, 1},
		semconv.CUDAKernelRegistersPerThread:   16,
		semconv.CUDAKernelSharedMemoryStatic:   0,
		semconv.CUDAKernelSharedMemoryDynamic:  1024,
		semconv.CUDAKernelSharedMemoryExecuted: 32768,
	}, changes)
}

// upload is a copy of a megabyte in ten microseconds, see micros.
func upload(changes raw) raw {
	return with(raw{
		semconv.CUDAOperation: semconv.CUDAOperationMemcpy, semconv.CUDAMemcpyKind: "HtoD", semconv.CUDAMemcpySize: 1_000_000,
	}, changes)
}

// with returns a copy of a with changes; nil takes a key away.
func with(a, changes raw) raw {
	out := raw{}
	for _, m := range []raw{a, changes} {
		for k, v := range m {
			if v == nil {
				delete(out, k)
			} else {
				out[k] = v
			}
		}
	}
	return out
}

// micros is the duration of every span of traces.
const micros = 10

func traces(t testing.TB, resource raw, spans ...raw) ptrace.Traces {
	t.Helper()
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	require.NoError(t, rs.Resource().Attributes().FromRaw(resource))
	ss := rs.ScopeSpans().AppendEmpty()
	for _, a := range spans {
		span := ss.Spans().AppendEmpty()
		span.SetStartTimestamp(1_000_000)
		span.SetEndTimestamp(1_000_000 + micros*1000)
		require.NoError(t, span.Attributes().FromRaw(a)) // in the random order of a Go map
	}
	return td
}

// harness runs spans through a processor and keeps its counts.
type harness struct {
	t   testing.TB
	tel *componenttest.Telemetry
	p   *occupancyProcessor
}

func newHarness(t testing.TB, devices ...DeviceConfig) *harness {
	t.Helper()
	h := &harness{t: t, tel: componenttest.NewTelemetry()}
	cfg := &Config{Devices: devices}
	require.NoError(t, cfg.Validate())
	var err error
	h.p, err = newProcessor(cfg, h.tel.NewTelemetrySettings())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, h.p.shutdown(context.Background()))
		require.NoError(t, h.tel.Shutdown(context.Background()))
	})
	return h
}

// run returns the attributes of the spans afterwards.
func (h *harness) run(resource raw, spans ...raw) []raw {
	h.t.Helper()
	td := traces(h.t, resource, spans...)
	td, err := h.p.process(context.Background(), td)
	require.NoError(h.t, err)
	return attributes(td)
}

func attributes(td ptrace.Traces) []raw {
	var out []raw
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, span := range ss.Spans().All() {
				out = append(out, span.Attributes().AsRaw())
			}
		}
	}
	return out
}

// added is what a span has that it did not have, or that it had otherwise.
func added(before, after raw) raw {
	m := pcommon.NewMap()
	_ = m.FromRaw(before) // makes the numbers' types alike
	was, out := m.AsRaw(), raw{}
	for k, v := range after {
		if old, ok := was[k]; !ok || !assert.ObjectsAreEqual(old, v) {
			out[k] = v
		}
	}
	for k := range was {
		if _, ok := after[k]; !ok {
			out[k] = nil
		}
	}
	return out
}

// count returns the value of one of the processor's own counters, by its attributes as
// "name{k=v,k=v}".
func (h *harness) counts() map[string]int64 {
	h.t.Helper()
	out := map[string]int64{}
	for _, name := range []string{"annotated", "disagreements", "not_computed", "spans"} {
		m, err := h.tel.GetMetric("otelcol_processor_occupancy_" + name)
		if err != nil {
			continue // nothing was counted
		}
		for _, p := range points(h.t, m) {
			out[name+"{"+p.labels+"}"] = p.value
		}
	}
	return out
}

func TestKernelOnADescribedDevice(t *testing.T) {
	h := newHarness(t)
	before := reduce(nil)
	got := h.run(h200(), before)
	assert.Equal(t, raw{
		semconv.CUDAOccupancyTheoretical:       1.0,
		semconv.CUDAOccupancyLimiter:           []any{"warps"},
		semconv.CUDAOccupancyActiveBlocksPerSM: int64(8),
		semconv.CUDAOccupancyActiveWarpsPerSM:  int64(64),
		semconv.CUDAOccupancyWaves:             16384.0 / 1056,
		semconv.CUDAOccupancyGridFill:          16384.0 / (16 * 1056),
	}, added(before, got[0]))
	assert.Equal(t, map[string]int64{"spans{operation=kernel}": 1, "annotated{operation=kernel}": 1}, h.counts())
}

func TestEveryResourceThatTiesIsALimiter(t *testing.T) {
	h := newHarness(t)
	// 512 threads: 64/16 = 4 blocks by warps; 32 registers: 64/16 = 4; 58368 B: 233472/58368 = 4.
	got := h.run(h200(), reduce(raw{
		semconv.CUDAKernelBlock: []any{32, 16}, semconv.CUDAKernelRegistersPerThread: 32,
		semconv.CUDAKernelSharedMemoryDynamic: 57344, semconv.CUDAKernelSharedMemoryExecuted: nil,
	}))
	assert.Equal(t, []any{"warps", "registers", "shared_memory"}, got[0][semconv.CUDAOccupancyLimiter])
	assert.EqualValues(t, 4, got[0][semconv.CUDAOccupancyActiveBlocksPerSM])
}

func TestGridsThatDoNotFillTheDevice(t *testing.T) {
	h := newHarness(t)
	for _, c := range []struct {
		name        string
		changes     raw
		waves, fill float64
	}{
		{"20 blocks on places for 1056", raw{semconv.CUDAKernelGrid: []any{20}}, 20.0 / 1056, 20.0 / 1056},
		{"one more than a wave", raw{semconv.CUDAKernelGrid: []any{1057}}, 1057.0 / 1056, 1057.0 / 2112},
		{"three dimensions", raw{semconv.CUDAKernelGrid: []any{132, 4, 2}}, 1, 1},
		{"clusters of 16 leave out the last places", raw{
			semconv.CUDAKernelGrid: []any{1024}, semconv.CUDAKernelBlock: []any{1024}, semconv.CUDAKernelCluster: []any{16, 1, 1},
			semconv.CUDAKernelSharedMemoryDynamic: 200_000, semconv.CUDAKernelSharedMemoryExecuted: nil,
		}, 1024.0 / 128, 1}, // one block a multiprocessor: 132, of which 8 clusters take 128
	} {
		got := h.run(h200(), reduce(c.changes))
		assert.InDelta(t, c.waves, got[0][semconv.CUDAOccupancyWaves], 1e-12, c.name)
		assert.InDelta(t, c.fill, got[0][semconv.CUDAOccupancyGridFill], 1e-12, c.name)
	}
}

// TestWhatIsLeftOut goes through every reason for leaving a figure out: nothing is written for it,
// and it is counted once.
func TestWhatIsLeftOut(t *testing.T) {
	huge := int64(math.MaxInt64)
	occupancyOf := []string{
		semconv.CUDAOccupancyTheoretical, semconv.CUDAOccupancyLimiter, semconv.CUDAOccupancyActiveBlocksPerSM,
		semconv.CUDAOccupancyActiveWarpsPerSM, semconv.CUDAOccupancyWaves, semconv.CUDAOccupancyGridFill,
	}
	spread := []string{semconv.CUDAOccupancyWaves, semconv.CUDAOccupancyGridFill}
	copies := []string{semconv.CUDAMemcpyThroughput, semconv.CUDAMemcpyLinkUtilization}
	share := []string{semconv.CUDAMemcpyLinkUtilization}
	seen := map[reason]bool{}
	for _, c := range []struct {
		why      reason
		resource raw
		span     raw
		absent   []string
	}{
		{missingBlock, h200(), reduce(raw{semconv.CUDAKernelBlock: nil}), occupancyOf},
		{missingRegisters, h200(), reduce(raw{semconv.CUDAKernelRegistersPerThread: nil}), occupancyOf},
		{missingShared, h200(), reduce(raw{semconv.CUDAKernelSharedMemoryStatic: nil}), occupancyOf},
		{missingShared, h200(), reduce(raw{semconv.CUDAKernelSharedMemoryDynamic: nil}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelBlock: []any{}}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelBlock: []any{1, 1, 1, 1}}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelBlock: []any{0, 1, 1}}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelBlock: []any{256, -1, 1}}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelBlock: []any{huge, huge, huge}}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelBlock: []any{math.MaxInt32, math.MaxInt32, math.MaxInt32}}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelBlock: []any{"256"}}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelBlock: []any{256.0}}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelBlock: 256}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelRegistersPerThread: 0}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelRegistersPerThread: -16}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelRegistersPerThread: huge}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelRegistersPerThread: 16.0}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelSharedMemoryStatic: -1}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelSharedMemoryDynamic: huge}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelSharedMemoryExecuted: -1}), occupancyOf},
		{invalidLaunch, h200(), reduce(raw{semconv.CUDAKernelSharedMemoryExecuted: 233473}), occupancyOf},
		{missingCapability, raw{}, reduce(nil), occupancyOf},
		{missingCapability, raw{semconv.HWName: "Some Other GPU"}, reduce(nil), occupancyOf},
		{unknownCapability, with(h200(), raw{semconv.CUDADeviceComputeCapability: "13.0"}), reduce(nil), occupancyOf},
		{unknownCapability, with(h200(), raw{semconv.CUDADeviceComputeCapability: "Hopper"}), reduce(nil), occupancyOf},
		{unknownCapability, with(h200(), raw{semconv.CUDADeviceComputeCapability: 9.0}), reduce(nil), occupancyOf},
		{missingGrid, h200(), reduce(raw{semconv.CUDAKernelGrid: nil}), spread},
		{invalidGrid, h200(), reduce(raw{semconv.CUDAKernelGrid: []any{0, 1, 1}}), spread},
		{invalidGrid, h200(), reduce(raw{semconv.CUDAKernelGrid: []any{math.MaxInt32, math.MaxInt32, math.MaxInt32}}), spread},
		{invalidGrid, h200(), reduce(raw{semconv.CUDAKernelCluster: []any{-2}}), spread},
		{missingSMCount, raw{semconv.CUDADeviceComputeCapability: "9.0"}, reduce(nil), spread},
		{invalidSMCount, with(h200(), raw{semconv.CUDADeviceSMCount: -132}), reduce(nil), spread},
		{invalidSMCount, with(h200(), raw{semconv.CUDADeviceSMCount: huge}), reduce(nil), spread},
		{invalidSMCount, with(h200(), raw{semconv.CUDADeviceSMCount: "132"}), reduce(nil), spread},
		{zeroBlocks, h200(), reduce(raw{semconv.CUDAKernelRegistersPerThread: 256}), spread},
		{clusterTooLarge, h200(), reduce(raw{semconv.CUDAKernelCluster: []any{17}}), spread},
		{missingSize, h200(), upload(raw{semconv.CUDAMemcpySize: nil}), copies},
		{invalidSize, h200(), upload(raw{semconv.CUDAMemcpySize: 0}), copies},
		{invalidSize, h200(), upload(raw{semconv.CUDAMemcpySize: -1}), copies},
		{invalidSize, h200(), upload(raw{semconv.CUDAMemcpySize: "1000"}), copies},
		{estimatedTimes, h200(), upload(raw{semconv.CUDATiming: semconv.CUDATimingEstimated}), copies},
		{missingKind, h200(), upload(raw{semconv.CUDAMemcpyKind: nil}), share},
		{withoutLink, h200(), upload(raw{semconv.CUDAMemcpyKind: "HtoH"}), share},
		{withoutLink, h200(), upload(raw{semconv.CUDAMemcpyKind: "XtoY"}), share},
		{unknownPeak, raw{}, upload(nil), share},
	} {
		name := fmt.Sprintf("%s/%s", reasons[c.why].name, c.span)
		h := newHarness(t)
		got := h.run(c.resource, c.span)
		for _, key := range c.absent {
			assert.NotContains(t, got[0], key, name)
		}
		label := fmt.Sprintf("not_computed{figure=%s,reason=%s}", reasons[c.why].figure, reasons[c.why].name)
		counts := h.counts()
		assert.EqualValues(t, 1, counts[label], name)
		for k, n := range counts {
			if k != label {
				assert.NotContains(t, k, "not_computed", "%s: %d", name, n)
			}
		}
		seen[c.why] = true
	}
	h := newHarness(t)
	td := traces(t, h200(), upload(nil))
	span := td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0)
	span.SetEndTimestamp(span.StartTimestamp())
	_, err := h.p.process(context.Background(), td)
	require.NoError(t, err)
	assert.EqualValues(t, 1, h.counts()["not_computed{figure=throughput,reason=zero_duration}"])
	assert.NotContains(t, attributes(td)[0], semconv.CUDAMemcpyThroughput)
	seen[zeroDuration] = true
	for why := none + 1; why < numReasons; why++ {
		assert.True(t, seen[why], "no case for %s", reasons[why].name)
	}
}

func TestWhyThereIsNoOccupancyIsSaidOncePerBatch(t *testing.T) {
	h := newHarness(t)
	future := raw{semconv.CUDADeviceComputeCapability: "13.0"}
	got := h.run(future, reduce(raw{semconv.CUDAKernelBlock: nil}), reduce(nil), reduce(nil), upload(nil))
	assert.NotContains(t, got[0], semconv.CUDAOccupancyUnavailable, "here the launch is what lacks")
	assert.Equal(t, "No occupancy: compute capability 13.0: no limits are known for this compute capability.", got[1][semconv.CUDAOccupancyUnavailable])
	assert.NotContains(t, got[2], semconv.CUDAOccupancyUnavailable)
	assert.EqualValues(t, 2, h.counts()["not_computed{figure=occupancy,reason=unknown_compute_capability}"])

	got = h.run(raw{semconv.HWName: "Some Other GPU"}, reduce(nil))
	assert.Equal(t, "No occupancy: neither the span nor its resource tells the device's compute capability, "+
		`and no entry of the devices setting matches its name "Some Other GPU".`, got[0][semconv.CUDAOccupancyUnavailable])

	// A collector further on that knows the device replaces the sentence by the figures.
	known := newHarness(t, DeviceConfig{Match: "Some Other GPU", ComputeCapability: "9.0"})
	after := known.run(raw{semconv.HWName: "Some Other GPU"}, got[0])
	assert.NotContains(t, after[0], semconv.CUDAOccupancyUnavailable)
	assert.InDelta(t, 1.0, after[0][semconv.CUDAOccupancyTheoretical], 0)

	// And one that does not know it says nothing on spans that have the figures.
	again := h.run(raw{semconv.HWName: "Some Other GPU"}, after[0])
	assert.Equal(t, after[0], again[0])
}

func TestNoRoomForAKernelThatRan(t *testing.T) {
	h := newHarness(t)
	before := reduce(raw{semconv.CUDAKernelBlock: []any{1024, 2, 1}, semconv.CUDAKernelRegistersPerThread: 256})
	got := h.run(h200(), before)
	assert.Equal(t, raw{
		semconv.CUDAOccupancyTheoretical:       0.0,
		semconv.CUDAOccupancyLimiter:           []any{"warps", "registers"},
		semconv.CUDAOccupancyActiveBlocksPerSM: int64(0),
		semconv.CUDAOccupancyActiveWarpsPerSM:  int64(0),
	}, added(before, got[0]))
	assert.EqualValues(t, 1, h.counts()["disagreements{reason=zero_active_blocks}"])
}

func TestWhatTheSourceSays(t *testing.T) {
	const theoretical, reported = semconv.CUDAOccupancyTheoretical, semconv.CUDAOccupancyReported
	for _, c := range []struct {
		name          string
		before, after raw // of the two attributes
		counted       string
	}{
		{"nothing", raw{}, raw{theoretical: 1.0}, ""},
		{"the same", raw{reported: 1.0}, raw{reported: 1.0, theoretical: 1.0}, ""},
		{"the same, rounded", raw{reported: 0.996}, raw{reported: 0.996, theoretical: 1.0}, ""},
		{"a whole number", raw{reported: 1}, raw{reported: int64(1), theoretical: 1.0}, ""},
		{"something else", raw{reported: 0.75}, raw{reported: 0.75, theoretical: 1.0}, "reported"},
		{"no number", raw{reported: math.NaN()}, nil, "reported"},
		{"text", raw{reported: "high"}, raw{reported: "high", theoretical: 1.0}, "reported"},
		{"the same under our name", raw{theoretical: 1.0}, raw{theoretical: 1.0}, ""},
		{"another under our name", raw{theoretical: 0.5}, raw{reported: 0.5, theoretical: 1.0}, "theoretical"},
		{"nearly the same under our name", raw{theoretical: 0.998}, raw{reported: 0.998, theoretical: 1.0}, ""},
		{"text under our name", raw{theoretical: "high"}, raw{theoretical: 1.0}, "theoretical"},
		{"another under both", raw{theoretical: 0.5, reported: 1.0}, raw{reported: 1.0, theoretical: 1.0}, "theoretical"},
	} {
		h := newHarness(t)
		got := h.run(h200(), reduce(c.before))[0]
		if c.after != nil {
			both := raw{}
			for _, key := range []string{theoretical, reported} {
				if v, ok := got[key]; ok {
					both[key] = v
				}
			}
			assert.Equal(t, c.after, both, c.name)
		}
		want := map[string]int64{"spans{operation=kernel}": 1, "annotated{operation=kernel}": 1}
		if c.counted != "" {
			want["disagreements{reason="+c.counted+"}"] = 1
		}
		assert.Equal(t, want, h.counts(), c.name)
	}
}

func TestWhereDevicePropertiesComeFrom(t *testing.T) {
	// The same kernel has 8 blocks on 9.0, 6 on 8.6 and 4 on 7.5.
	kernel := reduce(raw{semconv.CUDAKernelSharedMemoryExecuted: nil})
	for _, c := range []struct {
		name           string
		resource, span raw
		devices        []DeviceConfig
		blocks         int64
		sms            float64 // 0: no waves
	}{
		{"the resource", h200(), nil, nil, 8, 132},
		{"the span before the resource", h200(), raw{semconv.CUDADeviceComputeCapability: "8.6", semconv.CUDADeviceSMCount: 84}, nil, 6, 84},
		{"each property by itself", h200(), raw{semconv.CUDADeviceComputeCapability: "8.6"}, nil, 6, 132},
		{"the model of the resource", raw{semconv.HWName: "NVIDIA H200"}, nil, nil, 8, 132},
		{"the model of the span", raw{semconv.HWName: "NVIDIA H200"}, raw{semconv.HWName: "NVIDIA A10"}, nil, 6, 72},
		{"attributes before the model", raw{semconv.HWName: "NVIDIA H200", semconv.CUDADeviceSMCount: 66}, nil, nil, 8, 66},
		{"the settings", raw{semconv.HWName: "Future GPU"}, nil, []DeviceConfig{{Match: "Future*", ComputeCapability: "7.5", SMCount: 40}}, 4, 40},
		{"the settings by id", raw{semconv.HWID: "GPU-1"}, nil, []DeviceConfig{{Match: "GPU-?", ComputeCapability: "7.5"}}, 4, 0},
		{"the settings for a device of which nothing is said", raw{}, nil, []DeviceConfig{
			{Match: "GPU-*", ComputeCapability: "9.0"}, {Match: "*", ComputeCapability: "7.5"},
		}, 4, 0},
		{"the first settings with a value", raw{semconv.HWName: "Future GPU"}, nil, []DeviceConfig{
			{Match: "Other", ComputeCapability: "9.0"}, {Match: "F*", SMCount: 20}, {Match: "*", ComputeCapability: "8.6", SMCount: 30},
		}, 6, 20},
		{"the model before the settings", raw{semconv.HWName: "NVIDIA H200"}, nil, []DeviceConfig{{Match: "*", ComputeCapability: "7.5", SMCount: 40}}, 8, 132},
		{"the settings for what the model leaves open", raw{semconv.HWName: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}, nil,
			[]DeviceConfig{{Match: "*MIG 1g*", SMCount: 14}}, 8, 14},
	} {
		h := newHarness(t, c.devices...)
		got := h.run(c.resource, with(kernel, c.span))[0]
		assert.Equal(t, c.blocks, got[semconv.CUDAOccupancyActiveBlocksPerSM], c.name)
		if c.sms == 0 {
			assert.NotContains(t, got, semconv.CUDAOccupancyWaves, c.name)
		} else {
			assert.InDelta(t, 16384/(float64(c.blocks)*c.sms), got[semconv.CUDAOccupancyWaves], 1e-9, c.name)
		}
	}
}

func TestSeveralDevicesInOneBatch(t *testing.T) {
	h := newHarness(t)
	kernel := reduce(raw{semconv.CUDAKernelSharedMemoryExecuted: nil})
	names := []string{"NVIDIA H200", "NVIDIA A10", "Tesla T4"}
	want := []int64{8, 6, 4}
	var spans []raw
	for i := range 300 {
		spans = append(spans, with(kernel, raw{
			semconv.HWName: names[i%3], semconv.HWID: fmt.Sprint("GPU-", i%150), // more than the batch remembers
		}))
	}
	for i, got := range h.run(raw{}, spans...) {
		require.Equal(t, want[i%3], got[semconv.CUDAOccupancyActiveBlocksPerSM], "span %d", i)
	}
}

func TestCopies(t *testing.T) {
	const rate = 1e6 / (micros * 1e-6) // 100 GB/s
	settings := DeviceConfig{
		Match: "*", MemoryBandwidth: 1e12, PCIe: PCIeConfig{Generation: 4, Lanes: 8}, NVLinkBandwidth: 50e9,
	}
	for _, c := range []struct {
		kind, device string
		settings     []DeviceConfig
		peak         float64 // 0: none
	}{
		{"HtoD", "NVIDIA H200", nil, 63.015e9}, // PCIe 5 x16: 16 × 32 GT/s × 128/130 / 8
		{"DtoH", "NVIDIA H200", nil, 63.015e9},
		{"HtoA", "NVIDIA H200", nil, 63.015e9},
		{"DtoD", "NVIDIA H200", nil, 2400e9}, // 4.8 TB/s for a read and a write of each byte
		{"AtoA", "NVIDIA H200", nil, 2400e9},
		{"PtoP", "NVIDIA H200", nil, 450e9},
		{"HtoD", "Tesla V100-SXM2-16GB", nil, 15.754e9},
		{"PtoP", "NVIDIA L40S", nil, 0}, // has no NVLink
		{"HtoD", "NVIDIA GH200 480GB", nil, 0},
		{"DtoD", "NVIDIA GeForce RTX 3080", nil, 0}, // two boards of this name differ
		{"HtoD", "unknown", nil, 0},
		{"HtoD", "NVIDIA H200", []DeviceConfig{settings}, 15.754e9}, // the settings before the table
		{"DtoD", "NVIDIA H200", []DeviceConfig{settings}, 500e9},
		{"PtoP", "NVIDIA L40S", []DeviceConfig{settings}, 50e9},
	} {
		h := newHarness(t, c.settings...)
		got := h.run(raw{semconv.HWName: c.device}, upload(raw{semconv.CUDAMemcpyKind: c.kind}))[0]
		name := c.kind + " " + c.device
		assert.InEpsilon(t, rate, got[semconv.CUDAMemcpyThroughput], 1e-9, name)
		if c.peak == 0 {
			assert.NotContains(t, got, semconv.CUDAMemcpyLinkUtilization, name)
			continue
		}
		// Above 1 where the times or the peak are wrong: that is not hidden.
		assert.InEpsilon(t, rate/c.peak, got[semconv.CUDAMemcpyLinkUtilization], 1e-4, name)
	}
}

func TestOtherSpansStayAsTheyAre(t *testing.T) {
	h := newHarness(t)
	spans := []raw{
		{}, {"http.route": "/infer"},
		with(reduce(nil), raw{semconv.CUDAOperation: semconv.CUDAOperationScope}),
		with(reduce(nil), raw{semconv.CUDAOperation: nil}),
		with(upload(nil), raw{semconv.CUDAOperation: semconv.CUDAOperationMemset}),
	}
	for i, got := range h.run(h200(), spans...) {
		assert.Empty(t, added(spans[i], got), "%v", spans[i])
	}
	assert.Equal(t, map[string]int64{"spans{operation=other}": 5}, h.counts())
}

// randomSpan is a span as a source might make it, or as no source should.
func randomSpan(rng *rand.Rand) raw {
	pick := func(values ...any) any { return values[rng.IntN(len(values))] }
	number := func() any {
		return pick(0, 1, 16, 32, 255, 256, 1024, 4096, 49152, 232448, -1, int64(math.MaxInt64), int64(math.MinInt64), 1.5, "7", true, nil)
	}
	dims := func() any {
		return pick([]any{256, 1, 1}, []any{32, 4}, []any{20}, []any{1, 2, 3, 4}, []any{}, []any{number()}, number(), raw{"x": 1})
	}
	return with(pick(reduce(nil), upload(nil)).(raw), raw{
		pick(semconv.CUDAKernelBlock, semconv.CUDAKernelGrid, semconv.CUDAKernelCluster).(string):                                                      dims(),
		pick(semconv.CUDAKernelRegistersPerThread, semconv.CUDAKernelSharedMemoryStatic).(string):                                                      number(),
		pick(semconv.CUDAKernelSharedMemoryDynamic, semconv.CUDAKernelSharedMemoryExecuted).(string):                                                   number(),
		pick(semconv.CUDAMemcpySize, semconv.CUDAMemcpyKind, semconv.CUDAMemcpyThroughput).(string):                                                    number(),
		pick(semconv.CUDAOccupancyTheoretical, semconv.CUDAOccupancyReported, semconv.CUDAOccupancyUnavailable).(string):                               pick(0.5, 1.0, 1, "x", nil, nil),
		pick(semconv.CUDAOccupancyLimiter, semconv.CUDAOccupancyWaves, semconv.CUDAOccupancyActiveBlocksPerSM, semconv.CUDAOccupancyGridFill).(string): number(),
		pick(semconv.CUDADeviceComputeCapability, semconv.CUDADeviceSMCount, semconv.HWName, semconv.HWID, semconv.CUDAOperation).(string):             pick("8.6", "13.0", "NVIDIA A10", 84, "GPU-1", nil, nil),
		pick(semconv.CUDATiming, "other").(string):                                                                                                     pick(semconv.CUDATimingEstimated, nil, nil, nil),
	})
}

// TestTwiceIsOnce runs arbitrary spans through the processor again and again: the second run changes
// nothing, every kernel is either annotated or counted as left out, and so is every copy.
func TestTwiceIsOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 7))
	for range 300 {
		h := newHarness(t)
		spans := make([]raw, 20)
		for i := range spans {
			spans[i] = randomSpan(rng)
		}
		resource := h200()
		if rng.IntN(3) == 0 {
			resource = raw{}
		}
		once := h.run(resource, spans...)
		counts := h.counts()
		for operation, figure := range map[string]string{"kernel": figureOccupancy, "memcpy": figureThroughput} {
			left := int64(0)
			for _, r := range reasons {
				if r.figure == figure {
					left += counts[fmt.Sprintf("not_computed{figure=%s,reason=%s}", figure, r.name)]
				}
			}
			require.Equal(t, counts["spans{operation="+operation+"}"], counts["annotated{operation="+operation+"}"]+left)
		}
		twice := newHarness(t).run(resource, once...)
		require.Equal(t, once, twice)
	}
}

func FuzzProcess(f *testing.F) {
	marshal := ptrace.ProtoMarshaler{}
	for _, spans := range [][]raw{{reduce(nil), upload(nil)}, {reduce(raw{semconv.CUDAKernelBlock: []any{math.MaxInt64, 2}})}} {
		b, err := marshal.MarshalTraces(traces(f, h200(), spans...))
		require.NoError(f, err)
		f.Add(b)
	}
	p, err := newProcessor(&Config{}, componenttest.NewNopTelemetrySettings())
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, b []byte) {
		td, err := (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(b)
		if err != nil {
			return
		}
		n := int64(td.SpanCount())
		// A span of two bytes gets some attributes.
		alloctest.Limit{PerByte: 1 << 10, Constant: 1 << 16}.Check(t, len(b), func() {
			again := ptrace.NewTraces()
			td.CopyTo(again)
			p.annotate(again)
		})
		c := p.annotate(td)
		require.Equal(t, n, int64(td.SpanCount()))
		require.Equal(t, n, c.seen[otherOperation]+c.seen[kernelOperation]+c.seen[copyOperation])
		var left [numOperations]int64
		for why, n := range c.left {
			switch reasons[why].figure {
			case figureOccupancy:
				left[kernelOperation] += n
			case figureThroughput:
				left[copyOperation] += n
			}
		}
		require.Equal(t, c.seen[kernelOperation], c.annotated[kernelOperation]+left[kernelOperation])
		require.Equal(t, c.seen[copyOperation], c.annotated[copyOperation]+left[copyOperation])
	})
}

// TestConcurrentBatches is for the race detector: two callers, one cache, and shapes enough that
// they take places from each other.
func TestConcurrentBatches(t *testing.T) {
	set := processortest.NewNopSettings(metadata.Type)
	sink := new(consumertest.TracesSink)
	p, err := NewFactory().CreateTraces(context.Background(), set, &Config{}, sink)
	require.NoError(t, err)
	assert.True(t, p.Capabilities().MutatesData)
	require.NoError(t, p.Start(context.Background(), componenttest.NewNopHost()))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 20 {
				var spans []raw
				for s := range 100 {
					spans = append(spans, reduce(raw{
						semconv.CUDAKernelBlock:               []any{32 * (1 + (s+g)%32)},
						semconv.CUDAKernelSharedMemoryDynamic: 64 * (i + s), semconv.CUDAKernelSharedMemoryExecuted: nil,
					}))
				}
				assert.NoError(t, p.ConsumeTraces(context.Background(), traces(t, h200(), spans...)))
			}
		})
	}
	wg.Wait()
	require.NoError(t, p.Shutdown(context.Background()))
	l, err := occupancy.LimitsOf(occupancy.Capability{Major: 9, Minor: 0})
	require.NoError(t, err)
	n := 0
	for _, td := range sink.AllTraces() {
		for _, a := range attributes(td) {
			r, err := l.Compute(occupancy.Launch{
				Threads: a[semconv.CUDAKernelBlock].([]any)[0].(int64), Registers: 16,
				Shared: a[semconv.CUDAKernelSharedMemoryDynamic].(int64),
			})
			require.NoError(t, err)
			require.EqualValues(t, r.Blocks, a[semconv.CUDAOccupancyActiveBlocksPerSM])
			n++
		}
	}
	assert.Equal(t, 4*20*100, n)
}
