// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// uiTrace is a trace as Jaeger's UI reads it (types/trace.ts of v2.13).
type uiTrace struct {
	TraceID   string
	Spans     []uiSpan
	Processes map[string]struct {
		ServiceName string
		Tags        []uiTag
	}
}

type uiSpan struct {
	TraceID, SpanID, OperationName, ProcessID string
	StartTime, Duration                       int64
	References                                []struct{ RefType, TraceID, SpanID string }
	Tags                                      []uiTag
	Logs                                      []struct {
		Timestamp int64
		Fields    []uiTag
	}
}

type uiTag struct {
	Key, Type string
	Value     any
}

// sorted returns the trace with its lists in the order of their keys, and without names of
// processes: the UI uses neither.
func (u uiTrace) sorted() (process map[string]any, spans []uiSpan) {
	byKey := func(a, b uiTag) int { return cmp.Compare(a.Key, b.Key) }
	process = map[string]any{}
	for i := range u.Spans {
		p := u.Processes[u.Spans[i].ProcessID]
		slices.SortFunc(p.Tags, byKey)
		process[u.Spans[i].SpanID] = p
		u.Spans[i].ProcessID = ""
		slices.SortFunc(u.Spans[i].Tags, byKey)
		for _, log := range u.Spans[i].Logs {
			slices.SortFunc(log.Fields, byKey)
		}
	}
	slices.SortFunc(u.Spans, func(a, b uiSpan) int { return cmp.Compare(a.SpanID, b.SpanID) })
	return process, u.Spans
}

// uiRequests sends the requests that the UI's pages send (src/api/jaeger of v2.13, and v3/client.ts
// of v2.19 for the last one).
type uiRequests struct{ *jaeger }

func (u uiRequests) read(path string, query url.Values, into any) {
	body := u.get(path, query)
	require.NotNil(u.t, body, "%s %v", path, query)
	answer := struct{ Data any }{into}
	require.NoError(u.t, json.Unmarshal(body, &answer))
}

func (u uiRequests) names(path string) (names []string) {
	u.read(path, nil, &names)
	slices.Sort(names)
	return names
}

func (u uiRequests) search(service string) (list []uiTrace) {
	u.read("/api/traces", url.Values{
		"service": {service}, "limit": {"1000"}, "lookback": {"custom"}, "minDuration": {""}, "maxDuration": {""},
		"start": {"0"}, "end": {strconv.FormatInt(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), 10)},
	}, &list)
	slices.SortFunc(list, func(a, b uiTrace) int { return cmp.Compare(a.TraceID, b.TraceID) })
	return list
}

func (u uiRequests) trace(id string) uiTrace {
	var list []uiTrace
	u.read("/api/traces/"+id, nil, &list)
	require.Len(u.t, list, 1)
	return list[0]
}

