// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/occupancy"
)

func TestModelsAreWellFormed(t *testing.T) {
	for name, m := range models {
		_, err := occupancy.LimitsOf(m.capability)
		assert.NoError(t, err, name)
		assert.Equal(t, m, modelOf("NVIDIA "+name), "%s finds itself", name)
		assert.NotContains(t, name, "-")
		assert.True(t, m.sms == 0 || m.sms >= 10 && m.sms <= 192, name)
		assert.True(t, m.memory == 0 || m.memory >= 200 && m.memory <= 8000, name)
		assert.True(t, m.pcie == noPCIe || m.pcie.peak() > 0, name)
		assert.True(t, m.nvlink >= 0 && m.nvlink <= 900, name)
	}
}

func TestNamesOfDevices(t *testing.T) {
	only := func(c occupancy.Capability) model { return model{capability: c} }
	for name, want := range map[string]model{
		"NVIDIA H200":                                  models["H200"],
		"NVIDIA H200 NVL":                              models["H200 NVL"],
		"NVIDIA A100-SXM4-80GB":                        models["A100 SXM4 80GB"],
		"NVIDIA A100 80GB PCIe":                        models["A100 80GB PCIe"],
		"NVIDIA A100-PCIE-40GB":                        models["A100 PCIE 40GB"],
		"A100-SXM4-40GB":                               models["A100 SXM4 40GB"],
		"Tesla V100-SXM2-16GB":                         models["V100 SXM2"],
		"Tesla V100-SXM2-32GB":                         models["V100 SXM2"],
		"Tesla V100-PCIE-16GB":                         models["V100 PCIE"],
		"Tesla T4":                                     models["T4"],
		"NVIDIA H100 80GB HBM3":                        models["H100 80GB HBM3"],
		"NVIDIA H100 PCIe":                             models["H100 PCIe"],
		"NVIDIA GeForce RTX 4090":                      models["GeForce RTX 4090"],
		"GeForce RTX 2080 Ti":                          models["GeForce RTX 2080 Ti"],
		"NVIDIA GeForce RTX 4060 Ti 16GB":              models["GeForce RTX 4060 Ti"],
		"NVIDIA RTX 6000 Ada Generation":               models["RTX 6000 Ada"],
		"NVIDIA RTX PRO 6000 Blackwell Server Edition": models["RTX PRO 6000 Blackwell Server"],
		"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": models["RTX PRO 6000 Blackwell Max Q Workstation"],
		"NVIDIA GH200 480GB": models["GH200 480GB"],
		// The architecture is that of the name, the size may not be.
		"NVIDIA A100-SXM-64GB":                                only(ampere),
		"NVIDIA A100-SXM4-40GB MIG 1g.5gb":                    only(ampere),
		"NVIDIA H100 80GB HBM3 MIG 3g.40gb":                   only(hopper),
		"NVIDIA GeForce RTX 4090 Laptop GPU":                  only(ada),
		"NVIDIA GeForce RTX 3080 Laptop GPU":                  only(ampereGA10),
		"NVIDIA GeForce RTX 5090 D v2":                        only(blackwellRTX),
		"NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU": only(blackwellRTX),
		"Orin (nvgpu)":                                        only(orin),
		// What is not in the table.
		"":                    {},
		"NVIDIA":              {},
		"NVIDIA Demo GPU":     {},
		"NVIDIA A100X":        {},
		"NVIDIA L400":         {},
		"Quadro RTX 6000":     {},
		"AMD Instinct MI300X": {},
		"NVIDIA H200 " + strings.Repeat("x ", 100): {},
	} {
		assert.Equal(t, want, modelOf(name), "%q", name)
	}
}
