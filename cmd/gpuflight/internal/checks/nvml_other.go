// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package checks

// NVML reports that this build cannot load NVML.
func NVML() Finding {
	return Finding{Check: "nvml", Optional: true, Detail: "this build of gpuflight cannot load NVML: it needs Linux and cgo"}
}
