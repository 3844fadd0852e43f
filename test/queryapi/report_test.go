// SPDX-License-Identifier: Apache-2.0

package queryapi_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

var cli = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}

// inNoRecording are members that no recording has, with the reason.
var inNoRecording = map[string]string{
	".analyses[].critical_paths[].missing":            "all recordings are complete",
	".analyses[].devices[].host_by_line[].count":      noSamples,
	".analyses[].devices[].host_by_line[].name":       noSamples,
	".analyses[].devices[].host_by_line[].ns":         noSamples,
	".analyses[].devices[].small_kernels[].limiter":   noOccupancy,
	".analyses[].devices[].small_kernels[].occupancy": noOccupancy,
	".analyses[].devices[].small_kernels[].waves":     noOccupancy,
	".copies[].longest.shape":                         "of kernels",
	".kernels[].bytes":                                "of copies and sets",
	".scopes[].longest.shape":                         "of kernels",
	".sets.longest.shape":                             "of kernels",
	".sets.name":                                      "of kernels and copies",
	".sliced_sessions":                                "no recording has an overhead budget",
	".windows.more":                                   "a report keeps 20,000 windows",
}

const (
	noSamples   = "no recording has samples of the host"
	noOccupancy = "the occupancy processor of a Collector computes it"
)

// output returns the JSON that a command of gpuflight prints. It must have a schema of the description.
func output(t *testing.T, schema *openapi3.Schema, args ...string) (answer any) {
	out, err := exec.CommandContext(t.Context(), cli.Find(t), args...).Output()
	if exit := (*exec.ExitError)(nil); args[0] != "diff" || !errors.As(err, &exit) || exit.ExitCode() != 1 { // B is slower
		require.NoError(t, err)
	}
	require.NoError(t, json.Unmarshal(out, &answer))
	require.NoError(t, schema.VisitJSON(answer, openapi3.VisitAsResponse(), openapi3.MultiErrors()))
	return answer
}

// TestReport_MatchesDescription compares the members of gpuflight report --json with the description in
// both directions.
func TestReport_MatchesDescription(t *testing.T) {
	schema := description(t).Components.Schemas["Report"].Value
	const logs = "../../internal/testing/testdata/logs/"
	files := []string{"../../examples/recordings/cupy", logs + "c2-h200-engines", logs + "golden-c3-session", deepWindow(t)}
	for _, pattern := range []string{"../../examples/recordings/*.gz", "../gpu/causes/recordings/*.gz"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	var reports []any
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			reports = append(reports, output(t, schema, "report", "--json", "--lines", "1", file))
		})
	}
	more, absent := differences("", schema, reports)
	assert.Empty(t, more)
	assert.ElementsMatch(t, absent, slices.Collect(maps.Keys(inNoRecording)))
}

