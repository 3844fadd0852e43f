// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/internal/testing/trainsim"
	"github.com/gpuflight/gpuflight/semconv"
)

// ended returns a session that has ended, in which everything takes the given share of the usual time.
func ended(service, id string, percent int64) telemetry {
	sim := trainsim.Training{Run: id, Start: 1_700_000_000_000_000_000, Ranks: 1, Steps: 24}
	td := sim.Traces()[0]
	rs := td.ResourceSpans().At(0)
	rs.Resource().Attributes().PutStr(semconv.ServiceName, service)
	rs.Resource().Attributes().PutStr(semconv.ServiceInstanceID, id)
	scaled := func(at int64) int64 { return sim.Start + (at-sim.Start)*percent/100 }
	spans := rs.ScopeSpans().At(0).Spans()
	var last pcommon.Timestamp
	for _, s := range spans.All() {
		s.SetStartTimestamp(pcommon.Timestamp(scaled(int64(s.StartTimestamp()))))
		s.SetEndTimestamp(pcommon.Timestamp(scaled(int64(s.EndTimestamp()))))
		for _, key := range []string{semconv.CUDALaunchStartTimeUnixNano, semconv.CUDALaunchEndTimeUnixNano} {
			at, _ := s.Attributes().Get(key)
			s.Attributes().PutInt(key, scaled(at.Int()))
		}
		last = max(last, s.EndTimestamp())
	}
	s := spans.AppendEmpty()
	s.SetTraceID(pcommon.TraceID{1})
	s.SetSpanID(pcommon.SpanID{1})
	s.SetStartTimestamp(pcommon.Timestamp(sim.Start))
	s.SetEndTimestamp(last)
	s.Attributes().PutStr(semconv.CUDAOperation, semconv.CUDAOperationSession)
	return telemetry{traces: []ptrace.Traces{td}}
}

// gauge returns a metric of the storage by service.
func (d *database) gauge(name string) map[string]float64 {
	d.t.Helper()
	r, err := http.Get("http://" + d.metrics + "/metrics")
	require.NoError(d.t, err)
	text, err := io.ReadAll(r.Body)
	require.NoError(d.t, err)
	require.NoError(d.t, r.Body.Close())
	found := map[string]float64{}
	for _, m := range regexp.MustCompile(`(?m)^otelcol_extension_gpu_storage_`+name+`\w*\{.*\bservice_name="(\w+)".*\} (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		found[m[1]], err = strconv.ParseFloat(m[2], 64)
		require.NoError(d.t, err)
	}
	return found
}

// TestCollector_Regressions compares ended sessions with the baselines of their services.
func TestCollector_Regressions(t *testing.T) {
	d := startEmpty(t, "gpu")
	address := process.FreePort(t)
	p := d.collect(nil, overOTLP(address))
	s := d.store()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	change := map[string]int64{"slower": 130, "same": 100}
	for service := range change {
		require.NoError(t, ended(service, service+"-good", 100).send(ctx, address))
		require.NoError(t, s.SetBaseline(ctx, "", "main "+service, service+"-good"))
	}
	for service, percent := range change {
		require.NoError(t, ended(service, service+"-new", percent).send(ctx, address))
	}
	process.Eventually(t, waitLimit, "all are compared", func() bool { return len(d.gauge("step_change")) == len(change) })
	assert.Equal(t, map[string]float64{"slower": 4, "same": 0}, d.gauge("regressions"), "of slower the step and three kernels")
	steps := d.gauge("step_change")
	assert.InDelta(t, 0.3, steps["slower"], 1e-3)
	assert.Zero(t, steps["same"])

	logs := func(id string) []store.LogRow {
		list, err := s.Logs(ctx, store.LogQuery{Session: id, Event: semconv.EventCUDARegression})
		require.NoError(t, err)
		return list
	}
	process.Eventually(t, waitLimit, "a log record", func() bool { return len(logs("slower-new")) == 1 })
	log := logs("slower-new")[0]
	assert.Equal(t, "A is the baseline main slower, B is this session. B is slower: a step takes 1.12 ms instead of 865 µs (+30.0 %), "+
		"because of compute +228 µs and communication +22.4 µs.", log.Body.Str)
	assert.Equal(t, "WARN", log.SeverityText)
	text := func(s string) store.Value { return store.Value{Kind: store.KindString, Str: s} }
	require.Len(t, log.Attrs, 4)
	assert.Equal(t, store.Attrs{
		{Key: semconv.CUDARegressionBaselineName, Value: text("main slower")},
		{Key: semconv.CUDARegressionBaselineSessionID, Value: text("slower-good")},
		{Key: semconv.CUDARegressionNames, Value: store.Value{Kind: store.KindSlice, Slice: []store.Value{
			text("step"), text("gemm"), text("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), text("adam"),
		}}},
	}, log.Attrs[:3])
	assert.Equal(t, semconv.CUDARegressionStepChange, log.Attrs[3].Key)
	assert.InDelta(t, steps["slower"], log.Attrs[3].Value.Double, 1e-9)
	resource, _ := log.OriginRef.Resource.Get(semconv.ServiceName)
	assert.Equal(t, "slower", resource.Str)
	for _, id := range []string{"slower-good", "same-good", "same-new"} {
		assert.Empty(t, logs(id), id)
	}
	process.Eventually(t, waitLimit, "sealed again after the log record", func() bool {
		info, err := s.Session(ctx, "", "slower-new")
		require.NoError(t, err)
		return info.Sealed
	})
	assert.Len(t, logs("slower-new"), 1)
	p.Stop(30 * time.Second)
}
