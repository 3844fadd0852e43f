// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/golden"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/pmetrictest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// example is the worked example of docs/usage.md, an hour before the tests' present, so that it is
// replayed and idle time ends with the last work. Seconds of device GPU-1:
//
//	llm  attention  [0, 4)   stream 7, queued for 0.5 s   in scope forward of POST /generate
//	llm  gemm       [3, 5)   stream 8                     in scope forward of POST /generate
//	rag  embed      [4, 8)   stream 7 of another process, in no scope
//	rag  memcpy     [8, 10)  stream 7 of that process, 1 MiB
//	rag  embed      [12, 13) stream 7 of that process
func example() ptrace.Traces {
	at := func(seconds float64) int64 { return testEpoch - int64(time.Hour) + int64(seconds*1e9) }
	llm := testSpan{service: "llm", instance: "a", host: "node-1", device: "GPU-1", model: "NVIDIA H200", trace: 1, parent: 2}
	rag := testSpan{service: "rag", instance: "b", host: "node-1", device: "GPU-1", model: "NVIDIA H200", trace: 2, stream: 8}
	span := func(s testSpan, op, name string, id uint64, start, end float64) testSpan {
		s.op, s.name, s.id, s.start, s.end = op, name, id, at(start), at(end)
		return s
	}
	attention := span(llm, semconv.CUDAOperationKernel, "attention", 3, 0, 4)
	attention.stream, attention.queue = 8, 500_000_001
	gemm := span(llm, semconv.CUDAOperationKernel, "gemm", 4, 3, 5)
	gemm.stream = 9
	request := testSpan{service: "llm", instance: "a", host: "node-1", trace: 1, id: 1, name: "POST /generate", kind: ptrace.SpanKindServer, start: at(-1), end: at(6)}
	scope := testSpan{service: "llm", instance: "a", host: "node-1", trace: 1, id: 2, parent: 1, op: semconv.CUDAOperationScope, name: "forward", start: at(-0.5), end: at(5.5)}
	memcpy := span(rag, semconv.CUDAOperationMemcpy, "HtoD", 6, 8, 10)
	memcpy.bytes = 1<<20 + 1
	return traces(
		attention, gemm, scope, request,
		span(rag, semconv.CUDAOperationKernel, "embed", 7, 12, 13),
		span(rag, semconv.CUDAOperationKernel, "embed", 5, 4, 8),
		memcpy,
	)
}

// perSecond makes a device cost 0.001 a second.
func perSecond(c *Config) {
	c.Cost = CostConfig{Currency: "USD", Prices: []PriceConfig{{Device: "NVIDIA H200", PricePerHour: 3.6}}}
}

