// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

// emptyLibrary returns the path of an empty injection library in a new folder with an empty
// recorder.
func emptyLibrary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{libraryName, recorderName} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	return filepath.Join(dir, libraryName)
}

// prepared returns the changes to a command's environment. "-NAME" means that a variable was
// removed.
func prepared(t *testing.T, environ []string, flags ...string) (*tracing, map[string]string) {
	t.Helper()
	library := emptyLibrary(t)
	cfg, err := parseTrace(slices.Concat([]string{"--library", library}, flags, []string{"--", "true"}), &bytes.Buffer{})
	require.NoError(t, err)
	tr, err := prepare(cfg, environ)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(tr.dir)) })
	before, after := newEnvironment(environ), newEnvironment(tr.env.list())
	changes := maps.Clone(after.values)
	for name, v := range before.values {
		switch now, ok := after.values[name]; {
		case !ok:
			changes["-"+name] = ""
		case now == v:
			delete(changes, name)
		}
	}
	assert.Equal(t, library, changes[injectionVariable])
	assert.Equal(t, tr.dir, changes["GPUFLIGHT_SUMMARY_DIR"])
	ref, sampled, ok := recorder.ParseTraceparent(changes["TRACEPARENT"])
	require.True(t, ok)
	assert.Equal(t, tr.ref.Trace, ref.Trace)
	assert.Equal(t, tr.ref.Span, ref.Span)
	assert.Equal(t, tr.sampled, sampled)
	for _, name := range []string{injectionVariable, "GPUFLIGHT_SUMMARY_DIR", "TRACEPARENT"} {
		delete(changes, name)
	}
	return tr, changes
}

func TestPrepare_Environment(t *testing.T) {
	_, changes := prepared(t, []string{"HOME=/root", "EMPTY=", "GPUFLIGHT_LOG_LEVEL=debug"})
	nvtx := changes[nvtxVariable]
	assert.Equal(t, libraryName, filepath.Base(nvtx))
	assert.Equal(t, map[string]string{nvtxVariable: nvtx, "GPUFLIGHT_SHUTDOWN_TIMEOUT": childTimeout,
		"GPUFLIGHT_DRAIN_TIMEOUT": drainTimeout, "GPUFLIGHT_MAX_SPANS_PER_SECOND": "unlimited"}, changes)

	output := filepath.Join(t.TempDir(), "x.jsonl")
	require.NoError(t, os.WriteFile(output, []byte(earlierRun), 0o600))
	tr, changes := prepared(t, []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://a:1", "OTEL_SERVICE_NAME=old"},
		"--endpoint", "http://b:4317", "--protocol", "grpc", "--output", output, "--service", "new", "--kinds", "+sync", "--graph-nodes", "--stacks",
		"--force", "--max-spans", "7", "--include", "gemm*,conv*", "--exclude", "*tiny*", "--min-duration", "5us", "--nvtx=false")
	assert.Equal(t, map[string]string{
		"-OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
		"GPUFLIGHT_OUTPUT": output, "OTEL_SERVICE_NAME": "new", "GPUFLIGHT_KINDS": "+sync", "GPUFLIGHT_GRAPH_NODES": "true", "GPUFLIGHT_STACKS": "true",
		"GPUFLIGHT_MAX_SPANS_PER_SECOND": "7", "GPUFLIGHT_INCLUDE": "gemm*,conv*", "GPUFLIGHT_EXCLUDE": "*tiny*", "GPUFLIGHT_MIN_DURATION": "5us",
		"GPUFLIGHT_LOG_LEVEL": "off", "GPUFLIGHT_SHUTDOWN_TIMEOUT": childTimeout, "GPUFLIGHT_DRAIN_TIMEOUT": drainTimeout,
	}, changes)
	assert.Equal(t, 7, tr.settings.MaxSpansPerSecond)
	info, err := os.Stat(output)
	require.NoError(t, err)
	assert.Zero(t, info.Size())

	_, changes = prepared(t, nil, "--nvtx=false")
	assert.Equal(t, "-nvtx", changes["GPUFLIGHT_KINDS"])

	tr, changes = prepared(t, []string{"GPUFLIGHT_OUTPUT=" + filepath.Join(t.TempDir(), "mine.jsonl")}, "--endpoint", "http://b:4318")
	assert.Contains(t, changes, "-GPUFLIGHT_OUTPUT", "a flag wins over a variable")
	assert.Empty(t, tr.sending.File)
	assert.Equal(t, "http://b:4318", changes["OTEL_EXPORTER_OTLP_ENDPOINT"])
}

// earlierRun is the start of a recording.
const earlierRun = `{"resourceSpans":[]}`

