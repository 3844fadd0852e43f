// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

// Slots of span attributes, in the order in which they are written.
const (
	spanOperation = iota
	spanScopeSource
	spanKernelName
	spanKernelSymbol
	spanGrid
	spanBlock
	spanCluster
	spanRegisters
	spanSharedStatic
	spanSharedDynamic
	spanSharedExecuted
	spanLocal
	spanOccupancy
	spanLimiter
	spanCapability
	spanSMCount
	spanCopyKind
	spanCopySize
	spanCopySource
	spanCopyDestination
	spanCopyAsync
	spanSetSize
	spanMemoryKind
	spanMemorySize
	spanMemoryAddress
	spanEvent
	spanGraph
	spanGraphNode
	spanGraphExec
	spanStream
	spanContext
	spanCorrelation
	spanExternalKind
	spanExternalID
	spanLaunchStart
	spanLaunchEnd
	spanQueue
	spanTiming
	spanScopeName
	spanScopeInferred
	spanScopePath
	spanScopeInstance
	spanScopeDepth
	spanScopeTag
	spanScopeOriginalStart
	spanScopeRepeat
	spanScopeWarmup
	spanScopePart
	spanScopeUnfinished
	spanDomain
	spanCollectiveSize
	spanWindow
	spanSessionUnfinished
	spanCrashed
	spanExitCode
	spanExitSignal
	spanHWID
	spanHWName
	spanHWVendor
	spanHWType
	spanDevice
	spanStack
	spanStackBefore
	numSpanSlots
)

var spanKeys = [numSpanSlots]string{
	spanOperation:          semconv.CUDAOperation,
	spanScopeSource:        semconv.CUDAScopeSource,
	spanKernelName:         semconv.CUDAKernelName,
	spanKernelSymbol:       semconv.CUDAKernelSymbol,
	spanGrid:               semconv.CUDAKernelGrid,
	spanBlock:              semconv.CUDAKernelBlock,
	spanCluster:            semconv.CUDAKernelCluster,
	spanRegisters:          semconv.CUDAKernelRegistersPerThread,
	spanSharedStatic:       semconv.CUDAKernelSharedMemoryStatic,
	spanSharedDynamic:      semconv.CUDAKernelSharedMemoryDynamic,
	spanSharedExecuted:     semconv.CUDAKernelSharedMemoryExecuted,
	spanLocal:              semconv.CUDAKernelLocalMemoryPerThread,
	spanOccupancy:          semconv.CUDAOccupancyReported,
	spanLimiter:            semconv.CUDAOccupancyReportedLimiter,
	spanCapability:         semconv.CUDADeviceComputeCapability,
	spanSMCount:            semconv.CUDADeviceSMCount,
	spanCopyKind:           semconv.CUDAMemcpyKind,
	spanCopySize:           semconv.CUDAMemcpySize,
	spanCopySource:         semconv.CUDAMemcpySourceKind,
	spanCopyDestination:    semconv.CUDAMemcpyDestinationKind,
	spanCopyAsync:          semconv.CUDAMemcpyAsync,
	spanSetSize:            semconv.CUDAMemsetSize,
	spanMemoryKind:         semconv.CUDAMemoryKind,
	spanMemorySize:         semconv.CUDAMemorySize,
	spanMemoryAddress:      semconv.CUDAMemoryAddress,
	spanEvent:              semconv.CUDAEventID,
	spanGraph:              semconv.CUDAGraphID,
	spanGraphNode:          semconv.CUDAGraphNodeID,
	spanGraphExec:          semconv.CUDAGraphExecKey,
	spanStream:             semconv.CUDAStreamID,
	spanContext:            semconv.CUDAContextID,
	spanCorrelation:        semconv.CUDACorrelationID,
	spanExternalKind:       semconv.CUDAExternalKind,
	spanExternalID:         semconv.CUDAExternalID,
	spanLaunchStart:        semconv.CUDALaunchStartTimeUnixNano,
	spanLaunchEnd:          semconv.CUDALaunchEndTimeUnixNano,
	spanQueue:              semconv.CUDAQueueDuration,
	spanTiming:             semconv.CUDATiming,
	spanScopeName:          semconv.CUDAScopeName,
	spanScopeInferred:      semconv.CUDAScopeInferred,
	spanScopePath:          semconv.CUDAScopePath,
	spanScopeInstance:      semconv.CUDAScopeInstanceID,
	spanScopeDepth:         semconv.CUDAScopeDepth,
	spanScopeTag:           semconv.CUDAScopeTag,
	spanScopeOriginalStart: semconv.CUDAScopeOriginalStartTimeUnixNano,
	spanScopeRepeat:        semconv.CUDAScopeRepeat,
	spanScopeWarmup:        semconv.CUDAScopeWarmup,
	spanScopePart:          semconv.CUDAScopePart,
	spanScopeUnfinished:    semconv.CUDAScopeUnfinished,
	spanDomain:             semconv.CUDANVTXDomain,
	spanCollectiveSize:     semconv.CUDACollectiveSize,
	spanWindow:             semconv.CUDASessionWindow,
	spanSessionUnfinished:  semconv.CUDASessionUnfinished,
	spanCrashed:            semconv.CUDASessionCrashed,
	spanExitCode:           semconv.ProcessExitCode,
	spanExitSignal:         semconv.ProcessExitSignal,
	spanHWID:               semconv.HWID,
	spanHWName:             semconv.HWName,
	spanHWVendor:           semconv.HWVendor,
	spanHWType:             semconv.HWType,
	spanDevice:             semconv.CUDADeviceIndex,
	spanStack:              semconv.CodeStacktrace,
	spanStackBefore:        semconv.CUDALaunchDelayStacktrace,
}

