// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/process"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest"
	"github.com/gpuflight/gpuflight/semconv"
)

// bench is a driver with the fake and a clock that the test moves.
type bench struct {
	t       *testing.T
	control *nvmltest.Control
	driver  gpu.Driver
	now     time.Time
}

func newBench(t *testing.T, values map[string]string, change func(*Options)) *bench {
	t.Helper()
	lib, err := nvmltest.Build()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	t.Setenv(nvmltest.Env, filepath.Join(dir, "control"))
	b := &bench{t: t, control: nvmltest.New(filepath.Join(dir, "control")), now: time.Now()}
	b.set(values)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc"), 0o755))
	boot := b.now.Add(-time.Hour).Unix()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "proc", "stat"), []byte("cpu 1\nbtime "+strconv.FormatInt(boot, 10)+"\n"), 0o600))
	o := Options{
		LibraryPath: lib, Interval: 10 * time.Second, Slow: Group{Enabled: true, Interval: time.Minute},
		GPM: Group{Enabled: true}, Processes: Group{Enabled: true}, Samples: Group{Enabled: true},
		MaxProcesses: 10, Proc: process.New(dir), Now: func() time.Time { return b.now },
	}
	if change != nil {
		change(&o)
	}
	b.driver = Open(o)
	require.NoError(t, b.driver.Open())
	t.Cleanup(func() { assert.NoError(t, b.driver.Close()) })
	return b
}

func (b *bench) set(values map[string]string) {
	b.t.Helper()
	require.NoError(b.t, b.control.Set(values))
}

func (b *bench) list() []gpu.Device {
	b.t.Helper()
	devices, err := b.driver.List()
	require.NoError(b.t, err)
	return devices
}

// read moves the clock and reads.
func (b *bench) read(d gpu.Device, after time.Duration) gpu.Reading {
	b.now = b.now.Add(after)
	return d.Read()
}

func h200(n int) map[string]string {
	m := map[string]string{"count": strconv.Itoa(n)}
	for i := range n {
		maps.Copy(m, nvmltest.H200(i))
	}
	return m
}

// point returns the one point of a metric with the labels given.
func point(t *testing.T, r gpu.Reading, m gpu.Metric, labels ...string) gpu.Point {
	t.Helper()
	found := points(r, m, labels...)
	require.Len(t, found, 1, "metric %d %v", m, labels)
	return found[0]
}

func points(r gpu.Reading, m gpu.Metric, labels ...string) (found []gpu.Point) {
	for _, p := range r.Points {
		if p.Metric == m && (len(labels) < 1 || p.Label == labels[0]) && (len(labels) < 2 || p.Detail == labels[1]) {
			found = append(found, p)
		}
	}
	return found
}

func TestFakeNVML_Layouts(t *testing.T) {
	for name, sizes := range map[string][2]uintptr{
		"memory":         {unsafe.Sizeof(nvml.Memory_v2{}), 40},
		"utilization":    {unsafe.Sizeof(nvml.Utilization{}), 8},
		"sample":         {unsafe.Sizeof(nvml.Sample{}), 16},
		"violation":      {unsafe.Sizeof(nvml.ViolationTime{}), 16},
		"field":          {unsafe.Sizeof(nvml.FieldValue{}), 40},
		"process":        {unsafe.Sizeof(nvml.ProcessInfo{}), 24},
		"process sample": {unsafe.Sizeof(nvml.ProcessUtilizationSample{}), 32},
		// The binding's own event data and query hold Go interfaces; the C ones have pointers.
		"gpm metric":  {unsafe.Sizeof(nvml.GpmMetric{}), 40},
		"gpm query":   {unsafe.Sizeof(nvml.GpmMetricsGetType{}) - 2*unsafe.Sizeof(nvml.GpmSample(nil)) + 16, 13344},
		"gpm support": {unsafe.Sizeof(nvml.GpmSupport{}), 8},
	} {
		assert.Equal(t, sizes[1], sizes[0], name)
	}
}

