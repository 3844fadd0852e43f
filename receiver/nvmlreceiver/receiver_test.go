// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/device"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/kubelet"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest/kubelettest"
	"github.com/gpuflight/gpuflight/semconv"
)

// host remembers what components say of themselves.
type host struct {
	mu     sync.Mutex
	states []componentstatus.Status
}

func (h *host) GetExtensions() map[component.ID]component.Component { return nil }

func (h *host) Report(e *componentstatus.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states = append(h.states, e.Status())
}

func (h *host) reported() []componentstatus.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]componentstatus.Status(nil), h.states...)
}

// rig is a receiver that uses the fake.
type rig struct {
	*nvmlReceiver
	t       *testing.T
	control *nvmltest.Control
	logs    *consumertest.LogsSink
	printed *observer.ObservedLogs
	host    *host
	root    string
}

func devices(n int) map[string]string {
	m := map[string]string{"count": strconv.Itoa(n)}
	for i := range n {
		maps.Copy(m, nvmltest.H200(i))
	}
	return m
}

func newRig(t *testing.T, values map[string]string, change func(*Config)) *rig {
	t.Helper()
	lib, err := nvmltest.Build()
	if err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	t.Setenv(nvmltest.Env, filepath.Join(root, "control"))
	g := &rig{t: t, control: nvmltest.New(filepath.Join(root, "control")), logs: new(consumertest.LogsSink), host: &host{}, root: root}
	g.set(values)
	cfg := createDefaultConfig().(*Config)
	cfg.LibraryPath, cfg.RootPath, cfg.CollectionInterval, cfg.Timeout = lib, root, time.Minute, time.Minute
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	set := receivertest.NewNopSettings(metadata.Type)
	core, printed := observer.New(zapcore.DebugLevel)
	set.Logger, g.printed = zap.New(core), printed
	g.nvmlReceiver, err = newReceiver(cfg, set)
	require.NoError(t, err)
	g.nvmlReceiver.logs = g.logs
	g.intervals = intervals{first: 5 * time.Millisecond, longest: 20 * time.Millisecond, rescan: 20 * time.Millisecond, shutdown: time.Second, event: 20 * time.Millisecond}
	require.NoError(t, g.Start(t.Context(), g.host))
	t.Cleanup(func() { assert.NoError(t, g.Shutdown(context.Background())) })
	return g
}

func (g *rig) set(values map[string]string) {
	g.t.Helper()
	require.NoError(g.t, g.control.Set(values))
}

// scraped is a scrape's points by "metric{attribute=value,…}", of the attributes that
// distinguish points of one device, after the device's number.
func (g *rig) scrape() map[string]pmetric.NumberDataPoint {
	g.t.Helper()
	m, err := g.nvmlReceiver.scrape(context.Background())
	require.NoError(g.t, err)
	return index(m)
}

func numbers(m pmetric.Metric) pmetric.NumberDataPointSlice {
	if m.Type() == pmetric.MetricTypeSum {
		return m.Sum().DataPoints()
	}
	return m.Gauge().DataPoints()
}

func index(m pmetric.Metrics) map[string]pmetric.NumberDataPoint {
	out := map[string]pmetric.NumberDataPoint{}
	for _, rm := range m.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, metric := range sm.Metrics().All() {
				for _, dp := range numbers(metric).All() {
					var key strings.Builder
					id, _ := dp.Attributes().Get(semconv.HWID)
					key.WriteString(strings.TrimLeft(id.Str()[strings.LastIndexByte(id.Str(), '-')+1:], "0") + " " + metric.Name())
					for _, a := range []string{
						semconv.HWState, semconv.HWGPUTask, semconv.NetworkIODirection, semconv.HWGPUClockDomain, semconv.HWLimitType,
						semconv.HWGPUThrottleReason, semconv.HWGPUPipe, semconv.ErrorType, semconv.HWSensorLocation, semconv.ProcessPID,
					} {
						if v, ok := dp.Attributes().Get(a); ok {
							key.WriteString(" " + v.AsString())
						}
					}
					out[key.String()] = dp
				}
			}
		}
	}
	return out
}

