// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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
	"go.opentelemetry.io/collector/pdata/pmetric"
	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// Limits of the agent during attacks.
const (
	maxMemory      = 160 << 20
	maxDescriptors = 512
	// interval is the time between two collections. maxGap limits it with a margin, because other
	// programs may use the machine.
	interval, maxGap = time.Second, 5 * time.Second
	// shutdownLimit limits the time of the agent's shutdown.
	shutdownLimit = 15 * time.Second
)

// attackVariable selects the attack that this binary runs as an unprivileged user.
const attackVariable = "GPUFLIGHT_TEST_ATTACK"

const nobody = 65534

func TestMain(m *testing.M) {
	if name := os.Getenv(attackVariable); name != "" {
		err := attackNamed(name).run(".", os.Getenv("GPUFLIGHT_TEST_LIBRARY"), func() { fmt.Println("ready") })
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// stub is the compiled stub of the driver and the program that calls it.
type stub struct{ library, program string }

func build(t *testing.T) stub {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs a C compiler: ", err)
	}
	source := filepath.Join(process.Root(t), "receiver", "cudareceiver", "internal", "stubcuda", "src")
	dir := shared(t)
	s := stub{filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "calls")}
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

// shared creates a folder that all users can read.
func shared(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile") // the test's own folder is root's
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// agent is a running collector with the cuda receiver.
type agent struct {
	*process.Process
	pid          int
	out, metrics string
}

// root skips a test that needs privileges.
func root(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for eBPF and to be another user")
	}
}

func startAgent(t *testing.T, rootPath string) *agent {
	t.Helper()
	binary := process.Collector.Find(t)
	dir := t.TempDir()
	a := &agent{out: filepath.Join(dir, "metrics.jsonl"), metrics: process.FreePort(t)}
	host, port, _ := strings.Cut(a.metrics, ":")
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
receivers:
  cuda: {collection_interval: %v, initial_delay: 0s, rescan_interval: 1s, root_path: %q}
exporters:
  file: {path: %q, flush_interval: 100ms}
service:
  pipelines:
    metrics: {receivers: [cuda], exporters: [file]}
  telemetry:
    metrics: {readers: [{pull: {exporter: {prometheus: {host: %q, port: %s}}}}]}
`, interval, rootPath, a.out, host, port), 0o600))
	a.Process = process.Start(t, binary, "--config", config)
	a.WaitOutput(process.Ready, time.Minute)
	a.pid = childOf(t, filepath.Base(binary), config)
	return a
}

// childOf returns the process id of our child with this configuration.
func childOf(t *testing.T, name, config string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(string(line), name) && strings.HasSuffix(strings.TrimRight(string(line), "\x00"), config) {
			pid, err := strconv.Atoi(e.Name())
			require.NoError(t, err)
			return pid
		}
	}
	t.Fatal("the collector is gone")
	return 0
}

// observing waits until the receiver is ready, and skips the test if eBPF is not allowed.
func (a *agent) observing(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		text := a.Output()
		if strings.Contains(text, "CUDA calls are not observed") {
			t.Skip("no eBPF here: ", text)
		}
		return strings.Contains(text, "observing the CUDA driver")
	}, time.Minute, 50*time.Millisecond)
}

// usage returns the anonymous resident memory in bytes and the number of descriptors. Pages of the
// program file do not count: the system can drop them, and their number depends on the build.
func (a *agent) usage(t *testing.T) (memory, descriptors int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", a.pid)
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			_, err := fmt.Sscanf(v, "%d", &memory)
			require.NoError(t, err)
		}
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	require.NoError(t, err)
	return memory << 10, len(files)
}

// peak watches the agent until ctx ends and returns the maximum usage. It stops early if a limit is
// exceeded by far, to protect the machine.
func (a *agent) peak(ctx context.Context, t *testing.T) (memory, descriptors int) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return memory, descriptors
		case <-tick.C:
		}
		if !a.Running() {
			return memory, descriptors
		}
		m, d := a.usage(t)
		memory, descriptors = max(memory, m), max(descriptors, d)
		if memory > 6*maxMemory {
			return memory, descriptors
		}
	}
}

// skipped returns receiver_cuda_files_skipped by cause.
func (a *agent) skipped(t *testing.T) map[string]float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.metrics+"/metrics", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	out := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		line := lines.Text()
		_, rest, ok := strings.Cut(line, `cause="`)
		if !ok || !strings.HasPrefix(line, "otelcol_receiver_cuda_files_skipped") {
			continue
		}
		cause, _, _ := strings.Cut(rest, `"`)
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		require.NoError(t, err)
		out[cause] = v
	}
	return out
}

// exported returns the last number of launches of a process, and the times of all collections with
// that process.
func (a *agent) exported(t *testing.T, pid int) (launches int64, times []time.Time) {
	t.Helper()
	f, err := os.Open(a.out)
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return launches, times
		}
		require.NoError(t, err)
		md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
		require.NoError(t, err)
		for _, rm := range md.ResourceMetrics().All() {
			if v, ok := rm.Resource().Attributes().Get("process.pid"); !ok || v.Int() != int64(pid) {
				continue
			}
			for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
				if m.Name() != "gpu.cuda.kernel.launch.calls" {
					continue
				}
				launches = 0
				for _, p := range m.Sum().DataPoints().All() {
					launches += p.IntValue()
					times = append(times, p.Timestamp().AsTime())
				}
			}
		}
	}
}