func TestRead_UnitsOfValues(t *testing.T) {
	b := newBench(t, h200(1), nil)
	d := b.list()[0]
	r := d.Read()
	require.NoError(t, r.Lost)
	assert.Empty(t, r.Errors)
	assert.False(t, r.Degraded)

	assert.InDelta(t, 0.4, point(t, r, gpu.Utilization, semconv.HWGPUTaskGeneral).Float, 1e-9, "the mean of the samples, not the last value of 30 %%")
	assert.InDelta(t, 0.0, point(t, r, gpu.Utilization, semconv.HWGPUTaskEncoder).Float, 1e-9)
	assert.InDelta(t, 0.05, point(t, r, gpu.Utilization, semconv.HWGPUTaskDecoder).Float, 1e-9)
	assert.InDelta(t, 0.1, point(t, r, gpu.MemoryControllerUtilization).Float, 1e-9)
	assert.Equal(t, int64(150754820096), point(t, r, gpu.MemoryLimit).Int)
	assert.Equal(t, int64(1000000000), point(t, r, gpu.MemoryUsage).Int)
	assert.Equal(t, int64(644874240), point(t, r, gpu.MemoryReserved).Int)
	assert.InDelta(t, 1000000000.0/150754820096, point(t, r, gpu.MemoryUtilization).Float, 1e-12)
	energy := point(t, r, gpu.Energy)
	assert.InDelta(t, 1000.0, energy.Float, 1e-9, "mJ become J")
	assert.WithinDuration(t, b.now.Add(-time.Hour), energy.Since, 2*time.Second, "counted since the machine started")
	assert.InDelta(t, 120.5, point(t, r, gpu.Power).Float, 1e-9, "the instant field, in W")
	assert.InDelta(t, 700.0, point(t, r, gpu.PowerLimit, semconv.HWLimitTypeEnforced).Float, 1e-9)
	assert.InDelta(t, 200.0, point(t, r, gpu.PowerLimit, semconv.HWLimitTypeMin).Float, 1e-9)
	assert.InDelta(t, 35.0, point(t, r, gpu.Temperature, "").Float, 1e-9)
	assert.InDelta(t, 40.0, point(t, r, gpu.Temperature, semconv.HWSensorLocationMemory).Float, 1e-9)
	assert.InDelta(t, 95.0, point(t, r, gpu.TemperatureLimit, semconv.HWLimitTypeHighCritical, "").Float, 1e-9)
	assert.InDelta(t, 92.0, point(t, r, gpu.TemperatureLimit, semconv.HWLimitTypeHighDegraded, "").Float, 1e-9)
	assert.InDelta(t, 87.0, point(t, r, gpu.TemperatureLimit, semconv.HWLimitTypeMax, "").Float, 1e-9)
	assert.Equal(t, int64(1980000000), point(t, r, gpu.Speed, semconv.HWGPUClockDomainSM).Int)
	assert.Equal(t, int64(3201000000), point(t, r, gpu.SpeedLimit, semconv.HWGPUClockDomainMemory, semconv.HWLimitTypeMax).Int)
	assert.InDelta(t, 2.5, point(t, r, gpu.ThrottleDuration, semconv.HWGPUThrottleReasonSwPowerCap).Float, 1e-9, "ns become s")
	assert.Empty(t, points(r, gpu.ThrottleDuration, semconv.HWGPUThrottleReasonPower), "the violation status is not read beside the counters")
	assert.Equal(t, int64(0), point(t, r, gpu.Errors, semconv.ErrorTypeUncorrected).Int)
	assert.Equal(t, int64(0), point(t, r, gpu.Errors, semconv.ErrorTypePcieReplay).Int)
	assert.Empty(t, points(r, gpu.FanSpeed), "an H200 has no fan")
	assert.Empty(t, points(r, gpu.InterconnectIO), "and this one no NVLink")
	assert.Empty(t, points(r, gpu.SMUtilization), "GPM needs two samples")

	r = b.read(d, 10*time.Second)
	assert.InDelta(t, 0.967, point(t, r, gpu.SMUtilization).Float, 1e-9)
	assert.InDelta(t, 0.143, point(t, r, gpu.SMOccupancy).Float, 1e-9)
	assert.InDelta(t, 0.938, point(t, r, gpu.PipeUtilization, semconv.HWGPUPipeTensor).Float, 1e-9)
	assert.InDelta(t, 0.16, point(t, r, gpu.MemoryBandwidthUtilization).Float, 1e-9)
	assert.Empty(t, points(r, gpu.PowerLimit), "the slow group is not due")
	assert.Empty(t, r.Unsupported, "what is missing is told once")
	assert.NotEmpty(t, points(b.read(d, time.Minute), gpu.PowerLimit), "and is due after a minute")
}

