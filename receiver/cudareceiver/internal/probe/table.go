// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

// program identifies the entry program that runs for the calls of a function.
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
	progForget
	progRecord
	progJoin
	progCollective
	progGroup
	progRuntimeLaunch
	progRuntimeLaunchConfig
	progRuntime
	programs
)

// Flags of a cookie. types.h has the same values.
const (
	flagAsync   = 1
	flagReturns = 2
	flagPitch   = 4
	flagGiven   = 8

	noArgument = 255
)

// apiFunction describes a function of a library and how to read its arguments. It becomes the
// cookie of the probe.
type apiFunction struct {
	name    string
	library library
	program program
	class   cudaCallClass
	// kind is the kind of a copy (index in copyKinds), of memory, of a node or of a handle. For
	// sets it is the bytes of an element, for copies of the runtime the argument with the kind.
	kind  uint8
	flags uint8
	// size and stream are the numbers of the arguments with the size and the stream. Calls of
	// progOther have a third argument in size, collectives have the datatype in stream.
	size, stream uint8
	shape        cudaShape
}

// cookie packs the values that the programs need, in the order of union cookie in types.h. index is
// the index of the function in apiFunctions.
func (f apiFunction) cookie(index int) uint64 {
	return uint64(index)&0xffff | uint64(f.kind)<<16 | uint64(f.flags)<<24 | uint64(f.size)<<32 |
		uint64(f.stream)<<40 | uint64(f.shape)<<48 | uint64(f.class)<<56
}

// copyKinds maps the numbers of the programs to kinds of copies. Numbers from 16 are for kinds that
// a structure specifies at run time: 4 × source + destination. Each is 1 for the host, 2 for the
// device and 3 for an array on the device.
var copyKinds = map[uint16]string{
	0: "", 1: "HtoD", 2: "DtoH", 3: "DtoD", 4: "PtoP", 5: "DtoA", 6: "AtoD", 7: "HtoA", 8: "AtoH", 9: "AtoA",
	21: "HtoH", 22: "HtoD", 23: "HtoA", 25: "DtoH", 26: "DtoD", 27: "DtoA", 29: "AtoH", 30: "AtoD", 31: "AtoA",
}

var memoryKinds = []string{
	cudaMemoryKindMEMORY_DEVICE: "device", cudaMemoryKindMEMORY_PINNED: "pinned", cudaMemoryKindMEMORY_MANAGED: "managed",
	cudaMemoryKindMEMORY_ASYNC: "async", cudaMemoryKindMEMORY_VIRTUAL: "virtual",
}

// apiFunctions lists every function to attach to, if a library has it. headers_test.go compares
// names and arguments with NVIDIA's headers.
var apiFunctions = functionTable()

func functionTable() []apiFunction {
	var all []apiFunction
	all = append(all, driverTable()...)
	all = append(all, ncclTable()...)
	return append(all, runtimeTable()...)
}

// functionsOf returns the names of a library's functions with their index in apiFunctions.
func functionsOf(l library) map[string]int {
	of := map[string]int{}
	for i, f := range apiFunctions {
		if f.library == l {
			of[f.name] = i
		}
	}
	return of
}
