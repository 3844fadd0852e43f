// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/semconv"
)

// Device is one GPU or MIG device. It survives sessions of the library: bind sets its handle.
type Device struct {
	lib *library
	// mu is held during a reading, which may never return. Use TryLock to change the binding.
	mu sync.Mutex
	binding

	caps [numCalls][variants]capability
	// reading is the result of Read.
	reading *gpu.Reading
	now     time.Time
	// gone is the error that ended this reading. succeeded counts its successful calls.
	gone      nvml.Return
	succeeded int

	due      map[string]time.Time
	fields   fields
	gpm      gpm
	samples  [2]mean // utilisation, memory controller
	energy   total
	pcie     [2]sum // receive, transmit
	links    [2]linkSums
	throttle throttle
	ecc      [2]total
	replay   total
	remapped [2]total
	retired  [2]total
	// lasting has the degradations that the slow group found.
	lasting bool
	// processSeen is the driver's time of the newest utilisation sample of a process, in µs.
	processSeen uint64
}

func newDevice(l *library) *Device {
	return &Device{lib: l, due: map[string]time.Time{}}
}

// Identity returns the device's names.
func (d *Device) Identity() gpu.Identity { return d.id }

// bind sets the device's handle. Known capabilities remain, unless the session is new.
func (d *Device) bind(b binding) {
	if !d.mu.TryLock() {
		return // a reading is in progress; the next rescan retries
	}
	defer d.mu.Unlock()
	if d.handle == b.handle && d.id.Instance == b.id.Instance && d.partitioned == b.partitioned {
		d.binding = b
		return
	}
	d.unbind()
	d.binding = b
	d.caps = [numCalls][variants]capability{}
	d.fields = fields{}
	clear(d.due)
	for i := range d.samples {
		d.samples[i] = mean{}
	}
	d.processSeen = 0
	d.throttle.newSession()
	for i := range d.pcie {
		d.pcie[i].forget()
		d.links[i].forget()
	}
}

// unbind frees the library's resources of the device. The caller holds mu.
func (d *Device) unbind() {
	if d.handle != nil {
		d.gpm.free()
	}
	d.handle = nil
}

// can reports whether to try a call.
func (d *Device) can(c call, variant int) bool {
	return d.gone == nvml.SUCCESS && d.lib.have[c] && d.caps[c][variant] != absent
}

// done evaluates the result of a call and reports whether it has a value.
func (d *Device) done(c call, variant int, ret nvml.Return) bool {
	switch {
	case ret == nvml.SUCCESS:
		d.caps[c][variant] = works
		d.succeeded++
		return true
	case lacks(ret) && d.caps[c][variant] == untried:
		d.caps[c][variant] = absent
		d.reading.Unsupported = append(d.reading.Unsupported, gpu.Unsupported{Call: d.callName(c, variant), Code: code(ret), Forbidden: ret == nvml.ERROR_NO_PERMISSION})
	default:
		if gone(ret) {
			d.gone = ret
		}
		d.fail(c.String(), ret)
	}
	return false
}

func (d *Device) fail(name string, ret nvml.Return) {
	if len(d.reading.Errors) < gpu.MaxErrors {
		d.reading.Errors = append(d.reading.Errors, gpu.CallError{Call: name, Code: code(ret)})
	}
}

func (d *Device) callName(c call, variant int) string {
	if variant == 0 {
		return c.String()
	}
	return fmt.Sprintf("%s(%d)", c, variant)
}