func TestRead_UnsupportedCalls(t *testing.T) {
	b := newBench(t, map[string]string{
		"count": "1", "0.uuid": nvmltest.UUID(0), "0.name": "bare", "0.temperature": "4294967295",
		"0.energy": "18446744073709551615", "0.clock.1": "4294967295", "0.samples.1": "!3", "0.utilization": "50:4294967295", "0.memory": "0:0:0",
		"0.fields": "1", "0.field.186": "i:4294967295",
	}, nil)
	d := b.list()[0]
	r := d.Read()
	require.NoError(t, r.Lost)
	assert.Empty(t, r.Errors)
	require.Len(t, r.Points, 1, "%v", r.Points)
	assert.InDelta(t, 0.5, point(t, r, gpu.Utilization, semconv.HWGPUTaskGeneral).Float, 1e-9, "from the rates, without samples")
	missing := map[string]string{}
	for _, u := range r.Unsupported {
		missing[u.Call] = u.Code
	}
	assert.Equal(t, "not supported", missing["DeviceGetSamples"])
	assert.Equal(t, "not supported", missing["DeviceGetClockInfo(2)"])
	// A repeated call would succeed now.
	b.set(map[string]string{"0.samples.1": "auto:70"})
	r = b.read(d, 10*time.Second)
	assert.InDelta(t, 0.5, point(t, r, gpu.Utilization, semconv.HWGPUTaskGeneral).Float, 1e-9)
	assert.Empty(t, r.Unsupported)
}

func TestRead_SingleError(t *testing.T) {
	b := newBench(t, h200(1), nil)
	d := b.list()[0]
	require.NoError(t, d.Read().Lost)
	b.set(map[string]string{"0.temperature": "!999", "0.clock.1": "!3"})
	r := b.read(d, 10*time.Second)
	require.NoError(t, r.Lost)
	assert.Empty(t, points(r, gpu.Temperature, ""))
	assert.NotEmpty(t, points(r, gpu.Energy))
	assert.ElementsMatch(t, []gpu.CallError{{Call: "DeviceGetTemperature", Code: "unknown"}, {Call: "DeviceGetClockInfo", Code: "not supported"}}, r.Errors,
		"a call that worked before is an error, not missing")
	b.set(map[string]string{"0.temperature": "50", "0.clock.1": "1000"})
	r = b.read(d, 10*time.Second)
	assert.InDelta(t, 50.0, point(t, r, gpu.Temperature, "").Float, 1e-9)
	assert.Equal(t, int64(1000000000), point(t, r, gpu.Speed, semconv.HWGPUClockDomainSM).Int)
}

