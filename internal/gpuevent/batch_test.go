// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var everySignal = Signals{Traces: true, Logs: true, Metrics: true}

// t0 is the begin of the sessions in these tests.
const t0 = int64(1_773_600_000_000_000_000)

// oneDevice and twoDevices are sessions with all that can be known.
func oneDevice() *Session {
	return &Session{
		ID: "11111111-2222-4333-8444-555555555555", App: "train", PID: Some(4242),
		HostName: "node-a", HostIP: "192.0.2.7", StartNs: t0,
		Devices: []Device{h200(0)},
		Distro:  "gpuflight", Engine: "nvidia.trace", Kind: "trace",
		Extra: []Attr{Str(semconv.CUDARunID, "r1"), I(semconv.CUDASegmentIndex, 0)},
	}
}

func twoDevices() *Session {
	return &Session{ID: "two", App: "infer", Devices: []Device{h200(0), h200(1)}}
}

func h200(i int64) Device {
	return Device{
		Index: i, Name: "NVIDIA H200", UUID: "GPU-" + strings.Repeat(string(rune('a'+i)), 8), Vendor: "NVIDIA",
		ComputeMajor: Some(9), ComputeMinor: Some(0), SMCount: Some(132),
	}
}

func ref(n byte) Ref {
	return Ref{Trace: TraceID{15: n}, Span: SpanID{7: n}, Parent: SpanID{6: 1, 7: n}}
}

func span(n byte) Span {
	return Span{
		Ref: ref(n), StartNs: t0 + 3000, EndNs: t0 + 153_123,
		LaunchStartNs: Some(t0 + 1000), LaunchEndNs: Some(t0 + 1500),
		Device: Some(0), Stream: Some(7), Context: Some(1), Correlation: Some(100),
		ExternalKind: Some(4), ExternalID: Some(9_007_199_254_740_993),
		Stack: "forward\ntrain_step\nmain", ScopeName: "step", ScopeInferred: true, ScopePath: "epoch|step", Estimated: true,
	}
}