// has reports whether a point is there; a failed assert.Contains would print them all.
func has(points map[string]pmetric.NumberDataPoint, key string) bool {
	_, ok := points[key]
	return ok
}

// failed reports a device's hw.status.
func failed(points map[string]pmetric.NumberDataPoint, device string) bool {
	dp, ok := points[device+" hw.status failed"]
	return ok && dp.IntValue() == 1
}

func (g *rig) eventually(what string, done func() bool) {
	g.t.Helper()
	require.Eventually(g.t, done, time.Minute, 10*time.Millisecond, what)
}

func (g *rig) warnings() []observer.LoggedEntry {
	return g.printed.FilterLevelExact(zapcore.WarnLevel).All()
}

func TestMetadata_Semconv(t *testing.T) {
	registry := map[string]semconv.Metric{}
	for _, m := range semconv.Metrics {
		registry[m.Name] = m
	}
	values := newRig(t, devices(1), func(c *Config) {
		c.Groups.Slow.Interval = 0
		startKubelet(t, c.RootPath).Set([]string{nvmltest.UUID(0)})
	})
	values.set(map[string]string{
		"0.compute": "7:1", "0.processutil": "0:7:5", "0.fans": "2", "0.fan.0": "30", "0.fan.1": "40", "0.field.138.all": "l:1", "0.field.139.all": "l:1",
	})
	values.scrape()
	m, err := values.nvmlReceiver.scrape(context.Background())
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, metric := range m.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		want, ok := registry[metric.Name()]
		require.True(t, ok, "%s is not in semconv", metric.Name())
		seen[metric.Name()] = true
		assert.Equal(t, want.Unit, metric.Unit(), metric.Name())
		assert.Equal(t, want.Brief, metric.Description(), metric.Name())
		kind := semconv.Gauge
		if metric.Type() == pmetric.MetricTypeSum {
			kind = semconv.UpDownCounter
			if metric.Sum().IsMonotonic() {
				kind = semconv.Counter
			}
			assert.Equal(t, pmetric.AggregationTemporalityCumulative, metric.Sum().AggregationTemporality())
		}
		assert.Equal(t, want.Instrument, kind, metric.Name())
		for _, dp := range numbers(metric).All() {
			for k, v := range dp.Attributes().All() {
				assert.Contains(t, want.Attributes, k, metric.Name())
				assert.NotEmpty(t, v.AsString(), "%s: %s", metric.Name(), k)
			}
		}
	}
	assert.Len(t, seen, 27, "all metrics of metadata.yaml: %v", seen)
}

func TestScrape_EightDevices(t *testing.T) {
	g := newRig(t, devices(8), nil)
	first := g.scrape()
	for i := range 8 {
		id := strings.TrimPrefix(strconv.Itoa(i), "0")
		require.True(t, has(first, id+" hw.energy"), id+" hw.energy")
		assert.Equal(t, int64(1), first[id+" hw.status ok"].IntValue())
		assert.Equal(t, int64(0), first[id+" hw.status failed"].IntValue())
	}
	energy := first["1 hw.energy"]
	assert.InDelta(t, 1000.0, energy.DoubleValue(), 1e-9)
	name, _ := energy.Attributes().Get(semconv.HWName)
	assert.Equal(t, "NVIDIA H200", name.Str())
	assert.Equal(t, 4, energy.Attributes().Len(), "id, name, vendor and type, and no parent")
	assert.Less(t, energy.StartTimestamp(), energy.Timestamp())
	assert.Empty(t, g.warnings())
	g.eventually("status", func() bool { return len(g.host.reported()) == 0 })
}

// scrapeWithout is a scrape whose time is up as soon as all devices but the first, which hangs, have answered.
func (g *rig) scrapeWithout() map[string]pmetric.NumberDataPoint {
	g.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() {
		for sleep(ctx, time.Millisecond) {
			// The devices are waited for in their order, so the answers of the others lie there.
			if !g.any(func(t *tracked) bool { return t.id.Index > 0 && len(t.results) == 0 }) {
				cancel()
			}
		}
	})
	m, err := g.nvmlReceiver.scrape(ctx)
	cancel()
	watch.Wait()
	require.NoError(g.t, err)
	return index(m)
}

