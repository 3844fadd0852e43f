// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

// ncclTable lists the functions of libnccl whose calls are counted, from nccl.h of NCCL 2.16 to
// 2.31. ncclBcast calls ncclBroadcast, which counts the call. In most releases the first
// instruction of ncclBcast must be single-stepped.
func ncclTable() []apiFunction {
	var all []apiFunction
	collective := func(name string, count, datatype uint8) {
		all = append(all, apiFunction{
			name: name, library: libnccl, program: progCollective, class: cudaCallClassCALL_COLLECTIVE,
			flags: flagReturns, size: count, stream: datatype,
		})
	}
	collective("ncclAllReduce", 2, 3)
	collective("ncclAllGather", 2, 3)
	collective("ncclReduceScatter", 2, 3)
	collective("ncclBroadcast", 2, 3)
	collective("ncclReduce", 2, 3)
	collective("ncclSend", 1, 2)
	collective("ncclRecv", 1, 2)
	// Since NCCL 2.28.
	collective("ncclAlltoAll", 2, 3)
	collective("ncclGather", 2, 3)
	collective("ncclScatter", 2, 3)
	for _, group := range []struct {
		name string
		kind cudaGroupKind
	}{{"ncclGroupStart", cudaGroupKindGROUP_START}, {"ncclGroupEnd", cudaGroupKindGROUP_END}} {
		all = append(all, apiFunction{
			name: group.name, library: libnccl, program: progGroup, class: cudaCallClassCALL_GROUP,
			flags: flagReturns, kind: uint8(group.kind),
		})
	}
	return all
}
