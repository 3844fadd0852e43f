// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"fmt"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/semconv"
)

// The numbers of the fields that are read; go-nvml spells most of them out. Their numbers are part
// of NVML's ABI, but three of them have moved: see throttle.
const (
	fieldPowerInstant = nvml.FI_DEV_POWER_INSTANT
	fieldPowerAverage = nvml.FI_DEV_POWER_AVERAGE
	fieldMemoryTemp   = nvml.FI_DEV_MEMORY_TEMP
	fieldPCIeTX       = nvml.FI_DEV_PCIE_COUNT_TX_BYTES
	fieldPCIeRX       = nvml.FI_DEV_PCIE_COUNT_RX_BYTES
	fieldNVLinkTX     = nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX // KiB
	fieldNVLinkRX     = nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX
	fieldNVLink5TX    = nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES // By, from Blackwell
	fieldNVLink5RX    = nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES

	allLinks = math.MaxUint32
	maxLinks = 18
)

// The directions as indices of sums.
const (
	receive = iota
	transmit
)

var directions = [...]string{receive: semconv.NetworkIODirectionReceive, transmit: semconv.NetworkIODirectionTransmit}

// linkSums are NVLink bytes of one direction, by link; the first for all links where the driver adds
// them up itself.
type linkSums [maxLinks]sum

func (s *linkSums) forget() {
	for i := range s {
		s[i].forget()
	}
}

// total returns the bytes over all links, and whether there are any links.
func (s *linkSums) total() (bytes float64, p *sum) {
	for i := range s {
		if !s[i].since.IsZero() {
			bytes += s[i].value
			if p == nil || s[i].since.Before(p.since) {
				p = &s[i]
			}
		}
	}
	return bytes, p
}

// fields are the values that one call reads together.
type fields struct {
	// probed says that values holds only fields that the device has.
	probed bool
	values []nvml.FieldValue
}

// probe asks once for all fields of interest and keeps those that are answered.
func (f *fields) probe(d *Device) bool {
	var ask []nvml.FieldValue
	add := func(scope uint32, ids ...uint32) {
		for _, id := range ids {
			ask = append(ask, nvml.FieldValue{FieldId: id, ScopeId: scope})
		}
	}
	add(0, fieldPowerInstant, fieldPowerAverage, fieldMemoryTemp, fieldPCIeTX, fieldPCIeRX)
	for _, r := range throttleFields {
		add(0, r.fields...)
	}
	add(allLinks, fieldNVLinkTX, fieldNVLinkRX)
	for link := range uint32(maxLinks) {
		add(link, fieldNVLinkTX, fieldNVLinkRX, fieldNVLink5TX, fieldNVLink5RX)
	}
	if !d.done(callFields, 0, d.handle.GetFieldValues(ask)) {
		return false
	}
	f.probed, f.values = true, f.values[:0]
	missing := []uint32{}
	has := func(id, scope uint32) bool {
		return slices.ContainsFunc(f.values, func(v nvml.FieldValue) bool { return v.FieldId == id && v.ScopeId == scope })
	}
	for i := range ask {
		v := &ask[i]
		id := v.FieldId
		if nvml.Return(v.NvmlReturn) != nvml.SUCCESS {
			if !slices.Contains(missing, id) {
				missing = append(missing, id)
			}
			continue
		}
		switch {
		// The average takes a thousand times as long as the instant value.
		case id == fieldPowerAverage && has(fieldPowerInstant, 0):
		// The driver's own sum over the links does for each of them.
		case (id == fieldNVLinkTX || id == fieldNVLinkRX) && v.ScopeId != allLinks && has(id, allLinks):
		case (id == fieldNVLink5TX || id == fieldNVLink5RX) && (has(fieldNVLinkTX, allLinks) || has(fieldNVLinkTX, v.ScopeId)):
		default:
			f.values = append(f.values, *v)
		}
	}
	for _, id := range missing {
		if !slices.ContainsFunc(f.values, func(v nvml.FieldValue) bool { return v.FieldId == id }) {
			d.reading.Unsupported = append(d.reading.Unsupported, gpu.Unsupported{Call: fmt.Sprintf("%s(%d)", callFields, id), Code: code(nvml.ERROR_NOT_SUPPORTED)})
		}
	}
	return true
}