// deepWindow writes a recording with a deep window during a scope and its figures of two lines of a kernel, because
// no recording of a device has all members.
func deepWindow(t *testing.T) string {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutInt(semconv.ProcessPID, 7)
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	span := func(operation string) pcommon.Map {
		s := spans.AppendEmpty()
		s.SetTraceID(pcommon.TraceID{1})
		s.SetSpanID(pcommon.SpanID{byte(spans.Len())})
		s.SetStartTimestamp(1e18)
		s.SetEndTimestamp(1e18 + 2e9)
		s.Attributes().PutStr(semconv.CUDAOperation, operation)
		return s.Attributes()
	}
	span(semconv.CUDAOperationScope).PutStr(semconv.CUDATiming, semconv.CUDATimingEstimated)
	a := span(semconv.CUDAOperationDeepWindow)
	a.PutInt(semconv.CUDADeepWindowID, 1)
	a.PutEmptySlice(semconv.CUDADeepWindowEngines).AppendEmpty().SetStr("pc_sampling")
	a.PutEmptySlice(semconv.CUDADeepWindowMissing).AppendEmpty().SetStr("smsp__sass_sectors_mem_global")
	a.PutStr(semconv.CUDADeepWindowCause, semconv.CUDADeepWindowCauseSchedule)
	a.PutStr(semconv.CUDADeepWindowWhy, "30 s after the start")
	a.PutStr(semconv.CUDADeepWindowStatus, "collected")
	a.PutStr(semconv.CUDADeepWindowMessage, "the window was opened and its data collected")
	a.PutStr(semconv.CUDADeepWindowCloseReason, "time")
	a.PutInt(semconv.CUDADeepWindowSamples, 10_000)

	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rs.Resource().CopyTo(rl.Resource())
	records := rl.ScopeLogs().AppendEmpty().LogRecords()
	record := func(event string, line int64) plog.LogRecord {
		r := records.AppendEmpty()
		r.SetEventName(event)
		a := r.Attributes()
		a.PutStr(semconv.CUDAKernelName, "gather")
		a.PutStr(semconv.CodeFilePath, "gather.cu")
		a.PutInt(semconv.CodeLineNumber, line)
		a.PutInt(semconv.CUDAPCOffset, 16*line)
		return r
	}
	for line := range int64(2) {
		a := record(semconv.EventCUDAPCSample, line+1).Attributes()
		a.PutStr(semconv.CUDAStallReason, "wait")
		a.PutInt(semconv.CUDASampleCount, 10)
		for name, value := range map[string]int64{
			"inst_executed": 100, "thread_inst_executed": 1600, "thread_inst_executed_pred_on": 800,
			"sectors_mem_global": 3200, "sectors_mem_global_ideal": 400,
		} {
			a := record(semconv.EventCUDASASSMetric, line+1).Attributes()
			a.PutStr(semconv.CUDAMetricName, "smsp__sass_"+name)
			a.PutInt(semconv.CUDAMetricValue, value)
		}
	}
	listing := record(semconv.EventCUDASASSListing, 1)
	listing.Attributes().PutStr(semconv.CUDAListingKind, semconv.CUDAListingKindSASS)
	listing.Body().SetStr("0010  LDG.E R9, desc[UR4][R8.64]\n0020  LDG.E R8, desc[UR4][R8.64]\n")

	traces, err := (&ptrace.JSONMarshaler{}).MarshalTraces(td)
	require.NoError(t, err)
	logs, err := (&plog.JSONMarshaler{}).MarshalLogs(ld)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "window.otlp.jsonl")
	require.NoError(t, os.WriteFile(path, slices.Concat(traces, []byte{'\n'}, logs, []byte{'\n'}), 0o600))
	return path
}

// TestAnalyses_Closed checks that the description names all members of analyses.
func TestAnalyses_Closed(t *testing.T) {
	doc := description(t)
	closed := map[string]*openapi3.Schema{"Report": doc.Components.Schemas["Report"].Value}
	for path, item := range doc.Paths.Map() {
		if strings.Contains(path, "/analysis") || path == "/compare" || path == "/ranks" {
			closed[path] = item.Get.Responses.Status(http.StatusOK).Value.Content["application/json"].Schema.Value
		}
	}
	require.Len(t, closed, 8)
	for name, schema := range closed {
		t.Run(name, func(t *testing.T) { assert.Empty(t, openMembers("", schema)) })
	}
}

// openMembers returns the objects in values of a schema that can have members that it does not name.
func openMembers(path string, s *openapi3.Schema) (all []string) {
	members, open := membersOf(s)
	if open || s.Type.Is("object") && len(members) == 0 {
		all = append(all, path)
	}
	if s.Items != nil {
		all = append(all, openMembers(path+"[]", s.Items.Value)...)
	}
	for name, member := range members {
		all = append(all, openMembers(path+"."+name, member.Value)...)
	}
	return all
}