func TestRead_CounterRestart(t *testing.T) {
	b := newBench(t, h200(1), nil)
	b.set(map[string]string{"0.field.198": "i:4294967000", "0.gpm": ""}) // a 32-bit counter, and no GPM
	d := b.list()[0]
	r := d.Read()
	first := point(t, r, gpu.IO, semconv.NetworkIODirectionReceive)
	assert.Equal(t, int64(0), first.Int, "counted from the first read on")
	assert.Equal(t, b.now, first.Since)

	b.set(map[string]string{"0.field.198": "i:704", "0.field.197": "l:6000", "0.energy": "1500000"})
	r = b.read(d, 10*time.Second)
	assert.Equal(t, int64(1000), point(t, r, gpu.IO, semconv.NetworkIODirectionReceive).Int, "296 to the end and 704 after it")
	assert.Equal(t, first.Since, point(t, r, gpu.IO, semconv.NetworkIODirectionReceive).Since)
	assert.Equal(t, int64(5000), point(t, r, gpu.IO, semconv.NetworkIODirectionTransmit).Int)
	before := b.now

	// The driver is loaded again: its counters fall.
	b.set(map[string]string{"0.energy": "200", "0.field.197": "l:50"})
	r = b.read(d, 10*time.Second)
	energy := point(t, r, gpu.Energy)
	assert.InDelta(t, 0.2, energy.Float, 1e-9)
	assert.Equal(t, before, energy.Since, "began anew after it was last seen")
	assert.Equal(t, int64(5050), point(t, r, gpu.IO, semconv.NetworkIODirectionTransmit).Int, "our own sum goes on")
}

func TestSum_WrapAndRestart(t *testing.T) {
	t0 := time.Unix(1000, 0)
	var s sum
	for _, c := range []struct {
		raw  uint64
		bits int
		want float64
	}{
		{math.MaxUint32 - 9, 64, 0}, // a 32-bit counter in a 64-bit value
		{10, 64, 20},
		{1 << 40, 64, 20 + 1<<40 - 10},
		{5, 64, 20 + 1<<40 - 10 + 5}, // restarted
		{3, 32, 20 + 1<<40 - 10 + 5 + 1<<32 - 2},
	} {
		s.step(c.raw, c.bits, 1, t0)
		assert.InDelta(t, c.want, s.value, 0.5, "%+v", c)
	}
	was := s.value
	s.rate(100, 2*time.Second, t0)
	assert.InDelta(t, was+200, s.value, 0.5)
	s.step(1000, 64, 1, t0)
	assert.InDelta(t, was+200, s.value, 0.5, "after a rate the counter's value is only where it goes on from")
	s.step(1001, 64, 1, t0)
	assert.InDelta(t, was+201, s.value, 0.5)

	var x total
	assert.Equal(t, t0, x.read(5, t0, t0.Add(time.Second)))
	assert.Equal(t, t0, x.read(5, t0, t0.Add(2*time.Second)))
	assert.Equal(t, t0.Add(2*time.Second), x.read(4, t0, t0.Add(3*time.Second)))
}

func TestRead_GPMRates(t *testing.T) {
	b := newBench(t, h200(1), nil)
	b.set(map[string]string{"0.field.197": "", "0.field.198": "i:77", "0.gpm.60": "10", "0.gpm.61": "20"})
	d := b.list()[0]
	d.Read()
	r := b.read(d, 10*time.Second)
	assert.Equal(t, int64(10<<20), point(t, r, gpu.IO, semconv.NetworkIODirectionTransmit).Int, "1 MiB/s for 10 s")
	assert.Equal(t, int64(20<<20), point(t, r, gpu.IO, semconv.NetworkIODirectionReceive).Int, "rather than a counter that wraps in a moment")
	assert.Equal(t, int64(100<<20), point(t, r, gpu.InterconnectIO, semconv.HWGPUInterconnectTypeNvlink, semconv.NetworkIODirectionReceive).Int)
	r = b.read(d, 10*time.Second)
	assert.Equal(t, int64(400<<20), point(t, r, gpu.InterconnectIO, semconv.HWGPUInterconnectTypeNvlink, semconv.NetworkIODirectionTransmit).Int)
}