func TestWorkedExample(t *testing.T) {
	r := newRig(t, testConfig(perSecond), nil)
	r.send(example())
	r.send(example()) // again, as after a retry
	r.clock.advance(time.Minute)
	md := r.flush()
	got := points(t, md)
	device := "map[hw.id:GPU-1 hw.name:NVIDIA H200"
	host, llm, rag := "map[host.name:node-1]", "map[host.name:node-1 service.name:llm]", "map[host.name:node-1 service.name:rag]"
	near := func(metric, resource, point string, want float64) {
		t.Helper()
		series := resource + point
		require.Contains(t, got[metric], series)
		assert.InDelta(t, want, got[metric][series], 1e-12)
	}
	// [0, 8) and [12, 13); seconds 13 are accounted for.
	near(semconv.MetricGPUCUDABusyTime, host, device+"]", 9)
	near(semconv.MetricGPUCUDAObservedTime, host, device+"]", 13)
	// 4 + 2, 4 + 1 and 2 device seconds.
	near(semconv.MetricGPUCUDATime, llm, "map[cuda.operation:kernel cuda.scope.name:forward hw.id:GPU-1 hw.name:NVIDIA H200]", 6)
	near(semconv.MetricGPUCUDATime, rag, "map[cuda.operation:kernel hw.id:GPU-1 hw.name:NVIDIA H200]", 5)
	near(semconv.MetricGPUCUDATime, rag, "map[cuda.operation:memcpy hw.id:GPU-1 hw.name:NVIDIA H200]", 2)
	near(semconv.MetricGPUCUDAKernelLaunchCalls, llm, "map[cuda.scope.name:forward hw.id:GPU-1 hw.name:NVIDIA H200]", 2)
	near(semconv.MetricGPUCUDAKernelLaunchCalls, rag, device+"]", 2)
	// attention has [0, 3) alone and half of [3, 4), gemm half of [3, 4) and of [4, 5): 4.5 s.
	near(semconv.MetricGPUCUDACost, llm, "map[cuda.cost.currency:USD cuda.request.operation:POST /generate cuda.scope.name:forward hw.id:GPU-1 hw.name:NVIDIA H200]", 0.0045)
	// embed has half of [4, 5), [5, 8) and [12, 13), the copy [8, 10): 6.5 s.
	near(semconv.MetricGPUCUDACost, rag, "map[cuda.cost.currency:USD hw.id:GPU-1 hw.name:NVIDIA H200]", 0.0065)
	// Nothing ran in [10, 12). 4.5 + 6.5 + 2 = 13.
	near(semconv.MetricGPUCUDACost, "map[host.name:node-1 service.name:_idle]", "map[cuda.cost.currency:USD hw.id:GPU-1 hw.name:NVIDIA H200]", 0.002)
	// Stream 7 of rag had no kernel in [8, 12), and a copy of it ended in between.
	near(semconv.MetricGPUCUDAStreamGapDuration, rag, "map[cuda.gap.after:copy hw.id:GPU-1 hw.name:NVIDIA H200]", 4)
	near(semconv.MetricGPUCUDAQueueDuration, llm, "map[cuda.operation:kernel hw.id:GPU-1 hw.name:NVIDIA H200]", 0.5)
	near(semconv.MetricGPUCUDAMemoryCopies, rag, "map[cuda.memcpy.kind:HtoD hw.id:GPU-1 hw.name:NVIDIA H200]", 1<<20)
	near(semconv.MetricGPUCUDAKernelDuration, rag, "map[cuda.kernel.name:embed hw.id:GPU-1 hw.name:NVIDIA H200]", 5)
	near(semconv.MetricGPUCUDAKernelDuration, llm, "map[cuda.kernel.name:gemm hw.id:GPU-1 hw.name:NVIDIA H200]", 2)
	for metric, n := range map[string]int{
		semconv.MetricGPUCUDABusyTime: 1, semconv.MetricGPUCUDAObservedTime: 1, semconv.MetricGPUCUDATime: 3, semconv.MetricGPUCUDAKernelLaunchCalls: 2,
		semconv.MetricGPUCUDAGraphLaunchCalls: 0, semconv.MetricGPUCUDACost: 3, semconv.MetricGPUCUDAStreamGapDuration: 1,
		semconv.MetricGPUCUDAQueueDuration: 1, semconv.MetricGPUCUDAMemoryCopies: 1, semconv.MetricGPUCUDAKernelDuration: 3,
	} {
		assert.Len(t, got[metric], n, metric)
	}
	r.shutdown()
}

// training is three steps.
func training() ptrace.Traces {
	var all []testSpan
	for n := range 3 {
		step, layer, kernels := trainingStep(n)
		all = append(append(all, step, layer), kernels...)
	}
	return traces(all...)
}

// The whole export of the worked example and of a training, with units, kinds, buckets, exemplars and
// timestamps.
func TestGolden(t *testing.T) {
	for _, name := range []string{"example_exponential", "example_explicit", "training_exponential"} {
		t.Run(name, func(t *testing.T) {
			of, kind, _ := strings.Cut(name, "_")
			input := filepath.Join("testdata", of+"_traces.yaml")
			want := filepath.Join("testdata", name+"_metrics.yaml")
			if *update {
				spans := map[string]func() ptrace.Traces{"example": example, "training": training}[of]
				require.NoError(t, golden.WriteTracesToFile(input, spans()))
			}
			td, err := golden.ReadTraces(input)
			require.NoError(t, err)
			r := newRig(t, testConfig(perSecond, func(c *Config) { c.Histograms.Kind = kind }), nil)
			r.send(td)
			r.clock.advance(time.Minute)
			md := r.flush()
			r.shutdown()
			if *update {
				require.NoError(t, golden.WriteMetricsToFile(want, md, golden.SkipMetricTimestampNormalization()))
			}
			expected, err := golden.ReadMetrics(want)
			require.NoError(t, err)
			require.NoError(t, pmetrictest.CompareMetrics(expected, md))
		})
	}
}
