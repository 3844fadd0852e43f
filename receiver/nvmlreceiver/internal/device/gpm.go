// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/semconv"
)

// NVML's documentation says that it is thread-safe. Its GPM calls are not. With driver 580.159 on
// two H200s, two threads took samples and metrics, each of its own device. In five of eight
// attempts, the library ended in a segmentation fault within a second. With a lock around the
// metrics only, it still did in four of eight. Therefore one lock covers all GPM calls of the
// process.
var gpmTurn = make(chan struct{}, 1)

// gpmLockTimeout bounds the wait for that lock. A call takes less than a millisecond, unless it hangs.
// In that case the other devices skip GPM, report it, and make the rest of their readings.
const gpmLockTimeout = 250 * time.Millisecond

func takeGPMTurn() bool {
	select {
	case gpmTurn <- struct{}{}:
		return true
	default:
	}
	timeout := time.NewTimer(gpmLockTimeout)
	defer timeout.Stop()
	select {
	case gpmTurn <- struct{}{}:
		return true
	case <-timeout.C:
		return false
	}
}

func endGPMTurn() { <-gpmTurn }

// mebibyte is the unit of GPM's rates.
const mebibyte = 1 << 20

// gpmMetrics are asked for in each round. The first are ratios, in percent.
var gpmMetrics = [...]struct {
	id     nvml.GpmMetricId
	metric gpu.Metric
	label  string
}{
	{nvml.GPM_METRIC_SM_UTIL, gpu.SMUtilization, ""},
	{nvml.GPM_METRIC_SM_OCCUPANCY, gpu.SMOccupancy, ""},
	{nvml.GPM_METRIC_ANY_TENSOR_UTIL, gpu.PipeUtilization, semconv.HWGPUPipeTensor},
	{nvml.GPM_METRIC_FP64_UTIL, gpu.PipeUtilization, semconv.HWGPUPipeFp64},
	{nvml.GPM_METRIC_FP32_UTIL, gpu.PipeUtilization, semconv.HWGPUPipeFp32},
	{nvml.GPM_METRIC_FP16_UTIL, gpu.PipeUtilization, semconv.HWGPUPipeFp16},
	{nvml.GPM_METRIC_INTEGER_UTIL, gpu.PipeUtilization, semconv.HWGPUPipeInteger},
	{nvml.GPM_METRIC_DRAM_BW_UTIL, gpu.MemoryBandwidthUtilization, ""},
	{nvml.GPM_METRIC_PCIE_RX_PER_SEC, gpu.IO, semconv.NetworkIODirectionReceive},
	{nvml.GPM_METRIC_PCIE_TX_PER_SEC, gpu.IO, semconv.NetworkIODirectionTransmit},
	{nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, gpu.InterconnectIO, semconv.NetworkIODirectionReceive},
	{nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, gpu.InterconnectIO, semconv.NetworkIODirectionTransmit},
}

// rate is what GPM says of a link in one reading.
type rate struct {
	perSecond float64 // By/s
	over      time.Duration
	// now says that it is of this reading, counted that the driver has counters.
	now, counted bool
}

// gpm keeps a pair of samples: values are means between two of them, so each sample serves as the
// end of one interval and the beginning of the next.
type gpm struct {
	supported, asked bool
	samples          [2]nvml.GpmSample
	// newest is the slot of the last sample, taken at the time given; taken is zero before the first.
	newest int
	taken  time.Time
	pcie   [2]rate
	links  [2]rate
	query  nvml.GpmMetricsGetType
}

// available asks once whether the device has GPM (Hopper and later), and gets the samples.
func (g *gpm) available(d *Device) bool {
	if g.asked {
		return g.supported
	}
	for _, c := range [...]call{callGPMSupport, callGPMAlloc, callGPMMetrics, callGPMFree} {
		if !d.lib.have[c] {
			g.asked = true
			return false
		}
	}
	device := d.handle
	if d.parent != nil {
		if d.id.Instance < 0 || !d.lib.have[callGPMMigSample] {
			g.asked = true
			return false
		}
		device = d.parent
	}
	support, ret := device.GpmQueryDeviceSupport()
	if !d.done(callGPMSupport, 0, ret) {
		g.asked = lacks(ret)
		return false
	}
	g.asked = true
	if support.IsSupportedDevice == 0 {
		d.caps[callGPMSupport][0] = absent
		d.reading.Unsupported = append(d.reading.Unsupported, gpu.Unsupported{Call: callGPMSample.String(), Code: code(nvml.ERROR_NOT_SUPPORTED)})
		return false
	}
	for i := range g.samples {
		s, ret := d.lib.nvml.GpmSampleAlloc()
		if !d.done(callGPMAlloc, 0, ret) {
			g.release()
			return false
		}
		g.samples[i] = s
	}
	g.supported = true
	return true
}

func (g *gpm) read(d *Device) {
	if g.asked && !g.supported {
		return
	}
	if !takeGPMTurn() {
		d.fail(callGPMSample.String(), nvml.ERROR_IN_USE) // the next interval begins where this one did
		return
	}
	defer endGPMTurn()
	if !g.available(d) {
		return
	}
	next := 1 - g.newest
	var ret nvml.Return
	c := callGPMSample
	if d.parent != nil {
		c = callGPMMigSample
	}
	if !d.can(c, 0) {
		return
	}
	if d.parent != nil {
		ret = d.parent.GpmMigSampleGet(d.id.Instance, g.samples[next])
	} else {
		ret = d.handle.GpmSampleGet(g.samples[next])
	}
	if !d.done(c, 0, ret) {
		return
	}
	before := g.taken
	g.newest, g.taken = next, d.now
	if before.IsZero() || !d.can(callGPMMetrics, 0) {
		return
	}
	q := &g.query
	q.NumMetrics, q.Sample1, q.Sample2 = uint32(len(gpmMetrics)), g.samples[1-next], g.samples[next]
	for i := range gpmMetrics {
		q.Metrics[i] = nvml.GpmMetric{MetricId: uint32(gpmMetrics[i].id)}
	}
	if !d.done(callGPMMetrics, 0, d.lib.nvml.GpmMetricsGet(q)) {
		return
	}
	over := d.now.Sub(before)
	for i, m := range gpmMetrics {
		v := q.Metrics[i]
		if nvml.Return(v.NvmlReturn) != nvml.SUCCESS || math.IsNaN(v.Value) || math.IsInf(v.Value, 0) || v.Value < 0 {
			continue
		}
		direction := transmit
		if m.label == directions[receive] {
			direction = receive
		}
		r := rate{perSecond: v.Value * mebibyte, over: over, now: true}
		switch m.metric {
		case gpu.IO:
			g.pcie[direction] = r
		case gpu.InterconnectIO:
			g.links[direction] = r
		default:
			d.ratio(m.metric, v.Value, m.label)
		}
	}
}

// free gives the samples back; the next session gets new ones.
func (g *gpm) free() {
	if g.samples != [2]nvml.GpmSample{} {
		if takeGPMTurn() {
			g.release()
			endGPMTurn()
		}
		// Else a call hangs, and two samples are the least of what is lost with it.
	}
	*g = gpm{}
}

func (g *gpm) release() {
	for i, s := range g.samples {
		if s != nil {
			_ = s.Free() // nothing is left to do with a sample that cannot be freed
			g.samples[i] = nil
		}
	}
}