// Names of spans of device work. Those of waits are the runtime's functions.
const (
	nameKernel         = "kernel" // of a kernel without a name
	nameCopy           = "memcpy"
	nameSet            = "memset"
	nameAlloc          = "malloc"
	nameFree           = "free"
	nameGraph          = "graph"
	nameScope          = "scope" // of a scope without a name
	nameSession        = "session"
	nameDeepWindow     = "deep window"
	nameSync           = "synchronize"
	nameSyncEvent      = "cudaEventSynchronize"
	nameSyncStreamWait = "cudaStreamWaitEvent"
	nameSyncStream     = "cudaStreamSynchronize"
	nameSyncContext    = "cudaDeviceSynchronize"
)

// Kernel adds the span of a kernel execution.
func (b *Batch) Kernel(s *Session, k *Kernel) {
	if !b.signals.Traces {
		return
	}
	o := b.output(s)
	a := b.spanAttrs
	a.str(spanOperation, semconv.CUDAOperationKernel)
	a.str(spanKernelName, k.Name.Full)
	a.str(spanKernelSymbol, k.Name.Symbol)
	a.triple(spanGrid, &k.Grid)
	a.triple(spanBlock, &k.Block)
	a.triple(spanCluster, &k.Cluster)
	a.some(spanRegisters, k.RegistersPerThread)
	a.some(spanSharedStatic, k.SharedStatic)
	a.some(spanSharedDynamic, k.SharedDynamic)
	a.some(spanSharedExecuted, k.SharedExecuted)
	a.some(spanLocal, k.LocalPerThread)
	if k.ReportedOccupancy.OK {
		a.double(spanOccupancy, k.ReportedOccupancy.V)
	}
	a.str(spanLimiter, k.ReportedLimiter)
	a.some(spanGraph, k.GraphID)
	a.some(spanGraphNode, k.GraphNode)
	if o.only == nil {
		if i := o.device(k.Device); i >= 0 {
			a.str(spanCapability, o.capability(i))
			a.some(spanSMCount, s.Devices[i].SMCount)
		}
	}
	b.device(o, &k.Span, orElse(k.Name.Short, nameKernel))
}

// Copy adds the span of a memory copy.
func (b *Batch) Copy(s *Session, c *Copy) {
	if !b.signals.Traces {
		return
	}
	a := b.spanAttrs
	a.str(spanOperation, semconv.CUDAOperationMemcpy)
	a.str(spanCopyKind, c.Kind)
	a.some(spanCopySize, c.Bytes)
	a.str(spanCopySource, c.SourceKind)
	a.str(spanCopyDestination, c.DestinationKind)
	if c.Async.OK {
		a.bool(spanCopyAsync, c.Async.V != 0)
	}
	b.device(b.output(s), &c.Span, copyName(c.Kind))
}

