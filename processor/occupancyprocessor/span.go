// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"math"
	"math/bits"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/semconv"
)

// facts is what the attributes of one span say, as far as it matters here. Numbers are only
// meaningful where has tells that they were there.
type facts struct {
	has, bad  fact
	operation operation
	// Threads of a block, blocks of a grid and of a cluster.
	block, grid, cluster int64
	registers            int64
	static, dynamic      int64
	executed             int64
	size                 int64
	kind                 link
	// What was written before, by the source or by this processor upstream.
	theoretical, reported float64
	device                identity
}

// fact is a set of attributes: those that are there, or those whose value cannot be used.
type fact uint32

const (
	block fact = 1 << iota
	grid
	cluster
	registers
	static
	dynamic
	executed
	size
	kind
	estimated
	theoretical
	reported
	unavailable
)

// maxInt is what CUDA's own types hold, whatever the attribute: more is no launch.
const maxInt = math.MaxInt32

// read goes through a span's attributes once, in whatever order they are, and returns how many of
// those that this processor writes are there.
func (f *facts) read(attrs pcommon.Map) (outputs int) {
	for k, v := range attrs.All() {
		switch k {
		case semconv.CUDAOperation:
			f.operation = operationOf(v.Str())
		case semconv.CUDAKernelBlock:
			f.block = f.product(block, v)
		case semconv.CUDAKernelGrid:
			f.grid = f.product(grid, v)
		case semconv.CUDAKernelCluster:
			f.cluster = f.product(cluster, v)
		case semconv.CUDAKernelRegistersPerThread:
			f.registers = f.integer(registers, v, 1) // every kernel has some: 0 is a source's word for unknown
		case semconv.CUDAKernelSharedMemoryStatic:
			f.static = f.integer(static, v, 0)
		case semconv.CUDAKernelSharedMemoryDynamic:
			f.dynamic = f.integer(dynamic, v, 0)
		case semconv.CUDAKernelSharedMemoryExecuted:
			f.executed = f.integer(executed, v, 0)
		case semconv.CUDAMemcpySize:
			f.has |= size
			if f.size = v.Int(); f.size <= 0 {
				f.bad |= size
			}
		case semconv.CUDAMemcpyKind:
			f.has |= kind
			f.kind = linkOf(v.Str())
		case semconv.CUDATiming:
			if v.Str() == semconv.CUDATimingEstimated {
				f.has |= estimated
			}
		case semconv.CUDADeviceComputeCapability, semconv.CUDADeviceSMCount, semconv.HWName, semconv.HWID:
			f.device.read(k, v)
		case semconv.CUDAOccupancyTheoretical:
			outputs++
			f.theoretical = f.number(theoretical, v)
		case semconv.CUDAOccupancyReported:
			f.reported = f.number(reported, v)
		case semconv.CUDAOccupancyUnavailable:
			f.has |= unavailable
		case semconv.CUDAOccupancyLimiter, semconv.CUDAOccupancyActiveBlocksPerSM, semconv.CUDAOccupancyActiveWarpsPerSM,
			semconv.CUDAOccupancyWaves, semconv.CUDAOccupancyGridFill,
			semconv.CUDAMemcpyThroughput, semconv.CUDAMemcpyLinkUtilization:
			outputs++
		}
	}
	return outputs
}

// read takes one attribute of a span or a resource that describes its device.
func (d *identity) read(key string, v pcommon.Value) {
	switch key {
	case semconv.CUDADeviceComputeCapability:
		if d.capability = v.Str(); d.capability == "" {
			d.capability = v.AsString() // of another type: it is named in the sentence on the span
		}
	case semconv.CUDADeviceSMCount:
		if d.sms = v.Int(); d.sms <= 0 || d.sms > maxSMCount {
			d.sms = -1
		}
	case semconv.HWName:
		d.name = v.Str()
	case semconv.HWID:
		d.id = v.Str()
	}
}

// integer returns a whole number from least to maxInt.
func (f *facts) integer(which fact, v pcommon.Value, least int64) int64 {
	f.has |= which
	n := v.Int()
	if v.Type() != pcommon.ValueTypeInt || n < least || n > maxInt {
		f.bad |= which
	}
	return n
}

// product returns the product of one to three dimensions; those that are left out are 1.
func (f *facts) product(which fact, v pcommon.Value) int64 {
	f.has |= which
	if v.Type() != pcommon.ValueTypeSlice {
		f.bad |= which
		return 0
	}
	list := v.Slice()
	if n := list.Len(); n < 1 || n > 3 {
		f.bad |= which
		return 0
	}
	product := uint64(1)
	for i := range list.Len() {
		n := list.At(i).Int() // 0 for what is no integer
		high, low := bits.Mul64(product, uint64(n))
		if n < 1 || n > maxInt || high != 0 || low > math.MaxInt64 {
			f.bad |= which
			return 0
		}
		product = low
	}
	return int64(product)
}

// number returns a number; what is none is a disagreement with every number.
func (f *facts) number(which fact, v pcommon.Value) float64 {
	f.has |= which
	switch v.Type() {
	case pcommon.ValueTypeDouble:
		return v.Double()
	case pcommon.ValueTypeInt:
		return float64(v.Int())
	default:
		f.bad |= which
		return math.NaN()
	}
}

// launchProblem returns why the launch cannot be judged, or none.
func (f *facts) launchProblem() reason {
	const needed = block | registers | static | dynamic
	switch {
	case f.bad&(needed|executed) != 0:
		return invalidLaunch
	case f.has&needed == needed:
		return none
	case f.has&block == 0:
		return missingBlock
	case f.has&registers == 0:
		return missingRegisters
	default:
		return missingShared
	}
}

// operation is the kind of a span, as far as this processor distinguishes kinds.
type operation uint8

const (
	otherOperation operation = iota
	kernelOperation
	copyOperation
	numOperations
)

// operationNames are the values of the attribute operation of this processor's own metrics.
var operationNames = [numOperations]string{
	otherOperation:  "other",
	kernelOperation: semconv.CUDAOperationKernel,
	copyOperation:   semconv.CUDAOperationMemcpy,
}

func operationOf(s string) operation {
	switch s {
	case semconv.CUDAOperationKernel:
		return kernelOperation
	case semconv.CUDAOperationMemcpy:
		return copyOperation
	default:
		return otherOperation
	}
}

// link is what a copy goes over.
type link uint8

const (
	// noLink is for copies that leave the device out, and kinds that are not known.
	noLink link = iota
	// hostLink is PCIe, in one direction.
	hostLink
	// peerLink is NVLink, in one direction.
	peerLink
	// deviceMemory is read and written by the same copy.
	deviceMemory
)

// linkOf returns what a copy of a kind goes over; A is an array in the device's memory.
func linkOf(kind string) link {
	switch kind {
	case "HtoD", "DtoH", "HtoA", "AtoH":
		return hostLink
	case "DtoD", "DtoA", "AtoD", "AtoA":
		return deviceMemory
	case "PtoP":
		return peerLink
	default:
		return noLink
	}
}
