// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

func traces(t *testing.T, s http.Handler, target string) ptrace.Traces {
	answer := get[struct{ Result json.RawMessage }](t, s, target)
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(answer.Result)
	require.NoError(t, err)
	return td
}

func TestJaeger_SummaryOfPartOfTrace(t *testing.T) {
	td := ptrace.NewTraces()
	add := func(service, name string, id, parent byte, start, end uint64, code ptrace.StatusCode) {
		rs := td.ResourceSpans().AppendEmpty()
		rs.Resource().Attributes().PutStr("service.name", service)
		p := rs.ScopeSpans().AppendEmpty().Spans().AppendEmpty()
		p.SetName(name)
		p.SetSpanID(pcommon.SpanID{id})
		p.SetParentSpanID(pcommon.SpanID{parent})
		p.SetStartTimestamp(pcommon.Timestamp(start))
		p.SetEndTimestamp(pcommon.Timestamp(end))
		p.Status().SetCode(code)
	}
	add("b", "child", 2, 1, 5, 9, ptrace.StatusCodeError)
	add("a", "orphan", 3, 7, 1, 4, ptrace.StatusCodeUnset)
	add("a", "root", 1, 0, 2, 30, ptrace.StatusCodeUnset)
	assert.Equal(t, &jaegerSummary{
		TraceID: "t", ID: "t", RootService: "a", RootOperation: "root", MinStart: 1, MaxEnd: 30, SpanCount: 3, ErrorSpanCount: 1, OrphanSpanCount: 1,
		Services: []*jaegerService{{Name: "a", SpanCount: 2}, {Name: "b", SpanCount: 1, ErrorSpanCount: 1}},
	}, summarize("t", td))
}

func TestJaeger_Requests(t *testing.T) {
	m := storetest.NewMemory()
	id := loadRecording(t, m, "httpserver")
	s := newServer(m, options{loopback: true, logger: zap.NewNop()})
	services := get[struct{ Services []string }](t, s, "/api/v3/services")
	assert.Equal(t, []string{"httpserver"}, services.Services)
	operations := get[struct{ Operations []jaegerOperation }](t, s, "/api/v3/operations?service=httpserver")
	assert.Equal(t, []jaegerOperation{{"GET /work", "server"}, {"httpserver", "internal"}, {"work", "internal"}}, operations.Operations)

	td := traces(t, s, "/api/v3/traces?query.service_name=httpserver&query.operation_name=GET+%2Fwork&query.num_traces=7")
	ids := map[string]int{}
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, span := range ss.Spans().All() {
				ids[span.TraceID().String()]++
			}
		}
	}
	require.Len(t, ids, 7)
	for trace, n := range ids {
		var want int
		list := get[struct{ Spans []any }](t, s, "/api/v1/sessions/"+id+"/spans?trace="+trace)
		ops := get[operationsBody](t, s, "/api/v1/sessions/"+id+"/operations?trace="+trace)
		want = len(list.Spans) + len(ops.Operations)
		assert.Equal(t, want, n)
		assert.Equal(t, want, traces(t, s, "/api/v3/traces/"+trace).SpanCount())
	}
	// A summary is that of the trace itself.
	summaries := get[struct{ Summaries []jaegerSummary }](t, s, "/api/v3/trace-summaries?query.service_name=httpserver&query.span_name=GET+%2Fwork&query.num_traces=7").Summaries
	require.Len(t, summaries, 7)
	for i := range summaries {
		x := &summaries[i]
		assert.Equal(t, ids[x.TraceID], x.SpanCount)
		assert.Equal(t, x.TraceID, x.ID)
		assert.Equal(t, []string{"httpserver", "GET /work"}, []string{x.RootService, x.RootOperation})
		assert.Equal(t, []*jaegerService{{Name: "httpserver", SpanCount: x.SpanCount}}, x.Services)
		assert.Positive(t, x.MinStart)
		assert.Greater(t, x.MaxEnd, x.MinStart)
	}
	for _, target := range []string{"/api/v3/operations", "/api/v3/trace-summaries", "/api/v3/traces", "/api/v3/traces/x",
		"/api/v3/traces?query.service_name=a&query.duration_min=x", "/api/v3/traces?query.service_name=a&query.start_time_min=x"} {
		assert.Equal(t, http.StatusBadRequest, call(s, http.MethodGet, target).Code, target)
	}
	assert.Equal(t, http.StatusNotFound, call(s, http.MethodGet, "/api/v3/traces/1").Code)
}