// TestJaeger_UIReadsStore sends the same recordings to a Collector with a store and to Jaeger, and
// the requests of Jaeger's UI to both. The answers must be equal, and have the spans that were
// recorded.
func TestJaeger_UIReadsStore(t *testing.T) {
	collector := process.Collector.Find(t)
	process.Jaeger.Find(t)
	files, err := filepath.Glob(filepath.Join(process.Root(t), "examples", "recordings", "*.otlp.jsonl.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	dir := t.TempDir()
	recorded := map[string][]ptrace.Span{} // by trace
	for _, file := range files {
		require.NoError(t, os.Symlink(file, filepath.Join(dir, filepath.Base(file))))
		_, err := otlp.ReadFile(file, otlp.Handler{Traces: func(td ptrace.Traces) {
			for _, rs := range td.ResourceSpans().All() {
				for _, ss := range rs.ScopeSpans().All() {
					for _, p := range ss.Spans().All() {
						recorded[p.TraceID().String()] = append(recorded[p.TraceID().String()], p)
					}
				}
			}
		}})
		require.NoError(t, err)
	}

	api, listen := process.FreePort(t), process.FreePort(t)
	_, port, err := net.SplitHostPort(process.FreePort(t))
	require.NoError(t, err)
	only := filepath.Join(t.TempDir(), "only.yaml") // no data of this machine, and no attributes that Jaeger does not get
	require.NoError(t, os.WriteFile(only, []byte(`{service: {pipelines: {traces: {receivers: [otlp], processors: [memory_limiter]}, logs: {receivers: [otlp]}, metrics: {receivers: [otlp, gpu_usage]}}}}`), 0o600))
	process.Start(t, "/usr/bin/env", "GPUFLIGHT_LOGS="+t.TempDir(), "GPUFLIGHT_STATE="+t.TempDir(), "GPUFLIGHT_LISTEN="+listen, "GPUFLIGHT_LISTEN_HTTP="+process.FreePort(t),
		"GPUFLIGHT_UI="+api, "GPUFLIGHT_METRICS_PORT="+port, "GPUFLIGHT_PROMETHEUS_PORT=0",
		collector, "--config", filepath.Join(process.Root(t), "config", "local.yaml"), "--config", only).WaitOutput(process.Ready, time.Minute)
	j := startJaeger(t)
	theirs, ours := uiRequests{j}, uiRequests{&jaeger{t: t, api: "http://" + api}}
	for _, endpoint := range []string{j.otlp, listen} {
		p, _ := startReplay(t, dir, endpoint, map[string]any{ // Jaeger accepts traces only
			"exporters": map[string]any{"nop": nil},
			"service": map[string]any{"pipelines": map[string]any{
				"metrics": map[string]any{"exporters": []string{"nop"}},
				"logs":    map[string]any{"exporters": []string{"nop"}},
			}},
		})
		u := uiRequests{&jaeger{t: t, api: map[bool]string{true: j.api, false: "http://" + api}[endpoint == j.otlp]}}
		process.Eventually(t, time.Minute, "all spans arrived at "+u.api, func() bool {
			time.Sleep(200 * time.Millisecond)
			for id, spans := range recorded {
				body := u.get("/api/traces/"+id, nil)
				if body == nil || strings.Count(string(body), `"operationName"`) < len(spans) {
					return false
				}
			}
			return true
		})
		p.Stop(20 * time.Second)
	}

	services := theirs.names("/api/services")
	assert.Len(t, services, len(files))
	assert.Equal(t, services, ours.names("/api/services"))
	found := map[string]bool{}
	for _, service := range services {
		// A kernel or copy is no operation of a search in the store.
		assert.Subset(t, theirs.names("/api/services/"+service+"/operations"), ours.names("/api/services/"+service+"/operations"))
		want, got := theirs.search(service), ours.search(service)
		require.Len(t, got, len(want), service)
		for i := range want {
			id := want[i].TraceID
			require.Equal(t, id, got[i].TraceID)
			found[id] = true
			opened := ours.trace(id)
			require.Len(t, opened.Spans, len(recorded[id]))
			requireTree(t, recorded[id], opened)
			assert.Equal(t, got[i], opened)
			wantProcess, wantSpans := want[i].sorted()
			gotProcess, gotSpans := got[i].sorted()
			require.Equal(t, wantSpans, gotSpans)
			require.Equal(t, wantProcess, gotProcess)
		}
	}
	assert.Len(t, found, len(recorded))

	t.Run("proxy", func(t *testing.T) {
		u := uiRequests{&jaeger{t: t, api: startProxy(t, api, strings.TrimPrefix(j.api, "http://"))}}
		assert.Equal(t, services, u.names("/api/services"))
		for id := range found {
			assert.Equal(t, ours.trace(id), u.trace(id))
			break
		}
		assert.Equal(t, j.get("/search", nil), u.get("/search", nil), "a page of the UI")
		// The Collector does not have Jaeger's dependencies: the proxy does not ask Jaeger.
		assert.Nil(t, u.get("/api/dependencies", url.Values{"endTs": {"1"}}))
	})
}

// requireTree links the spans as the UI does (model/transform-trace-data.ts): the parent is the first
// reference to a span of the trace.
func requireTree(t *testing.T, recorded []ptrace.Span, trace uiTrace) {
	t.Helper()
	byID := map[string]*uiSpan{}
	for i := range trace.Spans {
		byID[trace.Spans[i].SpanID] = &trace.Spans[i]
	}
	for _, want := range recorded {
		got := byID[want.SpanID().String()]
		require.NotNil(t, got, want.Name())
		require.Equal(t, want.Name(), got.OperationName)
		require.Equal(t, int64(want.StartTimestamp()/1000), got.StartTime)
		require.Equal(t, int64((want.EndTimestamp()-want.StartTimestamp())/1000), got.Duration)
		parent := ""
		for _, ref := range got.References {
			if byID[ref.SpanID] != nil {
				parent = ref.SpanID
				break
			}
		}
		if want.ParentSpanID() != (pcommon.SpanID{}) {
			require.Equal(t, want.ParentSpanID().String(), parent, want.Name())
		}
	}
}

// startProxy runs nginx with the file of config and returns its base URL.
func startProxy(t *testing.T, collector, jaeger string) string {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed")
	}
	conf, err := os.ReadFile(filepath.Join(process.Root(t), "config", "nginx-jaeger-ui.conf"))
	require.NoError(t, err)
	address := process.FreePort(t)
	server := string(conf)
	for from, to := range map[string]string{"127.0.0.1:16687": address, "127.0.0.1:8686": collector, "127.0.0.1:16686": jaeger} {
		require.Equal(t, 1, strings.Count(server, from), from)
		server = strings.ReplaceAll(server, from, to)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "nginx.conf")
	temporary := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
	}
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf("daemon off;\nmaster_process off;\npid %s/pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n%s%s}\n", dir, temporary, server)), 0o600))
	p := process.Start(t, nginx, "-p", dir, "-c", file)
	t.Cleanup(func() { p.Stop(20 * time.Second) })
	process.Eventually(t, 20*time.Second, "nginx listens", func() bool {
		r, err := http.Get("http://" + address + "/")
		if err != nil {
			return false
		}
		return r.Body.Close() == nil && r.StatusCode == http.StatusOK
	})
	return "http://" + address
}
