// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// The routes that Jaeger's UI uses besides api_v3. Traces are JSON of Jaeger's own with times in
// microseconds (internal/uimodel of Jaeger v2.13). Jaeger translates OTLP in the same way
// (pkg/translator/jaeger of opentelemetry-collector-contrib).

// maxComparedTraces is the number of traces that a request selects by id. The UI compares two.
const maxComparedTraces = 10

type legacyAnswer struct {
	Data   any           `json:"data"`
	Total  int           `json:"total"`
	Limit  int           `json:"limit"`
	Offset int           `json:"offset"`
	Errors []legacyError `json:"errors"`
}

type legacyError struct {
	Code    int    `json:"code"`
	Message string `json:"msg"`
	TraceID string `json:"traceID"`
}

type legacyTrace struct {
	TraceID   string                   `json:"traceID"`
	Spans     []legacySpan             `json:"spans"`
	Processes map[string]legacyProcess `json:"processes"`
	Warnings  []string                 `json:"warnings"`
}

type legacySpan struct {
	TraceID    string            `json:"traceID"`
	SpanID     string            `json:"spanID"`
	Name       string            `json:"operationName"`
	References []legacyReference `json:"references"`
	Start      uint64            `json:"startTime"`
	Duration   uint64            `json:"duration"`
	Tags       []legacyTag       `json:"tags"`
	Logs       []legacyLog       `json:"logs"`
	Process    string            `json:"processID"`
	Warnings   []string          `json:"warnings"`
}

type legacyReference struct {
	Type    string `json:"refType"`
	TraceID string `json:"traceID"`
	SpanID  string `json:"spanID"`
}

type legacyLog struct {
	Time   uint64      `json:"timestamp"`
	Fields []legacyTag `json:"fields"`
}

type legacyProcess struct {
	Service string      `json:"serviceName"`
	Tags    []legacyTag `json:"tags"`
}

type legacyTag struct {
	Key   string `json:"key"`
	Type  string `json:"type"`
	Value any    `json:"value"`
}

func (s *server) legacyServices(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	names, err := s.serviceNames(ctx, r)
	return legacyAnswer{Data: names, Total: len(names)}, err
}

