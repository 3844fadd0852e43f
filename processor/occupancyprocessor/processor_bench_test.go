// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/occupancy"
	"github.com/gpuflight/gpuflight/semconv"
)

// benchSpans is the size of a batch as the log receiver makes them.
const benchSpans = 8192

// benchBatch returns kernels of 60 shapes and every eighth span a copy, with the attributes that the
// log receiver writes, in its order: 18 on a kernel.
func benchBatch() ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr(semconv.CUDADeviceComputeCapability, "9.0")
	rs.Resource().Attributes().PutInt(semconv.CUDADeviceSMCount, 132)
	rs.Resource().Attributes().PutStr(semconv.HWName, "NVIDIA H200")
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	spans.EnsureCapacity(benchSpans)
	stack := strings.Repeat("at::native::vectorized_elementwise_kernel(at::TensorIterator&)\n", 16)
	for i := range benchSpans {
		span := spans.AppendEmpty()
		span.SetStartTimestamp(pcommon.Timestamp(1_000_000 * i))
		span.SetEndTimestamp(span.StartTimestamp() + 4000)
		a := span.Attributes()
		a.EnsureCapacity(18)
		if i%8 == 7 {
			a.PutStr(semconv.CUDAOperation, semconv.CUDAOperationMemcpy)
			a.PutStr(semconv.CUDAMemcpyKind, "HtoD")
			a.PutInt(semconv.CUDAMemcpySize, 65536)
			a.PutStr(semconv.CUDAMemcpySourceKind, semconv.CUDAMemcpySourceKindPinned)
			a.PutStr(semconv.CUDAMemcpyDestinationKind, semconv.CUDAMemcpySourceKindDevice)
		} else {
			shape := int64(i % 60)
			a.PutStr(semconv.CUDAOperation, semconv.CUDAOperationKernel)
			a.PutStr(semconv.CUDAKernelName, fmt.Sprintf("void kernel_%d<float, 4>(float*, int)", shape))
			for key, x := range map[string]int64{semconv.CUDAKernelGrid: 100 + 10*shape, semconv.CUDAKernelBlock: 64 + 16*shape} {
				list := a.PutEmptySlice(key)
				list.EnsureCapacity(3)
				list.AppendEmpty().SetInt(x)
				list.AppendEmpty().SetInt(1)
				list.AppendEmpty().SetInt(1)
			}
			a.PutInt(semconv.CUDAKernelRegistersPerThread, 16+shape)
			a.PutInt(semconv.CUDAKernelSharedMemoryStatic, 0)
			a.PutInt(semconv.CUDAKernelSharedMemoryDynamic, 64*shape)
			a.PutInt(semconv.CUDAKernelSharedMemoryExecuted, 65536)
			a.PutInt(semconv.CUDAKernelLocalMemoryPerThread, 0)
		}
		a.PutInt(semconv.CUDAStreamID, 7)
		a.PutInt(semconv.CUDAContextID, 1)
		a.PutInt(semconv.CUDACorrelationID, int64(i))
		a.PutInt(semconv.CUDALaunchStartTimeUnixNano, int64(i))
		a.PutInt(semconv.CUDALaunchEndTimeUnixNano, int64(i+1))
		a.PutDouble(semconv.CUDAQueueDuration, 1e-6)
		a.PutStr(semconv.HWID, "GPU-5ac55372-3fb3-4ce0-3c8e-8c784e69ff20")
		a.PutInt(semconv.CUDADeviceIndex, 0)
		a.PutStr(semconv.CodeStacktrace, stack)
	}
	return td
}

// BenchmarkConsume reports the time and allocations of one span of a batch. The batches are those of
// the log receiver, whose attributes have no spare capacity; those of OTLP, where decoding leaves spare
// capacity; and those annotated by another processor. Building a batch is not measured. It has left the
// CPU caches when it is read, as in a pipeline.
//
// "only writing" puts the same precomputed attributes into the same spans. The difference from "from
// the log receiver" is the cost of the processor itself.
func BenchmarkConsume(b *testing.B) {
	full := benchBatch()
	wire, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(full)
	require.NoError(b, err)
	p, err := newProcessor(&Config{}, componenttest.NewNopTelemetrySettings())
	require.NoError(b, err)
	work := func(td ptrace.Traces) {
		_, err := p.process(context.Background(), td)
		require.NoError(b, err)
	}
	fromReceiver := func() ptrace.Traces {
		td := ptrace.NewTraces()
		full.CopyTo(td)
		return td
	}
	for _, c := range []struct {
		name string
		make func() ptrace.Traces
		work func(ptrace.Traces)
	}{
		{"from the log receiver", fromReceiver, work},
		{"over OTLP", func() ptrace.Traces {
			td, err := (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(wire)
			require.NoError(b, err)
			return td
		}, work},
		{"annotated before", func() ptrace.Traces {
			td := fromReceiver()
			work(td)
			return td
		}, work},
		{"only writing", fromReceiver, p.onlyWrite},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				td := c.make()
				b.StartTimer()
				c.work(td)
				b.StopTimer()
				last := td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(benchSpans - 2).Attributes()
				_, ok := last.Get(semconv.CUDAOccupancyGridFill)
				require.True(b, ok)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchSpans, "ns/span")
		})
	}
}

func (p *occupancyProcessor) onlyWrite(td ptrace.Traces) {
	for i, span := range td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().All() {
		a := span.Attributes()
		if i%8 == 7 {
			a.EnsureCapacity(a.Len() + 2)
			a.PutDouble(semconv.CUDAMemcpyThroughput, 1e9)
			a.PutDouble(semconv.CUDAMemcpyLinkUtilization, 0.5)
			continue
		}
		a.EnsureCapacity(a.Len() + 6)
		a.PutDouble(semconv.CUDAOccupancyTheoretical, 1)
		p.limiters[occupancy.Warps].CopyTo(a.PutEmpty(semconv.CUDAOccupancyLimiter))
		a.PutInt(semconv.CUDAOccupancyActiveBlocksPerSM, 8)
		a.PutInt(semconv.CUDAOccupancyActiveWarpsPerSM, 64)
		a.PutDouble(semconv.CUDAOccupancyWaves, 0.5)
		a.PutDouble(semconv.CUDAOccupancyGridFill, 0.5)
	}
}