// Read runs all groups that are due.
func (d *Device) Read() gpu.Reading {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := &d.lib.options
	r := gpu.Reading{Points: make([]gpu.Point, 0, 48)}
	d.reading, d.now, d.gone, d.succeeded = &r, o.Now(), nvml.SUCCESS, 0
	if d.handle == nil {
		r.Time, r.Lost = d.now, fmt.Errorf("%s: %w", code(nvml.ERROR_UNINITIALIZED), gpu.ErrRestart)
		return r
	}
	if d.parent == nil {
		d.group(groupSamples, o.Samples.Enabled, o.Samples, func() { d.readSamples() })
	}
	// GPM runs before the rest, which uses its PCIe and NVLink rates where there are no counters.
	d.group(groupGPM, o.GPM.Enabled, o.GPM, func() { d.gpm.read(d) })
	d.group(groupFast, true, Group{}, d.readFast)
	d.group(groupSlow, o.Slow.Enabled && d.parent == nil, o.Slow, d.readSlow)
	d.group(groupProcesses, o.Processes.Enabled && !d.partitioned, o.Processes, d.readProcesses)
	r.Time = o.Now()
	r.Degraded = r.Degraded || d.lasting
	switch {
	case d.gone != nvml.SUCCESS:
		r.Lost = fmt.Errorf("the device does not answer: %s", code(d.gone))
	case d.succeeded == 0 && len(r.Errors) > 0:
		r.Lost = fmt.Errorf("no call succeeds: %s says %s", r.Errors[0].Call, r.Errors[0].Code)
	}
	d.reading = nil
	return r
}

// group runs a group of calls if it is due, and measures its duration.
func (d *Device) group(name string, enabled bool, g Group, read func()) {
	if !enabled || d.gone != nvml.SUCCESS || d.now.Before(d.due[name]) {
		return
	}
	// A ticker may fire a little early. Without the slack, a group would then skip a round.
	d.due[name] = d.now.Add(g.Interval - d.lib.options.Interval/10)
	start := time.Now()
	read()
	d.reading.Groups = append(d.reading.Groups, gpu.GroupTime{Group: name, Duration: time.Since(start)})
}

func (d *Device) add(p gpu.Point) { d.reading.Points = append(d.reading.Points, p) }

// ratio adds a percentage as a ratio. A ratio above 1 is invalid.
func (d *Device) ratio(m gpu.Metric, percent float64, label string) {
	// Limit to 1: rounding in the driver may return 100.0x.
	if percent >= 0 && percent <= 101 {
		d.add(gpu.Point{Metric: m, Float: min(percent/100, 1), Label: label})
	}
}

// valid reports whether a 32-bit number is a value.
func valid(v uint32) bool { return v != math.MaxUint32 }

// integer returns a value as pdata stores it, at most 2^63−1.
func integer(v uint64) int64 { return int64(min(v, math.MaxInt64)) }

// readFast reads rapidly changing values.
func (d *Device) readFast() {
	d.readMemory()
	if d.parent != nil {
		return // NVML has no other values for a part of a GPU
	}
	d.readUtilization()
	d.readFields()
	if d.can(callEnergy, 0) {
		if mj, ret := d.handle.GetTotalEnergyConsumption(); d.done(callEnergy, 0, ret) && mj != math.MaxUint64 {
			since := d.energy.read(mj, d.lib.boot, d.now)
			d.add(gpu.Point{Metric: gpu.Energy, Float: float64(mj) / 1000, Since: since})
		}
	}
	d.readTemperature()
	d.readFans()
	for clock, label := range clocks {
		if d.can(callClock, clock) {
			if mhz, ret := d.handle.GetClockInfo(nvml.ClockType(clock)); d.done(callClock, clock, ret) && valid(mhz) {
				d.add(gpu.Point{Metric: gpu.Speed, Int: int64(mhz) * 1e6, Label: label})
			}
		}
	}
	d.throttle.read(d)
}

// clocks are the clock domains by nvml.ClockType.
var clocks = [...]string{
	nvml.CLOCK_GRAPHICS: semconv.HWGPUClockDomainGraphics,
	nvml.CLOCK_SM:       semconv.HWGPUClockDomainSM,
	nvml.CLOCK_MEM:      semconv.HWGPUClockDomainMemory,
	nvml.CLOCK_VIDEO:    semconv.HWGPUClockDomainVideo,
}

func (d *Device) readMemory() {
	if d.can(callMemory, 0) {
		if m, ret := d.handle.GetMemoryInfo_v2(); d.done(callMemory, 0, ret) {
			d.memory(m.Total, m.Used)
			if m.Total > 0 && m.Reserved <= m.Total {
				d.add(gpu.Point{Metric: gpu.MemoryReserved, Int: integer(m.Reserved)})
			}
			return
		}
	}
	// Before driver 510, the used memory includes the reserved memory.
	if d.caps[callMemory][0] != works && d.can(callMemoryV1, 0) {
		if m, ret := d.handle.GetMemoryInfo(); d.done(callMemoryV1, 0, ret) {
			d.memory(m.Total, m.Used)
		}
	}
}

