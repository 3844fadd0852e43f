// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import "strings"

// traceFunction returns what a trace needs in addition to apiFunctions: the kind of the function
// and which argument is the stream. ok is false for functions that are not traced.
func traceFunction(f apiFunction) (kind CallKind, stream uint8, ok bool) {
	if f.library != libcuda {
		return 0, 0, false
	}
	async := strings.Contains(f.name, "Async")
	switch f.program {
	case progLaunch:
		return CallLaunch, 8, true
	case progLaunchConfig:
		return CallLaunch, noArgument, true // the stream is in the structure
	case progGraphLaunch:
		return CallGraph, 1, true
	case progCopy:
		return CallCopy, f.stream, true
	case progBatch:
		return CallCopy, noArgument, true // differs between versions of the function
	case progSet:
		switch {
		case !async:
			return CallSet, noArgument, true
		case f.shape == cudaShapeSHAPE_2D:
			return CallSet, 5, true
		}
		return CallSet, 3, true
	case progAlloc:
		switch {
		case strings.HasPrefix(f.name, "cuMemAllocFromPoolAsync"):
			return CallAlloc, 3, true
		case async:
			return CallAlloc, 2, true
		}
		return CallAlloc, noArgument, true
	case progFree:
		if async {
			return CallFree, 1, true
		}
		return CallFree, noArgument, true
	case progWait:
		return CallWait, f.stream, true
	}
	return 0, 0, false
}
