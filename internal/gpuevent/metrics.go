// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/semconv"
)

// The metrics that this package writes.
const (
	metricUtilization = iota
	metricControllerUtilization
	metricMemoryUsage
	metricMemoryFree
	metricMemoryLimit
	metricFan
	metricTemperature
	metricPower
	metricVoltage
	metricEnergy
	metricSpeed
	metricThrottle
	metricThroughput
	metricErrors
	metricHostCPU
	metricHostMemoryUsage
	metricHostMemoryLimit
	metricCounter
	numMetrics
)

// metricDefs are the metrics' definitions in the registry.
var metricDefs = func() (defs [numMetrics]semconv.Metric) {
	names := [numMetrics]string{
		metricUtilization:           semconv.MetricHWGPUUtilization,
		metricControllerUtilization: semconv.MetricHWGPUMemoryControllerUtilization,
		metricMemoryUsage:           semconv.MetricHWGPUMemoryUsage,
		metricMemoryFree:            semconv.MetricHWGPUMemoryFree,
		metricMemoryLimit:           semconv.MetricHWGPUMemoryLimit,
		metricFan:                   semconv.MetricHWFanSpeedRatio,
		metricTemperature:           semconv.MetricHWTemperature,
		metricPower:                 semconv.MetricHWPower,
		metricVoltage:               semconv.MetricHWVoltage,
		metricEnergy:                semconv.MetricHWEnergy,
		metricSpeed:                 semconv.MetricHWGPUSpeed,
		metricThrottle:              semconv.MetricHWGPUThrottleActive,
		metricThroughput:            semconv.MetricHWGPUIOThroughput,
		metricErrors:                semconv.MetricHWErrors,
		metricHostCPU:               semconv.MetricSystemCPUUtilization,
		metricHostMemoryUsage:       semconv.MetricSystemMemoryUsage,
		metricHostMemoryLimit:       semconv.MetricSystemMemoryLimit,
		metricCounter:               semconv.MetricGPUCUDACounter,
	}
	for _, m := range semconv.Metrics {
		for i, name := range names {
			if m.Name == name {
				defs[i] = m
			}
		}
	}
	return defs
}()

// Slots of the attributes of data points, in the order in which they are written.
const (
	pointHWID = iota
	pointHWName
	pointHWVendor
	pointHWType
	pointDevice
	pointTask
	pointSensor
	pointClock
	pointThrottle
	pointDirection
	pointError
	pointMemoryState
	pointMetricName
	pointScopePath
	pointKernelName
	pointOrdinal
	numPointSlots
)

var pointKeys = [numPointSlots]string{
	pointHWID:        semconv.HWID,
	pointHWName:      semconv.HWName,
	pointHWVendor:    semconv.HWVendor,
	pointHWType:      semconv.HWType,
	pointDevice:      semconv.CUDADeviceIndex,
	pointTask:        semconv.HWGPUTask,
	pointSensor:      semconv.HWSensorLocation,
	pointClock:       semconv.HWGPUClockDomain,
	pointThrottle:    semconv.HWGPUThrottleReason,
	pointDirection:   semconv.NetworkIODirection,
	pointError:       semconv.ErrorType,
	pointMemoryState: semconv.SystemMemoryState,
	pointMetricName:  semconv.CUDAMetricName,
	pointScopePath:   semconv.CUDAScopePath,
	pointKernelName:  semconv.CUDAKernelName,
	pointOrdinal:     semconv.CUDAKernelLaunchOrdinal,
}

// noSlot says that a data point has no attribute of its own besides its device.
const noSlot = -1