func TestRead_NVLinkCounters(t *testing.T) {
	for name, c := range map[string]struct {
		first, second map[string]string
		want          int64
	}{
		"the driver's sum in KiB": {map[string]string{"0.field.138.all": "l:100", "0.field.138.1": "l:1"}, map[string]string{"0.field.138.all": "l:103", "0.field.138.1": "l:90"}, 3 * 1024},
		"each link in KiB":        {map[string]string{"0.field.138": "l:1", "0.field.138.1": "l:1"}, map[string]string{"0.field.138": "l:3", "0.field.138.1": "l:4"}, 5 * 1024},
		"each link of NVLink 5":   {map[string]string{"0.field.202": "l:1", "0.field.202.17": "l:5"}, map[string]string{"0.field.202": "l:2", "0.field.202.17": "l:15"}, 11},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, h200(1), nil)
			b.set(c.first)
			d := b.list()[0]
			d.Read()
			b.set(c.second)
			r := b.read(d, 10*time.Second)
			assert.Equal(t, c.want, point(t, r, gpu.InterconnectIO, semconv.HWGPUInterconnectTypeNvlink, semconv.NetworkIODirectionTransmit).Int)
		})
	}
}

func TestRead_UtilizationMean(t *testing.T) {
	b := newBench(t, h200(1), nil)
	// The first reading covers one interval of 10 s: the sample at 100 is too old.
	b.set(map[string]string{"0.samples.1": "1000000:100,12000000:10,14000000:20"})
	d := b.list()[0]
	assert.InDelta(t, 0.15, point(t, d.Read(), gpu.Utilization, semconv.HWGPUTaskGeneral).Float, 1e-9)
	// Old samples are given again, one is no value, and one slot was not filled in.
	b.set(map[string]string{"0.samples.1": "14000000:20,15000000:60,16000000:4294967295,17000000:80,0:5"})
	b.now = b.now.Add(5 * time.Second)
	d.ReadSamples()
	b.set(map[string]string{"0.samples.1": "17000000:80,18000000:100"})
	assert.InDelta(t, 0.8, point(t, b.read(d, 5*time.Second), gpu.Utilization, semconv.HWGPUTaskGeneral).Float, 1e-9, "60, 80 and 100")
	// The driver's clock restarts: for the length of the ring, the driver's last value is used.
	b.set(map[string]string{"0.samples.1": "1000000:50"})
	assert.InDelta(t, 0.3, point(t, b.read(d, 10*time.Second), gpu.Utilization, semconv.HWGPUTaskGeneral).Float, 1e-9)
	assert.InDelta(t, 0.3, point(t, b.read(d, 10*time.Second), gpu.Utilization, semconv.HWGPUTaskGeneral).Float, 1e-9)
	assert.InDelta(t, 0.5, point(t, b.read(d, 10*time.Second), gpu.Utilization, semconv.HWGPUTaskGeneral).Float, 1e-9)
}

func TestThrottle_InvalidCounters(t *testing.T) {
	reason := semconv.HWGPUThrottleReasonSwThermalSlowdown
	for name, c := range map[string]struct {
		set  map[string]string
		want float64 // NaN: none
	}{
		"the older numbers":                        {map[string]string{"0.field.251": "l:3000000000"}, 3},
		"the newer numbers win":                    {map[string]string{"0.field.251": "i:1", "0.field.269": "l:4000000000"}, 4},
		"settings under the older numbers are not": {map[string]string{"0.field.251": "i:1"}, math.NaN()},
		"longer than the machine is up":            {map[string]string{"0.field.251": "l:999999999999999"}, math.NaN()},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, h200(1), nil)
			b.set(c.set)
			d := b.list()[0]
			found := points(d.Read(), gpu.ThrottleDuration, reason)
			if math.IsNaN(c.want) {
				assert.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			assert.InDelta(t, c.want, found[0].Float, 1e-9)
			// It cannot grow faster than time does.
			b.set(map[string]string{"0.field.251": "l:60000000000", "0.field.269": ""})
			assert.Empty(t, points(b.read(d, 10*time.Second), gpu.ThrottleDuration, reason))
		})
	}
}

