// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

func env(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestSettings_EmptyEnvironment(t *testing.T) {
	s, err := SettingsFromEnv(env(nil))
	require.NoError(t, err)
	assert.Equal(t, Settings{
		Kinds: cupti.DefaultKinds, ShutdownTimeout: DefaultShutdownTimeout, LogLevel: slog.LevelWarn,
	}, s)
}

func TestSettings(t *testing.T) {
	s, err := SettingsFromEnv(env(map[string]string{
		"GPUFLIGHT_MAX_SPANS_PER_SECOND": "100", "GPUFLIGHT_MAX_SPANS_PER_TRACE": "50", "GPUFLIGHT_KERNELS_ONLY": "true",
		"GPUFLIGHT_INCLUDE": "gemm*, *attn*,", "GPUFLIGHT_EXCLUDE": "copy?", "GPUFLIGHT_MIN_DURATION": "1500us",
		"GPUFLIGHT_KINDS": "+runtime,-memset", "GPUFLIGHT_GRAPH_NODES": "1", "GPUFLIGHT_STACKS": "1", "GPUFLIGHT_CUPTI": "/x/libcupti.so", "GPUFLIGHT_BUFFER_SIZE": "1MiB",
		"GPUFLIGHT_FLUSH_INTERVAL": "50ms", "GPUFLIGHT_METRIC_INTERVAL": "1s", "GPUFLIGHT_SHUTDOWN_TIMEOUT": "2s",
		"GPUFLIGHT_DISABLED": "on", "GPUFLIGHT_LOG_LEVEL": "off", "GPUFLIGHT_SUMMARY_DIR": "/tmp/s",
		"TRACEPARENT":              "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"OTEL_SERVICE_NAME":        "trainer",
		"OTEL_RESOURCE_ATTRIBUTES": "service.name=other,team=a%2Cb, deployment.environment.name=x%3Dy ,service.instance.id=" + testInstance,
	}))
	require.NoError(t, err)
	assert.Equal(t, Settings{
		Disabled: true, Kinds: (cupti.DefaultKinds | cupti.KindsOf(cupti.KindRuntimeAPI)) &^ cupti.KindsOf(cupti.KindMemset),
		GraphNodes: true, Stacks: true, Library: "/x/libcupti.so", BufferBytes: 1 << 20, ServiceName: "trainer", InstanceID: testInstance,
		Resource: []gpuevent.Attr{gpuevent.Str("team", "a,b"), gpuevent.Str("deployment.environment.name", "x=y")},
		Parent: gpuevent.Ref{
			Trace: gpuevent.TraceID{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c},
			Span:  gpuevent.SpanID{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31},
		}, HasParent: true, ParentSampled: true,
		MaxSpansPerSecond: 100, MaxSpansPerTrace: 50, KernelsOnly: true,
		Include: []string{"gemm*", "*attn*"}, Exclude: []string{"copy?"},
		MinDuration: 1500 * time.Microsecond, FlushInterval: 50 * time.Millisecond, MetricInterval: time.Second,
		ShutdownTimeout: 2 * time.Second, LogLevel: LogOff, SummaryDir: "/tmp/s",
	}, s)
	cfg := s.Config()
	assert.Equal(t, s.Kinds, cfg.Asked)
	assert.Equal(t, s.Parent, cfg.Parent)
	assert.Equal(t, cupti.Config{Library: "/x/libcupti.so", Kinds: s.Kinds, GraphNodes: true, Stacks: true, BufferBytes: 1 << 20, Buffers: 256}, s.Collector())
	_, err = New(cfg, &source{}, &sink{})
	assert.NoError(t, err)
}

func TestSettings_InvalidValues(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"GPUFLIGHT_MAX_SPANS_PER_SECOND", "many", `GPUFLIGHT_MAX_SPANS_PER_SECOND is "many"; it must be a whole number of 0 to 2147483647, or unlimited`},
		{"GPUFLIGHT_MAX_SPANS_PER_TRACE", "1", `GPUFLIGHT_MAX_SPANS_PER_TRACE is "1"; it must be a whole number of 2 to 2147483647`},
		{"GPUFLIGHT_KERNELS_ONLY", "maybe", `GPUFLIGHT_KERNELS_ONLY is "maybe"; it must be true or false`},
		{"GPUFLIGHT_MIN_DURATION", "5", `GPUFLIGHT_MIN_DURATION is "5"; it must be a duration of at least 0s, such as 1500us, 200ms or 5s`},
		{"GPUFLIGHT_FLUSH_INTERVAL", "-1s", `GPUFLIGHT_FLUSH_INTERVAL is "-1s"; it must be a duration of at least 1ms, such as 1500us, 200ms or 5s`},
		{"GPUFLIGHT_BUFFER_SIZE", "1GiB", `GPUFLIGHT_BUFFER_SIZE is "1GiB"; it must be a size of 256 KiB to 64 MiB`},
		{"GPUFLIGHT_BUFFER_SIZE", "small", `GPUFLIGHT_BUFFER_SIZE is "small"; it must be a size of 256 KiB to 64 MiB`},
		{"GPUFLIGHT_LOG_LEVEL", "loud", `GPUFLIGHT_LOG_LEVEL is "loud"; it must be debug, info, warn, error or off`},
		{"GPUFLIGHT_KINDS", "kernels", `GPUFLIGHT_KINDS: "kernels" is not a kind of record: valid kinds are kernel, memcpy, memset, memory, sync, graph, nvtx, runtime, driver, overhead, causes`},
		{"GPUFLIGHT_KINDS", "kernel,-sync", `GPUFLIGHT_KINDS: "kernel,-sync" mixes a list of kinds with changes to the default: give every kind a sign, or none`},
		{"OTEL_RESOURCE_ATTRIBUTES", "a=1,b", `OTEL_RESOURCE_ATTRIBUTES: "b" is not percent-encoded key=value: the variable is ignored`},
		{"OTEL_RESOURCE_ATTRIBUTES", "a=%zz", `OTEL_RESOURCE_ATTRIBUTES: "a=%zz" is not percent-encoded key=value: the variable is ignored`},
	} {
		s, err := SettingsFromEnv(env(map[string]string{c.name: c.value}))
		assert.EqualError(t, err, c.want)
		rest, _ := SettingsFromEnv(env(nil))
		assert.Equal(t, rest, s, "a bad value leaves the default")
	}
	_, err := SettingsFromEnv(env(map[string]string{"GPUFLIGHT_DISABLED": "x", "GPUFLIGHT_GRAPH_NODES": "y"}))
	require.Error(t, err)
	assert.Contains(t, err.Error(), "GPUFLIGHT_DISABLED")
	assert.Contains(t, err.Error(), "GPUFLIGHT_GRAPH_NODES")
}