// DeviceSample adds the data points of one reading of a device's meters, all at its time. Sums have
// no start time: they count since the driver was loaded, and when that was is not known.
func (b *Batch) DeviceSample(s *Session, d *DeviceSample) {
	if !b.signals.Metrics {
		return
	}
	w := pointWriter{b: b, o: b.output(s), timeNs: d.TimeNs, onDevice: true}
	w.dev = Device{Index: d.Device}
	if i := w.o.device(Some(d.Device)); i >= 0 {
		w.dev = s.Devices[i]
	}
	w.dev.UUID = orElse(d.UUID, w.dev.UUID)
	w.dev.Name = orElse(d.Name, w.dev.Name)
	w.dev.Vendor = orElse(d.Vendor, w.dev.Vendor)

	w.float(metricUtilization, d.Utilization, pointTask, semconv.HWGPUTaskGeneral)
	w.float(metricControllerUtilization, d.MemoryControllerUtilization, noSlot, "")
	w.int(metricMemoryUsage, d.MemoryUsed, noSlot, "")
	w.int(metricMemoryFree, d.MemoryFree, noSlot, "")
	w.int(metricMemoryLimit, d.MemoryTotal, noSlot, "")
	w.float(metricFan, d.FanRatio, noSlot, "")
	w.float(metricTemperature, d.Temperature, noSlot, "")
	w.float(metricTemperature, d.MemoryTemperature, pointSensor, semconv.HWSensorLocationMemory)
	w.float(metricTemperature, d.JunctionTemperature, pointSensor, semconv.HWSensorLocationJunction)
	w.float(metricPower, d.Power, noSlot, "")
	w.float(metricVoltage, d.Voltage, noSlot, "")
	w.float(metricEnergy, d.Energy, noSlot, "")
	w.int(metricSpeed, d.ClockGraphics, pointClock, semconv.HWGPUClockDomainGraphics)
	w.int(metricSpeed, d.ClockSM, pointClock, semconv.HWGPUClockDomainSM)
	w.int(metricSpeed, d.ClockMemory, pointClock, semconv.HWGPUClockDomainMemory)
	w.int(metricThrottle, d.ThrottlePower, pointThrottle, semconv.HWGPUThrottleReasonPower)
	w.int(metricThrottle, d.ThrottleThermal, pointThrottle, semconv.HWGPUThrottleReasonThermal)
	w.int(metricThroughput, d.PCIeReceive, pointDirection, semconv.NetworkIODirectionReceive)
	w.int(metricThroughput, d.PCIeTransmit, pointDirection, semconv.NetworkIODirectionTransmit)
	w.int(metricThroughput, d.PCIe, noSlot, "")
	w.int(metricErrors, d.ECCCorrected, pointError, semconv.ErrorTypeCorrected)
	w.int(metricErrors, d.ECCUncorrected, pointError, semconv.ErrorTypeUncorrected)
}

// HostSample adds the data points of one reading of the host's meters.
func (b *Batch) HostSample(s *Session, h *HostSample) {
	if !b.signals.Metrics {
		return
	}
	w := pointWriter{b: b, o: b.output(s), timeNs: h.TimeNs}
	w.float(metricHostCPU, h.CPU, noSlot, "")
	w.int(metricHostMemoryUsage, h.MemoryUsed, pointMemoryState, semconv.SystemMemoryStateUsed)
	w.int(metricHostMemoryLimit, h.MemoryTotal, noSlot, "")
}

// Counter adds the data point of one value of a hardware counter.
func (b *Batch) Counter(s *Session, c *Counter) {
	if !b.signals.Metrics {
		return
	}
	w := pointWriter{b: b, o: b.output(s), timeNs: c.TimeNs}
	if i := w.o.device(c.Device); i >= 0 {
		w.dev, w.onDevice = s.Devices[i], true
	} else if c.Device.OK {
		w.dev, w.onDevice = Device{Index: c.Device.V}, true
	}
	if !c.Int.OK && !finite(c.Value) {
		return
	}
	a := b.pointAttrs
	a.str(pointScopePath, c.Scope)
	a.str(pointKernelName, c.Kernel)
	a.some(pointOrdinal, c.Ordinal)
	if c.Int.OK {
		w.int(metricCounter, c.Int, pointMetricName, c.Name)
	} else {
		w.float(metricCounter, SomeFloat(c.Value), pointMetricName, c.Name)
	}
}

// pointWriter adds the data points of one reading.
type pointWriter struct {
	b        *Batch
	o        *output
	timeNs   int64
	dev      Device
	onDevice bool
}