func (d *Device) memory(all, used uint64) {
	if all == 0 || used > all { // no own device memory, or no value
		return
	}
	d.add(gpu.Point{Metric: gpu.MemoryLimit, Int: integer(all)})
	d.add(gpu.Point{Metric: gpu.MemoryUsage, Int: integer(used)})
	d.add(gpu.Point{Metric: gpu.MemoryUtilization, Float: float64(used) / float64(all)})
}

func (d *Device) readUtilization() {
	busy, okBusy := d.samples[0].take()
	controller, okController := d.samples[1].take()
	if !(okBusy && okController) && d.can(callUtilization, 0) {
		// Use the driver's last value if it has no buffer or no new samples.
		if u, ret := d.handle.GetUtilizationRates(); d.done(callUtilization, 0, ret) {
			if !okBusy && valid(u.Gpu) {
				busy, okBusy = float64(u.Gpu), true
			}
			if !okController && valid(u.Memory) {
				controller, okController = float64(u.Memory), true
			}
		}
	}
	if okBusy {
		d.ratio(gpu.Utilization, busy, semconv.HWGPUTaskGeneral)
	}
	if okController {
		d.ratio(gpu.MemoryControllerUtilization, controller, "")
	}
	if d.can(callEncoder, 0) {
		if u, _, ret := d.handle.GetEncoderUtilization(); d.done(callEncoder, 0, ret) && valid(u) {
			d.ratio(gpu.Utilization, float64(u), semconv.HWGPUTaskEncoder)
		}
	}
	if d.can(callDecoder, 0) {
		if u, _, ret := d.handle.GetDecoderUtilization(); d.done(callDecoder, 0, ret) && valid(u) {
			d.ratio(gpu.Utilization, float64(u), semconv.HWGPUTaskDecoder)
		}
	}
}

func (d *Device) readTemperature() {
	if d.can(callTemperature, 0) {
		if t, ret := d.handle.GetTemperature(nvml.TEMPERATURE_GPU); d.done(callTemperature, 0, ret) && valid(t) {
			d.temperature(gpu.Temperature, float64(int32(t)), "", "")
			return
		}
	}
	// The replacement of a call that newer drivers removed.
	if d.caps[callTemperature][0] != works && d.can(callTemperatureV, 0) {
		if t, ret := d.handle.GetTemperatureV().V1(); d.done(callTemperatureV, 0, ret) {
			d.temperature(gpu.Temperature, float64(t.Temperature), "", "")
		}
	}
}

// temperature adds a temperature in the valid range.
func (d *Device) temperature(m gpu.Metric, celsius float64, label, detail string) {
	if celsius > -100 && celsius < 300 {
		d.add(gpu.Point{Metric: m, Float: celsius, Label: label, Detail: detail})
	}
}

func (d *Device) readFans() {
	if d.can(callNumFans, 0) && d.lib.have[callFan] {
		n, ret := d.handle.GetNumFans()
		if !d.done(callNumFans, 0, ret) {
			return
		}
		for i := range min(n, variants) {
			if !d.can(callFan, i) {
				continue
			}
			if p, ret := d.handle.GetFanSpeed_v2(i); d.done(callFan, i, ret) && valid(p) {
				d.fan(p, n, i)
			}
		}
		return
	}
	if d.caps[callNumFans][0] == untried && d.can(callFanV1, 0) {
		if p, ret := d.handle.GetFanSpeed(); d.done(callFanV1, 0, ret) && valid(p) {
			d.fan(p, 1, 0)
		}
	}
}

func (d *Device) fan(percent uint32, n, i int) {
	label := ""
	if n > 1 {
		label = fanLabels[i]
	}
	// According to NVML, a fan may exceed its nominal highest speed.
	if percent <= 200 {
		d.add(gpu.Point{Metric: gpu.FanSpeed, Float: float64(percent) / 100, Label: label})
	}
}

var fanLabels = func() (l [variants]string) {
	for i := range l {
		l[i] = fmt.Sprintf("fan_%d", i)
	}
	return l
}()