// TestPrepare_ExistingOutput checks that no file is lost by mistake.
func TestPrepare_ExistingOutput(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		force   bool
		want    string
	}{
		"empty":              {},
		"recording":          {content: earlierRun, want: "has a recording: choose another file, or replace it with --force"},
		"recording, forced":  {content: earlierRun, force: true},
		"other file":         {content: "import torch\n", want: "exists and is not a recording: choose another file"},
		"other file, forced": {content: "import torch\n", force: true, want: "exists and is not a recording: choose another file"},
		"other JSON":         {content: `{"resource":1}`, force: true, want: "exists and is not a recording: choose another file"},
	} {
		t.Run(name, func(t *testing.T) {
			output := filepath.Join(t.TempDir(), "train.py")
			require.NoError(t, os.WriteFile(output, []byte(c.content), 0o600))
			args := []string{"--library", emptyLibrary(t), "--output", output}
			if c.force {
				args = append(args, "--force")
			}
			cfg, err := parseTrace(append(args, "--", "true"), &bytes.Buffer{})
			require.NoError(t, err)
			tr, err := prepare(cfg, nil)
			text, readErr := os.ReadFile(output)
			require.NoError(t, readErr)
			if c.want == "" {
				require.NoError(t, err)
				require.NoError(t, os.RemoveAll(tr.dir))
				assert.Empty(t, text)
				return
			}
			require.EqualError(t, err, output+" "+c.want)
			assert.Equal(t, c.content, string(text))
		})
	}
}

func TestEnvironment_DuplicateVariables(t *testing.T) {
	e := newEnvironment([]string{"A=1", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=x", "A=2", "=odd", "B"})
	e.setForAll("OTEL_EXPORTER_OTLP_ENDPOINT", "y")
	e.set("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "z")
	e.unset("none")
	assert.Equal(t, []string{"A=2", "OTEL_EXPORTER_OTLP_ENDPOINT=y", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=z"}, e.list())
}

func TestPrepare_Traceparent(t *testing.T) {
	tr, _ := prepared(t, []string{"TRACEPARENT=00-0102030405060708090a0b0c0d0e0f10-1112131415161718-00"})
	assert.False(t, tr.sampled)
	assert.Equal(t, byte(0x10), tr.ref.Trace[15])
	assert.Equal(t, byte(0x18), tr.ref.Parent[7])
	assert.NotEqual(t, tr.ref.Parent, tr.ref.Span)
	assert.Empty(t, tr.send(time.Now(), nil), "an unsampled trace has no span")
}

func TestSent_ByPlace(t *testing.T) {
	deliveries := []recorder.Delivery{
		{Signal: "traces", To: "http://c:4318/v1/traces (http/protobuf)", Sent: 1200, Unsent: map[string]uint64{"queue_full": 30}},
		{Signal: "logs", To: "http://c:4318/v1/logs (http/protobuf)", Sent: 1},
		{Signal: "traces", To: "http://c:4318/v1/traces (http/protobuf)", Sent: 34, Unsent: map[string]uint64{"unreachable": 1}, Error: "connection refused"},
		{Signal: "metrics", To: "http://d:1 (http/protobuf)", Sent: 7},
	}
	assert.Equal(t, []string{
		"1,234 spans, 1 log record went to http://c:4318 (http/protobuf)",
		"7 metric points went to http://d:1 (http/protobuf)",
	}, sent(deliveries))
	assert.Equal(t, []string{"31 spans could not be sent to http://c:4318 (http/protobuf) (queue_full, unreachable): connection refused"}, unsent(deliveries))
	assert.Empty(t, unsent(deliveries[1:2]))
}

func TestDropDuplicateRecorders_SDKAndLibrary(t *testing.T) {
	sdk := recorder.Summary{PID: 1, Instance: "a", EndNs: 1}
	library := recorder.Summary{PID: 1, Instance: "b", Reason: cupti.ReasonOtherProfiler}
	alone := recorder.Summary{PID: 2, Instance: "c", Reason: cupti.ReasonOtherProfiler}
	assert.Equal(t, []recorder.Summary{sdk, alone}, dropDuplicateRecorders([]recorder.Summary{library, sdk, alone}))
}

func TestFindLibrary_NextToProgram(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	_, err = findLibrary("")
	if err != nil {
		assert.True(t, strings.HasPrefix(err.Error(), libraryName+" is not in "+filepath.Dir(self)+","), err.Error())
	}
	path := filepath.Join(filepath.Dir(self), libraryName)
	for _, file := range []string{path, filepath.Join(filepath.Dir(self), recorderName)} {
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		defer os.Remove(file)
	}
	found, err := findLibrary("")
	require.NoError(t, err)
	assert.Equal(t, path, found)
}

func TestTrace_View(t *testing.T) {
	t.Run("with an endpoint", func(t *testing.T) {
		_, err := parseTrace([]string{"--view", "--endpoint", "http://x:4317", "--", "true"}, &bytes.Buffer{})
		require.EqualError(t, err, "--view shows a recording in a file: leave out --endpoint, and open the UI of that Collector")
	})
	t.Run("without a Collector", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		mark := filepath.Join(t.TempDir(), "ran")
		_, err := runTrace([]string{"--library", emptyLibrary(t), "--view", "--", "/bin/sh", "-c", "echo >" + mark}, &bytes.Buffer{}, &bytes.Buffer{})
		require.EqualError(t, err, "--view: otelcol-gpuflight is neither beside gpuflight nor on PATH: install it, or run make build in a checkout")
		assert.NoFileExists(t, mark, "the command does not run")
	})
}
