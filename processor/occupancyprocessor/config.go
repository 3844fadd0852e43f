// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"errors"
	"fmt"
	"math"

	"go.opentelemetry.io/collector/component"

	"github.com/gpuflight/gpuflight/internal/glob"
	"github.com/gpuflight/gpuflight/internal/occupancy"
)

// Config is the processor's configuration. The empty one is useful.
type Config struct {
	// Devices describes devices that neither the spans nor the model table describe, and replaces
	// the model table's peaks of links.
	Devices []DeviceConfig `mapstructure:"devices"`
}

// DeviceConfig describes the devices that it matches. What is left out stays unknown. Of several
// that match, the first that says something about a property counts for that property.
type DeviceConfig struct {
	// Match is a pattern (*, ?, [a-z]) for the device's name or its id. Required.
	Match string `mapstructure:"match"`
	// ComputeCapability such as "9.0", quoted.
	ComputeCapability string `mapstructure:"compute_capability"`
	// SMCount is the number of multiprocessors.
	SMCount int64 `mapstructure:"sm_count"`
	// MemoryBandwidth is the peak of the device's memory in bytes a second, reading and writing
	// together.
	MemoryBandwidth float64 `mapstructure:"memory_bandwidth"`
	// PCIe is the link to the host.
	PCIe PCIeConfig `mapstructure:"pcie"`
	// NVLinkBandwidth is the peak to other devices in bytes a second, in one direction.
	NVLinkBandwidth float64 `mapstructure:"nvlink_bandwidth"`
}

// PCIeConfig is a PCIe link.
type PCIeConfig struct {
	// Generation is 1 to 6.
	Generation int `mapstructure:"generation"`
	// Lanes is 1, 2, 4, 8 or 16.
	Lanes int `mapstructure:"lanes"`
}

// maxSMCount is far above any device, and keeps products of it in range.
const maxSMCount = 1 << 20

func createDefaultConfig() component.Config { return &Config{} }

// Validate reports each mistake in one sentence that says what to write instead.
func (c *Config) Validate() error {
	var errs []error
	for i := range c.Devices {
		d := &c.Devices[i]
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("devices[%d].%s", i, fmt.Sprintf(format, args...)))
		}
		if !glob.Valid(d.Match) || d.Match == "" {
			bad("match is %q: write a pattern for the device's name or id, such as \"NVIDIA H200\" or \"GPU-5ac5*\"", d.Match)
		}
		if d.ComputeCapability != "" {
			if capability, err := occupancy.ParseCapability(d.ComputeCapability); err != nil {
				bad("compute_capability is %q: write it as CUDA does and in quotes, such as \"9.0\"", d.ComputeCapability)
			} else if _, err := occupancy.LimitsOf(capability); err != nil {
				known := occupancy.Known()
				bad("compute_capability is %q, of which no limits are known: leave it out, or write one of those from %s to %s",
					d.ComputeCapability, known[0], known[len(known)-1])
			}
		}
		if d.SMCount < 0 || d.SMCount > maxSMCount {
			bad("sm_count is %d: write the number of multiprocessors, such as 132", d.SMCount)
		}
		for _, b := range []struct {
			name  string
			value float64
		}{{"memory_bandwidth", d.MemoryBandwidth}, {"nvlink_bandwidth", d.NVLinkBandwidth}} {
			if b.value < 0 || math.IsNaN(b.value) || math.IsInf(b.value, 0) {
				bad("%s is %v: write bytes a second, such as 4.8e12", b.name, b.value)
			}
		}
		if d.PCIe != (PCIeConfig{}) && d.PCIe.peak() == 0 {
			bad("pcie is generation %d with %d lanes: write a generation from 1 to 6 and 1, 2, 4, 8 or 16 lanes", d.PCIe.Generation, d.PCIe.Lanes)
		}
		if rest := (DeviceConfig{Match: d.Match}); *d == rest && d.Match != "" {
			bad("match is all that is said about %q: add compute_capability, sm_count, memory_bandwidth, pcie or nvlink_bandwidth", d.Match)
		}
	}
	return errors.Join(errs...)
}

// peak returns the peak throughput of the link in one direction, in bytes per second, after line coding.
// That is 8 of 10 bits in generations 1 and 2 (2.5 and 5 GT/s), and 128 of 130 bits in generations 3 to
// 5 (8, 16 and 32 GT/s). In generation 6 (64 GT/s) it is 242 of a flit's 256 bytes; the rest is error
// correction. Packet headers are not subtracted, because their share depends on the packets. peak
// returns 0 for a link that does not exist.
func (p PCIeConfig) peak() float64 {
	switch p.Lanes {
	case 1, 2, 4, 8, 16:
	default:
		return 0
	}
	var bitsPerLane float64
	switch p.Generation {
	case 1:
		bitsPerLane = 2.5e9 * 8 / 10
	case 2:
		bitsPerLane = 5e9 * 8 / 10
	case 3:
		bitsPerLane = 8e9 * 128 / 130
	case 4:
		bitsPerLane = 16e9 * 128 / 130
	case 5:
		bitsPerLane = 32e9 * 128 / 130
	case 6:
		bitsPerLane = 64e9 * 242 / 256
	}
	return bitsPerLane / 8 * float64(p.Lanes)
}
