// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package cuda_test runs the distribution's binary with the cuda receiver on programs that call a stub
// of the driver. It checks who the programs are: their names, containers and machine. It needs root,
// for eBPF.
package cuda_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// stub is the compiled stub of the driver and a program that calls it.
type stub struct{ library, program string }

func build(t *testing.T) stub {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs a C compiler: ", err)
	}
	source := filepath.Join(process.Root(t), "receiver", "cudareceiver", "internal", "stubcuda", "src")
	dir := t.TempDir()
	s := stub{filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "a-name-of-more-than-15-bytes")}
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", filepath.Join(source, "stub.c"), "-o", s.library},
		{filepath.Join(source, "calls.c"), "-o", s.program, "-ldl", "-lpthread"},
	} {
		flags := []string{"-std=c11", "-O1", "-fno-omit-frame-pointer", "-fcf-protection=none"}
		out, err := exec.CommandContext(t.Context(), "cc", append(flags, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return s
}

// program is a running program; it reads commands of calls.c.
type program struct {
	*exec.Cmd
	commands io.WriteCloser
}

func (s stub) start(t *testing.T) *program {
	t.Helper()
	p := &program{Cmd: exec.CommandContext(t.Context(), s.program)}
	var err error
	p.commands, err = p.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	p.do(t, "open %s", s.library)
	return p
}

func (p *program) do(t *testing.T, format string, args ...any) {
	t.Helper()
	_, err := fmt.Fprintf(p.commands, format+"\n", args...)
	require.NoError(t, err)
}

func (p *program) end(t *testing.T) {
	t.Helper()
	require.NoError(t, p.commands.Close())
	require.NoError(t, p.Wait())
}

// container creates the control group of a container and returns a function that moves a process
// into it. It returns nil where control groups cannot be created.
func container(t *testing.T, id string) func(pid int) {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
		t.Logf("containers are not tested: control groups cannot be mounted: %v", err)
		return nil
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) })
	outer := filepath.Join(root, "gpuflight-test.slice")
	inner := filepath.Join(outer, "docker-"+id+".scope")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Logf("containers are not tested: %v", err)
		return nil
	}
	t.Cleanup(func() {
		process.Eventually(t, time.Minute, "the groups are empty", func() bool { return os.Remove(inner) == nil && os.Remove(outer) == nil })
	})
	return func(pid int) {
		require.NoError(t, os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600))
	}
}

// counted is what the Collector sent of one process.
type counted struct {
	resource map[string]any
	launches int64
	newest   uint64
}

// processes returns the last count of launches of each process, by its id.
func processes(store *testsink.Store) map[int]counted {
	all := map[int]counted{}
	for _, p := range store.Points() {
		pid, ok := p.Resource[semconv.ProcessPID].(int64)
		if ok && p.Metric == semconv.MetricGPUCUDAKernelLaunchCalls && p.TimeNs > all[int(pid)].newest {
			all[int(pid)] = counted{p.Resource, p.Value.(int64), p.TimeNs}
		}
	}
	return all
}

// attached waits until the receiver observes the driver. It skips the test if eBPF is not allowed.
func attached(t *testing.T, collector *process.Process) {
	t.Helper()
	collector.WaitOutput(process.Ready, 30*time.Second)
	process.Eventually(t, time.Minute, "the receiver is attached, or says why not", func() bool {
		return strings.Contains(collector.Output(), "observing the CUDA driver") || strings.Contains(collector.Output(), "CUDA calls are not observed")
	})
	if strings.Contains(collector.Output(), "eBPF is not allowed here") || strings.Contains(collector.Output(), "require Linux") {
		t.Skip("no eBPF here")
	}
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for eBPF")
	}
}

