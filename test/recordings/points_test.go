// SPDX-License-Identifier: Apache-2.0

//go:build linux

package recordings_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
)

const mib = 1 << 20

// wantUnits are the units of the metrics in logs.
var wantUnits = map[string]string{
	"hw.gpu.utilization": "1", "hw.gpu.memory.controller.utilization": "1", "hw.gpu.memory.usage": "By",
	"hw.gpu.memory.limit": "By", "hw.gpu.memory.free": "By", "hw.temperature": "Cel",
	"hw.power": "W", "hw.voltage": "V", "hw.energy": "J", "hw.gpu.speed": "Hz",
	"hw.gpu.io.throughput": "By/s", "hw.gpu.throttle.active": "1", "hw.fan.speed_ratio": "1",
	"hw.errors": "{error}", "system.cpu.utilization": "1", "system.memory.usage": "By", "system.memory.limit": "By",
}

// distinguishing returns the attributes that distinguish a point from others of its metric and
// time.
func distinguishing(p testsink.Point) string {
	var out []string
	for _, key := range []string{
		"hw.id", "hw.gpu.task", "hw.sensor_location", "hw.gpu.clock_domain", "hw.gpu.throttle.reason",
		"network.io.direction", "error.type", "system.memory.state",
	} {
		if v, ok := p.Attrs[key]; ok {
			out = append(out, fmt.Sprint(v))
		}
	}
	return strings.Join(out, " ")
}

// deviceMeter maps a key of a device snapshot, or a column of a device row, to a point.
type deviceMeter struct {
	key, metric, attrs string
	scale              float64
	// zeroUnknown: GPU Flight writes 0 if the device does not support the value.
	zeroUnknown bool
}

var deviceMeters = []deviceMeter{
	{key: "util_gpu_pct", metric: "hw.gpu.utilization", attrs: "general", scale: 0.01},
	{key: "gpu_util", metric: "hw.gpu.utilization", attrs: "general", scale: 0.01},
	{key: "util_mem_pct", metric: "hw.gpu.memory.controller.utilization", scale: 0.01},
	{key: "mem_util", metric: "hw.gpu.memory.controller.utilization", scale: 0.01},
	{key: "used_mib", metric: "hw.gpu.memory.usage", scale: mib},
	{key: "free_mib", metric: "hw.gpu.memory.free", scale: mib},
	{key: "total_mib", metric: "hw.gpu.memory.limit", scale: mib},
	{key: "temp_c", metric: "hw.temperature", scale: 1},
	{key: "temp_mem_c", metric: "hw.temperature", attrs: "memory", scale: 1, zeroUnknown: true},
	{key: "temp_junction_c", metric: "hw.temperature", attrs: "junction", scale: 1, zeroUnknown: true},
	{key: "power_mw", metric: "hw.power", scale: 0.001},
	{key: "voltage_mv", metric: "hw.voltage", scale: 0.001, zeroUnknown: true},
	{key: "energy_uj", metric: "hw.energy", scale: 1e-6, zeroUnknown: true},
	{key: "clk_gfx_mhz", metric: "hw.gpu.speed", attrs: "graphics", scale: 1e6},
	{key: "clk_sm_mhz", metric: "hw.gpu.speed", attrs: "sm", scale: 1e6},
	{key: "clock_sm", metric: "hw.gpu.speed", attrs: "sm", scale: 1e6, zeroUnknown: true},
	{key: "clk_mem_mhz", metric: "hw.gpu.speed", attrs: "memory", scale: 1e6},
	{key: "clock_mem", metric: "hw.gpu.speed", attrs: "memory", scale: 1e6, zeroUnknown: true},
	{key: "throttle_pwr", metric: "hw.gpu.throttle.active", attrs: "power", scale: 1},
	{key: "throttle_therm", metric: "hw.gpu.throttle.active", attrs: "thermal", scale: 1},
	{key: "pcie_rx_bw_bps", metric: "hw.gpu.io.throughput", attrs: "receive", scale: 1},
	{key: "pcie_tx_bw_bps", metric: "hw.gpu.io.throughput", attrs: "transmit", scale: 1},
	{key: "pcie_bw_bps", metric: "hw.gpu.io.throughput", scale: 1},
	{key: "fan_speed_pct", metric: "hw.fan.speed_ratio", scale: 0.01, zeroUnknown: true},
	{key: "ecc_corrected", metric: "hw.errors", attrs: "corrected", scale: 1},
	{key: "ecc_uncorrected", metric: "hw.errors", attrs: "uncorrected", scale: 1},
}

// pointText returns a point as one line. Nine digits distinguish all recorded values and hide
// rounding of a division.
func pointText(session, metric, attrs string, at int64, v float64) string {
	return fmt.Sprintf("%s %s {%s} at %d = %.9g", session, metric, attrs, at, v)
}

