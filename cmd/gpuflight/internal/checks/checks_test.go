// SPDX-License-Identifier: Apache-2.0

//go:build linux

package checks

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// system writes files below a root. Names end with the text "=" and the content.
func system(t *testing.T, files map[string]string) System {
	t.Helper()
	s := System{Root: t.TempDir()}
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(s.path(name)), 0o700))
		require.NoError(t, os.WriteFile(s.path(name), []byte(text), 0o600))
	}
	return s
}

const statusFile = "/proc/self/status"

func TestCounters(t *testing.T) {
	nvdisasm := filepath.Join(t.TempDir(), "nvdisasm")
	require.NoError(t, os.WriteFile(nvdisasm, nil, 0o700))
	t.Setenv(cubin.DisassemblerEnv, nvdisasm)
	const only = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n"
	for _, tc := range []struct {
		text, status, want string
		ok                 bool
	}{
		{only, "Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n", "you have CAP_SYS_ADMIN, which suffices", true},
		// Root in a Docker container.
		{only, "CapEff:\t00000000a80425fb\n", "deep windows end with no_permission: ", false},
		{only, "CapEff:\t00000040a80425fb\n", "you have CAP_PERFMON, which suffices from R565 on", true},
		{only, "CapEff:\t0000000000000000\n", "deep windows end with no_permission: ", false},
		{only, "CapEff: many\n", "deep windows end with no_permission: ", false},
		{only, "", "deep windows end with no_permission: ", false},
		{"RmProfilingAdminOnly: 0\n", "", "the driver lets every user read the GPU's counters", true},
		{"ResmanDebugLevel: 4294967295\n", "", "it is unknown whether the driver lets this user read the GPU's counters", false},
	} {
		f := system(t, map[string]string{parameters: tc.text, statusFile: tc.status}).Counters(environment())
		assert.Equal(t, tc.ok, f.OK, tc.want)
		assert.True(t, f.Optional)
		assert.Contains(t, f.Detail, tc.want)
		assert.Contains(t, f.Detail, "; SASS listings come from "+nvdisasm)
	}
	t.Setenv(cubin.DisassemblerEnv, nvdisasm+"-not")
	f := system(t, nil).Counters(environment())
	assert.True(t, f.Optional, "nothing of it is required to record")
	assert.Contains(t, f.Detail, "it is unknown")
	assert.Contains(t, f.Detail, "no nvdisasm")
	f = system(t, nil).Counters(environment("GPUFLIGHT_DEEP_AFTER", "soon"))
	assert.False(t, f.OK || f.Optional)
	assert.Contains(t, f.Detail, "GPUFLIGHT_DEEP_AFTER is \"soon\"")
}

func TestBPF(t *testing.T) {
	const release, btf = "/proc/sys/kernel/osrelease", "/sys/kernel/btf/vmlinux"
	for name, tc := range map[string]struct {
		files map[string]string
		want  string // "" if it is allowed
	}{
		"root":             {map[string]string{release: "6.18.1-arch\n", btf: "", statusFile: "CapEff:\t000001ffffffffff\n"}, ""},
		"CAP_SYS_ADMIN":    {map[string]string{release: "5.15.0\n", btf: "", statusFile: "CapEff:\t0000000000280000\n"}, ""},
		"exact":            {map[string]string{release: "5.15.0\n", btf: "", statusFile: "CapEff:\t000000c000080000\n"}, ""},
		"no capability":    {map[string]string{release: "6.1\n", btf: "", statusFile: "CapEff:\t0000000000000000\n"}, "who lacks CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE"},
		"one missing":      {map[string]string{release: "6.1\n", btf: "", statusFile: "CapEff:\t000000c000000000\n"}, "who lacks CAP_SYS_PTRACE"},
		"old kernel":       {map[string]string{release: "5.14.21\n", btf: "", statusFile: "CapEff:\t000001ffffffffff\n"}, "requires Linux 5.15 or later, and this is 5.14.21"},
		"without BTF":      {map[string]string{release: "6.1\n", statusFile: "CapEff:\t000001ffffffffff\n"}, "/sys/kernel/btf/vmlinux is missing"},
		"not Linux":        {nil, "requires Linux"},
		"status unwritten": {map[string]string{release: "6.1\n", btf: ""}, "who lacks CAP_BPF"},
	} {
		t.Run(name, func(t *testing.T) {
			f := system(t, tc.files).BPF()
			assert.Equal(t, tc.want == "", f.OK, f.Detail)
			assert.True(t, f.Optional)
			assert.Contains(t, f.Detail, tc.want)
		})
	}
}

