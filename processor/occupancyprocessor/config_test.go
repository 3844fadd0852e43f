// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
)

// TestConfigsOfTheReadme loads what a user would copy.
func TestConfigsOfTheReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var got []*Config
	for _, block := range strings.Split(string(readme), "```yaml\n")[1:] {
		text, _, ok := strings.Cut(block, "```")
		require.True(t, ok)
		retrieved, err := confmap.NewRetrievedFromYAML([]byte(text))
		require.NoError(t, err)
		conf, err := retrieved.AsConf()
		require.NoError(t, err)
		sub, err := conf.Sub("processors::occupancy")
		require.NoError(t, err)
		cfg := createDefaultConfig().(*Config)
		require.NoError(t, sub.Unmarshal(cfg))
		require.NoError(t, cfg.Validate())
		got = append(got, cfg)
	}
	assert.Equal(t, []*Config{{}, {Devices: []DeviceConfig{{
		Match: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", ComputeCapability: "9.0", SMCount: 16, MemoryBandwidth: 4.2e11,
		PCIe: PCIeConfig{Generation: 5, Lanes: 16}, NVLinkBandwidth: 4.5e11,
	}}}}, got)
}

func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct {
		device DeviceConfig
		want   string
	}{
		{DeviceConfig{SMCount: 1}, `devices[0].match is "": write a pattern for the device's name or id, such as "NVIDIA H200" or "GPU-5ac5*"`},
		{DeviceConfig{Match: "[", SMCount: 1}, `devices[0].match is "[": write a pattern`},
		{DeviceConfig{Match: "*"}, `devices[0].match is all that is said about "*": add compute_capability`},
		{DeviceConfig{Match: "*", ComputeCapability: "9"}, `devices[0].compute_capability is "9": write it as CUDA does and in quotes, such as "9.0"`},
		{DeviceConfig{Match: "*", ComputeCapability: "13.0"}, `devices[0].compute_capability is "13.0", of which no limits are known: leave it out, or write one of those from 5.0 to 12.1`},
		{DeviceConfig{Match: "*", SMCount: -1}, "devices[0].sm_count is -1: write the number of multiprocessors, such as 132"},
		{DeviceConfig{Match: "*", SMCount: 1 << 21}, "devices[0].sm_count is 2097152: write"},
		{DeviceConfig{Match: "*", MemoryBandwidth: -1}, "devices[0].memory_bandwidth is -1: write bytes a second, such as 4.8e12"},
		{DeviceConfig{Match: "*", NVLinkBandwidth: -1}, "devices[0].nvlink_bandwidth is -1: write bytes a second"},
		{DeviceConfig{Match: "*", PCIe: PCIeConfig{Generation: 7, Lanes: 16}}, "devices[0].pcie is generation 7 with 16 lanes: write a generation from 1 to 6 and 1, 2, 4, 8 or 16 lanes"},
		{DeviceConfig{Match: "*", PCIe: PCIeConfig{Generation: 4}}, "devices[0].pcie is generation 4 with 0 lanes: write"},
		{DeviceConfig{Match: "*", PCIe: PCIeConfig{Lanes: 16}}, "devices[0].pcie is generation 0 with 16 lanes: write"},
	} {
		err := (&Config{Devices: []DeviceConfig{c.device}}).Validate()
		require.ErrorContains(t, err, c.want)
		assert.Equal(t, 1, strings.Count(err.Error(), "devices[0]"), "one mistake, one sentence: %v", err)
	}
}

func TestPCIePeaks(t *testing.T) {
	for _, c := range []struct {
		link PCIeConfig
		want float64
	}{
		{PCIeConfig{1, 16}, 4e9},
		{PCIeConfig{2, 16}, 8e9},
		{PCIeConfig{3, 16}, 15.7538e9},
		{PCIeConfig{4, 16}, 31.5077e9},
		{PCIeConfig{5, 16}, 63.0154e9},
		{PCIeConfig{5, 8}, 31.5077e9},
		{PCIeConfig{6, 16}, 121e9},
		{PCIeConfig{3, 1}, 0.984615e9},
	} {
		assert.InEpsilon(t, c.want, c.link.peak(), 1e-5, "%+v", c.link)
	}
	for _, none := range []PCIeConfig{{}, {7, 16}, {4, 3}, {4, 32}, {-1, 16}, {4, -8}} {
		assert.Zero(t, none.peak(), "%+v", none)
	}
}
