// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
)

// readProcesses reads who uses the device. A process with both compute and graphics contexts is in
// both lists, with the same memory.
func (d *Device) readProcesses() {
	byPID := map[uint32]*gpu.Process{}
	dropped := map[uint32]struct{}{}
	get := func(pid uint32) *gpu.Process {
		p := byPID[pid]
		if p == nil && pid != 0 {
			if len(byPID) >= d.lib.options.MaxProcesses {
				if len(dropped) < d.lib.options.MaxProcesses {
					dropped[pid] = struct{}{}
				}
				return nil
			}
			p = &gpu.Process{}
			byPID[pid] = p
		}
		return p
	}
	for i, list := range [...]func() ([]nvml.ProcessInfo, nvml.Return){
		d.handle.GetComputeRunningProcesses, d.handle.GetGraphicsRunningProcesses, d.handle.GetMPSComputeRunningProcesses,
	} {
		c := [...]call{callCompute, callGraphics, callMPS}[i]
		if !d.can(c, 0) {
			continue
		}
		infos, ret := list()
		if !d.done(c, 0, ret) {
			continue
		}
		for _, info := range infos {
			p := get(info.Pid)
			// All ones: the driver may not report it, as under WDDM or in some virtual machines.
			if p == nil || info.UsedGpuMemory == math.MaxUint64 {
				continue
			}
			p.MemoryBytes, p.HasMemory = max(p.MemoryBytes, integer(info.UsedGpuMemory)), true
		}
	}
	d.readProcessUtilization(get)
	for pid, p := range byPID {
		p.Info = d.lib.options.Proc.Process(int(pid))
		d.reading.Processes = append(d.reading.Processes, *p)
	}
	d.reading.ProcessesDropped = len(dropped)
	slices.SortFunc(d.reading.Processes, func(a, b gpu.Process) int { return a.PID - b.PID })
}

// readProcessUtilization takes the mean of each process's samples since the last reading. A process
// without one is not known to be idle: the driver keeps samples only of those it saw at work.
func (d *Device) readProcessUtilization(get func(uint32) *gpu.Process) {
	if d.parent != nil || !d.can(callProcessUtilization, 0) {
		return
	}
	seen := d.processSeen
	samples, ret := d.handle.GetProcessUtilization(seen)
	if ret == nvml.ERROR_NOT_FOUND {
		samples, ret = nil, nvml.SUCCESS // no process, or nothing new
	}
	if !d.done(callProcessUtilization, 0, ret) {
		return
	}
	newest := seen
	for _, s := range samples {
		newest = max(newest, s.TimeStamp)
	}
	if seen == 0 {
		seen = newest - min(newest, uint64(d.lib.options.Interval.Microseconds()))
	}
	means := map[uint32]*mean{}
	for _, s := range samples {
		if s.TimeStamp <= seen || s.SmUtil > 100 || s.Pid == 0 {
			continue
		}
		m := means[s.Pid]
		if m == nil {
			if len(means) >= d.lib.options.MaxProcesses {
				continue
			}
			m = &mean{}
			means[s.Pid] = m
		}
		m.sum += float64(s.SmUtil)
		m.count++
	}
	for pid, m := range means {
		if p := get(pid); p != nil {
			v, _ := m.take()
			p.Utilization, p.HasUtilization = v/100, true
		}
	}
	d.processSeen = newest
}
