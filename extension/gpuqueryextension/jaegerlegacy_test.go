// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

type legacyTraces struct {
	Data   []legacyTrace
	Errors []legacyError
}

// TestLegacy_Requests sends the requests of Jaeger's UI v2.13 (src/api/jaeger and
// components/SearchTracePage/SearchForm): the services, the operations, a search, a trace and a
// comparison.
func TestLegacy_Requests(t *testing.T) {
	m := storetest.NewMemory()
	session := loadRecording(t, m, "httpserver")
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("service.name", "a/b c")
	rs.Resource().Attributes().PutStr("service.instance.id", "other")
	p := rs.ScopeSpans().AppendEmpty().Spans().AppendEmpty()
	p.SetTraceID(pcommon.TraceID{15: 7})
	p.SetSpanID(pcommon.SpanID{7: 1})
	p.SetName("op")
	p.SetStartTimestamp(1_000)
	p.SetEndTimestamp(2_000)
	_, err := m.Write(t.Context(), new(rows.Decoder).Traces("", td))
	require.NoError(t, err)
	s := newServer(m, options{loopback: true, logger: zap.NewNop()})

	type names struct {
		Data  []string
		Total int
	}
	assert.Equal(t, names{[]string{"a/b c", "httpserver"}, 2}, get[names](t, s, "/api/services"))
	assert.Equal(t, names{[]string{"GET /work", "httpserver", "work"}, 3}, get[names](t, s, "/api/services/httpserver/operations"))
	assert.Equal(t, names{[]string{"op"}, 1}, get[names](t, s, "/api/services/a%2Fb%20c/operations"))
	assert.Equal(t, names{[]string{}, 0}, get[names](t, s, "/api/services/none/operations"))

	info, err := m.Session(t.Context(), "", session)
	require.NoError(t, err)
	query := url.Values{
		"service": {"httpserver"}, "operation": {"GET /work"}, "limit": {"7"}, "lookback": {"custom"}, "minDuration": {""}, "maxDuration": {""},
		"start": {strconv.FormatInt(info.FirstNs/1000, 10)}, "end": {strconv.FormatInt(info.LastNs/1000+1, 10)},
	}
	found := get[legacyTraces](t, s, "/api/traces?"+query.Encode())
	require.Len(t, found.Data, 7)
	assert.Nil(t, found.Errors)
	for i := range found.Data {
		trace := &found.Data[i]
		want := traces(t, s, "/api/v3/traces/"+trace.TraceID)
		assert.Len(t, trace.Spans, want.SpanCount())
		assert.Equal(t, []legacyTrace{*trace}, get[legacyTraces](t, s, "/api/traces/"+trace.TraceID).Data)
		assert.Greater(t, trace.Spans[0].Start, uint64(info.FirstNs/1000-1))
	}
	query.Set("end", query.Get("start"))
	query.Set("start", "0")
	assert.Empty(t, get[legacyTraces](t, s, "/api/traces?"+query.Encode()).Data)
	assert.Equal(t, "op", get[legacyTraces](t, s, "/api/traces?service=a%2Fb+c&minDuration=1us&maxDuration=1us").Data[0].Spans[0].Name)
	assert.Empty(t, get[legacyTraces](t, s, "/api/traces?service=a%2Fb+c&minDuration=1.1us").Data)
	assert.Empty(t, get[legacyTraces](t, s, "/api/traces?service=a%2Fb+c&maxDuration=0.9us").Data)

	// The UI reads errors by the id that it sent, and a trace by the id of the answer.
	compared := get[legacyTraces](t, s, "/api/traces?traceID=0000000000000007&traceID=8")
	require.Len(t, compared.Data, 1)
	assert.Equal(t, "0000000000000007", compared.Data[0].TraceID)
	assert.Equal(t, []legacyError{{http.StatusNotFound, "the trace 00000000000000000000000000000008 does not exist", "8"}}, compared.Errors)
}