// everything adds one event of each kind with every field known.
func everything(b *Batch, s *Session) {
	name := NewKernelName("_ZN2ns3addIfEEvPfi")
	b.Kernel(s, &Kernel{
		Span: span(1), Name: name,
		Grid: [3]int64{64, 2, 1}, Block: [3]int64{256, 1, 1}, Cluster: [3]int64{2, 1, 1},
		RegistersPerThread: Some(40), SharedStatic: Some(16384), SharedDynamic: Some(0), SharedExecuted: Some(33792),
		LocalPerThread: Some(8), ReportedOccupancy: SomeFloat(0.75), ReportedLimiter: "registers",
		GraphID: Some(3), GraphNode: Some(12),
	})
	b.Copy(s, &Copy{Span: span(2), Kind: "HtoD", Bytes: Some(4 << 20), SourceKind: "pinned", DestinationKind: "device", Async: Some(1)})
	b.Set(s, &Set{Span: span(3), Bytes: Some(1024)})
	for i, kind := range []SyncKind{SyncUnknown, SyncEvent, SyncStreamWaitEvent, SyncStream, SyncContext} {
		b.Sync(s, &Sync{Span: span(10 + byte(i)), Kind: kind, Event: Some(5)})
	}
	b.Memory(s, &Memory{Span: span(4), Kind: "device", Bytes: Some(4096), Address: Some(139_637_976_727_552)})
	b.Memory(s, &Memory{Span: span(5), Free: true, Kind: "device", Bytes: Some(4096), Address: Some(139_637_976_727_552)})
	b.Graph(s, &Graph{Span: span(6), GraphID: Some(3), ExecKey: "0x55d0c0ffee00"})
	b.Scope(s, &Scope{
		Ref: ref(7), StartNs: t0, EndNs: t0 + 1_000_000, Name: "step", Source: ScopeGPUFlight,
		Instance: Some(2), Depth: Some(1), Tag: "train", Domain: "torch", OriginalStartNs: Some(t0 - 1),
		Repeat: Some(10), Warmup: Some(2), Part: Some(1), Link: ref(77), Unfinished: true,
	})
	b.SessionSpan(s, &SessionSpan{
		Ref: ref(8), StartNs: t0, EndNs: t0 + 2_000_000, Window: Some(3), Part: Some(2), Link: ref(88),
		Unfinished: true, Crashed: true, ExitCode: Some(139), Signal: Some(11),
	})

	b.PCSample(s, &PCSample{
		Ref: ref(1), TimeNs: t0 + 10, Function: name, PCOffset: Some(416), Reason: "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued",
		Count: 12, File: "/src/train.cu", Line: Some(42), Device: Some(0), Correlation: Some(100),
	})
	b.SASSMetric(s, &SASSMetric{
		Ref: ref(1), TimeNs: t0 + 11, Function: name, PCOffset: Some(416), Metric: "smsp__sass_inst_executed",
		Value: math.MaxInt64, File: "/src/train.cu", Line: Some(43), Device: Some(0), Correlation: Some(100),
	})
	b.SASSMetric(s, &SASSMetric{Ref: ref(1), TimeNs: t0 + 12, Metric: "smsp__sass_inst_executed", Value: math.MaxUint64})
	b.Record(s, &Record{
		Ref: ref(7), TimeNs: t0 + 13, Event: semconv.EventCUDAProfilerConfig, Body: "SASS metrics", Severity: SeverityWarn,
		Attrs: []Attr{
			Str(semconv.CUDAProfilerKind, semconv.CUDAProfilerKindSASSMetrics), F(semconv.CUDAProfilerInterval, 0.0001),
			Strs(semconv.CUDAProfilerMetricsConfigured, []string{"a", "b"}), Strs(semconv.CUDAProfilerMetricsSkipped, nil),
			I(semconv.CUDAProfilerMaxSamples, 0), Str(semconv.CUDAProfilerPreset, ""),
		},
	})
	b.Record(s, &Record{
		Event: semconv.EventCUDACapture, TimeNs: t0 + 14, Body: "kernel_events: collected", Severity: SeverityError,
		Attrs: []Attr{B(semconv.CUDACaptureRequested, false)},
	})
	b.Text(s, &Record{Event: semconv.EventCUDASource, TimeNs: t0 + 15, Attrs: []Attr{Str(semconv.CodeFilePath, "/src/train.cu")}}, "int main() {\n}\n")

	b.DeviceSample(s, &DeviceSample{
		TimeNs: t0 + 20, Device: 0,
		Utilization: SomeFloat(0.93), MemoryControllerUtilization: SomeFloat(0.46), FanRatio: SomeFloat(0.35),
		MemoryUsed: Some(10 << 30), MemoryFree: Some(30 << 30), MemoryTotal: Some(40 << 30),
		Temperature: SomeFloat(64), MemoryTemperature: SomeFloat(70), JunctionTemperature: SomeFloat(71),
		Power: SomeFloat(343.25), Voltage: SomeFloat(0.9), Energy: SomeFloat(123456.789),
		ClockGraphics: Some(1_980_000_000), ClockSM: Some(1_970_000_000), ClockMemory: Some(2_619_000_000),
		ThrottlePower: Some(1), ThrottleThermal: Some(0),
		PCIeReceive: Some(1_048_576), PCIeTransmit: Some(524_288), PCIe: Some(1_572_864),
		ECCCorrected: Some(2), ECCUncorrected: Some(0),
	})
	b.HostSample(s, &HostSample{TimeNs: t0 + 21, CPU: SomeFloat(0.3746), MemoryUsed: Some(20 << 30), MemoryTotal: Some(64 << 30)})
	b.Counter(s, &Counter{TimeNs: t0 + 22, Name: "sm__throughput", Value: 61.25, Device: Some(0), Scope: "epoch", Kernel: "add", Ordinal: Some(1)})
	b.Counter(s, &Counter{TimeNs: t0 + 23, Name: "dram_read_bytes", Int: Some(math.MaxInt64)})
}