// Set adds the span of a memory set.
func (b *Batch) Set(s *Session, m *Set) {
	if !b.signals.Traces {
		return
	}
	b.spanAttrs.str(spanOperation, semconv.CUDAOperationMemset)
	b.spanAttrs.some(spanSetSize, m.Bytes)
	b.device(b.output(s), &m.Span, nameSet)
}

// Sync adds the span of a wait.
func (b *Batch) Sync(s *Session, y *Sync) {
	if !b.signals.Traces {
		return
	}
	b.spanAttrs.str(spanOperation, semconv.CUDAOperationSynchronize)
	b.spanAttrs.some(spanEvent, y.Event)
	b.device(b.output(s), &y.Span, y.Kind.spanName())
}

// Memory adds the span of an allocation or a release.
func (b *Batch) Memory(s *Session, m *Memory) {
	if !b.signals.Traces {
		return
	}
	a := b.spanAttrs
	operation, name := semconv.CUDAOperationMalloc, nameAlloc
	if m.Free {
		operation, name = semconv.CUDAOperationFree, nameFree
	}
	a.str(spanOperation, operation)
	a.str(spanMemoryKind, m.Kind)
	a.some(spanMemorySize, m.Bytes)
	a.some(spanMemoryAddress, m.Address)
	b.device(b.output(s), &m.Span, name)
}

// Graph adds the span of a graph launch.
func (b *Batch) Graph(s *Session, g *Graph) {
	if !b.signals.Traces {
		return
	}
	a := b.spanAttrs
	a.str(spanOperation, semconv.CUDAOperationGraph)
	a.some(spanGraph, g.GraphID)
	a.str(spanGraphExec, g.ExecKey)
	b.device(b.output(s), &g.Span, nameGraph)
}

// Scope adds the span of a scope.
func (b *Batch) Scope(s *Session, c *Scope) {
	if !b.signals.Traces {
		return
	}
	a := b.spanAttrs
	a.str(spanOperation, semconv.CUDAOperationScope)
	a.str(spanScopeSource, string(c.Source))
	a.some(spanScopeInstance, c.Instance)
	a.some(spanScopeDepth, c.Depth)
	a.str(spanScopeTag, c.Tag)
	a.str(spanDomain, c.Domain)
	a.some(spanCollectiveSize, c.CollectiveBytes)
	a.some(spanScopeRepeat, c.Repeat)
	a.some(spanScopeWarmup, c.Warmup)
	if c.Unfinished {
		a.bool(spanScopeUnfinished, true)
	}
	a.some(spanScopeOriginalStart, c.OriginalStartNs)
	a.some(spanScopePart, c.Part)
	if c.Estimated {
		a.str(spanTiming, semconv.CUDATimingEstimated)
	}
	span := b.newSpan(b.output(s))
	describe(span, &c.Ref, orElse(c.Name, nameScope), c.StartNs, c.EndNs)
	a.write(span.Attributes())
	link(span, &c.Link)
	link(span, &c.Forward)
}

// SessionSpan adds the span of a session, or of a window of it.
func (b *Batch) SessionSpan(s *Session, x *SessionSpan) {
	if !b.signals.Traces {
		return
	}
	a := b.spanAttrs
	a.str(spanOperation, semconv.CUDAOperationSession)
	a.some(spanWindow, x.Window)
	a.some(spanScopePart, x.Part)
	if x.Unfinished {
		a.bool(spanSessionUnfinished, true)
	}
	if x.Crashed {
		a.bool(spanCrashed, true)
	}
	a.some(spanExitCode, x.ExitCode)
	a.some(spanExitSignal, x.Signal)
	span := b.newSpan(b.output(s))
	describe(span, &x.Ref, orElse(s.App, nameSession), x.StartNs, x.EndNs)
	a.write(span.Attributes())
	link(span, &x.Link)
	if x.Crashed {
		span.Status().SetCode(ptrace.StatusCodeError)
		span.Status().SetMessage(crash(x))
	}
}

// DeepWindow adds the span of a deep window. Like a session's it is no work of the device.
func (b *Batch) DeepWindow(s *Session, w *DeepWindow) {
	if !b.signals.Traces {
		return
	}
	span := b.newSpan(b.output(s))
	describe(span, &w.Ref, nameDeepWindow, w.StartNs, w.EndNs)
	span.Attributes().EnsureCapacity(1 + len(w.Attrs))
	span.Attributes().PutStr(semconv.CUDAOperation, semconv.CUDAOperationDeepWindow)
	put(span.Attributes(), w.Attrs)
	if w.Failure != "" {
		span.Status().SetCode(ptrace.StatusCodeError)
		span.Status().SetMessage(w.Failure)
	}
}