func TestDisk(t *testing.T) {
	dir := t.TempDir()
	f := Disk(filepath.Join(dir, "new", "state"))
	if f.OK { // else the machine itself is short of space
		assert.Regexp(t, `free for the store in .*/new/state$`, f.Detail)
	} else {
		assert.Contains(t, f.Detail, "which deletes old sessions below 2 GiB")
	}
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	f = Disk(filepath.Join(file, "state"))
	assert.False(t, f.OK)
	f = Disk("/proc/self") // no user can create files in it, and it has no space
	assert.False(t, f.OK)
	assert.NotEmpty(t, f.Fix)
}

func TestOutput_FullDisk(t *testing.T) {
	f := Output(&otlp.Settings{File: "/proc/self/x"})
	assert.False(t, f.OK)
	assert.Contains(t, f.Detail, "only 0 B are free in /proc/self")
	dir := t.TempDir()
	if free, _, err := freeSpace(dir); err == nil && free > minOutput {
		f = Output(&otlp.Settings{File: filepath.Join(dir, "x")})
		assert.True(t, f.OK)
	}
}

func TestPorts(t *testing.T) {
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		return l.Addr().String()
	}
	number := func(address string) string {
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		return port
	}
	env := func(ui string) func(string) string {
		return environment("GPUFLIGHT_LISTEN", free(), "GPUFLIGHT_LISTEN_HTTP", free(), "GPUFLIGHT_UI", ui,
			"GPUFLIGHT_PROMETHEUS_PORT", number(free()), "GPUFLIGHT_METRICS_PORT", number(free()))
	}
	system := System{Root: "/"}
	f := system.Ports(env(free()))
	assert.True(t, f.OK, f.Detail)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	f = system.Ports(env(l.Addr().String()))
	assert.False(t, f.OK)
	assert.Equal(t, l.Addr().String()+" (the UI) is taken by checks.test (process "+strconv.Itoa(os.Getpid())+")", f.Detail)
	assert.Equal(t, "set GPUFLIGHT_UI for the Collector, or end the other program", f.Fix)

	f = System{Root: t.TempDir()}.Ports(env(l.Addr().String()))
	assert.Equal(t, l.Addr().String()+" (the UI): bind: address already in use", f.Detail, "a process of another user")
	foreign := "192.0.2.1:" + number(free())
	f = system.Ports(env(foreign))
	assert.Contains(t, f.Detail, foreign+" (the UI): bind: "+syscall.EADDRNOTAVAIL.Error())
}

// TestPorts_Collector finds a process that has the name of a Collector.
func TestPorts_Collector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	n, err := strconv.ParseUint(port, 10, 16)
	require.NoError(t, err)
	s := system(t, map[string]string{
		"/proc/net/tcp":   "  sl  local_address rem_address   st\n   0: 0100007F:" + strings.ToUpper(strconv.FormatUint(n|1<<16, 16)[1:]) + " 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n",
		"/proc/42/comm":   "otelcol-gpuflig\n",
		"/proc/42/fd/not": "",
	})
	require.NoError(t, os.Symlink("socket:[4711]", s.path("/proc/42/fd/7")))
	f := s.Ports(environment("GPUFLIGHT_UI", l.Addr().String(), "GPUFLIGHT_LISTEN", "127.0.0.1:0", "GPUFLIGHT_LISTEN_HTTP", "127.0.0.1:0",
		"GPUFLIGHT_PROMETHEUS_PORT", "0", "GPUFLIGHT_METRICS_PORT", "0"))
	assert.True(t, f.OK, f.Detail)
	assert.Equal(t, "a Collector listens on "+l.Addr().String(), f.Detail)
}