// minimal adds one event of each kind of which nothing is known.
func minimal(b *Batch, s *Session) {
	unnamed := NewKernelName("")
	b.Kernel(s, &Kernel{Name: unnamed})
	b.Copy(s, &Copy{})
	b.Set(s, &Set{})
	b.Sync(s, &Sync{})
	b.Memory(s, &Memory{})
	b.Memory(s, &Memory{Free: true})
	b.Graph(s, &Graph{})
	b.Scope(s, &Scope{})
	b.SessionSpan(s, &SessionSpan{})
	b.PCSample(s, &PCSample{})
	b.SASSMetric(s, &SASSMetric{Function: unnamed})
	b.Record(s, &Record{Event: semconv.EventCUDAMarker})
	b.DeviceSample(s, &DeviceSample{})
	b.HostSample(s, &HostSample{})
	b.Counter(s, &Counter{})
}

func TestEveryEventOfASessionWithOneDevice(t *testing.T) {
	b := NewBatch(everySignal)
	everything(b, oneDevice())
	assert.Equal(t, 13, b.Spans())
	assert.Equal(t, 6, b.LogRecords())
	assert.Equal(t, 1, b.Overflows())
	assert.Equal(t, 27, b.Points())
	compare(t, b, "one_device")
}

func TestEveryEventOfASessionWithTwoDevices(t *testing.T) {
	b := NewBatch(everySignal)
	everything(b, twoDevices())
	compare(t, b, "two_devices")
}

func TestUnknownValuesAreAbsent(t *testing.T) {
	b := NewBatch(everySignal)
	minimal(b, &Session{})
	assert.Equal(t, 9, b.Spans())
	assert.Equal(t, 3, b.LogRecords())
	assert.Equal(t, 1, b.Points(), "a counter has a value; nothing else does")
	compare(t, b, "minimal")
}

func compare(t *testing.T, b *Batch, name string) {
	t.Helper()
	traces, logs, metrics := b.Take()
	registered(t, traces, logs, metrics)
	data, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	require.NoError(t, err)
	compareGolden(t, name+"_traces", data)
	data, err = (&plog.JSONMarshaler{}).MarshalLogs(logs)
	require.NoError(t, err)
	compareGolden(t, name+"_logs", data)
	data, err = (&pmetric.JSONMarshaler{}).MarshalMetrics(metrics)
	require.NoError(t, err)
	compareGolden(t, name+"_metrics", data)
}

// compareGolden compares OTLP JSON with testdata/name.json; -update writes the file.
func compareGolden(t *testing.T, name string, data []byte) {
	t.Helper()
	var got bytes.Buffer
	require.NoError(t, json.Indent(&got, data, "", " "))
	got.WriteByte('\n')
	path := filepath.Join("testdata", name+".json")
	if *update {
		require.NoError(t, os.WriteFile(path, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got.String(), path)
}

// registered checks every attribute against the registry: its name, its place, its type and, for a
// closed set, its value.
func registered(t *testing.T, traces ptrace.Traces, logs plog.Logs, metrics pmetric.Metrics) {
	t.Helper()
	registry := map[string]semconv.Attribute{}
	for _, a := range semconv.Attributes {
		registry[a.Name] = a
	}
	check := func(attributes pcommon.Map, place string, allowed func(semconv.Attribute) bool) {
		t.Helper()
		seen := map[string]bool{}
		for key, v := range attributes.All() {
			a, ok := registry[key]
			if !ok {
				t.Errorf("%s: %s is not registered", place, key)
				continue
			}
			if seen[key] {
				t.Errorf("%s: %s twice", place, key)
			}
			seen[key] = true
			if !allowed(a) {
				t.Errorf("%s: %s is not registered for it", place, key)
			}
			if got := valueType(v); got != a.Type {
				t.Errorf("%s: %s is %s, want %s", place, key, got, a.Type)
			}
			if len(a.Values) > 0 && !slices.Contains(a.Values, v.Str()) {
				t.Errorf("%s: %s is %q, want one of %q", place, key, v.Str(), a.Values)
			}
		}
	}
	onResource := func(a semconv.Attribute) bool {
		return slices.Contains(a.On, "resource") || slices.Contains(semconv.DevicePoint, a.Name)
	}
	for _, rs := range traces.ResourceSpans().All() {
		check(rs.Resource().Attributes(), "resource", onResource)
		for _, s := range rs.ScopeSpans().At(0).Spans().All() {
			op, _ := s.Attributes().Get(semconv.CUDAOperation)
			check(s.Attributes(), op.Str()+" span", func(a semconv.Attribute) bool {
				return slices.Contains(a.On, op.Str()) || slices.Contains(a.On, "device") && slices.Contains(semconv.DeviceSpans, op.Str())
			})
		}
	}
	for _, rl := range logs.ResourceLogs().All() {
		check(rl.Resource().Attributes(), "resource", onResource)
		for _, lr := range rl.ScopeLogs().At(0).LogRecords().All() {
			i := slices.IndexFunc(semconv.Events, func(e semconv.Event) bool { return e.Name == lr.EventName() })
			require.GreaterOrEqual(t, i, 0, "event %s", lr.EventName())
			check(lr.Attributes(), lr.EventName(), func(a semconv.Attribute) bool { return slices.Contains(semconv.Events[i].Attributes, a.Name) })
		}
	}
	for _, rm := range metrics.ResourceMetrics().All() {
		check(rm.Resource().Attributes(), "resource", onResource)
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			i := slices.IndexFunc(semconv.Metrics, func(d semconv.Metric) bool { return d.Name == m.Name() })
			require.GreaterOrEqual(t, i, 0, "metric %s", m.Name())
			for _, p := range points(m).All() {
				check(p.Attributes(), m.Name(), func(a semconv.Attribute) bool { return slices.Contains(semconv.Metrics[i].Attributes, a.Name) })
			}
		}
	}
}

func points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	if m.Type() == pmetric.MetricTypeSum {
		return m.Sum().DataPoints()
	}
	return m.Gauge().DataPoints()
}

