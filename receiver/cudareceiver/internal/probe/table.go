// SPDX-License-Identifier: Apache-2.0

package probe

// program is the entry program that a function's calls run.
type program uint8

const (
	progLaunch program = iota
	progLaunchConfig
	progGraphLaunch
	progCopy
	progBatch
	progSet
	progAlloc
	progFree
	progWait
	progOther
	programs
)

// Flags of a cookie, as in types.h.
const (
	flagAsync   = 1
	flagReturns = 2
	flagPitch   = 4
	flagGiven   = 8

	noArgument = 255
)

// driverFunction is a function of the driver and how to read its arguments: the cookie of its probe.
type driverFunction struct {
	name    string
	program program
	class   cudaCallClass
	// kind is of a copy (index in copyKinds) or of memory; for sets, the bytes of an element.
	kind  uint8
	flags uint8
	// size and stream number the arguments that have them.
	size, stream uint8
	shape        cudaShape
}

// cookie packs what the programs need, in the order of union cookie in types.h. index is the function's
// in driverFunctions.
func (f driverFunction) cookie(index int) uint64 {
	return uint64(index)&0xffff | uint64(f.kind)<<16 | uint64(f.flags)<<24 | uint64(f.size)<<32 |
		uint64(f.stream)<<40 | uint64(f.shape)<<48 | uint64(f.class)<<56
}

// copyKinds are kinds of copies by the programs' numbers. From 16 on, where a structure says it at run time,
// they are 4 × source + destination, each 1 for the host, 2 for the device, 3 for an array of it.
var copyKinds = map[uint16]string{
	0: "", 1: "HtoD", 2: "DtoH", 3: "DtoD", 4: "PtoP", 5: "DtoA", 6: "AtoD", 7: "HtoA", 8: "AtoH", 9: "AtoA",
	21: "HtoH", 22: "HtoD", 23: "HtoA", 25: "DtoH", 26: "DtoD", 27: "DtoA", 29: "AtoH", 30: "AtoD", 31: "AtoA",
}

var memoryKinds = []string{
	cudaMemoryKindMEMORY_DEVICE: "device", cudaMemoryKindMEMORY_PINNED: "pinned", cudaMemoryKindMEMORY_MANAGED: "managed",
	cudaMemoryKindMEMORY_ASYNC: "async", cudaMemoryKindMEMORY_VIRTUAL: "virtual",
}

// driverFunctions is every function that is attached to, where the driver has it. Names that end in _ptds and
// _ptsz are of programs compiled for one default stream per thread, at addresses of their own.
// Functions without _v2 where there is one take 32-bit sizes and have not been called since CUDA 3.1.
var driverFunctions = table()

func table() []driverFunction {
	var all []driverFunction
	add := func(f driverFunction, perThread string) {
		all = append(all, f)
		if perThread != "" {
			f.name += perThread
			all = append(all, f)
		}
	}
	for name, p := range map[string]program{"cuLaunchKernel": progLaunch, "cuLaunchCooperativeKernel": progLaunch, "cuLaunchKernelEx": progLaunchConfig} {
		add(driverFunction{name: name, program: p, class: cudaCallClassCALL_LAUNCH, stream: noArgument}, "_ptsz")
	}
	add(driverFunction{name: "cuGraphLaunch", program: progGraphLaunch, class: cudaCallClassCALL_OTHER, flags: flagReturns}, "_ptsz")

	// Copies: the synchronous form has a return probe, for its time.
	copies := func(sync, async string, kind, size uint8, shape cudaShape, stream uint8) {
		f := driverFunction{program: progCopy, class: cudaCallClassCALL_COPY, kind: kind, size: size, shape: shape}
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
	for _, name := range []string{"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"} {
		add(driverFunction{name: name, program: progBatch, flags: flagAsync}, "_ptsz")
	}

	for bits, name := range map[uint8]string{1: "8", 2: "16", 4: "32"} {
		f := driverFunction{program: progSet, kind: bits}
		f.name = "cuMemsetD" + name + "_v2"
		add(f, "_ptds")
		f.name = "cuMemsetD" + name + "Async"
		add(f, "_ptsz")
		f.shape = cudaShapeSHAPE_2D
		f.name = "cuMemsetD2D" + name + "_v2"
		add(f, "_ptds")
		f.name = "cuMemsetD2D" + name + "Async"
		add(f, "_ptsz")
	}

	alloc := func(name string, kind cudaMemoryKind, flags uint8, perThread string) {
		add(driverFunction{name: name, program: progAlloc, class: cudaCallClassCALL_ALLOC, kind: uint8(kind), flags: flags | flagReturns}, perThread)
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
		add(driverFunction{name: name, program: progFree, class: cudaCallClassCALL_FREE, kind: uint8(kind), flags: flagReturns}, perThread)
	}
	free("cuMemFree_v2", cudaMemoryKindMEMORY_DEVICE, "")
	free("cuMemFreeAsync", cudaMemoryKindMEMORY_ASYNC, "_ptsz")
	free("cuMemRelease", cudaMemoryKindMEMORY_VIRTUAL, "")
	free("cuMemFreeHost", cudaMemoryKindMEMORY_PINNED, "")
	free("cuMemHostUnregister", cudaMemoryKindMEMORY_PINNED, "")

	wait := func(name string, stream uint8, perThread string) {
		add(driverFunction{name: name, program: progWait, class: cudaCallClassCALL_WAIT, flags: flagReturns, stream: stream}, perThread)
	}
	wait("cuStreamSynchronize", 0, "_ptsz")
	wait("cuEventSynchronize", noArgument, "")
	wait("cuCtxSynchronize", noArgument, "")
	wait("cuCtxSynchronize_v2", noArgument, "")

	other := func(class cudaCallClass, perThread string, names ...string) {
		for _, name := range names {
			add(driverFunction{name: name, program: progOther, class: class, flags: flagReturns}, perThread)
		}
	}
	other(cudaCallClassCALL_CAPTURE_BEGIN, "_ptsz", "cuStreamBeginCapture_v2")
	other(cudaCallClassCALL_CAPTURE_END, "_ptsz", "cuStreamEndCapture")
	other(cudaCallClassCALL_INSTANTIATE, "", "cuGraphInstantiateWithFlags", "cuGraphInstantiate_v2")
	other(cudaCallClassCALL_INSTANTIATE, "_ptsz", "cuGraphInstantiateWithParams")
	other(cudaCallClassCALL_NAME, "", "cuModuleGetFunction", "cuLibraryGetKernel")
	other(cudaCallClassCALL_MODULE, "", "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuLibraryLoadData", "cuLibraryLoadFromFile")
	return all
}