func TestThrottle_Fallbacks(t *testing.T) {
	values := h200(1)
	for _, k := range []string{"74", "76", "251", "252", "253"} {
		delete(values, "0.field."+k)
	}
	b := newBench(t, values, nil)
	d := b.list()[0]
	assert.InDelta(t, 1.0, point(t, d.Read(), gpu.ThrottleDuration, semconv.HWGPUThrottleReasonPower).Float, 1e-9)

	for i := range 6 {
		delete(values, "0.violation."+strconv.Itoa(i))
	}
	values["0.reasons"] = "4"
	b = newBench(t, values, nil)
	d = b.list()[0]
	d.Read()
	d.Read()
	r := b.read(d, 10*time.Second)
	assert.InDelta(t, 10.0, point(t, r, gpu.ThrottleDuration, semconv.HWGPUThrottleReasonSwPowerCap).Float, 1e-9)
	assert.Equal(t, int64(1), point(t, r, gpu.ThrottleActive, semconv.HWGPUThrottleReasonSwPowerCap).Int)
	assert.False(t, r.Degraded, "a power cap is a setting")
	b.set(map[string]string{"0.reasons": "64"})
	r = b.read(d, 5*time.Second)
	assert.InDelta(t, 5.0, point(t, r, gpu.ThrottleDuration, semconv.HWGPUThrottleReasonHWThermalSlowdown).Float, 1e-9)
	assert.InDelta(t, 10.0, point(t, r, gpu.ThrottleDuration, semconv.HWGPUThrottleReasonSwPowerCap).Float, 1e-9)
	assert.True(t, r.Degraded, "heat is not")
}

func TestRead_DamagedMemory(t *testing.T) {
	b := newBench(t, h200(1), nil)
	b.set(map[string]string{"0.remapped": "2:1:1:1", "0.ecc.1": "3", "0.retired.1": "2"})
	r := b.list()[0].Read()
	assert.True(t, r.Degraded)
	assert.Equal(t, int64(3), point(t, r, gpu.Errors, semconv.ErrorTypeUncorrected).Int)
	assert.Equal(t, int64(2), point(t, r, gpu.Errors, semconv.ErrorTypeRowRemapCorrected).Int)
	assert.Equal(t, int64(1), point(t, r, gpu.Errors, semconv.ErrorTypeRowRemapFailure).Int)
	assert.Equal(t, int64(2), point(t, r, gpu.Errors, semconv.ErrorTypePageRetirementUncorrected).Int)
}

func TestProcesses(t *testing.T) {
	b := newBench(t, h200(1), nil)
	b.set(map[string]string{
		"0.compute": "10:1000,11:18446744073709551615", "0.graphics": "10:1000,12:5", "0.mps": "none",
		"0.processutil": "1000000:10:90,20000000:10:40,21000000:10:60,21000000:13:4294967295,21000000:11:7",
	})
	r := b.list()[0].Read()
	require.Len(t, r.Processes, 3)
	p := r.Processes[0]
	assert.Equal(t, 10, p.PID)
	assert.Equal(t, int64(1000), p.MemoryBytes, "in two lists, counted once")
	assert.InDelta(t, 0.5, p.Utilization, 1e-9, "the mean of the last interval")
	assert.False(t, r.Processes[1].HasMemory, "all ones are no value")
	assert.InDelta(t, 0.07, r.Processes[1].Utilization, 1e-9)
	assert.False(t, r.Processes[2].HasUtilization)

	b = newBench(t, h200(1), func(o *Options) { o.MaxProcesses = 2 })
	b.set(map[string]string{"0.compute": "1:1,2:2,3:3,4:4"})
	r = b.list()[0].Read()
	assert.Len(t, r.Processes, 2)
	assert.Equal(t, 2, r.ProcessesDropped)
}

func TestRead_LostDevice(t *testing.T) {
	b := newBench(t, h200(8), nil)
	devices := b.list()
	require.Len(t, devices, 8)
	b.set(map[string]string{"3.all": "!15"})
	r := devices[3].Read()
	require.ErrorContains(t, r.Lost, "gpu is lost")
	assert.Len(t, r.Errors, 1)
	assert.NoError(t, devices[4].Read().Lost)
	assert.Len(t, b.list(), 7, "without a UUID it is not listed")
	b.set(map[string]string{"3.all": ""})
	assert.Same(t, devices[3], b.list()[3], "the same device")
	assert.NoError(t, devices[3].Read().Lost)

	b.set(map[string]string{"3.all": "!999"})
	assert.ErrorContains(t, devices[3].Read().Lost, "no call succeeds", "whatever the code, if nothing works")
}

