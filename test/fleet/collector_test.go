// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// collector runs one of the configurations in config/, repeatedly if required.
type collector struct {
	t *testing.T
	// state is the folder that remains after a kill.
	state string
	// metrics is the address of its own metrics.
	metrics string
	env     map[string]string
	// command precedes the binary, for another network.
	command []string
	binary  string
	configs []string
	process *process.Process
	// peak is the highest resident memory of all its processes in bytes.
	peak int64
}

// newCollector prepares a configuration of config/ with the given variables, its own ports and an
// overlay. It removes the receivers that read this machine's GPUs; other tests cover them.
func newCollector(t *testing.T, name string, env map[string]string, overlay map[string]any) *collector {
	t.Helper()
	binary := process.Collector
	if name == "agent.yaml" {
		binary = process.Agent
	}
	c := &collector{t: t, binary: binary.Find(t), state: filepath.Join(t.TempDir(), "state"), metrics: process.FreePort(t), env: map[string]string{
		"GPUFLIGHT_LISTEN":          process.FreePort(t),
		"GPUFLIGHT_LISTEN_HTTP":     process.FreePort(t),
		"GPUFLIGHT_HEALTH":          process.FreePort(t),
		"GPUFLIGHT_OTLP_INSECURE":   "true",
		"AWS_ACCESS_KEY_ID":         accessKey,
		"AWS_SECRET_ACCESS_KEY":     secretKey,
		"AWS_EC2_METADATA_DISABLED": "true",
	}}
	_, port, _ := strings.Cut(c.metrics, ":")
	c.env["GPUFLIGHT_METRICS_PORT"] = port
	for k, v := range env {
		c.env[k] = v
	}
	c.configs = []string{filepath.Join(process.Root(t), "config", name)}
	if name == "gateway.yaml" {
		c.configs = append(c.configs, filepath.Join(process.Root(t), "config", "forward.yaml"))
	}
	if name == "agent.yaml" || name == "kafka.yaml" {
		c.add(map[string]any{"service": map[string]any{"pipelines": map[string]any{
			"traces":  map[string]any{"receivers": []string{"otlp"}},
			"metrics": map[string]any{"receivers": []string{"otlp"}},
			"logs":    map[string]any{"receivers": []string{"otlp"}},
		}}})
	}
	if overlay != nil {
		c.add(overlay)
	}
	return c
}

// add adds an overlay.
func (c *collector) add(overlay map[string]any) {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "overlay.yaml")
	writeJSON(c.t, path, overlay)
	c.configs = append(c.configs, path)
}

// start starts the process and does not wait for it.
func (c *collector) start() {
	c.t.Helper()
	args := append(c.command[:len(c.command):len(c.command)], "/usr/bin/env", "GPUFLIGHT_STATE="+c.state)
	for k, v := range c.env {
		args = append(args, k+"="+v)
	}
	args = append(args, c.binary)
	for _, path := range c.configs {
		args = append(args, "--config", path)
	}
	c.process = process.Start(c.t, args[0], args[1:]...)
}

// run starts the process and returns when all components run.
func (c *collector) run() *collector {
	c.t.Helper()
	c.start()
	c.process.WaitOutput(process.Ready, 2*time.Minute)
	return c
}

// kill ends the process by SIGKILL.
func (c *collector) kill() {
	c.t.Helper()
	c.updatePeak()
	c.process.Kill()
}

// stop ends the process as systemd would.
func (c *collector) stop() {
	c.t.Helper()
	c.updatePeak()
	c.process.Stop(time.Minute)
}

// terminate sends SIGTERM, and kills the process after a few seconds.
func (c *collector) terminate() {
	c.t.Helper()
	c.updatePeak()
	c.signal(syscall.SIGTERM)
	for end := time.Now().Add(10 * time.Second); c.process.Running(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.process.Kill()
			return
		}
	}
}

// pids finds the process and its launcher by the folder in their environment, which is unique.
func (c *collector) pids() (pids []int) {
	c.t.Helper()
	mark := []byte("GPUFLIGHT_STATE=" + c.state + "\x00")
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(c.t, err)
	for _, path := range environments {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, mark) {
			continue // another user's, or it has exited
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(c.t, err)
		pids = append(pids, pid)
	}
	return pids
}

// updatePeak updates peak, which the kernel records for each process.
func (c *collector) updatePeak() {
	c.t.Helper()
	for _, pid := range c.pids() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
				kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				require.NoError(c.t, err)
				c.peak = max(c.peak, kib<<10)
			}
		}
	}
}

func (c *collector) signal(s syscall.Signal) {
	c.t.Helper()
	pids := c.pids()
	require.Len(c.t, pids, 1)
	require.NoError(c.t, syscall.Kill(pids[0], s))
}

// bounded asserts that no process of this collector exceeded limit bytes of memory.
func (c *collector) bounded(limit int64) {
	c.t.Helper()
	require.Positive(c.t, c.peak, "no process was looked at")
	if c.peak > limit {
		c.t.Errorf("%s held %d MiB, allowed are %d", filepath.Base(c.configs[0]), c.peak>>20, limit>>20)
	}
}

// stored returns the bytes in the state folder.
func (c *collector) stored() (n int64) {
	c.t.Helper()
	require.NoError(c.t, filepath.Walk(c.state, func(_ string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			n += info.Size()
		}
		return nil
	}))
	return n
}

// total sums all series of one of its own metrics whose labels contain the text; -1 if there are
// none.
func (c *collector) total(name, labels string) float64 {
	c.t.Helper()
	status, body, err := get(c.t.Context(), "http://"+c.metrics+"/metrics")
	if err != nil || status != http.StatusOK {
		return -1
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' || !strings.Contains(rest, labels) {
			continue
		}
		fields := strings.Fields(rest)
		v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		require.NoError(c.t, err, line)
		sum, found = sum+v, true
	}
	if !found {
		return -1
	}
	return sum
}

func (c *collector) String() string {
	return fmt.Sprintf("%s, peak %d MiB", filepath.Base(c.configs[0]), c.peak>>20)
}