// crash says how the process ended.
func crash(x *SessionSpan) string {
	switch {
	case x.Signal.OK:
		return "process ended by signal " + strconv.FormatInt(x.Signal.V, 10)
	case x.ExitCode.OK:
		return "process exited with code " + strconv.FormatInt(x.ExitCode.V, 10)
	default:
		return "process crashed"
	}
}

// device adds a span with what all device work has, besides the attributes already set.
func (b *Batch) device(o *output, w *Span, name string) {
	a := b.spanAttrs
	a.some(spanStream, w.Stream)
	a.some(spanContext, w.Context)
	a.some(spanCorrelation, w.Correlation)
	a.some(spanExternalKind, w.ExternalKind)
	a.some(spanExternalID, w.ExternalID)
	a.some(spanLaunchStart, w.LaunchStartNs)
	if w.LaunchEndNs.OK {
		a.int(spanLaunchEnd, w.LaunchEndNs.V)
		// Host and device clocks are matched once and then drift apart: a start before the end of
		// the launch is possible, and says nothing about a queue.
		if w.StartNs >= w.LaunchEndNs.V {
			a.double(spanQueue, float64(w.StartNs-w.LaunchEndNs.V)/1e9)
		}
	}
	if w.Estimated {
		a.str(spanTiming, semconv.CUDATimingEstimated)
	}
	a.str(spanScopeName, w.ScopeName)
	if w.ScopeInferred {
		a.bool(spanScopeInferred, true)
	}
	a.str(spanScopePath, w.ScopePath)
	a.str(spanStack, w.Stack)
	a.str(spanStackBefore, w.StackBefore)
	a.some(spanDevice, w.Device)
	if i := o.device(w.Device); i >= 0 {
		d := &o.session.Devices[i]
		a.str(spanHWID, d.UUID)
		a.int(spanDevice, d.Index)
		if o.only == nil {
			a.str(spanHWName, d.Name)
			a.str(spanHWVendor, d.Vendor)
			a.str(spanHWType, semconv.HWTypeGPU)
		}
	}
	span := b.newSpan(o)
	describe(span, &w.Ref, name, w.StartNs, w.EndNs)
	a.write(span.Attributes())
}

// describe sets what every span has. An end before the start becomes the start.
func describe(span ptrace.Span, r *Ref, name string, startNs, endNs int64) {
	span.SetTraceID(pcommon.TraceID(r.Trace))
	span.SetSpanID(pcommon.SpanID(r.Span))
	span.SetParentSpanID(pcommon.SpanID(r.Parent))
	span.SetName(name)
	span.SetKind(ptrace.SpanKindInternal)
	span.SetStartTimestamp(timestamp(startNs))
	span.SetEndTimestamp(timestamp(max(startNs, endNs)))
}

// link links a span to another one, if there is one.
func link(span ptrace.Span, to *Ref) {
	if to.Trace == (TraceID{}) {
		return
	}
	l := span.Links().AppendEmpty()
	l.SetTraceID(pcommon.TraceID(to.Trace))
	l.SetSpanID(pcommon.SpanID(to.Span))
}

// copyName returns the span's name for a kind of copy. The usual ones are spelled out: a name made
// for each copy would be garbage for each copy.
func copyName(kind string) string {
	switch kind {
	case "":
		return nameCopy
	case "HtoD":
		return nameCopy + " HtoD"
	case "DtoH":
		return nameCopy + " DtoH"
	case "DtoD":
		return nameCopy + " DtoD"
	case "HtoH":
		return nameCopy + " HtoH"
	case "PtoP":
		return nameCopy + " PtoP"
	default:
		return nameCopy + " " + kind
	}
}

func (k SyncKind) spanName() string {
	switch k {
	case SyncEvent:
		return nameSyncEvent
	case SyncStreamWaitEvent:
		return nameSyncStreamWait
	case SyncStream:
		return nameSyncStream
	case SyncContext:
		return nameSyncContext
	default:
		return nameSync
	}
}

func orElse(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}