func TestDriver_Restart(t *testing.T) {
	b := newBench(t, h200(1), nil)
	d := b.list()[0]
	d.Read()
	b.set(map[string]string{"0.field.197": "l:2000"})
	assert.Equal(t, int64(1000), point(t, b.read(d, 10*time.Second), gpu.IO, semconv.NetworkIODirectionTransmit).Int)

	b.set(map[string]string{"epoch": "2", "0.field.197": "l:10"})
	require.ErrorContains(t, b.read(d, 10*time.Second).Lost, "uninitialized")
	_, err := b.driver.List()
	require.ErrorIs(t, err, gpu.ErrRestart)
	require.NoError(t, b.driver.Close())
	require.ErrorIs(t, d.Read().Lost, gpu.ErrRestart, "while it is closed")
	require.NoError(t, b.driver.Open())
	assert.Same(t, d, b.list()[0])
	assert.Equal(t, int64(1000), point(t, b.read(d, 10*time.Second), gpu.IO, semconv.NetworkIODirectionTransmit).Int)
	b.set(map[string]string{"0.field.197": "l:15"})
	assert.Equal(t, int64(1005), point(t, b.read(d, 10*time.Second), gpu.IO, semconv.NetworkIODirectionTransmit).Int)
	assert.InDelta(t, 0.967, point(t, b.read(d, 10*time.Second), gpu.SMUtilization).Float, 1e-9, "with new GPM samples")
}

func TestDriver_CloseDuringCall(t *testing.T) {
	b := newBench(t, h200(2), nil)
	devices := b.list()
	b.set(map[string]string{"0.temperature": "hang"})
	done := make(chan gpu.Reading)
	go func() { done <- devices[0].Read() }()
	require.Eventually(t, func() bool {
		free := devices[0].(*Device).mu.TryLock()
		if free {
			devices[0].(*Device).mu.Unlock()
		}
		return !free
	}, time.Minute, time.Millisecond)
	require.ErrorIs(t, b.driver.Close(), gpu.ErrBusy)
	assert.NoError(t, devices[1].Read().Lost)
	assert.Len(t, b.list(), 2, "and a read does not wait for it")
	b.set(map[string]string{"0.temperature": "20"})
	r := <-done
	assert.InDelta(t, 20.0, point(t, r, gpu.Temperature, "").Float, 1e-9)
}

func TestRead_MIGDevices(t *testing.T) {
	b := newBench(t, h200(1), nil)
	b.set(map[string]string{
		"0.mig": "1", "0.compute": "7:1",
		"0.mig0.uuid": "MIG-a", "0.mig0.name": "NVIDIA H200 MIG 1g.18gb", "0.mig0.gi": "9", "0.mig0.memory": "1000:0:250", "0.mig0.compute": "7:200",
		"0.mig0.gpm": "1", "0.mig0.gpm.2": "50",
		"0.mig2.uuid": "MIG-b", "0.mig2.name": "NVIDIA H200 MIG 1g.18gb",
	})
	devices := b.list()
	require.Len(t, devices, 3)
	assert.Equal(t, gpu.Identity{
		ID: "MIG-a", Name: "NVIDIA H200 MIG 1g.18gb", Parent: nvmltest.UUID(0), Serial: nvmltest.Serial(0), Instance: 9, Aliases: []string{"0:0", "nvidia0/gi9"},
	}, devices[1].Identity())
	assert.Equal(t, 2, devices[2].Identity().Index)
	assert.Equal(t, -1, devices[2].Identity().Instance)
	assert.Equal(t, []string{"0:2"}, devices[2].Identity().Aliases)
	assert.Empty(t, devices[0].Read().Processes, "the parts report their processes")
	r := devices[1].Read()
	require.Len(t, r.Processes, 1)
	assert.Equal(t, int64(200), r.Processes[0].MemoryBytes)
	assert.InDelta(t, 0.25, point(t, r, gpu.MemoryUtilization).Float, 1e-9)
	assert.Empty(t, points(r, gpu.Power))
	r = b.read(devices[1], 10*time.Second)
	assert.InDelta(t, 0.5, point(t, r, gpu.SMUtilization).Float, 1e-9)
}