// TestScrape_UnresponsiveGPM: the calls take turns, and one device does not give its turn
// back.
func TestScrape_UnresponsiveGPM(t *testing.T) {
	g := newRig(t, devices(2), nil)
	g.scrape()
	g.set(map[string]string{"0.gpm": "hang"})
	var points map[string]pmetric.NumberDataPoint
	g.eventually("device 0 hangs in its turn, for which it may be late", func() bool {
		points = g.scrapeWithout()
		return !has(points, "1 hw.gpu.sm.utilization")
	})
	assert.True(t, failed(points, ""))
	assert.False(t, failed(points, "1"))
	assert.True(t, has(points, "1 hw.energy"), "1 hw.energy")
	g.set(map[string]string{"0.gpm": "1"})
	g.eventually("both have it again", func() bool {
		p := g.scrape()
		return has(p, " hw.gpu.sm.utilization") && has(p, "1 hw.gpu.sm.utilization")
	})
}

func TestScrape_UnresponsiveDevice(t *testing.T) {
	g := newRig(t, devices(8), nil)
	g.scrape()
	g.set(map[string]string{"0.temperature": "hang"})
	for range 3 {
		points := g.scrapeWithout()
		assert.True(t, failed(points, ""))
		assert.False(t, has(points, " hw.energy"), " hw.energy")
		for _, other := range []string{"1", "4", "7"} {
			assert.True(t, has(points, other+" hw.energy"), other)
			assert.False(t, failed(points, other), other)
		}
	}
	require.Len(t, g.warnings(), 1, "one warning, however long it lasts")
	assert.Equal(t, stateHung, g.warnings()[0].ContextMap()["state"])
	g.set(map[string]string{"0.temperature": "40"})
	g.eventually("device 0 comes back", func() bool { return !failed(g.scrape(), "") })
	assert.Len(t, g.printed.FilterMessage("NVML: device answers again").All(), 1)
}

func TestShutdown_UnresponsiveCall(t *testing.T) {
	g := newRig(t, devices(2), func(c *Config) { c.Timeout = 200 * time.Millisecond })
	g.intervals.shutdown = 100 * time.Millisecond
	<-g.listed
	g.set(map[string]string{"0.temperature": "hang"})
	assert.True(t, failed(g.scrape(), ""), "when its time is up")
	require.NoError(t, g.Shutdown(context.Background())) // or it would hang for good
	assert.Len(t, g.printed.FilterMessageSnippet("was abandoned").All(), 1)
	// Release it, so that the goroutine ends.
	g.set(map[string]string{"0.temperature": "40"})
	for limit := time.Now().Add(time.Minute); ; {
		err := goleak.Find()
		if err == nil {
			break
		}
		require.True(t, time.Now().Before(limit), err)
	}
	g.cancel = nil // the clean-up has nothing left to do
}

func TestScrape_LostDevice(t *testing.T) {
	g := newRig(t, devices(2), nil)
	g.scrape()
	g.set(map[string]string{"1.all": "!15"})
	g.eventually("device 1 fails", func() bool { return failed(g.scrape(), "1") })
	assert.True(t, has(g.scrape(), " hw.energy"), " hw.energy")
	time.Sleep(100 * time.Millisecond)
	g.scrape()
	lost := g.printed.FilterMessage("NVML: device failed").All()
	require.Len(t, lost, 1)
	assert.Equal(t, stateLost, lost[0].ContextMap()["state"])
	g.set(map[string]string{"1.all": ""})
	g.eventually("device 1 returns", func() bool { p := g.scrape(); _, ok := p["1 hw.energy"]; return ok && !failed(p, "1") })
}

