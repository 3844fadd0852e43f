// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/fair"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/identity"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
	"github.com/gpuflight/gpuflight/semconv"
)

// notReady is the result of a query about unfinished work (CUDA_ERROR_NOT_READY). It is not an
// error.
const notReady = 600

// Flags of a span, in addition to those of its trace: its parent is known to be remote, and is
// remote.
const (
	flagsSampled     = 0x01
	flagsRemoteKnown = 0x100
	flagsRemote      = 0x200
)

// maxKernelNames bounds the cached demangled names.
const maxKernelNames = 8192

// window converts the calls of one window to spans. Times are those of the host: entry and return
// of the driver's function. The kind is CLIENT, and cuda.api.name is the function. If a process has
// TRACEPARENT, its calls are children of that span. Otherwise they have a root span in a trace of
// their own, which is created at the end.
type window struct {
	cfg *Config
	who *describer
	// start is its begin in ns since 1970. number counts the receiver's windows from 1.
	start, number int64

	mu        sync.Mutex
	processes map[probe.ProcessID]*tracedProcess
	shares    *fair.Table[probe.ProcessID]
	dropped   int64 // calls of processes past max_processes

	// Only the goroutine that creates spans uses the following fields.
	names map[string]*gpuevent.KernelName
}

// tracedProcess is a process in a window.
type tracedProcess struct {
	excluded, over bool
	resource       pcommon.Resource
	name           string
	trace          pcommon.TraceID
	parent         pcommon.SpanID
	// root means that parent is our own span and is not sent yet. flags are those of the other
	// spans.
	root  bool
	flags uint32
	calls int
}

func newWindow(cfg *Config, who *describer, start, number int64) *window {
	return &window{
		cfg: cfg, who: who, start: start, number: number,
		processes: map[probe.ProcessID]*tracedProcess{}, shares: fair.New[probe.ProcessID](processesFactor * cfg.MaxProcesses), names: map[string]*gpuevent.KernelName{},
	}
}

// selects returns to the probe whether a process is traced. It reads the process while it most
// likely still runs.
func (w *window) selects(id probe.ProcessID, user uint32, known probe.Identity) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.process(id, user, known).excluded
}

func (w *window) process(id probe.ProcessID, user uint32, known probe.Identity) *tracedProcess {
	if p := w.processes[id]; p != nil {
		return p
	}
	if !w.shares.Take(user, id) {
		return &tracedProcess{over: true} // its calls are counted as they come
	}
	who, _ := w.who.reader.Process(id.PID, id.Start, identity.Known(known))
	p := &tracedProcess{excluded: !w.cfg.selects(&who)}
	w.processes[id] = p
	if p.excluded {
		return p
	}
	p.resource = w.who.resource(id, &who)
	p.name = processName(&who)
	if parent := remoteParent(who.TraceParent); parent.IsValid() {
		p.trace, p.parent = pcommon.TraceID(parent.TraceID()), pcommon.SpanID(parent.SpanID())
		p.flags = uint32(parent.TraceFlags()) | flagsRemoteKnown | flagsRemote
		return p
	}
	p.trace, p.parent, p.root, p.flags = newTraceID(), newSpanID(), true, flagsSampled|flagsRemoteKnown
	return p
}

// processName is the name of a process's root span.
func processName(who *identity.Process) string {
	switch {
	case who.ServiceName != "":
		return who.ServiceName
	case who.Executable != "":
		return who.Executable
	}
	return "unknown"
}

// remoteParent parses a TRACEPARENT. According to the standard, a malformed one is ignored.
func remoteParent(text string) trace.SpanContext {
	carrier := propagation.MapCarrier{"traceparent": text}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// Ids are random, not derived: no other reader sees the same call.
func newTraceID() (id pcommon.TraceID) {
	binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64()|1) // never all zeros
	return id
}

func newSpanID() (id pcommon.SpanID) {
	binary.LittleEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}

// spans converts calls to spans, in the order of each process. It returns the number of spans. The
// other calls were of processes above max_processes.
func (w *window) spans(calls []probe.Call) (ptrace.Traces, int) {
	td := ptrace.NewTraces()
	n := 0
	to := map[*tracedProcess]ptrace.SpanSlice{}
	for i := range calls {
		c := &calls[i]
		w.mu.Lock()
		p := w.process(c.Process, c.User, probe.Identity{}) // selects has admitted it
		if p.over {
			w.dropped++
		}
		w.mu.Unlock()
		if p.over || p.excluded {
			continue
		}
		spans, ok := to[p]
		if !ok {
			spans = p.spans(td)
			to[p] = spans
		}
		p.calls++
		n++
		w.span(spans.AppendEmpty(), p, c)
	}
	return td, n
}

