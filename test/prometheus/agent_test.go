// SPDX-License-Identifier: Apache-2.0

//go:build linux

package prometheus_test

import (
	"net"
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
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest"
	"github.com/gpuflight/gpuflight/semconv"
)

// startAgent runs the agent as Prometheus scrapes it, with two H200s of a fake NVML. Its process has
// 4 GiB of the first and keeps it busy for half of the time.
func startAgent(t *testing.T) (c *collector, control *nvmltest.Control) {
	t.Helper()
	library, err := nvmltest.Build()
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "control")
	control = nvmltest.New(path)
	pid := strconv.Itoa(os.Getpid())
	values := map[string]string{
		"count": "2", "0.field.138.all": "l:100", "0.field.139.all": "l:100", "0.remapped": "1:0:0:0",
	}
	for i := range 2 {
		for k, v := range nvmltest.H200(i) {
			if _, set := values[k]; !set {
				values[k] = v
			}
		}
	}
	values["0.compute"], values["0.processutil"] = pid+":4294967296", "0:"+pid+":50"
	require.NoError(t, control.Set(values))
	_, sink := process.Sink(t)
	c = &collector{t: t, configs: []string{
		filepath.Join(process.Root(t), "config", "agent.yaml"), filepath.Join(process.Root(t), "config", "agent-prometheus.yaml"),
	}}
	otlp, scraped, own := process.FreePort(t), process.FreePort(t), process.FreePort(t)
	_, port, err := net.SplitHostPort(own)
	require.NoError(t, err)
	c.otlp, c.metrics, c.own = "http://"+otlp+"/v1/metrics", "http://"+scraped+"/metrics", "http://"+own+"/metrics"
	for k, v := range map[string]string{
		nvmltest.Env: path, "GPUFLIGHT_OTLP_ENDPOINT": sink.Endpoint(), "GPUFLIGHT_OTLP_INSECURE": "true",
		"GPUFLIGHT_LISTEN": process.FreePort(t), "GPUFLIGHT_LISTEN_HTTP": otlp, "GPUFLIGHT_HEALTH": process.FreePort(t),
		"GPUFLIGHT_STATE": t.TempDir(), "GPUFLIGHT_HOST": hostName, "GPUFLIGHT_LOGS": t.TempDir(),
		"GPUFLIGHT_METRICS_PORT": port,
	} {
		t.Setenv(k, v)
	}
	// What cuda sends comes from the test, because eBPF needs root. GPUFLIGHT_PROMETHEUS names a
	// binary in tests.
	overlay := filepath.Join(t.TempDir(), "overlay.yaml")
	require.NoError(t, os.WriteFile(overlay, []byte(`
receivers:
  nvml: {library_path: "`+library+`", collection_interval: 1s, initial_delay: 0s, groups: {slow: {interval: 0s}}}
exporters: {prometheus: {endpoint: "`+scraped+`"}}
service: {pipelines: {metrics: {receivers: [nvml, otlp]}, traces: {receivers: [otlp]}}}
`), 0o600))
	c.configs = append(c.configs, overlay)
	c.run()
	return c, control
}

// cudaMetrics are metrics as the cuda receiver sends them: names, units and types are those of the
// registry. Each counts n.
func cudaMetrics(t *testing.T, n int) pmetric.Metrics {
	t.Helper()
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	r := rm.Resource().Attributes()
	r.PutStr(semconv.HostName, hostName)
	r.PutStr(semconv.ServiceName, train)
	r.PutInt(semconv.ProcessPID, int64(os.Getpid()))
	r.PutStr(semconv.ProcessExecutableName, filepath.Base(os.Args[0]))
	values := map[string]string{
		semconv.CUDAKernelName: "gemm", semconv.CUDAMemcpyKind: "HtoD", semconv.CUDAMemoryKind: "device",
		semconv.CUDAAPIName: "ncclAllReduce", semconv.ErrorType: "out_of_memory",
	}
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	for _, name := range []string{
		semconv.MetricGPUCUDAKernelLaunchCalls, semconv.MetricGPUCUDAGraphNodeLaunches, semconv.MetricGPUCUDASyncWaitDuration,
		semconv.MetricGPUCUDAIdleDuration, semconv.MetricGPUCUDAMemoryCopies, semconv.MetricGPUCUDAMemoryInUse,
		semconv.MetricGPUCUDACollectiveSize, semconv.MetricGPUCUDAErrors,
	} {
		registered := registeredMetric(t, name)
		m := metrics.AppendEmpty()
		m.SetName(name)
		m.SetUnit(registered.Unit)
		put := func(a pcommon.Map) {
			for _, key := range registered.Attributes {
				if v, ok := values[key]; ok {
					a.PutStr(key, v)
				}
			}
		}
		now := pcommon.NewTimestampFromTime(time.Now())
		if registered.Instrument == semconv.Histogram {
			h := m.SetEmptyHistogram()
			h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			dp := h.DataPoints().AppendEmpty()
			dp.SetTimestamp(now)
			dp.SetCount(uint64(n))
			dp.SetSum(float64(n) / 10)
			dp.BucketCounts().FromRaw([]uint64{uint64(n)})
			put(dp.Attributes())
			continue
		}
		sum := m.SetEmptySum()
		sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		sum.SetIsMonotonic(registered.Instrument == semconv.Counter)
		dp := sum.DataPoints().AppendEmpty()
		dp.SetTimestamp(now)
		dp.SetIntValue(int64(n))
		put(dp.Attributes())
	}
	return md
}