func valueType(v pcommon.Value) semconv.Type {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return semconv.String
	case pcommon.ValueTypeInt:
		return semconv.Int
	case pcommon.ValueTypeDouble:
		return semconv.Double
	case pcommon.ValueTypeBool:
		return semconv.Bool
	case pcommon.ValueTypeSlice:
		if v.Slice().Len() > 0 && v.Slice().At(0).Type() == pcommon.ValueTypeInt {
			return semconv.Ints
		}
		return semconv.Strings
	default:
		return semconv.Type(v.Type().String())
	}
}

func TestKernelSpan(t *testing.T) {
	b := NewBatch(everySignal)
	everything(b, oneDevice())
	traces, _, _ := b.Take()
	rs := traces.ResourceSpans().At(0)
	assert.Equal(t, map[string]any{
		"service.name":                   "train",
		"service.instance.id":            "11111111-2222-4333-8444-555555555555",
		"process.pid":                    int64(4242),
		"host.name":                      "node-a",
		"host.ip":                        []any{"192.0.2.7"},
		"telemetry.distro.name":          "gpuflight",
		"cuda.session.kind":              "trace",
		"cuda.session.engine":            "nvidia.trace",
		"hw.name":                        "NVIDIA H200",
		"hw.vendor":                      "NVIDIA",
		"hw.type":                        "gpu",
		"cuda.device.compute_capability": "9.0",
		"cuda.device.sm_count":           int64(132),
		"cuda.run.id":                    "r1",
		"cuda.segment.index":             int64(0),
	}, rs.Resource().Attributes().AsRaw())
	assert.Equal(t, "https://opentelemetry.io/schemas/1.44.0", rs.SchemaUrl())
	assert.Equal(t, "github.com/gpuflight/gpuflight", rs.ScopeSpans().At(0).Scope().Name())

	k := rs.ScopeSpans().At(0).Spans().At(0)
	assert.Equal(t, "add", k.Name())
	assert.Equal(t, ptrace.SpanKindInternal, k.Kind())
	assert.Equal(t, ptrace.StatusCodeUnset, k.Status().Code())
	assert.Equal(t, pcommon.TraceID{15: 1}, k.TraceID())
	assert.Equal(t, pcommon.SpanID{7: 1}, k.SpanID())
	assert.Equal(t, pcommon.SpanID{6: 1, 7: 1}, k.ParentSpanID())
	assert.EqualValues(t, t0+3000, k.StartTimestamp())
	assert.EqualValues(t, t0+153_123, k.EndTimestamp())
	assert.Equal(t, map[string]any{
		"cuda.operation":                      "kernel",
		"cuda.kernel.name":                    "void ns::add<float>(float*, int)",
		"cuda.kernel.symbol":                  "_ZN2ns3addIfEEvPfi",
		"cuda.kernel.grid":                    []any{int64(64), int64(2), int64(1)},
		"cuda.kernel.block":                   []any{int64(256), int64(1), int64(1)},
		"cuda.kernel.cluster":                 []any{int64(2), int64(1), int64(1)},
		"cuda.kernel.registers_per_thread":    int64(40),
		"cuda.kernel.shared_memory.static":    int64(16384),
		"cuda.kernel.shared_memory.dynamic":   int64(0),
		"cuda.kernel.shared_memory.executed":  int64(33792),
		"cuda.kernel.local_memory.per_thread": int64(8),
		"cuda.occupancy.reported":             0.75,
		"cuda.occupancy.reported_limiter":     "registers",
		"cuda.graph.id":                       int64(3),
		"cuda.graph.node.id":                  int64(12),
		"cuda.stream.id":                      int64(7),
		"cuda.context.id":                     int64(1),
		"cuda.correlation.id":                 int64(100),
		"cuda.external.kind":                  int64(4),
		"cuda.external.id":                    int64(9_007_199_254_740_993),
		"cuda.launch.start_time_unix_nano":    t0 + 1000,
		"cuda.launch.end_time_unix_nano":      t0 + 1500,
		"cuda.queue.duration":                 1500e-9,
		"cuda.timing":                         "estimated",
		"cuda.scope.name":                     "step",
		"cuda.scope.inferred":                 true,
		"cuda.scope.path":                     "epoch|step",
		"hw.id":                               "GPU-aaaaaaaa",
		"cuda.device.index":                   int64(0),
		"code.stacktrace":                     "forward\ntrain_step\nmain",
	}, k.Attributes().AsRaw())
}

