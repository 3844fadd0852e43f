// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"
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

// jaegerRoutes are all routes of Jaeger's UI with their parameters and a path that is valid.
var jaegerRoutes = []struct {
	path       string
	parameters []string
}{
	{"/api/v3/services", nil},
	{"/api/v3/operations?service=a", []string{"service", "span_kind"}},
	{"/api/v3/traces?query.service_name=a", []string{
		"query.service_name", "query.operation_name", "query.span_name", "query.start_time_min", "query.start_time_max", "query.duration_min",
		"query.duration_max", "query.num_traces", "query.search_depth", "query.attributes", "query.raw_traces",
	}},
	{"/api/v3/trace-summaries?query.service_name=a", []string{"query.service_name", "query.num_traces", "query.attributes"}},
	{"/api/v3/traces/1?", []string{"start_time", "end_time", "raw_traces"}},
	{"/api/services", nil},
	{"/api/services/a/operations", nil},
	{"/api/traces?service=a", []string{"service", "operation", "start", "end", "minDuration", "maxDuration", "limit", "tags", "lookback", "raw", "traceID"}},
	{"/api/traces?traceID=1", []string{"traceID"}},
	{"/api/traces/1", []string{"start", "end", "raw"}},
}

func TestJaeger_InvalidParameters(t *testing.T) {
	s := newServer(storetest.NewMemory(), options{loopback: true, logger: zap.NewNop()})
	for _, route := range jaegerRoutes {
		path, query, _ := strings.Cut(route.path, "?")
		valid, err := url.ParseQuery(query)
		require.NoError(t, err)
		for _, name := range append(route.parameters, "unknown") {
			values := maps.Clone(valid)
			values[name] = []string{"\xff"}
			w := call(s, http.MethodGet, path+"?"+values.Encode())
			assert.Equal(t, http.StatusBadRequest, w.Code, "%s %s", route.path, name)
			var answer struct{ Error string }
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
			assert.Contains(t, answer.Error, "parameter ")
			assert.Contains(t, answer.Error, name)
		}
		assert.Equal(t, http.StatusMethodNotAllowed, call(s, http.MethodPost, path).Code, path)
	}
	for target, message := range map[string]string{
		"/api/traces":                                     "parameter service: is required",
		"/api/traces?service=a&limit=1001":                "parameter limit: must be an integer from 1 to 1000",
		"/api/traces?service=a&start=2&end=2":             "parameter end: must be above start",
		"/api/traces?service=a&start=-1":                  "parameter start: must be Unix microseconds from 0 to 4611686018427387",
		"/api/traces?service=a&minDuration=1":             "parameter minDuration: must be a duration such as 1.5ms",
		`/api/traces?service=a&tags={"error":"1"}`:        "parameter tags: is not supported",
		"/api/traces?service=a&service=b":                 "parameter service: must be given once",
		"/api/traces/x":                                   "parameter trace_id: must be 32 lower-case hexadecimal digits",
		"/api/traces/0":                                   "parameter trace_id: must not be zero",
		"/api/services/%ff/operations":                    "parameter service: must be valid UTF-8 of at most 1000 bytes",
		"/api/traces?" + strings.Repeat("traceID=1&", 11): "parameter traceID: must be given at most 10 times",
	} {
		w := call(s, http.MethodGet, strings.ReplaceAll(target, `"`, "%22"))
		assert.Equal(t, http.StatusBadRequest, w.Code, target)
		assert.JSONEq(t, `{"error":"`+message+`"}`, w.Body.String(), target)
	}
	w := call(s, http.MethodGet, "/api/traces/1")
	assert.Equal(t, http.StatusNotFound, w.Code)
	assert.JSONEq(t, `{"error":"the trace 00000000000000000000000000000001 does not exist"}`, w.Body.String())
}

// TestJaeger_SearchIsBounded expects the newest traces up to the one that reaches the limit.
func TestJaeger_SearchIsBounded(t *testing.T) {
	m := storetest.NewMemory()
	loadRecording(t, m, "httpserver")
	s := newServer(m, options{loopback: true, logger: zap.NewNop()})
	whole := get[legacyTraces](t, s, "/api/traces?service=httpserver&limit=5").Data
	require.Len(t, whole, 5)
	s.searchSpans = len(whole[0].Spans) + 1
	assert.Equal(t, whole[:2], get[legacyTraces](t, s, "/api/traces?service=httpserver&limit=5").Data)
	assert.Equal(t, len(whole[0].Spans)+len(whole[1].Spans), traces(t, s, "/api/v3/traces?query.service_name=httpserver&query.num_traces=5").SpanCount())
}
