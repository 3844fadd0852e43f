// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

// driverTable lists the functions of libcuda. Programs compiled for one default stream per thread
// call the names that end in _ptds and _ptsz, which have their own addresses. Functions whose _v2
// form exists take 32-bit sizes or predate CUDA 11, and current programs do not call them.
func driverTable() []apiFunction {
	var all []apiFunction
	add := func(f apiFunction, perThread string) {
		all = append(all, f)
		if perThread != "" {
			f.name += perThread
			all = append(all, f)
		}
	}
	launch := func(name string, p program) {
		add(apiFunction{name: name, program: p, class: cudaCallClassCALL_LAUNCH, stream: noArgument}, "_ptsz")
	}
	launch("cuLaunchKernel", progLaunch)
	launch("cuLaunchCooperativeKernel", progLaunch)
	launch("cuLaunchKernelEx", progLaunchConfig)
	add(apiFunction{name: "cuGraphLaunch", program: progGraphLaunch, class: cudaCallClassCALL_OTHER, flags: flagReturns}, "_ptsz")

	// The synchronous form has a return probe to measure its duration.
	copies := func(sync, async string, kind, size uint8, shape cudaShape, stream uint8) {
		f := apiFunction{program: progCopy, class: cudaCallClassCALL_COPY, kind: kind, size: size, shape: shape}
		if sync != "" {
			f.name, f.flags, f.stream = sync, flagReturns, noArgument
			add(f, "_ptds")
		}
		if async != "" {
			f.name, f.flags, f.stream = async, flagAsync, stream
			add(f, "_ptsz")
		}
	}
	linear := cudaShapeSHAPE_BYTES
	copies("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", 1, 2, linear, 3)
	copies("cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2", 2, 2, linear, 3)
	copies("cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2", 3, 2, linear, 3)
	copies("cuMemcpy", "cuMemcpyAsync", 0, 2, linear, 3)
	copies("cuMemcpyPeer", "cuMemcpyPeerAsync", 4, 4, linear, 5)
	copies("cuMemcpyDtoA_v2", "", 5, 3, linear, 0)
	copies("cuMemcpyAtoD_v2", "", 6, 3, linear, 0)
	copies("cuMemcpyHtoA_v2", "cuMemcpyHtoAAsync_v2", 7, 3, linear, 4)
	copies("cuMemcpyAtoH_v2", "cuMemcpyAtoHAsync_v2", 8, 3, linear, 4)
	copies("cuMemcpyAtoA_v2", "", 9, 4, linear, 0)
	copies("cuMemcpy2D_v2", "cuMemcpy2DAsync_v2", 0, 0, cudaShapeSHAPE_2D, 1)
	copies("cuMemcpy2DUnaligned_v2", "", 0, 0, cudaShapeSHAPE_2D, 1)
	copies("cuMemcpy3D_v2", "cuMemcpy3DAsync_v2", 0, 0, cudaShapeSHAPE_3D, 1)
	copies("cuMemcpy3DPeer", "cuMemcpy3DPeerAsync", 4, 0, cudaShapeSHAPE_3D, 1)
	copies("", "cuMemcpyWithAttributesAsync", 0, 2, linear, 4)
	copies("", "cuMemcpy3DWithAttributesAsync", 0, 0, cudaShapeSHAPE_OPERATION, 2)
	batch := func(shape cudaShape, names ...string) {
		for _, name := range names {
			add(apiFunction{name: name, program: progBatch, flags: flagAsync, shape: shape}, "_ptsz")
		}
	}
	batch(linear, "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2")
	batch(cudaShapeSHAPE_OPERATION, "cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_v2")

	for _, element := range []struct {
		name  string
		bytes uint8
	}{{"8", 1}, {"16", 2}, {"32", 4}} {
		f := apiFunction{program: progSet, kind: element.bytes}
		f.name = "cuMemsetD" + element.name + "_v2"
		add(f, "_ptds")
		f.name = "cuMemsetD" + element.name + "Async"
		add(f, "_ptsz")
		f.shape = cudaShapeSHAPE_2D
		f.name = "cuMemsetD2D" + element.name + "_v2"
		add(f, "_ptds")
		f.name = "cuMemsetD2D" + element.name + "Async"
		add(f, "_ptsz")
	}

	alloc := func(name string, kind cudaMemoryKind, flags uint8, perThread string) {
		add(apiFunction{name: name, program: progAlloc, class: cudaCallClassCALL_ALLOC, kind: uint8(kind), flags: flags | flagReturns}, perThread)
	}
	alloc("cuMemAlloc_v2", cudaMemoryKindMEMORY_DEVICE, 0, "")
	alloc("cuMemAllocPitch_v2", cudaMemoryKindMEMORY_DEVICE, flagPitch, "")
	alloc("cuMemAllocManaged", cudaMemoryKindMEMORY_MANAGED, 0, "")
	alloc("cuMemAllocAsync", cudaMemoryKindMEMORY_ASYNC, 0, "_ptsz")
	alloc("cuMemAllocFromPoolAsync", cudaMemoryKindMEMORY_ASYNC, 0, "_ptsz")
	alloc("cuMemCreate", cudaMemoryKindMEMORY_VIRTUAL, 0, "")
	alloc("cuMemHostAlloc", cudaMemoryKindMEMORY_PINNED, 0, "")
	alloc("cuMemAllocHost_v2", cudaMemoryKindMEMORY_PINNED, 0, "")
	alloc("cuMemHostRegister_v2", cudaMemoryKindMEMORY_PINNED, flagGiven, "")
	free := func(name string, kind cudaMemoryKind, perThread string) {
		add(apiFunction{name: name, program: progFree, class: cudaCallClassCALL_FREE, kind: uint8(kind), flags: flagReturns}, perThread)
	}
	free("cuMemFree_v2", cudaMemoryKindMEMORY_DEVICE, "")
	free("cuMemFreeAsync", cudaMemoryKindMEMORY_ASYNC, "_ptsz")
	free("cuMemRelease", cudaMemoryKindMEMORY_VIRTUAL, "")
	free("cuMemFreeHost", cudaMemoryKindMEMORY_PINNED, "")
	free("cuMemHostUnregister", cudaMemoryKindMEMORY_PINNED, "")

	wait := func(name string, stream uint8, perThread string) {
		add(apiFunction{name: name, program: progWait, class: cudaCallClassCALL_WAIT, flags: flagReturns, stream: stream}, perThread)
	}
	wait("cuStreamSynchronize", 0, "_ptsz")
	wait("cuEventSynchronize", noArgument, "")
	wait("cuCtxSynchronize", noArgument, "")
	wait("cuCtxSynchronize_v2", noArgument, "")

	other := func(class cudaCallClass, perThread string, names ...string) {
		for _, name := range names {
			add(apiFunction{name: name, program: progOther, class: class, flags: flagReturns, size: 2}, perThread)
		}
	}
	other(cudaCallClassCALL_CAPTURE_BEGIN, "_ptsz", "cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginRecaptureToGraph")
	add(apiFunction{name: "cuStreamBeginCaptureToGraph", program: progOther, class: cudaCallClassCALL_CAPTURE_BEGIN, flags: flagReturns | flagGiven, size: 2}, "_ptsz")
	other(cudaCallClassCALL_CAPTURE_END, "_ptsz", "cuStreamEndCapture")
	other(cudaCallClassCALL_INSTANTIATE, "", "cuGraphInstantiate", "cuGraphInstantiateWithFlags", "cuGraphInstantiate_v2")
	other(cudaCallClassCALL_INSTANTIATE, "_ptsz", "cuGraphInstantiateWithParams")
	other(cudaCallClassCALL_UPDATE, "", "cuGraphExecUpdate", "cuGraphExecUpdate_v2")
	other(cudaCallClassCALL_GRAPH, "", "cuGraphCreate")
	other(cudaCallClassCALL_CLONE, "", "cuGraphClone")
	node := func(name string, kind cudaNodeKind, argument uint8) {
		add(apiFunction{name: name, program: progOther, class: cudaCallClassCALL_NODE, flags: flagReturns, kind: uint8(kind), size: argument}, "")
	}
	node("cuGraphAddKernelNode", cudaNodeKindNODE_IS_KERNEL, 4)
	node("cuGraphAddKernelNode_v2", cudaNodeKindNODE_IS_KERNEL, 4)
	node("cuGraphAddChildGraphNode", cudaNodeKindNODE_IS_CHILD, 4)
	node("cuGraphAddNode", cudaNodeKindNODE_IN_PARAMETERS, 4)
	node("cuGraphAddNode_v2", cudaNodeKindNODE_IN_PARAMETERS, 5)
	node("cuGraphAddNode_v3", cudaNodeKindNODE_IN_PARAMETERS, 5)
	forget := func(name string, space cudaSpace) {
		add(apiFunction{name: name, program: progForget, class: cudaCallClassCALL_OTHER, kind: uint8(space)}, "")
	}
	forget("cuGraphDestroy", cudaSpaceSPACE_GRAPH)
	forget("cuGraphExecDestroy", cudaSpaceSPACE_EXECUTABLE)
	forget("cuEventDestroy_v2", cudaSpaceSPACE_EVENT)
	forget("cuStreamDestroy_v2", cudaSpaceSPACE_STREAM)
	// Events extend a capture to other streams.
	add(apiFunction{name: "cuEventRecord", program: progRecord, class: cudaCallClassCALL_OTHER}, "_ptsz")
	add(apiFunction{name: "cuEventRecordWithFlags", program: progRecord, class: cudaCallClassCALL_OTHER}, "_ptsz")
	add(apiFunction{name: "cuStreamWaitEvent", program: progJoin, class: cudaCallClassCALL_OTHER}, "_ptsz")

	other(cudaCallClassCALL_NAME, "", "cuModuleGetFunction", "cuLibraryGetKernel")
	other(cudaCallClassCALL_SAME, "", "cuKernelGetFunction")
	other(cudaCallClassCALL_MODULE, "", "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuLibraryLoadData", "cuLibraryLoadFromFile")
	return all
}
