// SPDX-License-Identifier: Apache-2.0

package gpuevent

// copyKinds are CUPTI's CUpti_ActivityMemcpyKind, which has been the same since CUDA 5 (PtoP: 5.5).
var copyKinds = [...]string{"", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"}

// memoryKinds are CUPTI's CUpti_ActivityMemoryKind.
var memoryKinds = [...]string{"", "pageable", "pinned", "device", "array", "managed", "device_static", "managed_static"}

// CopyKind returns what a [Copy] of the given CUpti_ActivityMemcpyKind has as Kind, "" if unknown.
func CopyKind(v int64) string { return named(copyKinds[:], v) }

// MemoryKind returns the memory kind in our vocabulary of a CUpti_ActivityMemoryKind, "" if unknown.
func MemoryKind(v int64) string { return named(memoryKinds[:], v) }

func named(names []string, v int64) string {
	if v < 0 || v >= int64(len(names)) {
		return ""
	}
	return names[v]
}