func TestCollector_NotFound(t *testing.T) {
	f := Collector("", errors.New("otelcol-gpuflight is not on PATH"))
	assert.False(t, f.OK)
	assert.True(t, f.Optional)
	assert.True(t, func() bool { f := Collector("/usr/bin/otelcol-gpuflight", nil); return f.OK }())
}

func TestNVML_Missing(t *testing.T) {
	if _, err := os.Stat("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"); err == nil {
		t.Skip("this machine has NVML")
	}
	f := NVML()
	assert.False(t, f.OK)
	assert.Contains(t, f.Detail, "the receiver nvml reads no device: libnvidia-ml.so.1 is missing")
}

func TestSettings(t *testing.T) {
	for name, tc := range map[string]struct{ variable, want string }{
		"valid":         {"", "all variables are valid"},
		"disabled":      {"GPUFLIGHT_DISABLED", "GPUFLIGHT_DISABLED disables recording"},
		"otel disabled": {"OTEL_SDK_DISABLED", "OTEL_SDK_DISABLED or OTEL_..._EXPORTER=none disable all telemetry"},
	} {
		t.Run(name, func(t *testing.T) {
			env := environment(tc.variable, "true")
			settings, err := recorder.SettingsFromEnv(env)
			require.NoError(t, err)
			sending, err := otlp.FromEnv(env)
			require.NoError(t, err)
			f := Settings(&settings, &sending)
			assert.Equal(t, tc.variable == "", f.OK)
			assert.Equal(t, tc.want, f.Detail)
		})
	}
	f := Settings(&recorder.Settings{}, &otlp.Settings{}, errors.New("a"), errors.New("b"))
	assert.Equal(t, "a; b", f.Detail)
}

func TestDriver(t *testing.T) {
	gpu := cuptitest.Libraries(t)
	f := Driver(&recorder.Settings{Library: gpu.CUPTI})
	assert.True(t, f.OK, f.Detail)
	assert.Equal(t, "CUDA 13.0", f.Detail)
	f = Driver(&recorder.Settings{Library: filepath.Join(t.TempDir(), "libcupti.so")})
	assert.False(t, f.OK)
	assert.Contains(t, f.Detail, "only programs that bring their own CUPTI, such as PyTorch, can be recorded: ")
}

func TestEndpoint(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	within := func(limit time.Duration, pairs ...string) Finding {
		sending, err := otlp.FromEnv(environment(pairs...))
		require.NoError(t, err)
		return Endpoint(context.Background(), &sending, limit)
	}
	check := func(pairs ...string) Finding { return within(time.Minute, pairs...) }
	f := check("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	assert.True(t, f.OK)
	assert.Equal(t, "accepts telemetry: "+server.URL+"/v1/traces (http/protobuf)", f.Detail)
	f = within(100*time.Millisecond, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+silent.Addr().String())
	assert.Equal(t, silent.Addr().String()+" does not answer: check the address, and that no firewall drops the connection", f.Sentence())
	f = within(100*time.Millisecond, "OTEL_EXPORTER_OTLP_ENDPOINT", server.URL, "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://"+silent.Addr().String())
	assert.False(t, f.OK)
	f = check("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE", "/not/there.pem")
	assert.True(t, f.OK, "without TLS nobody reads it")
	f = check("OTEL_EXPORTER_OTLP_ENDPOINT", "https://"+silent.Addr().String(), "OTEL_EXPORTER_OTLP_CERTIFICATE", "/not/there.pem")
	assert.Equal(t, "OTEL_EXPORTER_OTLP_CERTIFICATE: open /not/there.pem: no such file or directory", f.Detail)
}
