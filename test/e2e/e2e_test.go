// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package e2e_test tests the user's whole data flow: logs on disk, the distribution's binary, a
// real Jaeger, and Jaeger's HTTP API.
package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// jaeger is a running Jaeger with its traces in memory.
type jaeger struct {
	t *testing.T
	// otlp is the address for spans; api is the base URL of its HTTP API.
	otlp, api string
}

func startJaeger(t *testing.T) *jaeger {
	t.Helper()
	server := process.StartJaeger(t, 64)
	return &jaeger{t: t, otlp: server.OTLP, api: server.API}
}

// get returns the answer to a query, or nil if Jaeger has no data.
func (j *jaeger) get(path string, query url.Values) []byte {
	j.t.Helper()
	req, err := http.NewRequestWithContext(j.t.Context(), http.MethodGet, j.api+path+"?"+query.Encode(), nil)
	require.NoError(j.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(j.t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(j.t, err)
	if resp.StatusCode == http.StatusNotFound {
		return nil
	}
	require.Equal(j.t, http.StatusOK, resp.StatusCode, "%s: %.500s", path, body)
	return body
}

// traces returns all data of a service, through the API that answers in OTLP.
func (j *jaeger) traces(service string) ptrace.Traces {
	j.t.Helper()
	return j.decode(j.get("/api/v3/traces", url.Values{
		"query.service_name":   {service},
		"query.start_time_min": {"2020-01-01T00:00:00Z"},
		"query.start_time_max": {"2100-01-01T00:00:00Z"},
		"query.num_traces":     {"100000"},
	}))
}

// trace returns one trace.
func (j *jaeger) trace(id pcommon.TraceID) ptrace.Traces {
	j.t.Helper()
	return j.decode(j.get("/api/v3/traces/"+id.String(), nil))
}

func (j *jaeger) decode(body []byte) ptrace.Traces {
	j.t.Helper()
	if body == nil {
		return ptrace.NewTraces()
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
	}
	require.NoError(j.t, json.Unmarshal(body, &answer))
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(answer.Result)
	require.NoError(j.t, err)
	return td
}

// spanCounts returns the number of spans per trace of a service, through the older API.
func (j *jaeger) spanCounts(service string) map[string]int {
	j.t.Helper()
	out := map[string]int{}
	body := j.get("/api/traces", url.Values{
		"service": {service}, "limit": {"100000"}, "start": {"0"},
		"end": {strconv.FormatInt(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), 10)},
	})
	if body == nil {
		return out
	}
	var answer struct {
		Data []struct {
			TraceID string            `json:"traceID"`
			Spans   []json.RawMessage `json:"spans"`
		} `json:"data"`
	}
	require.NoError(j.t, json.Unmarshal(body, &answer))
	for _, tr := range answer.Data {
		out[tr.TraceID] += len(tr.Spans)
	}
	return out
}

func (j *jaeger) services() []string {
	j.t.Helper()
	var answer struct {
		Services []string `json:"services"`
	}
	require.NoError(j.t, json.Unmarshal(j.get("/api/v3/services", nil), &answer))
	return answer.Services
}

// TestJaeger_Recordings reads the recordings into Jaeger. It uses only some of the synthetic ones,
// because they share a session id and Jaeger would merge their spans.
func TestJaeger_Recordings(t *testing.T) {
	process.Collector.Find(t)
	process.Jaeger.Find(t)
	root := process.Recordings(t)
	var dirs []string
	for _, name := range []string{
		"a2-h200", "c2-h200-engines", "c3-h200-minigpt", "c3-h200-scopes", "golden-a2-rotated", "golden-c3-rotated",
	} {
		dirs = append(dirs, filepath.Join(root, name))
	}
	compare(t, dirs, nil)
}

// TestJaeger_GeneratedSessions needs no recordings. With a small limit it also tests traces that
// continue in further parts.
func TestJaeger_GeneratedSessions(t *testing.T) {
	process.Collector.Find(t)
	process.Jaeger.Find(t)
	root := t.TempDir()
	for i, layout := range []gpuflgen.Layout{gpuflgen.A2, gpuflgen.C3} {
		summary, err := gpuflgen.Run(t.Context(), gpuflgen.Config{
			Dir: filepath.Join(root, string(layout)), Layout: layout, App: "e2e-" + string(layout),
			Seed: uint64(40 + i), Kernels: 3000, Layers: 2, RotateBytes: 512 << 10,
		})
		require.NoError(t, err)
		require.Equal(t, int64(3000), summary.Rows[gpuflgen.RowKernel])
	}
	compare(t, []string{root}, map[string]any{"max_spans_per_trace": 200})
}

// compare sends the same logs to Jaeger and, with a second run of the same binary, to a sink. It
// compares the two, and the number of kernels with the raw lines.
func compare(t *testing.T, dirs []string, settings map[string]any) {
	t.Helper()
	want := testsink.NewStore()
	server, err := testsink.Listen(want, "")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	kernels := countKernels(t, dirs)
	toSink := process.CollectorConfig{
		Include: dirs, Receiver: settings, Endpoint: server.Endpoint(), Signals: []string{"traces"},
	}.Start(t)
	arrived := want.Settle(2*time.Second, time.Minute, func() bool { return want.Distinct().Spans > kernels })
	require.True(t, arrived, "%d spans and %d kernels in the lines", want.Distinct().Spans, kernels)
	toSink.Stop(20 * time.Second)

	j := startJaeger(t)
	p := process.CollectorConfig{
		Include: dirs, Receiver: settings, Endpoint: j.otlp, Signals: []string{"traces"},
	}.Start(t)
	p.WaitOutput(process.Ready, 30*time.Second)

	byTrace := map[pcommon.TraceID][]testsink.Span{}
	services := map[string]map[pcommon.TraceID]bool{}
	operations := map[any]int{}
	for _, sp := range want.Spans() {
		byTrace[sp.Trace] = append(byTrace[sp.Trace], sp)
		if services[sp.App] == nil {
			services[sp.App] = map[pcommon.TraceID]bool{}
		}
		services[sp.App][sp.Trace] = true
		operations[sp.Attrs["cuda.operation"]]++
	}
	require.Equal(t, kernels, operations["kernel"], "kernels in the lines and at the sink")

	got := testsink.NewStore()
	process.Eventually(t, time.Minute, fmt.Sprintf("%d spans in Jaeger", want.Distinct().Spans), func() bool {
		time.Sleep(200 * time.Millisecond) // each query fetches everything
		now := testsink.NewStore()
		for service := range services {
			now.AddTraces(j.traces(service))
		}
		got = now
		return now.Distinct().Spans >= want.Distinct().Spans
	})
	p.Stop(20 * time.Second)

	var names []string
	for name := range services {
		names = append(names, name)
	}
	assert.ElementsMatch(t, names, j.services())
	for name, traces := range services {
		counts := j.spanCounts(name)
		assert.Len(t, counts, len(traces), "traces of %s", name)
		for id := range traces {
			assert.Equal(t, len(byTrace[id]), counts[id.String()], "spans of trace %s of %s", id, name)
		}
	}

	inJaeger := map[testsink.SpanKey]testsink.Span{}
	for _, sp := range got.Spans() {
		inJaeger[sp.SpanKey] = sp
	}
	require.Len(t, inJaeger, want.Distinct().Spans)
	for _, w := range want.Spans() {
		g, ok := inJaeger[w.SpanKey]
		require.True(t, ok, "%v %s is not in Jaeger", w.Attrs["cuda.operation"], w.Name)
		require.Equal(t, w.Parent, g.Parent, "parent of %s", w.Name)
		require.Equal(t, w.Name, g.Name)
		require.Equal(t, w.App, g.App)
		if w.EndNs == w.StartNs {
			w.EndNs++ // Jaeger requires a duration
		}
		require.Equal(t, [2]uint64{w.StartNs, w.EndNs}, [2]uint64{g.StartNs, g.EndNs}, "times of %s", w.Name)
		// Jaeger adds a warning to a span that was queried before its parent arrived.
		delete(g.Attrs, "@jaeger@warnings")
		require.Equal(t, w.Attrs, g.Attrs, "attributes of %s", w.Name)
		require.Equal(t, w.Links, g.Links, "links of %s", w.Name)
		if !w.Parent.IsEmpty() {
			_, ok := inJaeger[testsink.SpanKey{Trace: w.Trace, Span: w.Parent}]
			require.True(t, ok, "parent of %s is not in its trace", w.Name)
		}
	}

	// Query the largest trace by its id, as the page of a trace does.
	var largest pcommon.TraceID
	for id, members := range byTrace {
		if len(members) > len(byTrace[largest]) {
			largest = id
		}
	}
	one := testsink.NewStore()
	one.AddTraces(j.trace(largest))
	assert.Equal(t, testsink.Counts{Spans: len(byTrace[largest])}, one.Counts(), "trace %s by its id", largest)
	t.Logf("%d services, %d traces, %v", len(services), len(byTrace), operations)
}

// countKernels counts kernels in the raw lines: A2 has one per line, batches one per row.
func countKernels(t *testing.T, dirs []string) (n int) {
	t.Helper()
	for _, dir := range dirs {
		process.Lines(t, dir, func(path string, line []byte) {
			if !strings.Contains(filepath.Base(path), "device.") {
				return
			}
			var r struct {
				Rows []json.RawMessage `json:"rows"`
			}
			switch {
			case bytes.Contains(line, []byte(`"type":"kernel_event"`)):
				n++
			case bytes.Contains(line, []byte(`"type":"kernel_event_batch"`)):
				require.NoError(t, json.Unmarshal(line, &r))
				n += len(r.Rows)
			}
		})
	}
	require.Positive(t, n)
	return n
}