func TestScrape_DriverRestart(t *testing.T) {
	g := newRig(t, devices(2), nil)
	g.scrape()
	g.set(map[string]string{"epoch": "7", "init": "!9"})
	g.eventually("all fail", func() bool { p := g.scrape(); return failed(p, "") && failed(p, "1") })
	g.eventually("the reason is logged", func() bool { return g.printed.FilterFieldKey("error").FilterMessageSnippet("is retried").Len() >= 1 })
	g.set(map[string]string{"init": ""})
	g.eventually("all return", func() bool {
		p := g.scrape()
		_, ok := p["1 hw.energy"]
		return ok && !failed(p, "") && !failed(p, "1")
	})
}

func TestScrape_NoDevice(t *testing.T) {
	g := newRig(t, map[string]string{"count": "0"}, nil)
	assert.Empty(t, g.scrape())
	g.eventually("a warning", func() bool { return len(g.warnings()) > 0 })
	time.Sleep(100 * time.Millisecond) // for more tries
	require.Len(t, g.warnings(), 1)
	assert.Contains(t, g.warnings()[0].ContextMap()["error"], "no device")
	g.set(devices(1))
	g.eventually("a device is found", func() bool { return len(g.scrape()) > 20 })
	g.eventually("the status is right", func() bool {
		s := g.host.reported()
		return len(s) == 2 && s[0] == componentstatus.StatusRecoverableError && s[1] == componentstatus.StatusOK
	})
	g.set(devices(2))
	g.eventually("a second is added", func() bool { _, ok := g.scrape()["1 hw.energy"]; return ok })
}

func TestScrape_RemovedMIGDevice(t *testing.T) {
	g := newRig(t, devices(1), nil)
	g.set(map[string]string{"0.mig": "1", "0.mig0.uuid": "MIG-0009", "0.mig0.name": "part", "0.mig0.memory": "100:0:50"})
	var part pmetric.NumberDataPoint
	g.eventually("the part is found", func() bool {
		dp, ok := g.scrape()["9 hw.gpu.memory.usage"]
		part = dp
		return ok
	})
	parent, _ := part.Attributes().Get(semconv.HWParent)
	assert.Equal(t, nvmltest.UUID(0), parent.Str())
	g.set(map[string]string{"0.mig": "0", "0.mig0.uuid": ""})
	g.eventually("it is gone, and not failed", func() bool { _, ok := g.scrape()["9 hw.status failed"]; return !ok })
}

func TestNoLibrary(t *testing.T) {
	g := newRig(t, nil, func(c *Config) { c.LibraryPath = filepath.Join(t.TempDir(), "none.so") })
	start := time.Now()
	assert.Empty(t, g.scrape())
	assert.Less(t, time.Since(start), g.cfg.timeout()/2, "there is nothing to wait for")
	g.eventually("the status", func() bool { return len(g.host.reported()) > 0 })
	time.Sleep(100 * time.Millisecond) // for more tries
	require.Len(t, g.warnings(), 1, "not one for each try")
	assert.Contains(t, g.warnings()[0].ContextMap()["error"], "NVML (")
	assert.Equal(t, []componentstatus.Status{componentstatus.StatusRecoverableError}, g.host.reported())
}

func TestXID_LogAndCount(t *testing.T) {
	g := newRig(t, devices(2), func(c *Config) { c.HostName = "node-1" })
	g.scrape()
	g.set(map[string]string{"xid.0": "1:79", "xid.1": "1:31", "xid.2": "1:79"})
	g.eventually("three records", func() bool { return g.logs.LogRecordCount() == 3 })
	rl := g.logs.AllLogs()[0].ResourceLogs().At(0)
	resource := map[string]any{semconv.HostName: "node-1", semconv.HWSerialNumber: nvmltest.Serial(1)}
	assert.Equal(t, resource, rl.Resource().Attributes().AsRaw())
	rec := rl.ScopeLogs().At(0).LogRecords().At(0)
	assert.Equal(t, semconv.EventGPUXID, rec.EventName())
	assert.Equal(t, plog.SeverityNumberError, rec.SeverityNumber())
	assert.Contains(t, rec.Body().Str(), "XID 79: the GPU has fallen off the bus")
	assert.Equal(t, map[string]any{
		semconv.HWID: nvmltest.UUID(1), semconv.HWName: "NVIDIA H200", semconv.HWVendor: "NVIDIA", semconv.HWType: "gpu", semconv.GPUXIDCode: int64(79),
		semconv.LogRecordUID: gpuevent.KeyOf(nvmltest.UUID(1)).UID(uint64(rec.Timestamp()), 79).String(),
	}, rec.Attributes().AsRaw())
	m, err := g.nvmlReceiver.scrape(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, m.ResourceMetrics().Len(), "one for each device")
	assert.Equal(t, resource, m.ResourceMetrics().At(1).Resource().Attributes().AsRaw())
	points := index(m)
	assert.Equal(t, int64(2), points["1 hw.errors xid_79"].IntValue())
	assert.Equal(t, int64(1), points["1 hw.errors xid_31"].IntValue())
	assert.False(t, has(points, " hw.errors xid_79"), " hw.errors xid_79")
}