// podMetrics are metrics of a third H200, which a pod has. It is idle.
func podMetrics(t *testing.T) pmetric.Metrics {
	t.Helper()
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	r := rm.Resource().Attributes()
	r.PutStr(semconv.HostName, hostName)
	r.PutStr(semconv.K8sNamespaceName, "ml")
	r.PutStr(semconv.K8sPodName, "notebook")
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	point := func(name string) pmetric.NumberDataPoint {
		registered := registeredMetric(t, name)
		m := metrics.AppendEmpty()
		m.SetName(name)
		m.SetUnit(registered.Unit)
		m.SetDescription(registered.Brief)
		dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
		dp.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
		dp.Attributes().PutStr(semconv.HWID, nvmltest.UUID(2))
		dp.Attributes().PutStr(semconv.HWName, "NVIDIA H200")
		return dp
	}
	point(semconv.MetricHWGPUUtilization).Attributes().PutStr(semconv.HWGPUTask, semconv.HWGPUTaskGeneral)
	point(semconv.MetricHWGPUPodCount).SetIntValue(1)
	return md
}

func registeredMetric(t *testing.T, name string) semconv.Metric {
	t.Helper()
	i := slices.IndexFunc(semconv.Metrics, func(m semconv.Metric) bool { return m.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return semconv.Metrics[i]
}

func (c *collector) sendMetrics(md pmetric.Metrics) {
	c.t.Helper()
	body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(c.t, err)
	c.post(body)
}

// TestAgent_Boards runs the boards that need no spans, and the alerts, on what the agent exports.
func TestAgent_Boards(t *testing.T) {
	findPrometheus(t)
	c, control := startAgent(t)
	s := startPrometheus(t, c.metrics, "exemplar-storage")
	for n := range 3 {
		c.sendMetrics(cudaMetrics(t, 100*(n+1)))
		c.sendMetrics(podMetrics(t))
		s.eventually(arrive, `sum(gpu_cuda_kernel_launch_calls_total)`, float64(100*(n+1)))
	}
	// GPM's rates need two samples of the device, rates two of Prometheus.
	s.eventually(arrive, `count(count_over_time(hw_gpu_sm_occupancy_ratio[5m]) > 1)`, 2)

	t.Run("silent", func(t *testing.T) {
		s.eventually(arrive, `count(gpuflight:gpu_allocated)`, 2)
		near(t, map[string]float64{nvmltest.UUID(0): 1, nvmltest.UUID(2): 1}, s.by("hw_id", `gpuflight:gpu_allocated`), "allocated")
		near(t, map[string]float64{nvmltest.UUID(0): 0.4, nvmltest.UUID(1): 0.4, nvmltest.UUID(2): 0}, s.by("hw_id", `gpuflight:gpu_utilization:ratio`), "utilisation")
		near(t, map[string]float64{nvmltest.UUID(0): 1.2, nvmltest.UUID(1): 1.2, nvmltest.UUID(2): 2}, s.by("hw_id", `gpuflight:gpu_idle_cost:per_hour`), "cost of idle time")
		assert.Empty(t, s.query(`ALERTS{alertstate="firing"}`))
	})

	// Errors of device 1.
	require.NoError(t, control.Set(map[string]string{"xid.0": "1:79", "xid.1": "1:31", "1.ecc.1": "1", "1.remapped": "0:1:1:1"}))
	s.eventually(arrive, `count(hw_errors_total{error_type=~"xid_.+"})`, 2)
	t.Run("firing", func(t *testing.T) {
		s.eventually(arrive, `count(ALERTS{alertstate="firing"})`, 5)
		near(t, map[string]float64{"GPUXIDCritical": 1, "GPUXIDProgram": 1, "GPUECCUncorrected": 1, "GPURowRemapped": 1, "GPURowRemapFailed": 1},
			s.by("alertname", `ALERTS{alertstate="firing", host_name="`+hostName+`", hw_id="`+nvmltest.UUID(1)+`"}`), "alerts")
	})
	// Each query of the boards.
	for name, without := range map[string]map[string]string{"fleet.json": nil, "node.json": nil, "gpu.json": nil, "process.json": nil, "usage.json": nil} {
		t.Run(name, func(t *testing.T) { checkDashboard(t, s, name, without) })
	}
	t.Run("values", func(t *testing.T) {
		for _, v := range []struct {
			board, panel string
			want         float64
		}{
			{"fleet.json", "Hosts", 1},
			{"fleet.json", "GPUs", 2},
			{"fleet.json", "Failed", 0},
			{"fleet.json", "Mean utilisation", 0.8 / 3},
			{"fleet.json", "Power", 241},
			{"fleet.json", "Idle GPUs", 1},
			{"fleet.json", "XID errors", 2},
			{"fleet.json", "Uncorrectable memory errors", 1},
			{"node.json", "Processes", 1},
			{"process.json", "Memory in use", 4 << 30},
			{"gpu.json", "Temperature", 40},
		} {
			d := readDashboard(t, v.board)
			i := slices.IndexFunc(d.Panels, func(p panel) bool { return p.Title == v.panel })
			require.GreaterOrEqual(t, i, 0, v.panel)
			assert.InDelta(t, v.want, s.number(substitute(t, d, d.Panels[i].Targets[0].Expr, nil)), 1e-9, "%s: %s", v.board, v.panel)
		}
	})
	t.Run("names", func(t *testing.T) { checkRuleNames(t, c) })
	c.process.Stop(20 * time.Second)
}

// rules are the tested parts of the file of alerts.
type rules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Record, Alert, Expr string
			Labels              map[string]string
			Annotations         map[string]string
		}
	}
}

