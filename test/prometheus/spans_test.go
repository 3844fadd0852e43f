// SPDX-License-Identifier: Apache-2.0

//go:build linux

package prometheus_test

import (
	"encoding/binary"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

// Two services run on two devices. A wave is 10 ms of them. Times are in ms after its start:
//
//	GPU-a  train  stream 1   gemm [0,4)   copy HtoD [6,7), 8 MiB   reduce [8,9)     scope "step"
//	GPU-a  infer  stream 1   decode [2,6)                                           request "POST /generate"
//	GPU-b  infer  stream 1   decode [0,3)
//	GPU-b  infer  stream 2   decode [1,4)      the host waits [3.5,5)
//
// The second wave begins 10 ms after the first. GPU-a is an H200 at 3.60 an hour: 1 ms costs 1 µ
// of the currency. GPU-b is an L4 at 0.72 an hour: 1 ms costs 0.2 µ. Both waves together result in:
//
//	busy       GPU-a [0,6)+[8,9) = 7 ms a wave: 14 ms      GPU-b [0,4): 8 ms
//	time       train kernels 4+1, copies 1: 10 and 2 ms    infer GPU-a 4: 8 ms, GPU-b 3+3: 12 ms
//	cost       GPU-a: train [0,2) + half of [2,4) + [6,7) + [8,9) = 5 ms, infer half of [2,4) + [4,6) = 3 ms,
//	           idle [7,8) = 1 ms; between the waves idle [9,10): train 10, infer 6, idle 3, in all [0,19)
//	           GPU-b: infer [0,4), between the waves idle [4,10): infer 8, idle 6, in all [0,14)
//	gaps       train stream 1: [4,8) after the copy that ends at 7, twice; [9,10) after nothing (host)
//	           infer on GPU-a: [6,12) after nothing (host)
//	           infer on GPU-b: streams 1 and 2 [3,10) and [4,11) after the wait that ends at 5 (sync)
const (
	waveLength = 10 * time.Millisecond

	hostName = "node-1"
	train    = "train"
	infer    = "infer"
	scope    = "step"
	request  = "POST /generate"
	gpuA     = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	gpuB     = "GPU-bbbbbbbb-0000-0000-0000-000000000000"

	// queueDelay is the same for every kernel.
	queueDelay = 20e-6
	copyBytes  = 8 << 20
)

// settings are the overlay with short intervals.
const settings = `
connectors:
  gpu_usage:
    metrics_flush_interval: 1s
    settle_after: 1s
    scope_wait: 1s
    cost:
      currency: EUR
      prices:
        - {device: "NVIDIA H200*", price_per_hour: 3.60}
        - {device: "NVIDIA L4", price_per_hour: 0.72}
`

// waves creates the spans of waves; the first begins at start.
type waves struct {
	start time.Time
	// spans is the number of spans so far, from which ids are derived.
	spans uint64
}

// wave returns the spans of wave n.
func (w *waves) wave(n int) ptrace.Traces {
	from := w.start.Add(time.Duration(n) * waveLength)
	td := ptrace.NewTraces()

	spans := processSpans(td, train, 100)
	trace := w.traceID()
	step := w.group(spans, trace, scope, ptrace.SpanKindInternal, from, 10)
	step.Attributes().PutStr(semconv.CUDAOperation, semconv.CUDAOperationScope)
	w.kernel(spans, step, "gemm", gpuA, 1, from, 0, 4)
	transfer := w.work(spans, step, "memcpy HtoD", semconv.CUDAOperationMemcpy, gpuA, 1, from, 6, 7)
	transfer.Attributes().PutStr(semconv.CUDAMemcpyKind, "HtoD")
	transfer.Attributes().PutInt(semconv.CUDAMemcpySize, copyBytes)
	w.kernel(spans, step, "reduce", gpuA, 1, from, 8, 9)

	spans = processSpans(td, infer, 200)
	root := w.group(spans, w.traceID(), request, ptrace.SpanKindServer, from, 12)
	w.kernel(spans, root, "decode", gpuA, 1, from, 2, 6)
	w.kernel(spans, root, "decode", gpuB, 1, from, 0, 3)
	w.kernel(spans, root, "decode", gpuB, 2, from, 1, 4)
	w.work(spans, root, "cudaStreamSynchronize", semconv.CUDAOperationSynchronize, gpuB, 1, from, 3.5, 5)
	return td
}

// processSpans adds the resource of one process.
func processSpans(td ptrace.Traces, service string, pid int64) ptrace.SpanSlice {
	rs := td.ResourceSpans().AppendEmpty()
	r := rs.Resource().Attributes()
	r.PutStr(semconv.ServiceName, service)
	r.PutStr(semconv.ServiceInstanceID, "session of "+service)
	r.PutStr(semconv.HostName, hostName)
	r.PutInt(semconv.ProcessPID, pid)
	return rs.ScopeSpans().AppendEmpty().Spans()
}

func (w *waves) traceID() (id pcommon.TraceID) {
	binary.BigEndian.PutUint64(id[:], 1)
	binary.BigEndian.PutUint64(id[8:], w.spans+1)
	return id
}

func (w *waves) span(spans ptrace.SpanSlice, trace pcommon.TraceID, name string, from time.Time, startMs, endMs float64) ptrace.Span {
	w.spans++
	var id pcommon.SpanID
	binary.BigEndian.PutUint64(id[:], w.spans)
	sp := spans.AppendEmpty()
	sp.SetTraceID(trace)
	sp.SetSpanID(id)
	sp.SetName(name)
	sp.SetKind(ptrace.SpanKindInternal)
	sp.SetStartTimestamp(pcommon.NewTimestampFromTime(from.Add(time.Duration(startMs * 1e6))))
	sp.SetEndTimestamp(pcommon.NewTimestampFromTime(from.Add(time.Duration(endMs * 1e6))))
	return sp
}

func (w *waves) group(spans ptrace.SpanSlice, trace pcommon.TraceID, name string, kind ptrace.SpanKind, from time.Time, lengthMs float64) ptrace.Span {
	sp := w.span(spans, trace, name, from, 0, lengthMs)
	sp.SetKind(kind)
	return sp
}

func (w *waves) work(spans ptrace.SpanSlice, parent ptrace.Span, name, operation, device string, stream int64, from time.Time, startMs, endMs float64) ptrace.Span {
	trace, parentID := parent.TraceID(), parent.SpanID()
	sp := w.span(spans, trace, name, from, startMs, endMs)
	sp.SetParentSpanID(parentID)
	a := sp.Attributes()
	a.PutStr(semconv.CUDAOperation, operation)
	a.PutStr(semconv.HWID, device)
	model := "NVIDIA H200"
	if device == gpuB {
		model = "NVIDIA L4"
	}
	a.PutStr(semconv.HWName, model)
	a.PutInt(semconv.CUDAContextID, 1)
	a.PutInt(semconv.CUDAStreamID, stream)
	return sp
}

func (w *waves) kernel(spans ptrace.SpanSlice, parent ptrace.Span, name, device string, stream int64, from time.Time, startMs, endMs float64) {
	a := w.work(spans, parent, name, semconv.CUDAOperationKernel, device, stream, from, startMs, endMs).Attributes()
	a.PutStr(semconv.CUDAKernelName, name)
	a.PutDouble(semconv.CUDAQueueDuration, queueDelay)
}
