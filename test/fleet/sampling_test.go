// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// steps are traces as a program's SDK sends them: each a scope with two kernels. The scope and the
// second kernel are in a later message than the first kernel.
type steps struct {
	first, second ptrace.Traces
	// must are the traces that sampling must keep: with an error, slow, or of a session.
	must map[pcommon.TraceID]string
	// spans is the number of spans by trace.
	spans map[pcommon.TraceID]int
	// kernels is their number; busy is their total time.
	kernels int64
	busy    time.Duration
}

const (
	stepCount = 2000
	// One in stepEach steps has an error, and as many others are slow.
	stepEach = 100
	slow     = 1500 * time.Millisecond
)

func makeSteps() steps {
	s := steps{first: ptrace.NewTraces(), second: ptrace.NewTraces(), must: map[pcommon.TraceID]string{}, spans: map[pcommon.TraceID]int{}}
	resource := func(td ptrace.Traces) ptrace.SpanSlice {
		rs := td.ResourceSpans().AppendEmpty()
		rs.Resource().Attributes().PutStr(semconv.ServiceName, "steps")
		rs.Resource().Attributes().PutStr(semconv.HostName, "node-a")
		return rs.ScopeSpans().AppendEmpty().Spans()
	}
	first, second := resource(s.first), resource(s.second)
	// The fixed seed makes trace ids and decisions the same in each run.
	random := rand.New(rand.NewPCG(8, 8))
	begin := time.Now().Add(-time.Minute)
	span := func(to ptrace.SpanSlice, trace pcommon.TraceID, parent pcommon.SpanID, operation, name string, start time.Time, took time.Duration) ptrace.Span {
		sp := to.AppendEmpty()
		sp.SetTraceID(trace)
		var id pcommon.SpanID
		binary.BigEndian.PutUint64(id[:], random.Uint64())
		sp.SetSpanID(id)
		sp.SetParentSpanID(parent)
		sp.SetName(name)
		sp.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
		sp.SetEndTimestamp(pcommon.NewTimestampFromTime(start.Add(took)))
		sp.Attributes().PutStr(semconv.CUDAOperation, operation)
		s.spans[trace]++
		return sp
	}
	id := func() (trace pcommon.TraceID) {
		binary.BigEndian.PutUint64(trace[:8], random.Uint64())
		binary.BigEndian.PutUint64(trace[8:], random.Uint64())
		return trace
	}
	for i := range stepCount {
		trace := id()
		start := begin.Add(time.Duration(i) * 10 * time.Millisecond)
		took := 5 * time.Millisecond
		switch i % stepEach {
		case 1:
			s.must[trace] = "with an error"
		case 2:
			s.must[trace] = "slow"
			took = slow
		}
		scope := span(second, trace, pcommon.SpanID{}, semconv.CUDAOperationScope, "step", start, took)
		for n, to := range []ptrace.SpanSlice{first, second} {
			kernel := span(to, trace, scope.SpanID(), semconv.CUDAOperationKernel, "gemm", start.Add(time.Duration(n)*time.Millisecond), 800*time.Microsecond)
			kernel.Attributes().PutStr(semconv.CUDAKernelName, "gemm")
			kernel.Attributes().PutStr(semconv.HWID, "GPU-5a1e0000-0000-4000-8000-000000000001")
			kernel.Attributes().PutStr(semconv.HWName, "NVIDIA H200")
			if n == 1 && i%stepEach == 1 {
				kernel.Status().SetCode(ptrace.StatusCodeError)
			}
			s.kernels++
			s.busy += 800 * time.Microsecond
		}
	}
	session := id()
	s.must[session] = "of a session"
	span(second, session, pcommon.SpanID{}, semconv.CUDAOperationSession, "steps", begin, 100*time.Millisecond)
	return s
}

// count returns the number of all spans.
func (s steps) count() int { return s.first.SpanCount() + s.second.SpanCount() }

// send exports the steps over OTLP, first halves first.
func (s steps) send(t *testing.T, address string) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { assert.NoError(t, conn.Close()) }()
	client := ptraceotlp.NewGRPCClient(conn)
	for _, td := range []ptrace.Traces{s.first, s.second} {
		_, err := client.Export(t.Context(), ptraceotlp.NewExportRequestFromTraces(td))
		require.NoError(t, err)
	}
}

// sampler is a gateway with config/sampling.yaml, its own consumer group and its own backend.
type sampler struct {
	*collector
	store *testsink.Store
}

func newSampler(t *testing.T, k *kafkaServer, group string, env map[string]string) *sampler {
	t.Helper()
	store, backend := process.Sink(t)
	c := newCollector(t, "gateway.yaml", map[string]string{
		"GPUFLIGHT_KAFKA": k.Address, "GPUFLIGHT_GROUP": group, "GPUFLIGHT_OTLP_ENDPOINT": backend.Endpoint(),
	}, nil)
	for key, value := range env {
		c.env[key] = value
	}
	c.configs = append(c.configs, filepath.Join(process.Root(t), "config", "sampling.yaml"))
	return &sampler{collector: c, store: store}
}

// kept returns the traces at the backend. Each must be complete, and no required trace may be
// missing.
func (s *sampler) kept(all steps) map[pcommon.TraceID]bool {
	s.t.Helper()
	have := map[pcommon.TraceID]int{}
	for _, sp := range s.store.Spans() {
		have[sp.Trace]++
		assert.Zero(s.t, sp.Conflicts, "span %v", sp.SpanKey)
	}
	out := map[pcommon.TraceID]bool{}
	for trace, spans := range have {
		assert.Equal(s.t, all.spans[trace], spans, "spans of trace %v", trace)
		out[trace] = true
	}
	for trace, why := range all.must {
		assert.True(s.t, out[trace], "trace %v, which is %s, is not there", trace, why)
	}
	return out
}

