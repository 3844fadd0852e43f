// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/semconv"
)

// throttleFields are counters in ns. The last three have two numbers. The headers of CUDA 13 define
// 269 to 271, but driver 580 answers at 251 to 253. In the newer numbering, 251 to 253 are settings
// of another type. Therefore the newer number is used if it returns a valid 64-bit counter.
// Otherwise the older number is used under the same condition.
var throttleFields = [...]struct {
	reason string
	mask   uint64
	fields []uint32
}{
	{semconv.HWGPUThrottleReasonSwPowerCap, nvml.ClocksEventReasonSwPowerCap, []uint32{nvml.FI_DEV_PERF_POLICY_POWER}},
	{semconv.HWGPUThrottleReasonSyncBoost, nvml.ClocksEventReasonSyncBoost, []uint32{nvml.FI_DEV_PERF_POLICY_SYNC_BOOST}},
	{semconv.HWGPUThrottleReasonSwThermalSlowdown, nvml.ClocksEventReasonSwThermalSlowdown, []uint32{269, 251}},
	{semconv.HWGPUThrottleReasonHWThermalSlowdown, nvml.ClocksThrottleReasonHwThermalSlowdown, []uint32{270, 252}},
	{semconv.HWGPUThrottleReasonHWPowerBrakeSlowdown, nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, []uint32{271, 253}},
}

// slowed are the reasons that mark a device as degraded: heat and lack of power. A power cap is a
// setting, and common for a data centre GPU under load.
const slowed = nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksEventReasonSwThermalSlowdown |
	nvml.ClocksThrottleReasonHwThermalSlowdown | nvml.ClocksThrottleReasonHwPowerBrakeSlowdown

// violations are what older drivers count, by nvml.PerfPolicyType.
var violations = [...]string{
	nvml.PERF_POLICY_POWER:           semconv.HWGPUThrottleReasonPower,
	nvml.PERF_POLICY_THERMAL:         semconv.HWGPUThrottleReasonThermal,
	nvml.PERF_POLICY_SYNC_BOOST:      semconv.HWGPUThrottleReasonSyncBoost,
	nvml.PERF_POLICY_BOARD_LIMIT:     semconv.HWGPUThrottleReasonBoardLimit,
	nvml.PERF_POLICY_LOW_UTILIZATION: semconv.HWGPUThrottleReasonLowUtilization,
	nvml.PERF_POLICY_RELIABILITY:     semconv.HWGPUThrottleReasonReliability,
}

// throttle measures how long a device was slowed down, from the best available source. In order,
// these are counters of the driver, the violation status, and the bitmask of reasons at each
// reading.
type throttle struct {
	reasons [len(throttleFields)]throttleCounter
	policy  [len(violations)]total
	// asked is the time of the last reading of the bitmask.
	asked time.Time
	// estimates are sums by the bitmask, in ns.
	estimates [len(throttleFields)]sum
}

type throttleCounter struct {
	total
	// field is the accepted number, or 0 before the first. refused has the rejected numbers.
	field   uint32
	refused [2]bool
}

func (t *throttle) newSession() {
	t.asked = time.Time{}
	for i := range t.reasons {
		t.reasons[i].field, t.reasons[i].refused = 0, [2]bool{}
	}
}

// field takes a counter.
func (t *throttle) field(d *Device, id uint32, c counterValue) {
	for i := range throttleFields {
		r := &t.reasons[i]
		for k, candidate := range throttleFields[i].fields {
			if candidate != id || r.refused[k] || r.field != 0 && r.field != id {
				continue
			}
			// The value must not exceed the uptime of the machine, nor its increase the time
			// between two readings. The tolerance covers differences between the clocks.
			most := d.now.Sub(d.lib.boot) + time.Minute
			believed := c.bits == 64 && c.value <= uint64(most)
			if believed && r.field == id && c.value > r.value {
				believed = c.value-r.value <= uint64(d.now.Sub(r.last)*5/4+time.Second)
			}
			if !believed {
				r.refused[k], r.field = true, 0
				d.reading.Errors = append(d.reading.Errors, gpu.CallError{Call: callFields.String(), Code: "implausible throttle counter"})
				continue
			}
			r.field = id
			since := r.read(c.value, d.lib.boot, d.now)
			d.add(gpu.Point{Metric: gpu.ThrottleDuration, Float: float64(c.value) / 1e9, Label: throttleFields[i].reason, Since: since})
		}
	}
}

// counted reports whether the device has such counters.
func (t *throttle) counted() bool {
	for i := range t.reasons {
		if t.reasons[i].field != 0 {
			return true
		}
	}
	return false
}

// read reads the current reasons.
func (t *throttle) read(d *Device) {
	c := callReasons
	if !d.can(c, 0) {
		c = callReasonsV1
	}
	counted := t.counted()
	if !d.can(c, 0) {
		return
	}
	var mask uint64
	var ret nvml.Return
	if c == callReasons {
		mask, ret = d.handle.GetCurrentClocksEventReasons()
	} else {
		mask, ret = d.handle.GetCurrentClocksThrottleReasons()
	}
	if !d.done(c, 0, ret) {
		return
	}
	d.reading.Degraded = d.reading.Degraded || mask&slowed != 0
	estimate := !counted && !t.violated(d)
	for i := range throttleFields {
		active := int64(0)
		if mask&throttleFields[i].mask != 0 {
			active = 1
		}
		d.add(gpu.Point{Metric: gpu.ThrottleActive, Int: active, Label: throttleFields[i].reason})
		if !estimate {
			continue
		}
		// Assume the same state since the last reading.
		s := &t.estimates[i]
		s.start(d.now)
		if !t.asked.IsZero() {
			s.rate(float64(active), d.now.Sub(t.asked), d.now)
		}
		d.add(gpu.Point{Metric: gpu.ThrottleDuration, Float: s.value, Label: throttleFields[i].reason, Since: s.since})
	}
	t.asked = d.now
}

// violated reports whether the violation status is read, or not yet known to be absent.
func (t *throttle) violated(d *Device) bool {
	if !d.lib.options.Slow.Enabled || !d.lib.have[callViolation] {
		return false
	}
	for i := range violations {
		if d.caps[callViolation][i] != absent {
			return true
		}
	}
	return false
}

// readViolations reads the violation status, 1 ms per kind, if there are no counters.
func (t *throttle) readViolations(d *Device) {
	if t.counted() {
		return
	}
	for i, label := range violations {
		if !d.can(callViolation, i) {
			continue
		}
		v, ret := d.handle.GetViolationStatus(nvml.PerfPolicyType(i))
		if !d.done(callViolation, i, ret) || v.ViolationTime == ^uint64(0) {
			continue
		}
		since := t.policy[i].read(v.ViolationTime, d.lib.boot, d.now)
		d.add(gpu.Point{Metric: gpu.ThrottleDuration, Float: float64(v.ViolationTime) / 1e9, Label: label, Since: since})
	}
}
