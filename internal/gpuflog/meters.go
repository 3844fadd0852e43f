// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"math"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

const mib = int64(1) << 20

// ratio turns a percentage into a ratio.
func ratio(v gpuevent.Int, per float64) gpuevent.Float {
	return gpuevent.Float{V: float64(v.V) / per, OK: v.OK && v.V >= 0}
}

// scaled turns an integer into a unit that is per times as large.
func scaled(v gpuevent.Int, per float64) gpuevent.Float {
	return gpuevent.Float{V: float64(v.V) / per, OK: v.OK}
}

// times turns an integer into a unit that is n times as small; out of range is unknown.
func times(v gpuevent.Int, n int64) gpuevent.Int {
	return gpuevent.Int{V: v.V * n, OK: v.OK && v.V >= 0 && v.V <= math.MaxInt64/n}
}

// meters are the host and devices objects of a record (format document, section 3.1).
type meters struct {
	host    gpuevent.HostSample
	devices []gpuevent.DeviceSample
	hasHost bool
	text    *interner
}

// maxDevices bounds the devices of one record.
const maxDevices = 1024

// meters returns the Decoder's own, emptied.
func (d *Decoder) meters() *meters {
	d.meter = meters{devices: d.meter.devices[:0], text: &d.text}
	return &d.meter
}

// take reads the value of the key host or devices.
func (m *meters) take(r *record, key []byte) bool {
	if string(key) == "host" {
		return m.takeHost(r)
	}
	if !r.enter('[') {
		return false
	}
	for first := true; ; first = false {
		member, ok := r.more(first, ']')
		if !ok || !member {
			return ok
		}
		if len(m.devices) >= maxDevices {
			return r.skip()
		}
		m.devices = append(m.devices, gpuevent.DeviceSample{})
		if !m.takeDevice(r, &m.devices[len(m.devices)-1]) {
			return false
		}
	}
}

func (m *meters) takeHost(r *record) bool {
	var used, total gpuevent.Int
	var cpu gpuevent.Float
	ok := object(r, func(key []byte) (ok bool) {
		switch string(key) {
		case "cpu_pct":
			cpu.V, ok = r.number()
			cpu.OK = ok && !math.IsNaN(cpu.V)
		case "ram_used_mib":
			ok = r.intInto(&used)
		case "ram_total_mib":
			ok = r.intInto(&total)
		default:
			ok = r.skip()
		}
		return ok
	})
	cpu.V /= 100
	// A2's system_sample never fills the object: all zero means missing.
	m.hasHost = cpu.V != 0 || used.V != 0 || total.V != 0
	m.host = gpuevent.HostSample{CPU: cpu, MemoryUsed: times(used, mib), MemoryTotal: times(total, mib)}
	return ok
}

func (m *meters) takeDevice(r *record, s *gpuevent.DeviceSample) bool {
	var used, free, total, util, utilMem, temp, power, gfx, sm, mem gpuevent.Int
	var name, uuid, vendor []byte
	ok := object(r, func(key []byte) (ok bool) {
		switch string(key) {
		case "id":
			s.Device, _, ok = r.integer()
		case "name":
			ok = r.strInto(&name)
		case "uuid":
			ok = r.strInto(&uuid)
		case "vendor":
			ok = r.strInto(&vendor)
		case "used_mib":
			ok = r.intInto(&used)
		case "free_mib":
			ok = r.intInto(&free)
		case "total_mib":
			ok = r.intInto(&total)
		case "util_gpu_pct", "util_gpu":
			ok = r.intInto(&util)
		case "util_mem_pct", "util_mem":
			ok = r.intInto(&utilMem)
		case "temp_c":
			ok = r.intInto(&temp)
		case "power_mw":
			ok = r.intInto(&power)
		case "clk_gfx_mhz", "clk_gfx":
			ok = r.intInto(&gfx)
		case "clk_sm_mhz", "clk_sm":
			ok = r.intInto(&sm)
		case "clk_mem_mhz", "clk_mem":
			ok = r.intInto(&mem)
		case "throttle_pwr":
			ok = r.intInto(&s.ThrottlePower)
		case "throttle_therm":
			ok = r.intInto(&s.ThrottleThermal)
		case "pcie_rx_bw_bps", "pcie_rx_bw":
			ok = r.intInto(&s.PCIeReceive)
		case "pcie_tx_bw_bps", "pcie_tx_bw":
			ok = r.intInto(&s.PCIeTransmit)
		default:
			ok = r.skip()
		}
		return ok
	})
	s.Name, s.UUID, s.Vendor = m.text.get(name), m.text.get(uuid), m.text.get(vendor)
	s.MemoryUsed, s.MemoryFree, s.MemoryTotal = times(used, mib), times(free, mib), times(total, mib)
	s.Utilization, s.MemoryControllerUtilization = ratio(util, 100), ratio(utilMem, 100)
	s.Temperature, s.Power = scaled(temp, 1), scaled(power, 1000)
	s.ClockGraphics, s.ClockSM, s.ClockMemory = times(gfx, 1e6), times(sm, 1e6), times(mem, 1e6)
	return ok
}