func (p *tracedProcess) spans(td ptrace.Traces) ptrace.SpanSlice {
	rs := td.ResourceSpans().AppendEmpty()
	rs.SetSchemaUrl(semconv.SchemaURL)
	p.resource.CopyTo(rs.Resource())
	ss := rs.ScopeSpans().AppendEmpty()
	ss.SetSchemaUrl(semconv.SchemaURL)
	ss.Scope().SetName(semconv.ScopeName)
	return ss.Spans()
}

func (w *window) span(s ptrace.Span, p *tracedProcess, c *probe.Call) {
	s.SetTraceID(p.trace)
	s.SetSpanID(newSpanID())
	s.SetParentSpanID(p.parent)
	s.SetFlags(p.flags)
	s.SetKind(ptrace.SpanKindClient)
	s.SetStartTimestamp(pcommon.Timestamp(c.Start))
	s.SetEndTimestamp(pcommon.Timestamp(c.End))
	s.SetName(c.Function)
	a := s.Attributes()
	a.PutStr(semconv.CUDAAPIName, c.Function)
	switch c.Kind {
	case probe.CallLaunch:
		w.launch(s, c)
	case probe.CallCopy:
		putKnown(a, semconv.CUDAMemcpyKind, c.CopyKind)
		a.PutBool(semconv.CUDAMemcpyAsync, c.Async)
		putBytes(a, semconv.CUDAMemcpySize, c)
	case probe.CallSet:
		putBytes(a, semconv.CUDAMemsetSize, c)
	case probe.CallAlloc, probe.CallFree:
		putKnown(a, semconv.CUDAMemoryKind, c.MemoryKind)
		putBytes(a, semconv.CUDAMemorySize, c)
		if c.HasAddress {
			a.PutInt(semconv.CUDAMemoryAddress, int64(c.Address))
		}
	}
	if c.HasStream {
		a.PutInt(semconv.CUDAStreamID, int64(c.Stream))
	}
	if c.Code != 0 && c.Code != notReady {
		kind := errorName(c.Function, c.Code)
		a.PutStr(semconv.ErrorType, kind)
		s.Status().SetCode(ptrace.StatusCodeError)
		s.Status().SetMessage(c.Function + ": " + kind)
	}
}

// launch writes the launch configuration of a kernel. A kernel that was loaded before the receiver
// started has no name.
func (w *window) launch(s ptrace.Span, c *probe.Call) {
	a := s.Attributes()
	if c.Kernel != "" {
		name := w.names[c.Kernel]
		if name == nil {
			if len(w.names) >= maxKernelNames {
				clear(w.names)
			}
			name = gpuevent.NewKernelName(c.Kernel)
			w.names[c.Kernel] = name
		}
		s.SetName(c.Function + " " + name.Short)
		a.PutStr(semconv.CUDAKernelName, name.Full)
		putKnown(a, semconv.CUDAKernelSymbol, name.Symbol)
	}
	for _, v := range []struct {
		key  string
		size [3]uint32
	}{{semconv.CUDAKernelGrid, c.Grid}, {semconv.CUDAKernelBlock, c.Block}} {
		if v.size == [3]uint32{} {
			continue // its structure is unreadable
		}
		three := a.PutEmptySlice(v.key)
		three.EnsureCapacity(3)
		for _, n := range v.size {
			three.AppendEmpty().SetInt(int64(n))
		}
	}
	a.PutInt(semconv.CUDAKernelSharedMemoryDynamic, int64(c.SharedBytes))
}

func putBytes(a pcommon.Map, key string, c *probe.Call) {
	if c.HasBytes {
		a.PutInt(key, int64(c.Bytes))
	}
}

// roots creates the root spans of processes without a remote parent, once, when the window ends.
func (w *window) roots(end int64) (ptrace.Traces, int) {
	td := ptrace.NewTraces()
	n := 0
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.processes {
		if !p.root || p.calls == 0 {
			continue
		}
		n++
		s := p.spans(td).AppendEmpty()
		s.SetTraceID(p.trace)
		s.SetSpanID(p.parent)
		s.SetFlags(p.flags)
		s.SetKind(ptrace.SpanKindInternal)
		s.SetName(p.name)
		s.SetStartTimestamp(pcommon.Timestamp(w.start))
		s.SetEndTimestamp(pcommon.Timestamp(end))
		s.Attributes().PutStr(semconv.CUDAOperation, semconv.CUDAOperationSession)
		s.Attributes().PutInt(semconv.CUDASessionWindow, w.number)
	}
	return td, n
}

// left returns the number of calls of processes above max_processes.
func (w *window) left() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}
