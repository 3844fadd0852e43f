// SPDX-License-Identifier: Apache-2.0

//go:build linux

package prometheus_test

import (
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// arrive limits the wait for values that arrive within two or three seconds on an idle machine.
const arrive = 40 * time.Second

const (
	plainText   = "text/plain; version=0.0.4"
	openMetrics = "application/openmetrics-text; version=1.0.0"
)

// generate writes a session of three hours ago and returns its summary.
func generate(t *testing.T, dir string) gpuflgen.Summary {
	t.Helper()
	sum, err := gpuflgen.Run(t.Context(), gpuflgen.Config{Dir: dir, Seed: 1, Start: time.Now().Add(-3 * time.Hour)})
	require.NoError(t, err)
	require.Positive(t, sum.Rows[gpuflgen.RowKernel])
	return sum
}

// TestPrometheus_Usage tests everything in one run, because the start takes longest: a generated
// session through gpuflog, two waves of spans over OTLP, and then queries to Prometheus.
func TestPrometheus_Usage(t *testing.T) {
	findPrometheus(t)
	logs := t.TempDir()
	sum := generate(t, logs)
	c := startCollector(t, logs, settings)
	s := startPrometheus(t, c.metrics, "exemplar-storage")

	w := waves{start: time.Now().Add(-time.Hour).Truncate(time.Second)}
	first := w.wave(0)
	c.send(first)
	c.send(first) // a repeated delivery has no effect
	const ofWaves = `{service_name=~"train|infer"}`
	s.eventually(arrive, "sum(gpu_cuda_kernel_launch_calls_total"+ofWaves+")", 5)
	// 9 ms of GPU-a and 4 of GPU-b: the first wave is complete before the second arrives.
	s.eventually(arrive, `sum(gpu_cuda_observed_time_seconds_total{hw_id=~"`+gpuA+`|`+gpuB+`"})`, 0.013)
	between := time.Now()
	c.send(w.wave(1))
	s.eventually(arrive, `sum(gpu_cuda_observed_time_seconds_total{hw_id=~"`+gpuA+`|`+gpuB+`"})`, 0.033)
	s.eventually(arrive, "sum(gpu_cuda_kernel_launch_calls_total"+ofWaves+")", 10)
	// A scrape may see a part of a batch of metrics.
	s.eventually(arrive, `sum(gpu_cuda_cost_total{hw_id=~"`+gpuA+`|`+gpuB+`"})`, costOfWaves)
	kernels := float64(sum.Rows[gpuflgen.RowKernel])
	s.eventually(arrive, `sum(gpu_cuda_kernel_launch_calls_total{service_name="minigpt"})`, kernels)

	t.Run("waves", func(t *testing.T) { checkWaves(t, s) })
	t.Run("growth", func(t *testing.T) { checkGrowth(t, s, between) })
	t.Run("session", func(t *testing.T) { checkSession(t, s, sum) })
	t.Run("exposition", func(t *testing.T) { checkExposition(t, c) })
	t.Run("promtool", func(t *testing.T) { checkPromtool(t, c) })
	t.Run("dashboard", func(t *testing.T) {
		// A rate needs two samples of a series, and the series of the second wave are new.
		s.eventually(arrive, `sum(count_over_time(gpu_cuda_cost_total{service_name="_idle", hw_id="`+gpuB+`"}[5m]) >= bool 3)`, 1)
		const noGraphs = "no graph was launched"
		checkDashboard(t, s, "gpuflight.json", map[string]string{"Launches/B": noGraphs, "Launches/C": noGraphs})
	})
	t.Run("documentation", func(t *testing.T) { checkDocumentation(t, s) })
	t.Run("exemplars", func(t *testing.T) { checkExemplars(t, c, s, &w) })
	c.process.Stop(20 * time.Second)
}

// costOfWaves is the cost of 19 ms of GPU-a and 14 ms of GPU-b, in EUR.
const costOfWaves = (19*3.60 + 14*0.72) / 3.6e6

// near compares values that were added in a different order.
func near(t *testing.T, want, got map[string]float64, what string) {
	t.Helper()
	for k, v := range want {
		assert.InDelta(t, v, got[k], 1e-9*math.Abs(v), "%s of %q", what, k)
	}
	assert.Len(t, got, len(want), "%s: %v", what, got)
}

// checkWaves compares with the comment on the waves.
func checkWaves(t *testing.T, s *server) {
	const ours = `hw_id=~"` + gpuA + `|` + gpuB + `"`
	near(t, map[string]float64{gpuA: 0.014, gpuB: 0.008},
		s.by("hw_id", `gpu_cuda_busy_time_seconds_total{`+ours+`}`), "busy time")
	near(t, map[string]float64{gpuA: 0.019, gpuB: 0.014},
		s.by("hw_id", `gpu_cuda_observed_time_seconds_total{`+ours+`}`), "observed time")
	near(t, map[string]float64{"kernel": 0.010, "memcpy": 0.002},
		s.by("cuda_operation", `gpu_cuda_time_seconds_total{service_name="train", cuda_scope_name="step"}`), "device time of train")
	near(t, map[string]float64{gpuA: 0.008, gpuB: 0.012},
		s.by("hw_id", `gpu_cuda_time_seconds_total{service_name="infer", cuda_operation="kernel"}`), "device time of infer")
	near(t, map[string]float64{train: 4, infer: 6},
		s.by("service_name", `sum by (service_name) (gpu_cuda_kernel_launch_calls_total{`+ours+`})`), "launches")
	near(t, map[string]float64{"gemm": 0.008, "reduce": 0.002, "decode": 0.020},
		s.by("cuda_kernel_name", `sum by (cuda_kernel_name) (gpu_cuda_kernel_duration_seconds_sum{`+ours+`})`), "time by kernel")
	near(t, map[string]float64{"gemm": 2, "reduce": 2, "decode": 6},
		s.by("cuda_kernel_name", `sum by (cuda_kernel_name) (gpu_cuda_kernel_duration_seconds_count{`+ours+`})`), "launches by kernel")
	near(t, map[string]float64{"HtoD": 2 * copyBytes},
		s.by("cuda_memcpy_kind", `gpu_cuda_memory_copies_bytes_sum{`+ours+`}`), "bytes copied")
	near(t, map[string]float64{"HtoD": 2},
		s.by("cuda_memcpy_kind", `gpu_cuda_memory_copies_bytes_count{`+ours+`}`), "copies")
	assert.InDelta(t, 10*queueDelay, s.number(`sum(gpu_cuda_queue_duration_seconds_sum{`+ours+`})`), 1e-12)
	near(t, map[string]float64{"copy": 0.008, "host": 0.007, "sync": 0.014},
		s.by("cuda_gap_after", `sum by (cuda_gap_after) (gpu_cuda_stream_gap_duration_seconds_sum{`+ours+`})`), "gaps")

	near(t, map[string]float64{train: 10e-6, infer: 7.6e-6, "_idle": 4.2e-6},
		s.by("service_name", `sum by (service_name) (gpu_cuda_cost_total{`+ours+`, cuda_cost_currency="EUR"})`), "cost")
	near(t, map[string]float64{request: 7.6e-6},
		s.by("cuda_request_operation", `sum by (cuda_request_operation) (gpu_cuda_cost_total{service_name="infer"})`), "cost by request")
	// The total cost is the cost of the devices.
	assert.InDelta(t, costOfWaves, s.number(`sum(gpu_cuda_cost_total{`+ours+`})`), 1e-15)

	// Quantiles are computed from classic buckets: all six launches of decode last 3 or 4 ms.
	p50 := s.number(`histogram_quantile(0.5, sum by (le) (gpu_cuda_kernel_duration_seconds_bucket{cuda_kernel_name="decode"}))`)
	assert.True(t, p50 > 1e-3 && p50 < 10e-3, "p50 is %v", p50)
	assert.InDelta(t, 6, s.number(`sum(gpu_cuda_kernel_duration_seconds_bucket{cuda_kernel_name="decode", le="+Inf"})`), 0)

	// Series of a device must not have labels of a service; all others must have them.
	labels := func(expr string) []string {
		got := s.query(expr)
		require.Len(t, got, 1, expr)
		var names []string
		for name := range got[0].labels {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	assert.Equal(t, []string{"__name__", "host_name", "hw_id", "hw_name", "instance", "job"},
		labels(`gpu_cuda_busy_time_seconds_total{hw_id="`+gpuA+`"}`))
	assert.Equal(t, []string{"__name__", "cuda_operation", "cuda_scope_name", "host_name", "hw_id", "hw_name", "instance", "job", "service_name"},
		labels(`gpu_cuda_time_seconds_total{service_name="train", cuda_operation="kernel"}`))
}

// checkGrowth checks the increase of the counters, which is the second wave. Prometheus
// extrapolates some to the edges of the range.
func checkGrowth(t *testing.T, s *server, between time.Time) {
	// It extrapolates by at most 1.1 of the time between two samples at each edge: by 37 % of six such times.
	s.eventually(arrive, `sum(count_over_time(gpu_cuda_cost_total{service_name="train"}[5m]) >= bool 7)`, 1)
	at := strconv.FormatFloat(float64(between.UnixMilli())/1e3, 'f', 3, 64)
	for expr, want := range map[string]float64{
		`gpu_cuda_busy_time_seconds_total{hw_id="` + gpuA + `"}`:        0.007,
		`sum(gpu_cuda_time_seconds_total{service_name="infer"})`:        0.010,
		`sum(gpu_cuda_cost_total{service_name="train"})`:                5e-6,
		`sum(gpu_cuda_kernel_launch_calls_total{service_name="train"})`: 2,
	} {
		inner := strings.TrimSuffix(strings.TrimPrefix(expr, "sum("), ")")
		assert.InDelta(t, want, s.number(`sum(`+inner+` - `+inner+` @ `+at+`)`), want*1e-6, inner)
		assert.InEpsilon(t, want, s.number(`sum(increase(`+inner+`[5m]))`), 0.5, inner)
	}
}

// checkSession compares with the generator's summary.
func checkSession(t *testing.T, s *server, sum gpuflgen.Summary) {
	const ours = `{service_name="minigpt"}`
	seconds := func(ns int64) float64 { return float64(ns) / 1e9 }
	near(t, map[string]float64{"kernel": seconds(sum.KernelNanos), "memcpy": seconds(sum.CopyNanos)},
		s.by("cuda_operation", `sum by (cuda_operation) (gpu_cuda_time_seconds_total{service_name="minigpt", cuda_operation=~"kernel|memcpy"})`), "device time")

	times, counts := map[string]float64{}, map[string]float64{}
	for name, k := range sum.Kernels {
		times[name], counts[name] = seconds(k.Nanos), float64(k.Count)
	}
	near(t, times, s.by("cuda_kernel_name", `sum by (cuda_kernel_name) (gpu_cuda_kernel_duration_seconds_sum`+ours+`)`), "time by kernel")
	near(t, counts, s.by("cuda_kernel_name", `sum by (cuda_kernel_name) (gpu_cuda_kernel_duration_seconds_count`+ours+`)`), "launches by kernel")

	byScope := map[string]float64{}
	for path, n := range sum.KernelsByScope {
		name := path[strings.LastIndex(path, "|")+1:]
		if path == "global" {
			name = ""
		}
		byScope[name] += float64(n)
	}
	near(t, byScope, s.by("cuda_scope_name", `sum by (cuda_scope_name) (gpu_cuda_kernel_launch_calls_total`+ours+`)`), "launches by scope")

	assert.InDelta(t, float64(sum.CopyBytes), s.number(`sum(gpu_cuda_memory_copies_bytes_sum`+ours+`)`), 0)
	assert.InDelta(t, float64(sum.Rows[gpuflgen.RowCopy]), s.number(`sum(gpu_cuda_memory_copies_bytes_count`+ours+`)`), 0)

	// The session has one device. Its streams overlap, so its busy time is less than the sum of its
	// kernels, and its observed time is at most that of the session.
	const device = ` * on (hw_id) group_left () (count by (hw_id) (gpu_cuda_time_seconds_total` + ours + `) > bool 0)`
	busy := s.number(`gpu_cuda_busy_time_seconds_total` + device)
	assert.True(t, busy > seconds(sum.KernelNanos)/4 && busy <= seconds(sum.KernelNanos), "busy for %v s", busy)
	observed := s.number(`gpu_cuda_observed_time_seconds_total` + device)
	length := seconds(sum.Sessions[0].EndUnixNano - sum.Sessions[0].StartUnixNano)
	assert.True(t, observed >= busy && observed <= length, "observed for %v s, a session of %v s", observed, length)

	// gpuflog's own device metrics: the same device, in base units.
	limit := s.query(`hw_gpu_memory_limit_bytes`)
	require.Len(t, limit, 1)
	assert.InDelta(t, 143771<<20, limit[0].value, 0)
	assert.InDelta(t, 1, s.number(`count(hw_gpu_memory_limit_bytes and on (hw_id, hw_name, host_name) gpu_cuda_busy_time_seconds_total)`), 0)
	for expr, bounds := range map[string][2]float64{
		`hw_temperature_celsius`:                     {20, 110},
		`hw_power_watts`:                             {20, 1500},
		`hw_gpu_utilization_ratio`:                   {0, 1},
		`hw_gpu_memory_usage_bytes`:                  {1, 143771 << 20},
		`hw_gpu_speed_hertz{hw_gpu_clock_domain=""}`: {},
	} {
		got := s.query(expr)
		if bounds == [2]float64{} {
			assert.Empty(t, got, expr)
			continue
		}
		require.Len(t, got, 1, expr)
		assert.True(t, got[0].value >= bounds[0] && got[0].value <= bounds[1], "%s is %v", expr, got[0].value)
		assert.Empty(t, got[0].labels["service_instance_id"], "a session must not make series of its own")
	}
}

// checkExemplars searches launches of gemm, 4 ms, in the exposition and in Prometheus. It sends
// more waves, because an exemplar is on the points of one export only, and a scrape may miss it.
func checkExemplars(t *testing.T, c *collector, s *server, w *waves) {
	type exemplar struct {
		Labels map[string]string `json:"labels"`
		Value  string            `json:"value"`
	}
	var scraped []exemplar
	inText := regexp.MustCompile(`(?m)^gpu_cuda_kernel_duration_seconds_bucket\{cuda_kernel_name="gemm".*,le="0\.005"\} \d+ # \{(?:span_id="[0-9a-f]{16}"|trace_id="[0-9a-f]{32}"|,)+\} 0\.004 `)
	seen := false
	for n := 2; n < 10 && (!seen || len(scraped) == 0); n++ {
		c.send(w.wave(n))
		for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			seen = seen || inText.MatchString(c.exposition(openMetrics))
		}
		var data []struct {
			Exemplars []exemplar `json:"exemplars"`
		}
		s.get("/api/v1/query_exemplars", url.Values{
			"query": {`gpu_cuda_kernel_duration_seconds_bucket{cuda_kernel_name="gemm"}`},
			// The time of an exemplar is the end of its span.
			"start": {w.start.Add(-time.Hour).Format(time.RFC3339)}, "end": {time.Now().Format(time.RFC3339)},
		}, &data)
		for _, series := range data {
			scraped = append(scraped, series.Exemplars...)
		}
	}
	assert.True(t, seen, "no exemplar of gemm in the exposition")
	assert.NotEmpty(t, scraped, "no exemplar of gemm in Prometheus")
	for _, e := range scraped {
		value, err := strconv.ParseFloat(e.Value, 64)
		require.NoError(t, err)
		assert.InDelta(t, 0.004, value, 1e-12)
		// Ids are numbers, see waves, so this is one of our spans.
		assert.Regexp(t, `^0{15}10{14}[0-9a-f]{2}$`, e.Labels["trace_id"])
		assert.Regexp(t, `^0{14}[0-9a-f]{2}$`, e.Labels["span_id"])
	}
}

// checkExposition checks the text of a scrape in both formats.
func checkExposition(t *testing.T, c *collector) {
	plain, modern := c.exposition(plainText), c.exposition(openMetrics)
	lines := func(text string) map[string]bool {
		set := map[string]bool{}
		for line := range strings.Lines(text) {
			set[strings.TrimSuffix(line, "\n")] = true
		}
		return set
	}
	inPlain, inModern := lines(plain), lines(modern)
	for family, kind := range map[string]string{
		"gpu_cuda_busy_time_seconds":           "counter",
		"gpu_cuda_observed_time_seconds":       "counter",
		"gpu_cuda_time_seconds":                "counter",
		"gpu_cuda_kernel_launch_calls":         "counter",
		"gpu_cuda_cost":                        "counter",
		"gpu_cuda_kernel_duration_seconds":     "histogram",
		"gpu_cuda_queue_duration_seconds":      "histogram",
		"gpu_cuda_stream_gap_duration_seconds": "histogram",
		"gpu_cuda_memory_copies_bytes":         "histogram",
		"hw_energy_joules":                     "counter",
		"hw_errors":                            "counter",
		"hw_gpu_utilization_ratio":             "gauge",
		"hw_gpu_memory_usage_bytes":            "gauge",
		"hw_power_watts":                       "gauge",
		"hw_temperature_celsius":               "gauge",
		"hw_gpu_speed_hertz":                   "gauge",
	} {
		name := family
		if kind == "counter" {
			name += "_total"
		}
		assert.True(t, inPlain["# TYPE "+name+" "+kind], "type of %s", name)
		// OpenMetrics names the family; only its samples have the suffix.
		assert.True(t, inModern["# TYPE "+family+" "+kind], "type of %s in OpenMetrics", family)
		assert.True(t, regexp.MustCompile(`(?m)^# HELP `+name+` [A-Z].+\.$`).MatchString(plain), "help of %s", name)
	}
	// Units in braces such as {call} and {currency} are annotations, not parts of a name.
	for _, line := range regexp.MustCompile(`(?m)^# TYPE (\S+) .*$`).FindAllStringSubmatch(plain, -1) {
		assert.Regexp(t, `^(gpu_cuda|hw|system|process|target)_[a-z_]+$`, line[1])
		assert.NotContains(t, line[1], "currency")
	}
	assert.True(t, strings.HasSuffix(modern, "# EOF\n"))
	assert.False(t, regexp.MustCompile(`otel_scope`).MatchString(plain), "names of components are labels")
}

// checkPromtool runs promtool on the exposition. It must report nothing about our names.
func checkPromtool(t *testing.T, c *collector) {
	tool := filepath.Join(filepath.Dir(findPrometheus(t)), "promtool")
	if _, err := os.Stat(tool); err != nil {
		t.Skipf("promtool is not beside Prometheus: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), tool, "check", "metrics")
	cmd.Stdin = strings.NewReader(c.exposition(plainText))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Empty(t, string(out))
}

// TestPrometheus_NativeHistograms follows docs/prometheus.md: without the block of histograms the
// durations are native histograms, which Prometheus scrapes as protobuf if configured.
func TestPrometheus_NativeHistograms(t *testing.T) {
	findPrometheus(t)
	c := startCollector(t, t.TempDir(), settings+"    histograms:\n      kind: exponential\n")
	s := startPrometheus(t, c.metrics, "native-histograms,exemplar-storage")
	w := waves{start: time.Now().Add(-time.Hour).Truncate(time.Second)}
	c.send(w.wave(0))
	c.send(w.wave(1))
	s.eventually(arrive, `histogram_count(sum(gpu_cuda_kernel_duration_seconds{service_name=~"train|infer"}))`, 10)
	near(t, map[string]float64{"gemm": 0.008, "reduce": 0.002, "decode": 0.020},
		s.by("cuda_kernel_name", `histogram_sum(sum by (cuda_kernel_name) (gpu_cuda_kernel_duration_seconds))`), "time by kernel")
	// Every gemm lasts 4 ms. A native bucket is a few percent wide, a classic one spans 2.5 to 5
	// ms.
	p50 := s.number(`histogram_quantile(0.5, sum by (cuda_kernel_name) (gpu_cuda_kernel_duration_seconds{cuda_kernel_name="gemm"}))`)
	assert.InEpsilon(t, 0.004, p50, 0.05)
	assert.Empty(t, s.query(`gpu_cuda_kernel_duration_seconds_bucket`))
	near(t, map[string]float64{"HtoD": 2 * copyBytes}, s.by("cuda_memcpy_kind", `gpu_cuda_memory_copies_bytes_sum`), "bytes copied")
	c.process.Stop(20 * time.Second)
}

// TestDocs_CostExample uncomments the prices in config/prometheus.yaml.
func TestDocs_CostExample(t *testing.T) {
	binary := process.Collector.Find(t)
	text, err := os.ReadFile(filepath.Join(process.Root(t), "config", "prometheus.yaml"))
	require.NoError(t, err)
	block := regexp.MustCompile(`(?m)^    # cost:\n(?:    #   .*\n)+`).Find(text)
	require.NotNil(t, block)
	plain := regexp.MustCompile(`(?m)^    # `).ReplaceAll(block, []byte("    "))
	path := filepath.Join(t.TempDir(), "prometheus.yaml")
	for currency, valid := range map[string]bool{"USD": true, `""`: false} {
		changed := strings.Replace(strings.Replace(string(text), string(block), string(plain), 1), "currency: USD", "currency: "+currency, 1)
		require.NotEqual(t, string(text), changed)
		require.NoError(t, os.WriteFile(path, []byte(changed), 0o600))
		out, err := exec.CommandContext(t.Context(), binary, "validate", "--config", path).CombinedOutput()
		assert.Equal(t, valid, err == nil, "currency %s: %s", currency, out)
	}
}

// TestPrometheus_RejectionAndKill sends the traces to a backend that rejects them, so that the same
// batches are retried. Then it kills the collector, and the backend accepts everything after the
// restart. The metrics must count the session once.
func TestPrometheus_RejectionAndKill(t *testing.T) {
	store := testsink.NewStore()
	backend, err := testsink.Listen(store, "")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, backend.Close()) })
	backend.SetMode(testsink.Unavailable)
	logs := t.TempDir()
	sum := generate(t, logs)
	kernels, seconds := float64(sum.Rows[gpuflgen.RowKernel]), float64(sum.KernelNanos)/1e9
	c := startCollector(t, logs, settings+`
exporters:
  otlp_grpc:
    endpoint: `+backend.Endpoint()+`
    tls: {insecure: true}
    retry_on_failure: {enabled: false}
    sending_queue: {enabled: false}
service:
  pipelines:
    traces:
      exporters: [otlp_grpc, gpu_usage]
`)
	const launches, deviceTime = "gpu_cuda_kernel_launch_calls_total", "gpu_cuda_time_seconds_total"
	counted := func() bool {
		time.Sleep(100 * time.Millisecond)
		return c.total(c.metrics, launches, "") >= kernels
	}
	duplicates := func() float64 {
		return c.total(c.own, "otelcol_connector_gpu_usage_duplicates", "")
	}
	// While its first batches are rejected the receiver waits, and a repeated batch adds nothing.
	process.Eventually(t, arrive, "a batch has come twice", func() bool {
		time.Sleep(100 * time.Millisecond)
		return duplicates() > 0
	})
	assert.Empty(t, store.Spans())
	c.process.Kill()
	backend.SetMode(testsink.Accept)
	c.run()
	process.Eventually(t, arrive, "the metrics count all kernels", counted)
	require.True(t, store.Settle(time.Second, arrive, func() bool { return store.Distinct().Spans > int(kernels) }))
	assert.Positive(t, duplicates(), "what was counted before the kill came again after it")
	assert.InDelta(t, kernels, c.total(c.metrics, launches, ""), 0)
	assert.InDelta(t, seconds, c.total(c.metrics, deviceTime, `cuda_operation="kernel"`), 1e-9)
	c.process.Stop(20 * time.Second)
}

// TestPrometheus_HardwareCounters reads the recordings, which have hardware counters, with the
// shipped configuration and with one without the filter.
func TestPrometheus_HardwareCounters(t *testing.T) {
	logs := process.Recordings(t)
	for name, test := range map[string]struct {
		overlay string
		want    bool
	}{
		"as shipped":         {settings, false},
		"without the filter": {settings + "service: {pipelines: {metrics/devices: {processors: [transform/devices]}}}\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := startCollector(t, logs, test.overlay)
			// The counters are in the same file as this device.
			process.Eventually(t, arrive, "device metrics of the recordings", func() bool {
				time.Sleep(100 * time.Millisecond)
				return c.total(c.metrics, "hw_gpu_memory_limit_bytes", "Demo GPU") > 0
			})
			counters := func() bool { return c.total(c.metrics, "gpu_cuda_counter", "") > 0 }
			if test.want {
				process.Eventually(t, arrive, "hardware counters", counters)
			} else {
				time.Sleep(time.Second) // for unexpected series
				assert.False(t, counters())
			}
			c.process.Stop(20 * time.Second)
		})
	}
}