func readRules(t *testing.T) (r rules) {
	t.Helper()
	text, err := os.ReadFile(grafana(t, "rules.yml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &r))
	return r
}

// quickRules writes the rules with an evaluation each second, and returns the path.
func quickRules(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(grafana(t, "rules.yml"))
	require.NoError(t, err)
	require.Contains(t, string(text), "interval: 1m")
	path := filepath.Join(dir, "rules.yml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), "interval: 1m", "interval: 1s", 1)), 0o600))
	return path
}

// checkRuleNames compares the metrics of the rules with those that the agent exports. Only the
// connector exports costs; TestPrometheus_Usage has them.
func checkRuleNames(t *testing.T, c *collector) {
	known := map[string]bool{"gpu_cuda_cost_total": true}
	// Tests of the extension have those of analyses.
	for _, name := range []string{"device_time", "late_time", "regressions", "run_time", "step_time", "steps"} {
		known["otelcol_extension_gpu_storage_"+name] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)[{ ]`).FindAllStringSubmatch(c.exposition(plainText), -1) {
		known[m[1]] = true
	}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			known[r.Record] = true
			checkLabels(t, r.Expr)
			// What remains without labels and texts are names of metrics and functions.
			bare := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(r.Expr, "")
			bare = regexp.MustCompile(`\{[^}]*\}|\b(?:by|on|group_left) \([^)]*\)`).ReplaceAllString(bare, "")
			names := regexp.MustCompile(`\b(?:hw|gpu|process|gpuflight|otelcol)[_:][a-z_:]+`).FindAllString(bare, -1)
			assert.True(t, len(names) > 0 || bare == "vector(2)", "%s%s: no metric", r.Alert, r.Record)
			for _, name := range names {
				assert.True(t, known[name], "%s in %s%s", name, r.Alert, r.Record)
			}
		}
	}
}

// TestRules_Promtool runs the cases in testdata. Each alert has one that fires and one that does
// not.
func TestRules_Promtool(t *testing.T) {
	tool := filepath.Join(filepath.Dir(findPrometheus(t)), "promtool")
	if _, err := os.Stat(tool); err != nil {
		t.Skipf("promtool is not beside Prometheus: %v", err)
	}
	cases, err := os.ReadFile(filepath.Join("testdata", "rules_test.yml"))
	require.NoError(t, err)
	var parsed struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal(cases, &parsed))
	fired, silent := map[string]bool{}, map[string]bool{}
	for _, test := range parsed.Tests {
		for _, a := range test.AlertRuleTest {
			if len(a.ExpAlerts) > 0 {
				fired[a.Alertname] = true
			} else {
				silent[a.Alertname] = true
			}
		}
	}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			assert.True(t, fired[r.Alert] && silent[r.Alert], "%s needs a case that fires and one that does not", r.Alert)
			assert.Contains(t, []string{"critical", "warning", "info"}, r.Labels["severity"], r.Alert)
			assert.NotEmpty(t, r.Annotations["summary"], r.Alert)
			assert.NotEmpty(t, r.Annotations["description"], r.Alert)
		}
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules_test.yml"), cases, 0o600))
	text, err := os.ReadFile(grafana(t, "rules.yml"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yml"), text, 0o600))
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), tool, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}
