// SPDX-License-Identifier: Apache-2.0

package gpuevent

// Int is an integer that may be unknown. The zero value is unknown; unknown values are never
// written to pdata.
type Int struct {
	V  int64
	OK bool
}

// Some returns a known integer.
func Some(v int64) Int { return Int{V: v, OK: true} }

// Float is a floating point number that may be unknown, like [Int].
type Float struct {
	V  float64
	OK bool
}

// SomeFloat returns a known number.
func SomeFloat(v float64) Float { return Float{V: v, OK: true} }

// TraceID and SpanID are as in OpenTelemetry; all zero means none.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

// Ref says where an event stands: in which trace, as which span, under which parent.
// A log record has no span of its own: there Span is the span it belongs to, and Parent is unused.
type Ref struct {
	Trace  TraceID
	Span   SpanID
	Parent SpanID
}

// Session is one run of one process: the resource of everything it did.
// It must not change once it has been passed to a Batch.
type Session struct {
	// ID is the session's identifier as its source gives it, usually a UUID: service.instance.id.
	ID string
	// App is the application's name: service.name.
	App string
	// PID is the process id on its own host.
	PID Int
	// HostName is the name of the host, "" if unknown; HostIP its address.
	HostName string
	HostIP   string
	// StartNs is the session's begin in Unix nanoseconds, 0 if unknown.
	StartNs int64
	// Devices are the devices that the process saw. With exactly one, every device span names it
	// even where the event does not, and what it is like stands on the resource.
	Devices []Device
	// Distro names the recorder ("gpuflight"): telemetry.distro.name. "" for none.
	Distro string
	// DistroVersion is the recorder's version: telemetry.distro.version. "" if unknown, as for logs.
	DistroVersion string
	// Engine is the recorder's profiling engine, as it calls it. Kind is its session kind.
	Engine string
	Kind   string
	// RunID, AnalysisID and the like group sessions: extra string attributes of the resource,
	// key (from semconv) and value. Order is kept.
	Extra []Attr
}

// Device is a GPU as a session knows it.
type Device struct {
	// Index is the CUDA ordinal in the process.
	Index int64
	Name  string
	// UUID has the "GPU-" prefix.
	UUID   string
	Vendor string
	// ComputeMajor and ComputeMinor are the compute capability, SMCount the number of
	// multiprocessors.
	ComputeMajor, ComputeMinor, SMCount Int
}

// Span holds what all spans of device work share. Times are Unix nanoseconds.
type Span struct {
	Ref
	// StartNs and EndNs are device times for device work, host times for host work.
	StartNs, EndNs int64
	// LaunchStartNs and LaunchEndNs are the host call that asked for the work.
	LaunchStartNs, LaunchEndNs Int
	// Device is the CUDA ordinal.
	Device, Stream, Context, Correlation Int
	// ExternalKind and ExternalID are CUPTI's external correlation.
	ExternalKind, ExternalID Int
	// Stack is the host call stack, one frame a line, outermost last. "" if unknown.
	Stack string
	// StackBefore is the host call stack that samples found before a launch that came late, as Stack.
	StackBefore string
	// ScopeName is the name of the innermost scope around the launch, "" outside every scope. It
	// repeats what the parent says, for those who see one span at a time.
	ScopeName string
	// ScopeInferred says that the scope is not one of the launching thread; see cuda.scope.inferred.
	ScopeInferred bool
	// ScopePath names the enclosing scopes, outermost first, joined by '|'. It is set only where
	// the scope instance could not be found, so that the name at least is kept.
	ScopePath string
	// Estimated says that the times are not measured.
	Estimated bool
}

// Kernel is one kernel execution.
type Kernel struct {
	Span
	// Name must not be nil.
	Name *KernelName
	// Grid, Block and Cluster are dimensions; a zero first element means unknown.
	Grid, Block, Cluster [3]int64
	RegistersPerThread   Int
	// Shared memory in bytes per block.
	SharedStatic, SharedDynamic, SharedExecuted Int
	// LocalPerThread is in bytes.
	LocalPerThread Int
	// ReportedOccupancy is the theoretical occupancy (0 to 1) that the source computed.
	ReportedOccupancy Float
	// ReportedLimiter is what the source says limits it, in our vocabulary ("warps", "registers",
	// "shared_memory", "blocks"); "" if it does not say.
	ReportedLimiter    string
	GraphID, GraphNode Int
}