// object walks over an object and hands each key to field, which consumes the value.
func object(r *record, field func(key []byte) bool) bool {
	if !r.enter('{') {
		return false
	}
	for first := true; ; first = false {
		member, ok := r.more(first, '}')
		if !ok || !member {
			return ok
		}
		key, ok := r.key()
		if !ok || !field(key) {
			return false
		}
	}
}

// array walks over an array and lets each consume an element.
func array(r *record, each func() bool) bool {
	if !r.enter('[') {
		return false
	}
	for first := true; ; first = false {
		member, ok := r.more(first, ']')
		if !ok || !member {
			return ok
		}
		if !each() {
			return false
		}
	}
}

// snapshot sends the meters that a record carries.
func (d *Decoder) snapshot(s *session, ts int64, m *meters) {
	if ts < minTime {
		return
	}
	if m.hasHost {
		m.host.TimeNs = ts
		d.out.HostSample(s.ev, &m.host)
	}
	for i := range m.devices {
		m.devices[i].TimeNs = ts
		d.out.DeviceSample(s.ev, &m.devices[i])
	}
}

// systemSample decodes system_start, system_stop and system_sample (format document, section 3.8).
func (d *Decoder) systemSample(r *record) bool {
	m := d.meters()
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "host", "devices":
			ok = m.take(r, key)
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	s := d.owner(&r.head, r.head.ts.V)
	if s == nil {
		return true
	}
	if r.head.ts.V < minTime || r.head.ts.V > maxTime {
		d.reject(MissingField, recordNames[r.typ]+" without ts_ns")
		return true
	}
	d.snapshot(s, r.head.ts.V, m)
	return true
}

// deviceBatch decodes device_metric_batch (format document, section 4.7). All optional columns are
// present as soon as one of them is not zero. A zero in a column that cannot be zero means that the
// device does not support it.
func (d *Decoder) deviceBatch(r *record) bool {
	var b batch
	s, ok := d.batch(r, &b)
	if s == nil {
		return ok
	}
	for b.next(d) {
		t, ok := b.time(d)
		if !ok {
			continue
		}
		s.saw(d.channel, t)
		w := &b.row
		sample := gpuevent.DeviceSample{
			TimeNs: t, Device: w.get(colDevice),
			Utilization: ratio(w.opt(colGPUUtil), 100), MemoryControllerUtilization: ratio(w.opt(colMemUtil), 100),
			Temperature: scaled(w.opt(colTempC), 1), Power: scaled(w.opt(colPowerMW), 1000),
			MemoryUsed: times(w.opt(colUsedMiB), mib), MemoryTotal: times(positive(w.opt(colTotalMiB)), mib),
			ClockSM: times(positive(w.opt(colClockSM)), 1e6), ClockMemory: times(positive(w.opt(colClockMem)), 1e6),
			FanRatio: ratio(positive(w.opt(colFanPct)), 100), MemoryTemperature: scaled(positive(w.opt(colTempMem)), 1),
			Voltage: scaled(positive(w.opt(colVoltageMV)), 1000), Energy: scaled(positive(w.opt(colEnergyUJ)), 1e6),
			PCIe: w.opt(colPCIeBps), ECCCorrected: w.opt(colECCCorrected), ECCUncorrected: w.opt(colECCUncorrected),
		}
		// NVIDIA repeats temp_c as the junction's temperature.
		if j := positive(w.opt(colTempJunction)); j.V != w.get(colTempC) {
			sample.JunctionTemperature = scaled(j, 1)
		}
		d.out.DeviceSample(s.ev, &sample)
	}
	return true
}