func TestList_Identity(t *testing.T) {
	b := newBench(t, h200(3), nil)
	require.NoError(t, b.driver.Close())
	b.set(map[string]string{"driver": nvmltest.Driver, "1.serial": "!3", "1.minor": "7", "2.serial": "0", "2.minor": "!3"})
	require.NoError(t, b.driver.Open())
	var got []gpu.Identity
	for _, d := range b.list() {
		got = append(got, d.Identity())
	}
	id := func(i int, serial string, aliases ...string) gpu.Identity {
		return gpu.Identity{ID: nvmltest.UUID(i), Name: "NVIDIA H200", Index: i, Serial: serial, Driver: nvmltest.Driver, Instance: -1, Aliases: aliases}
	}
	assert.Equal(t, []gpu.Identity{id(0, nvmltest.Serial(0), "0", "nvidia0"), id(1, "", "1", "nvidia7"), id(2, "", "2")}, got)
}

func TestSelection(t *testing.T) {
	for name, c := range map[string]struct {
		choose []string
		want   []int
	}{
		"all":      {nil, []int{0, 1, 2}},
		"by index": {[]string{"1"}, []int{1}},
		"by UUID":  {[]string{nvmltest.UUID(2)}, []int{2}},
		"by glob":  {[]string{"GPU-*-*1", "*A100*"}, []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, h200(3), func(o *Options) { o.Select = c.choose })
			b.set(map[string]string{"0.name": "NVIDIA A100"})
			var got []int
			for _, d := range b.list() {
				got = append(got, d.Identity().Index)
			}
			assert.Equal(t, c.want, got)
		})
	}
}

func TestXIDEvents(t *testing.T) {
	b := newBench(t, h200(2), nil)
	_, supported, err := b.driver.Events(0)
	require.NoError(t, err)
	assert.False(t, supported, "no device is known yet")
	b.list()
	b.set(map[string]string{"xid.0": "1:79", "xid.1": "0:31:3", "1.uuid": "!15"})
	events, supported, err := b.driver.Events(time.Second)
	require.NoError(t, err)
	assert.True(t, supported)
	require.Len(t, events, 2)
	device := gpu.Identity{ID: nvmltest.UUID(1), Name: "NVIDIA H200", Index: 1, Serial: nvmltest.Serial(1), Instance: -1, Aliases: []string{"1", "nvidia1"}}
	assert.Equal(t, gpu.XID{Device: device, Instance: -1, Code: 79, Time: b.now}, events[0], "named, though the device can no longer be asked")
	assert.Equal(t, uint64(31), events[1].Code)
	assert.Equal(t, 3, events[1].Instance)
	events, _, err = b.driver.Events(time.Millisecond)
	require.NoError(t, err)
	assert.Empty(t, events)
}

func TestOpen_Errors(t *testing.T) {
	err := Open(Options{LibraryPath: filepath.Join(t.TempDir(), "none.so")}).Open()
	require.ErrorContains(t, err, "cannot be loaded")
	require.ErrorContains(t, err, "library_path")
	for code, text := range map[string]string{"!9": "driver is not loaded", "!18": "restart the collector", "!4": "no permission"} {
		b := newBench(t, h200(1), nil)
		require.NoError(t, b.driver.Close())
		b.set(map[string]string{"init": code})
		assert.ErrorContains(t, b.driver.Open(), text)
		b.set(map[string]string{"init": ""})
		require.NoError(t, b.driver.Open())
	}
}