func TestSpanNamesAndLinks(t *testing.T) {
	b := NewBatch(everySignal)
	everything(b, oneDevice())
	minimal(b, oneDevice())
	b.Copy(oneDevice(), &Copy{Kind: "AtoH"})
	traces, _, _ := b.Take()
	var names []string
	for _, rs := range traces.ResourceSpans().All() {
		for _, s := range rs.ScopeSpans().At(0).Spans().All() {
			names = append(names, s.Name())
			op, _ := s.Attributes().Get(semconv.CUDAOperation)
			_, part := s.Attributes().Get(semconv.CUDAScopePart)
			assert.Equal(t, part, s.Links().Len() == 1, "%s span %s", op.Str(), s.Name())
		}
	}
	assert.Equal(t, []string{
		"add", "memcpy HtoD", "memset", "synchronize", "cudaEventSynchronize", "cudaStreamWaitEvent",
		"cudaStreamSynchronize", "cudaDeviceSynchronize", "malloc", "free", "graph", "step", "train",
		"kernel", "memcpy", "memset", "synchronize", "malloc", "free", "graph", "scope", "train",
		"memcpy AtoH",
	}, names)
	link := traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(11).Links().At(0)
	assert.Equal(t, pcommon.TraceID{15: 77}, link.TraceID())
	assert.Equal(t, pcommon.SpanID{7: 77}, link.SpanID())
}

func TestACrashIsAnError(t *testing.T) {
	for _, tt := range []struct {
		x       SessionSpan
		code    ptrace.StatusCode
		message string
	}{
		{SessionSpan{ExitCode: Some(1)}, ptrace.StatusCodeUnset, ""},
		{SessionSpan{Crashed: true}, ptrace.StatusCodeError, "process crashed"},
		{SessionSpan{Crashed: true, ExitCode: Some(3)}, ptrace.StatusCodeError, "process exited with code 3"},
		{SessionSpan{Crashed: true, ExitCode: Some(139), Signal: Some(11)}, ptrace.StatusCodeError, "process ended by signal 11"},
	} {
		b := NewBatch(everySignal)
		b.SessionSpan(oneDevice(), &tt.x)
		traces, _, _ := b.Take()
		status := traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0).Status()
		assert.Equal(t, tt.code, status.Code())
		assert.Equal(t, tt.message, status.Message())
	}
}

