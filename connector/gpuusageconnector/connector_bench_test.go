// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/connector/spanmetricsconnector"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

const benchSpans = 8192

// benchTraces are spans as the project's own sources write them: 20 attributes, 50 kernels of long
// names, one scope for each 64 kernels, a copy for each 16.
func benchTraces() ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	a := rs.Resource().Attributes()
	a.PutStr(semconv.ServiceName, "llm")
	a.PutStr(semconv.ServiceInstanceID, "6d1e2b1c-6f5d-4ae0-9d55-93a1a5b5a001")
	a.PutStr(semconv.HostName, "node-17")
	a.PutInt(semconv.ProcessPID, 4711)
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	spans.EnsureCapacity(benchSpans)
	var scope pcommon.SpanID
	for i := range benchSpans {
		s := spans.AppendEmpty()
		s.SetTraceID(traceID(uint64(i/1024 + 1)))
		s.SetSpanID(spanID(uint64(i + 1)))
		a := s.Attributes()
		if i%64 == 0 {
			scope = s.SpanID()
			s.SetName("forward")
			a.PutStr(semconv.CUDAOperation, semconv.CUDAOperationScope)
			continue
		}
		s.SetParentSpanID(scope)
		if i%16 == 8 {
			s.SetName("memcpy HtoD")
			a.PutStr(semconv.CUDAOperation, semconv.CUDAOperationMemcpy)
			a.PutStr(semconv.CUDAMemcpyKind, "HtoD")
			a.PutInt(semconv.CUDAMemcpySize, int64(i)*1000)
		} else {
			s.SetName("vectorized_elementwise_kernel")
			a.PutStr(semconv.CUDAOperation, semconv.CUDAOperationKernel)
			a.PutStr(semconv.CUDAKernelName, fmt.Sprintf("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, %d>>(int, float, std::array<char*, 3>)", i%50))
			for key, x := range map[string]int64{semconv.CUDAKernelGrid: int64(i), semconv.CUDAKernelBlock: 256} {
				triple := a.PutEmptySlice(key)
				for _, v := range []int64{x, 1, 1} {
					triple.AppendEmpty().SetInt(v)
				}
			}
			a.PutInt(semconv.CUDAKernelRegistersPerThread, 32)
			a.PutInt(semconv.CUDAKernelSharedMemoryStatic, 1024)
			a.PutStr(semconv.CUDADeviceComputeCapability, "9.0")
			a.PutInt(semconv.CUDADeviceSMCount, 132)
		}
		a.PutInt(semconv.CUDAStreamID, 7)
		a.PutInt(semconv.CUDAContextID, 1)
		a.PutInt(semconv.CUDACorrelationID, int64(i))
		a.PutInt(semconv.CUDALaunchStartTimeUnixNano, testEpoch)
		a.PutInt(semconv.CUDALaunchEndTimeUnixNano, testEpoch)
		a.PutDouble(semconv.CUDAQueueDuration, float64(i%977)*1e-7)
		a.PutStr(semconv.HWID, "GPU-3f0a7a5e-5a43-6c4e-1b0c-7b9b0f8a1d11")
		a.PutInt(semconv.CUDADeviceIndex, 0)
		a.PutStr(semconv.HWName, "NVIDIA H200")
		a.PutStr(semconv.HWVendor, "NVIDIA")
		a.PutStr(semconv.HWType, semconv.HWTypeGPU)
	}
	return td
}

// renew gives the spans new ids and times, so that they are other spans.
func renew(td ptrace.Traces, round int64) {
	at := testEpoch + round*benchSpans*12_000
	spans := td.ResourceSpans().At(0).ScopeSpans().At(0).Spans()
	var scope pcommon.SpanID
	for i := range spans.Len() {
		s := spans.At(i)
		id := s.SpanID()
		binary.BigEndian.PutUint32(id[:], uint32(round))
		s.SetSpanID(id)
		if s.ParentSpanID().IsEmpty() {
			scope = id
		} else {
			s.SetParentSpanID(scope)
		}
		start := at + int64(i)*12_000
		s.SetStartTimestamp(pcommon.Timestamp(start))
		s.SetEndTimestamp(pcommon.Timestamp(start + 5000 + int64(i%37)*100))
	}
}

func BenchmarkConsumeTraces(b *testing.B) {
	for _, withStorage := range []bool{false, true} {
		b.Run(map[bool]string{false: "memory", true: "storage"}[withStorage], func(b *testing.B) {
			var st *memoryStorage
			if withStorage {
				st = newMemoryStorage()
			}
			cfg := testConfig(func(c *Config) {
				c.Cost = CostConfig{Currency: "USD", Prices: []PriceConfig{{PricePerHour: 4}}}
			})
			r := newRig(b, cfg, st)
			td := benchTraces()
			b.ReportAllocs()
			round := int64(0)
			for b.Loop() {
				b.StopTimer()
				renew(td, round)
				r.clock.advance(benchSpans * 12 * time.Microsecond)
				round++
				b.StartTimer()
				r.send(td)
				if round%100 == 0 { // about 10 s
					r.flush()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(round*benchSpans), "ns/span")
			got := points(b, r.finish())
			require.InDelta(b, float64(round*(benchSpans-benchSpans/64-benchSpans/16)), total(got[semconv.MetricGPUCUDAKernelLaunchCalls]), 0)
			r.shutdown()
		})
	}
}

// BenchmarkSpanMetrics is the connector that the Collector has for spans of any kind, asked for as
// much as it can say of these: a histogram by kernel name and operation.
func BenchmarkSpanMetrics(b *testing.B) {
	f := spanmetricsconnector.NewFactory()
	cfg := f.CreateDefaultConfig().(*spanmetricsconnector.Config)
	cfg.Dimensions = []spanmetricsconnector.Dimension{
		{Name: semconv.CUDAKernelName}, {Name: semconv.CUDAOperation}, {Name: semconv.HWID},
	}
	cfg.MetricsFlushInterval = time.Hour
	sink := &consumertest.MetricsSink{}
	c, err := f.CreateTracesToMetrics(b.Context(), connectortest.NewNopSettings(f.Type()), cfg, sink)
	require.NoError(b, err)
	require.NoError(b, c.Start(b.Context(), componenttest.NewNopHost()))
	td := benchTraces()
	b.ReportAllocs()
	round := int64(0)
	for b.Loop() {
		b.StopTimer()
		renew(td, round)
		round++
		b.StartTimer()
		require.NoError(b, c.ConsumeTraces(b.Context(), td))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(round*benchSpans), "ns/span")
	require.NoError(b, c.Shutdown(context.Background()))
}
