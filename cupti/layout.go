// SPDX-License-Identifier: Apache-2.0

package cupti

// What CUPTI writes. Records are C structs that grow at their end from release to release, and
// which one a library writes depends on its own version. The table has the newest struct of each
// kind by release. The layout test compiles it against the headers of 11.8, 12.0, 12.4, 12.9, 13.0
// and 13.5. The rows 12.8 and 13.1 are from what those headers say of replaced structs:
//
//	CUDA  cuptiGetVersion  kernel    copy     peer copy    set      memory   wait              graph        overhead
//	11.8  18               Kernel8   Memcpy5  MemcpyPtoP4  Memset4  Memory3  Synchronization   GraphTrace   Overhead
//	12.0  18 or 19         Kernel9
//	12.4  22                                                                                   GraphTrace2  Overhead3
//	12.8  26                         Memcpy6                                 Synchronization2
//	12.9  27, 28                                                    Memory4
//	13.0  130000           Kernel10
//	13.1  130100           Kernel11
//	13.5  130500           Kernel13  Memcpy7               Memset5
//
// API has been the same throughout. Everything that is read here was in the first row already and
// has not moved since. So one set of offsets serves every release, also newer ones. A record is
// long enough if it is as long as the first row's. So it does not matter either that 11.8 and 12.0
// give the same number.

// Activity kinds, CUpti_ActivityKind.
const (
	activityMemcpy           = 1
	activityMemset           = 2
	activityKernel           = 3
	activityDriver           = 4
	activityRuntime          = 5
	activityConcurrentKernel = 10
	activityOverhead         = 17
	activityMemcpy2          = 22
	activitySynchronization  = 38
	activityMemory2          = 49
	activityGraphTrace       = 51
)

// Lengths in bytes: what the shortest struct of each kind has.
const (
	kernelBytes   = 200
	memcpyBytes   = 88
	peerBytes     = 96
	memsetBytes   = 88
	memoryBytes   = 120
	syncBytes     = 40
	graphBytes    = 48
	overheadBytes = 40
	apiBytes      = 40
	// headBytes is what every record has: its kind.
	headBytes = 4
)

// Offsets in bytes. Widths are in fields.
const (
	kernelRegisters     = 6
	kernelStart         = 16
	kernelEnd           = 24
	kernelDevice        = 40
	kernelContext       = 44
	kernelStream        = 48
	kernelGridX         = 52
	kernelGridY         = 56
	kernelGridZ         = 60
	kernelBlockX        = 64
	kernelBlockY        = 68
	kernelBlockZ        = 72
	kernelSharedStatic  = 76
	kernelSharedDynamic = 80
	kernelLocal         = 84
	kernelCorrelation   = 92
	kernelName          = 104
	kernelSharedUsed    = 140
	kernelGraphNode     = 144
	kernelGraph         = 156
	kernelClusterX      = 176
	kernelClusterY      = 180
	kernelClusterZ      = 184

	// MemcpyPtoP4 is as Memcpy5 up to the stream.
	copyKind        = 4
	copySource      = 5
	copyDestination = 6
	copyFlags       = 7
	copyBytes       = 8
	copyStart       = 16
	copyEnd         = 24
	copyDevice      = 32
	copyContext     = 36
	copyStream      = 40
	copyCorrelation = 44
	copyGraphNode   = 64
	peerCorrelation = 60
	peerGraphNode   = 72

	setBytes       = 8
	setStart       = 16
	setEnd         = 24
	setDevice      = 32
	setContext     = 36
	setStream      = 40
	setCorrelation = 44
	setGraphNode   = 64

	memoryOperation   = 4
	memoryKind        = 8
	memoryCorrelation = 12
	memoryAddress     = 16
	memorySize        = 24
	memoryTime        = 32
	memoryDevice      = 52
	memoryContext     = 56
	memoryStream      = 60

	syncType        = 4
	syncStart       = 8
	syncEnd         = 16
	syncCorrelation = 24
	syncContext     = 28
	syncStream      = 32
	syncEvent       = 36

	graphCorrelation = 4
	graphStart       = 8
	graphEnd         = 16
	graphDevice      = 24
	graphID          = 28
	graphContext     = 32
	graphStream      = 36

	overheadKind  = 4
	overheadStart = 24
	overheadEnd   = 32

	apiFunction    = 4
	apiStart       = 8
	apiEnd         = 16
	apiCorrelation = 32
)

// Values that mean "none", and those of the small enumerations.
const (
	noID            = 0xFFFFFFFF // CUPTI_INVALID_DEVICE_ID, CUPTI_SYNCHRONIZATION_INVALID_VALUE
	flagAsync       = 1          // CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC
	memoryAllocated = 1          // CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION
	memoryReleased  = 2          // CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE

	// Kinds of overhead that are CUPTI's own doing. The others (compiling, loading of modules,
	// command buffers that are full) happen without it as well.
	overheadFlush           = 1 << 16
	overheadInstrumentation = 2 << 16
	overheadResource        = 3 << 16
	overheadRequest         = 7 << 16
	overheadUVM             = 8 << 16
)