// checkPoints compares data points with device and host rows.
func checkPoints(t *testing.T, sessions map[string]*session, store *testsink.Store) {
	t.Helper()
	want, have := map[string]int{}, map[string]int{}
	for _, s := range sessions {
		s.points(want)
	}
	for _, p := range store.Points() {
		if p.Metric == "gpu.cuda.counter" {
			continue // compared by checkCounters
		}
		v, ok := p.Value.(float64)
		if n, isInt := p.Value.(int64); isInt {
			v, ok = float64(n), true
		}
		require.True(t, ok, "%s has no number", p.Metric)
		assert.Equal(t, wantUnits[p.Metric], p.Unit, "unit of %s", p.Metric)
		have[pointText(p.Session, p.Metric, distinguishing(p), int64(p.TimeNs), v)] += p.Count
	}
	assert.Equal(t, want, have, "data points, by all that tells them apart")
}

// points adds the expected points of the session's device and host rows.
func (s *session) points(want map[string]int) {
	statics := s.statics()
	for _, d := range s.devices {
		hwID := d.str("uuid")
		if hwID == "" {
			hwID = statics[d.int("device_id")].str("uuid")
		}
		put := func(metric, attrs string, v float64) {
			want[pointText(s.id, metric, strings.TrimSpace(hwID+" "+attrs), d.int("start_ns"), v)]++
		}
		for _, m := range deviceMeters {
			n, ok := d.num(m.key)
			if !ok || (n == 0 && m.zeroUnknown) || (m.key == "temp_junction_c" && n == d.int("temp_c")) {
				continue // the recorder repeats temp_c if the sensor is missing
			}
			put(m.metric, m.attrs, float64(n)*m.scale)
		}
	}
	for _, h := range s.hosts {
		if h.int("ram_total_mib") == 0 {
			continue // A2's periodic samples never have it
		}
		put := func(metric, attrs string, v float64) {
			want[pointText(s.id, metric, attrs, h.int("start_ns"), v)]++
		}
		cpu := h.float("cpu_pct") / 100
		if n, ok := h.num("cpu_pct_x100"); ok {
			cpu = float64(n) / 10000
		}
		put("system.cpu.utilization", "", cpu)
		put("system.memory.usage", "used", float64(h.int("ram_used_mib")*mib))
		put("system.memory.limit", "", float64(h.int("ram_total_mib")*mib))
	}
}

// counterFields are the keys of a counter record that are not counters.
var counterFields = map[string]bool{
	"type": true, "pid": true, "app": true, "session_id": true, "name": true, "start_ns": true, "end_ns": true,
	"device_id": true, "user_scope": true, "scope_depth": true, "range_index": true, "range_name": true,
	"kernel_name": true, "launch_ordinal": true, "version": true,
}

// checkCounters compares the profiler's counters: one point for each in the lines.
func checkCounters(t *testing.T, sessions map[string]*session, store *testsink.Store) {
	t.Helper()
	want, have := map[string]int{}, map[string]int{}
	for _, s := range sessions {
		for _, r := range s.counters {
			if r.str("type") == "pm_sample_batch" {
				for _, row := range r.rows(t) {
					n, _ := row["value"].(json.Number)
					f, _ := n.Float64()
					want[fmt.Sprintf("%s %s at %d = %v", s.id, s.dict["metric_dict"][row.int("metric_id")], row.int("start_ns"), f)]++
				}
				continue
			}
			for key := range r {
				n, ok := r[key].(json.Number)
				if !ok || counterFields[key] {
					continue
				}
				f, _ := n.Float64()
				if f == -1 || (f == 0 && strings.HasPrefix(key, "dram_")) {
					continue // not available
				}
				at := fmt.Sprintf("at %d", r.int("end_ns"))
				if n, ok := r.num("launch_ordinal"); ok {
					at = fmt.Sprintf("of launch %d", n) // it has no time
				}
				want[fmt.Sprintf("%s %s %s = %v", s.id, key, at, f)]++
			}
		}
	}
	for _, p := range store.Points() {
		if p.Metric != "gpu.cuda.counter" {
			continue
		}
		v := p.Value
		if n, ok := v.(int64); ok {
			v = float64(n)
		}
		at := fmt.Sprintf("at %d", p.TimeNs)
		if n, ok := p.Attrs["cuda.kernel.launch_ordinal"]; ok {
			at = fmt.Sprintf("of launch %v", n)
			assert.Positive(t, p.TimeNs)
		}
		have[fmt.Sprintf("%s %v %s = %v", p.Session, p.Attrs["cuda.metric.name"], at, v)] += p.Count
	}
	assert.Equal(t, want, have, "profiler counters")
}