// Copy is one memory copy.
type Copy struct {
	Span
	// Kind is HtoD, DtoH, …; "" if unknown.
	Kind string
	// Bytes is the size.
	Bytes Int
	// SourceKind and DestinationKind are memory kinds in our vocabulary: pageable, pinned, device,
	// managed, array, device_static, managed_static; "" if unknown.
	SourceKind, DestinationKind string
	// Async says whether the host call returned before the copy was done: 0 or 1.
	Async Int
}

// Set is one memory set.
type Set struct {
	Span
	Bytes Int
}

// SyncKind says what a synchronisation waited for.
type SyncKind uint8

// The synchronisations, numbered as CUPTI's CUpti_ActivitySynchronizationType (CUDA 12).
const (
	SyncUnknown SyncKind = iota
	SyncEvent
	SyncStreamWaitEvent
	SyncStream
	SyncContext
)

// Sync is one host wait for the device (or, for SyncStreamWaitEvent, of a stream for an event).
type Sync struct {
	Span
	Kind SyncKind
	// Event is the CUDA event's id.
	Event Int
}

// Memory is one allocation or, with Free, one release.
type Memory struct {
	Span
	Free bool
	// Kind is a memory kind in our vocabulary, see Copy.
	Kind    string
	Bytes   Int
	Address Int
}

// Graph is one launch of a CUDA graph.
type Graph struct {
	Span
	GraphID Int
	// ExecKey identifies the instantiated graph, as the source writes it (hex).
	ExecKey string
}

// ScopeSource says who opened a scope.
type ScopeSource string

// Scope sources; the values of cuda.scope.source.
const (
	ScopeSDK       ScopeSource = "sdk"
	ScopeGPUFlight ScopeSource = "gpuflight"
	ScopeNVTX      ScopeSource = "nvtx"
)

// Scope is an interval of host code with a name. It groups the device work launched in it.
type Scope struct {
	Ref
	StartNs, EndNs int64
	Name           string
	Source         ScopeSource
	// Instance is the source's number for this instance, Depth the number of enclosing scopes.
	Instance, Depth Int
	// Tag is free text given by the application; Domain the NVTX domain. "" for none.
	Tag, Domain string
	// CollectiveBytes is cuda.collective.size.
	CollectiveBytes Int
	// OriginalStartNs is the real begin of a scope that goes on from an earlier segment.
	OriginalStartNs Int
	// Repeat and Warmup are a benchmark's loop counts.
	Repeat, Warmup Int
	// Part is known on a repetition of this scope in another part of its trace.
	Part Int
	// Link is the scope's first span on a repetition, and the session's span on the root of a trace.
	Link Ref
	// Forward is the scope of the forward operator, on one of a backward operator.
	Forward Ref
	// Unfinished says that the end was never recorded; EndNs is then the last moment seen.
	Unfinished bool
	// Estimated says that a deep window made it longer than it is.
	Estimated bool
}

// SessionSpan is the span of a whole session, or of one window of it that holds work outside every
// scope.
type SessionSpan struct {
	Ref
	StartNs, EndNs int64
	// Window is the window's number, absent on the span of the whole session.
	Window Int
	Part   Int
	// Link is the first span on a repetition, and the session's span on a window.
	Link Ref
	// Unfinished: the session ended without saying so. Crashed: its process died.
	Unfinished, Crashed bool
	// ExitCode and Signal of the process, where its launcher recorded them.
	ExitCode, Signal Int
}

// DeepWindow is an interval in which an engine measured inside kernels.
type DeepWindow struct {
	Ref
	StartNs, EndNs int64
	// Failure is what went wrong, "" if nothing did: the status of the span.
	Failure string
	// Attrs are its attributes, keys from semconv. Those without a value are left out.
	Attrs []Attr
}