func TestOddTimes(t *testing.T) {
	b := NewBatch(everySignal)
	s := oneDevice()
	name := NewKernelName("k")
	b.Kernel(s, &Kernel{Name: name, Span: Span{StartNs: 100, EndNs: 50, LaunchEndNs: Some(101)}})
	b.Kernel(s, &Kernel{Name: name, Span: Span{StartNs: 100, EndNs: 100, LaunchEndNs: Some(100)}})
	b.Kernel(s, &Kernel{Name: name, Span: Span{StartNs: -5, EndNs: -1}})
	b.PCSample(s, &PCSample{TimeNs: -1})
	traces, logs, _ := b.Take()
	spans := traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans()

	assert.EqualValues(t, 100, spans.At(0).EndTimestamp(), "an end before the start is the start")
	_, ok := spans.At(0).Attributes().Get(semconv.CUDAQueueDuration)
	assert.False(t, ok, "a start before the end of the launch says nothing")
	queue, ok := spans.At(1).Attributes().Get(semconv.CUDAQueueDuration)
	assert.True(t, ok)
	assert.Zero(t, queue.Double())
	assert.EqualValues(t, 0, spans.At(2).StartTimestamp())
	assert.EqualValues(t, 0, spans.At(2).EndTimestamp())
	assert.EqualValues(t, 0, logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Timestamp())
}

func TestWhatIsNoNumberIsUnknown(t *testing.T) {
	b := NewBatch(everySignal)
	s := oneDevice()
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		b.Kernel(s, &Kernel{Name: NewKernelName("k"), ReportedOccupancy: SomeFloat(v)})
		b.Counter(s, &Counter{Name: "c", Value: v, Scope: "lost with the counter"})
		b.DeviceSample(s, &DeviceSample{Power: SomeFloat(v)})
		b.Record(s, &Record{Event: semconv.EventCUDADeepWindow, Attrs: []Attr{F(semconv.CUDADeepWindowRuleObserved, v)}})
	}
	b.Counter(s, &Counter{Name: "c", Int: Some(1), Value: math.NaN()})
	assert.Equal(t, 1, b.Points())
	traces, logs, metrics := b.Take()
	for _, k := range traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans().All() {
		_, ok := k.Attributes().Get(semconv.CUDAOccupancyReported)
		assert.False(t, ok)
	}
	for _, lr := range logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
		assert.Zero(t, lr.Attributes().Len())
	}
	p := metrics.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0)
	_, ok := p.Attributes().Get(semconv.CUDAScopePath)
	assert.False(t, ok, "an attribute of a dropped point must not reach the next one")
}

func TestWhichDeviceASpanIsOn(t *testing.T) {
	for _, tt := range []struct {
		name    string
		devices []Device
		device  Int
		want    map[string]any
	}{
		{"the only device is known without being named", []Device{h200(0)}, Int{}, map[string]any{"hw.id": "GPU-aaaaaaaa", "cuda.device.index": int64(0)}},
		{"another device than the only one has but its number", []Device{h200(0)}, Some(1), map[string]any{"cuda.device.index": int64(1)}},
		{"one of two is unknown without being named", []Device{h200(0), h200(1)}, Int{}, map[string]any{}},
		{"one of two is described in full", []Device{h200(0), h200(1)}, Some(1), map[string]any{
			"hw.id": "GPU-bbbbbbbb", "cuda.device.index": int64(1), "hw.name": "NVIDIA H200", "hw.vendor": "NVIDIA", "hw.type": "gpu",
			"cuda.device.compute_capability": "9.0", "cuda.device.sm_count": int64(132),
		}},
		{"no device at all", nil, Int{}, map[string]any{}},
	} {
		b := NewBatch(everySignal)
		b.Kernel(&Session{Devices: tt.devices}, &Kernel{Name: NewKernelName("k"), Span: Span{Device: tt.device}})
		traces, _, _ := b.Take()
		tt.want["cuda.operation"], tt.want["cuda.kernel.name"] = "kernel", "k"
		assert.Equal(t, tt.want, traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0).Attributes().AsRaw(), tt.name)
	}
}