func (d *Device) readFields() {
	if !d.can(callFields, 0) {
		d.readPower()
		d.addIO()
		return
	}
	f := &d.fields
	if !f.probed {
		if !f.probe(d) {
			d.readPower()
			d.addIO()
			return
		}
	} else if len(f.values) > 0 {
		for i := range f.values {
			f.values[i].NvmlReturn = uint32(nvml.ERROR_NO_DATA) // not the last reading's, should the driver leave one out
		}
		if !d.done(callFields, 0, d.handle.GetFieldValues(f.values)) {
			d.readPower()
			d.addIO()
			return
		}
	}
	power := false
	for i := range f.values {
		v := &f.values[i]
		if ret := nvml.Return(v.NvmlReturn); ret != nvml.SUCCESS {
			d.fail(fmt.Sprintf("%s(%d)", callFields, v.FieldId), ret)
			continue
		}
		value, c, ok := decode(nvml.ValueType(v.ValueType), v.Value)
		if !ok {
			continue
		}
		switch v.FieldId {
		case fieldPowerInstant, fieldPowerAverage:
			if !power {
				d.add(gpu.Point{Metric: gpu.Power, Float: value / 1000})
				power = true
			}
		case fieldMemoryTemp:
			// Boards without the sensor say 0.
			if value != 0 {
				d.temperature(gpu.Temperature, value, semconv.HWSensorLocationMemory, "")
			}
		case fieldPCIeTX:
			d.pcieBytes(transmit, c)
		case fieldPCIeRX:
			d.pcieBytes(receive, c)
		case fieldNVLinkTX:
			d.linkBytes(transmit, v.ScopeId, c, 1024)
		case fieldNVLinkRX:
			d.linkBytes(receive, v.ScopeId, c, 1024)
		case fieldNVLink5TX:
			d.linkBytes(transmit, v.ScopeId, c, 1)
		case fieldNVLink5RX:
			d.linkBytes(receive, v.ScopeId, c, 1)
		default:
			d.throttle.field(d, v.FieldId, c)
		}
	}
	if !power {
		d.readPower()
	}
	d.addIO()
}

// pcieBytes takes a PCIe counter. One of 32 bits wraps many times between two readings on a fast
// link, so GPM's mean rate is better where there is one.
func (d *Device) pcieBytes(direction int, c counterValue) {
	if c.bits == 32 && d.gpm.pcie[direction].now {
		return
	}
	if c.bits >= 32 {
		d.gpm.pcie[direction].counted = true
		d.pcie[direction].step(c.value, c.bits, 1, d.now)
	}
}

func (d *Device) linkBytes(direction int, link uint32, c counterValue, unit float64) {
	if link == allLinks {
		link = 0
	}
	if link < maxLinks && c.bits >= 32 {
		d.gpm.links[direction].counted = true
		d.links[direction][link].step(c.value, c.bits, unit, d.now)
	}
}

// addIO adds the bytes over PCIe and NVLink, from counters or else from GPM's rates.
func (d *Device) addIO() {
	for i, label := range directions {
		if r := &d.gpm.pcie[i]; r.now && !r.counted {
			d.pcie[i].rate(r.perSecond, r.over, d.now)
		}
		if r := &d.gpm.links[i]; r.now && !r.counted {
			d.links[i][0].rate(r.perSecond, r.over, d.now)
		}
		if s := &d.pcie[i]; !s.since.IsZero() {
			d.add(gpu.Point{Metric: gpu.IO, Int: int64(s.value), Label: label, Since: s.since})
		}
		if bytes, s := d.links[i].total(); s != nil {
			d.add(gpu.Point{Metric: gpu.InterconnectIO, Int: int64(bytes), Label: semconv.HWGPUInterconnectTypeNvlink, Detail: label, Since: s.since})
		}
		d.gpm.pcie[i].now, d.gpm.pcie[i].counted = false, false
		d.gpm.links[i].now, d.gpm.links[i].counted = false, false
	}
}

// readPower asks for power by the call of its own, where there is no such field.
func (d *Device) readPower() {
	if d.can(callPower, 0) {
		if mw, ret := d.handle.GetPowerUsage(); d.done(callPower, 0, ret) && valid(mw) {
			d.add(gpu.Point{Metric: gpu.Power, Float: float64(mw) / 1000})
		}
	}
}
