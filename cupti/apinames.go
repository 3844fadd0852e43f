// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"strconv"
	"strings"
	"sync"
)

// apiFunctionID is a host call and CUPTI's number for it. Numbers are given out once and never
// change; a function has another for each signature it had, and for each default stream.
type apiFunctionID struct {
	number uint32
	symbol string // as in the enumeration, without its prefix
}

// apiNumbers bounds the numbers that are looked at. CUDA 13.5 has given out 900.
const apiNumbers = 4096

// apiTables are the names by number, made when first asked for.
var apiTables = sync.OnceValue(func() (t struct{ runtime, driver [apiNumbers]string }) {
	fill(&t.runtime, runtimeFunctions[:], "cuda_runtime_")
	fill(&t.driver, driverFunctions[:], "cuda_driver_")
	return t
})

func fill(names *[apiNumbers]string, functions []apiFunctionID, other string) {
	for i := range names {
		names[i] = other + strconv.Itoa(i)
	}
	for _, f := range functions {
		// What follows the function's name says which signature (_v7000) and default stream
		// (_ptsz).
		name, _, _ := strings.Cut(f.symbol, "_")
		names[f.number] = name
	}
}

// apiName returns the name of a host call: of those that launch, copy, set, allocate and wait the
// function's ("cudaLaunchKernel"), of others one made of the number ("cuda_runtime_123"). "" for
// what is no number of a call.
func apiName(kind Kind, number uint32) string {
	if number == 0 || number >= apiNumbers {
		return ""
	}
	t := apiTables()
	if kind == KindRuntimeAPI {
		return t.runtime[number]
	}
	return t.driver[number]
}

