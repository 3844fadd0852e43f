// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/internal/numbered"
	"github.com/gpuflight/gpuflight/semconv"
)

// trainingStep returns the span of a step, that of a layer in it, and three kernels of 1 ms. One is in the
// step, one in the layer, and one has the name of the step.
func trainingStep(n int) (step, layer testSpan, kernels []testSpan) {
	id := uint64(10*n) + 1
	at := testEpoch - int64(time.Hour) + int64(n)*int64(10*time.Millisecond)
	span := testSpan{service: "train", instance: "i", host: "h", trace: uint64(n) + 1, start: at, end: at + int64(9*time.Millisecond)}
	step, layer = span, span
	step.name, step.id = fmt.Sprint("step ", n), id
	layer.op, layer.name, layer.id, layer.parent = semconv.CUDAOperationScope, fmt.Sprint("transformer.h.", n%2), id+1, id
	for i := range int64(3) {
		k := span
		k.device, k.model, k.op, k.name, k.stream = "GPU-1", "NVIDIA H200", semconv.CUDAOperationKernel, "gemm", 1
		k.id, k.parent, k.start = id+2+uint64(i), id+uint64(i%2), at+i*int64(2*time.Millisecond)
		k.end = k.start + int64(time.Millisecond)
		kernels = append(kernels, k)
	}
	kernels[2].scope = step.name
	return step, layer, kernels
}

// starts are the starts of the points of an export.
func starts(md pmetric.Metrics) map[string]int64 {
	out := map[string]int64{}
	for _, rm := range md.ResourceMetrics().All() {
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			if m.Type() == pmetric.MetricTypeSum {
				for _, p := range m.Sum().DataPoints().All() {
					out[m.Name()+attributes(rm.Resource().Attributes())+attributes(p.Attributes())] = int64(p.StartTimestamp())
				}
			}
		}
	}
	return out
}

// A training has the series of its first two steps, however long it is. They grow, also over a kill and for
// steps whose span comes late.
func TestStepsShareSeries(t *testing.T) {
	const steps = 1000
	cfg, st := testConfig(perSecond), newMemoryStorage()
	r := newRig(t, cfg, st)
	var before map[string]map[string]float64
	var began map[string]int64
	for n := range steps {
		step, layer, kernels := trainingStep(n)
		late := traces(step, layer)
		if n%3 == 0 {
			r.send(late)
		}
		r.send(traces(kernels...))
		if n%50 == 49 {
			r = restart(t, r, cfg, st, n%100 == 49)
		}
		if n%3 != 0 {
			r.send(late)
		}
		r.clock.advance(time.Second)
		if n%25 != 24 {
			continue
		}
		r.clock.advance(time.Minute)
		md := r.flush()
		now, start := points(t, md), starts(md)
		for metric, series := range now {
			for name, v := range series {
				if before != nil {
					require.Contains(t, before[metric], name, "a series of %s began", metric)
				}
				require.GreaterOrEqual(t, v, before[metric][name], "%s of %s", metric, name)
			}
		}
		if before != nil {
			require.Equal(t, began, start)
		}
		before, began = now, start
	}
	scopes := func(metric string, unit float64) map[string]int64 {
		out := map[string]int64{}
		for _, name := range []string{"step *", "transformer.h.0", "transformer.h.1"} {
			for series, v := range before[metric] {
				if strings.Contains(series, semconv.CUDAScopeName+":"+name+" ") {
					out[name] += int64(v*unit + 0.5)
				}
			}
		}
		return out
	}
	// Of 3 kernels of a step, 1 is in a layer.
	want := map[string]int64{"step *": 2 * steps, "transformer.h.0": steps / 2, "transformer.h.1": steps / 2}
	assert.Equal(t, want, scopes(semconv.MetricGPUCUDAKernelLaunchCalls, 1))
	assert.Equal(t, want, scopes(semconv.MetricGPUCUDATime, 1e3))
	assert.Len(t, before[semconv.MetricGPUCUDATime], 3)
	assert.Len(t, before[semconv.MetricGPUCUDACost], 3+1, "and idle time")
	assert.Contains(t, slices.Collect(maps.Keys(before[semconv.MetricGPUCUDACost])),
		"map[host.name:h service.name:train]map[cuda.cost.currency:USD cuda.request.operation:step * cuda.scope.name:step * hw.id:GPU-1 hw.name:NVIDIA H200]")
	r.shutdown()
}

// Other names keep their series up to a number. A restart does not change which.
func TestOtherNumberedNamesShareSeriesLater(t *testing.T) {
	const more = 50
	cfg, st := testConfig(), newMemoryStorage()
	r := newRig(t, cfg, st)
	want := map[string]float64{}
	for n := range numbered.Max + more {
		k := kernelAt(n, "k", 0)
		k.scope = fmt.Sprintf("layer.%d.attn", n)
		want[k.scope]++
		again := kernelAt(1000+n, "k", 0)
		again.scope = fmt.Sprintf("layer.%d.attn", n%more) // of the first ones
		want[again.scope]++
		if n >= numbered.Max {
			delete(want, k.scope)
			want["layer.*.attn"]++
		}
		r.send(traces(k, again))
		if n%40 == 39 {
			r = restart(t, r, cfg, st, n%80 == 39)
		}
	}
	forward := kernelAt(2000, "k", 0)
	forward.scope = "forward"
	want["forward"]++
	r.send(traces(forward))
	got := map[string]float64{}
	for series, v := range points(t, r.flush())[semconv.MetricGPUCUDAKernelLaunchCalls] {
		_, series, _ = strings.Cut(series, semconv.CUDAScopeName+":")
		got[strings.TrimSuffix(series, " hw.id:GPU-1 hw.name:NVIDIA H200]")] = v
	}
	assert.Equal(t, want, got)
	assert.Len(t, got, numbered.Max+2)
	r.shutdown()
}

// Records of a version that kept steps apart still count in series of their own. These stay as they are and
// take no room of others.
func TestSeriesOfOneStepStay(t *testing.T) {
	cfg, st := testConfig(func(c *Config) { c.Limits.Scopes = 2 }), newMemoryStorage()
	r := newRig(t, cfg, st)
	send := func(n int) testSpan {
		step, _, kernels := trainingStep(n)
		r.send(traces(step, kernels[0]))
		return kernels[0]
	}
	for _, n := range []int{6, 7} {
		p := newParser(r.c.keys)
		step, _, kernels := trainingStep(n)
		p.parse(traces(step, kernels[0]))
		p.b.strings[slices.Index(p.b.strings, "step *")] = step.name
		require.NoError(t, r.c.log.append(t.Context(), appendBatchRecord(nil, &p.b), testEpoch))
	}
	for _, clean := range []bool{false, true, false} {
		r = restart(t, r, cfg, st, clean)
		send(7) // counted before
		named := send(8)
		for i, name := range []string{"forward", "more than 2"} {
			named.id, named.scope = uint64(1000+i), name
			r.send(traces(named))
		}
		got := points(t, r.flush())[semconv.MetricGPUCUDAKernelLaunchCalls]
		want := map[string]float64{}
		for _, name := range []string{"step 6", "step 7", "step *", "forward", otherName} {
			want["map[host.name:h service.name:train]map[cuda.scope.name:"+name+" hw.id:GPU-1 hw.name:NVIDIA H200]"] = 1
		}
		assert.Equal(t, want, got)
	}
	r.shutdown()
}