// int adds an integer, if it is known, with one attribute of its own (or none, by noSlot).
func (w *pointWriter) int(metric int, v Int, slot int, own string) {
	if v.OK {
		w.point(metric, slot, own).SetIntValue(v.V)
	}
}

// float adds a number, if it is known and one.
func (w *pointWriter) float(metric int, v Float, slot int, own string) {
	if v.OK && finite(v.V) {
		w.point(metric, slot, own).SetDoubleValue(v.V)
	}
}

func (w *pointWriter) point(metric, slot int, own string) pmetric.NumberDataPoint {
	b := w.b
	p := b.newPoint(w.o, metric)
	p.SetTimestamp(timestamp(w.timeNs))
	if b.pointAttrs.present == 0 {
		sets := &b.hostSets
		if w.onDevice {
			sets = &b.deviceSets
		}
		sets.find(w, slot, own).CopyTo(p.Attributes())
		return p
	}
	w.describe(b.pointAttrs, slot, own)
	b.pointAttrs.write(p.Attributes())
	return p
}

// describe sets the attributes that say which device and which of its meters.
func (w *pointWriter) describe(a *attrs, slot int, own string) {
	if w.onDevice {
		a.str(pointHWID, w.dev.UUID)
		a.str(pointHWName, w.dev.Name)
		a.str(pointHWVendor, w.dev.Vendor)
		a.str(pointHWType, semconv.HWTypeGPU)
		a.int(pointDevice, w.dev.Index)
	}
	if slot != noSlot {
		a.str(slot, own)
	}
}

// pointSets caches the complete attributes of the data points of one device, or of the host. They are
// the same at every reading, and copying a finished map is the fastest way to fill one.
type pointSets struct {
	dev  Device
	sets []pointSet
}

type pointSet struct {
	slot int
	own  string
	m    pcommon.Map
}

// maxPointSets bounds them; a device has a dozen.
const maxPointSets = 64

func (c *pointSets) find(w *pointWriter, slot int, own string) pcommon.Map {
	if c.dev.Index != w.dev.Index || c.dev.UUID != w.dev.UUID || c.dev.Name != w.dev.Name || c.dev.Vendor != w.dev.Vendor {
		c.dev, c.sets = w.dev, c.sets[:0]
	}
	for i := range c.sets {
		if c.sets[i].slot == slot && c.sets[i].own == own {
			return c.sets[i].m
		}
	}
	if len(c.sets) >= maxPointSets {
		c.sets = c.sets[:0]
	}
	m := pcommon.NewMap()
	w.describe(w.b.pointAttrs, slot, own)
	w.b.pointAttrs.write(m)
	c.sets = append(c.sets, pointSet{slot, own, m})
	return m
}

// newPoint appends a data point to the session's metric.
func (b *Batch) newPoint(o *output, metric int) pmetric.NumberDataPoint {
	if !o.hasMetrics {
		o.hasMetrics = true
		rm := b.metrics.ResourceMetrics().AppendEmpty()
		rm.SetSchemaUrl(semconv.SchemaURL)
		o.resource(rm.Resource().Attributes())
		sm := rm.ScopeMetrics().AppendEmpty()
		sm.SetSchemaUrl(semconv.SchemaURL)
		sm.Scope().SetName(semconv.ScopeName)
		o.metrics = sm.Metrics()
	}
	if !o.hasPoints[metric] {
		o.hasPoints[metric] = true
		o.points[metric] = newMetric(o.metrics.AppendEmpty(), &metricDefs[metric])
	}
	b.points++
	return o.points[metric].AppendEmpty()
}

// newMetric describes the metric and returns its data points.
func newMetric(m pmetric.Metric, def *semconv.Metric) pmetric.NumberDataPointSlice {
	m.SetName(def.Name)
	m.SetUnit(def.Unit)
	m.SetDescription(def.Brief)
	if def.Instrument == semconv.Gauge {
		return m.SetEmptyGauge().DataPoints()
	}
	sum := m.SetEmptySum()
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	sum.SetIsMonotonic(def.Instrument == semconv.Counter)
	return sum.DataPoints()
}