// runtimeFunctions are from CUpti_runtime_api_trace_cbid.
var runtimeFunctions = [...]apiFunctionID{
	{13, "cudaLaunch_v3020"},
	{20, "cudaMalloc_v3020"},
	{21, "cudaMallocPitch_v3020"},
	{22, "cudaFree_v3020"},
	{25, "cudaMallocHost_v3020"},
	{26, "cudaFreeHost_v3020"},
	{27, "cudaHostAlloc_v3020"},
	{31, "cudaMemcpy_v3020"},
	{32, "cudaMemcpy2D_v3020"},
	{33, "cudaMemcpyToArray_v3020"},
	{34, "cudaMemcpy2DToArray_v3020"},
	{35, "cudaMemcpyFromArray_v3020"},
	{36, "cudaMemcpy2DFromArray_v3020"},
	{39, "cudaMemcpyToSymbol_v3020"},
	{40, "cudaMemcpyFromSymbol_v3020"},
	{41, "cudaMemcpyAsync_v3020"},
	{44, "cudaMemcpy2DAsync_v3020"},
	{47, "cudaMemcpyToSymbolAsync_v3020"},
	{48, "cudaMemcpyFromSymbolAsync_v3020"},
	{49, "cudaMemset_v3020"},
	{50, "cudaMemset2D_v3020"},
	{51, "cudaMemsetAsync_v3020"},
	{52, "cudaMemset2DAsync_v3020"},
	{131, "cudaStreamSynchronize_v3020"},
	{132, "cudaStreamQuery_v3020"},
	{135, "cudaEventRecord_v3020"},
	{137, "cudaEventSynchronize_v3020"},
	{138, "cudaEventQuery_v3020"},
	{142, "cudaMemset3D_v3020"},
	{143, "cudaMemset3DAsync_v3020"},
	{144, "cudaMemcpy3D_v3020"},
	{145, "cudaMemcpy3DAsync_v3020"},
	{147, "cudaStreamWaitEvent_v3020"},
	{160, "cudaMemcpyPeer_v4000"},
	{161, "cudaMemcpyPeerAsync_v4000"},
	{162, "cudaMemcpy3DPeer_v4000"},
	{163, "cudaMemcpy3DPeerAsync_v4000"},
	{165, "cudaDeviceSynchronize_v3020"},
	{206, "cudaMallocManaged_v6000"},
	{211, "cudaLaunchKernel_v7000"},
	{213, "cudaLaunch_ptsz_v7000"},
	{214, "cudaLaunchKernel_ptsz_v7000"},
	{215, "cudaMemcpy_ptds_v7000"},
	{216, "cudaMemcpy2D_ptds_v7000"},
	{217, "cudaMemcpyToArray_ptds_v7000"},
	{218, "cudaMemcpy2DToArray_ptds_v7000"},
	{219, "cudaMemcpyFromArray_ptds_v7000"},
	{220, "cudaMemcpy2DFromArray_ptds_v7000"},
	{223, "cudaMemcpyToSymbol_ptds_v7000"},
	{224, "cudaMemcpyFromSymbol_ptds_v7000"},
	{225, "cudaMemcpyAsync_ptsz_v7000"},
	{228, "cudaMemcpy2DAsync_ptsz_v7000"},
	{231, "cudaMemcpyToSymbolAsync_ptsz_v7000"},
	{232, "cudaMemcpyFromSymbolAsync_ptsz_v7000"},
	{233, "cudaMemset_ptds_v7000"},
	{234, "cudaMemset2D_ptds_v7000"},
	{235, "cudaMemsetAsync_ptsz_v7000"},
	{236, "cudaMemset2DAsync_ptsz_v7000"},
	{239, "cudaStreamSynchronize_ptsz_v7000"},
	{240, "cudaStreamQuery_ptsz_v7000"},
	{242, "cudaEventRecord_ptsz_v7000"},
	{243, "cudaMemset3D_ptds_v7000"},
	{244, "cudaMemset3DAsync_ptsz_v7000"},
	{245, "cudaMemcpy3D_ptds_v7000"},
	{246, "cudaMemcpy3DAsync_ptsz_v7000"},
	{247, "cudaStreamWaitEvent_ptsz_v7000"},
	{249, "cudaMemcpy3DPeer_ptds_v7000"},
	{250, "cudaMemcpy3DPeerAsync_ptsz_v7000"},
	{252, "cudaMemPrefetchAsync_v8000"},
	{253, "cudaMemPrefetchAsync_ptsz_v8000"},
	{269, "cudaLaunchCooperativeKernel_v9000"},
	{270, "cudaLaunchCooperativeKernel_ptsz_v9000"},
	{284, "cudaLaunchHostFunc_v10000"},
	{285, "cudaLaunchHostFunc_ptsz_v10000"},
	{310, "cudaGraphInstantiate_v10000"},
	{311, "cudaGraphLaunch_v10000"},
	{312, "cudaGraphLaunch_ptsz_v10000"},
	{315, "cudaStreamBeginCapture_v10000"},
	{316, "cudaStreamBeginCapture_ptsz_v10000"},
	{319, "cudaStreamEndCapture_v10000"},
	{320, "cudaStreamEndCapture_ptsz_v10000"},
	{370, "cudaEventRecordWithFlags_v11010"},
	{371, "cudaEventRecordWithFlags_ptsz_v11010"},
	{373, "cudaMallocAsync_v11020"},
	{374, "cudaMallocAsync_ptsz_v11020"},
	{375, "cudaFreeAsync_v11020"},
	{376, "cudaFreeAsync_ptsz_v11020"},
	{391, "cudaMallocFromPoolAsync_v11020"},
	{392, "cudaMallocFromPoolAsync_ptsz_v11020"},
	{418, "cudaGraphInstantiateWithFlags_v11040"},
	{430, "cudaLaunchKernelExC_v11060"},
	{431, "cudaLaunchKernelExC_ptsz_v11060"},
	{443, "cudaGraphInstantiate_v12000"},
	{482, "cudaMemcpyBatchAsync_v12080"},
	{483, "cudaMemcpyBatchAsync_ptsz_v12080"},
	{509, "cudaMemcpyBatchAsync_v13000"},
	{510, "cudaMemcpyBatchAsync_ptsz_v13000"},
	{550, "cudaLaunchHostFunc_v2_v13020"},
	{551, "cudaLaunchHostFunc_v2_ptsz_v13020"},
}

