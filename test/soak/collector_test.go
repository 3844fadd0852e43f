// SPDX-License-Identifier: Apache-2.0

//go:build linux

package soak

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

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// interval is the time between two collections; short processes run for less.
const interval = 2 * time.Second

const (
	metricsPort, profilesPort = 28871, 28872

	configuration = `
receivers:
  cuda: {collection_interval: %s, initial_delay: 0s, rescan_interval: 2s, max_processes: 100000}
exporters:
  file: {path: %q, flush_interval: 1s}
extensions:
  pprof: {endpoint: "127.0.0.1:%d"}
service:
  extensions: [pprof]
  pipelines:
    metrics: {receivers: [cuda], exporters: [file]}
  telemetry:
    metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %d}}}}]}
`
)

// collector is a running otelcol-gpuflight.
type collector struct {
	cmd      *exec.Cmd
	out, log string
}

func startCollector(t *testing.T) *collector {
	binary := os.Getenv("GPUFLIGHT_COLLECTOR")
	if binary == "" {
		binary = "../../bin/otelcol-gpuflight"
	}
	dir := t.TempDir()
	c := &collector{out: filepath.Join(dir, "metrics.jsonl"), log: filepath.Join(dir, "log")}
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, configuration, interval, c.out, profilesPort, metricsPort), 0o600))
	log, err := os.Create(c.log)
	require.NoError(t, err)
	defer log.Close()
	c.cmd = exec.Command(binary, "--config", config)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() { _ = c.stop() })
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(c.log)
		require.NoError(t, err)
		if strings.Contains(string(text), "observing the CUDA driver") {
			return c
		}
		require.True(t, time.Now().Before(end), "the collector does not observe the driver; it says:\n%s", text)
	}
}

// stop ends the collector, which writes its remaining data.
func (c *collector) stop() error {
	if c.cmd.ProcessState != nil {
		return nil
	}
	return errors.Join(c.cmd.Process.Signal(syscall.SIGTERM), c.cmd.Wait())
}

// sample is the resource usage of the collector at one time.
type sample struct {
	at                       time.Time
	rss                      float64 // MiB
	files, goroutines, links float64
	// entries of the kernel's maps, by name.
	entries map[string]float64
}

func (c *collector) sample(ctx context.Context) (sample, error) {
	s := sample{at: time.Now(), entries: map[string]float64{}}
	proc := fmt.Sprintf("/proc/%d", c.cmd.Process.Pid)
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 64)
			if err != nil {
				return s, err
			}
			s.rss = kib / 1024
		}
	}
	files, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return s, err
	}
	s.files = float64(len(files))
	for _, f := range files {
		info, err := os.ReadFile(filepath.Join(proc, "fdinfo", f.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // closed meanwhile
		}
		if err != nil {
			return s, err
		}
		fields := map[string]string{}
		for line := range strings.Lines(string(info)) {
			if k, v, ok := strings.Cut(line, ":"); ok {
				fields[k] = strings.TrimSpace(v)
			}
		}
		if fields["link_id"] != "" {
			s.links++
		}
		if id := fields["map_id"]; id != "" {
			if err := count(id, s.entries); err != nil {
				return s, err
			}
		}
	}
	profile, err := get(ctx, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/goroutine?debug=1", profilesPort))
	if err != nil {
		return s, err
	}
	if _, err := fmt.Sscanf(profile, "goroutine profile: total %g", &s.goroutines); err != nil {
		return s, fmt.Errorf("%q: %w", profile[:min(len(profile), 80)], err)
	}
	return s, nil
}

// count counts the entries of a map. Arrays always have the same number.
func count(id string, entries map[string]float64) error {
	number, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return err
	}
	m, err := ebpf.NewMapFromID(ebpf.MapID(number))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return err
	}
	switch m.Type() {
	case ebpf.Hash, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LRUCPUHash:
	default:
		return nil
	}
	if _, ok := entries[info.Name]; ok {
		return nil // the same map through another descriptor
	}
	n := 0.0
	var key, next []byte
	for {
		var from any
		if key != nil {
			from = key
		}
		if next, err = m.NextKeyBytes(from); err != nil {
			// The current key may be deleted, and the iteration then starts again. The capacity
			// limits the count.
			return err
		}
		if next == nil || n >= float64(m.MaxEntries()) {
			break
		}
		n++
		key = next
	}
	entries[info.Name] = n
	return nil
}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// own returns the receiver's own metrics by name with labels, without the common prefix.
func own(ctx context.Context) (map[string]float64, error) {
	text, err := get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort))
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		_, line, ok := strings.Cut(strings.TrimSpace(line), "otelcol_receiver_cuda_")
		name, value, both := strings.Cut(line, " ")
		if !ok || !both {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] = v
		}
	}
	return out, nil
}

// launches returns the number of exported launches: the sum of the last values of all processes. It
// counts only processes with our kernels, because others on the machine may use a driver too.
func (c *collector) launches() (total int64, processes int, err error) {
	f, err := os.Open(c.out)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	last := map[string]int64{}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, 0, err
		}
		md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
		if err != nil {
			return 0, 0, err
		}
		for _, rm := range md.ResourceMetrics().All() {
			id, ok := rm.Resource().Attributes().Get("service.instance.id")
			if !ok {
				return 0, 0, errors.New("a resource without service.instance.id")
			}
			for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
				if m.Name() != "gpu.cuda.kernel.launch.calls" {
					continue
				}
				sum, ours := int64(0), false
				for _, p := range m.Sum().DataPoints().All() {
					name, _ := p.Attributes().Get("cuda.kernel.name")
					ours = ours || strings.HasPrefix(name.Str(), kernelPrefix)
					sum += p.IntValue()
				}
				if ours {
					last[id.Str()] = sum
				}
			}
		}
	}
	for _, n := range last {
		total += n
	}
	return total, len(last), nil
}