func (s *server) legacyOperations(ctx context.Context, r *request) (any, error) {
	service := r.PathValue("service")
	if len(service) > 1000 || !utf8.ValidString(service) {
		r.fail("service", "must be valid UTF-8 of at most 1000 bytes")
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	list, err := s.serviceOperations(ctx, r, service, "")
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	names = slices.Compact(names) // the list is sorted
	return legacyAnswer{Data: names, Total: len(names)}, err
}

func (s *server) legacyTrace(ctx context.Context, r *request) (any, error) {
	id := r.jaegerTraceID("trace_id", r.PathValue("trace"))
	r.microseconds("start")
	r.microseconds("end")
	r.boolean("raw")
	if err := r.check(); err != nil {
		return nil, err
	}
	td, err := s.traceByID(ctx, r, id)
	if err != nil {
		return nil, err
	}
	return legacyAnswer{Data: []legacyTrace{toLegacy(td)}}, nil
}

func (r *request) microseconds(name string) int64 {
	v, ok := r.raw(name)
	if !ok || v == "" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || n > store.MaxTimeNs/1000 {
		r.fail(name, "must be Unix microseconds from 0 to %d", int64(store.MaxTimeNs/1000))
		return 0
	}
	return n * 1000
}

func (s *server) legacyTraces(ctx context.Context, r *request) (any, error) {
	if ids, ok := r.values["traceID"]; ok {
		return s.legacyCompared(ctx, r, ids)
	}
	x := traceSearch{service: r.text("service", 1000)}
	if x.service == "" {
		r.fail("service", "is required")
	}
	x.query.Name = r.text("operation", 10_000)
	x.interval(r, r.microseconds, "start", "end")
	x.query.MinNs = r.duration("minDuration")
	x.longest = r.duration("maxDuration")
	x.most = int(r.integer("limit", 20, 1, 1000))
	r.noAttributes("tags")
	r.text("lookback", 100) // start and end say the same
	r.boolean("raw")
	if err := r.check(); err != nil {
		return nil, err
	}
	list, err := s.findTraces(ctx, r, &x)
	if err != nil {
		return nil, err
	}
	traces := []legacyTrace{}
	spans := 0
	for _, t := range list {
		td := ptrace.NewTraces()
		if err := s.appendTrace(ctx, r, t.id, td); err != nil {
			return nil, err
		}
		if td.SpanCount() == 0 {
			continue // deleted meanwhile
		}
		traces = append(traces, toLegacy(td))
		if spans += td.SpanCount(); spans >= s.searchSpans {
			break
		}
	}
	return legacyAnswer{Data: traces}, nil
}

// legacyCompared returns the traces with the ids. It lists those that do not exist as errors.
func (s *server) legacyCompared(ctx context.Context, r *request, ids []string) (any, error) {
	r.known = append(r.known, "traceID")
	if len(ids) > maxComparedTraces {
		r.fail("traceID", "must be given at most %d times", maxComparedTraces)
	}
	list := make([]store.TraceID, len(ids))
	for i := range ids {
		list[i] = r.jaegerTraceID("traceID", ids[i])
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	traces := []legacyTrace{}
	var missing []legacyError
	for i, id := range list {
		td, err := s.traceByID(ctx, r, id)
		var st *status
		switch {
		case errors.As(err, &st) && st.code == http.StatusNotFound:
			missing = append(missing, legacyError{st.code, st.text, ids[i]})
		case err != nil:
			return nil, err
		default:
			traces = append(traces, toLegacy(td))
		}
	}
	return legacyAnswer{Data: traces, Errors: missing}, nil
}

// toLegacy converts one trace.
func toLegacy(td ptrace.Traces) legacyTrace {
	out := legacyTrace{Spans: make([]legacySpan, 0, td.SpanCount()), Processes: map[string]legacyProcess{}}
	ids := map[string]string{} // of processes, by their content
	for _, rs := range td.ResourceSpans().All() {
		process := legacyProcess{Tags: []legacyTag{}}
		for key, v := range rs.Resource().Attributes().All() {
			if key == semconv.ServiceName {
				process.Service = v.AsString()
			} else {
				process.Tags = append(process.Tags, legacyTagOf(key, v))
			}
		}
		content, _ := json.Marshal(process) // only key of the map
		id, ok := ids[string(content)]
		if !ok {
			id = "p" + strconv.Itoa(len(ids)+1)
			ids[string(content)] = id
			out.Processes[id] = process
		}
		for _, ss := range rs.ScopeSpans().All() {
			for _, p := range ss.Spans().All() {
				out.Spans = append(out.Spans, legacySpanOf(p, ss.Scope(), id))
			}
		}
	}
	if len(out.Spans) != 0 {
		out.TraceID = out.Spans[0].TraceID
	}
	return out
}

func legacySpanOf(p ptrace.Span, scope pcommon.InstrumentationScope, process string) legacySpan {
	start, end := p.StartTimestamp(), p.EndTimestamp()
	out := legacySpan{
		TraceID: legacyTraceID(p.TraceID()), SpanID: p.SpanID().String(), Name: p.Name(), Start: uint64(start) / 1000,
		Duration: uint64(max(end, start)-start) / 1000, Process: process,
		References: []legacyReference{}, Tags: make([]legacyTag, 0, p.Attributes().Len()+4), Logs: []legacyLog{},
	}
	if parent := p.ParentSpanID(); !parent.IsEmpty() {
		out.References = append(out.References, legacyReference{"CHILD_OF", out.TraceID, parent.String()})
	}
	for _, link := range p.Links().All() {
		ref := legacyReference{"FOLLOWS_FROM", legacyTraceID(link.TraceID()), link.SpanID().String()}
		if v, ok := link.Attributes().Get("opentracing.ref_type"); ok && v.Str() == "child_of" {
			ref.Type = "CHILD_OF"
		}
		if parent := p.ParentSpanID(); !parent.IsEmpty() && link.TraceID() == p.TraceID() && link.SpanID() == parent {
			out.References[0].Type = ref.Type
			continue
		}
		out.References = append(out.References, ref)
	}
	text := func(key, v string) {
		if v != "" {
			out.Tags = append(out.Tags, legacyTag{key, "string", v})
		}
	}
	text("otel.scope.name", scope.Name())
	text("otel.scope.version", scope.Version())
	out.Tags = appendLegacyTags(out.Tags, p.Attributes())
	if kind := int(p.Kind()); kind > 0 && kind < len(spanKinds) {
		text("span.kind", spanKinds[kind])
	}
	switch p.Status().Code() {
	case ptrace.StatusCodeError:
		text("otel.status_code", "ERROR")
		out.Tags = append(out.Tags, legacyTag{"error", "bool", true})
	case ptrace.StatusCodeOk:
		text("otel.status_code", "OK")
	}
	text("otel.status_description", p.Status().Message())
	text("w3c.tracestate", p.TraceState().AsRaw())
	for _, e := range p.Events().All() {
		fields := []legacyTag{}
		if _, ok := e.Attributes().Get("event"); !ok && e.Name() != "" {
			fields = append(fields, legacyTag{"event", "string", e.Name()})
		}
		out.Logs = append(out.Logs, legacyLog{uint64(e.Timestamp()) / 1000, appendLegacyTags(fields, e.Attributes())})
	}
	return out
}

// legacyTraceID has 16 digits if the first 16 are zeros: the UI finds a trace by the id in the answer.
func legacyTraceID(id pcommon.TraceID) string {
	if binary.BigEndian.Uint64(id[:8]) == 0 {
		return fmt.Sprintf("%016x", binary.BigEndian.Uint64(id[8:]))
	}
	return id.String()
}

func appendLegacyTags(tags []legacyTag, attrs pcommon.Map) []legacyTag {
	for key, v := range attrs.All() {
		tags = append(tags, legacyTagOf(key, v))
	}
	return tags
}

// legacyTagOf writes numbers that JSON or JavaScript cannot represent as text.
func legacyTagOf(key string, v pcommon.Value) legacyTag {
	const maxSafe = 1<<53 - 1
	switch v.Type() {
	case pcommon.ValueTypeInt:
		if n := v.Int(); n < -maxSafe || n > maxSafe {
			return legacyTag{key, "int64", strconv.FormatInt(n, 10)}
		}
		return legacyTag{key, "int64", v.Int()}
	case pcommon.ValueTypeBool:
		return legacyTag{key, "bool", v.Bool()}
	case pcommon.ValueTypeDouble:
		if f := v.Double(); math.IsNaN(f) || math.IsInf(f, 0) {
			return legacyTag{key, "float64", strconv.FormatFloat(f, 'g', -1, 64)}
		}
		return legacyTag{key, "float64", v.Double()}
	case pcommon.ValueTypeBytes:
		return legacyTag{key, "binary", v.Bytes().AsRaw()}
	default:
		return legacyTag{key, "string", v.AsString()}
	}
}