func TestDataPointsShareTheirMetric(t *testing.T) {
	b := NewBatch(everySignal)
	one, two := oneDevice(), twoDevices()
	for i := range int64(3) {
		b.DeviceSample(one, &DeviceSample{TimeNs: t0 + i, Power: SomeFloat(float64(i))})
		b.DeviceSample(two, &DeviceSample{TimeNs: t0 + i, Device: 1, Power: SomeFloat(float64(i)), UUID: "GPU-own", Name: "own", Vendor: "its"})
	}
	_, _, metrics := b.Take()
	require.Equal(t, 2, metrics.ResourceMetrics().Len())
	for r, id := range []string{"GPU-aaaaaaaa", "GPU-own"} {
		list := metrics.ResourceMetrics().At(r).ScopeMetrics().At(0).Metrics()
		require.Equal(t, 1, list.Len())
		require.Equal(t, 3, list.At(0).Gauge().DataPoints().Len())
		for i, p := range list.At(0).Gauge().DataPoints().All() {
			assert.EqualValues(t, t0+int64(i), p.Timestamp())
			assert.InDelta(t, float64(i), p.DoubleValue(), 0)
			assert.Zero(t, p.StartTimestamp())
			got, _ := p.Attributes().Get(semconv.HWID)
			assert.Equal(t, id, got.Str())
		}
	}
}

func TestInstrumentsOfMetrics(t *testing.T) {
	for i, def := range metricDefs {
		if def.Name == "" {
			t.Errorf("metric %d is not registered", i)
		}
	}
	b := NewBatch(everySignal)
	everything(b, oneDevice())
	_, _, metrics := b.Take()
	got := map[string]string{}
	for _, m := range metrics.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		kind := "gauge"
		if m.Type() == pmetric.MetricTypeSum {
			kind = "updowncounter"
			if m.Sum().IsMonotonic() {
				kind = "counter"
			}
			assert.Equal(t, pmetric.AggregationTemporalityCumulative, m.Sum().AggregationTemporality())
		}
		got[m.Name()] = kind + " " + m.Unit()
	}
	assert.Equal(t, map[string]string{
		"hw.gpu.utilization":                   "gauge 1",
		"hw.gpu.memory.controller.utilization": "gauge 1",
		"hw.gpu.memory.usage":                  "updowncounter By",
		"hw.gpu.memory.free":                   "updowncounter By",
		"hw.gpu.memory.limit":                  "updowncounter By",
		"hw.fan.speed_ratio":                   "gauge 1",
		"hw.temperature":                       "gauge Cel",
		"hw.power":                             "gauge W",
		"hw.voltage":                           "gauge V",
		"hw.energy":                            "counter J",
		"hw.gpu.speed":                         "gauge Hz",
		"hw.gpu.throttle.active":               "gauge 1",
		"hw.gpu.io.throughput":                 "gauge By/s",
		"hw.errors":                            "counter {error}",
		"system.cpu.utilization":               "gauge 1",
		"system.memory.usage":                  "updowncounter By",
		"system.memory.limit":                  "updowncounter By",
		"gpu.cuda.counter":                     "gauge ",
	}, got)
}

func TestTakeLeavesNothingBehind(t *testing.T) {
	b := NewBatch(everySignal)
	s := oneDevice()
	everything(b, s)
	first, firstLogs, firstMetrics := b.Take()
	wantTraces, wantLogs, wantMetrics := ptrace.NewTraces(), plog.NewLogs(), pmetric.NewMetrics()
	first.CopyTo(wantTraces)
	firstLogs.CopyTo(wantLogs)
	firstMetrics.CopyTo(wantMetrics)

	assert.Zero(t, b.Spans()+b.LogRecords()+b.Points()+b.Overflows())
	assert.Nil(t, b.last)
	assert.Empty(t, b.outputs)
	for _, a := range []*attrs{b.spanAttrs, b.logAttrs, b.pointAttrs} {
		assert.Equal(t, [64]value{}, a.values)
		assert.Zero(t, a.present)
	}
	traces, logs, metrics := b.Take()
	assert.Zero(t, traces.ResourceSpans().Len()+logs.ResourceLogs().Len()+metrics.ResourceMetrics().Len())

	// The second filling is the same as the first, and does not touch what was handed over.
	minimal(b, s)
	b.Take()
	everything(b, s)
	again, againLogs, againMetrics := b.Take()
	assert.Equal(t, marshal(t, wantTraces, wantLogs, wantMetrics), marshal(t, again, againLogs, againMetrics))
	assert.Equal(t, marshal(t, wantTraces, wantLogs, wantMetrics), marshal(t, first, firstLogs, firstMetrics))
}