func TestSettings_LogLevels(t *testing.T) {
	for text, want := range map[string]slog.Level{
		"": slog.LevelWarn, "DEBUG": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn,
		"error": slog.LevelError, "none": LogOff,
	} {
		s, err := SettingsFromEnv(env(map[string]string{"GPUFLIGHT_LOG_LEVEL": text}))
		require.NoError(t, err)
		assert.Equal(t, want, s.LogLevel, text)
	}
}

func TestSettings_NoSpans(t *testing.T) {
	for _, v := range []string{"0", "-1"} {
		s, err := SettingsFromEnv(env(map[string]string{"GPUFLIGHT_MAX_SPANS_PER_SECOND": v}))
		require.NoError(t, err)
		assert.Equal(t, -1, s.MaxSpansPerSecond)
	}
}

func TestParseKinds(t *testing.T) {
	external := cupti.KindsOf(cupti.KindExternal)
	for text, want := range map[string]cupti.Kinds{
		"":                cupti.DefaultKinds,
		"kernel":          cupti.KindsOf(cupti.KindKernel) | external,
		"kernel, MEMCPY":  cupti.KindsOf(cupti.KindKernel, cupti.KindMemcpy, cupti.KindMemcpyP2P) | external,
		"-memcpy,+driver": cupti.DefaultKinds&^cupti.KindsOf(cupti.KindMemcpy, cupti.KindMemcpyP2P) | cupti.KindsOf(cupti.KindDriverAPI),
		"+sync":           cupti.DefaultKinds | cupti.KindsOf(cupti.KindSync),
		"Causes":          cupti.DefaultKinds | cupti.KindsOf(cupti.KindSync, cupti.KindMemory, cupti.KindRuntimeAPI, cupti.KindDriverAPI),
		"+causes,-nvtx":   cupti.DefaultKinds&^cupti.KindsOf(cupti.KindNVTX) | cupti.KindsOf(cupti.KindSync, cupti.KindMemory, cupti.KindRuntimeAPI, cupti.KindDriverAPI),
	} {
		got, err := ParseKinds(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	assert.Equal(t, []string{"kernel", "memcpy", "memset", "graph", "nvtx", "overhead"}, KindNames(cupti.DefaultKinds))
	assert.Empty(t, KindNames(0))
	_, err := ParseKinds("+")
	assert.Error(t, err)
}

func TestParseTraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r, sampled, ok := ParseTraceparent(good)
	require.True(t, ok)
	assert.True(t, sampled)
	assert.Equal(t, good, Traceparent(r, sampled))
	_, sampled, ok = ParseTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	assert.True(t, ok)
	assert.False(t, sampled)
	_, _, ok = ParseTraceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later")
	assert.True(t, ok, "a later version may be longer")
	for _, bad := range []string{
		"", "00", good + "x", good + "-more", "ff" + good[2:], "0x" + good[2:], "00-" + good[3:52] + "_01",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
	} {
		_, _, ok := ParseTraceparent(bad)
		assert.False(t, ok, bad)
	}
}

func TestDetectProcess(t *testing.T) {
	cfg := Config{Resource: []gpuevent.Attr{gpuevent.Str("team", "a")}}
	DetectProcess(&cfg, "go")
	assert.Equal(t, os.Getpid(), cfg.PID)
	host, _ := os.Hostname()
	assert.Equal(t, host, cfg.HostName)
	assert.NotEmpty(t, cfg.Command)
	exe, err := os.Executable()
	require.NoError(t, err)
	assert.Contains(t, cfg.Resource, gpuevent.Str(semconv.ProcessExecutableName, filepath.Base(exe)))
	assert.Contains(t, cfg.Resource, gpuevent.Str(semconv.TelemetrySDKLanguage, "go"))
	n := len(cfg.Resource)
	DetectProcess(&cfg, "go")
	assert.Len(t, cfg.Resource, n, "existing attributes are kept")
	done, err := complete(cfg)
	require.NoError(t, err)
	assert.Equal(t, "unknown_service:"+filepath.Base(exe), done.ServiceName)
}

func TestNewInstanceID_UUID(t *testing.T) {
	a, b := NewInstanceID(), NewInstanceID()
	assert.NotEqual(t, a, b)
	assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, a)
	assert.True(t, IsUUID(a))
	for _, bad := range []string{"", "x", a[:35], "00000000-0000-0000-0000-000000000000", a[:35] + "g", a[:34] + "--"} {
		assert.False(t, IsUUID(bad), bad)
	}
}

func TestNew_InvalidConfig(t *testing.T) {
	for want, cfg := range map[string]Config{
		`recorder: instance id "x" is not a UUID`:                           {InstanceID: "x"},
		"recorder: the parent has no trace or no span":                      {HasParent: true},
		"recorder: negative duration":                                       {MinDuration: -1},
		"recorder: 1 spans per trace: a scope and its work need at least 2": {MaxSpansPerTrace: 1},
	} {
		_, err := New(cfg, &source{}, &sink{})
		assert.EqualError(t, err, want)
	}
}

func TestSummary_Write(t *testing.T) {
	dir := t.TempDir()
	f := newFixture(t, Config{PID: 42, Command: []string{"train", "--fast"}}).start()
	f.src.deliver(kernel("k", 1, 0, 10))
	s := f.stop()
	require.NoError(t, s.Write(dir))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	assert.Equal(t, "42-"+testInstance+".json", entries[0].Name())
	text, err := os.ReadFile(filepath.Join(dir, entries[0].Name()))
	require.NoError(t, err)
	var read Summary
	require.NoError(t, json.Unmarshal(text, &read))
	assert.Equal(t, s, read)
	assert.Error(t, s.Write(filepath.Join(dir, "absent")))
}
