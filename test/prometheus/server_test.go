// SPDX-License-Identifier: Apache-2.0

//go:build linux

package prometheus_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var (
	prometheus = process.Binary{Env: "GPUFLIGHT_PROMETHEUS", Path: ".tools/prometheus", Make: "make .tools/prometheus"}
)

// findPrometheus returns the path of Prometheus. scripts/prometheus knows Debian's package only.
func findPrometheus(t *testing.T) string {
	t.Helper()
	return prometheus.FindFetched(t, "no Prometheus here, and no apt-get to fetch one with", "prometheus", "apt-get")
}

// collector is a running Collector.
type collector struct {
	t *testing.T
	// otlp, metrics and own are the URLs for spans, for the exposition, and for the collector's own
	// metrics.
	otlp, metrics, own string
	// configs are its configuration files.
	configs []string
	process *process.Process
}

// startCollector runs config/prometheus.yaml with its own ports, logs as the watched folder and
// overlay (YAML or JSON). It returns when all components run.
func startCollector(t *testing.T, logs, overlay string) *collector {
	t.Helper()
	process.Collector.Find(t)
	c := &collector{t: t}
	for _, v := range []struct {
		name string
		url  *string
		path string
	}{
		{"GPUFLIGHT_OTLP_GRPC_PORT", new(string), ""},
		{"GPUFLIGHT_OTLP_HTTP_PORT", &c.otlp, "/v1/traces"},
		{"GPUFLIGHT_PROMETHEUS_PORT", &c.metrics, "/metrics"},
		{"GPUFLIGHT_METRICS_PORT", &c.own, "/metrics"},
	} {
		address := process.FreePort(t)
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		t.Setenv(v.name, port)
		*v.url = "http://" + address + v.path
	}
	t.Setenv("GPUFLIGHT_LOGS", logs)
	t.Setenv("GPUFLIGHT_STATE", filepath.Join(t.TempDir(), "state"))
	more := filepath.Join(t.TempDir(), "overlay.yaml")
	require.NoError(t, os.WriteFile(more, []byte(overlay), 0o600))
	c.configs = []string{filepath.Join(process.Root(t), "config", "prometheus.yaml"), more}
	c.run()
	return c
}

// run starts the program, again with the same ports and the same state.
func (c *collector) run() {
	c.t.Helper()
	var args []string
	for _, path := range c.configs {
		args = append(args, "--config", path)
	}
	c.process = process.Start(c.t, process.Collector.Find(c.t), args...)
	c.process.WaitOutput(process.Ready, 30*time.Second)
}

// send posts spans and requires success.
func (c *collector) send(td ptrace.Traces) {
	c.t.Helper()
	body, err := ptraceotlp.NewExportRequestFromTraces(td).MarshalProto()
	require.NoError(c.t, err)
	answer := c.post(body)
	taken := ptraceotlp.NewExportResponse()
	require.NoError(c.t, taken.UnmarshalProto(answer))
	require.Zero(c.t, taken.PartialSuccess().RejectedSpans())
}

// post sends a request to the OTLP receiver and returns the answer.
func (c *collector) post(body []byte) []byte {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.otlp, bytes.NewReader(body))
	require.NoError(c.t, err)
	req.Header.Set("Content-Type", "application/x-protobuf")
	return do(c.t, req)
}

// exposition returns the result of a scrape with the given format.
func (c *collector) exposition(accept string) string {
	c.t.Helper()
	return c.scrape(c.metrics, accept)
}

func (c *collector) scrape(from, accept string) string {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, from, http.NoBody)
	require.NoError(c.t, err)
	req.Header.Set("Accept", accept)
	return string(do(c.t, req))
}

// total sums all series of a name in one scrape; labels is a part of the text between the braces.
func (c *collector) total(from, name, labels string) (sum float64) {
	c.t.Helper()
	for line := range strings.Lines(c.scrape(from, plainText)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' || !strings.Contains(rest, labels) {
			continue
		}
		fields := strings.Fields(rest)
		v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		require.NoError(c.t, err, line)
		sum += v
	}
	return sum
}