func TestLegacy_Translation(t *testing.T) {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("service.name", "s")
	rs.Resource().Attributes().PutStr("host.name", "h")
	ss := rs.ScopeSpans().AppendEmpty()
	ss.Scope().SetName("lib")
	ss.Scope().SetVersion("1")
	p := ss.Spans().AppendEmpty()
	p.SetTraceID(pcommon.TraceID{1, 15: 2})
	p.SetSpanID(pcommon.SpanID{7: 3})
	p.SetParentSpanID(pcommon.SpanID{7: 2})
	p.SetName("k")
	p.SetStartTimestamp(1_000_001_999)
	p.SetEndTimestamp(1_000_004_998)
	p.SetKind(ptrace.SpanKindClient)
	p.Status().SetCode(ptrace.StatusCodeError)
	p.Status().SetMessage("bad")
	p.TraceState().FromRaw("a=b")
	p.Attributes().PutInt("int", 1<<53-1)
	p.Attributes().PutInt("large", -1<<53)
	p.Attributes().PutDouble("double", 1.5)
	p.Attributes().PutDouble("nan", math.NaN())
	p.Attributes().PutBool("bool", true)
	p.Attributes().PutEmptyBytes("bytes").FromRaw([]byte{1, 2})
	p.Attributes().PutEmptySlice("list").AppendEmpty().SetInt(1)
	link := func(trace pcommon.TraceID, span byte) pcommon.Map {
		l := p.Links().AppendEmpty()
		l.SetTraceID(trace)
		l.SetSpanID(pcommon.SpanID{7: span})
		return l.Attributes()
	}
	link(p.TraceID(), 2) // the parent
	link(pcommon.TraceID{15: 9}, 4)
	link(pcommon.TraceID{15: 9}, 5).PutStr("opentracing.ref_type", "child_of")
	e := p.Events().AppendEmpty()
	e.SetName("done")
	e.SetTimestamp(1_000_002_000)
	e.Attributes().PutInt("n", 1)
	// A second scope of the same process, and a span that ends before its start.
	again := td.ResourceSpans().AppendEmpty()
	rs.Resource().CopyTo(again.Resource())
	q := again.ScopeSpans().AppendEmpty().Spans().AppendEmpty()
	q.SetTraceID(p.TraceID())
	q.SetSpanID(pcommon.SpanID{7: 2})
	q.SetStartTimestamp(5000)
	q.SetEndTimestamp(4000)
	q.Status().SetCode(ptrace.StatusCodeOk)

	got, err := json.Marshal(toLegacy(td))
	require.NoError(t, err)
	assert.JSONEq(t, `{"traceID":"01000000000000000000000000000002","warnings":null,
		"processes":{"p1":{"serviceName":"s","tags":[{"key":"host.name","type":"string","value":"h"}]}},
		"spans":[{"traceID":"01000000000000000000000000000002","spanID":"0000000000000003","operationName":"k","startTime":1000001,"duration":2,
			"processID":"p1","warnings":null,"references":[
				{"refType":"FOLLOWS_FROM","traceID":"01000000000000000000000000000002","spanID":"0000000000000002"},
				{"refType":"FOLLOWS_FROM","traceID":"0000000000000009","spanID":"0000000000000004"},
				{"refType":"CHILD_OF","traceID":"0000000000000009","spanID":"0000000000000005"}],
			"tags":[{"key":"otel.scope.name","type":"string","value":"lib"},{"key":"otel.scope.version","type":"string","value":"1"},
				{"key":"int","type":"int64","value":9007199254740991},{"key":"large","type":"int64","value":"-9007199254740992"},
				{"key":"double","type":"float64","value":1.5},{"key":"nan","type":"float64","value":"NaN"},{"key":"bool","type":"bool","value":true},
				{"key":"bytes","type":"binary","value":"AQI="},{"key":"list","type":"string","value":"[1]"},
				{"key":"span.kind","type":"string","value":"client"},{"key":"otel.status_code","type":"string","value":"ERROR"},
				{"key":"error","type":"bool","value":true},{"key":"otel.status_description","type":"string","value":"bad"},
				{"key":"w3c.tracestate","type":"string","value":"a=b"}],
			"logs":[{"timestamp":1000002,"fields":[{"key":"event","type":"string","value":"done"},{"key":"n","type":"int64","value":1}]}]},
		{"traceID":"01000000000000000000000000000002","spanID":"0000000000000002","operationName":"","startTime":5,"duration":0,
			"processID":"p1","warnings":null,"references":[],"logs":[],"tags":[{"key":"otel.status_code","type":"string","value":"OK"}]}]}`, string(got))
}
