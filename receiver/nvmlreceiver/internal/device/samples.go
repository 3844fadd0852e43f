// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
)

// ring is the time that the driver's buffer of utilisation samples covers on an H200: 71 samples in
// 14 s. After that time without a new sample, the position in it is invalid.
const ring = 14 * time.Second

// ReadSamples collects samples between readings, if these are further apart than the buffer covers.
func (d *Device) ReadSamples() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handle == nil || d.parent != nil || !d.lib.options.Samples.Enabled {
		return
	}
	var r gpu.Reading // the next reading reports the errors
	d.reading, d.now, d.gone = &r, d.lib.options.Now(), nvml.SUCCESS
	d.readSamples()
	d.reading = nil
}

func (d *Device) readSamples() {
	for i, kind := range [...]nvml.SamplingType{nvml.GPU_UTILIZATION_SAMPLES, nvml.MEMORY_UTILIZATION_SAMPLES} {
		if !d.can(callSamples, i) {
			continue
		}
		m := &d.samples[i]
		valueType, samples, ret := d.handle.GetSamples(kind, m.last)
		if ret == nvml.ERROR_NOT_FOUND {
			samples, ret = nil, nvml.SUCCESS // none since then
		}
		if !d.done(callSamples, i, ret) {
			continue
		}
		d.collect(m, valueType, samples)
	}
}

// collect adds the new samples.
func (d *Device) collect(m *mean, valueType nvml.ValueType, samples []nvml.Sample) {
	newest := m.last
	for i := range samples {
		newest = max(newest, samples[i].TimeStamp)
	}
	after := m.last
	if after == 0 {
		// The first reading finds the whole buffer. Only samples within one interval count.
		after = newest - min(newest, uint64(d.lib.options.Interval.Microseconds()))
	}
	for i := range samples {
		s := &samples[i]
		// Unused slots have no time.
		if s.TimeStamp <= after {
			continue
		}
		if v, _, ok := decode(valueType, s.SampleValue); ok && v >= 0 && v <= 101 {
			m.sum += v
			m.count++
		}
	}
	switch {
	case newest > m.last:
		m.last, m.read = newest, d.now
	case m.last != 0 && d.now.Sub(m.read) > ring:
		// No new sample for the length of the buffer: the driver's clock restarted, and its
		// samples are older than the last one.
		m.last, m.read = 0, d.now
	}
}

// decode converts a value of the given type to a number, and to a counter with its width in bits.
// ok is false for all ones, which means no value.
func decode(t nvml.ValueType, b [8]byte) (v float64, c counterValue, ok bool) {
	u := binary.NativeEndian.Uint64(b[:])
	u32 := binary.NativeEndian.Uint32(b[:])
	switch t {
	case nvml.VALUE_TYPE_DOUBLE:
		v = math.Float64frombits(u)
		return v, counterValue{}, !math.IsNaN(v) && !math.IsInf(v, 0)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(u32), counterValue{uint64(u32), 32}, u32 != math.MaxUint32
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(u), counterValue{u, 64}, u != math.MaxUint64
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(u)), counterValue{u, 64}, u != math.MaxUint64
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(u32)), counterValue{uint64(u32), 32}, u32 != math.MaxUint32
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		u16 := binary.NativeEndian.Uint16(b[:])
		return float64(u16), counterValue{uint64(u16), 16}, u16 != math.MaxUint16
	default:
		return 0, counterValue{}, false
	}
}

// counterValue is a value of a counter and its width.
type counterValue struct {
	value uint64
	bits  int
}