// hostBatch decodes host_metric_batch.
func (d *Decoder) hostBatch(r *record) bool {
	var b batch
	s, ok := d.batch(r, &b)
	if s == nil {
		return ok
	}
	for b.next(d) {
		t, ok := b.time(d)
		if !ok {
			continue
		}
		s.saw(d.channel, t)
		d.out.HostSample(s.ev, &gpuevent.HostSample{
			TimeNs: t, CPU: ratio(b.row.opt(colCPUx100), 1e4),
			MemoryUsed: times(b.row.opt(colRAMUsed), mib), MemoryTotal: times(positive(b.row.opt(colRAMTotal)), mib),
		})
	}
	return true
}

// perfMetric decodes perf_metric_event and kernel_perf_metric_event: counters of a scope or of one
// launch, in percent, bytes or counts as upstream names them. The value -1 means not available. A2's
// byte counts are unsigned, so 0 means the same there: work that reads no memory at all is rare.
func (d *Decoder) perfMetric(r *record) bool {
	type value struct {
		name string
		f    float64
		i    gpuevent.Int
	}
	var values []value
	var name, kernel, scope []byte
	var start, end, device, ordinal gpuevent.Int
	if !r.fields(func(key []byte) (ok bool) {
		switch k := string(key); k {
		case "name":
			ok = r.strInto(&name)
		case "kernel_name":
			ok = r.strInto(&kernel)
		case "range_name":
			ok = r.skip()
		case "user_scope":
			ok = r.strInto(&scope)
		case "start_ns":
			ok = r.intInto(&start)
		case "end_ns":
			ok = r.intInto(&end)
		case "device_id":
			ok = r.intInto(&device)
		case "launch_ordinal":
			ok = r.intInto(&ordinal)
		case "scope_depth", "range_index":
			ok = r.skip()
		case "dram_read_bytes", "dram_write_bytes", "shared_load_bank_conflicts", "shared_store_bank_conflicts",
			"shared_bank_conflicts", "shared_wavefronts":
			var v gpuevent.Int
			if ok = r.intInto(&v); ok && v.V >= 0 && (v.V > 0 || k[0] == 's') {
				values = append(values, value{name: k, i: v})
			}
		case "sm_throughput_pct", "l1_hit_rate_pct", "l2_hit_rate_pct", "tensor_active_pct",
			"achieved_occupancy_pct", "shared_bank_conflict_overhead_pct", "shared_bank_conflict_nway":
			var f float64
			if f, ok = r.number(); ok && f >= 0 {
				values = append(values, value{name: k, f: f})
			}
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	ts := end.V
	s := d.owner(&r.head, ts)
	if s == nil {
		return true
	}
	if ts < minTime || ts > maxTime { // kernel_perf_metric_event has no time
		ts = s.timeIn(d.channel)
	}
	c := gpuevent.Counter{TimeNs: ts, Device: device, Ordinal: ordinal, Scope: d.text.get(scope)}
	if len(scope) == 0 {
		c.Scope = d.text.get(name)
	}
	// kernel_name repeats the range's number where the profiler did not resolve it.
	if _, number := decimal(kernel); !number {
		c.Kernel = d.text.get(kernel)
	}
	for _, v := range values {
		c.Name, c.Value, c.Int = d.text.get([]byte(v.name)), v.f, v.i
		d.out.Counter(s.ev, &c)
	}
	return true
}