// TestDiff_MatchesDescription compares the members of gpuflight diff --json with the description in both directions.
func TestDiff_MatchesDescription(t *testing.T) {
	const dir = "../gpu/causes/recordings/"
	doc := description(t)
	schema := doc.Components.Schemas["Diff"].Value
	var answers []any
	for name, args := range map[string][]string{
		"slower":          {"--fail-over", "0%", dir + "item.otlp.jsonl.gz", dir + "allocator.otlp.jsonl.gz"},
		"other kernels":   {"--fail-over", "5%", dir + "item.otlp.jsonl.gz", "../../examples/recordings/pytorch.otlp.jsonl.gz"},
		"long steps":      {dir + "../../ranks/recordings/gloo-host-1.otlp.jsonl.gz", dir + "../../ranks/recordings/gloo-kernels-1.otlp.jsonl.gz"},
		"without a limit": {dir + "tiny.otlp.jsonl.gz", dir + "slow_layer.otlp.jsonl.gz"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := output(t, schema, append([]string{"diff", "--json"}, args...)...)
			assert.Equal(t, args[len(args)-2], answer.(map[string]any)["session_a"])
			assert.Equal(t, args[len(args)-1], answer.(map[string]any)["session_b"])
			answers = append(answers, answer)
		})
	}
	more, _ := differences("", schema, answers)
	assert.Empty(t, more)
	// Each list of rows has some of the members of a row.
	values := map[string][]any{"Diff": answers}
	for _, answer := range answers {
		answer := answer.(map[string]any)
		values["CompareSide"] = append(values["CompareSide"], answer["a"], answer["b"])
		if step := answer["step"]; step != nil {
			values["CompareRow"] = append(values["CompareRow"], step)
		}
		for _, list := range []string{"parts", "kernels", "shapes", "scopes"} {
			values["CompareRow"] = append(values["CompareRow"], answer[list].([]any)...)
		}
		if list, ok := answer["regressions"].([]any); ok {
			values["Regression"] = append(values["Regression"], list...)
		}
	}
	var never []string
	for name, values := range values {
		_, absent := differences(name, doc.Components.Schemas[name].Value, values)
		never = append(never, slices.DeleteFunc(absent, func(path string) bool { return name == "Diff" && strings.Count(path, ".") > 1 })...)
	}
	assert.Equal(t, []string{"CompareSide.missing"}, never, "all recordings are complete")
}

func TestRanks_MatchDescription(t *testing.T) {
	files, err := filepath.Glob("../gpu/ranks/recordings/*.gz")
	require.NoError(t, err)
	require.Len(t, files, 6)
	schema := description(t).Components.Schemas["Ranks"].Value
	for _, run := range []string{"nccl-host", "gloo-host", "gloo-kernels"} {
		t.Run(run, func(t *testing.T) {
			more, _ := differences("", schema, []any{output(t, schema, append([]string{"ranks", "--json", "--run", run}, files...)...)})
			assert.Empty(t, more)
		})
	}
}

// differences returns the members of JSON values that their schema lacks, and those that no value has.
func differences(path string, s *openapi3.Schema, values []any) (more, absent []string) {
	visit := func(path string, s *openapi3.Schema, values []any) {
		m, a := differences(path, s, values)
		more, absent = append(more, m...), append(absent, a...)
	}
	if s.Items != nil {
		var items []any
		for _, v := range values {
			list, _ := v.([]any)
			items = append(items, list...)
		}
		visit(path+"[]", s.Items.Value, items)
		return more, absent
	}
	byName := map[string][]any{}
	for _, v := range values {
		object, _ := v.(map[string]any)
		for name, v := range object {
			byName[name] = append(byName[name], v)
		}
	}
	known, open := membersOf(s)
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if known[name] == nil && !open {
			more = append(more, path+"."+name)
		}
	}
	sums := s.AllOf == nil && len(s.Required) == 0 // those that are 0 are absent
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if byName[name] == nil && sums {
			continue
		}
		if byName[name] == nil {
			absent = append(absent, path+"."+name)
		} else {
			visit(path+"."+name, known[name].Value, byName[name])
		}
	}
	return more, absent
}

// membersOf returns the members that a schema names, and whether it permits others.
func membersOf(s *openapi3.Schema) (known openapi3.Schemas, open bool) {
	known = maps.Clone(s.Properties)
	open = s.AdditionalProperties.Schema != nil || s.AdditionalProperties.Has != nil && *s.AdditionalProperties.Has
	open = open || s.Type == nil && s.AllOf == nil // any value
	for _, part := range s.AllOf {
		if known == nil {
			known = openapi3.Schemas{}
		}
		m, o := membersOf(part.Value)
		maps.Copy(known, m)
		open = open || o
	}
	return known, open
}