// startKubelet starts a fake kubelet at its default path below a root.
func startKubelet(t *testing.T, root string) *kubelettest.Kubelet {
	t.Helper()
	k := kubelettest.New(filepath.Join(root, kubelet.DefaultSocket))
	require.NoError(t, k.Start())
	t.Cleanup(k.Stop)
	return k
}

// resources returns the attributes of a scrape's resources by the hw.id of their points, which must
// agree, and the values of hw.gpu.pod.count.
func resources(t *testing.T, m pmetric.Metrics) (all map[string]map[string]any, pods map[string]int64) {
	t.Helper()
	all, pods = map[string]map[string]any{}, map[string]int64{}
	for _, rm := range m.ResourceMetrics().All() {
		assert.Equal(t, semconv.SchemaURL, rm.SchemaUrl())
		ids := map[string]bool{}
		for _, metric := range rm.ScopeMetrics().At(0).Metrics().All() {
			for _, dp := range numbers(metric).All() {
				id, _ := dp.Attributes().Get(semconv.HWID)
				ids[id.Str()] = true
				if metric.Name() == semconv.MetricHWGPUPodCount {
					pods[id.Str()] = dp.IntValue()
				}
			}
		}
		require.Len(t, ids, 1)
		for id := range ids {
			require.NotContains(t, all, id)
			all[id] = rm.Resource().Attributes().AsRaw()
		}
	}
	return all, pods
}

func TestScrape_Pods(t *testing.T) {
	values := devices(5)
	maps.Copy(values, map[string]string{
		"driver": nvmltest.Driver, "4.serial": "", "1.mig": "1", "1.mig0.uuid": "MIG-a", "1.mig0.gi": "3", "1.mig0.memory": "10:0:5", "1.mig1.uuid": "MIG-b", "1.mig1.gi": "4", "1.mig1.memory": "10:0:5",
	})
	k := (*kubelettest.Kubelet)(nil)
	g := newRig(t, values, func(c *Config) {
		c.HostName = "node-1"
		k = startKubelet(t, c.RootPath)
		k.Set([]string{nvmltest.UUID(0), "MIG-a", "MIG-b", nvmltest.UUID(2) + "::0", nvmltest.UUID(2) + "::1", "3"},
			kubelettest.Pod("research", "train-0", "worker", nvmltest.UUID(0)),
			kubelettest.Pod("serving", "llm-7", "server", "MIG-b"),
			kubelettest.Pod("dev", "a", "notebook", nvmltest.UUID(2)+"::0"), kubelettest.Pod("dev", "b", "notebook", nvmltest.UUID(2)+"::1"),
			kubelettest.Pod("dev", "c", "shell", "3"))
	})
	m, err := g.nvmlReceiver.scrape(t.Context())
	require.NoError(t, err)
	got, pods := resources(t, m)
	of := func(device int, more map[string]any) map[string]any {
		all := map[string]any{semconv.HostName: "node-1", semconv.HWDriverVersion: nvmltest.Driver, semconv.HWSerialNumber: nvmltest.Serial(device)}
		maps.Copy(all, more)
		return all
	}
	owner := func(namespace, pod, container string) map[string]any {
		return map[string]any{semconv.K8sNamespaceName: namespace, semconv.K8sPodName: pod, semconv.K8sContainerName: container}
	}
	assert.Equal(t, map[string]map[string]any{
		nvmltest.UUID(0): of(0, owner("research", "train-0", "worker")),
		nvmltest.UUID(1): of(1, nil),
		"MIG-a":          of(1, nil),
		"MIG-b":          of(1, owner("serving", "llm-7", "server")),
		nvmltest.UUID(2): of(2, nil),
		nvmltest.UUID(3): of(3, owner("dev", "c", "shell")),
		nvmltest.UUID(4): {semconv.HostName: "node-1", semconv.HWDriverVersion: nvmltest.Driver},
	}, got)
	assert.Equal(t, map[string]int64{nvmltest.UUID(0): 1, "MIG-a": 0, "MIG-b": 1, nvmltest.UUID(2): 2, nvmltest.UUID(3): 1}, pods,
		"neither of the GPU that is divided nor of the one that the kubelet does not know")

	g.set(map[string]string{"xid.0": "0:79", "xid.1": "1:13:4", "xid.2": "1:13", "xid.3": "2:31"})
	g.eventually("four records", func() bool { return g.logs.LogRecordCount() == 4 })
	for i, want := range []map[string]any{got[nvmltest.UUID(0)], got["MIG-b"], got[nvmltest.UUID(1)], got[nvmltest.UUID(2)]} {
		assert.Equal(t, want, g.logs.AllLogs()[i].ResourceLogs().At(0).Resource().Attributes().AsRaw(), i)
	}
	for _, l := range g.logs.AllLogs() {
		assert.Contains(t, l.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes().AsRaw()[semconv.HWID], "GPU-")
	}
}