// TestCUDA_NoSessions runs config/local.yaml. The store lists an observed program only after a trace.
func TestCUDA_NoSessions(t *testing.T) {
	requireRoot(t)
	s := build(t)
	port := func() string {
		_, p, err := net.SplitHostPort(process.FreePort(t))
		require.NoError(t, err)
		return p
	}
	scraped, api := port(), process.FreePort(t)
	for k, v := range map[string]string{
		"GPUFLIGHT_LOGS": t.TempDir(), "GPUFLIGHT_STATE": t.TempDir(), "GPUFLIGHT_UI": api, "GPUFLIGHT_PROMETHEUS_PORT": scraped,
		"GPUFLIGHT_LISTEN": process.FreePort(t), "GPUFLIGHT_LISTEN_HTTP": process.FreePort(t), "GPUFLIGHT_METRICS_PORT": port(),
	} {
		t.Setenv(k, v)
	}
	collector := process.Start(t, process.Collector.Find(t), "--config", filepath.Join(process.Root(t), "config", "local.yaml"),
		"--set", "receivers::cuda::collection_interval=1s", "--set", "receivers::cuda::initial_delay=0s",
		"--set", "receivers::cuda::trace::duration=2s")
	attached(t, collector)
	get := func(url string) string {
		resp, err := http.Get(url)
		if err != nil {
			return ""
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return string(text)
	}
	p := s.start(t)
	process.Eventually(t, time.Minute, "the program is counted", func() bool {
		p.do(t, "launch 1 1 8 256")
		return strings.Contains(get("http://127.0.0.1:"+scraped+"/metrics"), fmt.Sprintf(`process_pid="%d"`, p.Process.Pid))
	})
	time.Sleep(2 * time.Second) // for rows that are not stored yet
	sessions := func() int {
		var answer struct {
			Sessions []struct{ ID string }
		}
		require.NoError(t, json.Unmarshal([]byte(get("http://"+api+"/api/v1/sessions")), &answer))
		return len(answer.Sessions)
	}
	assert.Zero(t, sessions())

	// A trace is a session.
	require.NoError(t, syscall.Kill(collector.PID(), syscall.SIGUSR1))
	process.Eventually(t, time.Minute, "the trace is listed", func() bool {
		p.do(t, "launch 1 1 8 256")
		return sessions() == 1
	})
	p.end(t)
	collector.Stop(30 * time.Second)
}

func TestCUDA_ShortPrograms(t *testing.T) {
	requireRoot(t)
	s := build(t)
	store := testsink.NewStore()
	server, err := testsink.Listen(store, "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	config := fmt.Sprintf(`yaml:{
		receivers: {cuda: {collection_interval: 1s, initial_delay: 0s, host_name: node-1, include: {executables: ["%s"]}}},
		exporters: {otlp_grpc: {endpoint: "%s", tls: {insecure: true}}},
		service: {telemetry: {metrics: {level: none}}, pipelines: {metrics: {receivers: [cuda], exporters: [otlp_grpc]}}},
	}`, filepath.Base(s.program), server.Endpoint())
	collector := process.Start(t, process.Collector.Find(t), "--config", strings.ReplaceAll(config, "\t", ""))
	attached(t, collector)
	holder := s.start(t)
	process.Eventually(t, time.Minute, "the library is found", func() bool {
		holder.do(t, "launch 1 1 8 256")
		return processes(store)[holder.Process.Pid].resource != nil
	})

	id := strings.Repeat("0123456789abcdef", 4)
	add := container(t, id)
	const programs, launches = 100, 7
	inside := map[int]bool{}
	for i := range programs {
		p := s.start(t)
		in := add != nil && i%2 == 0
		if in {
			add(p.Process.Pid)
		}
		inside[p.Process.Pid] = in
		p.do(t, "launch %d 1 8 256", launches-2)
		p.do(t, "sleep 50")
		p.do(t, "launch 2 1 8 256")
		p.end(t)
	}
	require.Len(t, inside, programs, "each has an id of its own")
	holder.end(t)
	process.Eventually(t, time.Minute, "all programs", func() bool {
		seen := 0
		for pid, c := range processes(store) {
			if _, ours := inside[pid]; ours && c.launches == launches {
				seen++
			}
		}
		return seen == programs
	})
	collector.Stop(30 * time.Second)

	all := processes(store)
	for pid, in := range inside {
		resource := all[pid].resource
		assert.Equal(t, filepath.Base(s.program), resource[semconv.ProcessExecutableName])
		assert.EqualValues(t, launches, all[pid].launches)
		if in {
			assert.Equal(t, id, resource[semconv.ContainerID])
		} else {
			assert.NotEqual(t, id, resource[semconv.ContainerID])
		}
	}
	points := store.Points()
	require.NotEmpty(t, points)
	for _, p := range points {
		if p.Resource[semconv.HostName] != "node-1" {
			assert.Fail(t, "no host.name", "%s: %v", p.Metric, p.Resource)
		}
	}
}
