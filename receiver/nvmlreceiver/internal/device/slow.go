// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/semconv"
)

// readSlow reads limits and counts of damage: they hardly change, and some of the calls take
// milliseconds.
func (d *Device) readSlow() {
	d.lasting = false
	d.readPowerLimits()
	for i, t := range thresholds {
		if !d.can(callThreshold, i) {
			continue
		}
		if c, ret := d.handle.GetTemperatureThreshold(t.kind); d.done(callThreshold, i, ret) && valid(c) && c > 0 {
			d.temperature(gpu.TemperatureLimit, float64(c), t.limit, t.sensor)
		}
	}
	for clock, label := range clocks {
		if d.can(callMaxClock, clock) {
			if mhz, ret := d.handle.GetMaxClockInfo(nvml.ClockType(clock)); d.done(callMaxClock, clock, ret) && valid(mhz) && mhz > 0 {
				d.add(gpu.Point{Metric: gpu.SpeedLimit, Int: int64(mhz) * 1e6, Label: label, Detail: semconv.HWLimitTypeMax})
			}
		}
	}
	d.throttle.readViolations(d)
	d.readMemoryErrors()
	if d.can(callReplay, 0) {
		if n, ret := d.handle.GetPcieReplayCounter(); d.done(callReplay, 0, ret) && n >= 0 && n != math.MaxUint32 {
			d.errors(&d.replay, uint64(n), semconv.ErrorTypePcieReplay)
		}
	}
}

var thresholds = [...]struct {
	kind          nvml.TemperatureThresholds
	limit, sensor string
}{
	{nvml.TEMPERATURE_THRESHOLD_SHUTDOWN, semconv.HWLimitTypeHighCritical, ""},
	{nvml.TEMPERATURE_THRESHOLD_SLOWDOWN, semconv.HWLimitTypeHighDegraded, ""},
	{nvml.TEMPERATURE_THRESHOLD_GPU_MAX, semconv.HWLimitTypeMax, ""},
	{nvml.TEMPERATURE_THRESHOLD_MEM_MAX, semconv.HWLimitTypeMax, semconv.HWSensorLocationMemory},
}

func (d *Device) readPowerLimits() {
	limit := func(mw uint32, kind string) {
		if valid(mw) && mw > 0 {
			d.add(gpu.Point{Metric: gpu.PowerLimit, Float: float64(mw) / 1000, Label: kind})
		}
	}
	if d.can(callEnforcedLimit, 0) {
		if mw, ret := d.handle.GetEnforcedPowerLimit(); d.done(callEnforcedLimit, 0, ret) {
			limit(mw, semconv.HWLimitTypeEnforced)
		}
	}
	if d.can(callLimits, 0) {
		if low, high, ret := d.handle.GetPowerManagementLimitConstraints(); d.done(callLimits, 0, ret) {
			limit(low, semconv.HWLimitTypeMin)
			limit(high, semconv.HWLimitTypeMax)
		}
	}
	if d.can(callDefaultLimit, 0) {
		if mw, ret := d.handle.GetPowerManagementDefaultLimit(); d.done(callDefaultLimit, 0, ret) {
			limit(mw, semconv.HWLimitTypeDefault)
		}
	}
}

// readMemoryErrors reads what is known of damaged memory: errors since the driver was loaded, and
// rows and pages that were taken out of use since the board was made.
func (d *Device) readMemoryErrors() {
	for i, label := range [...]string{semconv.ErrorTypeCorrected, semconv.ErrorTypeUncorrected} {
		if !d.can(callECC, i) {
			continue
		}
		if n, ret := d.handle.GetTotalEccErrors(nvml.MemoryErrorType(i), nvml.VOLATILE_ECC); d.done(callECC, i, ret) {
			d.errors(&d.ecc[i], n, label)
		}
	}
	if d.can(callRemapped, 0) {
		if corrected, uncorrected, pending, failure, ret := d.handle.GetRemappedRows(); d.done(callRemapped, 0, ret) {
			d.errors(&d.remapped[0], uint64(max(corrected, 0)), semconv.ErrorTypeRowRemapCorrected)
			d.errors(&d.remapped[1], uint64(max(uncorrected, 0)), semconv.ErrorTypeRowRemapUncorrected)
			failed := int64(0)
			if failure {
				failed = 1
			}
			d.add(gpu.Point{Metric: gpu.Errors, Int: failed, Label: semconv.ErrorTypeRowRemapFailure, Since: d.lib.boot})
			d.lasting = d.lasting || pending || failure
		}
	}
	for i, c := range retirements {
		if !d.can(callRetired, i) {
			continue
		}
		if pages, ret := d.handle.GetRetiredPages(c.cause); d.done(callRetired, i, ret) {
			d.errors(&d.retired[i], uint64(len(pages)), c.label)
		}
	}
	if d.can(callRetiredPending, 0) {
		if s, ret := d.handle.GetRetiredPagesPendingStatus(); d.done(callRetiredPending, 0, ret) {
			d.lasting = d.lasting || s == nvml.FEATURE_ENABLED
		}
	}
}

var retirements = [...]struct {
	cause nvml.PageRetirementCause
	label string
}{
	{nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, semconv.ErrorTypePageRetirementCorrected},
	{nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR, semconv.ErrorTypePageRetirementUncorrected},
}

func (d *Device) errors(t *total, n uint64, label string) {
	if n == math.MaxUint64 {
		return
	}
	d.add(gpu.Point{Metric: gpu.Errors, Int: integer(n), Label: label, Since: t.read(n, d.lib.boot, d.now)})
}