func TestScrape_SlowKubelet(t *testing.T) {
	g := newRig(t, devices(1), func(c *Config) {
		startKubelet(t, c.RootPath).Block()
		c.Timeout = 2 * time.Second
	})
	points := g.scrape()
	assert.True(t, has(points, " hw.energy"), "the device is read")
	assert.False(t, has(points, " hw.gpu.pod.count"))
}

func TestScrape_ProcessIdentity(t *testing.T) {
	g := newRig(t, devices(1), nil)
	container := strings.Repeat("ab12", 16)
	dir := filepath.Join(g.root, "proc", "4242")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for name, text := range map[string]string{
		"stat":   "4242 (train (v2)) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 98765 1 1",
		"cgroup": "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-" + container + ".scope\n",
		"status": "Name:\ttrain\nNSpid:\t4242\t17\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	g.set(map[string]string{"0.compute": "4242:5000,4343:7000"})
	points := g.scrape()
	dp := points[" process.gpu.memory.usage 4242"]
	assert.Equal(t, int64(5000), dp.IntValue())
	attrs := dp.Attributes().AsRaw()
	assert.Equal(t, "train (v2)", attrs[semconv.ProcessExecutableName])
	assert.Equal(t, container, attrs[semconv.ContainerID])
	assert.Equal(t, "01234567-89ab-cdef-0123-456789abcdef", attrs[semconv.K8sPodUID])
	assert.Equal(t, int64(17), attrs[semconv.ProcessVpid])
	other := points[" process.gpu.memory.usage 4343"].Attributes().AsRaw()
	assert.Len(t, other, 5, "an unknown process has its id and its device: %v", other)
}

func TestScrape_MissingPermission(t *testing.T) {
	g := newRig(t, devices(1), nil)
	g.set(map[string]string{"0.gpm": "!4"})
	for range 3 {
		assert.False(t, has(g.scrape(), " hw.gpu.sm.occupancy"))
	}
	told := g.printed.FilterMessageSnippet("lacks the permission").All()
	require.Len(t, told, 1)
	assert.Equal(t, "GpmQueryDeviceSupport", told[0].ContextMap()["call"])
}

func TestScrape_DisabledMetrics(t *testing.T) {
	g := newRig(t, devices(1), func(c *Config) { c.Metrics.HwEnergy.Enabled = false; c.Groups.Slow.Enabled = false })
	points := g.scrape()
	assert.False(t, has(points, " hw.energy"), " hw.energy")
	assert.False(t, has(points, " hw.power.limit enforced"), " hw.power.limit enforced")
	assert.True(t, has(points, " hw.power"), " hw.power")
}

func TestFactory_SharedReceiver(t *testing.T) {
	lib, err := nvmltest.Build()
	if err != nil {
		t.Skip(err)
	}
	control := filepath.Join(t.TempDir(), "control")
	t.Setenv(nvmltest.Env, control)
	require.NoError(t, nvmltest.New(control).Set(devices(1)))
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.LibraryPath, cfg.CollectionInterval, cfg.InitialDelay, cfg.Timeout = lib, 50*time.Millisecond, 0, 50*time.Millisecond
	set := receivertest.NewNopSettings(metadata.Type)
	sink := new(consumertest.MetricsSink)
	metrics, err := f.CreateMetrics(t.Context(), set, cfg, sink)
	require.NoError(t, err)
	logs, err := f.CreateLogs(t.Context(), set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	h := componenttest.NewNopHost()
	require.NoError(t, logs.Start(t.Context(), h))
	require.NoError(t, metrics.Start(t.Context(), h))
	require.Eventually(t, func() bool { return len(sink.AllMetrics()) > 2 && sink.DataPointCount() > 60 }, time.Minute, 10*time.Millisecond)
	require.NoError(t, logs.Shutdown(t.Context()))
	require.NoError(t, metrics.Shutdown(t.Context()))
	require.NoError(t, metrics.Shutdown(t.Context()), "twice")
}

func TestConfig_Invalid(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"timeout is -1ns":               func(c *Config) { c.Timeout = -1 },
		"must not be above collection":  func(c *Config) { c.Timeout = time.Minute },
		"groups.gpm.interval":           func(c *Config) { c.Groups.GPM.Interval = -1 },
		"at most 14s":                   func(c *Config) { c.Groups.Samples.Interval = 15 * time.Second },
		"devices has \"[\"":             func(c *Config) { c.Devices = []string{"["} },
		"max_processes must be above 0": func(c *Config) { c.MaxProcesses = 0 },
		"root_path is \"host\"":         func(c *Config) { c.RootPath = "host" },
		"kubelet_socket is \"a.sock\"":  func(c *Config) { c.KubeletSocket = "a.sock" },
	} {
		c := createDefaultConfig().(*Config)
		require.NoError(t, c.Validate())
		change(c)
		assert.ErrorContains(t, c.Validate(), want)
	}
	assert.True(t, device.Supported)
}

func TestConfig_Timeout(t *testing.T) {
	c := createDefaultConfig().(*Config)
	assert.Equal(t, 5*time.Second, c.timeout())
	c.CollectionInterval = time.Second
	require.NoError(t, c.Validate(), "a short interval needs no other setting")
	assert.Equal(t, time.Second, c.timeout())
	c.Timeout = 500 * time.Millisecond
	assert.Equal(t, 500*time.Millisecond, c.timeout())
}

func TestXID_FailedDelivery(t *testing.T) {
	g := newRig(t, devices(1), nil)
	tel := componenttest.NewTelemetry()
	builder, err := metadata.NewTelemetryBuilder(tel.NewTelemetrySettings())
	require.NoError(t, err)
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	r := &nvmlReceiver{set: g.nvmlReceiver.set, telemetry: builder, logs: consumertest.NewErr(assert.AnError), xids: newXIDs(), pods: g.pods}
	r.sendXID(t.Context(), gpu.XID{Device: gpu.Identity{ID: "GPU-x"}, Instance: -1, Code: 1})
	got, err := tel.GetMetric("otelcol_receiver_nvml_xid_dropped")
	require.NoError(t, err)
	assert.Equal(t, int64(1), got.Data.(metricdata.Sum[int64]).DataPoints[0].Value)

	for code := range uint64(maxCodes + 10) {
		r.xids.count(gpu.XID{Device: gpu.Identity{ID: "GPU-x"}, Code: code})
	}
	counts := r.xids.counts("GPU-x")
	assert.Len(t, counts, maxCodes+1)
	assert.Equal(t, int64(10), counts[otherXID])
}