func do(t *testing.T, req *http.Request) []byte {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s: %.500s", req.URL, body)
	return body
}

// server is a running Prometheus.
type server struct {
	t    *testing.T
	base string
}

// startPrometheus scrapes the collector every second (examples/grafana/prometheus.yml: every
// fifteen), with the given features and the alerts of examples/grafana.
func startPrometheus(t *testing.T, metrics, features string) *server {
	t.Helper()
	binary := findPrometheus(t)
	text, err := os.ReadFile(filepath.Join(process.Root(t), "examples", "grafana", "prometheus.yml"))
	require.NoError(t, err)
	target, err := url.Parse(metrics)
	require.NoError(t, err)
	dir := t.TempDir()
	for _, change := range [][2]string{
		{"scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s"},
		{"rule_files: [rules.yml]", "rule_files: [" + quickRules(t, dir) + "]"},
		{"127.0.0.1:9464", target.Host},
	} {
		require.Equal(t, 1, bytes.Count(text, []byte(change[0])), "%s in prometheus.yml", change[0])
		text = bytes.Replace(text, []byte(change[0]), []byte(change[1]), 1)
	}
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, text, 0o600))
	address := process.FreePort(t)
	s := &server{t: t, base: "http://" + address}
	p := process.Start(t, binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--enable-feature="+features, "--log.level=warn")
	t.Cleanup(func() { p.Stop(20 * time.Second) })
	process.Eventually(t, 30*time.Second, "Prometheus is ready", func() bool {
		resp, err := http.Get(s.base + "/-/ready")
		if err != nil {
			require.True(t, p.Running(), "Prometheus ended: %s", p.Output())
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	})
	return s
}

// sample is one series of the result of an instant query.
type sample struct {
	labels map[string]string
	value  float64
}

// get queries Prometheus' API and decodes the data of the answer.
func (s *server) get(path string, query url.Values, data any) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.base+path+"?"+query.Encode(), http.NoBody)
	require.NoError(s.t, err)
	answer := struct {
		Status string `json:"status"`
		Data   any    `json:"data"`
	}{Data: data}
	require.NoError(s.t, json.Unmarshal(do(s.t, req), &answer))
	require.Equal(s.t, "success", answer.Status)
}

// query evaluates an expression now.
func (s *server) query(expr string) []sample {
	s.t.Helper()
	var data struct {
		ResultType string `json:"resultType"`
		Result     []struct {
			Metric map[string]string `json:"metric"`
			// Value is the time and the value, the latter as text.
			Value [2]any `json:"value"`
		} `json:"result"`
	}
	s.get("/api/v1/query", url.Values{"query": {expr}}, &data)
	require.Equal(s.t, "vector", data.ResultType, expr)
	out := make([]sample, 0, len(data.Result))
	for _, r := range data.Result {
		v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		require.NoError(s.t, err, expr)
		out = append(out, sample{r.Metric, v})
	}
	return out
}

// number returns the value of an expression with one series, or zero for none.
func (s *server) number(expr string) float64 {
	s.t.Helper()
	got := s.query(expr)
	if len(got) == 0 {
		return 0
	}
	require.Len(s.t, got, 1, expr)
	return got[0].value
}

// by returns the values of an expression by one label; "" is the key of series without it.
func (s *server) by(label, expr string) map[string]float64 {
	s.t.Helper()
	out := map[string]float64{}
	for _, got := range s.query(expr) {
		_, twice := out[got.labels[label]]
		require.False(s.t, twice, "%s: two series with %s=%q", expr, label, got.labels[label])
		out[got.labels[label]] = got.value
	}
	return out
}

// eventually waits until an expression has the value. The test fails with the actual value.
func (s *server) eventually(limit time.Duration, expr string, want float64) {
	s.t.Helper()
	var last float64
	defer func() {
		if s.t.Failed() {
			s.t.Logf("%s was %v last, want %v", expr, last, want)
		}
	}()
	process.Eventually(s.t, limit, fmt.Sprintf("%s is %v", expr, want), func() bool {
		time.Sleep(100 * time.Millisecond)
		last = s.number(expr)
		return last >= want-1e-12 && last <= want+1e-12
	})
}
