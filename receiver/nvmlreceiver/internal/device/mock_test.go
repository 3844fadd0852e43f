// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
)

// TestADGXA100 reads the binding's mock of a machine with eight A100. It has names, UUIDs and memory by
// the old call, and panics at anything else: so this also shows that a function which the library lacks
// is never called.
func TestADGXA100(t *testing.T) {
	server := dgxa100.New()
	server.LookupSymbolFunc = func(symbol string) error {
		switch symbol {
		case "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetTemperature":
			return nil
		}
		for _, s := range required {
			if s == symbol {
				return nil
			}
		}
		return errors.New("not in the mock")
	}
	server.Devices[3].(*dgxa100.Device).GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 44, nvml.SUCCESS }
	for i, d := range server.Devices {
		d.(*dgxa100.Device).MemoryInfo.Used = uint64(i) << 30
		if i != 3 {
			d.(*dgxa100.Device).GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		}
	}
	l := newLibrary(server, Options{
		Interval: time.Second, Slow: Group{Enabled: true}, GPM: Group{Enabled: true}, Processes: Group{Enabled: true}, Samples: Group{Enabled: true}, MaxProcesses: 1,
	})
	require.NoError(t, l.Open())
	devices, err := l.List()
	require.NoError(t, err)
	require.Len(t, devices, 8)
	for i, d := range devices {
		assert.True(t, strings.HasPrefix(d.Identity().ID, "GPU-"))
		assert.Equal(t, "Mock NVIDIA A100-SXM4-40GB", d.Identity().Name)
		for range 2 {
			r := d.Read()
			require.NoError(t, r.Lost)
			assert.Equal(t, int64(40<<30), point(t, r, gpu.MemoryLimit).Int)
			assert.Equal(t, int64(i)<<30, point(t, r, gpu.MemoryUsage).Int)
			if i == 3 {
				assert.InDelta(t, 44.0, point(t, r, gpu.Temperature).Float, 1e-9)
			} else {
				assert.Empty(t, points(r, gpu.Temperature))
				assert.Len(t, server.Devices[i].(*dgxa100.Device).GetTemperatureCalls(), 1, "asked once")
			}
		}
	}
	require.NoError(t, l.Close())
}

func TestOpen_OldLibrary(t *testing.T) {
	server := dgxa100.New()
	server.LookupSymbolFunc = func(symbol string) error {
		if symbol == "nvmlDeviceGetUUID" {
			return errors.New("no such symbol")
		}
		return nil
	}
	require.ErrorContains(t, newLibrary(server, Options{}).Open(), "too old, it has no nvmlDeviceGetUUID")
}