func marshal(t *testing.T, traces ptrace.Traces, logs plog.Logs, metrics pmetric.Metrics) string {
	t.Helper()
	a, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(traces)
	require.NoError(t, err)
	b, err := (&plog.ProtoMarshaler{}).MarshalLogs(logs)
	require.NoError(t, err)
	c, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(metrics)
	require.NoError(t, err)
	return string(a) + string(b) + string(c)
}

func TestSessionsAreKeptApart(t *testing.T) {
	b := NewBatch(everySignal)
	sessions := []*Session{{App: "a"}, {App: "b"}, {App: "c"}}
	name := NewKernelName("k")
	for i := range 30 {
		s := sessions[i*7%3]
		b.Kernel(s, &Kernel{Name: name})
		b.PCSample(s, &PCSample{Count: int64(i)})
		b.HostSample(s, &HostSample{CPU: SomeFloat(0)})
	}
	traces, logs, metrics := b.Take()
	require.Equal(t, 3, traces.ResourceSpans().Len())
	for i, app := range []string{"a", "b", "c"} {
		got, _ := traces.ResourceSpans().At(i).Resource().Attributes().Get(semconv.ServiceName)
		assert.Equal(t, app, got.Str())
		assert.Equal(t, 10, traces.ResourceSpans().At(i).ScopeSpans().At(0).Spans().Len())
		assert.Equal(t, 10, logs.ResourceLogs().At(i).ScopeLogs().At(0).LogRecords().Len())
		assert.Equal(t, 10, points(metrics.ResourceMetrics().At(i).ScopeMetrics().At(0).Metrics().At(0)).Len())
	}
}

func TestUnwantedSignalsAreDropped(t *testing.T) {
	for _, s := range []Signals{{Traces: true}, {Logs: true}, {Metrics: true}, {}} {
		b := NewBatch(s)
		everything(b, oneDevice())
		traces, logs, metrics := b.Take()
		assert.Equal(t, s.Traces, traces.SpanCount() == 13)
		assert.Equal(t, s.Logs, logs.LogRecordCount() == 6)
		assert.Equal(t, s.Metrics, metrics.DataPointCount() == 27)
		got := Signals{traces.ResourceSpans().Len() > 0, logs.ResourceLogs().Len() > 0, metrics.ResourceMetrics().Len() > 0}
		assert.Equal(t, s, got)
	}
}

func TestShapesAreBounded(t *testing.T) {
	a := newAttrs(spanKeys[:])
	for mask := range 5 * maxShapes {
		for slot := range 16 {
			if mask&(1<<slot) != 0 {
				a.int(slot, int64(slot))
			}
		}
		m := pcommon.NewMap()
		a.write(m)
		for slot := range 16 {
			v, ok := m.Get(spanKeys[slot])
			require.Equal(t, mask&(1<<slot) != 0, ok)
			if ok {
				require.EqualValues(t, slot, v.Int())
			}
		}
		require.LessOrEqual(t, len(a.shapes), maxShapes)
	}
}

func TestSlotsFit(t *testing.T) {
	for _, keys := range [][]string{spanKeys[:], logKeys[:], pointKeys[:]} {
		assert.LessOrEqual(t, len(keys), 64)
		seen := map[string]bool{}
		for i, k := range keys {
			assert.NotEmpty(t, k, "slot %d", i)
			assert.False(t, seen[k], "%s has two slots", k)
			seen[k] = true
		}
	}
}