// driverFunctions are from CUpti_driver_api_trace_cbid.
var driverFunctions = [...]apiFunctionID{
	{17, "cuCtxSynchronize"},
	{19, "cuModuleLoadData"},
	{20, "cuModuleLoadDataEx"},
	{29, "cuMemAlloc"},
	{31, "cuMemAllocPitch"},
	{33, "cuMemFree"},
	{37, "cuMemAllocHost"},
	{38, "cuMemFreeHost"},
	{39, "cuMemHostAlloc"},
	{43, "cuMemcpyHtoD"},
	{45, "cuMemcpyDtoH"},
	{47, "cuMemcpyDtoD"},
	{49, "cuMemcpyDtoA"},
	{51, "cuMemcpyAtoD"},
	{53, "cuMemcpyHtoA"},
	{54, "cuMemcpyAtoH"},
	{55, "cuMemcpyAtoA"},
	{56, "cuMemcpy2D"},
	{58, "cuMemcpy3D"},
	{60, "cuMemcpyHtoDAsync"},
	{62, "cuMemcpyDtoHAsync"},
	{64, "cuMemcpyDtoDAsync"},
	{68, "cuMemcpy2DAsync"},
	{69, "cuMemcpy3DAsync"},
	{71, "cuMemsetD8"},
	{73, "cuMemsetD16"},
	{75, "cuMemsetD32"},
	{77, "cuMemsetD2D8"},
	{79, "cuMemsetD2D16"},
	{81, "cuMemsetD2D32"},
	{119, "cuEventRecord"},
	{121, "cuEventSynchronize"},
	{126, "cuStreamSynchronize"},
	{216, "cuMemsetD8Async"},
	{218, "cuMemsetD16Async"},
	{220, "cuMemsetD32Async"},
	{222, "cuMemsetD2D8Async"},
	{224, "cuMemsetD2D16Async"},
	{226, "cuMemsetD2D32Async"},
	{243, "cuMemAlloc_v2"},
	{244, "cuMemAllocPitch_v2"},
	{245, "cuMemFree_v2"},
	{249, "cuMemsetD8_v2"},
	{250, "cuMemsetD16_v2"},
	{251, "cuMemsetD32_v2"},
	{252, "cuMemsetD2D8_v2"},
	{253, "cuMemsetD2D16_v2"},
	{254, "cuMemsetD2D32_v2"},
	{276, "cuMemcpyHtoD_v2"},
	{277, "cuMemcpyHtoDAsync_v2"},
	{278, "cuMemcpyDtoH_v2"},
	{279, "cuMemcpyDtoHAsync_v2"},
	{280, "cuMemcpyDtoD_v2"},
	{281, "cuMemcpyDtoDAsync_v2"},
	{282, "cuMemcpyAtoH_v2"},
	{284, "cuMemcpyAtoD_v2"},
	{285, "cuMemcpyDtoA_v2"},
	{286, "cuMemcpyAtoA_v2"},
	{287, "cuMemcpy2D_v2"},
	{289, "cuMemcpy2DAsync_v2"},
	{290, "cuMemcpy3D_v2"},
	{291, "cuMemcpy3DAsync_v2"},
	{292, "cuMemcpyHtoA_v2"},
	{294, "cuMemAllocHost_v2"},
	{295, "cuStreamWaitEvent"},
	{305, "cuMemcpy"},
	{306, "cuMemcpyAsync"},
	{307, "cuLaunchKernel"},
	{318, "cuMemcpyPeer"},
	{319, "cuMemcpyPeerAsync"},
	{320, "cuMemcpy3DPeer"},
	{321, "cuMemcpy3DPeerAsync"},
	{371, "cuMemAllocManaged"},
	{397, "cuMemcpyHtoD_v2_ptds"},
	{398, "cuMemcpyDtoH_v2_ptds"},
	{399, "cuMemcpyDtoD_v2_ptds"},
	{400, "cuMemcpyDtoA_v2_ptds"},
	{401, "cuMemcpyAtoD_v2_ptds"},
	{402, "cuMemcpyHtoA_v2_ptds"},
	{403, "cuMemcpyAtoH_v2_ptds"},
	{404, "cuMemcpyAtoA_v2_ptds"},
	{405, "cuMemcpy2D_v2_ptds"},
	{407, "cuMemcpy3D_v2_ptds"},
	{408, "cuMemcpy_ptds"},
	{409, "cuMemcpyPeer_ptds"},
	{410, "cuMemcpy3DPeer_ptds"},
	{411, "cuMemsetD8_v2_ptds"},
	{412, "cuMemsetD16_v2_ptds"},
	{413, "cuMemsetD32_v2_ptds"},
	{414, "cuMemsetD2D8_v2_ptds"},
	{415, "cuMemsetD2D16_v2_ptds"},
	{416, "cuMemsetD2D32_v2_ptds"},
	{418, "cuMemcpyAsync_ptsz"},
	{421, "cuMemcpyHtoDAsync_v2_ptsz"},
	{422, "cuMemcpyDtoHAsync_v2_ptsz"},
	{423, "cuMemcpyDtoDAsync_v2_ptsz"},
	{424, "cuMemcpy2DAsync_v2_ptsz"},
	{425, "cuMemcpy3DAsync_v2_ptsz"},
	{426, "cuMemcpyPeerAsync_ptsz"},
	{427, "cuMemcpy3DPeerAsync_ptsz"},
	{428, "cuMemsetD8Async_ptsz"},
	{429, "cuMemsetD16Async_ptsz"},
	{430, "cuMemsetD32Async_ptsz"},
	{431, "cuMemsetD2D8Async_ptsz"},
	{432, "cuMemsetD2D16Async_ptsz"},
	{433, "cuMemsetD2D32Async_ptsz"},
	{436, "cuStreamWaitEvent_ptsz"},
	{440, "cuStreamSynchronize_ptsz"},
	{441, "cuEventRecord_ptsz"},
	{442, "cuLaunchKernel_ptsz"},
	{477, "cuLaunchCooperativeKernel"},
	{478, "cuLaunchCooperativeKernel_ptsz"},
	{480, "cuLaunchCooperativeKernelMultiDevice"},
	{514, "cuGraphLaunch"},
	{515, "cuGraphLaunch_ptsz"},
	{527, "cuLaunchHostFunc"},
	{528, "cuLaunchHostFunc_ptsz"},
	{549, "cuMemCreate"},
	{551, "cuMemMap"},
	{587, "cuEventRecordWithFlags"},
	{588, "cuEventRecordWithFlags_ptsz"},
	{598, "cuMemAllocAsync"},
	{599, "cuMemAllocAsync_ptsz"},
	{600, "cuMemFreeAsync"},
	{601, "cuMemFreeAsync_ptsz"},
	{611, "cuMemAllocFromPoolAsync"},
	{612, "cuMemAllocFromPoolAsync_ptsz"},
	{652, "cuLaunchKernelEx"},
	{653, "cuLaunchKernelEx_ptsz"},
	{678, "cuLibraryLoadData"},
	{776, "cuMemcpyBatchAsync"},
	{777, "cuMemcpyBatchAsync_ptsz"},
	{796, "cuMemcpyBatchAsync_v2"},
	{797, "cuMemcpyBatchAsync_v2_ptsz"},
	{800, "cuCtxSynchronize_v2"},
	{831, "cuLaunchHostFunc_v2"},
	{832, "cuLaunchHostFunc_v2_ptsz"},
}
