// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import (
	"math/rand/v2"
)

// machine is the simulated host with its GPUs, as the recorder samples them.
type machine struct {
	devices []device
	// cpuTenths is percent × 10 of the whole machine.
	cpuTenths   int64
	ramUsedMiB  int64
	ramTotalMiB int64
	// usedMiB is the memory that the session has allocated on the first device.
	usedMiB int64
}

type device struct {
	uuid                   string
	usedMiB                int64
	gpuUtil, memUtil       int64
	tempC, powerMW         int64
	throttled              int64
	clockSM, clockMem      int64
	rxBytes, txBytes       int64
	energyMicroJoule       int64
	contextMiB, pciAddress int64
}

const (
	deviceName     = "NVIDIA H200"
	deviceTotalMiB = 143771
	hostName       = "gpu-node-01"
	hostAddress    = "192.0.2.10"
)

func newMachine(rng *rand.Rand, devices int) *machine {
	m := &machine{ramTotalMiB: 515832, ramUsedMiB: 41_000, cpuTenths: 57}
	for i := range devices {
		m.devices = append(m.devices, device{
			uuid: "GPU-" + uuid(rng), contextMiB: 1173, pciAddress: int64(16 * (i + 1)), tempC: 32,
			powerMW: 82_000, clockSM: 1980, clockMem: 3201, energyMicroJoule: 30_314_646_000,
		})
	}
	m.sample(rng, false)
	return m
}

// sample advances the machine's state by one sampling period.
func (m *machine) sample(rng *rand.Rand, training bool) {
	m.cpuTenths = 40 + int64(rng.IntN(60))
	m.ramUsedMiB += int64(rng.IntN(9)) - 4
	if training {
		m.cpuTenths += 150
	}
	for i := range m.devices {
		d := &m.devices[i]
		d.usedMiB = d.contextMiB
		util, power, rest := int64(0), int64(82_000), int64(32)
		if i == 0 {
			d.usedMiB += m.usedMiB
			if training {
				util, power, rest = 93, 540_000, 62
			}
		}
		d.gpuUtil, d.memUtil = 0, 0
		if util > 0 {
			d.gpuUtil = util - 6 + int64(rng.IntN(13))
			d.memUtil = 38 + int64(rng.IntN(9))
		}
		d.powerMW += (power-d.powerMW)/4 + int64(rng.IntN(6000)) - 3000
		d.tempC += sign(rest - d.tempC)
		d.throttled = 0
		if d.powerMW > 545_000 {
			d.throttled = 1
		}
		d.rxBytes = 430_080 + int64(rng.IntN(1<<17))
		d.txBytes = 590_848 + int64(rng.IntN(1<<17))
		if util > 0 {
			d.rxBytes += 8 << 20
			d.txBytes += 1 << 20
		}
		// 1 mW for 100 ms is 100 µJ.
		d.energyMicroJoule += d.powerMW * 100
	}
}

func sign(v int64) int64 {
	switch {
	case v > 0:
		return 1
	case v < 0:
		return -1
	}
	return 0
}

// host appends the host object. devices appends the snapshot array. Both include their keys.
func (m *machine) host(l line, zero bool) line {
	l = l.key("host").raw("{")
	cpu, used, total := float64(m.cpuTenths)/10, m.ramUsedMiB, m.ramTotalMiB
	if zero {
		cpu, used, total = 0, 0, 0
	}
	l = l.raw(`"cpu_pct":`).fixedValue(cpu, 1)
	return l.int("ram_used_mib", used).int("ram_total_mib", total).raw("}")
}

func (m *machine) snapshot(l line) line {
	l = l.key("devices").raw("[")
	for i := range m.devices {
		d := &m.devices[i]
		if i > 0 {
			l = l.raw(",")
		}
		l = l.raw(`{"id":`).intValue(int64(i)).str("name", deviceName).str("uuid", d.uuid).str("vendor", "NVIDIA").
			int("pci_bus", d.pciAddress).int("used_mib", d.usedMiB).int("free_mib", deviceTotalMiB-d.usedMiB).
			int("total_mib", deviceTotalMiB).int("util_gpu_pct", d.gpuUtil).int("util_mem_pct", d.memUtil).
			int("temp_c", d.tempC).int("power_mw", d.powerMW).int("clk_gfx_mhz", d.clockSM).int("clk_sm_mhz", d.clockSM).
			int("clk_mem_mhz", d.clockMem).int("throttle_pwr", d.throttled).int("throttle_therm", 0).
			int("pcie_rx_bw_bps", d.rxBytes).int("pcie_tx_bw_bps", d.txBytes).raw("}")
	}
	return l.raw("]")
}

// static appends the static device array under the given key. The batch format has vendor and
// architecture and a numeric compute_major; A2 has a quoted one.
func (m *machine) static(l line, key string, batch bool) line {
	l = l.key(key).raw("[")
	for i := range m.devices {
		if i > 0 {
			l = l.raw(",")
		}
		l = l.raw(`{"id":`).intValue(int64(i)).str("name", deviceName).str("uuid", m.devices[i].uuid)
		if batch {
			l = l.str("vendor", "NVIDIA").str("architecture", "sm_90").int("compute_major", 9)
		} else {
			l = l.str("compute_major", "9")
		}
		l = l.int("compute_minor", 0).int("l2_cache_size_bytes", 62914560).int("shared_mem_per_block_bytes", 49152).
			int("regs_per_block", 65536).int("multi_processor_count", smCount).int("warp_size", 32).raw("}")
	}
	return l.raw("]")
}
