// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

// runtimeTable lists the functions of libcudart that are observed until it is certain that its
// calls reach the exported functions of the driver.
func runtimeTable() []apiFunction {
	var all []apiFunction
	add := func(f apiFunction, perThread string) {
		f.library = libcudart
		f.flags |= flagReturns
		all = append(all, f)
		if perThread != "" {
			f.name += perThread
			all = append(all, f)
		}
	}
	// Launches leave kind free for the number of the library: see attach.
	add(apiFunction{name: "cudaLaunchKernel", program: progRuntimeLaunch, class: cudaCallClassCALL_LAUNCH, stream: 7}, "_ptsz")
	add(apiFunction{name: "cudaLaunchCooperativeKernel", program: progRuntimeLaunch, class: cudaCallClassCALL_LAUNCH, stream: 7}, "_ptsz")
	add(apiFunction{name: "cudaLaunchKernelExC", program: progRuntimeLaunchConfig, class: cudaCallClassCALL_LAUNCH, stream: noArgument}, "_ptsz")
	call := func(name string, class cudaCallClass, f apiFunction, perThread string) {
		f.name, f.program, f.class = name, progRuntime, class
		add(f, perThread)
	}
	call("cudaGraphLaunch", cudaCallClassCALL_OTHER, apiFunction{size: 1}, "_ptsz")

	copies := func(sync, async string, size, kind uint8, shape cudaShape, stream uint8) {
		f := apiFunction{size: size, kind: kind, shape: shape, stream: noArgument}
		call(sync, cudaCallClassCALL_COPY, f, "_ptds")
		f.flags, f.stream = flagAsync, stream
		call(async, cudaCallClassCALL_COPY, f, "_ptsz")
	}
	copies("cudaMemcpy", "cudaMemcpyAsync", 2, 3, cudaShapeSHAPE_BYTES, 4)
	copies("cudaMemcpy2D", "cudaMemcpy2DAsync", 4, 6, cudaShapeSHAPE_2D, 7)
	copies("cudaMemcpyToSymbol", "cudaMemcpyToSymbolAsync", 2, 4, cudaShapeSHAPE_BYTES, 5)
	copies("cudaMemcpyFromSymbol", "cudaMemcpyFromSymbolAsync", 2, 4, cudaShapeSHAPE_BYTES, 5)
	call("cudaMemcpyPeer", cudaCallClassCALL_COPY, apiFunction{size: 4, kind: noArgument, stream: noArgument}, "")
	call("cudaMemcpyPeerAsync", cudaCallClassCALL_COPY, apiFunction{size: 4, kind: noArgument, flags: flagAsync, stream: 5}, "")

	call("cudaMemset", cudaCallClassCALL_SET, apiFunction{size: 2}, "_ptds")
	call("cudaMemsetAsync", cudaCallClassCALL_SET, apiFunction{size: 2}, "_ptsz")
	call("cudaMemset2D", cudaCallClassCALL_SET, apiFunction{size: 3, shape: cudaShapeSHAPE_2D}, "_ptds")
	call("cudaMemset2DAsync", cudaCallClassCALL_SET, apiFunction{size: 3, shape: cudaShapeSHAPE_2D}, "_ptsz")

	alloc := func(name string, kind cudaMemoryKind, flags uint8, perThread string) {
		call(name, cudaCallClassCALL_ALLOC, apiFunction{kind: uint8(kind), flags: flags, size: 1}, perThread)
	}
	alloc("cudaMalloc", cudaMemoryKindMEMORY_DEVICE, 0, "")
	alloc("cudaMallocPitch", cudaMemoryKindMEMORY_DEVICE, flagPitch, "")
	alloc("cudaMallocManaged", cudaMemoryKindMEMORY_MANAGED, 0, "")
	alloc("cudaMallocAsync", cudaMemoryKindMEMORY_ASYNC, 0, "_ptsz")
	alloc("cudaMallocFromPoolAsync", cudaMemoryKindMEMORY_ASYNC, 0, "_ptsz")
	alloc("cudaMallocHost", cudaMemoryKindMEMORY_PINNED, 0, "")
	alloc("cudaHostAlloc", cudaMemoryKindMEMORY_PINNED, 0, "")
	alloc("cudaHostRegister", cudaMemoryKindMEMORY_PINNED, flagGiven, "")
	free := func(name string, kind cudaMemoryKind, perThread string) {
		call(name, cudaCallClassCALL_FREE, apiFunction{kind: uint8(kind)}, perThread)
	}
	free("cudaFree", cudaMemoryKindMEMORY_DEVICE, "")
	free("cudaFreeAsync", cudaMemoryKindMEMORY_ASYNC, "_ptsz")
	free("cudaFreeHost", cudaMemoryKindMEMORY_PINNED, "")
	free("cudaHostUnregister", cudaMemoryKindMEMORY_PINNED, "")

	call("cudaStreamSynchronize", cudaCallClassCALL_WAIT, apiFunction{stream: 0}, "_ptsz")
	call("cudaEventSynchronize", cudaCallClassCALL_WAIT, apiFunction{stream: noArgument}, "")
	call("cudaDeviceSynchronize", cudaCallClassCALL_WAIT, apiFunction{stream: noArgument}, "")

	call("cudaStreamBeginCapture", cudaCallClassCALL_CAPTURE_BEGIN, apiFunction{size: 2}, "_ptsz")
	call("cudaStreamEndCapture", cudaCallClassCALL_CAPTURE_END, apiFunction{size: 2}, "_ptsz")
	call("cudaGraphInstantiate", cudaCallClassCALL_INSTANTIATE, apiFunction{size: 2}, "")
	call("cudaGraphInstantiateWithFlags", cudaCallClassCALL_INSTANTIATE, apiFunction{size: 2}, "")
	return all
}
