// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// TestMetrics_OtherNames checks that names without series of their own are in _other. While names
// change places, the total stays exact, and no series decreases while it keeps its start.
func TestMetrics_OtherNames(t *testing.T) {
	f := newFixture(t, Config{})
	e := f.r.engine
	random := rand.New(rand.NewPCG(3, 3))
	type point struct {
		start pcommon.Timestamp
		value float64
	}
	last := map[string]point{}
	launched, seconds := 0, int64(0)
	swaps := 0
	for round := range 30 {
		e.now = e.now.Add(time.Second)
		b := &records{}
		for range 2000 {
			// Other names are long in each round.
			n := random.IntN(topNames * 3)
			ns := int64(1 + random.IntN(1000))
			if n%30 == round {
				ns *= int64(100 * (round + 1))
			}
			b.heads = append(b.heads, kernel(fmt.Sprint("k", n), 0, 0, ns))
			launched++
			seconds += ns
		}
		e.process([]Records{b})
		e.sendMetrics()

		points := f.sink.points(semconv.MetricGPUCUDAKernelLaunchCalls)
		require.LessOrEqual(t, len(points), topNames+1)
		require.Contains(t, points, otherName+"|")
		require.Equal(t, uint64(launched), f.sink.total(semconv.MetricGPUCUDAKernelLaunchCalls), "launches are exact")
		m := f.sink.metrics[len(f.sink.metrics)-1].ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
		count, sum := 0, 0.0
		for _, x := range m.All() {
			switch x.Name() {
			case semconv.MetricGPUCUDAKernelLaunchCalls:
				assert.True(t, x.Sum().IsMonotonic())
				for _, p := range x.Sum().DataPoints().All() {
					key := series(p.Attributes())
					before := last[key]
					if before.start == p.StartTimestamp() {
						require.GreaterOrEqual(t, float64(p.IntValue()), before.value, key)
					} else if before.start != 0 {
						swaps++
						require.Greater(t, p.StartTimestamp(), before.start, key)
					}
					last[key] = point{p.StartTimestamp(), float64(p.IntValue())}
				}
			case semconv.MetricGPUCUDAKernelDuration:
				for _, p := range x.ExponentialHistogram().DataPoints().All() {
					count += int(p.Count())
					sum += p.Sum()
				}
			}
		}
		require.Equal(t, launched, count)
		require.InEpsilon(t, float64(seconds)/1e9, sum, 1e-9)
	}
	assert.Positive(t, swaps, "no name returned to the top: the test is void")
	f.stop()
}

func TestNames_Bound(t *testing.T) {
	n := newNames(nil, nil)
	for i := range maxNames + 100 {
		n.index(gpuevent.NewKernelName(fmt.Sprint("k", i)))
	}
	assert.Len(t, n.all, maxNames+1)
	assert.Equal(t, uint32(otherIndex), n.index(gpuevent.NewKernelName("late")))
	assert.Equal(t, uint32(8), n.index(gpuevent.NewKernelName("k7")), "equal text is one name")
	assert.Equal(t, uint32(otherIndex), n.index(nil))

	totals := newTotals(n, base)
	for name := range uint32(200) {
		for label := range uint32(150) {
			totals.cell(name+1, label+1, 1)
		}
	}
	assert.LessOrEqual(t, len(totals.list), maxCells+200)
	for i := range maxCopyKinds + 5 {
		totals.kind(fmt.Sprint("kind", i))
	}
	assert.Len(t, totals.kinds, maxCopyKinds)
	assert.Equal(t, otherName, totals.kinds[totals.kind("another")])
	assert.Equal(t, 0, totals.kind("kind0"))
}

func TestMetrics_DeviceAttributes(t *testing.T) {
	f := newFixture(t, Config{})
	f.src.devices = []gpuevent.Device{{Index: 0, Name: "A", UUID: "GPU-a"}, {Index: 1, Name: "B", UUID: "GPU-b"}}
	h := kernel("k", 1, 0, 10)
	h.Device = 1
	f.src.deliver(h, kernel("k", 2, 0, 10))
	far := kernel("k", 3, 0, 10)
	far.Device = 5000
	f.src.deliver(far)
	f.start()
	f.stop()
	got := map[string]int64{}
	for _, x := range f.sink.metrics[0].ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if x.Name() == semconv.MetricGPUCUDAKernelLaunchCalls {
			assert.Equal(t, pmetric.AggregationTemporalityCumulative, x.Sum().AggregationTemporality())
			for _, p := range x.Sum().DataPoints().All() {
				got[attr(p.Attributes(), semconv.HWID)+"/"+attr(p.Attributes(), semconv.HWName)] = p.IntValue()
			}
		}
	}
	assert.Equal(t, map[string]int64{"GPU-a/A": 1, "GPU-b/B": 1, "/": 1}, got)
	k := f.sink.operation("kernel")[0]
	assert.Equal(t, "GPU-b", attr(k.Attributes(), semconv.HWID))
}

// A library that the driver loads starts before the devices exist.
func TestEngine_LateDevices(t *testing.T) {
	f := newFixture(t, Config{})
	f.src.devices = nil
	f.r.engine.process([]Records{&records{heads: []cupti.Head{kernel("early", 1, 0, 10)}}})
	f.src.devices = oneDevice
	f.src.deliver(kernel("late", 2, 20, 10))
	f.start()
	s := f.stop()
	assert.Empty(t, attr(f.sink.spanNamed(t, "early").Attributes(), semconv.HWID))
	assert.Equal(t, oneDevice[0].UUID, attr(f.sink.spanNamed(t, "late").Attributes(), semconv.HWID))
	assert.Equal(t, []string{"Test GPU " + oneDevice[0].UUID}, s.Devices)
}

func TestMetrics_MemoryAndWaits(t *testing.T) {
	f := newFixture(t, Config{Asked: cupti.DefaultKinds | cupti.KindsOf(cupti.KindMemory, cupti.KindSync)}).start()
	f.src.add(&records{heads: []cupti.Head{
		{Kind: cupti.KindMemory, Bytes: 1 << 20, Start: base, End: base},
		{Kind: cupti.KindMemory, Bytes: 1 << 10, Start: base + 5, End: base + 5},
		{Kind: cupti.KindSync, Start: base + 10, End: base + 1010},
	}, free: map[int]bool{1: true}})
	s := f.stop()
	assert.Equal(t, uint64(3), s.Spans.Emitted)
	for _, op := range []string{"malloc", "free", "synchronize"} {
		assert.Len(t, f.sink.operation(op), 1, op)
	}
	assert.Equal(t, map[string]float64{"": 1 << 20}, f.sink.points(semconv.MetricGPUCUDAMemoryAllocations))
	assert.Equal(t, map[string]float64{"": 1 << 10}, f.sink.points(semconv.MetricGPUCUDAMemoryFreeBytes))
	assert.Empty(t, f.sink.points(semconv.MetricGPUCUDATime), "neither occupies the device")
}
