// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package checks

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// NVML checks whether the receiver nvml can read the devices.
func NVML() Finding {
	f := Finding{Check: "nvml", Optional: true}
	lib := nvml.New()
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		f.Detail, f.Fix = "the receiver nvml reads no device: libnvidia-ml.so.1 is missing", "install the NVIDIA driver, or start the container with NVIDIA_DRIVER_CAPABILITIES=utility"
		return f
	default:
		f.Detail, f.Fix = "the receiver nvml reads no device: "+ret.String(), "see whether nvidia-smi works"
		return f
	}
	defer func() { _ = lib.Shutdown() }()
	driver, ret := lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		driver = "of unknown version"
	}
	n, ret := lib.DeviceGetCount()
	switch {
	case ret != nvml.SUCCESS:
		f.Detail, f.Fix = "the receiver nvml cannot list the devices: "+ret.String(), "see whether nvidia-smi works"
	case n == 0:
		f.Detail, f.Fix = "the receiver nvml sees no device", "see whether nvidia-smi lists one"
	default:
		f.OK, f.Detail = true, fmt.Sprintf("driver %s, devices: %d", driver, n)
	}
	return f
}