// PCSample is a number of program counter samples at one place for one reason.
type PCSample struct {
	Ref
	UID    UID
	TimeNs int64
	// Function is the kernel's or device function's name; nil if unknown.
	Function *KernelName
	PCOffset Int
	// Reason is CUPTI's own name; the common prefix is cut off by the translation.
	Reason string
	Count  int64
	// File and Line are the source location; "" and unknown if absent.
	File        string
	Line        Int
	Device      Int
	Correlation Int
}

// SASSMetric is one counter of one instruction.
type SASSMetric struct {
	Ref
	UID         UID
	TimeNs      int64
	Function    *KernelName
	PCOffset    Int
	Metric      string
	Value       uint64
	File        string
	Line        Int
	Device      Int
	Correlation Int
}

// Severity of a Record.
type Severity uint8

// Severities, in OpenTelemetry's sense.
const (
	SeverityInfo Severity = iota
	SeverityWarn
	SeverityError
)

// Record is any other log record.
type Record struct {
	Ref
	UID    UID
	TimeNs int64
	// Event is the event name, a constant of semconv.
	Event    string
	Body     string
	Severity Severity
	Attrs    []Attr
}

// AttrKind says which field of an Attr counts.
type AttrKind uint8

// Kinds of attribute values.
const (
	AttrString AttrKind = iota
	AttrInt
	AttrFloat
	AttrBool
	AttrStrings
)

// Attr is one attribute. Key is a constant of semconv.
type Attr struct {
	Key     string
	Kind    AttrKind
	Str     string
	Int     int64
	Float   float64
	Bool    bool
	Strings []string
}

// Str, I, F, B and Strs build attributes.
func Str(key, v string) Attr           { return Attr{Key: key, Kind: AttrString, Str: v} }
func I(key string, v int64) Attr       { return Attr{Key: key, Kind: AttrInt, Int: v} }
func F(key string, v float64) Attr     { return Attr{Key: key, Kind: AttrFloat, Float: v} }
func B(key string, v bool) Attr        { return Attr{Key: key, Kind: AttrBool, Bool: v} }
func Strs(key string, v []string) Attr { return Attr{Key: key, Kind: AttrStrings, Strings: v} }

// DeviceSample is one reading of a device's meters. Unknown fields are not written.
type DeviceSample struct {
	TimeNs int64
	// Device is the CUDA ordinal; its identity is looked up in the Session.
	Device int64
	// UUID, Name and Vendor win over the Session's where the sample itself carries them.
	UUID, Name, Vendor string
	// Ratios are 0 to 1.
	Utilization, MemoryControllerUtilization, FanRatio Float
	// Bytes.
	MemoryUsed, MemoryFree, MemoryTotal Int
	// Degrees Celsius.
	Temperature, MemoryTemperature, JunctionTemperature Float
	// Watts, volts, joules since the driver was loaded.
	Power, Voltage, Energy Float
	// Hertz.
	ClockGraphics, ClockSM, ClockMemory Int
	// ThrottlePower and ThrottleThermal are 0 or 1 at this moment.
	ThrottlePower, ThrottleThermal Int
	// Bytes per second; PCIe is both directions together, where only the sum is known.
	PCIeReceive, PCIeTransmit, PCIe Int
	// Totals since the driver was loaded.
	ECCCorrected, ECCUncorrected Int
}

// HostSample is one reading of the host's meters.
type HostSample struct {
	TimeNs int64
	// CPU is the whole machine's load, 0 to 1.
	CPU                     Float
	MemoryUsed, MemoryTotal Int // bytes
}

// Counter is one value of a hardware counter, by the profiler's own name and in its own unit.
type Counter struct {
	TimeNs int64
	Name   string
	// Value is a float unless Int is known.
	Value  float64
	Int    Int
	Device Int
	// Scope and Kernel say what the counter covers; "" for the whole device.
	Scope, Kernel string
	// Ordinal is the number of the launch it covers, where it is one launch.
	Ordinal Int
}