// usage returns the last value of one of gpu_usage's sums, which has one series here, or 0.
func (s *sampler) usage(metric string) (last float64) {
	s.t.Helper()
	var at uint64
	for _, p := range s.store.Points() {
		if p.Metric != metric || p.TimeNs < at {
			continue
		}
		at = p.TimeNs
		switch v := p.Value.(type) {
		case int64:
			last = float64(v)
		case float64:
			last = v
		}
	}
	return last
}

// TestTailSampling runs three gateways on the same topics. Two keep a quarter, and one of them is
// stopped before its first decision. The third has the defaults and keeps everything.
func TestTailSampling(t *testing.T) {
	parallel(t)
	process.Collector.Find(t)
	k := launchKafka(t, "127.0.0.1", nil)
	k.wait()
	all := makeSteps()
	agent := newCollector(t, "kafka.yaml", map[string]string{"GPUFLIGHT_KAFKA": k.Address, "GPUFLIGHT_LOGS": t.TempDir()}, nil).run()
	all.send(t, agent.env["GPUFLIGHT_LISTEN"])
	process.Eventually(t, 2*time.Minute, "the broker has all spans", func() bool {
		return agent.total("otelcol_exporter_sent_spans", "") == float64(all.count())
	})
	agent.stop()

	const percent = 25
	quarter := newSampler(t, k, "quarter", map[string]string{"GPUFLIGHT_SAMPLE_PERCENT": "25", "GPUFLIGHT_SAMPLE_WAIT": "10s"})
	stopped := newSampler(t, k, "stopped", map[string]string{"GPUFLIGHT_SAMPLE_PERCENT": "25", "GPUFLIGHT_SAMPLE_WAIT": "1h"})
	defaults := newSampler(t, k, "defaults", map[string]string{"GPUFLIGHT_SAMPLE_WAIT": "10s"})
	gateways := []*sampler{quarter, stopped, defaults}
	for _, g := range gateways {
		g.run()
	}

	// Usage covers all spans, long before the decisions.
	for _, g := range gateways {
		process.Eventually(t, 2*time.Minute, "the sums of usage of "+g.env["GPUFLIGHT_GROUP"], func() bool {
			return g.usage(semconv.MetricGPUCUDAKernelLaunchCalls) == float64(all.kernels)
		})
		assert.InDelta(t, all.busy.Seconds(), g.usage(semconv.MetricGPUCUDATime), 1e-6, "device seconds of all kernels")
	}
	assert.Zero(t, stopped.store.Counts().Spans, "what waits for its decision is not sent")
	// The decided traces wait on disk for the backend, where the next process finds them.
	stopped.stop()
	stopped.run()

	process.Eventually(t, 2*time.Minute, "all traces with the defaults", func() bool { return defaults.whole(all) == len(all.spans) })
	process.Eventually(t, 2*time.Minute, "a decision about all traces", func() bool { return quarter.decided("") == len(all.spans) })
	stay := quarter.decided(`sampled="true"`)
	for _, g := range []*sampler{quarter, stopped} {
		process.Eventually(t, 2*time.Minute, "the traces that stay, of "+g.env["GPUFLIGHT_GROUP"], func() bool { return g.whole(all) >= stay })
	}
	for _, g := range gateways {
		g.stop()
		g.bounded(gatewayMemory)
	}
	assert.Len(t, defaults.kept(all), len(all.spans), "all traces")
	kept := quarter.kept(all)
	assert.Equal(t, kept, stopped.kept(all), "two gateways decide the same")
	rest := len(kept) - len(all.must)
	share := float64(rest) / float64(len(all.spans)-len(all.must))
	assert.InDelta(t, percent/100.0, share, 0.05, "%d of the others", rest)
	t.Logf("%d traces, %d that must stay, %.1f %% of the others; %v", len(all.spans), len(all.must), 100*share, quarter)
}

// decided returns the number of traces with a decision and the given label.
func (s *sampler) decided(label string) int {
	s.t.Helper()
	return int(s.total("otelcol_processor_tail_sampling_global_count_traces_sampled", label))
}

// whole returns the number of traces that are complete at the backend.
func (s *sampler) whole(all steps) (n int) {
	s.t.Helper()
	have := map[pcommon.TraceID]int{}
	for _, sp := range s.store.Spans() {
		if have[sp.Trace]++; have[sp.Trace] == all.spans[sp.Trace] {
			n++
		}
	}
	return n
}

// TestTailSampling_Full limits the processor to a few traces with all their data. Kafka must wait,
// and everything arrives.
func TestTailSampling_Full(t *testing.T) {
	parallel(t)
	f := newFleet(t, pick(few, 400_000))
	traces := map[pcommon.TraceID]bool{}
	for _, sp := range f.want.Spans() {
		traces[sp.Trace] = true
	}
	room := len(traces) / 5
	require.Positive(t, room)
	f.gateway.env["GPUFLIGHT_SAMPLE_WAIT"] = "1s"
	f.gateway.configs = append(f.gateway.configs, filepath.Join(process.Root(t), "config", "sampling.yaml"))
	f.gateway.add(map[string]any{"processors": map[string]any{"tail_sampling": map[string]any{"num_traces": room}}})
	f.gateway.run()
	f.agent.run()
	f.finish()
	t.Logf("%d traces, room for %d", len(traces), room)
}
