// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest"
	"github.com/gpuflight/gpuflight/semconv"
)

// driver is a program with a fake CUDA driver library, from the test sources of the cuda receiver.
// Those sources list its commands.
type driver struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

func startDriver(t *testing.T) *driver {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("a driver without a GPU needs a C compiler: %v", err)
	}
	sources := filepath.Join(process.Root(t), "receiver", "cudareceiver", "internal", "stubcuda", "src")
	dir := t.TempDir()
	library, program := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "calls")
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", "stub.c", "-o", library},
		{"calls.c", "-o", program, "-ldl", "-lpthread"},
	} {
		cmd := exec.CommandContext(t.Context(), cc, append([]string{"-std=c11", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror"}, args...)...)
		cmd.Dir = sources
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	// The program exits at the end of its input, which the end of the test closes.
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME=fleet-driver")
	d := &driver{t: t}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	d.in, d.out = in, bufio.NewReader(out)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // t.Context ends it at the latest
	})
	d.do("open %s", library)
	return d
}

// do runs one command in the program and waits for its end.
func (d *driver) do(format string, args ...any) {
	d.t.Helper()
	line := fmt.Sprintf(format, args...)
	_, err := fmt.Fprintln(d.in, line)
	require.NoError(d.t, err, line)
	answer, err := d.out.ReadString('\n')
	require.NoError(d.t, err, line)
	require.Equal(d.t, "ok\n", answer, line)
}

// fakeNVML builds a fake NVML and returns the environment variables that select it.
func fakeNVML(t *testing.T) map[string]string {
	t.Helper()
	library, err := nvmltest.Build()
	if err != nil {
		t.Skipf("NVML without a GPU: %v", err)
	}
	dir := t.TempDir()
	require.NoError(t, os.Symlink(library, filepath.Join(dir, "libnvidia-ml.so.1")))
	control := filepath.Join(dir, "control")
	values := nvmltest.H200(0)
	values["count"] = "1"
	require.NoError(t, nvmltest.New(control).Set(values))
	return map[string]string{"LD_LIBRARY_PATH": dir, nvmltest.Env: control}
}

// TestAgent_GPUAttributes runs config/agent.yaml unchanged with all receivers, a fake NVML and a
// program with a fake driver. It checks the gateway's output.
func TestAgent_GPUAttributes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("eBPF needs root")
	}
	parallel(t)
	program := startDriver(t)
	store, backend := process.Sink(t) // all attributes
	gateway := withoutKafka(t, backend.Endpoint()).run()
	env := fakeNVML(t)
	env["GPUFLIGHT_OTLP_ENDPOINT"] = gateway.env["GPUFLIGHT_LISTEN"]
	env["GPUFLIGHT_LOGS"] = t.TempDir()
	agent := newCollector(t, "agent.yaml", env, nil)
	agent.configs = agent.configs[:1]
	agent.run()
	const observing, not = "observing the CUDA driver", "CUDA calls are not observed"
	process.Eventually(t, time.Minute, "the agent observes the driver, or cannot", func() bool {
		out := agent.process.Output()
		return strings.Contains(out, observing) || strings.Contains(out, not)
	})
	if out := agent.process.Output(); !strings.Contains(out, observing) {
		_, reason, _ := strings.Cut(out, not)
		line, _, _ := strings.Cut(reason, "\n")
		t.Skipf("no eBPF here: %s", line)
	}

	program.do("function 1 _Z12fleet_kernelv")
	program.do("threads 4")
	program.do("launch 1000 1 8 256")
	program.do("threads 1")
	program.do("copy cuMemcpyHtoDAsync_v2 10 4096")

	point := func(metric string, attrs map[string]any) (found *testsink.Point) {
		for _, p := range store.Points() {
			if p.Metric != metric || found != nil && p.TimeNs < found.TimeNs {
				continue
			}
			fits := true
			for k, v := range attrs {
				fits = fits && p.Attrs[k] == v
			}
			if fits {
				found = &p
			}
		}
		return found
	}
	kernel := map[string]any{semconv.CUDAKernelName: "fleet_kernel()"}
	process.Eventually(t, 2*time.Minute, "the launches at the backend", func() bool {
		p := point(semconv.MetricGPUCUDAKernelLaunchCalls, kernel)
		return p != nil && p.Value == int64(4000)
	})
	device := map[string]any{semconv.HWID: nvmltest.UUID(0)}
	for metric, want := range map[string]any{
		semconv.MetricHWEnergy:         1000.0,
		semconv.MetricHWGPUMemoryUsage: int64(1_000_000_000),
	} {
		process.Eventually(t, 2*time.Minute, metric+" at the backend", func() bool { return point(metric, device) != nil })
		assert.Equal(t, want, point(metric, device).Value, metric)
	}

	// A trace of single calls, by the signal that the file documents.
	agent.signal(syscall.SIGUSR1)
	process.Eventually(t, 2*time.Minute, "launches as spans at the backend", func() bool {
		program.do("launch 1 1 8 256")
		for _, sp := range store.Spans() {
			if sp.Attrs[semconv.CUDAKernelName] == "fleet_kernel()" {
				return true
			}
		}
		return false
	})
	agent.stop()
	gateway.stop()
	agent.bounded(agentMemory)
	gateway.bounded(gatewayMemory)
}