// strike starts an attack as the user nobody and waits for its first action. The attack ends with
// the test.
func strike(t *testing.T, s stub, name string) {
	t.Helper()
	dir := shared(t)
	require.NoError(t, os.Chown(dir, nobody, nobody))
	self, err := os.Executable()
	require.NoError(t, err)
	program, err := os.ReadFile(self)
	require.NoError(t, err)
	helper := filepath.Join(shared(t), "attacker")
	require.NoError(t, os.WriteFile(helper, program, 0o755))
	cmd := exec.CommandContext(t.Context(), helper)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = []string{attackVariable + "=" + name, "GPUFLIGHT_TEST_LIBRARY=" + s.library}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "%s has ended", name)
	require.Equal(t, "ready\n", line)
}

// victim is a program that launches kernels on command.
type victim struct {
	t        *testing.T
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *bufio.Reader
	launched int64
}

func startVictim(t *testing.T, s stub) *victim {
	t.Helper()
	v := &victim{t: t, cmd: exec.CommandContext(t.Context(), s.program)}
	v.cmd.Stderr = os.Stderr
	const somebody = 12345
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: somebody, Gid: somebody}, Pdeathsig: unix.SIGKILL}
	var err error
	v.in, err = v.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := v.cmd.StdoutPipe()
	require.NoError(t, err)
	v.out = bufio.NewReader(out)
	require.NoError(t, v.cmd.Start())
	t.Cleanup(func() {
		_ = v.in.Close()
		_ = v.cmd.Wait()
	})
	v.do("open " + s.library)
	v.do("function 1 victim")
	return v
}

func (v *victim) do(command string) {
	v.t.Helper()
	_, err := fmt.Fprintln(v.in, command)
	require.NoError(v.t, err)
	answer, err := v.out.ReadString('\n')
	require.NoError(v.t, err)
	require.Equal(v.t, "ok\n", answer, command)
}

func (v *victim) launch(n int64) {
	v.t.Helper()
	v.do(fmt.Sprintf("launch %d 1 8 64", n))
	v.launched += n
}

// works makes the victim launch until ctx ends.
func (v *victim) works(ctx context.Context) {
	v.t.Helper()
	for ctx.Err() == nil {
		v.launch(500)
		time.Sleep(20 * time.Millisecond)
	}
}

// counted waits until the agent counts the victim's launches; later launches are counted exactly.
func (v *victim) counted(a *agent) {
	v.t.Helper()
	require.Eventually(v.t, func() bool {
		v.do("launch 1 1 8 64")
		n, _ := a.exported(v.t, v.cmd.Process.Pid)
		return n > 0
	}, time.Minute, 200*time.Millisecond, "the victim's library is attached to")
	// Wait until the current count is exported.
	time.Sleep(2 * interval)
	v.launched, _ = a.exported(v.t, v.cmd.Process.Pid)
}

// exact asserts that each launch was counted and that no collection was late. The agent must have
// ended.
func (v *victim) exact(a *agent, since time.Time) {
	v.t.Helper()
	n, times := a.exported(v.t, v.cmd.Process.Pid)
	assert.Equal(v.t, v.launched, n, "launches of the victim")
	last, longest := since, time.Duration(0)
	for _, at := range times {
		if at.After(since) {
			longest = max(longest, at.Sub(last))
			last = at
		}
	}
	longest = max(longest, time.Since(last)-shutdownLimit)
	assert.Less(v.t, longest, maxGap, "between two collections")
	v.t.Logf("%d launches, %d collections, at most %v between two", n, len(times), longest)
}

// attacked runs attacks and a victim concurrently and asserts the common guarantees.
func attacked(t *testing.T, d time.Duration, names ...string) {
	t.Helper()
	root(t)
	s := build(t)
	a := startAgent(t, "/")
	a.observing(t)
	v := startVictim(t, s)
	v.counted(a)
	memory, descriptors := a.usage(t)
	t.Logf("before: %d MiB, %d descriptors", memory>>20, descriptors)
	began := time.Now()
	for _, name := range names {
		strike(t, s, name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	working := make(chan struct{})
	go func() {
		defer close(working)
		v.works(ctx)
	}()
	memory, descriptors = a.peak(ctx, t)
	cancel()
	<-working
	assert.Less(t, memory, maxMemory, "anonymous resident memory in bytes")
	assert.Less(t, descriptors, maxDescriptors)
	skipped := a.skipped(t)
	stopped := time.Now()
	a.Stop(shutdownLimit)
	t.Logf("attacked: %d MiB, %d descriptors, shutdown in %v, skipped %v", memory>>20, descriptors, time.Since(stopped).Round(time.Millisecond), skipped)
	v.exact(a, began)
	for _, name := range names {
		if attackNamed(name).skipped {
			assert.NotEmpty(t, skipped, "what is skipped is counted")
		}
	}
}

const eachAttack = 8 * time.Second

func TestAgent_EachAttack(t *testing.T) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) { attacked(t, eachAttack, a.name) })
	}
}

func TestAgent_AllAttacksAtOnce(t *testing.T) {
	d := 20 * time.Second
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		d = 5 * time.Minute
	}
	var names []string
	for _, a := range attacks {
		names = append(names, a.name)
	}
	attacked(t, d, names...)
}

// A FIFO in place of the maps of a process simulates a read that never returns.
func TestAgent_ShutdownDuringHangingRead(t *testing.T) {
	root(t)
	dir := t.TempDir()
	proc := filepath.Join(dir, "proc")
	for pid := 1; pid <= 10; pid++ {
		process := filepath.Join(proc, strconv.Itoa(pid))
		require.NoError(t, os.MkdirAll(process, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(process, "status"), fmt.Appendf(nil, "Uid:\t%d\t0\t0\t0\n", pid%2), 0o600))
		require.NoError(t, unix.Mkfifo(filepath.Join(process, "maps"), 0o600))
	}
	a := startAgent(t, dir)
	time.Sleep(3 * time.Second) // during the read
	began := time.Now()
	a.Stop(shutdownLimit)
	t.Logf("shutdown in %v", time.Since(began).Round(time.Millisecond))
}
